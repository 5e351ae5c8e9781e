// SPDX-License-Identifier: GPL-2.0-only
//! What holds for every plan, on snapshots drawn at random.

mod clock;
mod pairs;
mod sharers;
mod wrong_input;

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::capacity;
use crate::model::{Action, NodeIndex, PerNode, Plan, ProcessId, ProcessMemory, Snapshot, Thread, ThreadId, Unmovable};
use crate::score;
use crate::testing::{SnapshotBuilder, decided, machine_with_ids};
use crate::{sma, tmma};

mod rules_of_threads;

/// One thread: node, memory node, allowed nodes (bits), remembered performance by node, CPU time in
/// hundredths, on cooldown.
type ThreadDraw = (usize, Option<usize>, u8, [Option<u8>; 4], u8, bool);
/// One group: resident pages, accesses, samples, unmovable.
type GroupDraw = ([u16; 4], [u16; 4], u8, bool);

fn thread_draw() -> impl Strategy<Value = ThreadDraw> {
    let performance = proptest::array::uniform4(proptest::option::of(0u8..4));
    let memory = proptest::option::weighted(0.9, 0usize..4);
    (0usize..4, memory, 1u8..16, performance, 0u8..20, proptest::bool::weighted(0.1))
}

fn group_draw() -> impl Strategy<Value = GroupDraw> {
    let row = || proptest::array::uniform4(0u16..512);
    (row(), row(), 0u8..12, proptest::bool::weighted(0.1))
}

pub fn snapshot() -> impl Strategy<Value = Snapshot> {
    let cpus =
        proptest::array::uniform4(0u32..4).prop_filter("a machine has a CPU", |cpus| cpus.iter().sum::<u32>() > 0);
    let distance = proptest::array::uniform4(proptest::array::uniform4(11u32..40));
    let threads = proptest::collection::vec(thread_draw(), 0..14);
    let groups = proptest::collection::vec(group_draw(), 0..12);
    let memory = proptest::array::uniform4((0u64..3, 0u64..3000));
    let allowed = proptest::option::weighted(0.3, 1u8..16);
    (cpus, distance, threads, groups, memory, allowed).prop_map(
        |(cpus, mut distance, threads, groups, memory, allowed)| {
            (0..4).for_each(|node| distance[node][node] = 10);
            let rows: Vec<&[u32]> = distance.iter().map(|row| &row[..]).collect();
            let mut topology = machine_with_ids(&[0, 1, 4, 9], &cpus, &rows);
            for (node, &(installed, free)) in memory.iter().enumerate() {
                topology.nodes[NodeIndex(node)].memory_pages = 10_000 * installed;
                topology.nodes[NodeIndex(node)].free_pages = free.min(10_000 * installed);
            }
            let builder = threads.into_iter().enumerate().fold(SnapshotBuilder::new(topology), with_thread);
            let mut snapshot = groups.into_iter().fold(builder, with_group).build();
            if let Some(nodes) = allowed {
                let allowed = PerNode::from_fn(4, |node| nodes & (1 << node.0) != 0);
                snapshot.process_memory.insert(ProcessId(1), ProcessMemory { allowed });
            }
            snapshot
        },
    )
}

fn with_thread(builder: SnapshotBuilder, (tid, draw): (usize, ThreadDraw)) -> SnapshotBuilder {
    let (node, memory, allowed, performance, hundredths, on_cooldown) = draw;
    let builder = match memory {
        Some(memory) => builder.thread_with_memory_on(tid as u32, node, memory),
        None => builder.thread(tid as u32, node, None),
    };
    builder.with_thread(|thread| {
        thread.allowed = (0..4).map(|at| allowed & (1 << at) != 0).collect::<Vec<_>>().into();
        thread.performance = performance.iter().map(|known| known.map(f64::from)).collect::<Vec<_>>().into();
        thread.cpu_time_ns = u64::from(hundredths) * 10_000_000;
        thread.on_cooldown = on_cooldown;
    })
}

fn with_group(builder: SnapshotBuilder, (resident, accesses, samples, pinned): GroupDraw) -> SnapshotBuilder {
    builder.group(&resident.map(u64::from), &accesses.map(f64::from)).with_group(|group| {
        group.samples = f64::from(samples);
        group.unmovable = pinned.then_some(Unmovable::Pinned);
    })
}

fn busy(snapshot: &Snapshot) -> Vec<&Thread> {
    snapshot.threads.iter().filter(|thread| thread.cpu_time_ns >= 10_000_000).collect()
}

fn may_run(snapshot: &Snapshot, thread: &Thread, node: NodeIndex) -> bool {
    thread.allowed[node] && !snapshot.topology.nodes[node].cpus.is_empty()
}

/// Busy threads that can run where they are or may be moved to where they can.
fn placed(snapshot: &Snapshot) -> Vec<&Thread> {
    let nodes = || (0..snapshot.topology.len()).map(NodeIndex);
    let can_go = |thread: &Thread| !thread.on_cooldown && nodes().any(|node| may_run(snapshot, thread, node));
    busy(snapshot).into_iter().filter(|thread| may_run(snapshot, thread, thread.node) || can_go(thread)).collect()
}

