#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds all programs and puts them into one directory.
# usage: build-binaries.sh DIR STAMP
set -euo pipefail
stamp=$(readlink -f "$2")
cd "$(dirname "$(readlink -f "$0")")"
programs=(scx_tandem tandem guest-tests sampler-accuracy)
cargo build --release --locked --workspace --exclude tandem-load --bins
# Static and small, so that it runs in any guest and on any machine; for a named target, because only there the flag leaves
# procedural macros alone.
target=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS='-C target-feature=+crt-static -C strip=debuginfo' cargo build --release --locked -p tandem-load --target "$target"
# A test of pages that move between nodes, which needs a machine with several: it runs in guests.
mover_test=$(cargo test --release --locked --no-run --message-format=json-render-diagnostics -p tandem-act --test two_nodes |
	python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "two_nodes":
        print(message["executable"])')
mkdir -p "$1"
for program in "${programs[@]}"; do
	cmp -s "build/cargo/release/$program" "$1/$program" || cp "build/cargo/release/$program" "$1/$program"
done
load=build/cargo/$target/release/tandem-load
cmp -s "$load" "$1/tandem-load" || cp "$load" "$1/tandem-load"
cmp -s "$mover_test" "$1/two_nodes" || cp "$mover_test" "$1/two_nodes"
touch "$stamp"
