#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Fuzzes with libFuzzer, on stable Rust: instrumented for coverage, without a sanitizer.
# usage: fuzz.sh PACKAGE TARGET SECONDS
# The target is the package's example fuzz_TARGET, behind its feature `fuzz`; seeds_TARGET writes what it starts from.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
usage='usage: fuzz.sh PACKAGE TARGET SECONDS'
package=${1:?$usage} name=${2:?$usage} seconds=${3:?$usage}
work=build/fuzz/$package-$name
target=$(rustc -vV | sed -n 's/^host: //p')
# For a named target, because only there the flags leave build scripts and procedural macros alone.
instrument='--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks
	-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
	-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'
mkdir -p "$work/corpus" "$work/found"
cargo run --quiet --release --locked -p "$package" --features testing --example "seeds_$name" -- "$work/seeds"
RUSTFLAGS=$(echo $instrument) cargo build --quiet --release --locked -p "$package" --features fuzz --example "fuzz_$name" \
	--target "$target" --target-dir build/fuzz/cargo
# What was found before is kept in corpus/, inputs that fail in found/.
"build/fuzz/cargo/$target/release/examples/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
	-max_len=8192 -print_final_stats=1 -artifact_prefix="$work/found/" "$work/corpus" "$work/seeds"
