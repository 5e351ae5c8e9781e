#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# A private view of Debian's package archive: bookworm-backports (QEMU, bpftool),
# trixie (CRIU) and trixie-backports (kernels built with sched_ext) beside the
# machine's own suite, with sources (QEMU's plugin header). Lists and downloads live in one directory of ours, so that the
# machine's own sources and pins stay as they are. Lists are fetched when those there are older than a day.
#
# usage: apt-view.sh DIR      prints the path of the view's apt.conf
set -euo pipefail

dir=$(mkdir -p "$1" && cd "$1" && pwd)
conf=$dir/apt.conf

# Debian's own stanzas only: other vendors' sources are none of our business.
own_sources() {
	if [ -r /etc/apt/sources.list.d/debian.sources ]; then
		cat /etc/apt/sources.list.d/debian.sources
	else
		awk '$1 == "deb" && /bookworm/ {
			for (i = 2; $i ~ /^\[/ || $i ~ /\]$/; i++) ;
			print "Types: deb\nURIs: " $i "\nSuites: " $(i + 1) "\nComponents: main"
			print "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
		}' /etc/apt/sources.list
	fi
}
sources=$(own_sources)
uri=$(awk '/^URIs:/ { print $2; exit }' <<< "$sources")
[ -n "$uri" ] || {
	echo "apt-view: no Debian archive in /etc/apt: add a bookworm source and try again" >&2
	exit 1
}

mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
cat > "$dir/view.sources" <<VIEW
$sources

Types: deb deb-src
URIs: $uri
Suites: bookworm-backports trixie trixie-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
VIEW
cat > "$conf" <<VIEW
Dir::Etc::sourcelist "$dir/view.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "$dir/view.pref";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$dir/lists";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
VIEW
# Nothing comes from trixie unless it is asked for by name: its packages are
# built against newer libraries.
cat > "$dir/view.pref" <<VIEW
Package: *
Pin: release n=trixie*
Pin-Priority: 1
VIEW
# Of older lists the versions may have been replaced, and are not to be had any more; those of other sources are no good.
lists_are_new() {
	[ -n "$(find "$dir" -maxdepth 1 -name updated -mtime -1)" ] && cmp -s "$dir/view.sources" "$dir/updated"
}
if ! lists_are_new; then
	# Two may ask at the same time.
	exec 9> "$dir/.lock"
	flock 9
	if lists_are_new; then
		:
	elif APT_CONFIG=$conf apt-get update -qq -o APT::Update::Error-Mode=any >&2; then
		cp "$dir/view.sources" "$dir/updated"
	elif [ -e "$dir/updated" ]; then
		echo "apt-view: the package lists cannot be fetched anew: going on with those of $(date -r "$dir/updated" +%F)" >&2
	else
		echo "apt-view: the package lists cannot be fetched: check the network" >&2
		exit 1
	fi
fi
echo "$conf"
