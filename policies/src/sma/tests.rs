// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use super::*;
use crate::model::{Action, NodeId, Topology};
use crate::placing::gate;
use crate::testing::{SnapshotBuilder, machine, machine_with_ids, ring_of_four, throttled, two_nodes};

const SEEDS: std::ops::Range<u64> = 0..20;

fn run(snapshot: &Snapshot, seed: u64) -> Plan {
    decide(snapshot, &POLICY.defaults(), seed, u64::MAX).unwrap()
}

/// Node by tid once `plan` is done.
fn places(snapshot: &Snapshot, plan: &Plan) -> Vec<usize> {
    snapshot.after_thread_moves(plan).threads.iter().map(|thread| thread.node.0).collect()
}

/// Busy threads by node after each move of `plan` in turn, the start first.
fn residents_in_between(snapshot: &Snapshot, plan: &Plan) -> Vec<Vec<usize>> {
    let count = |snapshot: &Snapshot| {
        let on = |node| snapshot.threads.iter().filter(|thread| thread.node.0 == node).count();
        (0..snapshot.topology.len()).map(on).collect()
    };
    let until = |end| count(&snapshot.after_thread_moves(&Plan { moves: plan.moves[..end].to_vec() }));
    (0..=plan.moves.len()).map(until).collect()
}

fn ring_with(memory: [usize; 8], node: impl Fn(usize) -> usize) -> Snapshot {
    let builder = SnapshotBuilder::new(ring_of_four(2));
    (0..8).fold(builder, |all, k| all.thread_with_memory_on(k as u32, node(k), memory[k])).build()
}

const CROSSED: [usize; 8] = [1, 1, 2, 2, 3, 3, 0, 0];

#[test]
fn ten_threads_for_one_percent_do_not_pay_and_two_for_ten_do() {
    assert!(!gate(100.0, 101.0, 10, 1.0));
    assert!(gate(100.0, 110.0, 2, 1.0));
}

#[test]
fn a_gain_of_just_one_percent_a_thread_does_not_pay() {
    assert!(!gate(100.0, 102.0, 2, 1.0));
    assert!(gate(100.0, 102.01, 2, 1.0));
    assert!(gate(100.0, 101.01, 2, 0.5));
}

#[test]
fn one_plan_uncrosses_eight_threads_on_a_ring_of_four_and_the_next_is_empty() {
    let snapshot = ring_with(CROSSED, |k| k / 2);
    for seed in SEEDS {
        let plan = run(&snapshot, seed);
        assert_eq!(places(&snapshot, &plan), CROSSED, "seed {seed}");
        assert!(run(&snapshot.after_thread_moves(&plan), seed).is_empty(), "seed {seed}");
    }
}

#[test]
fn one_plan_uncrosses_pairs_that_start_on_different_nodes_and_the_next_is_empty() {
    let snapshot = ring_with(CROSSED, |k| k % 4);
    for seed in SEEDS {
        let plan = run(&snapshot, seed);
        assert_eq!(places(&snapshot, &plan), CROSSED, "seed {seed}");
        assert!(run(&snapshot.after_thread_moves(&plan), seed).is_empty(), "seed {seed}");
    }
}

#[test]
fn threads_beside_their_memory_stay() {
    let snapshot = ring_with(CROSSED, |k| CROSSED[k]);
    assert!(SEEDS.into_iter().all(|seed| run(&snapshot, seed).is_empty()));
}

#[test]
fn a_pair_crossed_on_full_nodes_changes_places_with_both_gains_added() {
    let builder = SnapshotBuilder::new(two_nodes(1));
    let snapshot = builder.thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0).build();
    let plan = run(&snapshot, 1);
    let (first, second) = (snapshot.threads[0].id, snapshot.threads[1].id);
    let (first_node, second_node) = (NodeIndex(0), NodeIndex(1));
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].action, Action::Interchange { first, second, first_node, second_node });
    assert_eq!(plan.moves[0].gain_ns_per_s, Some(2.0 * 1e6 * 110.0));
}

#[test]
fn sparse_node_ids_appear_in_reasons_and_indices_in_moves() {
    let topology = machine_with_ids(&[2, 7], &[2, 2], &[&[10, 21], &[21, 10]]);
    let snapshot = SnapshotBuilder::new(topology).thread_with_memory_on(5, 0, 1).build();
    let plan = run(&snapshot, 1);
    let thread = snapshot.threads[0].id;
    assert_eq!(plan.moves[0].action, Action::MoveThread { thread, from: NodeIndex(0), to: NodeIndex(1), cpu: None });
    assert_eq!(plan.moves[0].reason, "memory on node 7: 100 % of its accesses; runs on node 2");
    assert_eq!(snapshot.topology.nodes[NodeIndex(1)].id, NodeId(7));
}

/// Node 1 has memory only and is nearest to node 2.
#[test]
fn a_node_without_cpus_gets_no_thread_but_draws_them_near() {
    let topology = machine(&[2, 0, 2], &[&[10, 28, 20], &[28, 10, 14], &[20, 14, 10]]);
    let snapshot = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 1).build();
    assert!(SEEDS.into_iter().all(|seed| places(&snapshot, &run(&snapshot, seed)) == [2]));
}

