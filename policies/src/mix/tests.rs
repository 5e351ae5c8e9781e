// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::Unmovable;
use crate::testing::{PageRun, SnapshotBuilder, ring_of_four};

const ALL: u64 = 512;

/// Threads 0 to 3, thread i on node i of the ring.
fn ring() -> SnapshotBuilder {
    (0..4).fold(SnapshotBuilder::new(ring_of_four(1)), |all, tid| all.thread(tid, tid as usize, None))
}

/// A group on node 3 that thread 0 uses most and all others too.
fn shared(builder: SnapshotBuilder) -> SnapshotBuilder {
    builder.group_used_by(&[0, 0, 0, ALL], &[(0, 40.0), (1, 20.0), (2, 20.0), (3, 20.0)])
}

#[test]
fn private_data_goes_to_its_threads() {
    let builder = (0..4).fold(ring(), |all, tid| all.group_used_by(&[ALL, 0, 0, 0], &[(tid, 50.0)]));
    let mut run = PageRun::new(&POLICY, builder.build());
    assert_eq!(run.step(), [(1, 1), (2, 2), (3, 3)]);
    assert_eq!(run.step(), []);
}

#[test]
fn with_page_nodes_no_thread_takes_its_data_to_another_node() {
    let builder = (0..4).fold(ring(), |all, tid| all.group_used_by(&[ALL, 0, 0, 0], &[(tid, 50.0)]));
    let mut run = PageRun::new(&POLICY, builder.build()).with("page_nodes", 2.0);
    // 200 in all, 125 a node at most: node 0 keeps one of those whose threads are on nodes 2 and 3.
    assert_eq!(run.step(), [(1, 1), (3, 1)]);
    assert_eq!(run.step(), []);
}

#[test]
fn shared_data_goes_to_its_top_thread_until_that_node_overloads_and_then_to_the_others() {
    let mut run = PageRun::new(&POLICY, (0..8).fold(ring(), |all, _| shared(all)).build());
    run.step();
    let at = |node: usize| {
        run.snapshot.groups.iter().filter(|group| group.resident_pages.values().nth(node) == Some(&ALL)).count()
    };
    // 800 in all, 200 a node, 250 at most: two groups each. Node 3 has them already.
    assert_eq!([at(0), at(1), at(2), at(3)], [2, 2, 2, 2]);
    assert_eq!(run.step(), []);
}

#[test]
fn without_a_bound_mix_is_locality() {
    let mut run = PageRun::new(&POLICY, (0..8).fold(ring(), |all, _| shared(all)).build());
    run = run.with("overload_percent", 1000.0);
    assert_eq!(run.step(), (0..8).map(|at| (at, 0)).collect::<Vec<_>>());
}

#[test]
fn a_group_heavier_than_any_bound_is_local_where_nothing_else_is() {
    assert_eq!(PageRun::new(&POLICY, shared(ring()).build()).decide(), [(0, 0)]);
}

#[test]
fn what_may_not_move_fills_its_node_first() {
    let mut run = PageRun::new(&POLICY, shared(shared(shared(ring()))).build());
    assert_eq!(run.decide()[0], (0, 0));
    run.snapshot.groups[2].resident_pages = vec![ALL, 0, 0, 0].into();
    run.snapshot.groups[2].unmovable = Some(Unmovable::Pinned);
    // 300 in all, 75 a node: node 0 is full with what is pinned there; node 3 keeps one, node 1 takes the other.
    assert_eq!(run.step(), [(1, 1)]);
}

#[test]
fn the_gain_is_known_where_pages_go_to_their_thread_and_not_where_they_overflow() {
    let plan = PageRun::new(&POLICY, (0..8).fold(ring(), |all, _| shared(all)).build()).plan().unwrap();
    assert!(plan.moves[0].gain_ns_per_s.is_some());
    let overflow = plan.moves.iter().find(|planned| planned.gain_ns_per_s.is_none()).unwrap();
    assert_eq!(overflow.reason, "node 0 would serve more than 250 accesses/s with it, node 1 serves 0");
}

#[test]
fn without_users_the_signal_is_missing() {
    let error = PageRun::new(&POLICY, ring().group(&[ALL, 0, 0, 0], &[9.0; 4]).build()).plan().unwrap_err();
    assert_eq!(error.signal, Signal::GroupUsers);
}
