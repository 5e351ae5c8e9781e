// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::Action;
use crate::testing::{SnapshotBuilder, machine, ring_of_four, throttled, two_nodes};

const SEEDS: std::ops::Range<u64> = 0..20;

fn run(snapshot: &Snapshot, seed: u64) -> Plan {
    decide(snapshot, &POLICY.defaults(), seed, u64::MAX).unwrap()
}

fn working(operations: f64, latency_ns: Option<f64>) -> impl FnOnce(&mut Thread) {
    move |thread| {
        thread.operations_per_s = Some(operations);
        thread.latency_ns = latency_ns;
    }
}

/// Threads with their memory on the nodes given, where `node` puts them.
fn ring_with(memory: &[usize], node: impl Fn(usize) -> usize) -> Snapshot {
    let add = |all: SnapshotBuilder, (k, &memory): (usize, &usize)| {
        all.thread_with_memory_on(k as u32, node(k), memory).with_thread(working(1e9, None))
    };
    memory.iter().enumerate().fold(SnapshotBuilder::new(ring_of_four(2)), add).build()
}

fn nodes(snapshot: &Snapshot) -> Vec<usize> {
    snapshot.threads.iter().map(|thread| thread.node.0).collect()
}

const CROSSED: [usize; 8] = [1, 1, 2, 2, 3, 3, 0, 0];

/// 1e6 accesses to node 0 and 3e6 to node 1, at 100 ns locally and 210 ns remotely.
#[test]
fn latency_and_performance_are_as_computed_by_hand() {
    let builder = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, Some(&[1e6, 3e6]));
    let snapshot = builder.with_thread(working(8e8, Some(200.0))).build();
    let (latency_ns, thread) = (latencies_ns(&snapshot), &snapshot.threads[0]);
    let predicted = |node| predicted_latency_ns(&latency_ns, thread, NodeIndex(node)).unwrap();
    assert_eq!((predicted(0), predicted(1)), ((100.0 + 630.0) / 4.0, (210.0 + 300.0) / 4.0));
    // O' = 8e8 * 200 / 127.5 and I = 8e8 / (4e6 * 64) = 3.125.
    let expected = 8e8 * 200.0 / 127.5 * 3.125 / 127.5;
    let performance = predicted_performance(&snapshot.topology, &latency_ns, thread, NodeIndex(1)).unwrap();
    assert!((performance / expected - 1.0).abs() < 1e-12, "{performance} instead of {expected}");
}

#[test]
fn without_a_measured_latency_the_predicted_one_stands_in() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, Some(&[0.0, 1e6])).with_thread(working(8e8, None));
    let snapshot = snapshot.build();
    let of = |node| {
        predicted_performance(&snapshot.topology, &latencies_ns(&snapshot), &snapshot.threads[0], NodeIndex(node))
            .unwrap()
    };
    assert!((of(0) - 8e8 * 12.5 / 210.0).abs() < 1.0);
    assert!((of(1) / of(0) - 2.1 * 2.1).abs() < 1e-9);
}

#[test]
fn at_half_speed_half_the_operations_are_predicted() {
    let predicted = |topology: Topology| {
        let builder = SnapshotBuilder::new(topology).thread(1, 0, Some(&[1e6, 1e6])).with_thread(working(8e8, None));
        let snapshot = builder.build();
        let of = |node| {
            predicted_performance(&snapshot.topology, &latencies_ns(&snapshot), &snapshot.threads[0], NodeIndex(node))
        };
        (of(0).unwrap(), of(1).unwrap())
    };
    let (alike, throttled) = (predicted(two_nodes(1)), predicted(throttled(two_nodes(1), 1, 512)));
    assert_eq!((throttled.0, throttled.1), (alike.0, alike.1 / 2.0));
}

/// Node 1 served at 420 ns what the topology gives 210 ns for; nothing was seen of node 0.
#[test]
fn latencies_are_those_seen_and_the_topology_s_where_nothing_was_seen() {
    let mut snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, Some(&[1e6, 1e6])).build();
    snapshot.nodes[NodeIndex(1)].served_latency_ns = Some(420.0);
    let latency_ns = latencies_ns(&snapshot);
    let row = |node: usize| [latency_ns[NodeIndex(node)][NodeIndex(0)], latency_ns[NodeIndex(node)][NodeIndex(1)]];
    assert_eq!((row(0), row(1)), ([100.0, 420.0], [210.0, 200.0]));
    snapshot.nodes[NodeIndex(1)].served_latency_ns = Some(f64::NAN);
    assert_eq!(latencies_ns(&snapshot)[NodeIndex(0)][NodeIndex(1)], 210.0);
}

#[test]
fn what_was_measured_of_a_pair_of_nodes_comes_first() {
    let mut snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, Some(&[1e6, 1e6])).build();
    let load = &mut snapshot.nodes[NodeIndex(1)];
    (load.served_latency_ns, load.latency_ns_from) = (Some(420.0), vec![Some(300.0), None].into());
    let to_the_second = |snapshot: &Snapshot| [0, 1].map(|run| latencies_ns(snapshot)[NodeIndex(run)][NodeIndex(1)]);
    assert_eq!(to_the_second(&snapshot), [300.0, 200.0]);
    snapshot.nodes[NodeIndex(1)].latency_ns_from = vec![Some(f64::NAN), Some(-1.0)].into();
    assert_eq!(to_the_second(&snapshot), [420.0, 200.0]);
}

