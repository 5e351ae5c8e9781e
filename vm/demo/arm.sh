#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# One arm of the demo, inside the guest: arm.sh stock|tandem crossed|perf SECONDS
# Leaves in /out: truth.json, observation.json, workload.json or workload.log, and for tandem scx_tandem.json.
set -eu
arm=$1
workload=$2
seconds=$3
out=/out
truth=$out/truth.json
state=/sys/kernel/sched_ext/state
# Longer than anything here takes; the workload is ended by SIGTERM.
workload_seconds=$((seconds + 600))

fail() {
	echo "demo: $*" >&2
	exit 1
}

# The seconds since boot, for progress.
say() {
	echo "demo: [$(cut -d' ' -f1 /proc/uptime) s] $*"
}

is_running() {
	kill -0 "$1" 2>/dev/null
}

start_workload() {
	case $workload in
	crossed)
		tandem-load crossed --processes 2 --threads 8 --private-mib 32 --shared-mib 8 --page-size base --lines-in-a-row 1 \
			--seconds "$workload_seconds" --truth "$truth" >"$out/workload.json" 2>"$out/workload.log" &
		workload_pid=$!
		until [ -e "$truth" ]; do
			is_running "$workload_pid" || fail "crossed ended before it was initialised: $(cat "$out/workload.log")"
			sleep 0.2
		done
		;;
	perf)
		# Everything first touched on CPU 0's node (-0), zeroed (-z), then accessed by bzero (-Z), base pages;
		# no -m, which would end it as soon as perf takes it for converged.
		perf bench numa mem -p 4 -t 2 -G 0 -P 64 -0 -z -Z -q --thp -1 -s "$workload_seconds" >"$out/workload.log" 2>&1 &
		workload_pid=$!
		tandem-load truth-of --comm perf --processes 4 --threads 2 --min-mib 32 --used-mib 64 \
			--timeout-seconds 90 --json "$truth" ||
			fail "perf bench did not start as expected: $(cat "$out/workload.log")"
		;;
	*) fail "no workload named $workload" ;;
	esac
	processes=$(sed -n 's/.*"processes":\[\([0-9,]*\)\].*/\1/p' "$truth" | tr ',' ' ')
	[ -n "$processes" ] || fail "no process in $truth"
	say "$workload is initialised: processes $processes"
}

start_observer() {
	tandem-load observe --truth "$truth" --seconds "$seconds" --interval-ms 500 --start "$1" \
		--json "$out/observation.json" &
	observer_pid=$!
}

start_scheduler() {
	manage=
	for process in $processes; do
		manage="$manage --manage pid=$process"
	done
	# shellcheck disable=SC2086 # a list of words
	# An emulator inside an emulated machine is slow, and so is moving a page: the default budgets would be a sample
	# or two and a few hundred pages a second.
	scx_tandem --interval-ms 1000 --sampler-budget 25 --mover-budget 50 $manage --report "$out/scx_tandem.json" >"$out/scx_tandem.log" 2>&1 &
	scheduler_pid=$!
	until [ "$(cat $state)" = enabled ]; do
		is_running "$scheduler_pid" || fail "scx_tandem ended while loading: $(tail -n 20 "$out/scx_tandem.log")"
		is_running "$observer_pid" || fail "scx_tandem was not loaded in time: $(tail -n 20 "$out/scx_tandem.log")"
		sleep 0.2
	done
	say "scx_tandem is loaded"
}

stop_scheduler() {
	is_running "$scheduler_pid" || fail "scx_tandem ended by itself: $(tail -n 20 "$out/scx_tandem.log")"
	kill -TERM "$scheduler_pid"
	wait "$scheduler_pid" || fail "scx_tandem failed ($?): $(tail -n 20 "$out/scx_tandem.log")"
	[ "$(cat $state)" = disabled ] || fail "sched_ext is still $(cat $state) after scx_tandem ended"
	[ -e "$out/scx_tandem.json" ] || fail "scx_tandem wrote no report"
}

stop_workload() {
	# shellcheck disable=SC2086 # a list of words
	if [ "$workload" != perf ]; then
		kill -TERM "$workload_pid"
		wait "$workload_pid" || fail "crossed failed: $(cat "$out/workload.log")"
	else
		kill -KILL $processes "$workload_pid"
	fi
}

case $arm in
stock)
	sysctl -q -w kernel.numa_balancing=1
	start_workload
	start_observer first-sample
	;;
tandem)
	# So that what happens before scx_tandem is loaded does not help it; under sched_ext it is off anyway.
	sysctl -q -w kernel.numa_balancing=0
	start_workload
	start_observer sched-ext
	start_scheduler
	;;
*) fail "no arm named $arm" ;;
esac
say "observing for $seconds s"
wait "$observer_pid" || fail "the observation failed"
[ "$arm" = stock ] || stop_scheduler
stop_workload
say "done"
