/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The scheduler's arithmetic: virtual time, waiting, leases. Nothing here looks
 * at a task, a map or a clock, so that it compiles outside of the kernel too,
 * where tests/rules holds it against simple models.
 */
#ifndef __TANDEM_RULES_H
#define __TANDEM_RULES_H

#include "intf.h"

/*
 * Weights that order tasks are in parts of the kernel's, since little of one may be left to a task
 * of a deep hierarchy of groups.
 */
#define RULES_WEIGHT_PARTS 1024

/* Weight of a task of nice 0. */
#define RULES_BASE_WEIGHT (100 * RULES_WEIGHT_PARTS)

/* The weight of a task of the root group, from what the kernel says. */
static inline u32 rules_weight(u32 kernel_weight)
{
	return (kernel_weight ? kernel_weight : 1) * RULES_WEIGHT_PARTS;
}

/*
 * What is left of @weight, of a task or a group, in a group of @group_weight whose runnable members
 * weigh @active together, both as the kernel says. A sum that is being changed may be less than its
 * parts: nobody gets more than all of the group.
 */
static inline u32 rules_weight_in_group(u64 weight, u32 group_weight, long long active)
{
	u64 all = (u64)group_weight * RULES_WEIGHT_PARTS;
	u64 left = active > 0 ? weight * group_weight / active : all;

	if (left > all)
		left = all;
	return left ? left : 1;
}

/* Virtual time wraps around; what is compared is never half a range apart. */
static inline bool rules_vtime_before(u64 a, u64 b)
{
	return (long long)(a - b) < 0;
}

/* Virtual time of a task that goes from a queue that is at @from to one at @to: its lag stays. */
static inline u64 rules_vtime_moved(u64 vtime, u64 from, u64 to)
{
	return to + (vtime - from);
}

/* What a task that ran since it slept may be behind its queue, in slices. */
#define RULES_CREDIT_SLICES 32

/*
 * What a task of @weight may be behind the queue that it enters: a slice after it slept, more if it
 * only @ran. CPUs whose slices end at the same moment do not see what the other one just stopped
 * running: one of little weight is taken too early then, which takes the queue ahead by all that it
 * runs. Who is behind for that must not lose it. Bounded in what it is worth to the task, because a
 * weight worth more than a CPU gets that CPU, not more later.
 */
static inline u64 rules_credit_ns(bool ran, u32 weight, u64 slice_ns)
{
	u64 most = RULES_CREDIT_SLICES * slice_ns, credit;

	if (!ran)
		return slice_ns;
	credit = most * RULES_BASE_WEIGHT / (weight ? weight : 1);
	if (credit < slice_ns)
		return slice_ns;
	return credit < most ? credit : most;
}

/* Virtual time with which a task enters a queue that is at @now: it keeps at most @credit_ns. */
static inline u64 rules_vtime_entering(u64 vtime, u64 now, u64 credit_ns)
{
	return rules_vtime_before(vtime, now - credit_ns) ? now - credit_ns : vtime;
}

/*
 * Virtual time of a task that runs although its queue is at @now and nobody
 * waits there: it owes nothing to others but the slice of @slice_ns that it
 * just had. Else whoever was alone on a CPU for long would wait for as long
 * once it has to share.
 */
static inline u64 rules_vtime_alone(u64 vtime, u64 now, u64 slice_ns, u32 weight)
{
	u64 limit = now + slice_ns * RULES_BASE_WEIGHT / (weight ? weight : 1);

	return rules_vtime_before(limit, vtime) ? limit : vtime;
}

/* Virtual time after running for @ran_ns: as fast as time at nice 0, slower the more weight. */
static inline u64 rules_vtime_after(u64 vtime, u64 ran_ns, u32 weight)
{
	return vtime + ran_ns * RULES_BASE_WEIGHT / (weight ? weight : 1);
}

/*
 * What is to be added to virtual time of a CPU's own queue, whose first task is at @first, to
 * compare it with the queue that the CPU shares, which is at @shared; @offset is what was added
 * before. Who may run on one CPU only falls behind for good where a CPU has too many of them, and
 * gets ahead while nobody else waits: neither may count for more than a moment once they compete.
 * So the first is at most @credit_ns behind, and not ahead unless somebody waits in the other.
 */
