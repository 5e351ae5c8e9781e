/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: one per node that has CPUs, or one per last-level cache; and one per
 * CPU for tasks that may run nowhere else. All are ordered by virtual time.
 *
 * A CPU serves its own queue and the one it shares, whichever has the task with
 * less virtual time. When both are empty it takes from the other queues of its
 * node, then from other nodes (steal.bpf.h). A task that wakes up and finds no
 * idle CPU displaces one that is ahead of it. What nobody looks at by itself the
 * timer looks after (timer.bpf.h).
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
	/* How long the kernel may take from looking for idle CPUs to inserting a task. */
	ARRIVAL_NS = 20000,
	/* Of signal 9 in the first word of a set of signals. */
	SIGKILL_BIT = 1 << 8,
};

/*
 * 0, but the verifier does not know: a counter that begins with it does not make
 * the verifier follow every round of a loop for itself.
 */
static volatile u32 unknown_zero;

/*
 * CPUs whose own queue got a task while they were not idle, as rounds of the timer in which they
 * are still looked at, and whether there are any: see wake_for_own().
 */
enum { OWN_ROUNDS = 2 };
static struct {
	u32 left;
} OWN_CACHE_LINE own_rounds[TANDEM_MAX_CPUS];
static u32 own_to_look_at;

/*
 * When a task was last put into a queue of each node while no CPU there was idle.
 * The kernel inserts a task only when its enqueueing is over, which may be a moment
 * after idle CPUs were looked for: a CPU that found the queues empty just before,
 * and was not marked idle yet, would sleep beside the task until the timer comes.
 * So a CPU that becomes idle looks again for as long as that may take.
 */
static struct {
	u64 ns;
} OWN_CACHE_LINE full_at[TANDEM_MAX_NODES];

/* Until when each CPU looks again. */
static struct {
	u64 ns;
} OWN_CACHE_LINE look_until[TANDEM_MAX_CPUS];

/* @cpu has just been marked idle: whoever queues a task from now on sees that. */
static void look_again_if_one_arrives(s32 cpu, u32 node)
{
	u64 until_ns = full_at[node_at(node)].ns + ARRIVAL_NS;

	if (bpf_ktime_get_ns() >= until_ns)
		return;
	look_until[cpu_at(cpu)].ns = until_ns;
	count(TANDEM_STAT_LOOKED_AGAIN);
	kick(cpu, SCX_KICK_IDLE);
}

/* @cpu is idle and found nothing. */
static void look_on(s32 cpu)
{
	if (bpf_ktime_get_ns() < look_until[cpu_at(cpu)].ns)
		kick(cpu, SCX_KICK_IDLE);
}

/*
 * Notes that a task waits for a CPU, if it does not already. Who takes it out of a queue to give it
 * another weight or other CPUs puts it back: the wait goes on, as it does for the kernel's
 * watchdog. Until now it may have waited for its group's next period, and for no CPU: to go to
 * another group it is taken out, too.
 */
static void note_waiting(struct task_ctx *tctx, u64 now)
{
	if (!tctx->queued_since_ns)
		tctx->waiting_since_ns = now;
	if (!tctx->queued_since_ns || !tctx->waits)
		tctx->queued_since_ns = now;
}

