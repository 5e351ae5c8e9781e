#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Compiles the plugin that traces memory accesses of programs in qemu-x86_64.
# usage: build.sh BUILD_DIR [STAMP]     to BUILD_DIR/vm/trace.so
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(mkdir -p "$1/vm" && cd "$1" && pwd)
headers=$("$here/../setup/plugin-headers.sh" "$build/cache")

# Never written in place: a program may be running with it.
"${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -flto -fPIC -shared -fvisibility=hidden \
	-I"$headers" -isystem "$headers/glib/usr/include/glib-2.0" \
	-isystem "$headers/glib/usr/lib/x86_64-linux-gnu/glib-2.0/include" "$here"/*.c -o "$build/vm/trace.so.$$" -lpthread
mv "$build/vm/trace.so.$$" "$build/vm/trace.so"
[ -z "${2-}" ] || touch "$2"
