#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds all programs and puts them into one directory.
# usage: build-binaries.sh DIR STAMP
set -euo pipefail
stamp=$(readlink -f "$2")
cd "$(dirname "$(readlink -f "$0")")"
programs=(scx_tandem tandem guest-tests sampler-accuracy codelets two_nodes tandem-load)
cargo build --release --locked --workspace --exclude tandem-load --bins
# Static and small, so that it runs in any guest and on any machine.
cargo rustc --release --locked -p tandem-load -- -C target-feature=+crt-static -C strip=debuginfo
mkdir -p "$1"
for program in "${programs[@]}"; do
	cmp -s "build/cargo/release/$program" "$1/$program" || cp "build/cargo/release/$program" "$1/$program"
done
touch "$stamp"
