#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# First program of a lab guest. The port named tandem.terminal takes what the command prints; tandem.result takes
# records for the runner: `started`, `exit N`, `files` with a tar of /out, its sha256, `end`; `unpacked N` where tar
# fails. Without ports, a shell runs on the second serial line.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TERM=dumb

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
ifconfig lo 127.0.0.1 up
hostname tandem-lab
ulimit -l unlimited

# port NAME: its device, if there is one
port() {
	for port in /sys/class/virtio-ports/*; do
		[ -e "$port/name" ] && [ "$(cat "$port/name")" = "$1" ] && echo "/dev/${port##*/}"
	done
}
result=$(port tandem.result)
terminal=$(port tandem.terminal)
cd /root
echo "lab: guest up $(cut -d' ' -f1 /proc/uptime) s after boot, guest clock $(date -u +%FT%TZ)" > /dev/kmsg

if [ -z "$result" ]; then
	# The terminal is hung up when its session's first process ends, and drops what it has not sent: stty waits for that.
	TERM=linux setsid -c sh -c '(. /lab/command); stty sane' < /dev/ttyS1 > /dev/ttyS1 2>&1
	sync
	poweroff -f
fi

# A port takes one writer; behind a pipe the command may open /dev/stdout again.
mkfifo /run/terminal
cat /run/terminal > "$terminal" &
relay=$!
exec 3> "$result"
echo "started $(cut -d' ' -f1 /proc/uptime)" >&3
setsid sh /lab/command < /dev/null > /run/terminal 2>&1 3>&-
code=$?

# Whatever the command left running would hold the pipe and change /out. Kernel threads and the dead have no program.
alive=yes
while [ -n "$alive" ]; do
	alive=
	for process in /proc/[0-9]*; do
		pid=${process#/proc/}
		if [ "$pid" != 1 ] && [ "$pid" != "$relay" ] && [ -e "$process/exe" ]; then
			kill -9 "$pid" 2> /dev/null
			alive=yes
		fi
	done
done
wait "$relay"

echo "exit $code" >&3
cd /out
tar -cf /tmp/out.tar .
packed=$?
if [ "$packed" = 0 ]; then
	echo files >&3
	cat /tmp/out.tar >&3
	sha256sum < /tmp/out.tar | cut -c1-64 >&3
	echo end >&3
else
	echo "unpacked $packed" >&3
fi
poweroff -f