/// The plan of `sma`; empty without the signal.
fn sma(snapshot: &Snapshot, seed: u64) -> Plan {
    decided(&sma::POLICY, snapshot, seed, 20_000).unwrap_or_default()
}

/// Thread, source and destination of every thread that moves.
fn thread_moves(plan: &Plan) -> Vec<(ThreadId, NodeIndex, NodeIndex)> {
    let both = |planned: &crate::model::Move| match planned.action {
        Action::MoveThread { thread, from, to, .. } => vec![(thread, from, to)],
        Action::Interchange { first, second, first_node, second_node } => {
            vec![(first, first_node, second_node), (second, second_node, first_node)]
        }
        Action::MovePages { .. } => vec![],
    };
    plan.moves.iter().flat_map(both).collect()
}

/// S_sys by the points of [`score::score`]: busy threads put one by one on the nodes `place` gives them.
/// A thread on a node it may not use scores nothing and takes no room.
fn system_score(snapshot: &Snapshot, place: &Snapshot) -> f64 {
    let topology = &snapshot.topology;
    let threads = placed(snapshot);
    let demands = capacity::demands(snapshot, &threads);
    let rooms = capacity::rooms(topology, &demands);
    let mut loads = vec![0; topology.len()];
    let mut total = 0.0;
    for (thread, &demand) in threads.iter().zip(&demands) {
        let node = place.thread(thread.id).unwrap().node;
        if may_run(snapshot, thread, node) {
            total += score::score(topology, thread, node, rooms[node.0], loads[node.0], demand);
            loads[node.0] += demand;
        }
    }
    total
}

proptest! {
    #[test]
    fn threads_go_only_where_they_may_run(snapshot in snapshot(), seed: u64) {
        for (id, from, to) in thread_moves(&sma(&snapshot, seed)) {
            let thread = snapshot.thread(id).unwrap();
            prop_assert!(may_run(&snapshot, thread, to), "thread {id} to {to:?}");
            prop_assert!(from == thread.node && to != from && !thread.on_cooldown);
        }
    }

    #[test]
    fn no_thread_moves_twice_and_no_idle_one_at_all(snapshot in snapshot(), seed: u64) {
        let moves = thread_moves(&sma(&snapshot, seed));
        let distinct: BTreeSet<ThreadId> = moves.iter().map(|&(id, ..)| id).collect();
        prop_assert_eq!(distinct.len(), moves.len());
        let busy: BTreeSet<ThreadId> = busy(&snapshot).iter().map(|thread| thread.id).collect();
        prop_assert!(distinct.is_subset(&busy));
    }

    #[test]
    fn the_score_of_the_machine_is_never_lowered(snapshot in snapshot(), seed: u64) {
        let after = snapshot.after_thread_moves(&sma(&snapshot, seed));
        prop_assert!(system_score(&snapshot, &after) >= system_score(&snapshot, &snapshot) - 1e-6);
    }

    #[test]
    fn no_thread_that_can_leave_stays_where_it_may_not_run(snapshot in snapshot(), seed: u64) {
        let signal = placed(&snapshot).iter().any(|thread| thread.accesses_per_s.is_some());
        let after = snapshot.after_thread_moves(&sma(&snapshot, seed));
        for thread in placed(&snapshot).into_iter().filter(|thread| signal && !thread.on_cooldown) {
            let can = (0..snapshot.topology.len()).any(|node| may_run(&snapshot, thread, NodeIndex(node)));
            prop_assert!(!can || may_run(&snapshot, thread, after.thread(thread.id).unwrap().node));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan(snapshot in snapshot(), seed: u64) {
        let few_steps = || decided(&sma::POLICY, &snapshot, seed, 30);
        prop_assert_eq!(few_steps(), few_steps());
    }

    #[test]
    fn groups_that_move_may_move_once_to_a_node_with_room(snapshot in snapshot()) {
        let plan = decided(&tmma::POLICY, &snapshot, 0, 0).unwrap();
        let mut arriving = vec![0; snapshot.topology.len()];
        let mut seen = BTreeSet::new();
        for planned in &plan.moves {
            let Action::MovePages { group, bytes, to } = planned.action else { panic!("{planned:?}") };
            prop_assert!(seen.insert(group));
            let group = snapshot.groups.iter().find(|known| known.id == group).unwrap();
            prop_assert!(group.unmovable.is_none() && bytes == group.bytes);
            prop_assert!(snapshot.may_use(group.id.process, to));
            arriving[to.0] += group.resident_pages.values().sum::<u64>() - group.resident_pages[to];
        }
        for (node, of) in snapshot.topology.nodes.iter() {
            prop_assert!(arriving[node.0] == 0 || of.memory_pages > 0);
            prop_assert!(arriving[node.0] + of.memory_pages / 50 <= of.free_pages || arriving[node.0] == 0);
        }
    }
}
