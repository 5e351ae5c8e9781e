#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Puts what a container image holds into a folder, which is all that `docker build` is given: the programs that are built, without
# their symbols, and the licences.
# usage: image.sh [FOLDER]      by default build/image; docs/fleet.md has the next step
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
out=$(readlink -m "${1:-$root/build/image}")
cd "$root"
mkdir -p "$out"
for program in scx_tandem tandem; do
	[ -x "build/bin/$program" ] || { echo "image: build/bin/$program is missing: ./run build makes it" >&2; exit 1; }
	strip -o "$out/$program" "build/bin/$program"
done
install -m 644 COPYING "$out/"
packaging/notices.py "$out/THIRD-PARTY.txt"
