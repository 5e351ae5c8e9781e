// SPDX-License-Identifier: GPL-2.0-only
/* The rules as functions that can be linked. */
#include <stdbool.h>

#include "rules.h"

u32 linked_weight(u32 kernel_weight)
{
	return rules_weight(kernel_weight);
}

u32 linked_weight_in_group(u64 weight, u32 group_weight, long long active)
{
	return rules_weight_in_group(weight, group_weight, active);
}

u64 linked_slice_ns(u32 queued, u32 cpus, u64 slice_ns)
{
	return rules_slice_ns(queued, cpus, slice_ns);
}

bool linked_vtime_before(u64 a, u64 b)
{
	return rules_vtime_before(a, b);
}

u64 linked_vtime_moved(u64 vtime, u64 from, u64 to)
{
	return rules_vtime_moved(vtime, from, to);
}

u64 linked_credit_ns(bool ran, u32 weight, u64 slice_ns)
{
	return rules_credit_ns(ran, weight, slice_ns);
}

u64 linked_vtime_entering(u64 vtime, u64 now, u64 credit_ns)
{
	return rules_vtime_entering(vtime, now, credit_ns);
}

u64 linked_vtime_alone(u64 vtime, u64 now, u64 slice_ns, u32 weight)
{
	return rules_vtime_alone(vtime, now, slice_ns, weight);
}

u64 linked_vtime_after(u64 vtime, u64 ran_ns, u32 weight)
{
	return rules_vtime_after(vtime, ran_ns, weight);
}

u64 linked_own_offset(u64 offset, u64 first, u64 shared, bool contended, u64 credit_ns)
{
	return rules_own_offset(offset, first, shared, contended, credit_ns);
}

u64 linked_own_vtime(u64 own, u64 shared, u64 offset)
{
	return rules_own_vtime(own, shared, offset);
}

u64 linked_price_ns(u64 price_ns, u64 pages)
{
	return rules_price_ns(price_ns, pages);
}

bool linked_is_starving(u64 waited_ns)
{
	return rules_is_starving(waited_ns);
}

u64 linked_vtime_first(u64 now, u64 slice_ns)
{
	return rules_vtime_first(now, slice_ns);
}

bool linked_is_first(u64 vtime, u64 now, u64 slice_ns)
{
	return rules_is_first(vtime, now, slice_ns);
}

bool linked_is_less_crowded(s32 to_load, u32 to_cpus, s32 from_load, u32 from_cpus, u32 load)
{
	return rules_is_less_crowded(to_load, to_cpus, from_load, from_cpus, load);
}

long long linked_refilled(long long left_ns, u64 quota_ns, u64 burst_ns, u64 periods)
{
	return rules_refilled(left_ns, quota_ns, burst_ns, periods);
}

u64 linked_expected_wait_ns(u32 queued, u32 cpus, u64 slice_ns)
{
	return rules_expected_wait_ns(queued, cpus, slice_ns);
}

u64 linked_bond(u64 bond_ns, u64 ran_ns, bool at_home)
{
	return rules_bond(bond_ns, ran_ns, at_home);
}

bool linked_is_new(u64 ran_ns)
{
	return rules_is_new(ran_ns);
}

u32 linked_votes(u32 votes, bool same)
{
	return rules_votes(votes, same);
}

bool linked_is_partner(u32 votes)
{
	return rules_is_partner(votes);
}

bool linked_may_leave(u64 waited_ns, u64 price_ns, u64 patience_ns, bool home_cpu_woken)
{
	return rules_may_leave(waited_ns, price_ns, patience_ns, home_cpu_woken);
}

bool linked_overfull(s32 claims, u32 cpus)
{
	return rules_overfull(claims, cpus);
}

u32 linked_load(u32 weight)
{
	return rules_load(weight);
}

s32 linked_room(s32 claims, s32 load, u32 cpus)
{
	return rules_room(claims, load, cpus);
}

s32 linked_room_after_start(s32 room, u32 cpus)
{
	return rules_room_after_start(room, cpus);
}

bool linked_starts_at_home(s32 claims, u32 cpus)
{
	return rules_starts_at_home(claims, cpus);
}

bool linked_is_better_start(s32 room, u32 free_memory, s32 other_room, u32 other_free_memory)
{
	return rules_is_better_start(room, free_memory, other_room, other_free_memory);
}

bool linked_preempts(u64 vtime, u64 running_vtime, u64 ran_ns)
{
	return rules_preempts(vtime, running_vtime, ran_ns);
}

bool linked_visitor_yields(u32 waking_weight, u32 weight, u64 ran_ns)
{
	return rules_visitor_yields(waking_weight, weight, ran_ns);
}

u32 linked_lease_outcome(u32 node, u64 item_generation, u64 expires_ns, u64 generation, u64 now_ns,
			 u64 max_lease_ns)
{
	struct tandem_assignment item = {
		.node = node, .generation = item_generation, .expires_ns = expires_ns};

	return rules_lease_outcome(&item, generation, now_ns, max_lease_ns);
}
