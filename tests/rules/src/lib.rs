// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's arithmetic (`bpf/rules.h`) against simple models.
#![cfg(test)]

mod groups;
mod two_cpus;

use proptest::prelude::*;
use tandem_bpf::AssignOutcome;

unsafe extern "C" {
    safe fn linked_weight(kernel_weight: u32) -> u32;
    safe fn linked_weight_in_group(weight: u64, group_weight: u32, active: i64) -> u32;
    safe fn linked_vtime_before(a: u64, b: u64) -> bool;
    safe fn linked_vtime_moved(vtime: u64, from: u64, to: u64) -> u64;
    safe fn linked_credit_ns(ran: bool, weight: u32, slice_ns: u64) -> u64;
    safe fn linked_vtime_entering(vtime: u64, now: u64, credit_ns: u64) -> u64;
    safe fn linked_vtime_alone(vtime: u64, now: u64, slice_ns: u64, weight: u32) -> u64;
    safe fn linked_vtime_after(vtime: u64, ran_ns: u64, weight: u32) -> u64;
    safe fn linked_own_offset(offset: u64, first: u64, shared: u64, contended: bool, credit_ns: u64) -> u64;
    safe fn linked_own_vtime(own: u64, shared: u64, offset: u64) -> u64;
    safe fn linked_price_ns(price_ns: u64, pages: u64) -> u64;
    safe fn linked_is_starving(waited_ns: u64) -> bool;
    safe fn linked_slice_ns(queued: u32, cpus: u32, slice_ns: u64) -> u64;
    safe fn linked_vtime_first(now: u64, slice_ns: u64) -> u64;
    safe fn linked_is_first(vtime: u64, now: u64, slice_ns: u64) -> bool;
    safe fn linked_is_less_crowded(to_load: i32, to_cpus: u32, from_load: i32, from_cpus: u32, load: u32) -> bool;
    safe fn linked_refilled(left_ns: i64, quota_ns: u64, burst_ns: u64, periods: u64) -> i64;
    safe fn linked_expected_wait_ns(queued: u32, cpus: u32, slice_ns: u64) -> u64;
    safe fn linked_may_leave(waited_ns: u64, price_ns: u64, patience_ns: u64, home_cpu_woken: bool) -> bool;
    safe fn linked_is_new(ran_ns: u64) -> bool;
    safe fn linked_bond(bond_ns: u64, ran_ns: u64, at_home: bool) -> u64;
    safe fn linked_votes(votes: u32, same: bool) -> u32;
    safe fn linked_is_partner(votes: u32) -> bool;
    safe fn linked_overfull(claims: i32, cpus: u32) -> bool;
    safe fn linked_load(weight: u32) -> u32;
    safe fn linked_room(claims: i32, load: i32, cpus: u32) -> i32;
    safe fn linked_room_after_start(room: i32, cpus: u32) -> i32;
    safe fn linked_starts_at_home(claims: i32, cpus: u32) -> bool;
    safe fn linked_is_better_start(room: i32, free_memory: u32, other_room: i32, other_free_memory: u32) -> bool;
    safe fn linked_preempts(vtime: u64, running_vtime: u64, ran_ns: u64) -> bool;
    safe fn linked_visitor_yields(waking_weight: u32, weight: u32, ran_ns: u64) -> bool;
    safe fn linked_lease_outcome(
        node: u32,
        item_generation: u64,
        expires_ns: u64,
        generation: u64,
        now_ns: u64,
        max_lease_ns: u64,
    ) -> u32;
}

const SLICE_NS: u64 = 5_000_000;
const NO_NODE: u32 = 0xff;

/// What a task is ahead of `now` (negative: behind).
fn lag_ns(vtime: u64, now: u64) -> i64 {
    vtime.wrapping_sub(now) as i64
}