#[test]
fn a_thread_goes_only_where_its_affinity_allows() {
    let closed = |thread: &mut Thread| thread.allowed = vec![true, false].into();
    let snapshot = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).with_thread(closed).build();
    assert!(SEEDS.into_iter().all(|seed| run(&snapshot, seed).is_empty()));
}

#[test]
fn a_thread_on_cooldown_stays_even_where_an_interchange_would_pay() {
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1);
    let snapshot = builder.thread_with_memory_on(2, 1, 0).with_thread(|thread| thread.on_cooldown = true).build();
    assert!(SEEDS.into_iter().all(|seed| run(&snapshot, seed).is_empty()));
}

#[test]
fn idle_threads_are_not_moved_and_take_no_slot() {
    let idle = |thread: &mut Thread| thread.cpu_time_ns = 9_000_000;
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1);
    let snapshot = builder.thread_with_memory_on(2, 1, 0).with_thread(idle).build();
    assert!(SEEDS.into_iter().all(|seed| places(&snapshot, &run(&snapshot, seed)) == [1, 1]));
}

/// Four threads with their memory on node 0, two of them there, which use so much of a CPU. A node has two CPUs.
fn gathering(percent: u64) -> Snapshot {
    let uses = |thread: &mut Thread| {
        thread.cpu_time_ns = percent * 10_000_000;
        let node = thread.node;
        thread.run_ns = crate::model::PerNode::from_fn(2, |at| if at == node { thread.cpu_time_ns } else { 0 });
    };
    let add = |all: SnapshotBuilder, k: u32| all.thread_with_memory_on(k, usize::from(k > 1), 0).with_thread(uses);
    (0..4).fold(SnapshotBuilder::new(two_nodes(2)), add).build()
}

#[test]
fn threads_that_use_a_fifth_of_a_cpu_do_not_fill_a_node() {
    let snapshot = gathering(20);
    let plan = run(&snapshot, 1);
    assert_eq!(places(&snapshot, &plan), [0; 4]);
    assert_eq!(places(&gathering(100), &run(&gathering(100), 1)), [0, 0, 1, 1]);
}

/// Node 0 by memory and node 1 by remembered performance, so near that each looks better from the other one.
#[test]
fn a_thread_does_not_go_to_and_fro_between_its_memory_and_where_it_performed_better() {
    for node in 0..2 {
        let performance = |thread: &mut Thread| thread.performance = vec![Some(1.0), Some(1.2)].into();
        let near = crate::testing::machine(&[1, 1], &[&[10, 16], &[16, 10]]);
        let snapshot = SnapshotBuilder::new(near).thread_with_memory_on(1, node, 0).with_thread(performance).build();
        assert!(run(&snapshot, 1).is_empty(), "node {node}");
    }
}

#[test]
fn nodes_at_unlike_speeds_get_threads_by_capacity() {
    let add = |all: SnapshotBuilder, k: u32| all.thread(k, 1, Some(&[1.0, 1.0]));
    let snapshot = (0..6).fold(SnapshotBuilder::new(throttled(two_nodes(4), 1, 512)), add).build();
    let after = places(&snapshot, &run(&snapshot, 1));
    assert_eq!(after.iter().filter(|&&node| node == 1).count(), 2, "a third of them: {after:?}");
}

#[test]
fn eight_threads_on_four_cpus_are_balanced_within_one() {
    let nodes = [0, 0, 0, 1, 1, 2, 2, 3];
    let without_memory = |all: SnapshotBuilder, k: usize| all.thread(k as u32, nodes[k], Some(&[0.0; 4]));
    let snapshot = (0..8).fold(SnapshotBuilder::new(ring_of_four(1)), without_memory).build();
    for seed in SEEDS {
        let plan = run(&snapshot, seed);
        assert_eq!(plan.moves.len(), 1, "seed {seed}");
        assert_eq!(residents_in_between(&snapshot, &plan)[1], [2, 2, 2, 2], "seed {seed}");
    }
}

#[test]
fn a_thread_on_a_node_it_may_no_longer_use_is_pulled_out() {
    let closed = |thread: &mut Thread| thread.allowed = vec![false, true].into();
    let builder = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0).with_thread(closed);
    let snapshot = builder.build();
    let plan = run(&snapshot, 1);
    assert_eq!(places(&snapshot, &plan), [1]);
    assert_eq!(plan.moves[0].reason, "may not run on node 0 any more");
}

/// 100 threads well placed: a gain of one thread is less than one percent.
#[test]
fn a_thread_is_pulled_out_whatever_the_gate_says() {
    let closed = |thread: &mut Thread| thread.allowed = vec![false, true].into();
    let well = |all: SnapshotBuilder, k: usize| all.thread_with_memory_on(k as u32, k % 2, k % 2);
    let builder = (0..100).fold(SnapshotBuilder::new(two_nodes(60)), well);
    let snapshot = builder.thread_with_memory_on(100, 0, 0).with_thread(closed).build();
    let plan = run(&snapshot, 1);
    assert_eq!((plan.moves.len(), places(&snapshot, &plan)[100]), (1, 1));
}

