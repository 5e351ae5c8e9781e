// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use super::*;
use crate::model::{Action, NodeIndex, PAGE_BYTES, PageGroup, Topology, Unmovable};

use crate::testing::{SnapshotBuilder, machine, machine_with_ids, page_destinations, ring_of_four, two_nodes};

/// Pages of a group of 2 MiB.
const ALL: u64 = 0x20_0000 / PAGE_BYTES;
/// Accesses from node 1 of two.
const FROM_1: [f64; 2] = [0.0, 1000.0];

fn run(snapshot: &Snapshot) -> Plan {
    decide(snapshot, &POLICY.defaults())
}

/// Positions in `snapshot.groups` of the groups that move, with where they go.
fn moved(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    page_destinations(snapshot, &run(snapshot))
}

/// The same with the thesis' rules alone, however little a move brings.
fn moved_for_any_gain(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let parameters = POLICY.parameters(&BTreeMap::from([("min_gain_percent".to_owned(), 0.0)])).unwrap();
    page_destinations(snapshot, &decide(snapshot, &parameters))
}

/// Group 0 on node 0 of two, accessed from node 1.
fn remote() -> SnapshotBuilder {
    SnapshotBuilder::new(two_nodes(1)).group(&[ALL, 0], &FROM_1)
}

fn unseen(group: &mut PageGroup) {
    (group.samples, group.accesses_per_s) = (0.0, vec![0.0, 0.0].into());
}

fn with_free_pages(mut topology: Topology, node: usize, free_pages: u64) -> Topology {
    topology.nodes[NodeIndex(node)].free_pages = free_pages;
    topology
}

#[test]
fn delta_is_two_thirds_up_to_three_nodes_and_then_two_over_n() {
    let thresholds: Vec<f64> = [2, 3, 4, 8].into_iter().map(threshold).collect();
    assert_eq!(thresholds, [2.0 / 3.0, 2.0 / 3.0, 0.5, 0.25]);
}

#[test]
fn accesses_from_everywhere_do_not_move_a_group() {
    let builder = SnapshotBuilder::new(ring_of_four(1));
    let snapshot = builder.group(&[0, ALL, 0, 0], &[26.0, 25.0, 25.0, 24.0]).build();
    assert_eq!(moved(&snapshot), []);
}

#[test]
fn a_share_of_eighty_percent_moves_a_group_and_says_why() {
    let snapshot = SnapshotBuilder::new(ring_of_four(1)).group(&[0, ALL, 0, 0], &[80.0, 20.0, 0.0, 0.0]).build();
    assert_eq!(moved(&snapshot), [(0, 0)]);
    let planned = &run(&snapshot).moves[0];
    assert_eq!(planned.reason, "80 % of its accesses come from node 0; 100 % of its pages are on node 1");
    assert_eq!(planned.gain_ns_per_s, Some(80.0 * 20.0 - 20.0 * 20.0));
}

#[test]
fn a_share_of_just_delta_does_not_move_a_group() {
    let share = |of: f64| {
        let builder = SnapshotBuilder::new(ring_of_four(1)).group(&[0, ALL, 0, 0], &[of, 100.0 - of, 0.0, 0.0]);
        moved_for_any_gain(&builder.build())
    };
    assert_eq!((share(50.0), share(51.0)), (vec![], vec![(0, 0)]));
}

#[test]
fn a_group_at_home_stays() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).group(&[0, ALL], &FROM_1).build();
    assert_eq!(moved(&snapshot), []);
}

#[test]
fn a_group_split_over_nodes_moves_until_95_percent_of_it_are_home() {
    let share = |home: u64| SnapshotBuilder::new(two_nodes(1)).group(&[100 - home, home], &FROM_1).build();
    let moved = |home| moved_for_any_gain(&share(home));
    assert_eq!((moved(50), moved(95), moved(96)), (vec![(0, 1)], vec![(0, 1)], vec![]));
}

#[test]
fn a_group_with_nothing_resident_stays() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).group(&[0, 0], &FROM_1).build();
    assert_eq!(moved(&snapshot), []);
}

