#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# Two programs of a lab guest whose system is a Debian with systemd instead of busybox. As /init it unpacks /debian.tar.gz and
# hands over to its systemd; as the service lab.service there it keeps the contract of vm/lab/init.sh: it runs the lab's
# command, and reports.

# port NAME: its device
port() {
	for port in /sys/class/virtio-ports/*; do
		[ "$(cat "$port/name")" = "$1" ] && echo "/dev/${port##*/}"
	done
}

become_debian() {
	export PATH=/bin:/sbin
	mount -t proc proc /proc
	mount -t sysfs sys /sys
	mount -t devtmpfs dev /dev
	# The lab waits for this word only so long, and unpacking takes a while.
	echo "started $(cut -d' ' -f1 /proc/uptime)" > "$(port tandem.result)"
	mkdir /debian
	mount -t tmpfs -o size=1g debian /debian
	tar -xzf /debian.tar.gz -C /debian
	mkdir -p /debian/lab /debian/out /debian/etc/systemd/system/multi-user.target.wants
	cp /lab/command /init /debian/lab/
	cp -r /boot /debian/
	cat > /debian/etc/systemd/system/lab.service <<-UNIT
		[Service]
		ExecStart=/bin/sh /lab/init
		[Install]
		WantedBy=multi-user.target
	UNIT
	ln -s ../lab.service /debian/etc/systemd/system/multi-user.target.wants/
	exec switch_root /debian /lib/systemd/systemd
}

serve() {
	sh /lab/command > "$(port tandem.terminal)" 2>&1 < /dev/null
	code=$?
	tar -C /out -cf /run/out.tar .
	{
		echo "exit $code"
		echo files
		cat /run/out.tar
		sha256sum < /run/out.tar | cut -c1-64
		echo end
	} > "$(port tandem.result)"
	systemctl poweroff --force --force
}

if [ $$ = 1 ]; then
	become_debian
else
	serve
fi