static inline u64 rules_own_offset(u64 offset, u64 first, u64 shared, bool contended, u64 credit_ns)
{
	if (rules_vtime_before(first + offset, shared - credit_ns))
		return shared - credit_ns - first;
	if (!contended && rules_vtime_before(shared, first + offset))
		return shared - first;
	return offset;
}

/* Where a CPU's own queue is that was at @own: it goes on with the shared one while it is not used.
 */
static inline u64 rules_own_vtime(u64 own, u64 shared, u64 offset)
{
	return rules_vtime_before(own, shared - offset) ? shared - offset : own;
}

/*
 * Nobody waits for longer, whatever the weights: by weights alone a task of nice 19 beside one of
 * nice -20 would run every 40 s, and the kernel ejects a scheduler that lets one wait for half of
 * that.
 */
#define RULES_MAX_WAIT_NS (2000 * 1000 * 1000ULL)

/* Tasks for each CPU up to which slices are whole, and the least slice. */
#define RULES_MOST_SLICES 1000
#define RULES_LEAST_SLICE_NS (200 * 1000ULL)

/*
 * The slice of a task that is queued behind @queued others which @cpus share. With very many of
 * them it is shorter, so that each gets its turn well before the kernel ejects the scheduler.
 */
static inline u64 rules_slice_ns(u32 queued, u32 cpus, u64 slice_ns)
{
	u64 whole = (u64)cpus * RULES_MOST_SLICES, least;

	if (queued <= whole || !cpus)
		return slice_ns;
	least = slice_ns < RULES_LEAST_SLICE_NS ? slice_ns : RULES_LEAST_SLICE_NS;
	return slice_ns * whole / queued > least ? slice_ns * whole / queued : least;
}

/* Whether a task that has waited for @waited_ns goes before all others. */
static inline bool rules_is_starving(u64 waited_ns)
{
	return waited_ns >= RULES_MAX_WAIT_NS;
}

/*
 * Virtual time before all others in a queue that is at @now, those that keep a credit included,
 * also when they are compared with a CPU's own queue.
 */
static inline u64 rules_vtime_first(u64 now, u64 slice_ns)
{
	return now - (RULES_CREDIT_SLICES + 2) * slice_ns;
}

/* Whether @vtime in a queue that is at @now is one that was given to go before all others. */
static inline bool rules_is_first(u64 vtime, u64 now, u64 slice_ns)
{
	return rules_vtime_before(vtime, now - (RULES_CREDIT_SLICES + 1) * slice_ns);
}

/*
 * What a group has left that had @left_ns (negative: used in excess) after as many periods with
 * @quota_ns each: at most one quota and @burst_ns.
 */
static inline long long rules_refilled(long long left_ns, u64 quota_ns, u64 burst_ns, u64 periods)
{
	long long most = quota_ns + burst_ns;

	/* So many that no sum of them overflows: all debts are paid. */
	if (periods > (1ULL << 20))
		return most;
	left_ns += (long long)(periods * quota_ns);
	return left_ns < most ? left_ns : most;
}

/* What a newcomer should expect to wait behind @queued tasks that @cpus share. */
static inline u64 rules_expected_wait_ns(u32 queued, u32 cpus, u64 slice_ns)
{
	return cpus ? (queued + 1ULL) * slice_ns / cpus : ~0ULL;
}

/*
 * Resident pages, 32 MiB of them, from which on running away from home costs the whole price of the
 * distance: no cache holds as much of one task.
 */
#define RULES_FAR_PAGES 8192

/*
 * What running away from home costs a task of so many resident pages, where @price_ns is the price
 * of the distance: less memory is sooner in the caches over there, but fetched once in any case, so
 * half of the price stays.
 */
static inline u64 rules_price_ns(u64 price_ns, u64 pages)
{
	u64 half = price_ns / 2;

	if (pages >= RULES_FAR_PAGES)
		return price_ns;
	return half + (price_ns - half) * pages / RULES_FAR_PAGES;
}

/*
 * How firmly a task belongs to its home: what it ran there less what it ran elsewhere, up to this.
 * It belongs elsewhere once nothing is left: at once if it is new, as its memory is not there yet.
 */
#define RULES_FIRM_BOND_NS (50 * 1000 * 1000ULL)

