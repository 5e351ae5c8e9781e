/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Task records: what the agent reads once an interval, all tasks in a few
 * system calls. It is also how a new agent learns what is there.
 */
#ifndef __TANDEM_ITERATE_BPF_H
#define __TANDEM_ITERATE_BPF_H

#include "tandem.bpf.h"

/* Too large for the BPF stack; iterators of one program may run on several CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tandem_task_record);
} records SEC(".maps");

SEC("iter/task")
int tandem_tasks(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *p = ctx->task;
	struct tandem_task_record *record;
	struct task_ctx *tctx;
	u32 zero = 0;

	if (!p)
		return 0;
	tctx = task_ctx_of(p);
	record = bpf_map_lookup_elem(&records, &zero);
	if (!tctx || !record)
		return 0;

	record->tid = p->pid;
	record->process = p->tgid;
	record->start_boottime_ns = p->start_boottime;
	record->wait_ns = tctx->wait_ns;
	record->switches = tctx->switches;
	record->node_changes = tctx->node_changes;
	record->partner_wakes = tctx->partner_wakes;
	record->partner = tctx->partner;
	record->generation = tctx->generation;
	record->expires_ns = tctx->expires_ns;
	record->assigned = bpf_ktime_get_ns() < tctx->expires_ns ? tctx->assigned : TANDEM_NO_NODE;
	record->home = record->assigned == TANDEM_NO_NODE ? tctx->home : record->assigned;
	record->allowed_nodes = tctx->allowed_nodes;
	record->weight = p->scx.weight;
	record->cpu = p->thread_info.cpu;
	record->kernel_thread = !!(p->flags & PF_KTHREAD);
	__builtin_memcpy(record->run_ns, tctx->run_ns, sizeof(record->run_ns));
	bpf_probe_read_kernel(record->comm, sizeof(record->comm), p->comm);
	bpf_seq_write(seq, record, sizeof(*record));
	return 0;
}

#endif /* __TANDEM_ITERATE_BPF_H */
