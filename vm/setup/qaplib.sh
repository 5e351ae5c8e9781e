#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Gets the instances of QAPLIB with the values of their best known permutations: unpacks Debian's package r-cran-qap
# under CACHE_DIR/qaplib. Nothing is installed, and root is not needed.
#
# usage: qaplib.sh CACHE_DIR     prints the folder of the instances (NAME.dat, NAME.sln)
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
folder=$cache/qaplib
instances=$folder/usr/lib/R/site-library/qap/qaplib

if [ ! -e "$instances/nug12.dat" ]; then
	# Two tests may ask at the same time.
	exec 9> "$cache/.qaplib.lock"
	flock 9
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG
	new=$(mktemp -d "$cache/qaplib.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	(cd "$new" && apt-get download -qq r-cran-qap >&2)
	dpkg-deb -x "$new"/r-cran-qap_*.deb "$new/tree"
	rm -rf "$folder" && mv "$new/tree" "$folder"
	[ -e "$instances/nug12.dat" ] || { echo "qaplib: r-cran-qap holds no nug12.dat: look under $folder" >&2; exit 1; }
fi
echo "$instances"
