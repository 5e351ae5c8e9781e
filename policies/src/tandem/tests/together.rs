// SPDX-License-Identifier: GPL-2.0-only
//! Processes and control groups that are kept together where that is cheaper.

use super::*;
use crate::model::ProcessId;

/// Threads of a process: more than can all be tried in every way.
const THREADS: u32 = 14;
/// Groups of a process's common memory, half of them on each node.
const GROUPS: usize = 400;

/// Adds a process with half of its threads on each of two nodes, all of which use all of its memory alike, which is on both. Each
/// of the threads that goes alone leaves more than it gains: the memory that would follow is dear to move.
fn add_spread(mut all: SnapshotBuilder, process: u32, threads: u32, groups: usize) -> SnapshotBuilder {
    let first = (process - 1) * THREADS;
    let tids = first..first + threads;
    for tid in tids.clone() {
        let node = usize::from(tid - first >= threads / 2);
        all = all.thread(tid, node, Some(&[5e5, 5e5])).with_thread(|thread| thread.process = ProcessId(process));
    }
    let users: Vec<(u32, f64)> = tids.map(|tid| (tid, 1e6 / groups as f64)).collect();
    for group in 0..groups {
        let resident = if group % 2 == 0 { [ALL, 0] } else { [0, ALL] };
        all = all.group_used_by(&resident, &users).with_group(|group| group.id.process = ProcessId(process));
    }
    all
}

fn nodes_after(snapshot: &Snapshot, plan: &Plan) -> Vec<usize> {
    snapshot.after_thread_moves(plan).threads.iter().map(|thread| thread.node.0).collect()
}

#[test]
fn a_process_that_fits_one_node_comes_together_where_its_memory_can_too() {
    let snapshot = add_spread(SnapshotBuilder::new(two_nodes(THREADS)), 1, THREADS, GROUPS).build();
    let plan = planned(&snapshot);
    let nodes = nodes_after(&snapshot, &plan);
    assert!(nodes.iter().all(|&node| node == nodes[0]), "{nodes:?}");
    assert_eq!(moves(&snapshot, &plan).1.len(), GROUPS / 2, "the memory comes along");
}

#[test]
fn a_process_that_does_not_fit_one_node_stays_on_both() {
    let snapshot = add_spread(SnapshotBuilder::new(two_nodes(THREADS - 2)), 1, THREADS, GROUPS).build();
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0, vec![]);
}

#[test]
fn a_process_whose_memory_is_too_dear_to_move_stays_on_both() {
    let snapshot = add_spread(SnapshotBuilder::new(two_nodes(THREADS)), 1, THREADS, 2 * GROUPS).build();
    let parameters = POLICY.parameters(&BTreeMap::from([("page_move_ns".to_owned(), 6e4)])).unwrap();
    assert!(decide_within(&snapshot, &parameters, &Horizons::all(10.0), effort(1, u64::MAX)).plan.is_empty());
}

#[test]
fn a_process_whose_threads_have_memory_of_their_own_stays_on_both() {
    let threads = (0..THREADS).fold(SnapshotBuilder::new(two_nodes(THREADS)), |all, tid| {
        let node = usize::from(tid >= THREADS / 2);
        all.thread_with_memory_on(tid, node, node)
    });
    let snapshot = (0..THREADS).fold(threads, |all, tid| {
        let resident = if tid < THREADS / 2 { [ALL, 0] } else { [0, ALL] };
        all.group_used_by(&resident, &[(tid, 1e6)])
    });
    assert!(planned(&snapshot.build()).is_empty());
}

/// Those that are in the way have no memory, and no reason to be anywhere.
#[test]
fn a_process_comes_together_on_a_node_that_others_fill() {
    let spread = add_spread(SnapshotBuilder::new(two_nodes(THREADS)), 1, THREADS, GROUPS);
    let full = (THREADS..2 * THREADS).fold(spread, |all, tid| {
        let node = usize::from(tid >= THREADS + THREADS / 2);
        all.thread(tid, node, Some(&[0.0, 0.0])).with_thread(|thread| thread.process = ProcessId(2))
    });
    let snapshot = full.build();
    let nodes = nodes_after(&snapshot, &planned(&snapshot));
    let (own, others) = nodes.split_at(THREADS as usize);
    assert!(own.iter().all(|&node| node == own[0]) && others.iter().all(|&node| node == 1 - own[0]), "{nodes:?}");
}

/// Two processes, each spread over both nodes; their threads exchange lines with all of the other process. If one of them comes
/// together alone, half of the other is as far from it as before.
fn two_of_a_service(cgroup: Option<u64>) -> Snapshot {
    let one = add_spread(SnapshotBuilder::new(two_nodes(2 * THREADS)), 1, THREADS, 4 * GROUPS);
    let mut both = add_spread(one, 2, THREADS, 4 * GROUPS);
    for first in 0..THREADS as usize {
        for second in THREADS as usize..2 * THREADS as usize {
            both = both.shared(first, second, 1e4);
        }
    }
    let mut snapshot = both.build();
    for thread in &mut snapshot.threads {
        thread.cgroup = cgroup;
        lines(5e5, 5e5)(thread);
    }
    snapshot
}

#[test]
fn processes_of_a_control_group_come_together_where_neither_would_alone() {
    for (cgroup, expected) in [(Some(7), true), (None, false)] {
        let snapshot = two_of_a_service(cgroup);
        let problem = problem(&snapshot);
        let mut state = State::new(&problem);
        assert_eq!(state.gather(u64::MAX, 0.0), expected);
        assert_eq!(state.place.iter().all(|&node| node == state.place[0]), expected, "{:?}", state.place);
        assert!(expected || state.place == State::new(&problem).place, "what does not pay is taken back");
    }
}
