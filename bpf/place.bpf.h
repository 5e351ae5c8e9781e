/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: which of its home's queues a task belongs to, and which idle CPU
 * it gets.
 *
 * At home (home.bpf.h) a task stays with the last-level cache where it ran
 * last, until more tasks claim it than it has CPUs. Where new tasks start is in
 * start.bpf.h.
 */
#ifndef __TANDEM_PLACE_BPF_H
#define __TANDEM_PLACE_BPF_H

#include "home.bpf.h"
#include "memory.bpf.h"

/* Priorities below are of deadline and real-time threads, as in the kernel. */
#define MAX_RT_PRIO 100

/*
 * Runnable tasks by the queue they belong to, wherever they are: as long as no
 * more tasks claim a node than it has CPUs, each of them has a right to one of
 * these.
 */
static struct {
	s32 nr;
	/* What they count for: see rules_load(). */
	s32 load;
} OWN_CACHE_LINE claims_of[TANDEM_MAX_QUEUES];

/* A claim on @queue that counts for @load, in one word. */
static __always_inline u64 claim_word(u32 queue, u32 load)
{
	return (u64)load << 32 | queue;
}

#define NO_CLAIM ((u64)TANDEM_NO_QUEUE)
/*
 * None either, while it waits for its group's next period. A word of its own, so that whoever
 * moves it from there sees whether it went on meanwhile, though it sleeps or ended by then.
 */
#define THROTTLED_CLAIM (1ULL << 32 | TANDEM_NO_QUEUE)

static __always_inline u32 claimed_queue(u64 word)
{
	return (u32)word;
}

static __always_inline u32 claimed_load(u64 word)
{
	return word >> 32;
}

static void count_claim(u64 from, u64 to)
{
	u32 from_queue = claimed_queue(from), to_queue = claimed_queue(to);

	if (from_queue != TANDEM_NO_QUEUE) {
		__sync_fetch_and_sub(&claims_of[queue_at(from_queue)].nr, 1);
		__sync_fetch_and_sub(&claims_of[queue_at(from_queue)].load, claimed_load(from));
	}
	if (to_queue != TANDEM_NO_QUEUE) {
		__sync_fetch_and_add(&claims_of[queue_at(to_queue)].nr, 1);
		__sync_fetch_and_add(&claims_of[queue_at(to_queue)].load, claimed_load(to));
	}
}

/* Lets a task claim @queue. In one step: the timer may be moving the task meanwhile. */
static void claim(struct task_ctx *tctx, u32 queue)
{
	u64 word =
		queue == TANDEM_NO_QUEUE ? NO_CLAIM : claim_word(queue, rules_load(tctx->weight));

	if (tctx->claimed != word)
		count_claim(__sync_lock_test_and_set(&tctx->claimed, word), word);
}

static void claim_nothing_while_throttled(struct task_ctx *tctx)
{
	count_claim(__sync_lock_test_and_set(&tctx->claimed, THROTTLED_CLAIM), THROTTLED_CLAIM);
}

/*
 * Lets a task that was moved while it claimed @from claim the queue @to as much, or what is its
 * due if it claimed none, unless it went on meanwhile.
 */
static void move_claim(struct task_ctx *tctx, u64 from, u32 to)
{
	bool none = claimed_queue(from) == TANDEM_NO_QUEUE;
	u64 word = claim_word(to, none ? rules_load(tctx->weight) : claimed_load(from));

	if (__sync_bool_compare_and_swap(&tctx->claimed, from, word))
		count_claim(from, word);
}

/*
 * A function that is not static is verified once, for any arguments, instead of
 * wherever it is called. It takes numbers, a task or its context. The verifier of
 * 6.18 takes it for one of the program that is loaded, which may sleep, so what
 * reads what RCU keeps says so, though it may be called by readers only.
 */
__noinline int nr_claims_of(u32 node)
{
	s32 claims = 0;
	u32 at;

	bpf_for (at, 0, nr_queues_of(node))
		claims += claims_of[queue_at(queue_of_node(node, at))].nr;
	return claims;
}

/* What the claims on @node count for. */
__noinline int load_of(u32 node)
{
	s32 load = 0;
	u32 at;

	bpf_for (at, 0, nr_queues_of(node))
		load += claims_of[queue_at(queue_of_node(node, at))].load;
	return load;
}

static s32 room_on(u32 node)
{
	return rules_room(nr_claims_of(node), load_of(node), nr_cpus_of(node));
}

/*
 * Whether a task would have more of a CPU on @to than it has on @from, which has none to spare: one
 * that nobody claims, whatever the others weigh, or a larger share of one.
 */
static bool is_less_crowded(const struct task_ctx *tctx, u32 to, u32 from)
{
	return room_on(to) > 0 ||
	       rules_is_less_crowded(load_of(to), nr_cpus_of(to), load_of(from), nr_cpus_of(from),
				     claimed_load(tctx->claimed));
}

static bool is_overfull(u32 node)
{
	return rules_overfull(nr_claims_of(node), nr_cpus_of(node));
}

