#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Gets CRIU of Debian 13, which that of Debian 12 is too old for (vdso of Linux 6.18), with the libraries that it was made for,
# under CACHE_DIR/criu. Nothing is installed, and root is not needed.
#
# usage: criu.sh CACHE_DIR     prints the folder, whose `bin/criu` can be called from wherever the folder is
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
folder=$cache/criu
# What `criu` depends on there, by itself or by what that depends on.
packages=(criu libc6 libcompel1 libbsd0 libffi8 libgcc-s1 libgmp10 libgnutls30t64 libhogweed6t64 libidn2-0 libjansson4 libmd0 libmnl0
	libnet1 libnettle8t64 libnftables1 libnftnl11 libnl-3-200 libp11-kit0 libprotobuf-c1 libtasn1-6 libunistring5 libuuid1 libxtables12)

if [ ! -x "$folder/bin/criu" ]; then
	# Two tests may ask at the same time.
	exec 9> "$cache/.criu.lock"
	flock 9
	[ ! -x "$folder/bin/criu" ] || { echo "$folder"; exit 0; }
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG
	new=$(mktemp -d "$cache/criu.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	(cd "$new" && apt-get download -qq "${packages[@]/%//trixie}" >&2)
	for package in "$new"/*.deb; do
		dpkg-deb -x "$package" "$new/tree"
	done
	mkdir -p "$new/criu/bin" "$new/criu/lib"
	cp -L "$new"/tree/usr/lib/x86_64-linux-gnu/*.so* "$new/criu/lib/"
	# No program by itself: its libraries are not where it looks for them.
	install -m 644 "$new/tree/usr/sbin/criu" "$new/criu/criu"
	cat > "$new/criu/bin/criu" <<-'CALL'
		#!/bin/sh
		here=$(dirname "$(readlink -f "$0")")/..
		exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib" "$here/criu" "$@"
	CALL
	chmod +x "$new/criu/bin/criu"
	rm -rf "$folder" && mv "$new/criu" "$folder"
fi
echo "$folder"
