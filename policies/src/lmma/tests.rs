// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::testing::{PageRun, SnapshotBuilder, ring_of_four, two_nodes};

const ALL: u64 = 512;

/// `builder` with a group on node `home`, accessed `per_s` times from node `from` with a latency of `ns`.
fn group(builder: SnapshotBuilder, home: usize, from: usize, per_s: f64, ns: f64) -> SnapshotBuilder {
    let row = |at: usize| (0..4).map(|node| if node == at { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
    let resident: Vec<u64> = row(home).iter().map(|&one| ALL * one as u64).collect();
    let accesses: Vec<f64> = row(from).iter().map(|one| per_s * one).collect();
    // A gap before it, so that there is nothing to preload.
    let apart = |group: &mut PageGroup| (group.id.start, group.latency_ns) = (group.id.start + 4096, Some(ns));
    builder.group(&resident, &accesses).with_group(apart)
}

fn ring() -> SnapshotBuilder {
    SnapshotBuilder::new(ring_of_four(2))
}

/// A group on node 2 used from node 0 takes `ns`; much other memory makes the mean 100 ns, all served by node 3.
fn slow(ns: f64) -> SnapshotBuilder {
    group(group(ring(), 2, 0, 1.0, ns), 3, 3, 1e6, 100.0)
}

fn moved(builder: SnapshotBuilder) -> Vec<(usize, usize)> {
    PageRun::new(&POLICY, builder.build()).decide()
}

#[test]
fn a_group_is_slow_above_1_3_times_the_mean() {
    assert_eq!((moved(slow(129.0)), moved(slow(131.0))), (vec![], vec![(0, 0)]));
}

#[test]
fn the_reason_gives_both_latencies() {
    let plan = PageRun::new(&POLICY, slow(200.0).build()).plan().unwrap();
    let reason = "its accesses take 200 ns, the mean is 100; 100 % of its accesses come from node 0; \
                  100 % of its pages are on node 2";
    assert_eq!(plan.moves[0].reason, reason);
    assert_eq!(plan.moves[0].gain_ns_per_s, Some(200.0 - 100.0));
}

/// The slow group prefers node 0, whose memory serves others with `ns`; nodes 1 and 3 serve with 90 and 100 ns.
fn preferred_serves_with(ns: f64) -> SnapshotBuilder {
    let builder = group(group(ring(), 2, 0, 1.0, 300.0), 0, 0, 1e3, ns);
    group(group(builder, 1, 1, 1e3, 90.0), 3, 3, 1e6, 100.0)
}

#[test]
fn a_busy_preferred_node_gives_way_to_the_least_busy_one() {
    // Node 2 serves only the slow group; nodes 1 and 3 have .9 and 1 times the mean.
    assert_eq!(moved(preferred_serves_with(129.0)), [(0, 0)]);
    assert_eq!(moved(preferred_serves_with(132.0)).first(), Some(&(0, 1)));
}

#[test]
fn a_move_away_from_a_busy_node_gains_what_the_latencies_served_say() {
    let plan = PageRun::new(&POLICY, preferred_serves_with(200.0).build()).plan().unwrap();
    assert!((plan.moves[0].gain_ns_per_s.unwrap() - (300.0 - 90.0)).abs() < 1e-9);
    assert!(plan.moves[0].reason.ends_with("its node 0 is busy (2.00 of the mean), node 1 least"), "{plan:?}");
}

#[test]
fn a_node_that_serves_nothing_is_the_least_busy_and_the_nearest_one_first() {
    // Nodes 0 and 1 serve nothing; node 1 is nearer to node 2.
    let builder = group(group(ring(), 2, 2, 1.0, 500.0), 2, 2, 1e3, 300.0);
    let snapshot = group(builder, 3, 3, 1e5, 100.0).build();
    assert_eq!(PageRun::new(&POLICY, snapshot).decide(), [(0, 1), (1, 1)]);
}

#[test]
fn a_hog_that_saturates_one_memory_makes_it_busy_by_serving_latency() {
    // Everybody hammers node 0 and waits; what others have on nodes 1 to 3 is fast.
    let hog = (0..4).fold(ring(), |all, from| group(all, 0, from, 100.0, 800.0));
    let mut snapshot = (1..4).fold(hog, |all, node| group(all, node, node, 1e3, 100.0)).build();
    let away = |moved: Vec<(usize, usize)>| moved.iter().filter(|&&(group, to)| group == 0 && to != 0).count();
    assert_eq!(away(PageRun::new(&POLICY, snapshot.clone()).decide()), 1);
    snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(100.0);
    assert_eq!(away(PageRun::new(&POLICY, snapshot).decide()), 0);
}

#[test]
fn the_node_that_issues_slow_accesses_is_busy_if_asked_for() {
    // Thread 1 on node 0 waits for a memory far away; nobody is served badly by node 0.
    let thread = |builder: SnapshotBuilder, tid, node, ns| {
        let accesses = [1e3, 0.0, 0.0, 0.0];
        builder.thread(tid, node, Some(&accesses)).with_thread(|thread| thread.latency_ns = Some(ns))
    };
    let build = || {
        let builder = thread(thread(slow(300.0), 1, 0, 400.0), 2, 1, 90.0);
        thread(thread(builder, 3, 2, 100.0), 4, 3, 100.0).build()
    };
    assert_eq!(PageRun::new(&POLICY, build()).decide(), [(0, 0)]);
    assert_eq!(PageRun::new(&POLICY, build()).with("busy_by_issuing", 1.0).decide(), [(0, 1)]);
}

#[test]
fn if_all_nodes_are_busy_nothing_moves() {
    let mut snapshot = slow(300.0).build();
    for node in 0..4 {
        snapshot.nodes[NodeIndex(node)].served_latency_ns = Some(if node == 3 { 50.0 } else { 500.0 });
    }
    // Only node 3 is not busy, so that it is the alternative.
    assert_eq!(PageRun::new(&POLICY, snapshot.clone()).decide(), [(0, 3)]);
    snapshot.groups[1].samples = 0.0;
    snapshot.groups.push(snapshot.groups[0].clone());
    snapshot.groups[2].id.start += 1 << 30;
    snapshot.groups[2].latency_ns = Some(10.0);
    snapshot.groups[2].accesses_per_s = vec![0.0, 0.0, 1e6, 0.0].into();
    for node in 0..4 {
        snapshot.nodes[NodeIndex(node)].served_latency_ns = Some(500.0);
    }
    snapshot.nodes[NodeIndex(2)].served_latency_ns = Some(10.0);
    snapshot.topology.nodes[NodeIndex(2)].memory_pages = 0;
    assert_eq!(PageRun::new(&POLICY, snapshot).decide(), []);
}

#[test]
fn followers_go_along_while_they_prefer_the_destination_or_are_unknown() {
    let follow = |builder: SnapshotBuilder, from: usize, samples: f64| {
        let accesses: Vec<f64> = (0..4).map(|node| if node == from { samples } else { 0.0 }).collect();
        builder.group(&[0, 0, ALL, 0], &accesses).with_group(|group| group.samples = samples)
    };
    let first = group(ring(), 2, 0, 1.0, 300.0);
    let builder = follow(follow(follow(first, 0, 1.0), 1, 0.0), 1, 1.0);
    let snapshot = group(builder, 3, 3, 1e6, 100.0).build();
    assert_eq!(PageRun::new(&POLICY, snapshot).decide(), [(0, 0), (1, 0), (2, 0)]);
}

#[test]
fn a_slow_group_at_home_stays_unless_its_node_is_busy() {
    let builder = group(group(ring(), 0, 0, 1.0, 300.0), 3, 3, 1e6, 100.0);
    let mut snapshot = builder.build();
    snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(110.0);
    assert_eq!(PageRun::new(&POLICY, snapshot.clone()).decide(), []);
    snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(300.0);
    assert_eq!(PageRun::new(&POLICY, snapshot).decide(), [(0, 1)]);
}

#[test]
fn groups_without_latency_are_left_alone_and_none_with_it_is_an_error() {
    let one = |latency_ns| {
        let builder = SnapshotBuilder::new(two_nodes(1)).group(&[ALL, 0], &[0.0, 1.0]);
        PageRun::new(&POLICY, builder.with_group(|group| group.latency_ns = latency_ns).build()).plan()
    };
    assert_eq!(one(None).unwrap_err().signal, Signal::GroupLatency);
    assert!(one(Some(100.0)).unwrap().is_empty());
    let mut snapshot = slow(300.0).build();
    snapshot.groups[0].latency_ns = None;
    assert_eq!(PageRun::new(&POLICY, snapshot).decide(), []);
}

#[test]
fn issuing_latency_needs_threads_that_know_theirs() {
    let snapshot = slow(300.0).thread(1, 0, Some(&[1.0; 4])).build();
    let error = PageRun::new(&POLICY, snapshot).with("busy_by_issuing", 1.0).plan().unwrap_err();
    assert_eq!(error.signal, Signal::ThreadLatency);
}
