/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Work conservation across nodes: a CPU that finds nothing on its own node takes
 * from others, nearest first, tasks that have waited longer than the price of
 * running away from home. An idle CPU does not look again by itself, so the
 * timer (timer.bpf.h) wakes one when a wait exceeds its price.
 */
#ifndef __TANDEM_STEAL_BPF_H
#define __TANDEM_STEAL_BPF_H

#include "queue.bpf.h"

/* A busy CPU helps another node only when a task has waited this much longer than its price. */
#define BUSY_PATIENCE_NS (100 * 1000 * 1000ULL)

/* Whether a CPU of @node may take a task from a queue of @home. */
static bool may_leave(const struct task_struct *p, struct task_ctx *tctx, u32 home, u32 node,
		      u64 patience_ns)
{
	return rules_may_leave(waited_ns(tctx), price_of(p, tctx, home, node), patience_ns,
			       tctx->home_cpu_woken && nr_cpus_of(home));
}

/* Takes one task from a queue of the node @from to run it on @cpu, once it waited long enough. */
static bool steal_from(s32 cpu, u32 node, u32 from, u32 queue, u64 patience_ns)
{
	struct task_struct *p;
	u32 looked_at = unknown_zero;

	if (scx_bpf_dsq_nr_queued(shared_dsq(queue)) <= 0)
		return false;
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		struct task_ctx *tctx;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (!may_leave(p, tctx, from, node, patience_ns))
			continue;
		/* Fails when another CPU was faster. */
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0)) {
			count(TANDEM_STAT_STOLEN);
			return true;
		}
	}
	return false;
}

__noinline int steal(s32 cpu, u32 node, u64 patience_ns)
{
	u32 rank, at;

	bpf_for (rank, 0, nr_near_nodes(node)) {
		u32 from = near_node(node, rank);

		bpf_for (at, 0, nr_queues_of(from)) {
			if (steal_from(cpu, node, from, queue_of_node(from, at), patience_ns))
				return true;
		}
	}
	return false;
}

/* When each CPU that had a task of its own last looked whether other nodes need help. */
static struct {
	u64 ns;
} OWN_CACHE_LINE helped_at[TANDEM_MAX_CPUS];

/*
 * Takes a task from another node though @cpu has one of its own. Looks once a
 * slice, because tasks may yield all the time.
 */
static bool help_others(s32 cpu, u32 node)
{
	u64 *last = &helped_at[cpu_at(cpu)].ns, now = bpf_ktime_get_ns();

	if (now - *last < slice_ns)
		return false;
	*last = now;
	return steal(cpu, node, BUSY_PATIENCE_NS);
}

/* Whether @cpu serves @queue and runs nothing of ours. */
static bool is_unused(s32 cpu, u32 queue)
{
	return queue_of_cpu(cpu) == queue && cpu_is_online[cpu_at(cpu)] &&
	       !running_tasks[cpu_at(cpu)].weight;
}

/*
 * Wakes the CPUs that serve @queue, may run one of its first tasks and run nothing of ours:
 * whoever queued the task may have found none, since a CPU that comes online, or
 * leaves another scheduling class, is not marked idle before it was idle once.
 */
__noinline int wake_unused(u32 queue)
{
	struct task_struct *p;
	u32 looked_at = unknown_zero, cpu;
	bool any = false;

	if (scx_bpf_dsq_nr_queued(shared_dsq(queue)) <= 0)
		return 0;
	/* Mostly all are busy where tasks wait. */
	bpf_for (cpu, 0, nr_cpus)
		any |= is_unused(cpu, queue);
	if (!any)
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		if (++looked_at > LOOK_DEPTH)
			break;
		bpf_for (cpu, 0, nr_cpus) {
			if (is_unused(cpu, queue) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
				kick(cpu, SCX_KICK_IDLE);
		}
		/* One that may run everywhere had all of them woken. */
		if (p->nr_cpus_allowed >= nr_online)
			break;
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Wakes an idle CPU for the first tasks of @queue whose wait exceeds its price somewhere. */
__noinline int rescue_from(u32 queue)
{
	u32 home = node_of_queue(queue);
	struct task_struct *p;
	u32 looked_at = unknown_zero;

	if (scx_bpf_dsq_nr_queued(shared_dsq(queue)) <= 0)
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
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

			if (!node_allowed(tctx, node) || !may_leave(p, tctx, home, node, 0))
				continue;
			cpu = pick_idle_on(p, node, 0);
			if (cpu < 0)
				continue;
			count(TANDEM_STAT_RESCUE_KICK);
			kick(cpu, SCX_KICK_IDLE);
			break;
		}
	}
	bpf_rcu_read_unlock();
	return 0;
}

#endif /* __TANDEM_STEAL_BPF_H */
