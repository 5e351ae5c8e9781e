/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What every part of the scheduler knows: tables written by user space before
 * loading, the context of a task, statistics.
 */
#ifndef __TANDEM_BPF_H
#define __TANDEM_BPF_H

#include <scx/common.bpf.h>
#include "intf.h"
#include "rules.h"

/*
 * For variables that CPUs or nodes write at every switch: a line that several of
 * them write would travel between nodes each time.
 */
#define CACHE_LINE 64
#define OWN_CACHE_LINE __attribute__((aligned(CACHE_LINE)))

/* Written by user space before loading, constant afterwards. */
const volatile u32 nr_nodes = 1;
/* The highest CPU number and one. */
const volatile u32 nr_cpus = 1;
const volatile u32 nr_queues = 1;
/* The kernel's id of each node. */
const volatile u32 node_ids[TANDEM_MAX_NODES];
/*
 * The node of each CPU that is there, online or not, and the queue that it serves;
 * TANDEM_NO_NODE and TANDEM_NO_QUEUE for numbers that stand for no CPU.
 */
const volatile u8 cpu_nodes[TANDEM_MAX_CPUS];
const volatile u8 cpu_queues[TANDEM_MAX_CPUS];
/* The node of each queue; the queues of a node follow one another. */
const volatile u8 queue_nodes[TANDEM_MAX_QUEUES];
const volatile u8 node_first_queue[TANDEM_MAX_NODES];
const volatile u8 node_nr_queues[TANDEM_MAX_NODES];
/* For each node all nodes that have CPUs, nearest first, itself left out. */
const volatile u8 node_order[TANDEM_MAX_NODES * TANDEM_MAX_NODES];
const volatile u8 node_order_len[TANDEM_MAX_NODES];
/*
 * What running on another node is worth in waiting: a task with an assignment
 * is taken away from home only after it has waited longer than this.
 */
const volatile u64 migration_price_ns[TANDEM_MAX_NODES * TANDEM_MAX_NODES];
/* Time slice. */
const volatile u64 slice_ns = 5000000;
/* Whether weights of control groups count. */
const volatile u32 cgroup_weights = 1;
/* Longest lease that an assignment may ask for. */
const volatile u64 max_lease_ns = 60000000000ULL;

enum {
	/* Dispatch queues that have a virtual time, by number: shared ones, behind them one for
	   each CPU. */
	NR_DSQS = 2048,
};
_Static_assert(TANDEM_MAX_QUEUES + TANDEM_MAX_CPUS <= NR_DSQS, "every queue has a number");

/*
 * A task. Written by the CPU that runs or queues the task, except for the
 * assignment, which the agent's program writes at any time: it is read once
 * and a torn read would at worst cost one slice on the wrong node.
 *
 * By cache line, for a task is mostly woken by another CPU than it runs on: what
 * that one reads is seldom written, and what the other one writes at every switch
 * is apart from it. The kernel puts a pointer of its own before the first.
 */
struct task_ctx {
	/* Read at every wake-up. */
	u64 expires_ns;
	u64 generation;
	u64 node_changes;
	u32 assigned;
	/* Where it belongs when nothing is assigned. */
	u32 home;
	/* Nodes with a CPU on which it may run, as of machine_seq. */
	u32 allowed_nodes;
	u32 allowed_seq;
	/* The node it ran on last. */
	u32 last_node;
	/* The queue of the CPU it ran on last. */
	u32 last_queue;
	/* Its control group. */
	u32 group;
	/* What orders it, as of the last time it began to run: see weight_of(). */
	u32 weight;

	/* Written at every switch. */
	/* Start of the stretch that is not yet accounted, 0 while not running. */
	u64 running_since_ns;
	/* Since when it waits for a CPU, 0 while it does not; see note_waiting(). */
	u64 queued_since_ns;
	/*
	 * The queue that counts it among its runnable tasks, and what it counts for there (see
	 * claim_word()): one word, since the timer may move it meanwhile.
	 */
	u64 claimed;
	u64 wait_ns;
	u64 switches;
	/* How firmly it belongs to its home: see rules_bond(). */
	u64 bond_ns;
	/* The dispatch queue whose virtual time its own is compared with. */
	u32 vtime_dsq;
	/* The control group that counts it as runnable, and with what weight (0: none). */
	u32 counted_in;
	u32 group_weight;
	/* It waits in the queue vtime_dsq, or waited there before it began to run. */
	bool waits;
	/* It ran since it last slept. */
	bool ran;
	/* An idle CPU of its own node was woken for it when it was queued. */
	bool home_cpu_woken;
	/* It gave up the rest of its slice. */
	bool yields : 1;
	/* It was interrupted to wait for its group's next period, and did not run since. */
	bool made_to_wait : 1;

