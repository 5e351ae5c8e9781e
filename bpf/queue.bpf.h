/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: one per node that has CPUs, ordered by virtual time.
 *
 * A CPU serves the queue of its own node. When that is empty it takes from
 * other nodes, nearest first, tasks that have waited longer than the price of
 * running away from home. An idle CPU does not look again by itself, so a
 * timer wakes one when a wait exceeds its price.
 */
#ifndef __TANDEM_QUEUE_BPF_H
#define __TANDEM_QUEUE_BPF_H

#include "account.bpf.h"
#include "place.bpf.h"

enum {
	/* Tasks at the head of a queue that are looked at. */
	LOOK_DEPTH = 8,
};

/* A busy CPU helps another node only when a task has waited this much longer than its price. */
#define BUSY_PATIENCE_NS (100 * 1000 * 1000ULL)

struct rescue_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rescue_timer);
} rescue_timers SEC(".maps");

static u64 waited_ns(const struct task_ctx *tctx)
{
	u64 since = tctx->queued_since_ns;

	return since ? bpf_ktime_get_ns() - since : 0;
}

/* Whether a CPU of @node may take a task from the queue of @home. */
static bool may_leave(struct task_ctx *tctx, u32 home, u32 node, u64 patience_ns)
{
	return rules_may_leave(waited_ns(tctx), price_of(tctx, home, node), patience_ns,
			       tctx->home_cpu_woken);
}

static void queue_at(struct task_struct *p, struct task_ctx *tctx, u32 node, u64 enq_flags)
{
	s32 cpu;

	/* Before it is inserted: from then on another CPU may run it. */
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = false;
	scx_bpf_dsq_insert_vtime(p, queue_of(node), slice_ns, vtime_for_queue(p, tctx, node),
				 enq_flags);
	count(TANDEM_STAT_QUEUED);
	/*
	 * A CPU that went idle before the insertion is found here, one that
	 * goes idle later finds the task itself.
	 */
	cpu = pick_idle_on(p, node, SCX_PICK_IDLE_CORE);
	if (cpu < 0)
		cpu = pick_idle_on(p, node, 0);
	if (cpu < 0)
		return;
	/* Too late if it was taken meanwhile; the next time it is queued resets it. */
	tctx->home_cpu_woken = true;
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/*
 * Whether @prev, whose slice is over, has still less virtual time than the
 * first task that waits for @cpu. It is not in the queue itself, so without
 * this comparison two tasks would take turns whatever their weights.
 */
static bool goes_first(struct task_struct *prev, struct task_ctx *tctx, s32 cpu, u32 node)
{
	struct task_struct *p;
	u32 looked_at = 0;

	account_run(prev, tctx);
	bpf_for_each (scx_dsq, p, queue_of(node), 0) {
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			return rules_vtime_before(prev->scx.dsq_vtime, p->scx.dsq_vtime);
		if (++looked_at > LOOK_DEPTH)
			break;
	}
	return false;
}

/* Takes one task from the queue of @from to run it on @cpu, once it waited long enough. */
static bool steal_from(s32 cpu, u32 node, u32 from, u64 patience_ns)
{
	struct task_struct *p;
	u32 looked_at = 0;

	if (scx_bpf_dsq_nr_queued(queue_of(from)) <= 0)
		return false;
	bpf_for_each (scx_dsq, p, queue_of(from), 0) {
		struct task_ctx *tctx;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (!may_leave(tctx, from, node, patience_ns))
			continue;
		/* Fails when another CPU was faster. */
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0)) {
			count(TANDEM_STAT_STOLEN);
			return true;
		}
	}
	return false;
}

static bool steal(s32 cpu, u32 node, u64 patience_ns)
{
	u32 rank;

	bpf_for (rank, 0, nr_near_nodes(node)) {
		u32 from = near_node(node, rank);

		if (is_node(from) && steal_from(cpu, node, from, patience_ns))
			return true;
	}
	return false;
}

/* Wakes an idle CPU for the first task of @home whose wait exceeds its price somewhere. */
static void rescue_from(u32 home)
{
	struct task_struct *p;
	u32 looked_at = 0;

	if (scx_bpf_dsq_nr_queued(queue_of(home)) <= 0)
		return;
	bpf_for_each (scx_dsq, p, queue_of(home), 0) {
		struct task_ctx *tctx;
		u32 rank;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx)
			continue;
		bpf_for (rank, 0, nr_near_nodes(home)) {
			u32 node = near_node(home, rank);
			s32 cpu;

			if (!node_allowed(tctx, node) || !may_leave(tctx, home, node, 0))
				continue;
			cpu = pick_idle_on(p, node, 0);
			if (cpu < 0)
				continue;
			count(TANDEM_STAT_RESCUE_KICK);
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			break;
		}
	}
}

static int rescue(void *map, int *key, struct rescue_timer *rescue_timer)
{
	u32 node;

	bpf_for (node, 0, nr_nodes) {
		if (nr_cpus_of(node))
			rescue_from(node);
	}
	bpf_timer_start(&rescue_timer->timer, slice_ns, 0);
	return 0;
}

static s32 start_rescue_timer(void)
{
	struct rescue_timer *rescue_timer;
	u32 zero = 0;
	s32 err;

	rescue_timer = bpf_map_lookup_elem(&rescue_timers, &zero);
	if (!rescue_timer)
		return -ENOENT;
	err = bpf_timer_init(&rescue_timer->timer, &rescue_timers, CLOCK_MONOTONIC);
	if (err)
		return err;
	err = bpf_timer_set_callback(&rescue_timer->timer, rescue);
	if (err)
		return err;
	return bpf_timer_start(&rescue_timer->timer, slice_ns, 0);
}

#endif /* __TANDEM_QUEUE_BPF_H */
