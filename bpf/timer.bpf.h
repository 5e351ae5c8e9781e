/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the timer does, once a slice: it wakes idle CPUs for tasks that waited
 * longer than their price or may run there only, evens out how many tasks share a CPU, sends on
 * what waits on a queue whose last CPU went offline, and brings back tasks of control groups that
 * may go on. Twice a second it lets those go first that wait for too long, and looks how much
 * memory is free.
 */
#ifndef __TANDEM_TIMER_BPF_H
#define __TANDEM_TIMER_BPF_H

#include "steal.bpf.h"

/* How often the queues are searched for tasks that wait for too long. */
#define RELIEVE_INTERVAL_NS (500 * 1000 * 1000ULL)
/* For how long at most nobody looks whether those go on that wait for their control group's next
 * period. */
#define RELEASE_INTERVAL_NS (100 * 1000 * 1000ULL)

struct queue_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct queue_timer);
} queue_timers SEC(".maps");

/*
 * Sends on what waits on @queue and may run on none of its CPUs any more: to
 * the nearest node that may run it; else back to the CPU where it was, which is
 * leaving: the kernel finds another one for whatever that CPU picks.
 */
__noinline int rehome(u32 queue)
{
	u32 home = node_of_queue(queue);
	struct task_struct *p;

	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		struct task_ctx *tctx = task_ctx_of(p);
		u32 node, other = TANDEM_NO_QUEUE;

		if (!tctx || queue_allowed(queue, p->cpus_ptr))
			continue;
		look_at_affinity(p, tctx);
		node = node_allowed(tctx, home) ? home : nearest_allowed(tctx, home);
		if (is_node(node))
			other = queue_at_home(p, tctx, node);
		if (!is_queue(other)) {
			if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p,
					     SCX_DSQ_LOCAL_ON | scx_bpf_task_cpu(p), 0))
				count(TANDEM_STAT_REHOMED);
			continue;
		}
		if (move_to(BPF_FOR_EACH_ITER, p, tctx, other))
			count(TANDEM_STAT_REHOMED);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/*
 * Sends a task that waits on @queue to the node where the least shares a CPU, if
 * it would get more of one there than here: the first that nobody assigned and
 * that waited for a slice. One at a time, since every move changes what is
 * crowded. What is assigned stays where the agent wants it until it waited for
 * its price.
 */
__noinline int send_to_less_crowded(u32 queue)
{
	u32 home = node_of_queue(queue), looked_at = unknown_zero;
	struct task_struct *p;

	if (!is_overfull(home))
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		struct task_ctx *tctx;
		u32 node, other;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx || waited_ns(tctx) < slice_ns || assigned_node(tctx) != TANDEM_NO_NODE)
			continue;
		node = roomiest_node(tctx->allowed_nodes, home);
		if (node == home || !is_less_crowded(tctx, node, home))
			continue;
		other = queue_at_home(p, tctx, node);
		if (!is_queue(other) || !move_to(BPF_FOR_EACH_ITER, p, tctx, other))
			continue;
		make_home(tctx, node, RULES_FIRM_BOND_NS);
		count(TANDEM_STAT_BALANCED);
		break;
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Looks after one queue. */
__noinline int look_after(u32 queue)
{
	wake_unused(queue);
	if (nr_cpus_of_queue(queue)) {
		rescue_from(queue);
		send_to_less_crowded(queue);
	} else {
		rehome(queue);
	}
	return 0;
}

/* Lets those go first that wait in @dsq for too long. */
__noinline int relieve(u32 dsq)
{
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(dsq) <= 0)
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, dsq, 0) {
		struct task_ctx *tctx = task_ctx_of(p);

		if (!tctx || !rules_is_starving(waited_ns(tctx)))
			continue;
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER,
					   rules_vtime_first(vtime_of(dsq), slice_ns));
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, dsq, 0))
			count(TANDEM_STAT_RELIEVED);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Whether it is time again to look for those that wait for too long. */
static bool relieve_now(void)
{
	static u64 next_ns;
	u64 now = bpf_ktime_get_ns();

	if (now < next_ns)
		return false;
	next_ns = now + RELIEVE_INTERVAL_NS;
	return true;
}

/*
 * Wakes CPUs beside which tasks wait that may run there only. Between its last look at its own
 * queue and going idle a CPU lets go of its lock to take a task from elsewhere; what is queued
 * meanwhile finds it neither idle nor running anything, and the kernel forgets that it was asked to
 * look again.
 */
