#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Fetches the headers that the timing plugin is compiled against: qemu-plugin.h, which is in QEMU's source package
# only, of exactly the version that is installed, and glib's, which it includes.
#
# usage: plugin-headers.sh CACHE_DIR     prints the folder that holds them
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
package=qemu-system-x86
version=$(dpkg-query -W -f '${source:Version}' "$package" 2> /dev/null) || {
	echo "plugin-headers: $package is not installed: run vm/setup/packages.sh build/cache" >&2
	exit 1
}
dir=$cache/plugin-headers/${version//[:~+]/_}

if [ ! -e "$dir/qemu-plugin.h" ]; then
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG
	rm -rf "$dir.part" && mkdir -p "$dir.part/fetched"
	(cd "$dir.part/fetched" && apt-get source -qq --download-only --tar-only "qemu=$version" && apt-get download -qq libglib2.0-dev) || {
		echo "plugin-headers: the source of QEMU $version cannot be fetched: check the network" >&2
		exit 1
	}
	tar -xf "$dir.part"/fetched/qemu_*.orig.tar.* -C "$dir.part" --strip-components 3 --wildcards '*/include/qemu/qemu-plugin.h' ||
		{ echo "plugin-headers: QEMU $version has no qemu-plugin.h where 10.0 has it" >&2; exit 1; }
	dpkg-deb -x "$dir.part"/fetched/libglib2.0-dev_*.deb "$dir.part/glib"
	rm -rf "$dir.part/fetched" "$dir"
	mv "$dir.part" "$dir"
fi
echo "$dir"
