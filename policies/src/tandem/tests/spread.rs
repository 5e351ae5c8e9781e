// SPDX-License-Identifier: GPL-2.0-only
//! Threads that can take their memory along, where nobody knows how long memories are waited for.

use super::*;

/// Eight threads on two nodes of four CPUs: `heavy` of them have memory, which is on node 0, as they are; the others compute.
fn heavy_on_node_0(heavy: u32, pages: u64) -> Snapshot {
    let threads = (0..8).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| {
        let rate = if tid < heavy { 8e6 } else { 0.0 };
        all.thread(tid, usize::from(tid >= 4), Some(&[rate, 0.0]))
    });
    let groups = (0..heavy).flat_map(|tid| [tid; 4]).fold(threads, |all, tid| {
        all.group_used_by(&[pages, 0], &[(tid, 2e6)]).with_group(|group| group.samples = 100.0)
    });
    groups.build()
}

/// Threads with memory by node, when the plan is carried out, and whether each has its memory where it is.
fn heavy_after(snapshot: &Snapshot, heavy: usize) -> ([usize; 2], bool) {
    let plan = planned(snapshot);
    let after = snapshot.after_thread_moves(&plan);
    let mut by_node = [0; 2];
    after.threads[..heavy].iter().for_each(|thread| by_node[thread.node.0] += 1);
    let went = moves(snapshot, &plan).1;
    let has_all = (0..heavy).filter(|&at| after.threads[at].node.0 == 1).all(|at| {
        let own = 4 * at..4 * at + 4;
        own.clone().all(|group| went.contains(&(group, 1)))
    });
    (by_node, has_all && went.iter().all(|&(group, _)| after.threads[group / 4].node.0 == 1))
}

#[test]
fn threads_with_all_memory_on_one_node_are_spread_and_take_it_along() {
    assert_eq!(heavy_after(&heavy_on_node_0(4, ALL), 4), ([2, 2], true));
    assert_eq!(heavy_after(&heavy_on_node_0(2, ALL), 2), ([1, 1], true));
}

#[test]
fn one_thread_alone_stays_and_so_do_those_with_too_much_to_take_along() {
    assert_eq!(heavy_after(&heavy_on_node_0(1, ALL), 1), ([1, 0], true));
    assert_eq!(heavy_after(&heavy_on_node_0(4, 40 * ALL), 4).0, [4, 0]);
}

#[test]
fn threads_that_may_not_leave_stay_and_the_others_are_spread() {
    let mut snapshot = heavy_on_node_0(4, ALL);
    snapshot.threads[..2].iter_mut().for_each(|thread| thread.allowed = PerNode::from_fn(2, |node| node.0 == 0));
    let after = snapshot.after_thread_moves(&planned(&snapshot));
    assert_eq!(after.threads[..4].iter().map(|thread| thread.node.0).collect::<Vec<_>>(), [0, 0, 1, 1]);
    snapshot.threads[..4].iter_mut().for_each(|thread| thread.allowed = PerNode::from_fn(2, |node| node.0 == 0));
    assert_eq!(heavy_after(&snapshot, 4).0, [4, 0]);
}

#[test]
fn what_threads_save_by_it_is_worth_a_trial_and_told() {
    let snapshot = heavy_on_node_0(4, ALL);
    let plan = planned(&snapshot);
    assert!(crate::stall::is_worth_a_trial(&plan, &snapshot), "{plan:?}");
    let reasons: Vec<&str> = plan.moves.iter().map(|planned| planned.reason.as_str()).collect();
    assert!(reasons[0].contains("the memory of node 1 has less to do, and it takes its own along"), "{reasons:?}");
}

/// Two threads of node 0, whose memory is there: so many groups of each, and so many that both use.
fn two_that_share(own: u32, common: u32) -> Snapshot {
    let here = |per_s: f64| [per_s, 0.0, 0.0, 0.0];
    let threads =
        [1, 2].iter().fold(SnapshotBuilder::new(ring_of_four(2)), |all, &tid| all.thread(tid, 0, Some(&here(8e6))));
    let (pages, per_s) = ([ALL, 0, 0, 0], 8e6 / f64::from(own + common));
    let owned = (0..2 * own).fold(threads, |all, at| all.group_used_by(&pages, &[(1 + at / own, per_s)]));
    (0..common).fold(owned, |all, _| all.group_used_by(&pages, &[(1, per_s), (2, per_s)])).build()
}

#[test]
fn nobody_goes_for_waits_that_go_with_the_memory_that_is_shared() {
    for (own, common) in [(2, 2), (4, 4), (1, 3)] {
        let snapshot = two_that_share(own, common);
        assert_eq!(moves(&snapshot, &planned(&snapshot)), (vec![], vec![]), "{own} of each, {common} of both");
    }
    let snapshot = two_that_share(3, 1);
    let (threads, groups) = moves(&snapshot, &planned(&snapshot));
    assert_eq!(threads.len(), 1, "with little in common one of them goes: {threads:?}");
    assert_eq!(groups.len(), 3, "and takes along what is its own: {groups:?}");
}

#[test]
fn of_two_pairs_that_share_all_memory_one_goes_and_what_that_saves_is_told() {
    let threads = (0..4).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid, 0, Some(&[8e6, 0.0])));
    let group = |all: SnapshotBuilder, at: u32| {
        let pair = 2 * (at / 4);
        let users = [(pair, 2e6), (pair + 1, 2e6)];
        all.group_used_by(&[ALL, 0], &users).with_group(|group| group.samples = 1000.0)
    };
    let snapshot = (0..8).fold(threads, group).build();
    let plan = planned(&snapshot);
    let (threads, groups) = moves(&snapshot, &plan);
    assert_eq!((threads.len(), groups.len()), (2, 4), "{threads:?} {groups:?}");
    let gain_ns_per_s: f64 = plan.moves.iter().filter_map(|planned| planned.gain_ns_per_s).sum();
    assert!(gain_ns_per_s > 0.0 && crate::stall::is_worth_a_trial(&plan, &snapshot), "{plan:?}");
}
