#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Gets programs of other projects that workloads start (tandem-load list --json, "needs") or results are compared with
# (scotch_gmap): installs their Debian packages when they are not here yet. Under CACHE_DIR/programs they have the names
# by which they are started.
#
# usage: programs.sh CACHE_DIR NAME...     prints a line HERE:GUEST for each file or folder that a guest needs
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
shift
bin=$cache/programs
libraries=/usr/lib/$(uname -m)-linux-gnu

declare -A packages=([hackbench]=rt-tests [stress-ng]=stress-ng [sysbench]=sysbench [redis-server]=redis-tools
	[mpirun]=openmpi-bin [hpcc]=hpcc [scotch_gmap]=scotch [perf]='')
# Where a program is not /usr/bin/NAME. A redis-check-rdb that is called redis-server is one.
declare -A files=([redis-server]=/usr/bin/redis-check-rdb [perf]=$cache/perf/usr/bin/perf)
# What it reads at run time besides its libraries.
declare -A folders=([mpirun]="$libraries/openmpi $libraries/pmix2 /usr/share/openmpi /etc/openmpi")

missing=()
for name in "$@"; do
	[ -n "${packages[$name]+known}" ] || { echo "programs: $name is none of those known: ${!packages[*]}" >&2; exit 2; }
	[ -e "${files[$name]:-/usr/bin/$name}" ] || missing+=("${packages[$name]:?perf is missing: run vm/setup/packages.sh}")
done

mkdir -p "$bin"
if [ ${#missing[@]} -gt 0 ]; then
	[ "$(id -u)" = 0 ] || { echo "programs: installing ${missing[*]} needs root: run this as root" >&2; exit 1; }
	# Two experiments may ask at the same time.
	exec 9> "$bin/.lock"
	flock 9
	APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
	export APT_CONFIG DEBIAN_FRONTEND=noninteractive
	apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
fi

for name in "$@"; do
	ln -sf "$(readlink -f "${files[$name]:-/usr/bin/$name}")" "$bin/$name"
	echo "$bin/$name:/bin/$name"
	for folder in ${folders[$name]-}; do
		[ ! -e "$folder" ] || echo "$folder:$folder"
	done
done
