#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Compiles the timing plugin, and the static programs that measure in guests what it does.
# usage: build.sh BUILD_DIR [STAMP]     to BUILD_DIR/vm/timing.so and BUILD_DIR/bin/tandem-calibrate
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(mkdir -p "$1/vm" "$1/bin" && cd "$1" && pwd)
headers=$("$here/../setup/plugin-headers.sh" "$build/cache")
compile=("${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter)

# Never written in place: a guest may be running with it.
"${compile[@]}" -flto -fPIC -shared -fvisibility=hidden -I"$headers" \
	-isystem "$headers/glib/usr/include/glib-2.0" \
	-isystem "$headers/glib/usr/lib/x86_64-linux-gnu/glib-2.0/include" "$here"/*.c -o "$build/vm/timing.so.$$" -lpthread
mv "$build/vm/timing.so.$$" "$build/vm/timing.so"

for program in calibrate flood ring sharers strings; do
	"${compile[@]}" -static "$here/guest/$program.c" "$here/guest/place.c" -o "$build/bin/tandem-$program.$$" -lpthread
	mv "$build/bin/tandem-$program.$$" "$build/bin/tandem-$program"
done
# OpenMP's library could load others for accelerators; the linker warns of that in a static program.
"${compile[@]}" -static -fopenmp -Wl,--no-warnings "$here"/guest/{regions,place}.c -o "$build/bin/tandem-regions.$$"
mv "$build/bin/tandem-regions.$$" "$build/bin/tandem-regions"
[ -z "${2-}" ] || touch "$2"
