// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use super::*;
use crate::model::ProcessId;
use crate::registry::Memory;
use crate::testing::{SnapshotBuilder, decided, decided_with, machine, ring_of_four, throttled, two_nodes};
use crate::{compact, contiguous, direct, scatter};

const SPREAD: [&Policy; 3] = [&compact::POLICY, &scatter::POLICY, &contiguous::POLICY];

/// `threads` threads of one process, all on the first node.
fn gathered(topology: Topology, threads: usize) -> Snapshot {
    let add = |all: SnapshotBuilder, tid: usize| all.thread(tid as u32, 0, None);
    (0..threads).fold(SnapshotBuilder::new(topology), add).build()
}

fn after(policy: &Policy, snapshot: &Snapshot, nodes: f64) -> Vec<usize> {
    let parameters = policy.parameters(&BTreeMap::from([("nodes".to_owned(), nodes)])).unwrap();
    let memory = &mut Memory::default();
    let plan = policy.decide(&mut Inputs { snapshot, parameters: &parameters, memory, seed: 1, steps: 1 }).unwrap();
    places(&snapshot.after_thread_moves(&plan))
}

fn places(snapshot: &Snapshot) -> Vec<usize> {
    snapshot.threads.iter().map(|thread| thread.node.0).collect()
}

#[test]
fn compact_fills_one_node_before_the_next() {
    assert_eq!(after(&compact::POLICY, &gathered(two_nodes(4), 6), 0.0), [0, 0, 0, 0, 1, 1]);
    let topology = machine(&[2; 3], &[&[10, 30, 20], &[30, 10, 20], &[20, 20, 10]]);
    assert_eq!(after(&compact::POLICY, &gathered(topology, 5), 0.0), [0, 0, 2, 2, 1]);
}

#[test]
fn scatter_deals_threads_round_robin() {
    assert_eq!(after(&scatter::POLICY, &gathered(ring_of_four(2), 6), 0.0), [0, 1, 2, 3, 0, 1]);
    assert_eq!(after(&scatter::POLICY, &gathered(ring_of_four(2), 4), 2.0), [0, 1, 0, 1]);
}

