/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounting: run time by node, waiting, switches; and virtual time.
 *
 * Virtual time is kept per node, since a queue orders the tasks of one node.
 * A task that changes queue carries its lag along: what it is behind or ahead
 * of the old queue it is behind or ahead of the new one.
 */
#ifndef __TANDEM_ACCOUNT_BPF_H
#define __TANDEM_ACCOUNT_BPF_H

#include "tandem.bpf.h"

/*
 * The furthest virtual time that ran on each node. CPUs of a node write it
 * without a lock: a lost update is made good by the next task that runs.
 */
static u64 node_vtime[TANDEM_MAX_NODES];

static __always_inline u64 vtime_of_node(u32 node)
{
	return node_vtime[node_at(node)];
}

/*
 * The virtual time with which @p enters the queue of @node. Sleepers keep at
 * most one slice of credit.
 */
static __always_inline u64 vtime_for_queue(struct task_struct *p, struct task_ctx *tctx, u32 node)
{
	u64 to = vtime_of_node(node);
	u64 from = tctx->vtime_node == node ? to : vtime_of_node(tctx->vtime_node);
	u64 vtime = rules_vtime_entering(p->scx.dsq_vtime, from, to, slice_ns);

	tctx->vtime_node = node;
	scx_bpf_task_set_dsq_vtime(p, vtime);
	return vtime;
}

static void start_running(struct task_struct *p, struct task_ctx *tctx)
{
	u64 now = bpf_ktime_get_ns();
	u32 node = node_of_cpu(scx_bpf_task_cpu(p));
	u32 queue = node_at(tctx->vtime_node);

	if (tctx->queued_since_ns) {
		tctx->wait_ns += now - tctx->queued_since_ns;
		tctx->queued_since_ns = 0;
	}
	tctx->running_since_ns = now;
	tctx->switches++;
	if (is_node(node) && tctx->last_node != node) {
		tctx->node_changes++;
		tctx->last_node = node;
	}
	if (rules_vtime_before(node_vtime[queue], p->scx.dsq_vtime))
		node_vtime[queue] = p->scx.dsq_vtime;
}

/*
 * Accounts what @p ran since the last call. Called from the tick too: a task
 * that is alone on its CPU runs for long without being switched.
 */
static void account_run(struct task_struct *p, struct task_ctx *tctx)
{
	struct tandem_stats *stats = this_cpu_stats();
	u64 now = bpf_ktime_get_ns();
	u32 node = node_of_cpu(scx_bpf_task_cpu(p));
	u64 ran_ns;

	if (!tctx->running_since_ns)
		return;
	ran_ns = now - tctx->running_since_ns;
	tctx->running_since_ns = now;
	if (is_node(node)) {
		tctx->run_ns[node_at(node)] += ran_ns;
		if (stats)
			stats->busy_ns[node_at(node)] += ran_ns;
	}
	scx_bpf_task_set_dsq_vtime(p, rules_vtime_after(p->scx.dsq_vtime, ran_ns, p->scx.weight));
}

#endif /* __TANDEM_ACCOUNT_BPF_H */
