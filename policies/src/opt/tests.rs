// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::Topology;
use crate::registry::Memory;
use crate::testing::{SnapshotBuilder, decided_with, ring_of_four, two_nodes};

type Pairs = Vec<(usize, usize)>;

/// Slices of 10 ms with threads where the plans so far have put them.
struct Run {
    snapshot: Snapshot,
    memory: Memory,
    /// Times of plans, and of phases after the first, in ms.
    plans: Vec<u64>,
    phases: Vec<u64>,
    ms: u64,
}

impl Run {
    fn new(topology: Topology, nodes: &[usize]) -> Self {
        let add = |all: SnapshotBuilder, (tid, &node): (usize, &usize)| all.thread(tid as u32, node, None);
        let mut snapshot = nodes.iter().enumerate().fold(SnapshotBuilder::new(topology), add).build();
        snapshot.interval_ns = 10_000_000;
        snapshot.threads.iter_mut().for_each(|thread| thread.cpu_time_ns = 10_000_000);
        Self { snapshot, memory: Memory::default(), plans: vec![], phases: vec![], ms: 0 }
    }

    /// Lets threads share in `pairs` for `ms`.
    fn share(&mut self, pairs: &Pairs, per_s: f64, ms: u64) {
        self.snapshot.threads.iter_mut().for_each(|thread| thread.sharing.clear());
        for &(one, other) in pairs {
            for (at, partner) in [(one, other), (other, one)] {
                let partner = self.snapshot.threads[partner].id;
                self.snapshot.threads[at].sharing.push((partner, per_s));
            }
        }
        self.snapshot.threads.iter_mut().for_each(|thread| thread.sharing.sort_by_key(|cell| cell.0));
        let end = self.ms + ms;
        while self.ms < end {
            self.ms += 10;
            self.snapshot.time_ns = self.ms * 1_000_000;
            let before = self.phase();
            let plan = decided_with(&POLICY, &self.snapshot, &mut self.memory).unwrap();
            if before > 0 && self.phase() > before {
                self.phases.push(self.ms);
            }
            if !plan.is_empty() {
                self.plans.push(self.ms);
                self.snapshot = self.snapshot.after_thread_moves(&plan);
            }
        }
    }

    fn phase(&mut self) -> u64 {
        self.memory.of::<State>().phase.as_ref().map_or(0, |phase| phase.number)
    }

    fn on_one_node(&self, pairs: &Pairs) -> bool {
        pairs.iter().all(|&(one, other)| self.snapshot.threads[one].node == self.snapshot.threads[other].node)
    }
}

fn apart(threads: usize, apart: usize) -> Pairs {
    (0..threads).filter(|thread| (thread / apart).is_multiple_of(2)).map(|thread| (thread, thread + apart)).collect()
}

fn all_to_all(threads: usize) -> Pairs {
    (0..threads).flat_map(|one| (one + 1..threads).map(move |other| (one, other))).collect()
}

fn eight() -> Run {
    Run::new(ring_of_four(2), &[0, 0, 1, 1, 2, 2, 3, 3])
}

#[test]
fn phases_of_two_seconds_are_found_and_mapped_at_most_once_each() {
    let mut run = eight();
    for _ in 0..3 {
        run.share(&apart(8, 4), 1e4, 2000);
        run.share(&all_to_all(8), 1e4, 2000);
    }
    assert_eq!(run.phases.len(), 5, "{:?}", run.phases);
    for (change, found) in [2000, 4000, 6000, 8000, 10_000].into_iter().zip(&run.phases) {
        assert!((change..=change + 500).contains(found), "{:?}", run.phases);
    }
    for phase in 0..6 {
        let range = 2000 * phase..2000 * (phase + 1);
        assert!(run.plans.iter().filter(|&plan| range.contains(plan)).count() <= 1, "{:?}", run.plans);
    }
    assert!(run.on_one_node(&apart(8, 4)));
}

#[test]
fn the_first_phase_is_mapped_once_a_window_is_full() {
    let mut run = eight();
    run.share(&apart(8, 4), 1e4, 1500);
    assert_eq!(run.plans, [500]);
    assert!(run.on_one_node(&apart(8, 4)));
}

#[test]
fn a_new_phase_is_mapped_for_what_its_threads_share() {
    let mut run = eight();
    run.share(&all_to_all(8), 1e4, 2000);
    assert!(run.plans.is_empty());
    run.share(&apart(8, 4), 1e4, 2000);
    assert_eq!(run.plans.len(), 1);
    assert!(run.on_one_node(&apart(8, 4)));
}