fn lease(node: u32, item_generation: u64, expires_ns: u64, generation: u64, now_ns: u64) -> AssignOutcome {
    let outcome = linked_lease_outcome(node, item_generation, expires_ns, generation, now_ns, 1000);
    AssignOutcome::ALL[outcome as usize]
}

/// Virtual time after a task of the root group, of a weight as the kernel says, ran for `ran_ns`.
fn vtime_after(vtime: u64, ran_ns: u64, kernel_weight: u32) -> u64 {
    linked_vtime_after(vtime, ran_ns, linked_weight(kernel_weight))
}

/// CPU time of tasks of these weights on one CPU, when the task with the least virtual time always runs a slice.
fn cpu_times_ns(weights: &[u32], slices: usize, start: u64) -> Vec<u64> {
    let mut vtimes = vec![start; weights.len()];
    let mut ran_ns = vec![0; weights.len()];
    for _ in 0..slices {
        let first = (1..weights.len())
            .fold(0, |first, at| if linked_vtime_before(vtimes[at], vtimes[first]) { at } else { first });
        vtimes[first] = vtime_after(vtimes[first], SLICE_NS, weights[first]);
        ran_ns[first] += SLICE_NS;
    }
    ran_ns
}

#[test]
fn a_lease_is_judged_by_generation_then_end_then_length() {
    assert_eq!(lease(0, 4, 100, 5, 50), AssignOutcome::Stale);
    assert_eq!(lease(0, 4, 0, 5, 50), AssignOutcome::Stale, "before anything else");
    assert_eq!(lease(0, 5, 50, 5, 50), AssignOutcome::Expired, "a lease ends at its end");
    assert_eq!(lease(0, 5, 51, 5, 50), AssignOutcome::Applied);
    assert_eq!(lease(0, 5, 1050, 5, 50), AssignOutcome::Applied, "as long as allowed");
    assert_eq!(lease(0, 5, 1051, 5, 50), AssignOutcome::LeaseTooLong);
    assert_eq!(lease(0, 5, u64::MAX, 5, 50), AssignOutcome::LeaseTooLong);
}

#[test]
fn withdrawing_needs_no_lease_but_the_generation() {
    assert_eq!(lease(NO_NODE, 5, 0, 5, 50), AssignOutcome::Applied);
    assert_eq!(lease(NO_NODE, 4, 0, 5, 50), AssignOutcome::Stale);
}

#[test]
fn a_task_leaves_home_once_it_waited_longer_than_its_price_and_the_takers_patience() {
    assert!(linked_may_leave(0, 0, 0, false), "without an assignment it may go at once");
    assert!(!linked_may_leave(2_500_000 - 1, 2_500_000, 0, false));
    assert!(linked_may_leave(2_500_000, 2_500_000, 0, false));
    assert!(!linked_may_leave(100_000_000, 2_500_000, 100_000_000, false), "a busy taker is patient");
}

#[test]
fn the_price_of_leaving_home_is_half_the_distance_s_without_memory_and_all_of_it_from_32_mib_on() {
    assert_eq!(linked_price_ns(2_500_001, 0), 1_250_000);
    assert_eq!(linked_price_ns(2_500_000, 4096), 1_875_000, "16 MiB");
    assert_eq!(linked_price_ns(2_500_001, 8192), 2_500_001);
    assert_eq!(linked_price_ns(2_500_000, u64::MAX), 2_500_000, "more memory than any machine has");
}

#[test]
fn a_task_waits_a_millisecond_for_the_cpu_of_its_own_node_that_was_woken_for_it() {
    assert!(!linked_may_leave(999_999, 0, 0, true));
    assert!(linked_may_leave(1_000_000, 0, 0, true));
    assert!(!linked_may_leave(1_000_000, 2_500_000, 0, true), "the price counts as well");
}

