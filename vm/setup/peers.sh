#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds other people's sched_ext schedulers, to compare with, from Cargo's registry. Takes some minutes the first time.
#
# usage: peers.sh CACHE_DIR NAME...      prints the path of each program, one a line
set -euo pipefail

cache=$(mkdir -p "$1" && cd "$1" && pwd)
shift
dir=$cache/peers
# The versions that were tried with the pinned kernels.
declare -A versions=([scx_rusty]=1.1.4 [scx_bpfland]=1.1.4)

[ $# -gt 0 ] || { echo "peers: name the schedulers to build: ${!versions[*]}" >&2; exit 2; }
for name in "$@"; do
	if [ -z "${versions[$name]-}" ]; then
		echo "peers: $name is none of those that are built here: ${!versions[*]}" >&2
		exit 2
	fi
done

mkdir -p "$dir"
# Two experiments may ask at the same time.
exec 9> "$dir/lock"
flock 9
for name in "$@"; do
	program=$dir/bin/$name
	stamp=$dir/$name.version
	if [ ! -x "$program" ] || [ "$(cat "$stamp" 2> /dev/null)" != "${versions[$name]}" ]; then
		# Not below the project's Cargo configuration: its target directory is not ours.
		(cd / && BPF_CLANG=${BPF_CLANG:-clang-19} CARGO_TARGET_DIR=$dir/target \
			cargo install "$name" --version "${versions[$name]}" --locked --force --quiet --root "$dir") >&2 || {
			echo "peers: $name ${versions[$name]} cannot be built: see above" >&2
			exit 1
		}
		rm -rf "$dir/target"
		echo "${versions[$name]}" > "$stamp"
	fi
	echo "$program"
done