/// The blind spot of the source: C_H is the same whichever threads share.
#[test]
fn threads_that_pair_up_anew_are_not_noticed() {
    let mut run = eight();
    run.share(&apart(8, 4), 1e4, 2000);
    assert_eq!(run.plans.len(), 1);
    run.share(&apart(8, 1), 1e4, 4000);
    assert_eq!((run.plans.len(), run.phases.len()), (1, 0));
    assert!(!run.on_one_node(&apart(8, 1)));
}

/// The other one: C_H of pure pairs is 10^4 / T, less than 100 with more than 98 threads.
#[test]
fn pure_pairs_are_mapped_up_to_98_threads() {
    for (threads, plans) in [(98, 1), (100, 0)] {
        let nodes: Vec<usize> = (0..threads).map(|thread| thread % 2).collect();
        let mut run = Run::new(two_nodes(60), &nodes);
        run.share(&apart(threads, 1), 1e4, 600);
        assert_eq!(run.plans.len(), plans, "{threads} threads");
    }
}

#[test]
fn threads_that_all_share_alike_are_not_migrated() {
    let mut run = Run::new(ring_of_four(2), &[0, 1, 2, 3]);
    run.share(&all_to_all(4), 1e4, 3000);
    assert!(run.plans.is_empty());
}

/// 4 pairs with 30 events a second each are 120, with 40 they are 160.
#[test]
fn few_events_are_no_reason_to_migrate() {
    for (per_s, plans) in [(30.0, 0), (40.0, 1)] {
        let mut run = eight();
        run.share(&apart(8, 4), per_s, 1000);
        assert_eq!(run.plans.len(), plans, "{per_s} per s and pair");
    }
}

#[test]
fn a_second_lies_between_migrations_though_the_change_is_not_forgotten() {
    let mut run = eight();
    run.share(&all_to_all(8), 1e4, 1000);
    run.memory.of::<State>().migrated_ns = Some(1_500_000_000);
    run.share(&apart(8, 4), 1e4, 2000);
    assert_eq!(run.plans, [2500]);
}

#[test]
fn a_mapping_that_is_the_present_one_is_no_migration() {
    let mut run = eight();
    run.share(&apart(8, 1), 1e4, 2000);
    assert!(run.plans.is_empty());
    assert!(run.memory.of::<State>().phase.as_ref().unwrap().mapped);
}

#[test]
fn a_thread_on_cooldown_delays_the_mapping_and_does_not_prevent_it() {
    let mut run = Run::new(two_nodes(2), &[0, 1, 0]);
    run.snapshot.threads.iter_mut().for_each(|thread| thread.on_cooldown = true);
    run.share(&vec![(0, 1)], 1e4, 1000);
    assert!(run.plans.is_empty());
    run.snapshot.threads.iter_mut().for_each(|thread| thread.on_cooldown = false);
    run.share(&vec![(0, 1)], 1e4, 10);
    assert_eq!(run.plans, [1010]);
}

#[test]
fn intervals_longer_than_a_window_are_windows_themselves() {
    let mut run = eight();
    run.snapshot.interval_ns = 1_000_000_000;
    run.snapshot.threads.iter_mut().for_each(|thread| thread.cpu_time_ns = 1_000_000_000);
    run.share(&all_to_all(8), 1e4, 30);
    run.share(&apart(8, 4), 1e4, 10);
    assert_eq!((run.phases, run.plans), (vec![40], vec![40]));
}

#[test]
fn without_sharing_the_signal_is_missing_until_some_was_seen() {
    let mut run = eight();
    let missing = MissingSignal { policy: "opt", signal: Signal::ThreadSharing };
    assert_eq!(decided_with(&POLICY, &run.snapshot, &mut run.memory).unwrap_err(), missing);
    run.share(&apart(8, 1), 1e4, 100);
    run.share(&vec![], 0.0, 100);
}

#[test]
fn a_clock_that_goes_back_starts_anew() {
    let mut run = eight();
    run.share(&apart(8, 1), 1e4, 2000);
    run.ms = 0;
    run.share(&apart(8, 4), 1e4, 600);
    assert_eq!(run.plans, [500]);
}

#[test]
fn the_reason_names_the_phase_and_its_heterogeneity() {
    let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(0, 0, None).thread(1, 1, None).thread(2, 0, None);
    let snapshot = snapshot.shared(0, 1, 1e3).build();
    let plan = decided_with(&POLICY, &snapshot, &mut Memory::default()).unwrap();
    // Rows (100, 0) twice, and (0, 0): 2 * (50^2 + 50^2) / 9.
    let start = "phase 1 (C_H 1111): ";
    assert!(plan.moves[0].reason.starts_with(start), "{}", plan.moves[0].reason);
}
