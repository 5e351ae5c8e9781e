#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Fetches qemu-x86_64, which runs a program's code for `tandem profile --exact`. It is unpacked and never installed; the
# libraries that it needs are installed when one is missing. Debian's qemu-user of bookworm-backports, the version of
# the system emulator, is linked statically and takes no plugins, so that it is the one of bookworm.
#
# usage: qemu-user.sh CACHE_DIR     prints the path of qemu-x86_64
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
dir=$cache/qemu-user
program=$dir/usr/bin/qemu-x86_64

if [ ! -e "$program" ]; then
	# Two profiles may ask at the same time.
	exec 9> "$cache/qemu-user.lock"
	flock 9
fi
if [ ! -e "$program" ]; then
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG DEBIAN_FRONTEND=noninteractive
	rm -rf "$dir.part" && mkdir -p "$dir.part/fetched"
	(cd "$dir.part/fetched" && apt-get download -qq qemu-user/bookworm >&2) || {
		echo "qemu-user: the package qemu-user of bookworm cannot be fetched: check the network" >&2
		exit 1
	}
	dpkg-deb -x "$dir.part"/fetched/qemu-user_*.deb "$dir.part"
	if ldd "$dir.part/usr/bin/qemu-x86_64" | grep -q 'not found'; then
		[ "$(id -u)" = 0 ] || { echo "qemu-user: installing its libraries needs root: run this as root" >&2; exit 1; }
		apt-get satisfy -qq -y --no-install-recommends "$(dpkg-deb -f "$dir.part"/fetched/qemu-user_*.deb Depends)" >&2
	fi
	# The emulators of other processors are of no use here.
	find "$dir.part/usr" -mindepth 1 -not -type d -not -name qemu-x86_64 -delete
	rm -rf "$dir.part/fetched" "$dir"
	mv "$dir.part" "$dir"
fi
echo "$program"