/// It cannot run on node 0, where it was last seen, and node 1, the only one allowed, has no CPU.
#[test]
fn a_thread_that_can_run_nowhere_drives_nobody_away() {
    let topology = machine(&[1, 0, 1], &[&[10, 11, 11], &[11, 10, 11], &[11, 11, 10]]);
    let nowhere = |thread: &mut Thread| thread.allowed = vec![false, true, false].into();
    let builder = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 0).thread(2, 0, None);
    let snapshot = builder.with_thread(nowhere).build();
    assert!(SEEDS.into_iter().all(|seed| run(&snapshot, seed).is_empty()));
}

#[test]
fn a_thread_pulled_out_prefers_a_node_with_a_free_cpu() {
    let closed = |thread: &mut Thread| thread.allowed = vec![false, true, true, true].into();
    let builder = SnapshotBuilder::new(ring_of_four(1)).thread_with_memory_on(1, 0, 1).with_thread(closed);
    let snapshot = builder.thread_with_memory_on(2, 1, 1).thread_with_memory_on(3, 3, 3).build();
    assert!(SEEDS.into_iter().all(|seed| places(&snapshot, &run(&snapshot, seed)) == [2, 1, 3]));
}

/// A chain 0 -> 1 -> 2 with room on node 2 only: thread 2 has to go first, though thread 1 gains more.
#[test]
fn no_node_is_over_full_in_between_if_there_is_room_at_the_end_of_the_chain() {
    let topology = machine(&[1; 3], &[&[10, 21, 21], &[21, 10, 21], &[21, 21, 10]]);
    let builder = SnapshotBuilder::new(topology).thread(1, 0, Some(&[0.0, 5e6, 0.0]));
    let snapshot = builder.thread_with_memory_on(2, 1, 2).build();
    for seed in SEEDS {
        let plan = run(&snapshot, seed);
        assert_eq!(places(&snapshot, &plan), [1, 2], "seed {seed}");
        let most = residents_in_between(&snapshot, &plan).into_iter().flatten().max();
        assert_eq!(most, Some(1), "seed {seed}");
    }
}

/// So few steps that the plan depends on the seed.
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let snapshot = ring_with(CROSSED, |k| k / 2);
    let parameters = POLICY.parameters(&BTreeMap::from([("gate_percent_per_thread".to_owned(), 0.0)])).unwrap();
    let bytes = |seed| serde_json::to_string(&decide(&snapshot, &parameters, seed, 30).unwrap()).unwrap();
    let first: Vec<String> = SEEDS.map(bytes).collect();
    assert_eq!(first, SEEDS.map(bytes).collect::<Vec<_>>());
    assert!(first.iter().any(|other| *other != first[0]));
}

#[test]
fn no_steps_give_no_plan() {
    let snapshot = ring_with(CROSSED, |k| k / 2);
    assert!(decide(&snapshot, &POLICY.defaults(), 1, 0).unwrap().is_empty());
}

#[test]
fn threads_without_the_signal_are_an_error_and_no_threads_an_empty_plan() {
    let missing = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
    let error = decide(&missing, &POLICY.defaults(), 1, u64::MAX).unwrap_err();
    assert_eq!(error, MissingSignal { policy: "sma", signal: Signal::ThreadAccesses });
    assert!(run(&SnapshotBuilder::new(two_nodes(1)).build(), 1).is_empty());
}

/// Most threads that pass the gate, of `count` threads made by `snapshot`.
fn most_that_pass(snapshot: impl Fn(usize) -> Snapshot, counts: impl Iterator<Item = usize>) -> usize {
    let passes = |&count: &usize| !run(&snapshot(count), 1).is_empty();
    counts.take_while(passes).last().unwrap()
}

/// What the module page and docs/policies/sma.md say of the gate.
#[test]
fn the_gate_passes_35_threads_crossed_on_two_nodes_and_9_a_neighbour_away() {
    let away = |topology: &Topology, count: usize, to: usize| {
        let add = |all: SnapshotBuilder, k: usize| all.thread_with_memory_on(k as u32, 0, to);
        (0..count).fold(SnapshotBuilder::new(topology.clone()), add).build()
    };
    assert_eq!(most_that_pass(|count| away(&two_nodes(50), count, 1), 1..50), 35);
    assert_eq!(most_that_pass(|count| away(&ring_of_four(50), count, 1), 1..50), 9);
}

#[test]
fn the_gate_passes_one_misplaced_thread_among_26() {
    let among = |count: usize| {
        let add = |all: SnapshotBuilder, k: usize| all.thread_with_memory_on(k as u32, 1, 1);
        (1..count).fold(SnapshotBuilder::new(two_nodes(50)).thread_with_memory_on(0, 0, 1), add).build()
    };
    assert_eq!(most_that_pass(among, 1..50), 26);
    let lower = BTreeMap::from([("gate_percent_per_thread".to_owned(), 0.5)]);
    let parameters = POLICY.parameters(&lower).unwrap();
    assert!(!decide(&among(50), &parameters, 1, u64::MAX).unwrap().is_empty());
}
