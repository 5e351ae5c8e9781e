/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The scheduler's arithmetic: virtual time, waiting, leases. Nothing here looks
 * at a task, a map or a clock, so that it compiles outside of the kernel too,
 * where tests/rules holds it against simple models.
 */
#ifndef __TANDEM_RULES_H
#define __TANDEM_RULES_H

#include "intf.h"

/* Weight of a task of nice 0. */
#define RULES_BASE_WEIGHT 100

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

/* Virtual time with which a task enters a queue that is at @now: sleepers keep at most @credit_ns.
 */
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

/* What a newcomer should expect to wait behind @queued tasks that @cpus share. */
static inline u64 rules_expected_wait_ns(u32 queued, u32 cpus, u64 slice_ns)
{
	return cpus ? (queued + 1ULL) * slice_ns / cpus : ~0ULL;
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

/* Share of CPUs that nobody claims, in thousandths; negative when tasks have to wait. */
static inline s32 rules_room(s32 claims, u32 cpus)
{
	return cpus ? ((s32)cpus - claims) * 1000 / (s32)cpus : -0x7fffffff;
}

/*
 * What a running task may be ahead of one that wakes up before it is displaced: switching for less
 * would cost more than the waking task's wait.
 */
#define RULES_PREEMPT_NS (500 * 1000ULL)

/* Whether a waking task with @vtime displaces one that is at @running_vtime. */
static inline bool rules_preempts(u64 vtime, u64 running_vtime)
{
	return rules_vtime_before(vtime + RULES_PREEMPT_NS, running_vtime);
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
