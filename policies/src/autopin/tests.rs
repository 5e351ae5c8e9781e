// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::ProcessId;
use crate::testing::{SnapshotBuilder, decided, machine, two_nodes};

const MS: u64 = 1_000_000;

/// Four threads on two nodes of two CPUs each, spread; intervals of 100 ms.
fn spread() -> Snapshot {
    let add = |all: SnapshotBuilder, k: u32| all.thread(k, k as usize % 2, None);
    let mut snapshot = (0..4).fold(SnapshotBuilder::new(two_nodes(2)), add).build();
    (snapshot.time_ns, snapshot.interval_ns) = (10_000 * MS, 100 * MS);
    for thread in &mut snapshot.threads {
        thread.cpu_time_ns = 100 * MS;
        (thread.operations_per_s, thread.cycles_per_s) = (Some(1e9), Some(1e9));
    }
    snapshot
}

fn places(snapshot: &Snapshot) -> Vec<usize> {
    snapshot.threads.iter().map(|thread| thread.node.0).collect()
}

/// A machine that follows every plan and has the IPC that `per_cycle` gives its placement.
struct Machine {
    now: Snapshot,
    trial: Trial,
    parameters: Parameters,
    per_cycle: fn(&[usize]) -> f64,
}

impl Machine {
    fn new(per_cycle: fn(&[usize]) -> f64) -> Self {
        Self { now: spread(), trial: Trial::default(), parameters: POLICY.defaults(), per_cycle }
    }

    /// One interval; the plan at its end.
    fn interval(&mut self) -> Plan {
        self.now.time_ns += self.now.interval_ns;
        let per_cycle = (self.per_cycle)(&places(&self.now));
        self.now.threads.iter_mut().for_each(|thread| thread.operations_per_s = Some(1e9 * per_cycle));
        let plan = decide(&self.now, &self.parameters, &mut self.trial, 7).unwrap();
        self.now = self.now.after_thread_moves(&plan);
        plan
    }
}

#[test]
fn compact_comes_first_and_the_next_mapping_after_warm_up_and_measurement() {
    let mut machine = Machine::new(|_| 1.0);
    let plan = machine.interval();
    assert_eq!(places(&machine.now), [0, 0, 1, 1]);
    assert!(plan.moves[0].reason.contains("tries mapping 1 of 5, compact"), "{}", plan.moves[0].reason);
    // 500 ms of warm-up and two intervals for 150 ms.
    for interval in 1..=6 {
        assert!(machine.interval().is_empty() && machine.trial.tried == 1, "interval {interval}");
    }
    machine.interval();
    assert_eq!(machine.trial.tried, 2);
}

/// Compact is that of the policy `compact`: by process, and over nodes in the order of their distance.
#[test]
fn the_first_mapping_is_that_of_compact() {
    let topology = machine(&[2; 3], &[&[10, 20, 12], &[20, 10, 20], &[12, 20, 10]]);
    let add = |all: SnapshotBuilder, k: u32| all.thread(k, 1, None);
    let mut snapshot = (0..5).fold(SnapshotBuilder::new(topology), add).build();
    for (thread, process) in snapshot.threads.iter_mut().zip([2, 1, 1, 2, 1]) {
        thread.process = ProcessId(process);
        (thread.operations_per_s, thread.cycles_per_s) = (Some(1e9), Some(1e9));
    }
    let plan = decide(&snapshot, &POLICY.defaults(), &mut Trial::default(), 1).unwrap();
    let after = snapshot.after_thread_moves(&plan);
    assert_eq!(places(&after), [2, 0, 0, 1, 2]);
    let compact = decided(&crate::compact::POLICY, &snapshot, 1, 1).unwrap();
    assert_eq!(places(&after), places(&snapshot.after_thread_moves(&compact)));
}

#[test]
fn the_mapping_with_the_most_instructions_per_cycle_is_kept_and_then_nothing_moves() {
    // The better the more of threads 0 and 3 are on node 1.
    let mut machine = Machine::new(|places| 1.0 + (places[0] + places[3]) as f64 - 0.5 * places[1] as f64);
    let mut best = 0.0f64;
    for _ in 0..5 * 7 + 1 {
        machine.interval();
        if machine.trial.tried > 0 {
            best = best.max((machine.per_cycle)(&places(&machine.now)));
        }
    }
    assert!(matches!(machine.trial.phase, Phase::Settled));
    assert_eq!((machine.per_cycle)(&places(&machine.now)), best);
    assert!((0..20).all(|_| machine.interval().is_empty()));
}

#[test]
fn the_first_of_equal_mappings_is_kept() {
    let mut machine = Machine::new(|_| 1.0);
    (0..40).for_each(|_| drop(machine.interval()));
    assert_eq!(places(&machine.now), [0, 0, 1, 1]);
}

#[test]
fn the_warm_up_is_not_measured() {
    let mut machine = Machine::new(|_| 1.0);
    machine.interval();
    machine.per_cycle = |_| 100.0;
    (0..5).for_each(|_| drop(machine.interval()));
    machine.per_cycle = |_| 2.0;
    (0..2).for_each(|_| drop(machine.interval()));
    assert_eq!(machine.trial.best.as_ref().map(|(per_cycle, _)| *per_cycle), Some(2.0));
}

#[test]
fn a_mapping_waits_for_the_end_of_cooldowns() {
    let mut machine = Machine::new(|_| 1.0);
    machine.now.threads[2].on_cooldown = true;
    (0..5).for_each(|_| assert!(machine.interval().is_empty()));
    machine.now.threads[2].on_cooldown = false;
    assert!(!machine.interval().is_empty());
}

#[test]
fn it_tries_again_when_most_threads_are_new() {
    let mut machine = Machine::new(|_| 1.0);
    (0..40).for_each(|_| drop(machine.interval()));
    machine.now.threads[3].id.start_boottime_ns = 99;
    machine.now.threads[2].id.start_boottime_ns = 99;
    machine.interval();
    assert!(matches!(machine.trial.phase, Phase::Settled));
    machine.now.threads[1].id.start_boottime_ns = 99;
    machine.interval();
    assert_eq!(machine.trial.tried, 1);
}

#[test]
fn threads_go_only_where_they_may() {
    let mut machine = Machine::new(|_| 1.0);
    machine.now.threads[1].allowed = vec![false, true].into();
    for _ in 0..40 {
        machine.interval();
        assert_eq!(machine.now.threads[1].node, NodeIndex(1));
    }
}

#[test]
fn missing_signals_are_named_and_no_threads_are_an_empty_plan() {
    let missing =
        |snapshot: &Snapshot| decide(snapshot, &POLICY.defaults(), &mut Trial::default(), 1).unwrap_err().signal;
    let mut snapshot = spread();
    snapshot.threads.iter_mut().for_each(|thread| thread.cycles_per_s = None);
    assert_eq!(missing(&snapshot), Signal::ThreadCycles);
    snapshot.threads.iter_mut().for_each(|thread| thread.operations_per_s = None);
    assert_eq!(missing(&snapshot), Signal::ThreadOperations);
    snapshot.threads.clear();
    assert!(decide(&snapshot, &POLICY.defaults(), &mut Trial::default(), 1).unwrap().is_empty());
}
