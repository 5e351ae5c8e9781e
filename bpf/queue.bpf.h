/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: one per node that has CPUs, or one per last-level cache; and one per
 * CPU for tasks that may run nowhere else. All are ordered by virtual time.
 *
 * A CPU serves its own queue and the one it shares, whichever has the task with
 * less virtual time. When both are empty it takes from the other queues of its
 * node, then from other nodes, nearest first, tasks that have waited longer
 * than the price of running away from home. An idle CPU does not look again by
 * itself, so a timer wakes one when a wait exceeds its price. It also sends on
 * what waits on a queue whose last CPU went offline.
 */
#ifndef __TANDEM_QUEUE_BPF_H
#define __TANDEM_QUEUE_BPF_H

#include "account.bpf.h"
#include "place.bpf.h"

enum {
	/* Tasks at the head of a queue that are looked at. */
	LOOK_DEPTH = 8,
	/* CPUs of a queue whose tasks a waking one is compared with. */
	PREEMPT_TRIES = 4,
};

/* A busy CPU helps another node only when a task has waited this much longer than its price. */
#define BUSY_PATIENCE_NS (100 * 1000 * 1000ULL)

struct queue_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct queue_timer);
} queue_timers SEC(".maps");

static u64 waited_ns(const struct task_ctx *tctx)
{
	u64 since = tctx->queued_since_ns;

	return since ? bpf_ktime_get_ns() - since : 0;
}

/* Whether a CPU of @node may take a task from a queue of @home. */
static bool may_leave(struct task_ctx *tctx, u32 home, u32 node, u64 patience_ns)
{
	return rules_may_leave(waited_ns(tctx), price_of(tctx, home, node), patience_ns,
			       tctx->home_cpu_woken && nr_cpus_of(home));
}

/* Whether what runs on @cpu should make room for a task with @vtime of the same queue. */
static bool preempts(s32 cpu, u64 vtime, u64 now)
{
	u64 running = 0;

	return running_vtime(cpu, now, &running) && rules_preempts(vtime, running);
}

/*
 * Displaces a task that runs below the cache of @queue and has more virtual
 * time than @p, which was just queued there and found no idle CPU: where @p was
 * last, else one of a few others in turn.
 */
static void preempt_for(struct task_struct *p, u32 queue, u64 vtime)
{
	struct cpu_mask *of_queue = bpf_map_lookup_elem(&queue_masks, &queue);
	struct bpf_cpumask *cpus = of_queue ? of_queue->cpus : NULL;
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);
	u32 try;

	if (!cpus)
		return;
	bpf_for (try, 0, PREEMPT_TRIES) {
		if (queue_of_cpu(cpu) == queue && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    preempts(cpu, vtime, now)) {
			count(TANDEM_STAT_PREEMPTED);
			kick(cpu, SCX_KICK_PREEMPT);
			return;
		}
		cpu = bpf_cpumask_any_and_distribute(cast_mask(cpus), p->cpus_ptr);
	}
}

static void queue_shared(struct task_struct *p, struct task_ctx *tctx, u32 queue, u64 enq_flags)
{
	u32 node = node_of_queue(queue);
	u64 vtime = enter_queue(p, tctx, queue, vtime_of_queue(queue));
	s32 cpu;

	/* Before it is inserted: from then on another CPU may run it. */
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = false;
	tctx->waits_in = QUEUE_SHARED;
	scx_bpf_dsq_insert_vtime(p, shared_dsq(queue), slice_ns, vtime, enq_flags);
	count(TANDEM_STAT_QUEUED);
	/*
	 * A CPU that went idle before the insertion is found here, one that
	 * goes idle later finds the task itself.
	 */
	cpu = pick_idle_near(p, node, queue, SCX_PICK_IDLE_CORE);
	if (cpu < 0)
		cpu = pick_idle_near(p, node, queue, 0);
	if (cpu >= 0) {
		/* Too late if it was taken meanwhile; the next time it is queued resets it. */
		tctx->home_cpu_woken = true;
		kick(cpu, SCX_KICK_IDLE);
	} else if (enq_flags & SCX_ENQ_WAKEUP) {
		preempt_for(p, queue, vtime);
	}
}

