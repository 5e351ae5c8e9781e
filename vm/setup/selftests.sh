#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds the kernel's own self-tests of sched_ext from Debian's source of exactly the version that a pinned kernel has,
# against that kernel's types. Takes some minutes the first time. The kernel must have been fetched (kernels.sh).
#
# usage: selftests.sh CACHE_DIR RELEASE     prints the path of their runner
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
release=$2
dir=$cache/selftests/$release
vmlinux=$cache/kernels/$release/vmlinux

[ -e "$vmlinux" ] || { echo "selftests: $release is not here: run vm/setup/kernels.sh build/cache $release" >&2; exit 1; }
if [ ! -e "$dir/runner" ]; then
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG
	version=$(apt-cache show "linux-image-$release" | sed -n 's/^Version: //p' | head -n 1)
	rm -rf "$dir.part" && mkdir -p "$dir.part/fetched" "$dir.part/source" "$dir.part/out"
	# The package with the source, named after the series, is there for the newest kernels only; the archive's own
	# source may be gone before it.
	(cd "$dir.part/fetched" &&
		{ apt-get download -qq "linux-source-${version%.*}=$version" 2> /dev/null ||
			apt-get source -qq --download-only --tar-only "linux=$version" > /dev/null; }) || {
		echo "selftests: the source of Linux $version cannot be fetched: check the network" >&2
		exit 1
	}
	for deb in "$dir.part"/fetched/*.deb; do
		[ ! -e "$deb" ] || dpkg-deb -x "$deb" "$dir.part/fetched"
	done
	tar -xf "$(find "$dir.part/fetched" -name 'linux*.tar.xz')" -C "$dir.part/source" --strip-components 1 \
		--wildcards --no-wildcards-match-slash '*/tools' '*/include' '*/scripts'
	make -s -j"$(nproc)" -C "$dir.part/source/tools/testing/selftests/sched_ext" OUTPUT="$dir.part/out" \
		CLANG=clang-19 BPFTOOL="$(command -v bpftool)" VMLINUX_BTF="$vmlinux" > "$dir.part/log" 2>&1 || {
		tail -n 20 "$dir.part/log" >&2
		echo "selftests: those of Linux $version cannot be built: see above" >&2
		exit 1
	}
	rm -rf "$dir" && mkdir -p "$dir"
	mv "$dir.part/out/runner" "$dir/runner"
	rm -rf "$dir.part"
fi
echo "$dir/runner"
