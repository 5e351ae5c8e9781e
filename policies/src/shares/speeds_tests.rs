// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::{Node, NodeId};
use crate::testing::{hogs, throttled, two_nodes};

/// Speeds after `windows` intervals that `change` has changed.
fn learnt(windows: u64, change: impl Fn(&mut Snapshot)) -> NodeSpeeds {
    let mut speeds = NodeSpeeds::default();
    for interval in 0..windows {
        let mut snapshot = hogs(4, 4, &[2e9, 1e9], interval);
        change(&mut snapshot);
        speeds.observe(&snapshot);
    }
    speeds
}

/// Capacities of both nodes after five windows.
fn capacities(change: impl Fn(&mut Snapshot)) -> [u64; 2] {
    let mut topology = hogs(4, 4, &[1.0, 1.0], 0).topology;
    let mut changed = hogs(4, 4, &[1.0, 1.0], 0);
    change(&mut changed);
    topology.clone_from(&changed.topology);
    let speeds = learnt(5, change);
    let seen = speeds.applied(&topology).unwrap_or(topology);
    [0, 1].map(|node| seen.nodes[NodeIndex(node)].capacity())
}

const ALIKE: [u64; 2] = [4 * 1024, 4 * 1024];

#[test]
fn a_node_that_does_half_has_half_the_capacity_after_five_windows() {
    let topology = two_nodes(4);
    assert_eq!(learnt(4, |_| ()).applied(&topology), None);
    assert_eq!(capacities(|_| ()), [4 * 1024, 4 * 512]);
    let said = learnt(5, |_| ()).statement(&topology).unwrap();
    assert_eq!(said, "a CPU of node 1 does about 50 % of what is stated of it, node 0 taken for 100 %");
}

#[test]
fn a_node_that_does_more_than_is_stated_makes_the_others_slow() {
    let faster = |snapshot: &mut Snapshot| {
        for thread in snapshot.threads.iter_mut().filter(|thread| thread.node.0 == 1) {
            thread.operations_per_s = Some(4e9);
        }
    };
    assert_eq!(capacities(faster), [4 * 512, 4 * 1024]);
}

#[test]
fn what_is_as_stated_stays_as_stated() {
    let slow = |snapshot: &mut Snapshot| snapshot.topology = throttled(snapshot.topology.clone(), 1, 512);
    assert_eq!(capacities(slow), [4 * 1024, 4 * 512]);
    assert_eq!(learnt(5, slow).statement(&throttled(two_nodes(4), 1, 512)), None);
}

#[test]
fn unlike_cpus_of_a_throttled_node_are_all_scaled() {
    let mut topology = two_nodes(4);
    let node: &mut Node = &mut topology.nodes[NodeIndex(1)];
    node.slow_cpus = node.cpus[2..].iter().map(|&cpu| (cpu, 512)).collect();
    let stated = topology.clone();
    let speeds = learnt(5, move |snapshot| snapshot.topology = stated.clone());
    let seen = speeds.applied(&topology).unwrap();
    // Stated are 768 of 1024 on the mean, and half is done: two thirds of what is stated.
    let parts: Vec<u32> = seen.nodes[NodeIndex(1)].slow_cpus.values().copied().collect();
    assert_eq!(parts, [683, 683, 341, 341]);
    assert_eq!(seen.nodes[NodeIndex(1)].id, NodeId(1));
}

#[test]
fn threads_with_far_memory_teach_nothing() {
    let far = |snapshot: &mut Snapshot| {
        for thread in snapshot.threads.iter_mut().filter(|thread| thread.node.0 == 1) {
            thread.accesses_per_s = Some(vec![1e6, 0.0].into());
            thread.latency_ns = Some(210.0);
        }
    };
    assert_eq!(capacities(far), ALIKE);
}

#[test]
fn nodes_that_are_not_as_full_are_not_compared() {
    let fuller = |snapshot: &mut Snapshot| snapshot.nodes[NodeIndex(0)].busy_ns = 2_000_000_000;
    assert_eq!(capacities(fuller), ALIKE);
}

#[test]
fn unlike_threads_of_a_process_and_single_ones_are_not_compared() {
    let named = |snapshot: &mut Snapshot| {
        for thread in snapshot.threads.iter_mut().filter(|thread| thread.node.0 == 1) {
            thread.command = "reader".to_owned();
        }
    };
    assert_eq!(capacities(named), ALIKE);
    let single = |snapshot: &mut Snapshot| snapshot.threads.truncate(5);
    assert_eq!(capacities(single), ALIKE);
}

#[test]
fn a_node_that_taught_nothing_for_ten_minutes_is_as_stated_again() {
    let mut speeds = learnt(5, |_| ());
    let later = |speeds: &mut NodeSpeeds, seconds: u64| {
        let mut empty = hogs(4, 4, &[2e9, 1e9], seconds);
        empty.threads.clear();
        speeds.observe(&empty);
        speeds.applied(&empty.topology).is_some()
    };
    assert!(later(&mut speeds, 603));
    assert!(!later(&mut speeds, 604));
}

#[test]
fn no_counters_nothing_learnt() {
    let blind = |snapshot: &mut Snapshot| snapshot.threads.iter_mut().for_each(|thread| thread.operations_per_s = None);
    assert_eq!(capacities(blind), ALIKE);
    for not_a_number in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let broken = |snapshot: &mut Snapshot| snapshot.threads[7].operations_per_s = Some(not_a_number);
        assert_eq!(capacities(broken), [4 * 1024, 4 * 512], "{not_a_number}: the other three say the same");
    }
}