#[test]
fn a_task_belongs_where_it_ran_as_long_as_at_home_and_50_ms_at_most() {
    assert_eq!(linked_bond(0, 3_000_000, false), 0, "a new one at once");
    assert_eq!([9_999_999, 10_000_000].map(|ran_ns| linked_is_new(ran_ns)), [true, false]);
    let firm = linked_bond(linked_bond(0, 3_000_000, true), 1_000_000_000, true);
    assert_eq!(firm, 50_000_000);
    assert_eq!(linked_bond(firm, 49_999_999, false), 1);
    assert_eq!(linked_bond(firm, 60_000_000, false), 0);
}

#[test]
fn who_wakes_a_task_eight_times_more_often_than_others_is_its_partner() {
    let after = |wakers: &[bool]| wakers.iter().fold(0, |votes, &same| linked_votes(votes, same));
    assert!(!linked_is_partner(after(&[true; 7])));
    assert!(linked_is_partner(after(&[true; 8])));
    assert!(!linked_is_partner(after(&[true, false].repeat(100))), "half of the time");
    assert_eq!(after(&[false]), 0);
    let long = after(&[true; 1000]);
    let others = [false; 8];
    assert!(
        linked_is_partner(long)
            && linked_is_partner(others.iter().fold(long, |votes, &same| linked_votes(votes, same)))
    );
    assert!(
        !linked_is_partner([false; 9].iter().fold(long, |votes, &same| linked_votes(votes, same))),
        "it is over soon"
    );
}

#[test]
fn a_node_is_overfull_above_its_number_of_cpus() {
    assert!(!linked_overfull(2, 2));
    assert!(linked_overfull(3, 2));
    assert!(!linked_overfull(0, 0), "nobody claims a memory-only node");
    assert!(!linked_overfull(-1, 0), "two counters that race may pass below zero");
}

#[test]
fn a_task_counts_for_its_weight_and_for_one_cpu_at_most() {
    assert_eq!(linked_load(linked_weight(100)), 1000, "nice 0");
    assert_eq!(linked_load(linked_weight(1)), 10, "nice 19");
    assert_eq!(linked_load(linked_weight(5000)), 1000);
    assert_eq!(linked_load(0), 1);
    assert_eq!(linked_load(u32::MAX), 1000);
}

#[test]
fn room_is_the_share_of_cpus_that_nobody_claims() {
    assert_eq!(linked_room(0, 0, 4), 1000);
    assert_eq!(linked_room(3, 3000, 4), 250);
    assert_eq!(linked_room(3, 30, 4), 250, "a claim is a claim");
    assert_eq!(linked_room(4, 4000, 4), -1000);
    assert_eq!(linked_room(6, 6000, 4), -1500);
    assert_eq!(linked_room(6, 3030, 4), -757, "three of six weigh next to nothing");
    assert_eq!(linked_room(4, -5, 4), 0, "two counters that race");
    let fullest = linked_room(1_000_000, 1_000_000_000, 1);
    assert!(linked_room(0, 0, 0) < fullest, "without CPUs there is less room than anywhere");
}

#[test]
fn a_thread_starts_at_home_until_two_more_than_its_cpus_claim_it() {
    let at_home = |claims| linked_starts_at_home(claims, 4);
    assert!(at_home(0) && at_home(5) && !at_home(6));
    assert!(!linked_starts_at_home(0, 0), "a node without CPUs is no home");
}

#[test]
fn a_process_that_just_started_takes_the_room_of_two_claims_but_not_the_last() {
    assert_eq!(linked_room_after_start(1000, 4), 500);
    assert_eq!(linked_room_after_start(500, 4), 1, "there is some left");
    assert_eq!(linked_room_after_start(-20, 4), -20, "where tasks wait it makes no difference");
    assert_eq!(linked_room_after_start(0, 4), 0);
    assert_eq!(linked_room_after_start(i32::MIN + 1, 0), i32::MIN + 1, "nor without CPUs");
}

