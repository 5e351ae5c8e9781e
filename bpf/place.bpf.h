/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: which node a task belongs to, and which idle CPU it gets.
 *
 * Home is the assigned node while the lease runs, else the node where the task
 * ran last. If no CPU of home may run the task, the nearest node that has one
 * is home.
 */
#ifndef __TANDEM_PLACE_BPF_H
#define __TANDEM_PLACE_BPF_H

#include "tandem.bpf.h"

/* The CPUs of each node, made when the scheduler is loaded. */
struct node_cpus {
	struct bpf_cpumask __kptr *mask;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TANDEM_MAX_NODES);
	__type(key, u32);
	__type(value, struct node_cpus);
} node_masks SEC(".maps");

static s32 make_node_mask(u32 node)
{
	struct node_cpus *cpus = bpf_map_lookup_elem(&node_masks, &node);
	struct bpf_cpumask *mask;
	u32 cpu;

	if (!cpus)
		return -ENOENT;
	mask = bpf_cpumask_create();
	if (!mask)
		return -ENOMEM;
	bpf_for (cpu, 0, nr_cpus) {
		if (node_of_cpu(cpu) == node)
			bpf_cpumask_set_cpu(cpu, mask);
	}
	mask = bpf_kptr_xchg(&cpus->mask, mask);
	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

/*
 * Bit per node with a CPU in @cpus. For programs that do not sleep: they are
 * readers of RCU all along, which keeps both masks.
 */
static u32 nodes_of(const struct cpumask *cpus)
{
	u32 node, nodes = 0;

	bpf_for (node, 0, nr_nodes) {
		struct node_cpus *of_node;
		struct bpf_cpumask *mask;

		of_node = bpf_map_lookup_elem(&node_masks, &node);
		if (!of_node)
			continue;
		mask = of_node->mask;
		if (mask && bpf_cpumask_intersects(cast_mask(mask), cpus))
			nodes |= 1U << node;
	}
	return nodes;
}

static __always_inline bool node_allowed(const struct task_ctx *tctx, u32 node)
{
	return is_node(node) && (tctx->allowed_nodes & (1U << node));
}

/* The node assigned to a task, TANDEM_NO_NODE if there is none or the lease is over. */
static u32 assigned_node(struct task_ctx *tctx)
{
	u32 node = tctx->assigned;

	if (node == TANDEM_NO_NODE)
		return node;
	if (bpf_ktime_get_ns() >= tctx->expires_ns) {
		tctx->assigned = TANDEM_NO_NODE;
		count(TANDEM_STAT_LEASE_EXPIRED);
		return TANDEM_NO_NODE;
	}
	return node;
}

static u32 nearest_allowed(const struct task_ctx *tctx, u32 node)
{
	u32 rank;

	bpf_for (rank, 0, nr_near_nodes(node)) {
		u32 near = near_node(node, rank);

		if (node_allowed(tctx, near))
			return near;
	}
	return TANDEM_NO_NODE;
}

/*
 * The home of a task, @cpu being where it is or was. Tasks that must not migrate
 * for the moment never come here: the kernel keeps them on their CPU itself.
 */
static u32 home_of(struct task_ctx *tctx, s32 cpu)
{
	u32 home, other;

	home = assigned_node(tctx);
	if (home == TANDEM_NO_NODE)
		home = tctx->last_node;
	if (node_allowed(tctx, home))
		return home;
	count(TANDEM_STAT_HOME_FORBIDDEN);
	other = nearest_allowed(tctx, is_node(home) ? home : 0);
	return other == TANDEM_NO_NODE ? node_of_cpu(cpu) : other;
}

/*
 * Runnable tasks by home, wherever they are: as long as no more tasks claim a
 * node than it has CPUs, each of them has a right to one of these.
 */
static s32 nr_claims[TANDEM_MAX_NODES];

static void claim(struct task_ctx *tctx, u32 node)
{
	if (tctx->claimed == node)
		return;
	if (tctx->claimed != TANDEM_NO_NODE)
		__sync_fetch_and_sub(&nr_claims[node_at(tctx->claimed)], 1);
	if (node != TANDEM_NO_NODE)
		__sync_fetch_and_add(&nr_claims[node_at(node)], 1);
	tctx->claimed = node;
}

static __always_inline bool is_overfull(u32 node)
{
	return rules_overfull(nr_claims[node_at(node)], nr_cpus_of(node));
}

/* What @p must have waited before @node takes it away from @home. */
static __always_inline u64 price_of(struct task_ctx *tctx, u32 home, u32 node)
{
	if (assigned_node(tctx) == TANDEM_NO_NODE)
		return 0;
	return migration_price_ns[pair_at(home, node)];
}

static s32 pick_idle_on(struct task_struct *p, u32 node, u64 flags)
{
	return scx_bpf_pick_idle_cpu_node(p->cpus_ptr, kernel_node_id(node),
					  flags | SCX_PICK_IDLE_IN_NODE);
}

/* Whether all threads of @cpu's core are idle. */
static bool core_is_idle(s32 cpu, u32 node)
{
	const struct cpumask *cores = scx_bpf_get_idle_smtmask_node(kernel_node_id(node));
	bool idle = bpf_cpumask_test_cpu(cpu, cores);

	scx_bpf_put_idle_cpumask(cores);
	return idle;
}

/*
 * An idle CPU at @home: the previous one if its core is idle, any whole idle
 * core, the previous one, any. Claims the CPU; negative when none is idle.
 */
static s32 pick_idle_home(struct task_struct *p, u32 home, s32 prev_cpu)
{
	bool prev_is_home =
		node_of_cpu(prev_cpu) == home && bpf_cpumask_test_cpu(prev_cpu, p->cpus_ptr);
	s32 cpu;

	if (prev_is_home && core_is_idle(prev_cpu, home) &&
	    scx_bpf_test_and_clear_cpu_idle(prev_cpu)) {
		count(TANDEM_STAT_IDLE_PREV);
		return prev_cpu;
	}
	cpu = pick_idle_on(p, home, SCX_PICK_IDLE_CORE);
	if (cpu < 0 && prev_is_home && scx_bpf_test_and_clear_cpu_idle(prev_cpu)) {
		count(TANDEM_STAT_IDLE_PREV);
		return prev_cpu;
	}
	if (cpu < 0)
		cpu = pick_idle_on(p, home, 0);
	if (cpu >= 0)
		count(TANDEM_STAT_IDLE_HOME);
	return cpu;
}

/* What a newcomer to the queue of @node should expect to wait. */
static u64 expected_wait_ns(u32 node)
{
	s32 queued = scx_bpf_dsq_nr_queued(queue_of(node));

	return queued < 0 ? ~0ULL : rules_expected_wait_ns(queued, nr_cpus_of(node), slice_ns);
}

/* An idle CPU on the nearest node where running costs less than waiting at home. */
static s32 pick_idle_remote(struct task_struct *p, struct task_ctx *tctx, u32 home)
{
	u64 wait_ns = expected_wait_ns(home);
	u32 rank;

	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);
		s32 cpu;

		if (!node_allowed(tctx, node) || wait_ns <= price_of(tctx, home, node))
			continue;
		cpu = pick_idle_on(p, node, 0);
		if (cpu >= 0) {
			count(TANDEM_STAT_IDLE_REMOTE);
			return cpu;
		}
	}
	return -EBUSY;
}

#endif /* __TANDEM_PLACE_BPF_H */
