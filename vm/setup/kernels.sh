#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Fetches one pinned kernel, and unpacks the ELF image that QEMU boots directly
# (no decompression in the guest, and its BTF can be read here) and its configuration
# (BPF programs may ask for settings, which libbpf reads from /boot).
#
# usage: kernels.sh CACHE_DIR RELEASE     prints the path of its vmlinux; its config lies beside it
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
release=$2
dir=$cache/kernels/$release

# newer: the later releases of the same flavour that there are: those of its series, else the last few.
newer() {
	local base=${release%%+*} flavour=${release#*+} all
	all=$({ apt-cache pkgnames linux-image- | sed -n "s/^linux-image-\([0-9.]*+$flavour\)\$/\1/p"; echo "$release"; } |
		sort -uV | awk -v ours="$release" 'seen; $0 == ours { seen = 1 }')
	grep "^${base%.*}\\." <<< "$all" || tail -n 3 <<< "$all"
}

# Why it cannot be had. The archive drops a kernel soon after the next one has come.
why_not() {
	local there
	if apt-cache show "linux-image-$release" > /dev/null 2>&1; then
		echo "kernels: $release cannot be fetched: check the network"
		return
	fi
	there=$(newer | paste -sd ' ')
	echo "kernels: $release is not offered any more: name another release in vm/kernels.list${there:+; newer ones are $there}"
}

if [ ! -e "$dir/vmlinux" ] || [ ! -e "$dir/config" ]; then
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG
	# Newer packages keep the image, the modules and the configuration apart.
	packages=(linux-image-"$release")
	if apt-cache show "linux-binary-unsigned-$release" > /dev/null 2>&1; then
		packages=(linux-binary-unsigned-"$release" linux-modules-"$release" linux-base-"$release")
	fi
	rm -rf "$dir.part" && mkdir -p "$dir.part/debs"
	(cd "$dir.part/debs" && apt-get download -qq "${packages[@]}") || {
		why_not >&2
		exit 1
	}
	for deb in "$dir.part"/debs/*.deb; do
		dpkg-deb -x "$deb" "$dir.part/root"
	done
	"$here/extract-vmlinux.py" "$(find "$dir.part/root" -type f -name 'vmlinuz*' | head -n 1)" "$dir.part/vmlinux"
	config=$(find "$dir.part/root" -type f \( -name "config-$release" -o -path "*/$release/config" \))
	if [ -z "$config" ]; then
		echo "kernels: the packages of $release have no configuration: choose another kernel in vm/kernels.list" >&2
		exit 1
	fi
	cp "$config" "$dir.part/config"
	rm -rf "$dir.part/debs" "$dir"
	mv "$dir.part" "$dir"
fi
echo "$dir/vmlinux"
