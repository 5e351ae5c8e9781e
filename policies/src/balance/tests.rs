// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::Unmovable;
use crate::testing::{PageRun, SnapshotBuilder, ring_of_four};

const ALL: u64 = 512;

/// Threads 0 to 3, thread i on node i of the ring.
fn ring() -> SnapshotBuilder {
    (0..4).fold(SnapshotBuilder::new(ring_of_four(1)), |all, tid| all.thread(tid, tid as usize, None))
}

/// A group on node 0 that all four threads use, `per_s` in all.
fn shared(builder: SnapshotBuilder, per_s: f64) -> SnapshotBuilder {
    let users: Vec<(u32, f64)> = (0..4).map(|tid| (tid, per_s / 4.0)).collect();
    builder.group_used_by(&[ALL, 0, 0, 0], &users)
}

fn loads(snapshot: &Snapshot) -> Vec<f64> {
    let mut loads = PerNode::filled(snapshot.topology.len(), 0.0);
    Ledger::of(&snapshot.groups).iter().for_each(|weighed| weighed.add_to(&mut loads));
    loads.values().copied().collect()
}

#[test]
fn shared_pages_spread_over_all_nodes_and_then_stay() {
    let mut run = PageRun::new(&POLICY, (0..8).fold(ring(), |all, _| shared(all, 100.0)).build());
    assert_eq!(run.step().len(), 6);
    assert_eq!(loads(&run.snapshot), [200.0; 4]);
    assert_eq!(run.step(), []);
}

#[test]
fn a_few_hot_pages_weigh_as_much_as_many_cold_ones() {
    let cold = (0..6).fold(shared(ring(), 600.0), |all, _| shared(all, 100.0));
    let mut run = PageRun::new(&POLICY, cold.build()).with("page_nodes", 2.0);
    run.step();
    assert_eq!(loads(&run.snapshot), [600.0, 600.0, 0.0, 0.0]);
    assert_eq!(run.step(), []);
}

#[test]
fn private_pages_go_to_their_thread_however_loaded_it_is() {
    let builder = (0..3).fold(ring(), |all, _| all.group_used_by(&[ALL, 0, 0, 0], &[(2, 50.0)]));
    let mut run = PageRun::new(&POLICY, builder.build());
    assert_eq!(run.step(), [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(run.step(), []);
}

#[test]
fn only_nodes_of_threads_that_use_a_page_may_serve_it() {
    let builder = (0..4).fold(ring(), |all, _| all.group_used_by(&[ALL, 0, 0, 0], &[(0, 50.0), (3, 50.0)]));
    let mut run = PageRun::new(&POLICY, builder.build());
    assert_eq!(run.step(), [(0, 3), (1, 3)]);
}

/// Threads on 2 nodes, pages on 4: the best placement of Streamcluster in the source.
#[test]
fn pages_may_use_more_nodes_than_threads() {
    let threads = SnapshotBuilder::new(ring_of_four(2)).thread(0, 0, None).thread(1, 1, None);
    let shared = |all: SnapshotBuilder, _| all.group_used_by(&[ALL, 0, 0, 0], &[(0, 50.0), (1, 50.0)]);
    let mut run = PageRun::new(&POLICY, (0..8).fold(threads, shared).build()).with("page_nodes", 4.0);
    run.step();
    assert_eq!(loads(&run.snapshot), [200.0; 4]);
}

#[test]
fn a_load_within_the_tolerance_stays() {
    let with = |here: f64| {
        let builder = shared(shared(ring(), 10.0), here);
        let mut run = PageRun::new(&POLICY, builder.build()).with("page_nodes", 2.0);
        run.snapshot.groups[1].unmovable = Some(Unmovable::Pinned);
        run.decide()
    };
    // Node 1 would have 10 then, node 0 has 10 and what is pinned there.
    assert_eq!((with(0.9), with(1.1)), (vec![], vec![(0, 1)]));
}

#[test]
fn what_may_not_move_counts_where_it_is() {
    let mut run = PageRun::new(&POLICY, shared(shared(ring(), 100.0), 100.0).build());
    assert_eq!(run.decide().len(), 1);
    run.snapshot.groups[0].unmovable = Some(Unmovable::Bound);
    assert_eq!(run.decide(), [(1, 1)]);
}

#[test]
fn a_group_on_two_nodes_is_load_on_both() {
    let builder = shared(ring(), 100.0).with_group(|group| group.resident_pages = vec![384, 128, 0, 0].into());
    assert_eq!(loads(&builder.build()), [75.0, 25.0, 0.0, 0.0]);
}

#[test]
fn evening_claims_no_gain_and_says_the_loads() {
    let plan = PageRun::new(&POLICY, shared(shared(ring(), 100.0), 100.0).build()).plan().unwrap();
    assert_eq!(plan.moves[0].gain_ns_per_s, None);
    let reason = "node 0 serves 200 accesses/s, node 1 0; it takes 100 there";
    assert_eq!(plan.moves[0].reason, reason);
}

#[test]
fn without_users_the_signal_is_missing_unless_the_nodes_are_given() {
    let run =
        || PageRun::new(&POLICY, ring().group(&[ALL, 0, 0, 0], &[9.0; 4]).group(&[ALL, 0, 0, 0], &[9.0; 4]).build());
    assert_eq!(run().plan().unwrap_err().signal, Signal::GroupUsers);
    assert_eq!(run().with("page_nodes", 4.0).decide().len(), 1);
}
