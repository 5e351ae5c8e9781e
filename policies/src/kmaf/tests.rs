// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use super::*;
use crate::model::{ProcessId, Snapshot};
use crate::registry::Memory;
use crate::testing::{SnapshotBuilder, decided, decided_with, ring_of_four, two_nodes};

/// Threads 2k and 2k + 1 on node k of a ring, which share in `pairs`, `ms` after the start.
fn ring(pairs: &[(usize, usize)], per_s: f64, ms: u64) -> Snapshot {
    let builder = (0..8).fold(SnapshotBuilder::new(ring_of_four(2)), |all, k| all.thread(k as u32, k / 2, None));
    let mut snapshot = pairs.iter().fold(builder, |all, &(one, other)| all.shared(one, other, per_s)).build();
    (snapshot.time_ns, snapshot.interval_ns) = (1_000_000_000 + ms * 1_000_000, 100_000_000);
    snapshot
}

const FAR: [(usize, usize); 4] = [(0, 4), (1, 5), (2, 6), (3, 7)];
const NEAR: [(usize, usize); 4] = [(0, 1), (2, 3), (4, 5), (6, 7)];

fn places(snapshot: &Snapshot, plan: &Plan) -> Vec<usize> {
    snapshot.after_thread_moves(plan).threads.iter().map(|thread| thread.node.0).collect()
}

#[test]
fn pairs_that_share_end_on_one_node_each_and_stay_there() {
    let mut memory = Memory::default();
    let snapshot = ring(&FAR, 1e4, 0);
    let plan = decided_with(&POLICY, &snapshot, &mut memory).unwrap();
    let places = places(&snapshot, &plan);
    assert!(FAR.iter().all(|&(one, other)| places[one] == places[other]), "{places:?}");
    let mut after = snapshot.after_thread_moves(&plan);
    after.time_ns += 100_000_000;
    assert!(decided_with(&POLICY, &after, &mut memory).unwrap().is_empty());
}

/// Known answer of the paper: two processes that share a page end on one node like two threads of one. What they share comes from the
/// sampler; here only that whose threads they are makes no difference.
#[test]
fn processes_that_share_end_on_one_node_too() {
    let mut snapshot = ring(&FAR, 1e4, 0);
    for thread in &mut snapshot.threads {
        thread.process = ProcessId(thread.id.tid);
    }
    let plan = decided(&POLICY, &snapshot, 1, 10_000).unwrap();
    let places = places(&snapshot, &plan);
    assert!(FAR.iter().all(|&(one, other)| places[one] == places[other]), "{places:?}");
}

#[test]
fn a_mapping_is_made_at_most_every_period_of_snapshot_time() {
    let mut memory = Memory::default();
    assert!(!decided_with(&POLICY, &ring(&FAR, 1e4, 0), &mut memory).unwrap().is_empty());
    for ms in [10, 50, 99] {
        assert!(decided_with(&POLICY, &ring(&FAR, 1e4, ms), &mut memory).unwrap().is_empty(), "{ms} ms");
    }
    assert!(!decided_with(&POLICY, &ring(&FAR, 1e4, 100), &mut memory).unwrap().is_empty());
}

/// Four threads on two nodes, of which those `apart` share, `period` intervals of 100 ms after the start.
fn square(apart: usize, per_s: f64, period: u64) -> Snapshot {
    let builder = (0..4).fold(SnapshotBuilder::new(two_nodes(2)), |all, k| all.thread(k as u32, k / 2, None));
    let mut snapshot = builder.shared(0, apart, per_s).shared(3 - apart, 3, per_s).build();
    (snapshot.time_ns, snapshot.interval_ns) = (1_000_000_000 + period * 100_000_000, 100_000_000);
    snapshot
}

/// 1000 events of pairs within a node once, then 100 of pairs across in each interval: 1000 * 0.75^k of the first are
/// left against 100 * (1 + 0.75 + ...), which is more from the fifth time on.
#[test]
fn what_was_shared_ages_by_a_quarter_a_period() {
    let mut memory = Memory::default();
    assert!(decided_with(&POLICY, &square(1, 1e4, 0), &mut memory).unwrap().is_empty());
    let moves = |period: u64| !decided_with(&POLICY, &square(2, 1e3, period), &mut memory).unwrap().is_empty();
    let made: Vec<bool> = (1..=6).map(moves).collect();
    assert_eq!(made, [false, false, false, false, true, true]);
}

