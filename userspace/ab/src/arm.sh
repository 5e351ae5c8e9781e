#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# One run of one arm, in a guest or on this machine: settings, scheduler, workload, what the kernel counted. Ends with
# the settings as they were.
# usage: arm.sh OUT NUMA_BALANCING THP SETTLE_SECONDS SCHEDULER WORKLOAD...
#   NUMA_BALANCING   0 or 1               THP        never or always
#   SETTLE_SECONDS   before the workload  SCHEDULER  command line of a sched_ext scheduler, empty for the kernel's own
# Leaves in OUT: workload.out, workload.err, vmstat.before, vmstat.after, energy.before, energy.after, scheduler.log,
# scheduler.events; and `failure`, one sentence, when it exits with another code than 0.
set -u
out=$1
balancing=$2
thp=$3
settle=$4
scheduler=$5
shift 5
state=/sys/kernel/sched_ext/state
balancing_file=/proc/sys/kernel/numa_balancing
thp_file=/sys/kernel/mm/transparent_hugepage/enabled
balancing_before=
thp_before=
scheduler_pid=
workload_pid=

stop() {
	[ -z "$1" ] || kill -TERM "$1" 2> /dev/null
	[ -z "$1" ] || wait "$1"
}

# On every way out.
clean_up() {
	trap '' INT TERM
	stop "$workload_pid"
	stop "$scheduler_pid"
	[ -z "$balancing_before" ] || echo "$balancing_before" > "$balancing_file"
	[ -z "$thp_before" ] || echo "$thp_before" > "$thp_file"
}

fail() {
	echo "$*" > "$out/failure"
	exit 1
}

# What a program said last, for a sentence about its end: its last error if it calls one so, because advice may follow it.
last_words() {
	words=$(grep -i '^error: ' "$1" | tail -n 1)
	echo "${words:-$(tail -n 1 "$1")}" | cut -c1-300
}

set_up() {
	# A machine of one node has nothing to balance, and no such file.
	if [ -e "$balancing_file" ]; then
		balancing_before=$(cat "$balancing_file")
		echo "$balancing" > "$balancing_file" || fail "NUMA balancing cannot be set to $balancing"
	elif [ "$balancing" != 0 ]; then
		fail "this kernel has no NUMA balancing ($balancing_file)"
	fi
	if [ -e "$thp_file" ]; then
		thp_before=$(sed 's/.*\[\(.*\)\].*/\1/' "$thp_file")
		echo "$thp" > "$thp_file" || fail "transparent huge pages cannot be set to $thp"
	elif [ "$thp" != never ]; then
		fail "this kernel has no transparent huge pages ($thp_file)"
	fi
}

start_scheduler() {
	[ -e "$state" ] || fail "this kernel has no sched_ext ($state)"
	[ "$(cat "$state")" = disabled ] || fail "another sched_ext scheduler is loaded: $(cat /sys/kernel/sched_ext/root/ops)"
	# shellcheck disable=SC2086 # a list of words
	$scheduler > "$out/scheduler.log" 2>&1 &
	scheduler_pid=$!
	until [ "$(cat "$state")" = enabled ]; do
		kill -0 "$scheduler_pid" 2> /dev/null || fail "the scheduler ended while loading: $(last_words "$out/scheduler.log")"
		sleep 0.2
	done
}

# The scheduler must have been there until the end, else the run was under the kernel's own.
end_scheduler() {
	kill -0 "$scheduler_pid" 2> /dev/null && [ "$(cat "$state")" = enabled ] ||
		fail "the scheduler was ejected or ended before the workload did: $(last_words "$out/scheduler.log")"
	[ ! -e /sys/kernel/sched_ext/root/events ] || cat /sys/kernel/sched_ext/root/events > "$out/scheduler.events"
	stop "$scheduler_pid"
	scheduler_pid=
}

# A line a package, where the machine tells: name, energy in uJ, where the counter wraps. Some machines show the same packages again
# as intel-rapl-mmio. AMD's are called intel-rapl, too.
energy() {
	for zone in /sys/class/powercap/intel-rapl:*; do
		[ -e "$zone/energy_uj" ] || continue
		case $(cat "$zone/name") in
		package-*) echo "${zone##*/} $(cat "$zone/energy_uj") $(cat "$zone/max_energy_range_uj")" ;;
		esac
	done
}

trap clean_up EXIT
trap 'exit 130' INT TERM
set_up
[ -z "$scheduler" ] || start_scheduler
sleep "$settle"
cat /proc/vmstat > "$out/vmstat.before"
energy > "$out/energy.before"
# In the background, because a shell answers a signal only between foreground commands.
"$@" > "$out/workload.out" 2> "$out/workload.err" &
workload_pid=$!
code=0
wait "$workload_pid" || code=$?
workload_pid=
energy > "$out/energy.after"
cat /proc/vmstat > "$out/vmstat.after"
[ "$code" = 0 ] || fail "the workload failed (exit code $code): $(last_words "$out/workload.err")"
[ -z "$scheduler" ] || end_scheduler
exit 0