#[test]
fn a_process_starts_where_cpus_are_unclaimed_and_memory_is_free() {
    assert!(linked_is_better_start(1000, 100, 500, 900), "CPUs count more than memory");
    assert!(!linked_is_better_start(1000, 99, 500, 100), "but for nothing where there is little memory");
    assert!(linked_is_better_start(1000, 0, 500, 99), "unless there is little everywhere");
    assert!(linked_is_better_start(1, 0, 0, 1000), "and more than no CPU at all");
    assert!(linked_is_better_start(980, 900, 1000, 300), "but not a few of them");
    assert!(linked_is_better_start(1000, 500, 980, 600), "nor a little memory");
    assert!(!linked_is_better_start(-20, 900, 20, 0), "memory does not make up for a CPU of one's own");
}

#[test]
fn a_waking_task_displaces_one_that_is_ahead_by_half_a_millisecond() {
    const AHEAD_NS: u64 = 500_000;
    assert!(!linked_preempts(1000, 1000 + AHEAD_NS, SLICE_NS));
    assert!(linked_preempts(1000, 1001 + AHEAD_NS, SLICE_NS));
    assert!(linked_preempts(u64::MAX, AHEAD_NS + 1, SLICE_NS), "across the wrap");
}

const UNDISPLACED_NS: u64 = 500_000;

#[test]
fn a_task_that_was_just_switched_to_is_not_displaced() {
    assert!(!linked_preempts(0, SLICE_NS, UNDISPLACED_NS - 1), "however far it is ahead");
    assert!(linked_preempts(0, SLICE_NS, UNDISPLACED_NS));
}

#[test]
fn a_visitor_yields_to_no_less_weight_once_it_ran_for_half_a_millisecond() {
    assert!(linked_visitor_yields(100, 100, UNDISPLACED_NS));
    assert!(!linked_visitor_yields(100, 100, UNDISPLACED_NS - 1));
    assert!(!linked_visitor_yields(99, 100, SLICE_NS));
}

#[test]
fn a_node_without_cpus_is_waited_for_forever() {
    assert_eq!(linked_expected_wait_ns(0, 0, SLICE_NS), u64::MAX);
    assert_eq!(linked_expected_wait_ns(0, 1, SLICE_NS), SLICE_NS);
    assert_eq!(linked_expected_wait_ns(3, 2, SLICE_NS), 2 * SLICE_NS);
    assert_eq!(linked_expected_wait_ns(u32::MAX, 1, SLICE_NS), (1 << 32) * SLICE_NS, "no overflow");
}

#[test]
fn a_task_without_weight_does_not_divide_by_zero() {
    assert_eq!(vtime_after(0, SLICE_NS, 0), 100 * SLICE_NS, "as if it had the least");
    let least = vtime_after(0, SLICE_NS, 1) * u64::from(linked_weight(1));
    assert_eq!(linked_vtime_alone(u64::MAX / 4, 0, SLICE_NS, 0), least);
    assert_eq!(linked_vtime_after(0, SLICE_NS, 0), least);
}

#[test]
fn time_of_a_task_of_nice_0_is_virtual_time() {
    assert_eq!(vtime_after(7, SLICE_NS, 100), 7 + SLICE_NS);
}

#[test]
fn whoever_waited_for_two_seconds_goes_first() {
    assert!(!linked_is_starving(1_999_999_999));
    assert!(linked_is_starving(2_000_000_000));
}

#[test]
fn very_many_tasks_have_shorter_slices_so_that_all_have_a_turn_within_seconds() {
    const SLICE_NS: u64 = 5_000_000;
    assert_eq!([0, 1000].map(|queued| linked_slice_ns(queued, 1, SLICE_NS)), [SLICE_NS; 2]);
    assert_eq!(linked_slice_ns(2000, 1, SLICE_NS), SLICE_NS / 2);
    assert_eq!(linked_slice_ns(2000, 2, SLICE_NS), SLICE_NS, "two CPUs share them");
    assert_eq!(linked_slice_ns(1 << 31, 1, SLICE_NS), 200_000);
    assert_eq!(linked_slice_ns(5000, 0, SLICE_NS), SLICE_NS, "nobody serves them");
    for (queued, cpus) in [(20_000, 1), (25_000, 1), (300_000, 16)] {
        let round_ns = u64::from(queued / cpus) * linked_slice_ns(queued, cpus, SLICE_NS);
        assert!(round_ns <= 5_000_000_000, "{queued} on {cpus}: {round_ns} ns");
    }
}

