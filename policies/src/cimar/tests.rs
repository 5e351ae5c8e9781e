// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::{Action, CpuId, ProcessId};
use crate::testing::{SnapshotBuilder, lagging_snapshot, machine, ring_of_four, two_nodes};

fn run(snapshot: &Snapshot) -> Plan {
    decide(snapshot, &POLICY.defaults()).unwrap()
}

fn with(name: &str, value: f64) -> Parameters {
    POLICY.parameters(&[(name.to_owned(), value)].into()).unwrap()
}

#[test]
fn threads_beside_their_memory_stay() {
    for threads in [4, 8] {
        let placed: Vec<(usize, usize)> = (0..threads).map(|k| (k % 4, k % 4)).collect();
        let all = with("lagging_below", 10.0);
        assert!(decide(&lagging_snapshot(ring_of_four(2), &placed), &all).unwrap().is_empty());
    }
}

#[test]
fn a_lagging_thread_goes_to_a_free_cpu_beside_its_memory() {
    let snapshot = lagging_snapshot(two_nodes(3), &[(0, 0), (0, 0), (0, 1), (1, 1)]);
    let plan = run(&snapshot);
    let thread = snapshot.threads[2].id;
    let action = Action::MoveThread { thread, from: NodeIndex(0), to: NodeIndex(1), cpu: Some(CpuId(4)) };
    assert_eq!((plan.moves.len(), &plan.moves[0].action), (1, &action));
    let words = "8.0 points there, P_rel 0.55 here; thread 2 is on node 0, 100 % of its accesses go to node 1";
    assert_eq!(plan.moves[0].reason, words);
    assert!(run(&snapshot.after_thread_moves(&plan)).is_empty());
}

/// CPUs 4 to 7 are those of node 1, CPU 1 is one of node 0.
#[test]
fn cpu_numbers_are_not_taken_for_nodes() {
    let snapshot = lagging_snapshot(ring_of_four(4), &[(2, 2), (2, 2), (3, 1)]);
    let plan = run(&snapshot);
    assert!(
        matches!(plan.moves[0].action, Action::MoveThread { cpu: Some(CpuId(4)), to: NodeIndex(1), .. }),
        "{plan:?}"
    );
}

#[test]
fn a_tie_is_no_gain() {
    // Both nodes are equally far from the memory-only node: free, not preferred, unknown, here and there.
    let topology = machine(&[1, 1, 0], &[&[10, 20, 30], &[20, 10, 30], &[30, 30, 10]]);
    let snapshot = lagging_snapshot(topology, &[(0, 2)]);
    assert!(decide(&snapshot, &with("lagging_below", 10.0)).unwrap().is_empty());
}

/// Thread 1 wants the place of thread 2, which is on it by right; both lag behind thread 3. Counting the points of a lagging
/// partner as gain, they would change places in each interval.
#[test]
fn two_lagging_threads_that_want_one_place_do_not_change_for_ever() {
    let slow = |thread: &mut Thread| thread.performance = vec![Some(1.0), Some(1.0)].into();
    let fast = |thread: &mut Thread| thread.performance = vec![Some(9.0), None].into();
    let builder = SnapshotBuilder::new(machine(&[2, 1], &[&[10, 21], &[21, 10]])).thread_with_memory_on(1, 0, 1);
    let builder = builder.with_thread(slow).thread_with_memory_on(2, 1, 1).with_thread(slow);
    let snapshot = builder.thread_with_memory_on(3, 0, 0).with_thread(fast).build();
    assert!(run(&snapshot).is_empty());
}

#[test]
fn the_lowest_threads_come_first_and_no_more_than_asked_for() {
    let placed: Vec<(usize, usize)> = (0..4).map(|_| (0, 1)).chain((0..8).map(|_| (0, 0))).collect();
    let mut snapshot = lagging_snapshot(two_nodes(12), &placed);
    snapshot.threads[2].performance[NodeIndex(0)] = Some(0.1);
    let parameters = with("threads_per_interval", 1.0);
    let plan = decide(&snapshot, &parameters).unwrap();
    assert_eq!(plan.moves.len(), 1);
    assert!(matches!(plan.moves[0].action, Action::MoveThread { thread, .. } if thread == snapshot.threads[2].id));
    assert_eq!(run(&snapshot).moves.len(), 4);
}

#[test]
fn two_threads_do_not_go_to_one_cpu() {
    let snapshot = lagging_snapshot(machine(&[4, 1], &[&[10, 21], &[21, 10]]), &[(0, 1), (0, 1), (0, 0), (0, 0)]);
    assert_eq!(run(&snapshot).moves.len(), 1);
}

#[test]
fn a_processor_bound_and_a_memory_bound_process_are_not_compared() {
    let own = |process: u32, performance: f64| {
        move |thread: &mut Thread| {
            thread.process = ProcessId(process);
            thread.performance = vec![Some(performance), Some(performance)].into();
        }
    };
    let builder = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0).with_thread(own(1, 1e6));
    let snapshot = builder.thread_with_memory_on(2, 1, 1).with_thread(own(2, 1.0)).build();
    assert!(run(&snapshot).is_empty());
}

#[test]
fn missing_signals_are_named_and_no_threads_are_an_empty_plan() {
    let missing = |snapshot: &Snapshot| decide(snapshot, &POLICY.defaults()).unwrap_err().signal;
    let no_accesses = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
    let no_performance = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).build();
    assert_eq!(missing(&no_accesses), Signal::ThreadAccesses);
    assert_eq!(missing(&no_performance), Signal::ThreadPerformance);
    assert!(run(&SnapshotBuilder::new(two_nodes(1)).build()).is_empty());
}

#[test]
fn with_two_threads_a_cpu_the_emptier_cpus_take_the_rest() {
    let placed = [(0, 1), (0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1), (1, 1)];
    let mut now = lagging_snapshot(two_nodes(2), &placed);
    for _ in 0..4 {
        now = now.after_thread_moves(&run(&now));
    }
    let on = |node: usize| now.threads.iter().filter(|thread| thread.node.0 == node).count();
    assert_eq!((on(0), on(1)), (4, 4));
}

/// The pair would change places; thread 2 has no accesses now.
#[test]
fn a_thread_without_accesses_is_left_alone_while_others_have_them() {
    let mut snapshot = lagging_snapshot(two_nodes(2), &[(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(run(&snapshot).moves.len(), 1);
    snapshot.threads[2].accesses_per_s = None;
    assert!(run(&snapshot).is_empty());
}
