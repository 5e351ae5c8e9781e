#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# What a virtme-ng guest runs: a writable layer over this machine's files, then the contract of init.sh.
#
# usage: vng-guest.sh RUN_DIR OVERLAY_MODULE
run=$1
module=$2

for port in /sys/class/virtio-ports/*; do
	[ -e "$port/name" ] && [ "$(cat "$port/name")" = tandem.result ] && result=/dev/${port##*/}
done
exec 3> "$result"
# Errors to the log: the lab reads there that a scheduler was ejected.
echo 4 > /proc/sys/kernel/printk
grep -qw overlay /proc/filesystems || insmod "$module"

layer=$(mktemp -d /run/layer.XXXXXX)
mount -t tmpfs layer "$layer"
mkdir "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" root "$layer/root" || {
	echo "lab: no overlay in this guest" >&2
	exit 125
}
root=$layer/root
for folder in proc sys dev; do
	mount --rbind "/$folder" "$root/$folder"
done
mount -t tmpfs tmp "$root/tmp"
mount -t tmpfs run "$root/run"
for at in "debugfs kernel/debug" "tracefs kernel/tracing" "bpf fs/bpf" "cgroup2 fs/cgroup"; do
	mountpoint -q "$root/sys/${at#* }" || mount -t "${at% *}" lab "$root/sys/${at#* }"
done
rm -rf "$root/out"
mkdir "$root/out"
tar -C "$run/add" -cf - . | tar -C "$root" --keep-directory-symlink --no-overwrite-dir -xf -
ulimit -l unlimited

echo "started $(cut -d' ' -f1 /proc/uptime)" >&3
chroot "$root" /bin/sh -c 'cd /root; exec sh /lab/command' < /dev/null 2>&1 3>&-
code=$?
echo "exit $code" >&3
tar -C "$root/out" -cf /run/out.tar .
packed=$?
# 1: what the command left running changed a file meanwhile.
if [ "$packed" -le 1 ]; then
	echo files >&3
	cat /run/out.tar >&3
	sha256sum < /run/out.tar | cut -c1-64 >&3
	echo end >&3
else
	echo "unpacked $packed" >&3
fi