#[test]
fn periods_that_passed_unseen_age_too() {
    let mut memory = Memory::default();
    assert!(decided_with(&POLICY, &square(1, 1e4, 0), &mut memory).unwrap().is_empty());
    assert!(!decided_with(&POLICY, &square(2, 1e3, 10), &mut memory).unwrap().is_empty());
}

/// 1000 events of pairs within a node once, six periods in which only one thread runs, then 100 of pairs across:
/// 1000 * 0.75^7 are 133, which is more.
#[test]
fn periods_in_which_one_thread_runs_age_once_each() {
    let mut memory = Memory::default();
    assert!(decided_with(&POLICY, &square(1, 1e4, 0), &mut memory).unwrap().is_empty());
    for period in 1..7 {
        let mut alone = square(1, 0.0, period);
        alone.threads[1..].iter_mut().for_each(|thread| thread.cpu_time_ns = 0);
        assert!(decided_with(&POLICY, &alone, &mut memory).unwrap().is_empty());
    }
    assert!(decided_with(&POLICY, &square(2, 1e3, 7), &mut memory).unwrap().is_empty());
    assert!(!decided_with(&POLICY, &square(2, 1e3, 8), &mut memory).unwrap().is_empty());
}

#[test]
fn a_clock_that_goes_back_starts_anew() {
    let mut memory = Memory::default();
    assert!(decided_with(&POLICY, &square(1, 1e4, 1), &mut memory).unwrap().is_empty());
    assert!(!decided_with(&POLICY, &square(2, 1e3, 0), &mut memory).unwrap().is_empty());
}

#[test]
fn without_sharing_the_signal_is_missing_until_some_was_seen() {
    let missing = MissingSignal { policy: "kmaf", signal: Signal::ThreadSharing };
    let mut memory = Memory::default();
    assert_eq!(decided_with(&POLICY, &ring(&[], 0.0, 0), &mut memory).unwrap_err(), missing);
    assert!(decided_with(&POLICY, &ring(&NEAR, 1e4, 100), &mut memory).unwrap().is_empty());
    assert!(decided_with(&POLICY, &ring(&[], 0.0, 200), &mut memory).unwrap().is_empty());
    let alone = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
    assert!(decided(&POLICY, &alone, 1, 1).unwrap().is_empty());
}

#[test]
fn an_idle_thread_stays_with_whomever_it_shares() {
    let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).thread(2, 1, None).thread(3, 1, None);
    let mut snapshot = builder.shared(0, 2, 1e6).shared(0, 1, 1e3).build();
    snapshot.threads[2].cpu_time_ns = 9_000_000;
    let plan = decided(&POLICY, &snapshot, 1, 10_000).unwrap();
    let after = places(&snapshot, &plan);
    assert_eq!((after[0], after[2]), (after[1], 1));
}

#[test]
fn the_gate_keeps_a_mapping_that_is_hardly_worse() {
    let all: Vec<(usize, usize)> = (0..8).flat_map(|one| (one + 1..8).map(move |other| (one, other))).collect();
    let mut snapshot = ring(&all, 1e4, 0);
    let ids = [snapshot.threads[0].id, snapshot.threads[4].id];
    for (at, partner) in [(0, ids[1]), (4, ids[0])] {
        let cell = snapshot.threads[at].sharing.iter_mut().find(|cell| cell.0 == partner).unwrap();
        cell.1 *= 1.2;
    }
    assert!(decided(&POLICY, &snapshot, 1, 10_000).unwrap().is_empty());
    let parameters = POLICY.parameters(&BTreeMap::from([("min_gain_percent".to_owned(), 0.0)])).unwrap();
    let memory = &mut Memory::default();
    let inputs = &mut Inputs { snapshot: &snapshot, parameters: &parameters, memory, seed: 1, steps: 10_000 };
    assert!(!POLICY.decide(inputs).unwrap().is_empty());
}

#[test]
fn the_reason_says_what_is_shared_within_the_node_then_and_now() {
    let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).thread(2, 1, None).shared(0, 1, 1e3).build();
    let plan = decided(&POLICY, &snapshot, 1, 10_000).unwrap();
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].reason, "100 % of what it shares will be within node 0, 0 % is within node 1");
}
