/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler adds to the kernel's dump of it, which is made when it is
 * ejected and on SysRq-D: how deep queues are, where tasks belong, until when
 * they are leased.
 */
#ifndef __TANDEM_DUMP_BPF_H
#define __TANDEM_DUMP_BPF_H

#include "queue.bpf.h"

#define NS_PER_MS (1000 * 1000ULL)

static void dump_queues(void)
{
	u32 at;

	bpf_for (at, 0, nr_queues) {
		u32 node = node_of_queue(at);

		scx_bpf_dump("queue %u of node %u: %d waiting, %d claims, %u CPUs, vtime %llu\n",
			     at, kernel_node_id(node), scx_bpf_dsq_nr_queued(shared_dsq(at)),
			     claims_of[queue_at(at)].nr, nr_cpus_of_queue(at),
			     vtime_of(shared_dsq(at)));
	}
}

static void dump_own_queue(s32 cpu)
{
	scx_bpf_dump(
		"node %u, queue %u, own queue: %d waiting, vtime %llu, offset %lld; runs weight %u",
		kernel_node_id(node_of_cpu(cpu)), queue_of_cpu(cpu),
		scx_bpf_dsq_nr_queued(cpu_dsq(cpu)), vtime_of(cpu_dsq(cpu)), own_offset(cpu),
		running_tasks[cpu_at(cpu)].weight);
}

static void dump_task_ctx(const struct task_struct *p, const struct task_ctx *tctx)
{
	u64 now = bpf_ktime_get_ns();
	s64 lease_ns = tctx->expires_ns - now;

	scx_bpf_dump("waits %llu ms in %u, lag %lld us, weight %u, group %u, home %u, claims %u",
		     waited_ns(tctx) / NS_PER_MS, tctx->vtime_dsq,
		     (s64)(p->scx.dsq_vtime - vtime_of(tctx->vtime_dsq)) / 1000, tctx->weight,
		     tctx->group, kernel_node_id(tctx->home), claimed_queue(tctx->claimed));
	if (tctx->assigned != TANDEM_NO_NODE)
		scx_bpf_dump("\nassigned to node %u by generation %llu, leased for %lld ms more, "
			     "%llu pages resident",
			     kernel_node_id(tctx->assigned), tctx->generation,
			     lease_ns > 0 ? (u64)lease_ns / NS_PER_MS : 0, resident_pages(p));
}

#endif /* __TANDEM_DUMP_BPF_H */
