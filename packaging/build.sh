#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Makes the Debian package of what is built: build/package/tandem_VERSION-1_amd64.deb.
# usage: build.sh [OPTION...]      options of cargo-deb, for example --deb-version 0.1.1-1 --output DIR
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "$root"
tools=$(vm/setup/cargo-deb.sh build/cache)
out=build/package
mkdir -p "$out" && rm -rf "$out/man" "$out/completions"
build/bin/tandem generate --man "$out/man" --completions "$out/completions"
packaging/notices.py "$out/THIRD-PARTY.txt"
[ $# -gt 0 ] || set -- --output "$out"
PATH=$tools:$PATH cargo-deb deb --quiet --no-build --no-separate-debug-symbols --strip --package scx_tandem "$@"