/* Room on @queue, which has @cpus, beside others than the task of @tctx. */
static s32 room_beside_others(const struct task_ctx *tctx, u32 queue, u32 cpus)
{
	s32 claims = claims_of[queue_at(queue)].nr, load = claims_of[queue_at(queue)].load;
	u64 own = tctx->claimed;

	if (claimed_queue(own) == queue) {
		claims--;
		load -= claimed_load(own);
	}
	return rules_room(claims, load, cpus);
}

/* Of several queues of @node: see queue_at_home(). */
__noinline u32 roomiest_queue(const struct task_struct *p __arg_trusted,
			      const struct task_ctx *tctx __arg_nonnull, u32 node)
{
	u32 best = TANDEM_NO_QUEUE;
	s32 best_room = 0;
	u32 at;

	bpf_rcu_read_lock();
	bpf_for (at, 0, nr_queues_of(node)) {
		u32 queue = queue_of_node(node, at);
		u32 cpus = nr_cpus_of_queue(queue);
		s32 room = room_beside_others(tctx, queue, cpus);

		if (!cpus || !queue_allowed(queue, p->cpus_ptr))
			continue;
		if (queue == tctx->last_queue && room > 0) {
			best = queue;
			break;
		}
		if (best == TANDEM_NO_QUEUE || room > best_room ||
		    (room == best_room && queue == tctx->last_queue)) {
			best = queue;
			best_room = room;
		}
	}
	bpf_rcu_read_unlock();
	return best;
}

/*
 * The queue of @node that @p belongs to: that of the cache where it ran last
 * while there is room, else the one with the most room. TANDEM_NO_QUEUE when no
 * CPU of the node may run it.
 */
static u32 queue_at_home(const struct task_struct *p, const struct task_ctx *tctx, u32 node)
{
	if (!nr_cpus_of(node))
		return TANDEM_NO_QUEUE;
	if (nr_queues_of(node) == 1)
		return node_allowed(tctx, node) ? queue_of_node(node, 0) : TANDEM_NO_QUEUE;
	return roomiest_queue(p, tctx, node);
}

/* The node with the most room of those in @allowed, a bit each; @home before others of the same. */
__noinline u32 roomiest_node(u32 allowed, u32 home)
{
	u32 best = home, rank;
	s32 best_room = room_on(home);

	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);
		s32 room = room_on(node);

		if (in_nodes(allowed, node) && room > best_room) {
			best = node;
			best_room = room;
		}
	}
	return best;
}

/* The kernel's own account of what this CPU is in the midst of, with a bit for softirqs. */
extern const int __preempt_count __ksym __weak;
#define SERVING_SOFTIRQ 0x100

/*
 * The task that wakes another one and is about to sleep, as the kernel expects (SCX_WAKE_SYNC);
 * NULL without one. Not one of the kernel's, which wakes others on behalf of interrupts; nor
 * whoever works for long when an interrupt hits it that brings what the woken one waits for.
 * Sockets of this machine wake from the same code, on behalf of the task that sends: that one slept
 * not long ago itself.
 */
static struct task_struct *sync_waker(u64 wake_flags)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_ctx *tctx;

	if (!(wake_flags & SCX_WAKE_SYNC) || (waker->flags & PF_KTHREAD))
		return NULL;
	if (!bpf_ksym_exists(&__preempt_count) ||
	    !(*(int *)bpf_this_cpu_ptr(&__preempt_count) & SERVING_SOFTIRQ))
		return waker;
	tctx = task_ctx_of(waker);
	return tctx && bpf_ktime_get_ns() - tctx->awake_since_ns < slice_ns ? waker : NULL;
}

/*
 * The home of a task that is woken, @home so far: that of the task which mostly wakes it, if that
 * is at home here and about to sleep, and so leaves room. What both write would travel between the
 * nodes each time.
 */
static u32 home_with_partner(struct task_ctx *tctx, u32 home, struct task_struct *waker)
{
	u32 node = node_of_cpu(bpf_get_smp_processor_id());
	struct task_ctx *partner;

	note_waker(tctx, waker->pid);
	if (!rules_is_partner(tctx->partner_votes) || node == home || !node_allowed(tctx, node) ||
	    room_on(node) < 0 || assigned_node(tctx) != TANDEM_NO_NODE)
		return home;
	partner = task_ctx_of(waker);
	if (!partner || partner->home != node)
		return home;
	make_home(tctx, node, RULES_FIRM_BOND_NS);
	count(TANDEM_STAT_FOLLOWED);
	return node;
}

/* What @p must have waited before @node takes it away from @home. */
static u64 price_of(const struct task_struct *p, struct task_ctx *tctx, u32 home, u32 node)
{
	if (assigned_node(tctx) == TANDEM_NO_NODE || !nr_cpus_of(home))
		return 0;
	return rules_price_ns(migration_price_ns[pair_at(home, node)], resident_pages(p));
}

static s32 pick_idle_on(struct task_struct *p, u32 node, u64 flags)
{
	return scx_bpf_pick_idle_cpu_node(p->cpus_ptr, kernel_node_id(node),
					  flags | SCX_PICK_IDLE_IN_NODE);
}

