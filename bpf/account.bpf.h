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
 * Tasks that may run on one CPU only have a queue with a virtual time of its
 * own. To compare it with the queue that the CPU shares, an offset is added that
 * keeps both within a slice of each other.
 */
#ifndef __TANDEM_ACCOUNT_BPF_H
#define __TANDEM_ACCOUNT_BPF_H

#include "bandwidth.bpf.h"
#include "home.bpf.h"

/*
 * Where each dispatch queue is. CPUs write it without a lock: a lost update is
 * made good by the next task that is taken.
 */
static struct {
	u64 vtime;
} OWN_CACHE_LINE dsqs[NR_DSQS];

/* For each CPU what its own queue's virtual time differs by from the shared one's. */
static u64 own_offsets[TANDEM_MAX_CPUS];

/*
 * What each CPU runs: the virtual time with which it began, as the shared queue
 * counts, when, its weight; a weight of 0 stands for nothing of ours. Written by
 * the CPU itself. Others read it without a lock to see whom a waking task may
 * displace: what they read may be torn, and would at worst displace the wrong
 * task.
 */
struct running_task {
	u64 vtime;
	u64 since_ns;
	/* When this task was switched to: 0 as long as nothing ran. */
	u64 began_ns;
	u32 weight;
	/* Whether it is away from home: see visit.bpf.h. */
	u32 visits;
	s32 tid;
} OWN_CACHE_LINE;
static struct running_task running_tasks[TANDEM_MAX_CPUS];

static __always_inline bool is_pinned(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1;
}

static __always_inline u64 vtime_of(u32 dsq)
{
	return dsqs[dsq_at(dsq)].vtime;
}

/* The dispatch queue of @p, which is on @cpu and belongs to @queue. */
static __always_inline u32 dsq_of(const struct task_struct *p, s32 cpu, u32 queue)
{
	return is_pinned(p) ? cpu_dsq(cpu) : shared_dsq(queue);
}

/* What the virtual time of @p would be in @dsq. */
static __always_inline u64 vtime_seen_from(const struct task_struct *p, const struct task_ctx *tctx,
					   u32 dsq)
{
	if (tctx->vtime_dsq == dsq)
		return p->scx.dsq_vtime;
	return rules_vtime_moved(p->scx.dsq_vtime, vtime_of(tctx->vtime_dsq), vtime_of(dsq));
}

/* Lets @p belong to @dsq with this virtual time. */
static __always_inline void set_vtime(struct task_struct *p, struct task_ctx *tctx, u32 dsq,
				      u64 vtime)
{
	tctx->vtime_dsq = dsq;
	scx_bpf_task_set_dsq_vtime(p, vtime);
}

/* The virtual time with which @p enters @dsq. */
static u64 vtime_entering(const struct task_struct *p, const struct task_ctx *tctx, u32 dsq)
{
	u64 credit_ns = rules_credit_ns(tctx->ran, tctx->weight, slice_ns);

	return rules_vtime_entering(vtime_seen_from(p, tctx, dsq), vtime_of(dsq), credit_ns);
}

/* Lets @p enter @dsq; the virtual time that it has there. */
static u64 enter_dsq(struct task_struct *p, struct task_ctx *tctx, u32 dsq)
{
	u64 vtime = vtime_entering(p, tctx, dsq);

	set_vtime(p, tctx, dsq, vtime);
	return vtime;
}

/* Notes that @p of @dsq runs although nobody waits there. */
static void run_alone(struct task_struct *p, struct task_ctx *tctx, u32 dsq)
{
	u64 vtime = vtime_entering(p, tctx, dsq);

	set_vtime(p, tctx, dsq, rules_vtime_alone(vtime, vtime_of(dsq), slice_ns, tctx->weight));
}

static __always_inline u64 shared_vtime(s32 cpu)
{
	return vtime_of(shared_dsq(queue_of_cpu(cpu)));
}

/* What to add to virtual time of @cpu's own queue to compare it with the queue that it shares. */
static __always_inline u64 own_offset(s32 cpu)
{
	return own_offsets[cpu_at(cpu)];
}

/*
 * The same once the one at @first competes for @cpu, with the shared queue at @shared. @contended:
 * with somebody of that queue.
 */
static u64 compare_own(s32 cpu, u64 first, u64 shared, bool contended)
{
	u64 *offset = &own_offsets[cpu_at(cpu)];

	/* One that waited for too long goes first; the others of its queue are not behind. */
	if (rules_is_first(first, vtime_of(cpu_dsq(cpu)), slice_ns))
		return *offset;
	*offset = rules_own_offset(*offset, first, shared, contended, slice_ns);
	return *offset;
}