/* Where the own queue of @cpu is: where the shared one is, when it begins to be used. */
static u64 vtime_of_cpu(s32 cpu)
{
	u64 *vtime = &cpu_vtime[cpu_at(cpu)];

	if (scx_bpf_dsq_nr_queued(cpu_dsq(cpu)) <= 0 && !running_tasks[cpu_at(cpu)].pinned)
		*vtime = vtime_of_queue(queue_of_cpu(cpu));
	return *vtime;
}

/* Queues a task that may run on @cpu only. */
static void queue_on_cpu(struct task_struct *p, struct task_ctx *tctx, s32 cpu, u64 enq_flags)
{
	u64 vtime = enter_queue(p, tctx, queue_of_cpu(cpu), vtime_of_cpu(cpu));

	/* An offline CPU serves no queue; the kernel moves on what is on the CPU itself. */
	if (!cpu_is_online[cpu_at(cpu)]) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = false;
	tctx->waits_in = QUEUE_OF_CPU;
	scx_bpf_dsq_insert_vtime(p, cpu_dsq(cpu), slice_ns, vtime, enq_flags);
	count(TANDEM_STAT_QUEUED_ON_CPU);
	if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
		kick(cpu, SCX_KICK_IDLE);
	} else if ((enq_flags & SCX_ENQ_WAKEUP) && preempts(cpu, vtime, tctx->queued_since_ns)) {
		count(TANDEM_STAT_PREEMPTED);
		kick(cpu, SCX_KICK_PREEMPT);
	}
}

/* Virtual time of the first task in @dsq that may run on @cpu; false when there is none. */
static bool head_vtime(u64 dsq, s32 cpu, u64 *vtime)
{
	struct task_struct *p;
	u32 looked_at = 0;

	if (scx_bpf_dsq_nr_queued(dsq) <= 0)
		return false;
	bpf_for_each (scx_dsq, p, dsq, 0) {
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			*vtime = p->scx.dsq_vtime;
			return true;
		}
		if (++looked_at > LOOK_DEPTH)
			break;
	}
	return false;
}

/*
 * Whether @prev, whose slice is over, has still less virtual time than whatever
 * waits for @cpu. It is not in a queue itself, so without this comparison two
 * tasks would take turns whatever their weights.
 */
static bool goes_first(struct task_struct *prev, struct task_ctx *tctx, s32 cpu, u32 queue)
{
	u64 vtime = 0, mine;
	bool waits = false;

	account_run(prev, tctx);
	/* Nobody saves up: a weight worth more than one CPU gets that CPU, not more later. */
	mine = enter_queue(prev, tctx, queue,
			   is_pinned(prev) ? vtime_of_cpu(cpu) : vtime_of_queue(queue));
	if (head_vtime(shared_dsq(queue), cpu, &vtime)) {
		waits = true;
		if (!rules_vtime_before(mine, vtime))
			return false;
	}
	if (head_vtime(cpu_dsq(cpu), cpu, &vtime)) {
		waits = true;
		if (!rules_vtime_before(mine, vtime))
			return false;
	}
	return waits;
}

/* Takes the task with the least virtual time of those that wait in the queues that @cpu serves. */
static bool take_own(s32 cpu, u32 queue)
{
	u64 own = 0, shared = 0;
	bool own_first;

	if (!head_vtime(cpu_dsq(cpu), cpu, &own))
		return scx_bpf_dsq_move_to_local(shared_dsq(queue), 0);
	own_first =
		!head_vtime(shared_dsq(queue), cpu, &shared) || !rules_vtime_before(shared, own);
	if (own_first)
		return scx_bpf_dsq_move_to_local(cpu_dsq(cpu), 0) ||
		       scx_bpf_dsq_move_to_local(shared_dsq(queue), 0);
	return scx_bpf_dsq_move_to_local(shared_dsq(queue), 0) ||
	       scx_bpf_dsq_move_to_local(cpu_dsq(cpu), 0);
}

