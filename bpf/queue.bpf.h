/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: one per node that has CPUs, or one per last-level cache; and one per
 * CPU for tasks that may run nowhere else. All are ordered by virtual time.
 *
 * A CPU serves its own queue and the one it shares, whichever has the task with
 * less virtual time. When both are empty it takes from the other queues of its
 * node, then from other nodes, nearest first, tasks that have waited longer
 * than the price of running away from home. An idle CPU does not look again by
 * itself, so a timer wakes one when a wait exceeds its price. It also evens out
 * how many share a CPU, lets those go first that wait for too long, and sends on
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

/*
 * 0, but the verifier does not know: a counter that begins with it does not make
 * the verifier follow every round of a loop for itself.
 */
static volatile u32 unknown_zero;

/* How often the queues are searched for tasks that wait for too long. */
#define RELIEVE_INTERVAL_NS (500 * 1000 * 1000ULL)

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
	u64 vtime = enter_dsq(p, tctx, shared_dsq(queue));
	s32 cpu;

	/* Before it is inserted: from then on another CPU may run it. */
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = false;
	tctx->waits = true;
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

/* Queues a task that may run on @cpu only. */
static void queue_on_cpu(struct task_struct *p, struct task_ctx *tctx, s32 cpu, u64 enq_flags)
{
	u64 vtime = enter_own(p, tctx, cpu);

	/* An offline CPU serves no queue; the kernel moves on what is on the CPU itself. */
	if (!cpu_is_online[cpu_at(cpu)]) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	tctx->queued_since_ns = bpf_ktime_get_ns();
	tctx->home_cpu_woken = false;
	tctx->waits = true;
	scx_bpf_dsq_insert_vtime(p, cpu_dsq(cpu), slice_ns, vtime, enq_flags);
	count(TANDEM_STAT_QUEUED_ON_CPU);
	if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
		kick(cpu, SCX_KICK_IDLE);
	} else if ((enq_flags & SCX_ENQ_WAKEUP) &&
		   preempts(cpu, vtime + own_offset(cpu), tctx->queued_since_ns)) {
		count(TANDEM_STAT_PREEMPTED);
		kick(cpu, SCX_KICK_PREEMPT);
	}
}

/* Virtual time of the first task in @dsq that may run on @cpu; false when there is none. */
static bool head_vtime(u64 dsq, s32 cpu, u64 *vtime)
{
	struct task_struct *p;
	u32 looked_at = unknown_zero;

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
	bool own_waits, shared_waits, pinned = is_pinned(prev);
	u64 mine, first, offset, own = 0, shared = 0;

	account_run(prev, tctx);
	/* Nobody saves up: a weight worth more than one CPU gets that CPU, not more later. */
	mine = pinned ? enter_own(prev, tctx, cpu) : enter_dsq(prev, tctx, shared_dsq(queue));
	own_waits = head_vtime(cpu_dsq(cpu), cpu, &own);
	shared_waits = head_vtime(shared_dsq(queue), cpu, &shared);
	if (!own_waits && !shared_waits)
		return false;
	if (pinned || own_waits) {
		first = pinned && (!own_waits || rules_vtime_before(mine, own)) ? mine : own;
		offset = compare_own(cpu, first, shared_waits || !pinned);
		own += offset;
		mine += pinned ? offset : 0;
	}
	return (!own_waits || rules_vtime_before(mine, own)) &&
	       (!shared_waits || rules_vtime_before(mine, shared));
}

/*
 * Takes the task with the least virtual time of those that wait in the queues
 * that @cpu serves. @contended: one of the shared queue runs on @cpu and could
 * go on.
 */
