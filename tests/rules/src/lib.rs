// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's arithmetic (`bpf/rules.h`) against simple models.
#![cfg(test)]

use proptest::prelude::*;
use tandem_bpf::AssignOutcome;

unsafe extern "C" {
    safe fn linked_vtime_before(a: u64, b: u64) -> bool;
    safe fn linked_vtime_moved(vtime: u64, from: u64, to: u64) -> u64;
    safe fn linked_vtime_entering(vtime: u64, now: u64, credit_ns: u64) -> u64;
    safe fn linked_vtime_alone(vtime: u64, now: u64, slice_ns: u64, weight: u32) -> u64;
    safe fn linked_vtime_after(vtime: u64, ran_ns: u64, weight: u32) -> u64;
    safe fn linked_expected_wait_ns(queued: u32, cpus: u32, slice_ns: u64) -> u64;
    safe fn linked_may_leave(waited_ns: u64, price_ns: u64, patience_ns: u64, home_cpu_woken: bool) -> bool;
    safe fn linked_overfull(claims: i32, cpus: u32) -> bool;
    safe fn linked_room(claims: i32, cpus: u32) -> i32;
    safe fn linked_preempts(vtime: u64, running_vtime: u64) -> bool;
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

/// CPU time of tasks of these weights on one CPU, when the task with the least virtual time always runs a slice.
fn cpu_times_ns(weights: &[u32], slices: usize, start: u64) -> Vec<u64> {
    let mut vtimes = vec![start; weights.len()];
    let mut ran_ns = vec![0; weights.len()];
    for _ in 0..slices {
        let first = (1..weights.len())
            .fold(0, |first, at| if linked_vtime_before(vtimes[at], vtimes[first]) { at } else { first });
        vtimes[first] = linked_vtime_after(vtimes[first], SLICE_NS, weights[first]);
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
fn a_task_waits_a_millisecond_for_the_cpu_of_its_own_node_that_was_woken_for_it() {
    assert!(!linked_may_leave(999_999, 0, 0, true));
    assert!(linked_may_leave(1_000_000, 0, 0, true));
    assert!(!linked_may_leave(1_000_000, 2_500_000, 0, true), "the price counts as well");
}

#[test]
fn a_node_is_overfull_above_its_number_of_cpus() {
    assert!(!linked_overfull(2, 2));
    assert!(linked_overfull(3, 2));
    assert!(!linked_overfull(0, 0), "nobody claims a memory-only node");
    assert!(!linked_overfull(-1, 0), "two counters that race may pass below zero");
}

#[test]
fn room_is_the_share_of_cpus_that_nobody_claims() {
    assert_eq!(linked_room(0, 4), 1000);
    assert_eq!(linked_room(3, 4), 250);
    assert_eq!(linked_room(4, 4), 0);
    assert_eq!(linked_room(6, 4), -500);
    assert!(linked_room(0, 0) < linked_room(1_000_000, 1), "without CPUs there is less room than anywhere");
}

#[test]
fn a_waking_task_displaces_one_that_is_ahead_by_half_a_millisecond() {
    const AHEAD_NS: u64 = 500_000;
    assert!(!linked_preempts(1000, 1000 + AHEAD_NS));
    assert!(linked_preempts(1000, 1001 + AHEAD_NS));
    assert!(linked_preempts(u64::MAX, AHEAD_NS + 1), "across the wrap");
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
    assert_eq!(linked_vtime_alone(u64::MAX / 4, 0, SLICE_NS, 0), 100 * SLICE_NS);
    assert_eq!(linked_vtime_after(0, SLICE_NS, 0), 100 * SLICE_NS);
}

#[test]
fn time_of_a_task_of_nice_0_is_virtual_time() {
    assert_eq!(linked_vtime_after(7, SLICE_NS, 100), 7 + SLICE_NS);
}

proptest! {
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
    fn who_ran_alone_owes_a_slice_at_most(
        now: u64,
        lag in -1_000_000_000_000i64..1_000_000_000_000,
        weight in 1..10_000u32,
    ) {
        let vtime = linked_vtime_alone(now.wrapping_add_signed(lag), now, SLICE_NS, weight);
        let slice_ns = linked_vtime_after(0, SLICE_NS, weight);
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
    fn there_is_room_exactly_while_fewer_claim_than_there_are_cpus(claims in -10..100_000i32, cpus in 1..1024u32) {
        prop_assert_eq!(linked_room(claims, cpus) > 0, (claims as i64) < i64::from(cpus) && {
            // Below a thousandth it is none, which no machine of this size has.
            (i64::from(cpus) - i64::from(claims)) * 1000 >= i64::from(cpus)
        });
        prop_assert!(linked_room(claims + 1, cpus) <= linked_room(claims, cpus));
    }

    #[test]
    fn whoever_displaces_is_not_displaced_back_at_once(vtime: u64, behind in 1..1_000_000_000u64) {
        let running = vtime.wrapping_add(behind);
        prop_assert!(!(linked_preempts(vtime, running) && linked_preempts(running, vtime)));
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