__noinline int wake_for_own(void)
{
	u32 cpu;

	if (!own_to_look_at)
		return 0;
	__sync_lock_test_and_set(&own_to_look_at, 0);
	bpf_for (cpu, 0, nr_cpus) {
		u32 *rounds = &own_rounds[cpu_at(cpu)].left, left = *rounds;

		if (!left)
			continue;
		/* One that is being queued is not there yet. */
		if (scx_bpf_dsq_nr_queued(cpu_dsq(cpu)) > 0)
			*rounds = OWN_ROUNDS;
		else
			__sync_val_compare_and_swap(rounds, left, left - 1);
		own_to_look_at = 1;
		if (cpu_is_online[cpu_at(cpu)] && !running_tasks[cpu_at(cpu)].weight)
			kick(cpu, SCX_KICK_IDLE);
	}
	return 0;
}

/* Whether it is time to look who may go on: the first of those that wait may, or for long nobody
 * did. */
static bool release_now(void)
{
	static u64 latest_ns;
	u64 now = bpf_ktime_get_ns();

	if (now < release_at_ns && now < latest_ns)
		return false;
	release_at_ns = ~0ULL;
	latest_ns = now + RELEASE_INTERVAL_NS;
	return true;
}

/* Whether @p, which waits for its control group's next period, goes on now; else notes until when.
 */
static bool is_released(const struct task_struct *p, struct task_ctx *tctx)
{
	u64 until = throttled_until(tctx);

	if (!until || is_ending(p) ||
	    bpf_ktime_get_ns() - tctx->waiting_since_ns >= MAX_THROTTLED_NS)
		return true;
	if (until < release_at_ns)
		release_at_ns = until;
	return false;
}

/* Lets @p wait in @queue, or in the queue of its CPU, and wakes one. */
static void release_to(struct bpf_iter_scx_dsq *it, struct task_struct *p, struct task_ctx *tctx,
		       u32 queue)
{
	/* Once: another CPU may set its affinity until it is moved, and after that. */
	bool pinned = is_pinned(p);
	s32 cpu = pinned ? scx_bpf_task_cpu(p) : pick_idle_on(p, node_of_queue(queue), 0);

	/* It waits for a CPU from now on. */
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = cpu >= 0;
	move_to(it, p, tctx, queue);
	if (pinned)
		wake_for_pinned(cpu);
	else if (cpu >= 0)
		kick(cpu, SCX_KICK_IDLE);
}

/* Brings back those whose control group may go on. */
__noinline int release_throttled(void)
{
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(THROTTLED_DSQ) <= 0 || !release_now())
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, THROTTLED_DSQ, 0) {
		struct task_ctx *tctx = task_ctx_of(p);
		s32 cpu = scx_bpf_task_cpu(p);
		u32 queue;

		if (!tctx || !is_released(p, tctx))
			continue;
		queue = is_pinned(p) ? queue_of_cpu(cpu)
				     : queue_at_home(p, tctx, home_of(p, tctx, cpu));
		/* Nobody serves the queue of a CPU that is leaving. */
		if (is_queue(queue) && (!is_pinned(p) || cpu_is_online[cpu_at(cpu)]))
			release_to(BPF_FOR_EACH_ITER, p, tctx, queue);
		else
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
	bpf_rcu_read_unlock();
	return 0;
}

static int look_after_queues(void *map, int *key, struct queue_timer *queue_timer)
{
	u32 at;

	bpf_for (at, 0, nr_queues)
		look_after(at);
	wake_for_own();
	release_throttled();
	if (relieve_now()) {
		bpf_for (at, 0, nr_nodes)
			look_at_memory(at);
		bpf_for (at, 0, NR_DSQS)
			if (at < nr_queues || (at >= TANDEM_MAX_QUEUES &&
					       is_node(node_of_cpu(at - TANDEM_MAX_QUEUES))))
				relieve(at);
	}
	bpf_timer_start(&queue_timer->timer, slice_ns, 0);
	return 0;
}

static s32 start_queue_timer(void)
{
	struct queue_timer *queue_timer;
	u32 zero = 0;
	s32 err;

	queue_timer = bpf_map_lookup_elem(&queue_timers, &zero);
	if (!queue_timer)
		return -ENOENT;
	err = bpf_timer_init(&queue_timer->timer, &queue_timers, CLOCK_MONOTONIC);
	if (err)
		return err;
	err = bpf_timer_set_callback(&queue_timer->timer, look_after_queues);
	if (err)
		return err;
	return bpf_timer_start(&queue_timer->timer, slice_ns, 0);
}

#endif /* __TANDEM_TIMER_BPF_H */
