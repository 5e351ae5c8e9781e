// SPDX-License-Identifier: GPL-2.0-only
//! For how long the moves of a process must pay.

use super::*;

#[test]
fn the_horizon_grows_while_placements_last_and_shrinks_when_they_are_taken_back() {
    let crossed = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
    let mut snapshot = crossed.build();
    let (parameters, mut history) = (POLICY.defaults(), History::default());
    let second = 1_000_000_000;
    let horizon_s = |history: &mut History, snapshot: &Snapshot, time_ns: u64| {
        let active: Vec<&Thread> = snapshot.threads.iter().collect();
        let snapshot = &Snapshot { time_ns, ..snapshot.clone() };
        history.horizons(snapshot, &active, &parameters).of_s(Some(snapshot.threads[0].process))
    };
    assert_eq!(horizon_s(&mut history, &snapshot, snapshot.time_ns), 10.0);
    let plan = planned(&snapshot);
    history.note(&snapshot, &plan, &parameters);
    assert_eq!(horizon_s(&mut history, &snapshot, snapshot.time_ns + 10 * second), 20.0);
    assert_eq!(horizon_s(&mut history, &snapshot, snapshot.time_ns + 29 * second), 20.0);
    // Two seconds later they want to go back.
    snapshot = snapshot.after_thread_moves(&plan);
    snapshot.time_ns += 31 * second;
    snapshot.threads.iter_mut().for_each(|thread| {
        thread.accesses_per_s =
            thread.accesses_per_s.take().map(|row| PerNode::from_fn(2, |node| row[NodeIndex(1 - node.0)]));
    });
    assert_eq!(horizon_s(&mut history, &snapshot, snapshot.time_ns), 40.0);
    let back = planned(&snapshot);
    assert_eq!(moves(&snapshot, &back).0.len(), 2);
    history.note(&snapshot, &back, &parameters);
    assert_eq!(horizon_s(&mut history, &snapshot, snapshot.time_ns), 31.0);
}

#[test]
fn each_process_has_the_horizon_of_its_own_placements_and_phases() {
    let second = 1_000_000_000;
    let crossed = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
    let mut snapshot = crossed.build();
    let (parameters, mut history) = (POLICY.defaults(), History::default());
    let [first, other, third] = [1, 2, 3].map(ProcessId);
    snapshot.threads[0].process = first;
    snapshot.threads[1].process = other;
    let mut horizons_s = |snapshot: &Snapshot, at_s: u64, plan: Option<Plan>| {
        let snapshot = &Snapshot { time_ns: at_s * second, ..snapshot.clone() };
        let active: Vec<&Thread> = snapshot.threads.iter().collect();
        let horizons = history.horizons(snapshot, &active, &parameters);
        history.note(snapshot, &plan.unwrap_or_default(), &parameters);
        [first, other, third].map(|process| horizons.of_s(Some(process)))
    };
    let moves_first = |from: usize, to: usize| {
        let (thread, from, to) = (snapshot.threads[0].id, NodeIndex(from), NodeIndex(to));
        let action = Action::MoveThread { thread, from, to, cpu: None };
        Some(Plan { moves: vec![Move { action, gain_ns_per_s: None, reason: "test".to_owned() }] })
    };
    assert_eq!(horizons_s(&snapshot, 100, moves_first(0, 1)), [10.0; 3]);
    assert_eq!(horizons_s(&snapshot, 104, moves_first(1, 0)), [10.0; 3]);
    assert_eq!(horizons_s(&snapshot, 105, None), [4.0, 10.0, 10.0], "taken back after four seconds");
    assert_eq!(horizons_s(&snapshot, 110, None), [8.0, 20.0, 10.0], "nothing of the other one was moved");
    let mut turned = snapshot.clone();
    turned.threads[1].turned_ns = Some(112 * second);
    assert_eq!(horizons_s(&turned, 112, None), [8.0, 12.0, 10.0], "its first phase took so long");
    snapshot.threads.remove(1);
    assert_eq!(horizons_s(&snapshot, 113, None), [8.0, 10.0, 10.0], "it is gone");
}

#[test]
fn pages_that_come_back_from_several_nodes_were_there_for_as_long_as_that_took() {
    let thread = SnapshotBuilder::new(ring_of_four(1)).thread_with_memory_on(1, 0, 0);
    let mut snapshot = (0..3).fold(thread, |all, _| all.group_used_by(&[ALL, 0, 0, 0], &[(1, 3e5)])).build();
    let (parameters, mut history) = (POLICY.defaults(), History::default());
    let mut move_at = |at_s: u64, to: [usize; 3]| {
        snapshot.time_ns = at_s * 1_000_000_000;
        let active: Vec<&Thread> = snapshot.threads.iter().collect();
        let horizon_s = history.horizons(&snapshot, &active, &parameters).of_s(Some(ProcessId(1)));
        let groups = snapshot.groups.iter().zip(to);
        let go = |(group, to): (&crate::model::PageGroup, usize)| {
            let action = Action::MovePages { group: group.id, bytes: group.bytes, to: NodeIndex(to) };
            Move { action, gain_ns_per_s: None, reason: "test".to_owned() }
        };
        history.note(&snapshot, &Plan { moves: groups.map(go).collect() }, &parameters);
        snapshot.groups.iter_mut().zip(to).for_each(|(group, to)| {
            group.resident_pages = PerNode::from_fn(4, |node| if node.0 == to { ALL } else { 0 });
        });
        horizon_s
    };
    assert_eq!([move_at(100, [1, 2, 3]), move_at(104, [0; 3]), move_at(105, [0; 3])], [10.0, 10.0, 4.0]);
}

#[test]
fn the_horizon_is_as_long_as_the_phases_of_the_program() {
    let second = 1_000_000_000;
    let mut snapshot =
        (0..8).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid, 0, Some(&[1e6, 0.0]))).build();
    let (parameters, mut history) = (POLICY.defaults(), History::default());
    let mut horizon_s = |at_s: u64, turned: std::ops::Range<usize>| {
        snapshot.threads[turned].iter_mut().for_each(|thread| thread.turned_ns = Some(at_s * second));
        let snapshot = &Snapshot { time_ns: at_s * second, ..snapshot.clone() };
        let active: Vec<&Thread> = snapshot.threads.iter().collect();
        history.horizons(snapshot, &active, &parameters).of_s(Some(active[0].process))
    };
    assert_eq!(horizon_s(100, 0..0), 10.0);
    assert_eq!(horizon_s(101, 0..1), 10.0, "one of eight is no phase");
    assert_eq!(horizon_s(103, 0..2), 3.0, "the first phase took three seconds");
    assert_eq!(horizon_s(105, 4..8), 2.0);
    assert_eq!(horizon_s(106, 0..0), 2.0, "none turned since");
    assert_eq!(horizon_s(107, 0..0), 4.0, "it lasts");
}