#[test]
fn a_group_needs_four_samples() {
    let with = |samples: f64| moved(&remote().with_group(|group| group.samples = samples).build());
    assert_eq!((with(3.9), with(4.0)), (vec![], vec![(0, 1)]));
}

#[test]
fn eight_followers_that_agree_go_along() {
    let agreeing = |all: SnapshotBuilder, _| all.group(&[ALL, 0], &FROM_1).with_group(|group| group.samples = 1.0);
    let snapshot = (0..9).fold(remote(), agreeing).build();
    assert_eq!(moved(&snapshot), (0..9).map(|at| (at, 1)).collect::<Vec<_>>());
}

#[test]
fn eight_followers_without_samples_go_along_at_an_unknown_gain() {
    let unknown = |all: SnapshotBuilder, _| all.group(&[ALL, 0], &FROM_1).with_group(unseen);
    let snapshot = (0..9).fold(remote(), unknown).build();
    assert_eq!(moved(&snapshot), (0..9).map(|at| (at, 1)).collect::<Vec<_>>());
    let plan = run(&snapshot);
    assert!(plan.moves[0].gain_ns_per_s.is_some() && plan.moves[1].gain_ns_per_s.is_none());
    assert_eq!(plan.moves[1].reason, "follows 0x200000, which goes to node 1");
}