#[test]
fn a_task_leaves_for_where_fewer_share_a_cpu_itself_counted_in() {
    assert!(linked_is_less_crowded(8000, 2, 10_000, 2, 1000), "nine on either side");
    assert!(!linked_is_less_crowded(8000, 2, 9000, 2, 1000), "the other way round it would be the same");
    assert!(linked_is_less_crowded(7010, 2, 9000, 2, 1000), "what weighs next to nothing takes nobody's place");
    assert!(!linked_is_less_crowded(8000, 2, 8010, 2, 10));
    assert!(linked_is_less_crowded(0, 4, 2000, 1, 1000));
    assert!(!linked_is_less_crowded(0, 0, 9000, 2, 1000), "not to a node without CPUs");
}

/// Shares of one CPU of a pinned task and one of the shared queue, both always runnable, by weight, when the CPU
/// compares them with the offset; the pinned one had the CPU alone for `alone_ns` before.
fn competing_shares(pinned_weight: u32, alone_ns: u64) -> f64 {
    const SLICES: usize = 2_000;
    let (mut pinned_vtime, mut other_vtime) = (vtime_after(0, alone_ns, pinned_weight), 0);
    let mut offset = linked_own_offset(0, pinned_vtime, other_vtime, false, SLICE_NS);
    let mut pinned_slices = 0;
    // The shared queue is where its only task was taken last.
    let mut shared = other_vtime;
    for _ in 0..SLICES {
        offset = linked_own_offset(offset, pinned_vtime, shared, true, SLICE_NS);
        if linked_vtime_before(other_vtime, pinned_vtime.wrapping_add(offset)) {
            shared = other_vtime;
            other_vtime = vtime_after(other_vtime, SLICE_NS, 100);
        } else {
            pinned_vtime = vtime_after(pinned_vtime, SLICE_NS, pinned_weight);
            pinned_slices += 1;
        }
    }
    f64::from(pinned_slices) / SLICES as f64
}

#[test]
fn a_pinned_task_competes_by_weight_however_long_it_was_alone() {
    for alone_ns in [0, SLICE_NS, 3_600_000_000_000] {
        for (weight, share) in [(100, 0.5), (33, 33.0 / 133.0), (300, 0.75), (1, 1.0 / 101.0)] {
            let found = competing_shares(weight, alone_ns);
            assert!((found - share).abs() < 0.01, "weight {weight} after {alone_ns} ns alone: {found:.3}");
        }
    }
}