#[test]
fn one_plan_uncrosses_eight_threads_on_a_ring_of_four_and_the_next_is_empty() {
    for start in [(|k| k / 2) as fn(usize) -> usize, |k| k % 4] {
        let snapshot = ring_with(&CROSSED, start);
        for seed in SEEDS {
            let after = snapshot.after_thread_moves(&run(&snapshot, seed));
            assert_eq!(nodes(&after), CROSSED, "seed {seed}");
            assert!(run(&after, seed).is_empty(), "seed {seed}");
        }
    }
}

/// Every access takes 300 ns where the topology says 100: the mapping that there is must be judged as the others are, by what
/// is predicted for it, else every other node would look better.
#[test]
fn well_placed_threads_stay_though_they_measure_more_than_is_predicted() {
    let add = |all: SnapshotBuilder, k: usize| {
        all.thread_with_memory_on(k as u32, k % 2, k % 2).with_thread(working(1e9, Some(300.0)))
    };
    let snapshot = (0..4).fold(SnapshotBuilder::new(two_nodes(4)), add).build();
    for seed in SEEDS {
        assert!(run(&snapshot, seed).is_empty(), "seed {seed}");
    }
}

/// Raw P of these threads is about 1e8: differences of 1e7 against a temperature of 0.3 leave nothing but ascent.
#[test]
fn values_are_of_order_one_whatever_the_rates() {
    for operations in [1e3, 1e9, 1e15] {
        let mut snapshot = ring_with(&CROSSED, |k| k / 2);
        snapshot.threads.iter_mut().for_each(|thread| thread.operations_per_s = Some(operations));
        let threads: Vec<&Thread> = snapshot.threads.iter().collect();
        let problem = problem(&snapshot, &threads, &latencies_ns(&snapshot));
        assert!((problem.start().score - 8.0).abs() < 1e-9);
        assert!(
            (0..problem.present.len())
                .flat_map(|thread| &problem.value[thread])
                .all(|value| (0.1..10.0).contains(value))
        );
    }
}

#[test]
fn the_thread_with_more_to_win_gets_the_only_place() {
    let topology = machine(&[2, 1], &[&[10, 21], &[21, 10]]);
    let builder = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 1).with_thread(working(1e9, None));
    let snapshot = builder.thread_with_memory_on(2, 0, 1).with_thread(working(2e9, None)).build();
    for seed in SEEDS {
        let plan = run(&snapshot, seed);
        assert_eq!(nodes(&snapshot.after_thread_moves(&plan)), [0, 1]);
        let words = "an access from node 1 would take 100 ns on average, 210 ns from node 0";
        assert_eq!((&plan.moves[0].reason[..], plan.moves[0].gain_ns_per_s), (words, Some(1e6 * 110.0)));
    }
}

/// On distances 10/21 a thread at its memory has 2.1^2 of its performance elsewhere; with 400 others one thread is no 1 %.
#[test]
fn a_gain_below_one_percent_of_p_sys_is_not_worth_a_thread() {
    let among = |count: usize| {
        let add = |all: SnapshotBuilder, k: usize| {
            all.thread_with_memory_on(k as u32, 1, 1).with_thread(working(1e9, Some(100.0)))
        };
        let lone = SnapshotBuilder::new(two_nodes(500)).thread_with_memory_on(0, 0, 1);
        (1..count).fold(lone.with_thread(working(1e9 / 2.1, Some(210.0))), add).build()
    };
    assert!(!run(&among(20), 1).is_empty());
    assert!(run(&among(400), 1).is_empty());
}

#[test]
fn no_more_steps_are_made_than_allowed() {
    let snapshot = ring_with(&CROSSED, |k| k / 2);
    let few = POLICY.parameters(&[("most_steps".to_owned(), 1.0)].into()).unwrap();
    assert!(SEEDS.into_iter().all(|seed| decide(&snapshot, &few, seed, u64::MAX).unwrap().is_empty()));
    assert!(decide(&snapshot, &POLICY.defaults(), 1, 0).unwrap().is_empty());
}

#[test]
fn threads_without_operations_are_left_alone_and_hold_their_places() {
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).with_thread(working(1e9, None));
    let snapshot = builder.thread_with_memory_on(2, 1, 0).build();
    assert!(SEEDS.into_iter().all(|seed| run(&snapshot, seed).is_empty()));
}

#[test]
fn a_stray_without_operations_is_still_pulled_out() {
    let closed = |thread: &mut Thread| thread.allowed = vec![true, false].into();
    let builder = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0).with_thread(working(1e9, None));
    let snapshot = builder.thread(2, 1, None).with_thread(closed).build();
    let plan = run(&snapshot, 1);
    let thread = snapshot.threads[1].id;
    let action = Action::MoveThread { thread, from: NodeIndex(1), to: NodeIndex(0), cpu: None };
    assert_eq!((plan.moves.len(), &plan.moves[0].action), (1, &action));
    assert_eq!(plan.moves[0].reason, "may not run on node 1 any more");
}

#[test]
fn missing_signals_are_named() {
    let missing = |snapshot: &Snapshot| decide(snapshot, &POLICY.defaults(), 1, 1).unwrap_err();
    let no_accesses = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).with_thread(working(1.0, None)).build();
    let no_operations = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).build();
    assert_eq!(missing(&no_accesses), MissingSignal { policy: "dyrmma", signal: Signal::ThreadAccesses });
    assert_eq!(missing(&no_operations), MissingSignal { policy: "dyrmma", signal: Signal::ThreadOperations });
    assert!(run(&SnapshotBuilder::new(two_nodes(1)).build(), 1).is_empty());
}
