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

/* Notes whether what runs on @cpu claims a CPU of another node; without @tctx it does not. */
static void note_visit(const struct task_ctx *tctx, s32 cpu)
{
	u32 node = node_of_cpu(cpu), queue = tctx ? claimed_queue(tctx->claimed) : TANDEM_NO_QUEUE;
	u32 visits = is_node(node) && is_queue(queue) && node_of_queue(queue) != node;
	struct running_task *running = &running_tasks[cpu_at(cpu)];

	if (running->visits == visits)
		return;
	running->visits = visits;
	__sync_fetch_and_add(&visitors_on[node_at(node)].nr, visits ? 1 : -1);
}

static void end_visit(s32 cpu)
{
	note_visit(NULL, cpu);
}

/*
 * Whether @p may take the CPU of the visitor on @cpu, if there is one. Read without a lock by
 * whoever looks for one; under that of @cpu's queue nothing changes meanwhile.
 */
static bool visitor_yields(const struct task_struct *p, const struct task_ctx *tctx, u32 home,
			   s32 cpu)
{
	const struct running_task *running = &running_tasks[cpu_at(cpu)];
	u64 began, now;

	if (node_of_cpu(cpu) != home || !running->visits || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	began = running->began_ns;
	now = bpf_ktime_get_ns();
	return rules_visitor_yields(weight_of(p, tctx), running->weight,
				    now > began ? now - began : 0);
}

/*
 * The CPU of a visitor of @home for @p, which woke up there and found none idle: @prev_cpu, or one
 * below the cache of @queue, or any; negative without one.
 */
__noinline int find_visitor(const struct task_struct *p __arg_trusted,
			    const struct task_ctx *tctx __arg_nonnull, u32 home, u32 queue,
			    s32 prev_cpu)
{
	s32 cpu, other = -EBUSY;

	if (visitors_on[node_at(home)].nr <= 0 || room_on(home) <= 0)
		return -EBUSY;
	if (visitor_yields(p, tctx, home, prev_cpu))
		return prev_cpu;
	bpf_for (cpu, 0, nr_cpus) {
		if (!visitor_yields(p, tctx, home, cpu))
			continue;
		if (queue_of_cpu(cpu) == queue)
			return cpu;
		other = cpu;
	}
	return other;
}

/* Whether @p, which is enqueued on @cpu and claims a CPU of @home, takes that of a visitor. */
static bool takes_from_visitor(const struct task_struct *p, const struct task_ctx *tctx, u32 home,
			       s32 cpu)
{
	if (!running_tasks[cpu_at(cpu)].visits || is_overfull(home) ||
	    !visitor_yields(p, tctx, home, cpu))
		return false;
	end_visit(cpu);
	count(TANDEM_STAT_VISIT_ENDED);
	return true;
}

#endif /* __TANDEM_VISIT_BPF_H */