static inline u64 rules_bond(u64 bond_ns, u64 ran_ns, bool at_home)
{
	if (!at_home)
		return bond_ns > ran_ns ? bond_ns - ran_ns : 0;
	return bond_ns + ran_ns < RULES_FIRM_BOND_NS ? bond_ns + ran_ns : RULES_FIRM_BOND_NS;
}

/*
 * Whether a task that ran for so long is new: nothing of what it works on is anywhere yet. Bound
 * elsewhere it belongs there, as firmly as one that started at its parent's home does here.
 */
#define RULES_NEW_NS (10 * 1000 * 1000ULL)

static inline bool rules_is_new(u64 ran_ns)
{
	return ran_ns < RULES_NEW_NS;
}

/* Wake-ups by one task, less those by others, from which on it is a partner; and as many count. */
#define RULES_PARTNER_VOTES 8
#define RULES_MOST_VOTES 16

/* What is left of @votes for who mostly wakes a task after a wake-up, by the @same or another. */
static inline u32 rules_votes(u32 votes, bool same)
{
	if (!same)
		return votes ? votes - 1 : 0;
	return votes < RULES_MOST_VOTES ? votes + 1 : votes;
}

static inline bool rules_is_partner(u32 votes)
{
	return votes >= RULES_PARTNER_VOTES;
}

/*
 * What an idle CPU may take to answer a wake-up. Without this time a CPU of another node that just
 * went idle would be faster, and tasks would drift between nodes for nothing.
 */
#define RULES_WAKE_UP_NS (1000 * 1000ULL)

/*
 * Whether a CPU of another node may take a task that has waited @waited_ns at home: longer, by
 * @patience_ns, than running away from home costs, and if an idle CPU of home was woken for it,
 * long enough for that one to come.
 */
static inline bool rules_may_leave(u64 waited_ns, u64 price_ns, u64 patience_ns,
				   bool home_cpu_woken)
{
	return waited_ns >= price_ns + patience_ns &&
	       (!home_cpu_woken || waited_ns >= RULES_WAKE_UP_NS);
}

/* Whether more tasks claim a node or a queue than it has CPUs. */
static inline bool rules_overfull(s32 claims, u32 cpus)
{
	return claims > (s32)cpus;
}

/*
 * Tasks that claim a node while a process makes its threads, and will not in a moment: the thread
 * that makes them, and one that looks at them.
 */
#define RULES_START_SURPLUS 2

/* Whether a new thread starts where its parent is at home, which so many tasks claim already. */
static inline bool rules_starts_at_home(s32 claims, u32 cpus)
{
	return cpus && claims < (s32)(cpus + RULES_START_SURPLUS);
}

/*
 * What a task counts for where tasks share a CPU: as much of a task of nice 0 as its weight, in
 * thousandths. One of more weight counts for one, since none runs on more than one CPU.
 */
#define RULES_FULL_LOAD 1000

static inline u32 rules_load(u32 weight)
{
	u32 load = (u64)weight * RULES_FULL_LOAD / RULES_BASE_WEIGHT;

	if (!load)
		return 1;
	return load < RULES_FULL_LOAD ? load : RULES_FULL_LOAD;
}

/*
 * Share of CPUs that nobody claims, in thousandths. With a claim on each of them: what waits for
 * and runs on one of them, by weight, below zero.
 */
static inline s32 rules_room(s32 claims, s32 load, u32 cpus)
{
	if (!cpus)
		return -0x7fffffff;
	if (claims < (s32)cpus)
		return ((s32)cpus - claims) * 1000 / (s32)cpus;
	return load > 0 ? -(load / (s32)cpus) : 0;
}

/* For how long a process that started on a node counts there beyond what it claims. */
#define RULES_STARTED_NS (100 * 1000 * 1000ULL)

/*
 * Room on a node of @cpus CPUs where a process just started, which will need more than it claims
 * yet: as much more as claims may be too many by while others start. There is some left, if little.
 */
static inline s32 rules_room_after_start(s32 room, u32 cpus)
{
	s32 left = cpus ? room - RULES_START_SURPLUS * 1000 / (s32)cpus : room;

	if (room <= 0)
		return room;
	return left > 0 ? left : 1;
}

/*
 * A node with a smaller share of free memory than this, in thousandths, has little. The kernel
 * keeps up to a twentieth for itself.
 */
