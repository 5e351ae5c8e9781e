#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Sets up a checker of Kubernetes manifests, which brings Kubernetes' schemas with it: a Python environment below the cache.
#
# usage: manifests.sh CACHE_DIR      prints the path of its Python
set -euo pipefail

cache=$(mkdir -p "$1" && cd "$1" && pwd)
dir=$cache/manifests
want=$(sha256sum < "$0")
if [ "$(cat "$dir/done" 2>/dev/null)" != "$want" ]; then
	python3 -m venv "$dir" >&2
	"$dir/bin/pip" install -q kubernetes-validate==1.37.0 PyYAML==6.0.3 >&2
	echo "$want" > "$dir/done"
fi
echo "$dir/bin/python"
