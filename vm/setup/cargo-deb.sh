#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Installs cargo-deb, which makes Debian packages of Cargo's, below the cache. Takes some minutes the first time.
#
# usage: cargo-deb.sh CACHE_DIR      prints the directory to put into PATH
set -euo pipefail

cache=$(mkdir -p "$1" && cd "$1" && pwd)
dir=$cache/cargo-deb
want=$(sha256sum < "$0")
if [ "$(cat "$dir/done" 2>/dev/null)" != "$want" ]; then
	# Not below the project's Cargo configuration: its target directory is not ours.
	(cd / && cargo install cargo-deb --version 3.8.0 --locked --quiet --force --root "$dir") >&2
	echo "$want" > "$dir/done"
fi
echo "$dir/bin"