/* Lets @p, which may run on @cpu only, enter its own queue; the virtual time that it has there. */
static u64 enter_own(struct task_struct *p, struct task_ctx *tctx, s32 cpu)
{
	u64 *own = &dsqs[dsq_at(cpu_dsq(cpu))].vtime;

	*own = rules_own_vtime(*own, shared_vtime(cpu), own_offset(cpu));
	return enter_dsq(p, tctx, cpu_dsq(cpu));
}

static void note_running(s32 cpu, const struct task_struct *p, const struct task_ctx *tctx, u64 now)
{
	struct running_task *running = &running_tasks[cpu_at(cpu)];
	/* One that goes on when its slice is over is not switched to again. */
	bool goes_on = running->tid == p->pid && running->weight;

	running->vtime = vtime_seen_from(p, tctx, dsq_of(p, cpu, queue_of_cpu(cpu)));
	if (is_pinned(p))
		running->vtime += own_offset(cpu);
	running->since_ns = now;
	running->weight = tctx->weight;
	if (!goes_on) {
		running->tid = p->pid;
		running->began_ns = now;
	}
}

static void note_stopped(s32 cpu)
{
	running_tasks[cpu_at(cpu)].weight = 0;
}

/* Whether what runs on @cpu should make room for a task with @vtime of the same queue. */
static bool preempts(s32 cpu, u64 vtime, u64 now)
{
	const struct running_task *running = &running_tasks[cpu_at(cpu)];
	u64 since = running->since_ns, began = running->began_ns;
	u32 weight = running->weight;

	if (!weight)
		return false;
	return rules_preempts(
		vtime, rules_vtime_after(running->vtime, now > since ? now - since : 0, weight),
		now > began ? now - began : 0);
}

/* Where a queue is follows from what is taken from it. */
static void note_taken(const struct task_struct *p, struct task_ctx *tctx)
{
	u64 *vtime = &dsqs[dsq_at(tctx->vtime_dsq)].vtime;

	if (tctx->waits && rules_vtime_before(*vtime, p->scx.dsq_vtime))
		*vtime = p->scx.dsq_vtime;
	tctx->waits = false;
}

static void start_running(struct task_struct *p, struct task_ctx *tctx)
{
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);
	u32 node = node_of_cpu(cpu), queue = queue_of_cpu(cpu), weight = weight_of(p, tctx);

	if (tctx->queued_since_ns) {
		tctx->wait_ns += now - tctx->queued_since_ns;
		tctx->queued_since_ns = 0;
	}
	tctx->running_since_ns = now;
	tctx->made_to_wait = false;
	tctx->switches++;
	if (is_node(node) && tctx->last_node != node) {
		tctx->node_changes++;
		tctx->last_node = node;
	}
	/* Mostly as before: others read them at wake-ups. */
	if (tctx->last_queue != queue)
		tctx->last_queue = queue;
	if (tctx->weight != weight)
		tctx->weight = weight;
	note_taken(p, tctx);
	if (!tctx->ran)
		tctx->awake_since_ns = now;
	tctx->ran = true;
	note_running(cpu, p, tctx, now);
}

/* Charges @p for what it ran on @cpu since the last time, up to @now. */
static void charge_run(struct task_struct *p, struct task_ctx *tctx, s32 cpu, u64 now)
{
	u64 ran_ns = now - tctx->running_since_ns;
	u32 node = node_of_cpu(cpu);

	tctx->running_since_ns = now;
	if (is_node(node)) {
		struct tandem_stats *stats = this_cpu_stats();

		tctx->run_ns[node_at(node)] += ran_ns;
		settle(p, tctx, node, ran_ns);
		if (stats)
			stats->busy_ns[node_at(node)] += ran_ns;
	}
	use_bandwidth(tctx, ran_ns);
	scx_bpf_task_set_dsq_vtime(p, rules_vtime_after(p->scx.dsq_vtime, ran_ns, tctx->weight));
}

/*
 * Accounts what @p ran while it goes on: a task that is alone on its CPU runs for
 * long without being switched.
 */
static void account_run(struct task_struct *p, struct task_ctx *tctx)
{
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);

	if (!tctx->running_since_ns)
		return;
	charge_run(p, tctx, cpu, now);
	tctx->weight = weight_of(p, tctx);
	note_running(cpu, p, tctx, now);
}

static void stop_running(struct task_struct *p, struct task_ctx *tctx)
{
	s32 cpu = scx_bpf_task_cpu(p);

	if (tctx->running_since_ns)
		charge_run(p, tctx, cpu, bpf_ktime_get_ns());
	tctx->running_since_ns = 0;
	note_stopped(cpu);
}

#endif /* __TANDEM_ACCOUNT_BPF_H */