#[test]
fn contiguous_cuts_equal_blocks() {
    assert_eq!(after(&contiguous::POLICY, &gathered(ring_of_four(4), 8), 0.0), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(after(&contiguous::POLICY, &gathered(ring_of_four(4), 5), 2.0), [0, 0, 0, 1, 1]);
}

#[test]
fn a_node_at_half_speed_gets_a_block_half_as_long_and_half_as_many_bound_threads() {
    assert_eq!(after(&contiguous::POLICY, &gathered(throttled(two_nodes(4), 1, 512), 6), 0.0), [0, 0, 0, 0, 1, 1]);
    let alone =
        |all: SnapshotBuilder, tid: u32| all.thread(tid, 1, None).with_thread(|thread| thread.process = ProcessId(tid));
    let snapshot = (1..7).fold(SnapshotBuilder::new(throttled(two_nodes(4), 1, 512)), alone).build();
    let plan = decided(&direct::POLICY, &snapshot, 1, 1).unwrap();
    let on_slow_node = places(&snapshot.after_thread_moves(&plan)).into_iter().filter(|&node| node == 1).count();
    assert_eq!(on_slow_node, 2, "of six");
}

#[test]
fn scatter_and_contiguous_are_the_same_on_one_node_and_with_a_node_for_each_thread() {
    for (threads, nodes) in [(4, 1.0), (1, 4.0), (2, 2.0), (3, 3.0), (4, 4.0)] {
        let snapshot = gathered(ring_of_four(4), threads);
        let [scattered, blocks] = [&scatter::POLICY, &contiguous::POLICY].map(|policy| after(policy, &snapshot, nodes));
        assert_eq!(scattered, blocks, "{threads} threads on {nodes} nodes");
    }
}

#[test]
fn as_many_nodes_are_used_as_the_threads_need() {
    for policy in SPREAD {
        let used: BTreeSet<usize> = after(policy, &gathered(two_nodes(4), 5), 1.0).into_iter().collect();
        assert_eq!(used.len(), 2, "{}", policy.name);
    }
}

#[test]
fn more_threads_than_cpus_start_again_from_the_first_node() {
    let snapshot = gathered(two_nodes(2), 8);
    assert_eq!(after(&compact::POLICY, &snapshot, 0.0), [0, 0, 1, 1, 0, 0, 1, 1]);
    assert_eq!(after(&scatter::POLICY, &snapshot, 0.0), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(after(&contiguous::POLICY, &snapshot, 0.0), [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn nodes_take_threads_in_proportion_to_their_cpus_and_none_without() {
    let topology = machine(&[1, 0, 3], &[&[10, 11, 12], &[11, 10, 11], &[12, 11, 10]]);
    let snapshot = gathered(topology, 4);
    for policy in SPREAD {
        assert_eq!(after(policy, &snapshot, 0.0), [0, 2, 2, 2], "{}", policy.name);
    }
}

#[test]
fn a_placement_once_made_stays() {
    for policy in SPREAD.into_iter().chain([&direct::POLICY]) {
        let (mut memory, mut snapshot) = (Memory::default(), gathered(ring_of_four(2), 7));
        snapshot.threads[3].node = NodeIndex(2);
        let plan = decided_with(policy, &snapshot, &mut memory).unwrap();
        assert!(!plan.is_empty(), "{}", policy.name);
        let placed = snapshot.after_thread_moves(&plan);
        assert!(decided_with(policy, &placed, &mut memory).unwrap().is_empty(), "{}", policy.name);
        assert!(decided(policy, &placed, 1, 1).unwrap().is_empty(), "{}", policy.name);
    }
}

#[test]
fn threads_that_fall_idle_or_exit_do_not_send_the_others_away() {
    let mut memory = Memory::default();
    let snapshot = gathered(two_nodes(4), 4);
    let mut placed = snapshot.after_thread_moves(&decided_with(&scatter::POLICY, &snapshot, &mut memory).unwrap());
    placed.threads[0].cpu_time_ns = 0;
    assert!(decided_with(&scatter::POLICY, &placed, &mut memory).unwrap().is_empty());
    placed.threads.remove(0);
    assert!(decided_with(&scatter::POLICY, &placed, &mut memory).unwrap().is_empty());
    let mut newcomer = placed.threads[0].clone();
    (newcomer.id.tid, newcomer.node) = (9, NodeIndex(1));
    placed.threads.push(newcomer);
    let plan = decided_with(&scatter::POLICY, &placed, &mut memory).unwrap();
    assert_eq!(places(&placed.after_thread_moves(&plan)), [1, 0, 1, 0]);
    assert_eq!(plan.moves[0].reason, "scatter: seat 1 of 4 is on node 0");
}

#[test]
fn threads_of_one_process_sit_together() {
    let mut snapshot = gathered(two_nodes(2), 4);
    for at in [0, 2] {
        snapshot.threads[at].process = ProcessId(2);
    }
    assert_eq!(after(&compact::POLICY, &snapshot, 0.0), [1, 0, 1, 0]);
}

#[test]
fn threads_go_only_where_they_may() {
    let mut snapshot = gathered(two_nodes(1), 2);
    snapshot.threads[1].allowed = vec![true, false].into();
    snapshot.threads[0].on_cooldown = true;
    for policy in SPREAD.into_iter().chain([&direct::POLICY]) {
        assert!(decided(policy, &snapshot, 1, 1).unwrap().is_empty(), "{}", policy.name);
    }
}

#[test]
fn direct_binds_a_process_to_the_node_where_most_of_it_is() {
    let mut snapshot = gathered(two_nodes(2), 5);
    for at in [0, 2, 3] {
        snapshot.threads[at].node = NodeIndex(1);
    }
    let plan = decided(&direct::POLICY, &snapshot, 1, 1).unwrap();
    assert_eq!(places(&snapshot.after_thread_moves(&plan)), [1; 5]);
    assert_eq!(plan.moves[0].reason, "direct: process 1 is bound to node 1");
}

#[test]
fn direct_binds_further_processes_to_the_least_loaded_nodes() {
    let mut snapshot = gathered(two_nodes(4), 6);
    for (at, thread) in snapshot.threads.iter_mut().enumerate() {
        thread.process = ProcessId([1, 1, 1, 2, 3, 3][at]);
    }
    let plan = decided(&direct::POLICY, &snapshot, 1, 1).unwrap();
    assert_eq!(places(&snapshot.after_thread_moves(&plan)), [0, 0, 0, 1, 1, 1]);
}

#[test]
fn direct_binds_a_process_where_its_threads_may_run() {
    let mut snapshot = gathered(two_nodes(2), 3);
    snapshot.threads.iter_mut().for_each(|thread| thread.allowed = vec![false, true].into());
    let plan = decided(&direct::POLICY, &snapshot, 1, 1).unwrap();
    assert_eq!(places(&snapshot.after_thread_moves(&plan)), [1; 3]);
}