#define RULES_LITTLE_MEMORY 100

/* Steps, in thousandths, in which unclaimed CPUs and free memory are weighed against each other. */
#define RULES_START_STEP 125

/* What a new process finds on a node, from worst to best. */
enum rules_start {
	RULES_START_CROWDED,
	/* Unclaimed CPUs, but little memory: the kernel takes memory from other nodes then. */
	RULES_START_SHORT_OF_MEMORY,
	RULES_START_ROOMY,
};

static inline enum rules_start rules_start(s32 room, u32 free_memory)
{
	if (room <= 0)
		return RULES_START_CROWDED;
	return free_memory < RULES_LITTLE_MEMORY ? RULES_START_SHORT_OF_MEMORY : RULES_START_ROOMY;
}

/* Room in steps as long as there is some; a step that was begun counts. */
static inline s32 rules_room_steps(s32 room)
{
	return room > 0 ? (room + RULES_START_STEP - 1) / RULES_START_STEP : room;
}

/*
 * Whether a process starts better with @room and @free_memory than with the others: unclaimed CPUs
 * count most, then memory, then whatever CPUs there are more.
 */
static inline bool rules_is_better_start(s32 room, u32 free_memory, s32 other_room,
					 u32 other_free_memory)
{
	enum rules_start start = rules_start(room, free_memory);
	enum rules_start other_start = rules_start(other_room, other_free_memory);
	s32 steps = rules_room_steps(room), other_steps = rules_room_steps(other_room);
	u32 memory = free_memory / RULES_START_STEP;
	u32 other_memory = other_free_memory / RULES_START_STEP;

	if (start != other_start)
		return start > other_start;
	if (steps != other_steps)
		return steps > other_steps;
	return memory != other_memory ? memory > other_memory : room > other_room;
}

/*
 * Whether a task that counts for @load should leave @from_cpus for @to_cpus: whether less shares a
 * CPU there, itself counted in. So it is not sent back.
 */
static inline bool rules_is_less_crowded(s32 to_load, u32 to_cpus, s32 from_load, u32 from_cpus,
					 u32 load)
{
	return ((long long)to_load + load) * from_cpus < (long long)from_load * to_cpus;
}

/*
 * What a running task may be ahead of one that wakes up before it is displaced: switching for less
 * would cost more than the waking task's wait.
 */
#define RULES_PREEMPT_NS (500 * 1000ULL)

/*
 * How long a task runs at least before one that wakes up displaces it. Those that
 * pass messages would otherwise displace each other at every message.
 */
#define RULES_UNDISPLACED_NS (500 * 1000ULL)

/* Whether a waking task with @vtime displaces one that is at @running_vtime and ran for @ran_ns. */
static inline bool rules_preempts(u64 vtime, u64 running_vtime, u64 ran_ns)
{
	return ran_ns >= RULES_UNDISPLACED_NS &&
	       rules_vtime_before(vtime + RULES_PREEMPT_NS, running_vtime);
}

/*
 * Whether a task away from home, of @weight, that ran for @ran_ns makes room for one of
 * @waking_weight which is at home there. Not at once: sent home it may be taken away again.
 */
static inline bool rules_visitor_yields(u32 waking_weight, u32 weight, u64 ran_ns)
{
	return weight <= waking_weight && ran_ns >= RULES_UNDISPLACED_NS;
}

/*
 * What becomes of the lease that @item asks for, of a task whose assignment has
 * @generation, as far as the node does not matter. Withdrawing needs no lease.
 */
static inline enum tandem_assign_outcome rules_lease_outcome(const struct tandem_assignment *item,
							     u64 generation, u64 now_ns,
							     u64 max_lease_ns)
{
	if (item->generation < generation)
		return TANDEM_ASSIGN_STALE;
	if (item->node == TANDEM_NO_NODE)
		return TANDEM_ASSIGN_APPLIED;
	if (item->expires_ns <= now_ns)
		return TANDEM_ASSIGN_EXPIRED;
	if (item->expires_ns - now_ns > max_lease_ns)
		return TANDEM_ASSIGN_LEASE_TOO_LONG;
	return TANDEM_ASSIGN_APPLIED;
}

#endif /* __TANDEM_RULES_H */
