/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one interface between scx_tandem's BPF side and user space: constants,
 * statistics, assignment transactions and task records. Rust sees it through
 * bindgen; nothing else is shared.
 *
 * A node is always meant by its dense index, in ascending order of the
 * kernel's node ids; user space writes the tables that translate.
 */
#ifndef __TANDEM_INTF_H
#define __TANDEM_INTF_H

#ifndef __VMLINUX_H__
typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
#endif

enum tandem_consts {
	TANDEM_MAX_NODES = 32,
	TANDEM_MAX_CPUS = 1024,
	/* Queues that CPUs share: one per node, or one per last-level cache. */
	TANDEM_MAX_QUEUES = 128,
	/* Assignments in one batch. */
	TANDEM_MAX_BATCH = 256,
	TANDEM_COMM_LEN = 16,
	/* Events that are counted for each thread. */
	TANDEM_MAX_EVENTS = 32,
	/* Not a node: CPU of no node, task without assignment. */
	TANDEM_NO_NODE = 0xff,
	/* Not a queue: CPU of no node, task that does not wait. */
	TANDEM_NO_QUEUE = 0xff,
};

/* Per-CPU counters, summed by user space. */
enum tandem_stat {
	/* Tasks put on an idle CPU at wake-up: where they ran last, elsewhere at home, elsewhere.
	 */
	TANDEM_STAT_IDLE_PREV,
	TANDEM_STAT_IDLE_HOME,
	TANDEM_STAT_IDLE_REMOTE,
	/* Tasks put on the CPU that wakes them and is about to sleep itself. */
	TANDEM_STAT_WAKER_CPU,
	/* Tasks whose home became that of the task which mostly wakes them. */
	TANDEM_STAT_FOLLOWED,
	/* Tasks put into a shared queue. */
	TANDEM_STAT_QUEUED,
	/* Tasks that may run on one CPU only, put into its own queue. */
	TANDEM_STAT_QUEUED_ON_CPU,
	/* Running tasks that a waking one with less virtual time displaced. */
	TANDEM_STAT_PREEMPTED,
	/* Running tasks away from home that a waking one displaced which is at home there. */
	TANDEM_STAT_VISIT_ENDED,
	/* Per-CPU kernel threads, put straight on their CPU. */
	TANDEM_STAT_KTHREAD,
	/* Tasks whose home has no CPU that they may use. */
	TANDEM_STAT_HOME_FORBIDDEN,
	/* Tasks that a CPU took from another queue of its node. */
	TANDEM_STAT_TAKEN_NEARBY,
	/* Tasks that a CPU took from another node's queue. */
	TANDEM_STAT_STOLEN,
	/* Idle CPUs woken because a task waited longer than its price elsewhere. */
	TANDEM_STAT_RESCUE_KICK,
	/* CPUs about to be idle that looked again because a task was just arriving. */
	TANDEM_STAT_LOOKED_AGAIN,
	/* Tasks sent elsewhere because their CPUs went offline. */
	TANDEM_STAT_REHOMED,
	/* Tasks sent to a node where fewer share a CPU. */
	TANDEM_STAT_BALANCED,
	/* Tasks that go first because they waited for too long. */
	TANDEM_STAT_RELIEVED,
	/* Control groups that were made and removed, and that found no room for a weight. */
	TANDEM_STAT_GROUP_MADE,
	TANDEM_STAT_GROUP_REMOVED,
	TANDEM_STAT_GROUP_NO_ROOM,
	/* Tasks that had to wait for their control group's next period. */
	TANDEM_STAT_THROTTLED,
	/* Leases that ran out. */
	TANDEM_STAT_LEASE_EXPIRED,
	/* Tasks that something is kept about: made, and gone. */
	TANDEM_STAT_TASK_MADE,
	TANDEM_STAT_TASK_GONE,
	/* Tasks without a context: scheduled, never assigned. */
	TANDEM_STAT_NO_CONTEXT,
	TANDEM_NR_STATS,
};

/* What became of one assignment. Counted by outcome too. */
enum tandem_assign_outcome {
	TANDEM_ASSIGN_APPLIED,
	/* No such thread, or another one that got its id. */
	TANDEM_ASSIGN_NO_TASK,
	TANDEM_ASSIGN_WRONG_START,
	/* The thread is not scheduled by us. */
	TANDEM_ASSIGN_NOT_OURS,
	/* An assignment of a later generation is in force. */
	TANDEM_ASSIGN_STALE,
	/* The lease is over already, or longer than the limit. */
	TANDEM_ASSIGN_EXPIRED,
	TANDEM_ASSIGN_LEASE_TOO_LONG,
	/* No such node, none of its CPUs may run the thread. */
	TANDEM_ASSIGN_BAD_NODE,
	TANDEM_ASSIGN_NODE_FORBIDDEN,
	TANDEM_NR_ASSIGN_OUTCOMES,
};

struct tandem_assignment {
	/* Thread id in the initial pid namespace, and its start: ids are used again. */
	u32 tid;
	/* Where it shall run; TANDEM_NO_NODE withdraws the assignment. */
	u32 node;
	u64 start_boottime_ns;
	u64 generation;
	/* End of the lease on CLOCK_MONOTONIC. */
	u64 expires_ns;
	/* enum tandem_assign_outcome, written by BPF. */
	u32 outcome;
	u32 pad;
};

struct tandem_batch {
	u32 count;
	u32 pad;
	struct tandem_assignment items[TANDEM_MAX_BATCH];
};

/* Tells a new agent whether what is loaded is what it would load itself. */
struct tandem_identity {
	/* Of the BPF object. */
	u64 object_hash;
	/* Of the tables written before loading. */
	u64 tables_hash;
};

/* One task, as the iterator writes it. Times are totals since the task is known. */
struct tandem_task_record {
	u64 start_boottime_ns;
	u64 run_ns[TANDEM_MAX_NODES];
	u64 wait_ns;
	u64 switches;
	u64 node_changes;
	/* Times that the task which mostly wakes it, and sleeps then, did so since it is that one.
	 */
	u64 partner_wakes;
	u64 generation;
	u64 expires_ns;
	u32 tid;
	u32 process;
	/* That task's id, 0 if there is none. */
	u32 partner;
	u32 reserved;
	/* Where it is at home now, and its assignment if the lease runs. */
	u32 home;
	u32 assigned;
	/* Bit per node on which it may run. */
	u32 allowed_nodes;
	u32 weight;
	u32 cpu;
	u32 kernel_thread;
	u8 comm[TANDEM_COMM_LEN];
};

/* Statistics as one value per CPU. */
struct tandem_stats {
	u64 events[TANDEM_NR_STATS];
	u64 assignments[TANDEM_NR_ASSIGN_OUTCOMES];
	/* CPU time by node: all tasks. */
	u64 busy_ns[TANDEM_MAX_NODES];
};

/* What an event counted while a thread ran, and for how long it was wanted and on the hardware
 * meanwhile. */
struct tandem_event_count {
	u64 count;
	u64 enabled_ns;
	u64 running_ns;
};

/* A thread's charges (counters.bpf.c). */
struct tandem_counts {
	u32 tgid;
	u32 reserved;
	struct tandem_event_count events[TANDEM_MAX_EVENTS];
};

/* A region of a process that is not like most others (regions.bpf.c). */
struct tandem_region {
	/* First byte. */
	u64 start;
	/* It, or what it maps, has a memory policy that names nodes. */
	u32 bound;
	/* Its pages are huge ones of a pool. */
	u32 hugetlb;
};

#endif /* __TANDEM_INTF_H */