/* Whether all threads of @cpu's core are idle. */
static bool core_is_idle(s32 cpu, u32 node)
{
	const struct cpumask *cores = scx_bpf_get_idle_smtmask_node(kernel_node_id(node));
	bool idle = bpf_cpumask_test_cpu(cpu, cores);

	scx_bpf_put_idle_cpumask(cores);
	return idle;
}

/* An idle CPU that serves @queue, on @node. */
static s32 pick_idle_of_queue(struct task_struct *p, u32 node, u32 queue, u64 flags)
{
	struct cpu_mask *of_queue = bpf_map_lookup_elem(&queue_masks, &queue);
	struct bpf_cpumask *cpus, *mine;
	struct cpu_mask *own;
	u32 zero = 0;

	own = bpf_map_lookup_elem(&own_masks, &zero);
	cpus = of_queue ? of_queue->cpus : NULL;
	mine = own ? own->cpus : NULL;
	if (!cpus || !mine || !bpf_cpumask_and(mine, p->cpus_ptr, cast_mask(cpus)))
		return -EBUSY;
	return scx_bpf_pick_idle_cpu_node(cast_mask(mine), kernel_node_id(node),
					  flags | SCX_PICK_IDLE_IN_NODE);
}

/* An idle CPU of @node, rather one that serves @queue. */
__noinline int pick_idle_near(struct task_struct *p __arg_trusted, u32 node, u32 queue, u64 flags)
{
	s32 cpu = -EBUSY;

	if (nr_queues_of(node) > 1 && is_queue(queue))
		cpu = pick_idle_of_queue(p, node, queue, flags);
	return cpu >= 0 ? cpu : pick_idle_on(p, node, flags);
}

/*
 * An idle CPU at @home: the previous one if its core is idle, any whole idle
 * core, the previous one, any; each rather below the cache of @queue. Claims the
 * CPU; negative when none is idle.
 */
__noinline int pick_idle_home(struct task_struct *p __arg_trusted, u32 home, u32 queue,
			      s32 prev_cpu)
{
	bool prev_is_home = queue_of_cpu(prev_cpu) == queue && node_of_cpu(prev_cpu) == home &&
			    bpf_cpumask_test_cpu(prev_cpu, p->cpus_ptr);
	s32 cpu;

	if (prev_is_home && core_is_idle(prev_cpu, home) &&
	    scx_bpf_test_and_clear_cpu_idle(prev_cpu)) {
		count(TANDEM_STAT_IDLE_PREV);
		return prev_cpu;
	}
	cpu = pick_idle_near(p, home, queue, SCX_PICK_IDLE_CORE);
	if (cpu < 0 && prev_is_home && scx_bpf_test_and_clear_cpu_idle(prev_cpu)) {
		count(TANDEM_STAT_IDLE_PREV);
		return prev_cpu;
	}
	if (cpu < 0)
		cpu = pick_idle_near(p, home, queue, 0);
	if (cpu >= 0)
		count(TANDEM_STAT_IDLE_HOME);
	return cpu;
}

/* Of a deadline or real-time thread, for which all of ours have to wait. */
static bool is_of_higher_class(const struct task_struct *p)
{
	return p->prio < MAX_RT_PRIO;
}

/*
 * The CPU of @waker, which wakes @p and is about to sleep, if it belongs to @home
 * and nothing else waits there: what they share is in its cache. That it is about
 * to sleep is no promise: a real-time thread that goes on would keep @p waiting.
 */
static s32 waker_cpu(struct task_struct *p, u32 home, const struct task_struct *waker)
{
	s32 cpu = bpf_get_smp_processor_id();

	if (node_of_cpu(cpu) != home || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ||
	    is_of_higher_class(waker))
		return -EBUSY;
	if (scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu) > 0 ||
	    scx_bpf_dsq_nr_queued(cpu_dsq(cpu)) > 0 ||
	    scx_bpf_dsq_nr_queued(shared_dsq(queue_of_cpu(cpu))) > 0)
		return -EBUSY;
	count(TANDEM_STAT_WAKER_CPU);
	return cpu;
}

/* What a newcomer to the queues of @node should expect to wait. */
__noinline u64 expected_wait_ns(u32 node)
{
	u32 queued = 0, at;

	bpf_for (at, 0, nr_queues_of(node)) {
		s32 here = scx_bpf_dsq_nr_queued(shared_dsq(queue_of_node(node, at)));

		if (here > 0)
			queued += here;
	}
	return rules_expected_wait_ns(queued, nr_cpus_of(node), slice_ns);
}

/* An idle CPU on the nearest node where running costs less than waiting at home. */
__noinline int pick_idle_remote(struct task_struct *p __arg_trusted,
				struct task_ctx *tctx __arg_nonnull, u32 home)
{
	u64 wait_ns = expected_wait_ns(home);
	u32 rank;

	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);
		s32 cpu;

		if (!node_allowed(tctx, node) || wait_ns <= price_of(p, tctx, home, node))
			continue;
		cpu = pick_idle_on(p, node, 0);
		if (cpu >= 0) {
			count(TANDEM_STAT_IDLE_REMOTE);
			return cpu;
		}
	}
	return -EBUSY;
}

#endif /* __TANDEM_PLACE_BPF_H */