proptest! {
    #[test]
    fn the_own_queue_is_a_slice_behind_at_most_and_ahead_only_while_it_competes(
        first: u64,
        shared: u64,
        apart in -1_000_000_000_000i64..1_000_000_000_000,
        contended: bool,
    ) {
        let before = shared.wrapping_add_signed(apart).wrapping_sub(first);
        let offset = linked_own_offset(before, first, shared, contended, SLICE_NS);
        let ahead = lag_ns(first.wrapping_add(offset), shared);
        prop_assert_eq!(ahead, apart.clamp(-(SLICE_NS as i64), if contended { i64::MAX } else { 0 }));
    }

    #[test]
    fn an_unused_own_queue_goes_on_with_the_shared_one(
        own: u64, shared: u64, apart in -1_000_000_000_000i64..1_000_000_000_000,
    ) {
        let offset = shared.wrapping_add_signed(apart).wrapping_sub(own);
        let ahead = lag_ns(linked_own_vtime(own, shared, offset).wrapping_add(offset), shared);
        prop_assert_eq!(ahead, apart.max(0));
    }

    #[test]
    fn who_goes_first_is_before_all_who_keep_a_credit(
        now: u64, lag in -1_000_000_000_000i64..1_000_000_000_000, ran: bool, weight: u32,
    ) {
        let other = linked_vtime_entering(now.wrapping_add_signed(lag), now, linked_credit_ns(ran, weight, SLICE_NS));
        // Also when the other's queue is a slice behind this one.
        prop_assert!(linked_vtime_before(linked_vtime_first(now, SLICE_NS), other.wrapping_sub(SLICE_NS)));
        prop_assert!(linked_is_first(linked_vtime_first(now, SLICE_NS), now, SLICE_NS));
        prop_assert!(!linked_is_first(other, now, SLICE_NS), "with credit only");
    }

    #[test]
    fn whoever_was_sent_on_is_not_sent_back(
        from_load in 0..10_000_000i32, from_cpus in 1..1024u32, to_load in 0..10_000_000i32, to_cpus in 0..1024u32,
        load in 1..=1000u32,
    ) {
        if linked_is_less_crowded(to_load, to_cpus, from_load, from_cpus, load) {
            let moved = load.cast_signed();
            prop_assert!(!linked_is_less_crowded(from_load - moved, from_cpus, to_load + moved, to_cpus, load));
        }
    }

    #[test]
    fn before_is_an_order_across_the_wrap(now: u64, ahead in 1..u64::MAX / 2) {
        let later = now.wrapping_add(ahead);
        prop_assert!(linked_vtime_before(now, later));
        prop_assert!(!linked_vtime_before(later, now));
        prop_assert!(!linked_vtime_before(now, now));
    }

    #[test]
    fn lag_goes_along(from: u64, to: u64, lag in -1_000_000_000_000i64..1_000_000_000_000) {
        prop_assert_eq!(lag_ns(linked_vtime_moved(from.wrapping_add_signed(lag), from, to), to), lag);
    }

    #[test]
    fn sleepers_keep_a_bounded_credit(
        now: u64,
        lag in -1_000_000_000_000i64..1_000_000_000_000,
        credit_ns in 0..100_000_000u64,
    ) {
        let entered = linked_vtime_entering(now.wrapping_add_signed(lag), now, credit_ns);
        prop_assert_eq!(lag_ns(entered, now), lag.max(-(credit_ns as i64)));
        prop_assert_eq!(linked_vtime_entering(entered, now, credit_ns), entered, "once is enough");
    }

    #[test]
    fn who_ran_keeps_32_slices_of_its_own_time(weight in 1..10_000u32) {
        let weight = linked_weight(weight);
        let credit_ns = linked_credit_ns(true, weight, SLICE_NS);
        prop_assert_eq!(linked_credit_ns(false, weight, SLICE_NS), SLICE_NS, "one that slept");
        // As much virtual time, more for nobody, and as sleepers for those to whom that is worth more.
        let worth_ns = 32.0 * SLICE_NS as f64 * f64::from(linked_weight(100)) / f64::from(weight);
        let expected_ns = worth_ns.clamp(SLICE_NS as f64, 32.0 * SLICE_NS as f64);
        prop_assert!((credit_ns as f64 - expected_ns).abs() <= 1.0, "{} for {}", credit_ns, expected_ns);
    }

    #[test]
    fn who_ran_alone_owes_a_slice_at_most(
        now: u64,
        lag in -1_000_000_000_000i64..1_000_000_000_000,
        weight in 1..10_000u32,
    ) {
        let vtime = linked_vtime_alone(now.wrapping_add_signed(lag), now, SLICE_NS, linked_weight(weight));
        let slice_ns = vtime_after(0, SLICE_NS, weight);
        prop_assert_eq!(lag_ns(vtime, now), lag.min(slice_ns as i64));
    }

    #[test]
    fn cpu_time_goes_by_weight_to_a_slice(weights in prop::collection::vec(1u32..=10_000, 2..6), start: u64) {
        let slices = 4_000;
        let ran_ns = cpu_times_ns(&weights, slices, start);
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        for (&weight, &ran_ns) in weights.iter().zip(&ran_ns) {
            let fair_ns = slices as f64 * SLICE_NS as f64 * f64::from(weight) / total as f64;
            // Each task is at most one slice of its own and of each other one away.
            let bound_ns = SLICE_NS as f64 * weights.len() as f64;
            prop_assert!((ran_ns as f64 - fair_ns).abs() <= bound_ns, "{ran_ns} ns, fair are {fair_ns} ns");
        }
    }

    #[test]
    fn waiting_grows_with_the_queue_and_shrinks_with_cpus(queued in 0..100_000u32, cpus in 1..1024u32) {
        let wait_ns = linked_expected_wait_ns(queued, cpus, SLICE_NS);
        prop_assert!(linked_expected_wait_ns(queued + 1, cpus, SLICE_NS) >= wait_ns);
        prop_assert!(linked_expected_wait_ns(queued, cpus + 1, SLICE_NS) <= wait_ns);
    }

    #[test]
    fn there_is_room_exactly_while_fewer_claim_than_there_are_cpus(
        claims in -10..100_000i32, cpus in 1..1024u32, each in 1..=1000i32,
    ) {
        let room = linked_room(claims, claims * each, cpus);
        prop_assert_eq!(room > 0, (claims as i64) < i64::from(cpus) && {
            // Below a thousandth it is none, which no machine of this size has.
            (i64::from(cpus) - i64::from(claims)) * 1000 >= i64::from(cpus)
        });
        prop_assert!(linked_room(claims + 1, (claims + 1) * each, cpus) <= room);
    }

    /// Else which node is chosen would depend on the order in which they are looked at.
    #[test]
    fn the_price_of_leaving_home_never_falls_with_memory(
        price_ns in 0..1_000_000_000u64, pages in 0..10_000u64, more in 0..10_000u64,
    ) {
        prop_assert!(linked_price_ns(price_ns, pages) <= linked_price_ns(price_ns, pages + more));
        prop_assert!(linked_price_ns(price_ns, pages + more) <= price_ns);
    }

    #[test]
    fn starts_are_in_one_order(starts in prop::collection::vec((-3000..=1000i32, 0..=1000u32), 3)) {
        let better = |a: usize, b: usize| linked_is_better_start(starts[a].0, starts[a].1, starts[b].0, starts[b].1);
        prop_assert!(!better(0, 0));
        prop_assert!(!(better(0, 1) && better(1, 0)));
        prop_assert!(!(better(0, 1) && better(1, 2)) || better(0, 2));
        // Whoever is as good as the second is better or worse than a third as the second is.
        prop_assert!(better(0, 1) || better(1, 0) || better(0, 2) == better(1, 2));
    }

    #[test]
    fn whoever_displaces_is_not_displaced_back_at_once(
        vtime: u64, behind in 1..1_000_000_000u64, ran: u64, other_ran: u64,
    ) {
        let running = vtime.wrapping_add(behind);
        prop_assert!(!(linked_preempts(vtime, running, ran) && linked_preempts(running, vtime, other_ran)));
    }

    #[test]
    fn an_applied_lease_ends_within_the_limit(
        node in 0..32u32, item_generation: u64, expires_ns: u64, generation: u64, now_ns: u64,
    ) {
        let applied = lease(node, item_generation, expires_ns, generation, now_ns) == AssignOutcome::Applied;
        let right = item_generation >= generation && expires_ns > now_ns && expires_ns - now_ns <= 1000;
        prop_assert_eq!(applied, right);
    }
}
