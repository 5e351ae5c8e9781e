/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounting: run time by node, waiting, switches; and virtual time.
 *
 * Virtual time is kept per queue. Where a queue is, is the furthest virtual
 * time of a task that was taken from it (start-time fair queueing: Goyal, Vin,
 * Cheng, SIGCOMM 1996); what runs without having waited does not count, so that
 * a task alone on its CPU does not carry the others' queue along. A task that
 * changes queue carries its lag along: what it is behind or ahead of the old
 * queue it is behind or ahead of the new one.
 *
 * Tasks that may run on one CPU only are compared with those of the queue that
 * this CPU shares, but are a group of their own: where a CPU has more of them
 * than it should, they fall behind the others for good, and must not be taken
 * for sleepers.
 */
#ifndef __TANDEM_ACCOUNT_BPF_H
#define __TANDEM_ACCOUNT_BPF_H

#include "tandem.bpf.h"

/*
 * Where each shared queue is, and each CPU's own. CPUs of a queue write it
 * without a lock: a lost update is made good by the next task that is taken.
 */
static u64 queue_vtime[TANDEM_MAX_QUEUES];
static u64 cpu_vtime[TANDEM_MAX_CPUS];

/*
 * What each CPU runs: the virtual time with which it began, when, its weight; a
 * weight of 0 stands for nothing of ours. Written by the CPU itself. Others
 * read it without a lock to see whom a waking task may displace: what they read
 * may be torn, and would at worst displace the wrong task.
 */
struct running_task {
	u64 vtime;
	u64 since_ns;
	u32 weight;
	/* It may run on this CPU only. */
	bool pinned;
};
static struct running_task running_tasks[TANDEM_MAX_CPUS];

static __always_inline bool is_pinned(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1;
}

static __always_inline u64 vtime_of_queue(u32 queue)
{
	return queue_vtime[queue_at(queue)];
}

/* What the virtual time of @p would be in @queue. */
static __always_inline u64 vtime_seen_from(const struct task_struct *p, const struct task_ctx *tctx,
					   u32 queue)
{
	if (tctx->vtime_queue == queue)
		return p->scx.dsq_vtime;
	return rules_vtime_moved(p->scx.dsq_vtime, vtime_of_queue(tctx->vtime_queue),
				 vtime_of_queue(queue));
}

/* Lets @p belong to @queue with this virtual time. */
static __always_inline void set_vtime(struct task_struct *p, struct task_ctx *tctx, u32 queue,
				      u64 vtime)
{
	tctx->vtime_queue = queue;
	scx_bpf_task_set_dsq_vtime(p, vtime);
}

/* Lets @p enter @queue, which is at @now; the virtual time that it has there. */
static __always_inline u64 enter_queue(struct task_struct *p, struct task_ctx *tctx, u32 queue,
				       u64 now)
{
	u64 vtime = rules_vtime_entering(vtime_seen_from(p, tctx, queue), now, slice_ns);

	set_vtime(p, tctx, queue, vtime);
	return vtime;
}

/* Notes that @p of @queue runs although nobody waits there. */
static void run_alone(struct task_struct *p, struct task_ctx *tctx, u32 queue)
{
	u64 now = vtime_of_queue(queue);
	u64 vtime = rules_vtime_entering(vtime_seen_from(p, tctx, queue), now, slice_ns);

	set_vtime(p, tctx, queue, rules_vtime_alone(vtime, now, slice_ns, p->scx.weight));
}

static void note_running(s32 cpu, const struct task_struct *p, const struct task_ctx *tctx, u64 now)
{
	struct running_task *running = &running_tasks[cpu_at(cpu)];

	running->vtime = vtime_seen_from(p, tctx, queue_of_cpu(cpu));
	running->since_ns = now;
	running->weight = p->scx.weight;
	running->pinned = is_pinned(p);
}

static void note_stopped(s32 cpu)
{
	running_tasks[cpu_at(cpu)].weight = 0;
}

/* Virtual time of what @cpu runs, now; false when it runs nothing of ours. */
static bool running_vtime(s32 cpu, u64 now, u64 *vtime)
{
	const struct running_task *running = &running_tasks[cpu_at(cpu)];
	u32 weight = running->weight;
	u64 since = running->since_ns;

	if (!weight)
		return false;
	*vtime = rules_vtime_after(running->vtime, now > since ? now - since : 0, weight);
	return true;
}

/* Where a queue is follows from what is taken from it. */
static void note_taken(const struct task_struct *p, struct task_ctx *tctx, s32 cpu)
{
	u32 queue = queue_at(tctx->vtime_queue);

	if (tctx->waits_in == QUEUE_SHARED &&
	    rules_vtime_before(queue_vtime[queue], p->scx.dsq_vtime))
		queue_vtime[queue] = p->scx.dsq_vtime;
	if (tctx->waits_in == QUEUE_OF_CPU &&
	    rules_vtime_before(cpu_vtime[cpu_at(cpu)], p->scx.dsq_vtime))
		cpu_vtime[cpu_at(cpu)] = p->scx.dsq_vtime;
	tctx->waits_in = QUEUE_NONE;
}

static void start_running(struct task_struct *p, struct task_ctx *tctx)
{
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);
	u32 node = node_of_cpu(cpu);

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
	tctx->last_queue = queue_of_cpu(cpu);
	note_taken(p, tctx, cpu);
	note_running(cpu, p, tctx, now);
}

/*
 * Accounts what @p ran since the last call. Called from the tick too: a task
 * that is alone on its CPU runs for long without being switched.
 */
static void account_run(struct task_struct *p, struct task_ctx *tctx)
{
	struct tandem_stats *stats = this_cpu_stats();
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);
	u32 node = node_of_cpu(cpu);
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
	note_running(cpu, p, tctx, now);
}

#endif /* __TANDEM_ACCOUNT_BPF_H */