	u64 run_ns[TANDEM_MAX_NODES];

	/* Written at wake-ups. */
	/* When it first ran since it slept, and since when it waits as the kernel's watchdog
	 * counts. */
	u64 awake_since_ns;
	u64 waiting_since_ns;
	/* Times that its partner woke it, who that is, and how sure that is (home.bpf.h). */
	u64 partner_wakes;
	u32 partner;
	u32 partner_votes;
};
_Static_assert(sizeof(void *) + __builtin_offsetof(struct task_ctx, running_since_ns) ==
			       CACHE_LINE &&
		       sizeof(void *) + __builtin_offsetof(struct task_ctx, run_ns) ==
			       2 * CACHE_LINE,
	       "what is read at wake-ups and what is written at switches has a line each");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} task_contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tandem_stats);
} statistics SEC(".maps");

/* Written by user space after loading, read by the agents that come later. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tandem_identity);
} identity SEC(".maps");

/*
 * An index that the verifier believes in: @size is a power of two, and the
 * compiler must not drop the mask because it proved the bound itself.
 */
#define bounded(index, size)                                                                       \
	({                                                                                         \
		u32 __index = (index);                                                             \
		barrier_var(__index);                                                              \
		__index &((size) - 1);                                                             \
	})
#define node_at(node) bounded(node, TANDEM_MAX_NODES)
#define queue_at(queue) bounded(queue, TANDEM_MAX_QUEUES)
#define cpu_at(cpu) bounded(cpu, TANDEM_MAX_CPUS)
#define dsq_at(dsq) bounded(dsq, NR_DSQS)
#define pair_at(from, to)                                                                          \
	bounded((from) * TANDEM_MAX_NODES + (to), TANDEM_MAX_NODES * TANDEM_MAX_NODES)

static __always_inline struct task_ctx *task_ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_contexts, p, 0, 0);
}

static __always_inline struct tandem_stats *this_cpu_stats(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&statistics, &zero);
}

static __always_inline void count(enum tandem_stat stat)
{
	struct tandem_stats *stats = this_cpu_stats();

	if (stats)
		stats->events[stat]++;
}

static __always_inline bool is_node(u32 node)
{
	return node < nr_nodes;
}

/* The node of @cpu; TANDEM_NO_NODE when it has none. */
static __always_inline u32 node_of_cpu(s32 cpu)
{
	if (cpu < 0 || cpu >= TANDEM_MAX_CPUS)
		return TANDEM_NO_NODE;
	return cpu_nodes[cpu_at(cpu)];
}

/* The queue that @cpu serves; TANDEM_NO_QUEUE when it has none. */
static __always_inline u32 queue_of_cpu(s32 cpu)
{
	if (cpu < 0 || cpu >= TANDEM_MAX_CPUS)
		return TANDEM_NO_QUEUE;
	return cpu_queues[cpu_at(cpu)];
}

static __always_inline bool is_queue(u32 queue)
{
	return queue < nr_queues;
}

static __always_inline u32 node_of_queue(u32 queue)
{
	return is_queue(queue) ? queue_nodes[queue_at(queue)] : TANDEM_NO_NODE;
}

/* Number of queues of @node, and each of them. */
static __always_inline u32 nr_queues_of(u32 node)
{
	return is_node(node) ? node_nr_queues[node_at(node)] : 0;
}

static __always_inline u32 queue_of_node(u32 node, u32 at)
{
	return node_first_queue[node_at(node)] + at;
}

/* The @rank-th nearest node with CPUs to @node. */
static __always_inline u32 near_node(u32 node, u32 rank)
{
	return node_order[pair_at(node, rank)];
}

static __always_inline u32 nr_near_nodes(u32 node)
{
	return is_node(node) ? node_order_len[node_at(node)] : 0;
}

static __always_inline u32 kernel_node_id(u32 node)
{
	return node_ids[node_at(node)];
}

static __always_inline u32 shared_dsq(u32 queue)
{
	return queue;
}

static __always_inline u32 cpu_dsq(s32 cpu)
{
	return TANDEM_MAX_QUEUES + cpu;
}

#endif /* __TANDEM_BPF_H */
