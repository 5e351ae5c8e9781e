// SPDX-License-Identifier: GPL-2.0-only
//! Cold memory and memory-only nodes.

use super::*;

/// Two nodes with CPUs and one of memory only, which is farther (vm/machines/3-cpuless.toml); `free` pages are left on the first.
fn with_expander(free: u64) -> Topology {
    let mut topology = machine(&[2, 2, 0], &[&[10, 20, 25], &[20, 10, 25], &[25, 25, 10]]);
    topology.nodes[NodeIndex(0)].free_pages = free;
    topology
}

/// A group that its thread uses, and two that nobody does, all on the first node.
fn hot_and_cold_groups(free: u64) -> SnapshotBuilder {
    let thread = SnapshotBuilder::new(with_expander(free)).thread_with_memory_on(1, 0, 0);
    let hot = thread.group_used_by(&[ALL, 0, 0], &[(1, 1e6)]);
    let cold = |all: SnapshotBuilder| all.group(&[ALL, 0, 0], &[1.0, 0.0, 0.0]);
    cold(cold(hot))
}

fn hot_and_cold(free: u64) -> Snapshot {
    hot_and_cold_groups(free).build()
}

/// Groups that move at decisions so many seconds after the first, with `cold_to_memory_only`.
fn moved_at(snapshot: &Snapshot, told: f64, seconds: &[u64]) -> Vec<Destinations<usize>> {
    let parameters = POLICY.parameters(&BTreeMap::from([("cold_to_memory_only".to_owned(), told)])).unwrap();
    let (mut memory, mut now) = (Memory::default(), snapshot.clone());
    let mut decide = |after_s: u64| {
        now.time_ns = snapshot.time_ns + after_s * 1_000_000_000;
        let inputs = &mut Inputs { snapshot: &now, parameters: &parameters, memory: &mut memory, seed: 1, steps: 1000 };
        moves(&now, &decide(inputs).unwrap()).1
    };
    seconds.iter().map(|&after_s| decide(after_s)).collect()
}

#[test]
fn cold_groups_of_a_node_that_is_short_of_room_go_to_memory_only_nodes_when_told_to() {
    let snapshot = hot_and_cold(1000);
    assert_eq!(moved_at(&snapshot, 1.0, &[0, 9, 10]), [vec![], vec![], vec![(1, 2), (2, 2)]]);
    assert_eq!(moved_at(&snapshot, 0.0, &[0, 9, 10, 100]), [vec![], vec![], vec![], vec![]], "never otherwise");
}

#[test]
fn where_there_is_room_cold_groups_stay() {
    assert_eq!(moved_at(&hot_and_cold(1 << 19), 1.0, &[0, 10, 100]), [vec![], vec![], vec![]]);
    // One group is enough.
    let short = (0.05 * f64::from(1 << 20)) as u64 + (0.02 * f64::from(1 << 20)).ceil() as u64;
    assert_eq!(moved_at(&hot_and_cold(short - ALL), 1.0, &[0, 10]), [vec![], vec![(1, 2)]]);
}

/// So little of its thread's stall is to be had of a few pages on the other node that it is not tried.
#[test]
fn cold_groups_do_not_wait_for_a_plan_that_nobody_would_notice() {
    let with_some_remote = |used_per_s| {
        let all = hot_and_cold_groups(1000).thread_with_memory_on(2, 1, 1).group_used_by(&[0, ALL, 0], &[(2, 1e6)]);
        all.group_used_by(&[4, 0, 0], &[(2, used_per_s)]).build()
    };
    assert_eq!(moved_at(&with_some_remote(4e3), 1.0, &[0, 10]), [vec![], vec![(1, 2), (2, 2)]]);
    assert_eq!(
        moved_at(&with_some_remote(4e4), 1.0, &[0, 10]),
        [vec![(4, 1)], vec![(4, 1)]],
        "what is worth it is first"
    );
}

#[test]
fn a_group_that_is_used_again_is_not_cold_any_more() {
    let snapshot = hot_and_cold(1000);
    let parameters = POLICY.parameters(&BTreeMap::from([("cold_to_memory_only".to_owned(), 1.0)])).unwrap();
    let mut cold = Cold::default();
    let mut at = |after_s: u64, used: bool| {
        let mut now = snapshot.clone();
        now.time_ns += after_s * 1_000_000_000;
        now.groups[1].accesses_per_s[NodeIndex(0)] = if used { 1e6 } else { 1.0 };
        cold.watch(&now);
        moves(&now, &cold.plan(&now, &parameters)).1
    };
    assert_eq!([at(0, false), at(8, true), at(9, false)], [vec![], vec![], vec![]]);
    assert_eq!([at(18, false), at(19, false)], [vec![(2, 2)], vec![(1, 2), (2, 2)]]);
}

#[test]
fn a_group_that_may_not_move_for_a_moment_is_as_cold_as_before_then() {
    let snapshot = hot_and_cold(1000);
    let parameters = POLICY.parameters(&BTreeMap::from([("cold_to_memory_only".to_owned(), 1.0)])).unwrap();
    for stays in [Unmovable::MemoryPressure, Unmovable::Cooldown] {
        let mut cold = Cold::default();
        let mut at = |after_s: u64, stays: Option<Unmovable>| {
            let mut now = snapshot.clone();
            now.time_ns += after_s * 1_000_000_000;
            now.groups[1].unmovable = stays;
            cold.watch(&now);
            moves(&now, &cold.plan(&now, &parameters)).1
        };
        assert_eq!([at(0, None), at(9, Some(stays))], [vec![], vec![]]);
        assert_eq!([at(10, Some(stays)), at(11, None)], [vec![(2, 2)], vec![(1, 2), (2, 2)]]);
    }
}

#[test]
fn a_group_that_is_seen_no_more_is_cold_until_something_else_is_known_there() {
    let parameters = POLICY.parameters(&BTreeMap::from([("cold_to_memory_only".to_owned(), 1.0)])).unwrap();
    let snapshot = hot_and_cold(1000);
    let planned_at = |change: fn(&mut Snapshot), seconds: &[u64]| -> Vec<Vec<u64>> {
        let mut cold = Cold::default();
        let mut at = |after_s: u64| {
            let mut now = snapshot.clone();
            now.time_ns += after_s * 1_000_000_000;
            now.groups.iter_mut().for_each(|group| group.accesses_per_s[NodeIndex(0)] = 1e6);
            if after_s > 0 {
                change(&mut now);
            }
            cold.watch(&now);
            let plan = cold.plan(&now, &parameters);
            let start = |planned: &crate::model::Move| match planned.action {
                Action::MovePages { group, to: NodeIndex(2), .. } => group.start,
                ref other => panic!("{other:?}"),
            };
            plan.moves.iter().map(start).collect()
        };
        seconds.iter().map(|&after_s| at(after_s)).collect()
    };
    let [_, first, second] = [0, 1, 2].map(|at| snapshot.groups[at].id.start);
    let forgets = |now: &mut Snapshot| now.groups.truncate(1);
    assert_eq!(planned_at(forgets, &[0, 1, 10, 11, 12]), [vec![], vec![], vec![], vec![first, second], vec![]], "once");
    assert_eq!(planned_at(|now| now.groups[1].id.start += 4096, &[0, 1, 11]), vec![Vec::<u64>::new(); 3], "cut anew");
    let ends = |now: &mut Snapshot| {
        now.groups.truncate(1);
        now.groups[0].id.process = ProcessId(99);
        now.threads[0].process = ProcessId(99);
    };
    assert_eq!(planned_at(ends, &[0, 1, 11]), vec![Vec::<u64>::new(); 3], "its process is gone");
}