/* Takes a task from another queue of the same node: nothing there is far away. */
static bool take_nearby(u32 node, u32 queue)
{
	u32 queues = nr_queues_of(node), first = queue_of_node(node, 0), at;

	if (queues < 2)
		return false;
	bpf_for (at, 1, queues) {
		u32 other = first + (queue - first + at) % queues;

		if (scx_bpf_dsq_move_to_local(shared_dsq(other), 0)) {
			count(TANDEM_STAT_TAKEN_NEARBY);
			return true;
		}
	}
	return false;
}

/* Takes one task from a queue of the node @from to run it on @cpu, once it waited long enough. */
static bool steal_from(s32 cpu, u32 node, u32 from, u32 queue, u64 patience_ns)
{
	struct task_struct *p;
	u32 looked_at = 0;

	if (scx_bpf_dsq_nr_queued(shared_dsq(queue)) <= 0)
		return false;
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		struct task_ctx *tctx;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (!may_leave(tctx, from, node, patience_ns))
			continue;
		/* Fails when another CPU was faster. */
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0)) {
			count(TANDEM_STAT_STOLEN);
			return true;
		}
	}
	return false;
}

static bool steal(s32 cpu, u32 node, u64 patience_ns)
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

/*
 * Wakes the CPUs that serve @queue and run nothing of ours:
 * whoever queued the task may have found none, since a CPU that comes online, or
 * leaves another scheduling class, is not marked idle before it was idle once.
 */
static void wake_unused(u32 queue)
{
	u32 cpu;

	bpf_for (cpu, 0, nr_cpus) {
		if (queue_of_cpu(cpu) == queue && cpu_is_online[cpu_at(cpu)] &&
		    !running_tasks[cpu_at(cpu)].weight)
			kick(cpu, SCX_KICK_IDLE);
	}
}

/* Wakes an idle CPU for the first tasks of @queue whose wait exceeds its price somewhere. */
static void rescue_from(u32 queue)
{
	u32 home = node_of_queue(queue);
	struct task_struct *p;
	u32 looked_at = 0;

	if (scx_bpf_dsq_nr_queued(shared_dsq(queue)) <= 0)
		return;
	wake_unused(queue);
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

			if (!node_allowed(tctx, node) || !may_leave(tctx, home, node, 0))
				continue;
			cpu = pick_idle_on(p, node, 0);
			if (cpu < 0)
				continue;
			count(TANDEM_STAT_RESCUE_KICK);
			kick(cpu, SCX_KICK_IDLE);
			break;
		}
	}
}

/*
 * Sends on what waits on @queue and may run on none of its CPUs any more: to
 * the nearest node that may run it; else back to the CPU where it was, which is
 * leaving: the kernel finds another one for whatever that CPU picks.
 */
static void rehome(u32 queue)
{
	u32 home = node_of_queue(queue);
	struct task_struct *p;

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
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, vtime_seen_from(p, tctx, other));
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, shared_dsq(other), 0)) {
			tctx->vtime_queue = other;
			count(TANDEM_STAT_REHOMED);
		}
	}
}

static int look_after_queues(void *map, int *key, struct queue_timer *queue_timer)
{
	u32 at;

	bpf_for (at, 0, nr_queues) {
		if (nr_cpus_of_queue(at))
			rescue_from(at);
		else
			rehome(at);
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

/* The queues: of nodes or caches, of CPUs. Memory of each on the node that it serves. */
static s32 make_queues(void)
{
	u32 at;
	s32 err;

	bpf_for (at, 0, nr_queues) {
		err = scx_bpf_create_dsq(shared_dsq(at), kernel_node_id(node_of_queue(at)));
		if (err) {
			scx_bpf_error("queue %u: error %d", at, err);
			return err;
		}
	}
	bpf_for (at, 0, nr_cpus) {
		u32 node = node_of_cpu(at);

		if (!is_node(node))
			continue;
		err = scx_bpf_create_dsq(cpu_dsq(at), kernel_node_id(node));
		if (err) {
			scx_bpf_error("queue of CPU %u: error %d", at, err);
			return err;
		}
	}
	return 0;
}

/* Gives what waits for @cpu alone back to the kernel, which finds another CPU for it. */
static void empty_queue_of(s32 cpu)
{
	struct task_struct *p;

	bpf_for_each (scx_dsq, p, cpu_dsq(cpu), 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
}

#endif /* __TANDEM_QUEUE_BPF_H */
