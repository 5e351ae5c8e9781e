// SPDX-License-Identifier: GPL-2.0-only
//! CPUs against everything else that placing threads can bring.

use super::*;
use crate::model::NodeLoad;

/// Eight threads, two a node, that wait for node 1: all memory is there, and takes four times as long as it would alone. A part
/// of it is each thread's own; the rest is shared by all, who exchange lines over it.
fn all_wait_for_node_1() -> Snapshot {
    let threads = (0..8).fold(SnapshotBuilder::new(ring_of_four(2)), |all, tid| {
        let waits = |thread: &mut Thread| thread.latency_ns = Some(435.0);
        all.thread(tid, tid as usize / 2, Some(&[0.0, 12e6, 0.0, 0.0])).with_thread(lines(0.0, 5e5)).with_thread(waits)
    });
    let shared = (0..8).flat_map(|one| (one + 1..8).map(move |other| (one, other)));
    let threads = shared.fold(threads, |all, (one, other)| all.shared(one, other, 1000.0));
    let own =
        (0..8).fold(threads, |all, tid| (0..4).fold(all, |all, _| all.group_used_by(&[0, ALL, 0, 0], &[(tid, 1e6)])));
    let users: Vec<(u32, f64)> = (0..8).map(|tid| (tid, 1e6)).collect();
    let common = (0..8).fold(own, |all, _| all.group_used_by(&[0, ALL, 0, 0], &users));
    let mut snapshot = common.build();
    snapshot.nodes[NodeIndex(1)] = NodeLoad { served_latency_ns: Some(435.0), ..NodeLoad::default() };
    snapshot
}

#[test]
fn no_node_gets_more_threads_than_cpus_for_a_memory_that_is_waited_for() {
    let snapshot = all_wait_for_node_1();
    let plan = planned(&snapshot);
    let mut threads = [0; 4];
    snapshot.after_thread_moves(&plan).threads.iter().for_each(|thread| threads[thread.node.0] += 1);
    assert_eq!(threads, [2; 4]);
    assert!(moves(&snapshot, &plan).1.len() >= 24, "memory of the six threads elsewhere comes to them");
}

/// Threads by node after four threads on each of two nodes of four CPUs, of so many processes, use this share of a CPU each, and
/// the last one of node 0 has a gigabyte on node 1.
fn after_one_has_its_memory_elsewhere(use_of_cpu: f64, processes: u32) -> [usize; 2] {
    let threads = (0..8).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| {
        let uses = |thread: &mut Thread| {
            thread.cpu_time_ns = (use_of_cpu * 1e9) as u64;
            thread.run_ns = PerNode::from_fn(2, |node| if node == thread.node { thread.cpu_time_ns } else { 0 });
            thread.process = ProcessId(1 + tid % processes);
        };
        all.thread_with_memory_on(tid, usize::from(tid > 3), usize::from(tid > 2)).with_thread(uses)
    });
    let snapshot = (0..512).fold(threads, |all, _| all.group_used_by(&[0, ALL], &[(3, 1e6 / 512.0)])).build();
    let mut threads = [0; 2];
    snapshot.after_thread_moves(&planned(&snapshot)).threads.iter().for_each(|thread| threads[thread.node.0] += 1);
    threads
}

#[test]
fn threads_of_a_process_that_work_most_of_the_time_get_a_cpu_each() {
    assert_eq!(after_one_has_its_memory_elsewhere(0.6, 1), [4, 4]);
}

#[test]
fn demands_of_threads_that_work_now_and_then_or_alone_add_up() {
    assert_eq!(after_one_has_its_memory_elsewhere(0.3, 1), [3, 5]);
    assert_eq!(after_one_has_its_memory_elsewhere(0.6, 8), [3, 5]);
}

/// Three threads at work on a node of two CPUs, and two on another one that sleep in this interval; when those last worked in step.
fn threads_by_node_beside_those_that_sleep(in_step_ns: Option<u64>) -> [usize; 2] {
    let threads = (0..5).fold(SnapshotBuilder::new(two_nodes(2)), |all, tid| {
        let sleeps = |thread: &mut Thread| {
            if tid > 2 {
                (thread.cpu_time_ns, thread.run_ns, thread.in_step_ns) = (0, PerNode::filled(2, 0), in_step_ns);
            }
        };
        all.thread(tid, usize::from(tid > 2), Some(&[1e5, 1e5])).with_thread(sleeps)
    });
    let mut snapshot = threads.build();
    snapshot.time_ns = 5_000_000_000;
    let after = snapshot.after_thread_moves(&planned(&snapshot));
    [0, 1].map(|node| after.threads.iter().filter(|thread| thread.node.0 == node).count())
}

#[test]
fn nobody_takes_the_cpu_of_a_thread_that_waits_for_others() {
    assert_eq!(threads_by_node_beside_those_that_sleep(None), [2, 3], "there is room");
    assert_eq!(threads_by_node_beside_those_that_sleep(Some(4_500_000_000)), [3, 2]);
    assert_eq!(threads_by_node_beside_those_that_sleep(Some(4_000_000_000)), [2, 3], "it was long ago");
}
