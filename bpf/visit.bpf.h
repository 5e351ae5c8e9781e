/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Visitors: tasks that run away from home, where no CPU was idle when they woke up.
 *
 * Where programs have a thread for each CPU of a node, something short on one of
 * these sends a thread to another node, whose CPUs are idle now and then. Who
 * wakes up there next finds its CPU taken, and would go away in turn: threads of
 * both would run far from their memory until chance brought them home. So a task
 * takes the CPU of a visitor while its home has a CPU for each task that claims
 * one; the visitor is enqueued at home.
 */
#ifndef __TANDEM_VISIT_BPF_H
#define __TANDEM_VISIT_BPF_H

#include "account.bpf.h"
#include "place.bpf.h"

/* Visitors that run on each node: mostly none, so that nobody looks for one. */
static struct {
	s32 nr;
} OWN_CACHE_LINE visitors_on[TANDEM_MAX_NODES];

/* Ends the visit on @cpu, if there is one; true for whoever ended it. */
static bool end_visit(s32 cpu)
{
	struct running_task *running = &running_tasks[cpu_at(cpu)];

	if (!running->visits || !__sync_lock_test_and_set(&running->visits, 0))
		return false;
	__sync_fetch_and_sub(&visitors_on[node_at(node_of_cpu(cpu))].nr, 1);
	return true;
}

/* Notes whether what begins to run on @cpu claims a CPU of another node. */
static void begin_visit(const struct task_ctx *tctx, s32 cpu)
{
	u32 node = node_of_cpu(cpu), queue = claimed_queue(tctx->claimed);

	if (!is_node(node) || !is_queue(queue) || node_of_queue(queue) == node)
		return;
	if (!__sync_lock_test_and_set(&running_tasks[cpu_at(cpu)].visits, 1))
		__sync_fetch_and_add(&visitors_on[node_at(node)].nr, 1);
}

/*
 * The CPU of a visitor of @home that makes room for @p, which woke up there and found none idle;
 * negative without one. It may stop just now: then @p displaces what comes after it.
 */
static s32 take_from_visitor(const struct task_struct *p, const struct task_ctx *tctx, u32 home)
{
	s32 cpu;

	if (visitors_on[node_at(home)].nr <= 0 || room_on(home) <= 0)
		return -EBUSY;
	bpf_for (cpu, 0, nr_cpus) {
		const struct running_task *running = &running_tasks[cpu_at(cpu)];

		if (!running->visits || node_of_cpu(cpu) != home ||
		    running->weight > tctx->weight || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (end_visit(cpu)) {
			count(TANDEM_STAT_VISIT_ENDED);
			return cpu;
		}
	}
	return -EBUSY;
}

#endif /* __TANDEM_VISIT_BPF_H */
