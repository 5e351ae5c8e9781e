/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Assignments: the agent's transactions.
 *
 * The agent writes a batch into a map and runs the program, which answers for
 * every item by itself. An assignment is a lease: the agent renews it, and when
 * the agent is gone it runs out without anybody's help.
 */
#ifndef __TANDEM_ASSIGN_BPF_H
#define __TANDEM_ASSIGN_BPF_H

#include "place.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tandem_batch);
} batches SEC(".maps");

static enum tandem_assign_outcome check_lease(const struct tandem_assignment *item,
					      const struct task_ctx *tctx, u64 now)
{
	enum tandem_assign_outcome outcome;

	outcome = rules_lease_outcome(item, tctx->generation, now, max_lease_ns);
	if (outcome != TANDEM_ASSIGN_APPLIED || item->node == TANDEM_NO_NODE)
		return outcome;
	if (!nr_cpus_of(item->node))
		return TANDEM_ASSIGN_BAD_NODE;
	if (!node_allowed(tctx, item->node))
		return TANDEM_ASSIGN_NODE_FORBIDDEN;
	return TANDEM_ASSIGN_APPLIED;
}

static enum tandem_assign_outcome assign_task(const struct tandem_assignment *item,
					      struct task_struct *p, u64 now)
{
	enum tandem_assign_outcome outcome;
	struct task_ctx *tctx;

	if (p->start_boottime != item->start_boottime_ns)
		return TANDEM_ASSIGN_WRONG_START;
	tctx = task_ctx_of(p);
	if (!tctx)
		return TANDEM_ASSIGN_NOT_OURS;
	outcome = check_lease(item, tctx, now);
	if (outcome != TANDEM_ASSIGN_APPLIED)
		return outcome;
	/* The lease before the node: a reader that sees the node must find its lease. */
	tctx->generation = item->generation;
	/* One that is withdrawn has ended: see assigned_node(). */
	tctx->expires_ns = item->node == TANDEM_NO_NODE ? 0 : item->expires_ns;
	barrier();
	tctx->assigned = item->node;
	return TANDEM_ASSIGN_APPLIED;
}

SEC("syscall")
int tandem_assign(void *ctx)
{
	struct tandem_stats *stats = this_cpu_stats();
	struct tandem_batch *batch;
	u64 now = bpf_ktime_get_ns();
	u32 zero = 0, at;

	batch = bpf_map_lookup_elem(&batches, &zero);
	if (!batch || batch->count > TANDEM_MAX_BATCH)
		return -EINVAL;
	bpf_for (at, 0, batch->count) {
		struct tandem_assignment *item;
		struct task_struct *p;

		if (at >= TANDEM_MAX_BATCH)
			break;
		item = &batch->items[at];
		p = bpf_task_from_pid(item->tid);
		if (p) {
			item->outcome = assign_task(item, p, now);
			bpf_task_release(p);
		} else {
			item->outcome = TANDEM_ASSIGN_NO_TASK;
		}
		if (stats && item->outcome < TANDEM_NR_ASSIGN_OUTCOMES)
			stats->assignments[item->outcome]++;
	}
	return 0;
}

#endif /* __TANDEM_ASSIGN_BPF_H */
