// SPDX-License-Identifier: GPL-2.0-only
//! Why threads stay away from the memory that they use most.

use super::*;
use crate::stay::Stay;

/// What a decision leaves, and why.
pub fn stays(snapshot: &Snapshot) -> Vec<Stay> {
    let mut memory = Memory::default();
    decided_with(&POLICY, snapshot, &mut memory).unwrap();
    (POLICY.stays)(&memory).to_vec()
}

/// Two threads on nodes of one CPU each; both use memory of node 1 that may not move.
fn one_cpu_for_two() -> SnapshotBuilder {
    let threads = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 1);
    let group = |all: SnapshotBuilder, tid| {
        all.group_used_by(&[0, ALL], &[(tid, 1e6)]).with_group(|group| group.unmovable = Some(Unmovable::Pinned))
    };
    [1, 2].into_iter().fold(threads, group)
}

#[test]
fn a_thread_that_would_take_anothers_cpu_stays_for_want_of_it() {
    let snapshot = one_cpu_for_two().build();
    let [stay] = stays(&snapshot)[..] else { panic!("one thread is far from its memory: {:?}", stays(&snapshot)) };
    assert_eq!((stay.thread.tid, stay.at, stay.preferred), (1, NodeIndex(0), NodeIndex(1)));
    // A million accesses, each 110 ns nearer. A node may be over-full by 0.05 CPUs for nothing.
    let near = |one: f64, other: f64| (one - other).abs() < 1.0;
    assert!(near(stay.saved_ns_per_s, 1e6 * 110.0) && near(stay.cpus_ns_per_s, 0.95e9), "{stay:?}");
    assert!(stay.price_ns_per_s > 0.0 && stay.waits_ns_per_s == 0.0, "{stay:?}");
    let problem = problem(&snapshot);
    let [here, there] = [[0, 1], [1, 1]].map(|place| cost(&problem, &place));
    assert!(near(stay.gain_ns_per_s(), here - there), "{stay:?}: {here} {there}");
}

/// Five threads with their memory on node 1, which takes long to serve it; the last of them is on node 0.
fn all_wait() -> Snapshot {
    let threads = (1..=4).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread_with_memory_on(tid, 1, 1));
    let threads = threads.thread_with_memory_on(5, 0, 1);
    let mut snapshot = (1..=5).fold(threads, |all, tid| all.group_used_by(&[0, ALL], &[(tid, 1e6)])).build();
    snapshot.nodes[NodeIndex(1)].served_latency_ns = Some(2000.0);
    snapshot.threads.iter_mut().for_each(|thread| thread.latency_ns = Some(2000.0));
    snapshot
}

#[test]
fn waits_at_a_busy_memory_are_told_apart_from_the_way_to_it() {
    let snapshot = all_wait();
    let after = snapshot.after_thread_moves(&planned(&snapshot));
    let place: Vec<usize> = after.threads.iter().map(|thread| thread.node.0).collect();
    let [stay] = stays(&snapshot)[..] else { panic!("{:?}", stays(&snapshot)) };
    assert!(stay.thread.tid == 5 && stay.waits_ns_per_s > 0.1e9 && stay.cpus_ns_per_s == 0.0, "{stay:?}");
    let problem = problem(&snapshot);
    let there: Vec<usize> = place.iter().enumerate().map(|(at, &node)| if at == 4 { 1 } else { node }).collect();
    let gain = cost(&problem, &place) - cost(&problem, &there);
    assert!((stay.gain_ns_per_s() - gain).abs() < 1.0, "{stay:?}: {gain}");
}

#[test]
fn who_goes_or_may_not_go_or_is_beside_its_memory_is_not_told_to_stay() {
    let goes = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1);
    let goes = (0..512).fold(goes, |all, _| all.group_used_by(&[0, ALL], &[(1, 1e6 / 512.0)])).build();
    assert_eq!((planned(&goes).moves.len(), stays(&goes)), (1, vec![]));
    let mut bound = one_cpu_for_two().build();
    bound.threads[0].allowed[NodeIndex(1)] = false;
    assert_eq!(stays(&bound), vec![]);
    let beside = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 0).build();
    assert_eq!(stays(&beside), vec![]);
}
