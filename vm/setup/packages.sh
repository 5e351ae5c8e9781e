#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Installs what building, the lab and tests need on Debian 12. QEMU and bpftool come
# from bookworm-backports; perf is unpacked beside the build and never installed,
# so a perf that is already here stays.
#
# usage: packages.sh CACHE_DIR
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
stamp=$cache/packages.done

build=(clang-19 llvm-19 libclang-19-dev clang-format-19 libelf-dev zlib1g-dev libzstd-dev pkg-config
	cmake make gcc g++ libc6-dev meson ninja-build python3 python3-venv git ca-certificates)
lab=(busybox-static cpio zstd xz-utils kmod libnuma1 numactl procps)
# Tests look at reports as a browser shows them, install the package into a small Debian, hand trials to Slurm and ssh, and
# tune programs of both OpenMP runtimes.
tests=(chromium chromium-driver fonts-dejavu-core dpkg-dev mmdebstrap slurmctld slurmd slurm-client munge openssh-server
	openssh-client libomp-19-dev)
backports=(qemu-system-x86 bpftool)

want=$(sha256sum "$0" "$here/apt-view.sh" | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
	exit 0
fi
[ "$(id -u)" = 0 ] || { echo "packages: installing needs root: run this as root" >&2; exit 1; }

export DEBIAN_FRONTEND=noninteractive
rm -f "$cache/apt/updated"
APT_CONFIG=$("$here/apt-view.sh" "$cache/apt")
export APT_CONFIG
apt-get install -qq -y --no-install-recommends "${build[@]}" "${lab[@]}" "${tests[@]}"
apt-get install -qq -y --no-install-recommends -t bookworm-backports "${backports[@]}"

(cd "$cache/apt" && rm -f linux-perf_*.deb && apt-get download -qq -t bookworm-backports linux-perf)
deb=$(echo "$cache"/apt/linux-perf_*.deb)
apt-get satisfy -qq -y --no-install-recommends "$(dpkg-deb -f "$deb" Depends)"
rm -rf "$cache/perf" && dpkg-deb -x "$deb" "$cache/perf"
echo "$want" > "$stamp"