static u64 waited_ns(const struct task_ctx *tctx)
{
	u64 since = tctx->queued_since_ns;

	return since ? bpf_ktime_get_ns() - since : 0;
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

/* The slice of @p, which enters @dsq, which so many CPUs serve. */
static u64 slice_in(const struct task_struct *p, u32 dsq, u32 cpus)
{
	s32 queued = scx_bpf_dsq_nr_queued(dsq);

	/* As many tasks as wait there may be confined to as few CPUs as it is. */
	if (p->nr_cpus_allowed < cpus)
		cpus = p->nr_cpus_allowed;
	return rules_slice_ns(queued > 0 ? queued : 0, cpus, slice_ns);
}

static void queue_shared(struct task_struct *p, struct task_ctx *tctx, u32 queue, u64 enq_flags)
{
	u32 node = node_of_queue(queue);
	u64 vtime = enter_dsq(p, tctx, shared_dsq(queue));
	s32 cpu;

	/* Before it is inserted: from then on another CPU may run it. */
	note_waiting(tctx, bpf_ktime_get_ns());
	tctx->home_cpu_woken = false;
	tctx->waits = true;
	scx_bpf_dsq_insert_vtime(p, shared_dsq(queue),
				 slice_in(p, shared_dsq(queue), nr_cpus_of_queue(queue)), vtime,
				 enq_flags);
	count(TANDEM_STAT_QUEUED);
	cpu = pick_idle_near(p, node, queue, SCX_PICK_IDLE_CORE);
	if (cpu < 0)
		cpu = pick_idle_near(p, node, queue, 0);
	if (cpu < 0) {
		/* A CPU that became idle is found now, one that becomes idle later looks again. */
		__sync_lock_test_and_set(&full_at[node_at(node)].ns, bpf_ktime_get_ns());
		cpu = pick_idle_near(p, node, queue, 0);
	}
	if (cpu >= 0) {
		/* Too late if it was taken meanwhile; the next time it is queued resets it. */
		tctx->home_cpu_woken = true;
		kick(cpu, SCX_KICK_IDLE);
	} else if (enq_flags & SCX_ENQ_WAKEUP) {
		preempt_for(p, queue, vtime);
	}
}

/* Wakes @cpu, in whose own queue a task is put, or lets the timer look after it. */
static void wake_for_pinned(s32 cpu)
{
	if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
		kick(cpu, SCX_KICK_IDLE);
		return;
	}
	/* In this order, which the timer takes the other way round. */
	__sync_lock_test_and_set(&own_rounds[cpu_at(cpu)].left, OWN_ROUNDS);
	if (!own_to_look_at)
		own_to_look_at = 1;
}

/* Queues a task that may run on @cpu only. */
static void queue_on_cpu(struct task_struct *p, struct task_ctx *tctx, s32 cpu, u64 enq_flags)
{
	u64 vtime = enter_own(p, tctx, cpu), now = bpf_ktime_get_ns();

	/* An offline CPU serves no queue; the kernel moves on what is on the CPU itself. */
	if (!cpu_is_online[cpu_at(cpu)]) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	note_waiting(tctx, now);
	tctx->home_cpu_woken = false;
	tctx->waits = true;
	scx_bpf_dsq_insert_vtime(p, cpu_dsq(cpu), slice_in(p, cpu_dsq(cpu), 1), vtime, enq_flags);
	count(TANDEM_STAT_QUEUED_ON_CPU);
	wake_for_pinned(cpu);
	if ((enq_flags & SCX_ENQ_WAKEUP) && preempts(cpu, vtime + own_offset(cpu), now)) {
		count(TANDEM_STAT_PREEMPTED);
		kick(cpu, SCX_KICK_PREEMPT);
	}
}

/* Notes that @p begins to run without having waited, if it does: it was sent to an idle CPU. */
static void run_at_once(struct task_struct *p, struct task_ctx *tctx)
{
	u32 queue = claimed_queue(tctx->claimed);

	if (!tctx->ran && !tctx->waits && is_queue(queue) && !is_pinned(p))
		run_alone(p, tctx, shared_dsq(queue));
}