#[test]
fn a_disagreement_at_the_third_follower_ends_the_preload() {
    let builder = remote().group(&[ALL, 0], &FROM_1).with_group(unseen).group(&[ALL, 0], &FROM_1);
    let builder = builder.with_group(unseen).group(&[ALL, 0], &[1000.0, 0.0]);
    let snapshot = builder.group(&[ALL, 0], &FROM_1).with_group(unseen).build();
    assert_eq!(moved(&snapshot), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn one_sample_from_elsewhere_ends_the_preload() {
    let builder = remote().group(&[ALL, 0], &[10.0, 0.0]).with_group(|group| group.samples = 0.5);
    let snapshot = builder.group(&[ALL, 0], &FROM_1).with_group(unseen).build();
    assert_eq!(moved(&snapshot), [(0, 1)]);
}

#[test]
fn a_gap_and_another_process_end_the_preload() {
    let gap = |group: &mut PageGroup| group.id.start += PAGE_BYTES;
    let snapshot = remote().group(&[ALL, 0], &FROM_1).with_group(unseen).with_group(gap).build();
    assert_eq!(moved(&snapshot), [(0, 1)]);
    let other = |group: &mut PageGroup| group.id.process.0 += 1;
    let snapshot = remote().group(&[ALL, 0], &FROM_1).with_group(unseen).with_group(other).build();
    assert_eq!(moved(&snapshot), [(0, 1)]);
}

#[test]
fn the_preload_is_a_parameter() {
    let snapshot = remote().group(&[ALL, 0], &FROM_1).with_group(unseen).build();
    let parameters = POLICY.parameters(&BTreeMap::from([("preload_groups".to_owned(), 0.0)])).unwrap();
    assert_eq!(decide(&snapshot, &parameters).moves.len(), 1);
}

#[test]
fn an_unmovable_group_stays_whatever_the_reason() {
    use Unmovable::{Bound, Contested, Cooldown, HugeTlb, MemoryPressure, Pinned, Shared};
    for why in [Cooldown, Shared, Pinned, Bound, HugeTlb, MemoryPressure, Contested] {
        let snapshot = remote().with_group(|group| group.unmovable = Some(why)).build();
        assert_eq!(moved(&snapshot), []);
    }
}

#[test]
fn the_preload_passes_over_an_unmovable_group_that_does_not_disagree() {
    let pinned = |group: &mut PageGroup| group.unmovable = Some(Unmovable::Pinned);
    let passed = |accesses: &[f64]| {
        let builder = remote().group(&[ALL, 0], accesses).with_group(pinned);
        moved(&builder.group(&[ALL, 0], &FROM_1).with_group(unseen).build())
    };
    assert_eq!(passed(&FROM_1), [(0, 1), (2, 1)]);
    assert_eq!(passed(&[1000.0, 0.0]), [(0, 1)]);
}

#[test]
fn the_preload_passes_over_a_group_that_is_there_already() {
    let builder = remote().group(&[0, ALL], &FROM_1).group(&[ALL, 0], &FROM_1).with_group(unseen);
    assert_eq!(moved(&builder.build()), [(0, 1), (2, 1)]);
}

/// 1 Mi pages: a reserve of 2 % is 20972 pages.
#[test]
fn free_pages_beyond_the_reserve_bound_what_moves() {
    const RESERVE: u64 = 20_972;
    let with_free = |pages: u64| {
        let topology = with_free_pages(two_nodes(1), 1, pages);
        let one = |all: SnapshotBuilder, _| all.group(&[ALL, 0], &FROM_1);
        moved(&(0..3).fold(SnapshotBuilder::new(topology), one).build())
    };
    assert_eq!(with_free(RESERVE + 2 * ALL), [(0, 1), (1, 1)]);
    assert_eq!(with_free(RESERVE + ALL), [(0, 1)]);
    assert_eq!(with_free(RESERVE + ALL - 1), []);
    assert_eq!(with_free(0), []);
}

#[test]
fn only_pages_that_are_elsewhere_need_room() {
    let topology = with_free_pages(two_nodes(1), 1, 20_972 + ALL / 2);
    let snapshot = SnapshotBuilder::new(topology).group(&[ALL / 2, ALL / 2], &FROM_1).build();
    assert_eq!(moved(&snapshot), [(0, 1)]);
}

/// Node 1 has no memory; node 2 is the nearest to it that has.
#[test]
fn accesses_from_a_node_without_memory_bring_a_group_to_the_nearest_that_has() {
    let mut topology = machine(&[1; 3], &[&[10, 20, 20], &[20, 10, 14], &[20, 14, 10]]);
    topology.nodes[NodeIndex(1)].memory_pages = 0;
    let snapshot = SnapshotBuilder::new(topology).group(&[ALL, 0, 0], &[0.0, 9.0, 0.0]).build();
    assert_eq!(moved(&snapshot), [(0, 2)]);
}

#[test]
fn sparse_node_ids_appear_in_reasons_and_indices_in_moves() {
    let topology = machine_with_ids(&[3, 9], &[1, 1], &[&[10, 21], &[21, 10]]);
    let snapshot = SnapshotBuilder::new(topology).group(&[ALL, 0], &FROM_1).build();
    assert_eq!(moved(&snapshot), [(0, 1)]);
    let reason = &run(&snapshot).moves[0].reason;
    assert_eq!(reason, "100 % of its accesses come from node 9; 100 % of its pages are on node 3");
}

#[test]
fn the_second_call_after_the_moves_is_empty() {
    let mut snapshot = remote().group(&[ALL, 0], &FROM_1).with_group(unseen).build();
    for planned in run(&snapshot).moves {
        let Action::MovePages { group, to, .. } = planned.action else { continue };
        let group = snapshot.groups.iter_mut().find(|known| known.id == group).unwrap();
        let resident: u64 = group.resident_pages.values().sum();
        group.resident_pages = crate::model::PerNode::from_fn(2, |node| if node == to { resident } else { 0 });
    }
    assert_eq!(moved(&snapshot), []);
}

/// Nodes 1 and 2 of the ring, both one hop from node 0, use a group alike.
#[test]
fn a_group_that_two_nodes_use_alike_goes_to_one_of_them_and_stays() {
    let on =
        |resident: &[u64], accesses: &[f64]| SnapshotBuilder::new(ring_of_four(1)).group(resident, accesses).build();
    assert_eq!(moved(&on(&[0, 0, 0, ALL], &[0.0, 51.0, 49.0, 0.0])), [(0, 1)]);
    assert_eq!(moved(&on(&[0, ALL, 0, 0], &[0.0, 49.0, 51.0, 0.0])), []);
    assert_eq!(moved(&on(&[0, ALL, 0, 0], &[0.0, 10.0, 90.0, 0.0])), [(0, 2)]);
}