static bool take_own(s32 cpu, u32 queue, bool contended)
{
	u64 own = 0, shared = 0;
	bool shared_waits;

	if (!head_vtime(cpu_dsq(cpu), cpu, &own))
		return scx_bpf_dsq_move_to_local(shared_dsq(queue), 0);
	shared_waits = head_vtime(shared_dsq(queue), cpu, &shared);
	own += compare_own(cpu, own, shared_waits || contended);
	if (!shared_waits || !rules_vtime_before(shared, own))
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
	u32 looked_at = unknown_zero;

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

__noinline int steal(s32 cpu, u32 node, u64 patience_ns)
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
__noinline int wake_unused(u32 queue)
{
	u32 cpu;

	bpf_for (cpu, 0, nr_cpus) {
		if (queue_of_cpu(cpu) == queue && cpu_is_online[cpu_at(cpu)] &&
		    !running_tasks[cpu_at(cpu)].weight)
			kick(cpu, SCX_KICK_IDLE);
	}
	return 0;
}

/* Wakes an idle CPU for the first tasks of @queue whose wait exceeds its price somewhere. */
static void rescue_from(u32 queue)
{
	u32 home = node_of_queue(queue);
	struct task_struct *p;
	u32 looked_at = unknown_zero;

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
 * Moves @p, at which @it is in its queue, to @queue, or to its CPU's own if it may
 * run there only; false when it is not there any more.
 */
static bool move_to(struct bpf_iter_scx_dsq *it, struct task_struct *p, struct task_ctx *tctx,
		    u32 queue)
{
	u32 from = tctx->claimed, dsq = dsq_of(p, scx_bpf_task_cpu(p), queue);

	scx_bpf_dsq_move_set_vtime(
		it, rules_vtime_entering(vtime_seen_from(p, tctx, dsq), vtime_of(dsq), slice_ns));
	if (!scx_bpf_dsq_move_vtime(it, p, dsq, 0))
		return false;
	tctx->vtime_dsq = dsq;
	tctx->waits = true;
	move_claim(tctx, from, queue);
	return true;
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
		if (move_to(BPF_FOR_EACH_ITER, p, tctx, other))
			count(TANDEM_STAT_REHOMED);
	}
}

/*
 * Sends a task that waits on @queue to the node where the fewest share a CPU, if
 * it would get more of one there than here: the first that nobody assigned and
 * that waited for a slice. One at a time, since every move changes what is
 * crowded. What is assigned stays where the agent wants it until it waited for
 * its price.
 */
static void send_to_less_crowded(u32 queue)
{
	u32 home = node_of_queue(queue), looked_at = unknown_zero;
	struct task_struct *p;

	if (!is_overfull(home))
		return;
	bpf_for_each (scx_dsq, p, shared_dsq(queue), 0) {
		struct task_ctx *tctx;
		u32 node, other;

		if (++looked_at > LOOK_DEPTH)
			break;
		tctx = task_ctx_of(p);
		if (!tctx || waited_ns(tctx) < slice_ns || assigned_node(tctx) != TANDEM_NO_NODE)
			continue;
		node = roomiest_node(tctx->allowed_nodes, home);
		if (node == home || !is_less_crowded(node, home))
			continue;
		other = queue_at_home(p, tctx, node);
		if (!is_queue(other) || !move_to(BPF_FOR_EACH_ITER, p, tctx, other))
			continue;
		count(TANDEM_STAT_BALANCED);
		return;
	}
}

/*
 * Looks after one queue. Timers are readers of RCU, but the verifier of 6.18
 * takes a function that is not static for one of the program that started them,
 * which may sleep.
 */
__noinline int look_after(u32 queue)
{
	bpf_rcu_read_lock();
	if (nr_cpus_of_queue(queue)) {
		rescue_from(queue);
		send_to_less_crowded(queue);
	} else {
		rehome(queue);
	}
	bpf_rcu_read_unlock();
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

/* Lets @p wait if its control group has used up its quota. */
static bool throttle(struct task_struct *p, struct task_ctx *tctx, u64 enq_flags)
{
	u64 now = bpf_ktime_get_ns();

	if (!throttled_until(tctx, now))
		return false;
	claim(tctx, TANDEM_NO_QUEUE);
	tctx->queued_since_ns = now;
	tctx->waits = false;
	count(TANDEM_STAT_THROTTLED);
	/* In the order of arrival: what orders it elsewhere stays as it is. */
	scx_bpf_dsq_insert(p, THROTTLED_DSQ, slice_ns, enq_flags);
	return true;
}

/* Brings back those whose control group may go on. */
__noinline int release_throttled(void)
{
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(THROTTLED_DSQ) <= 0)
		return 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, THROTTLED_DSQ, 0) {
		struct task_ctx *tctx = task_ctx_of(p);
		s32 cpu = scx_bpf_task_cpu(p);
		u32 queue;

		if (!tctx || (throttled_until(tctx, now) && waited_ns(tctx) < MAX_THROTTLED_NS))
			continue;
		queue = is_pinned(p) ? queue_of_cpu(cpu)
				     : queue_at_home(p, tctx, home_of(p, tctx, cpu));
		if (!is_queue(queue)) {
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
			continue;
		}
		if (move_to(BPF_FOR_EACH_ITER, p, tctx, queue))
			wake_unused(queue);
	}
	bpf_rcu_read_unlock();
	return 0;
}

static int look_after_queues(void *map, int *key, struct queue_timer *queue_timer)
{
	u32 at;

	bpf_for (at, 0, nr_queues)
		look_after(at);
	release_throttled();
	if (relieve_now()) {
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
	return scx_bpf_create_dsq(THROTTLED_DSQ, NUMA_NO_NODE);
}

/* Gives what waits for @cpu alone back to the kernel, which finds another CPU for it. */
static void empty_queue_of(s32 cpu)
{
	struct task_struct *p;

	bpf_for_each (scx_dsq, p, cpu_dsq(cpu), 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
}

#endif /* __TANDEM_QUEUE_BPF_H */