/* Whether anything is in one of the queues that @cpu serves. */
static bool somebody_waits(s32 cpu, u32 queue)
{
	return scx_bpf_dsq_nr_queued(cpu_dsq(cpu)) > 0 ||
	       scx_bpf_dsq_nr_queued(shared_dsq(queue)) > 0;
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
 * Where the shared queue of @cpu is for those that may run there only: where its first task for
 * that CPU is, at @head, if one @waits and is behind. Others may have taken the queue far ahead, on
 * CPUs that those which compete here may not use.
 */
static u64 shared_vtime_for(s32 cpu, bool waits, u64 head)
{
	u64 vtime = shared_vtime(cpu);

	return waits && rules_vtime_before(head, vtime) ? head : vtime;
}

/*
 * Whether @prev, whose slice is over, has still less virtual time than whatever
 * waits for @cpu. It is not in a queue itself, so without this comparison two
 * tasks would take turns whatever their weights.
 */
__noinline int goes_first(struct task_struct *prev __arg_trusted,
			  struct task_ctx *tctx __arg_nonnull, s32 cpu, u32 queue)
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
		offset = compare_own(cpu, first, shared_vtime_for(cpu, shared_waits, shared),
				     shared_waits || !pinned);
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
__noinline int take_own(s32 cpu, u32 queue, bool contended)
{
	u64 own = 0, shared = 0;
	bool shared_waits;

	if (!head_vtime(cpu_dsq(cpu), cpu, &own))
		return scx_bpf_dsq_move_to_local(shared_dsq(queue), 0);
	shared_waits = head_vtime(shared_dsq(queue), cpu, &shared);
	own += compare_own(cpu, own, shared_vtime_for(cpu, shared_waits, shared),
			   shared_waits || contended);
	if (!shared_waits || !rules_vtime_before(shared, own))
		return scx_bpf_dsq_move_to_local(cpu_dsq(cpu), 0) ||
		       scx_bpf_dsq_move_to_local(shared_dsq(queue), 0);
	return scx_bpf_dsq_move_to_local(shared_dsq(queue), 0) ||
	       scx_bpf_dsq_move_to_local(cpu_dsq(cpu), 0);
}

/* Takes a task from another queue of the same node: nothing there is far away. */
__noinline int take_nearby(u32 node, u32 queue)
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

/*
 * Moves @p, at which @it is in its queue, to @queue, or to its CPU's own if it may
 * run there only; false when it is not there any more.
 */
static bool move_to(struct bpf_iter_scx_dsq *it, struct task_struct *p, struct task_ctx *tctx,
		    u32 queue)
{
	u64 from = tctx->claimed;
	u32 dsq = dsq_of(p, scx_bpf_task_cpu(p), queue);

	scx_bpf_dsq_move_set_vtime(it, vtime_entering(p, tctx, dsq));
	if (!scx_bpf_dsq_move_vtime(it, p, dsq, 0))
		return false;
	tctx->vtime_dsq = dsq;
	tctx->waits = true;
	move_claim(tctx, from, queue);
	return true;
}

/*
 * Whether @p was killed or ends: who waits for its memory or its locks waits for it. The signal is
 * taken off it before it ends, which takes several slices if it has much memory.
 */
static bool is_ending(const struct task_struct *p)
{
	return (p->pending.signal.sig[0] & SIGKILL_BIT) | (p->flags & PF_EXITING);
}

/*
 * Whether @p has to wait for its control group's next period. It is made to by a tick that
 * interrupts its program: what waits within the kernel keeps its locks, and whoever starts or ends
 * a program of the same file, wherever it belongs to, would wait along.
 */
static bool must_wait(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->made_to_wait && is_throttled(tctx) && !is_ending(p);
}

/* At a tick: whether @p, which runs, is made to wait for its control group's next period. */
static bool is_made_to_wait(const struct task_struct *p, const struct task_ctx *tctx)
{
	return is_throttled(tctx) && !is_ending(p) && tick_interrupts_program();
}

/*
 * Queues a task of which nothing is known, as there was no memory for its context: at its CPU,
 * where the queue is now. It is not kept on the CPU itself, or two of them would keep others from
 * it.
 */
static void queue_unknown(struct task_struct *p, s32 cpu, u64 enq_flags)
{
	u32 queue = queue_of_cpu(cpu);
	u32 dsq = dsq_of(p, cpu, queue);

	if ((enq_flags & SCX_ENQ_WAKEUP) || !is_queue(queue) || !cpu_is_online[cpu_at(cpu)])
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
	else
		scx_bpf_dsq_insert_vtime(p, dsq, slice_ns, vtime_of(dsq), enq_flags);
}

/*
 * Lets @p wait if its control group has used up its quota. Not on a CPU that is leaving: the kernel
 * waits until nothing is there.
 */
static bool throttle(struct task_struct *p, struct task_ctx *tctx, u64 enq_flags)
{
	u64 until = tctx->made_to_wait ? throttled_until(tctx) : 0;

	if (!until || is_ending(p) || !cpu_is_online[cpu_at(scx_bpf_task_cpu(p))])
		return false;
	claim_nothing_while_throttled(tctx);
	note_waiting(tctx, bpf_ktime_get_ns());
	if (until < release_at_ns)
		release_at_ns = until;
	tctx->waits = false;
	count(TANDEM_STAT_THROTTLED);
	/* In the order of arrival: what orders it elsewhere stays as it is. */
	scx_bpf_dsq_insert(p, THROTTLED_DSQ, slice_ns, enq_flags);
	return true;
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

/*
 * Gives what waits for @cpu alone back to the kernel, which finds another CPU for it; and what
 * waits there for its control group's next period, which is queued anew where it goes on.
 */
static void empty_queues_of(s32 cpu)
{
	struct task_struct *p;

	bpf_for_each (scx_dsq, p, cpu_dsq(cpu), 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	bpf_for_each (scx_dsq, p, THROTTLED_DSQ, 0) {
		if (scx_bpf_task_cpu(p) == cpu)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
}

#endif /* __TANDEM_QUEUE_BPF_H */
