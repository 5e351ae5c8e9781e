#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Sets up virtme-ng for `vm/lab.py run --runner vng`: a Python environment and
# virtiofsd, both below the cache. Takes some minutes the first time.
#
# usage: vng.sh CACHE_DIR      prints the directory to put into PATH
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=$(mkdir -p "$1" && cd "$1" && pwd)
dir=$cache/vng
stamp=$dir/done
want=$(sha256sum < "$0")

if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
	missing=()
	for package in libcap-ng-dev libseccomp-dev udev python3-venv; do
		dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
	done
	if [ ${#missing[@]} -gt 0 ]; then
		[ "$(id -u)" = 0 ] || { echo "vng: installing ${missing[*]} needs root: run this as root once" >&2; exit 1; }
		APT_CONFIG=$("$here/apt-view.sh" "$cache/apt") DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
	fi
	python3 -m venv "$dir/venv" >&2
	"$dir/venv/bin/pip" install -q 'virtme-ng==1.42' >&2
	# Not below the project's Cargo configuration: its target directory is not ours.
	(cd / && cargo install virtiofsd --locked --quiet --root "$dir") >&2
	mkdir -p "$dir/bin" && ln -sf ../venv/bin/vng ../venv/bin/virtme-run "$dir/bin/"
	echo "$want" > "$stamp"
fi
echo "$dir/bin"
