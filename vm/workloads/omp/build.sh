#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Compiles the lab's OpenMP programs, with a shared runtime: `tandem tune` sees no regions in static programs.
# usage: build.sh BUILD_DIR [STAMP]     to BUILD_DIR/bin/tandem-omp-cg and so on
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
bin=$(mkdir -p "$1/bin" && cd "$1/bin" && pwd)
for source in "$here"/*.c; do
	program=tandem-omp-$(basename "$source" .c)
	"${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra -Werror -fopenmp "$source" -o "$bin/$program.$$" -lm
	mv "$bin/$program.$$" "$bin/$program"
done
[ -z "${2-}" ] || touch "$2"
