// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the CPUs' counters count while each managed thread runs.
 *
 * Perf events count for a CPU, whatever runs there. They are read at every
 * switch from or to a managed thread, and what they counted since the last
 * reading is charged to the thread that ran. User space takes the charges away;
 * before that it has this run on every CPU, for a thread that never lets go of
 * its CPU is switched to only once.
 *
 * An object of its own: it lives as long as the agent that opened the events,
 * the scheduler lives on without one.
 *
 * Nothing here races with itself: switches happen with interrupts off, and user
 * space's look arrives as an interrupt.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "intf.h"

char _license[] SEC("license") = "GPL";

/* Events in use; each has a slot on every CPU, the CPU's number on from the first. */
const volatile u32 nr_events;
const volatile u32 nr_cpus;

/* User space makes room for nr_events on nr_cpus. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} events SEC(".maps");

/* Processes whose threads are charged, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u32);
} counted_processes SEC(".maps");

/* Charges by thread since user space last took them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, u32);
	__type(value, struct tandem_counts);
} charges SEC(".maps");

/* The thread that is to be charged on this CPU, 0 if none, and what the events had counted when it
 * began. */
struct on_cpu {
	u32 tid;
	struct bpf_perf_event_value read[TANDEM_MAX_EVENTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct on_cpu);
} on_cpus SEC(".maps");

/* Charges that found no room. */
u64 uncharged;

/* Too large for the stack. */
static struct tandem_counts nothing_yet;

static bool is_counted(u32 tgid)
{
	return bpf_map_lookup_elem(&counted_processes, &tgid);
}

static struct tandem_counts *charges_of(u32 tgid, u32 tid)
{
	struct tandem_counts *counts = bpf_map_lookup_elem(&charges, &tid);

	if (counts)
		return counts;
	bpf_map_update_elem(&charges, &tid, &nothing_yet, BPF_NOEXIST);
	counts = bpf_map_lookup_elem(&charges, &tid);
	if (counts)
		counts->tgid = tgid;
	else
		__sync_fetch_and_add(&uncharged, 1);
	return counts;
}

/* Reads this CPU's events. What they counted since they were last read goes to @counts, if that is
 * somebody's. */
static void read_events(struct on_cpu *here, struct tandem_counts *counts)
{
	u32 cpu = bpf_get_smp_processor_id(), i;

	for (i = 0; i < TANDEM_MAX_EVENTS; i++) {
		struct bpf_perf_event_value now;

		if (i >= nr_events)
			break;
		/* Cores of another type do not have it. */
		if (bpf_perf_event_read_value(&events, i * nr_cpus + cpu, &now, sizeof(now)))
			continue;
		if (counts) {
			counts->events[i].count += now.counter - here->read[i].counter;
			counts->events[i].enabled_ns += now.enabled - here->read[i].enabled;
			counts->events[i].running_ns += now.running - here->read[i].running;
		}
		here->read[i] = now;
	}
}

/* @tid of @tgid ran on this CPU until now, @next_tid runs from now on. */
static int turn(u32 tgid, u32 tid, u32 next_tgid, u32 next_tid)
{
	struct on_cpu *here;
	bool owes, is_next_counted;
	u32 key = 0;

	here = bpf_map_lookup_elem(&on_cpus, &key);
	if (!here)
		return 0;
	/* Whoever was not charged for its beginning is not charged for its end. */
	owes = here->tid && here->tid == tid;
	is_next_counted = next_tid && is_counted(next_tgid);
	if (!owes && !is_next_counted) {
		here->tid = 0;
		return 0;
	}
	read_events(here, owes ? charges_of(tgid, tid) : NULL);
	here->tid = is_next_counted ? next_tid : 0;
	return 0;
}

SEC("raw_tp/sched_switch")
int tandem_switched(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *next = (void *)ctx->args[2];
	u64 id = bpf_get_current_pid_tgid();

	return turn(id >> 32, id, BPF_CORE_READ(next, tgid), BPF_CORE_READ(next, pid));
}

/* Run by user space on each CPU. */
SEC("raw_tp")
int tandem_looked(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();

	return turn(id >> 32, id, id >> 32, id);
}
