// SPDX-License-Identifier: GPL-2.0-only
//! What plans say they gain, and what lacks room.

use super::*;

/// What a plan gains, in ns per second.
fn gain(plan: &Plan) -> f64 {
    plan.moves.iter().filter_map(|planned| planned.gain_ns_per_s).sum()
}

/// Accesses of so many are in flight together that a tenth of them is waited for one after the other.
#[test]
fn threads_that_share_too_few_cpus_gain_more_than_leaving_their_memory_costs() {
    let threads = (0..8).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| {
        let half = |thread: &mut Thread| {
            (thread.cpu_time_ns, thread.run_ns) = (500_000_000, vec![500_000_000, 0].into());
        };
        all.thread(tid, 0, Some(&[5e7, 0.0])).with_thread(half)
    });
    let snapshot = threads.build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0.len(), 4);
    assert!(gain(&plan) > 0.0, "{plan:?}");
}

/// Two threads of which `second` is the node of the other one, who exchange `lines_per_s`, on nodes with so many CPUs; the memory of each
/// is on the node on which it is not, and stays.
fn gain_of_two(second: usize, cpus: u32, lines_per_s: f64) -> f64 {
    let threads = [(1, 0), (2, second)].into_iter().fold(SnapshotBuilder::new(two_nodes(cpus)), |all, (tid, node)| {
        all.thread_with_memory_on(tid, node, 1 - node).with_thread(lines(lines_per_s, lines_per_s))
    });
    let snapshot = threads.shared(0, 1, 1000.0).build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0, [(1, 1), (2, 1 - second)]);
    gain(&plan)
}

#[test]
fn threads_that_go_together_or_change_places_gain_nothing_of_the_lines_that_they_exchange() {
    for (second, cpus) in [(0, 2), (1, 1)] {
        assert_eq!(gain_of_two(second, cpus, 1e5), gain_of_two(second, cpus, 0.0));
    }
}

/// Thread 1's memory should come, for it exchanges lines with one that is bound to its node. Beside it thread 3 of another process is bound
/// to that node as well, and has a group with so many pages on each node.
fn beside(pages: &[u64], memory: &[bool]) -> Snapshot {
    let bound = |thread: &mut Thread| thread.allowed = vec![true, false].into();
    let threads = SnapshotBuilder::new(two_nodes(4)).thread(1, 0, Some(&[0.0, 2e6])).with_thread(lines(1e6, 0.0));
    let threads = threads.thread(2, 0, None).with_thread(bound).shared(0, 1, 1000.0);
    let other = |thread: &mut Thread| thread.process = ProcessId(2);
    let on = pages.iter().map(|&on| 1e7 * on as f64 / ALL as f64).collect::<Vec<_>>();
    let threads = threads.thread(3, 0, Some(&on)).with_thread(bound).with_thread(other);
    let groups = (0..4).fold(threads, |all, _| all.group_used_by(&[0, ALL], &[(1, 5e5)]));
    let its = groups.group_used_by(pages, &[(3, 1e7)]).with_group(|group| group.id.process = ProcessId(2));
    let mut snapshot = its.build();
    snapshot.process_memory.insert(ProcessId(2), ProcessMemory { allowed: memory.to_vec().into() });
    snapshot
}

#[test]
fn memory_that_is_nearly_all_there_or_may_not_come_keeps_no_other_from_coming() {
    let comes = |pages: &[u64], memory: &[bool]| {
        let snapshot = beside(pages, memory);
        moves(&snapshot, &planned(&snapshot))
    };
    let all_come = (vec![], (0..4).map(|group| (group, 0)).collect::<Vec<_>>());
    assert_eq!(comes(&[490, 22], &[true, true]), all_come);
    assert_eq!(comes(&[0, ALL], &[false, true]), all_come);
    let full = |node: usize| {
        let mut snapshot = beside(&[0, ALL], &[true, true]);
        snapshot.topology.nodes[NodeIndex(node)].free_pages = 0;
        moves(&snapshot, &planned(&snapshot))
    };
    assert_eq!(full(0), (vec![(1, 1)], vec![]), "where there is no room the thread goes");
}

/// Threads on the first of three nodes, whose memory is on the third; they may use that of the second one too.
#[test]
fn memory_goes_to_the_nearest_node_that_its_process_may_use() {
    let topology = machine(&[2, 2, 2], &[&[10, 15, 30], &[15, 10, 30], &[30, 30, 10]]);
    let bound = |thread: &mut Thread| thread.allowed = vec![true, false, false].into();
    let thread = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 2).with_thread(bound);
    let mut snapshot = (0..4).fold(thread, |all, _| all.group_used_by(&[0, 0, ALL], &[(1, 2.5e5)])).build();
    snapshot.process_memory.insert(ProcessId(1), ProcessMemory { allowed: vec![false, true, true].into() });
    assert_eq!(moves(&snapshot, &planned(&snapshot)).1, (0..4).map(|group| (group, 1)).collect::<Vec<_>>());
}

/// What two threads of the first two of three nodes gain, who exchange so many lines, where both go to the third, by choice or not.
fn gain_of_meeting(may_stay: bool, lines_per_s: f64) -> f64 {
    let topology = machine(&[2, 2, 2], &[&[10, 21, 21], &[21, 10, 21], &[21, 21, 10]]);
    let threads = [(1, 0), (2, 1)].into_iter().fold(SnapshotBuilder::new(topology), |all, (tid, node)| {
        let may_run = |thread: &mut Thread| thread.allowed = PerNode::from_fn(3, |at| may_stay || at.0 == 2);
        all.thread_with_memory_on(tid, node, 2).with_thread(may_run).with_thread(lines(lines_per_s, lines_per_s))
    });
    let snapshot = threads.shared(0, 1, 1000.0).build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0, [(1, 2), (2, 2)]);
    gain(&plan)
}

#[test]
fn lines_of_threads_that_meet_count_once_whether_they_choose_to_or_may_not_stay() {
    let [choose, must] = [true, false].map(|may_stay| gain_of_meeting(may_stay, 1e5) - gain_of_meeting(may_stay, 0.0));
    // Each is said to exchange 2e5 a second, of which each takes 110 ns less.
    assert!([choose, must].iter().all(|gain| (gain - 4e5 * 110.0).abs() < 1.0), "{choose} and {must}");
}
