// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use super::*;
use crate::model::{Action, MemoryLines, PerNode, Snapshot, Topology, Transfers};
use crate::registry::Memory;
use crate::testing::{SnapshotBuilder, decided, decided_with, two_nodes};

/// A thread of HuBench: 1.3e-3 lines per cycle at 2.2 GHz.
const SHARER_PER_S: f64 = 2.86e6;

#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Shares with all of its group: from other nodes' caches as far as they run on other nodes.
    Sharer { group: u32 },
    /// Gets lines from other nodes, whoever is on its own.
    NeverWithin,
    /// Accesses memory of node `home`.
    Memory { home: usize, per_s: f64 },
    /// Computes.
    Hog,
}

/// Threads whose counters follow from where they are.
struct World {
    snapshot: Snapshot,
    loads: BTreeMap<ThreadId, Load>,
    memory: Memory,
}

impl World {
    fn new(topology: Topology, threads: &[(usize, Load)]) -> Self {
        let nodes = topology.len();
        let add = |all: SnapshotBuilder, (tid, thread): (usize, &(usize, Load))| {
            all.thread(tid as u32, thread.0, Some(&vec![0.0; nodes]))
        };
        let snapshot = threads.iter().enumerate().fold(SnapshotBuilder::new(topology), add).build();
        let loads = snapshot.threads.iter().zip(threads).map(|(thread, &(_, load))| (thread.id, load)).collect();
        let mut world = Self { snapshot, loads, memory: Memory::default() };
        world.count();
        world
    }

    /// Sets all counters.
    fn count(&mut self) {
        let nodes: BTreeMap<ThreadId, NodeIndex> = self.snapshot.threads.iter().map(|t| (t.id, t.node)).collect();
        for thread in &mut self.snapshot.threads {
            let load = self.loads[&thread.id];
            let is_peer = |id: &ThreadId| *id != thread.id && self.loads[id] == load;
            let peers: Vec<NodeIndex> = nodes.iter().filter(|(id, _)| is_peer(id)).map(|(_, &node)| node).collect();
            let near = peers.iter().filter(|&&node| node == thread.node).count() as f64 / peers.len().max(1) as f64;
            let (within_node, across_nodes) = match load {
                Load::Sharer { .. } if !peers.is_empty() => (near * SHARER_PER_S, (1.0 - near) * SHARER_PER_S),
                Load::NeverWithin => (0.0, SHARER_PER_S),
                _ => (0.0, 0.0),
            };
            thread.transfers_per_s = Some(Transfers { within_node, across_nodes });
            thread.cycles_per_s = Some(2.2e9);
            let accesses = thread.accesses_per_s.as_mut().unwrap();
            if let Load::Memory { home, per_s } = load {
                accesses[NodeIndex(home)] = per_s;
            }
            let ran_ns = |node| if node == thread.node { 100_000_000 } else { 0 };
            thread.run_ns = PerNode::from_fn(thread.run_ns.len(), ran_ns);
        }
    }

    fn plan(&mut self) -> Plan {
        decided_with(&POLICY, &self.snapshot, &mut self.memory).unwrap()
    }

    /// One interval of 100 ms; its plan.
    fn step(&mut self) -> Plan {
        let plan = self.plan();
        self.snapshot = self.snapshot.after_thread_moves(&plan);
        self.snapshot.time_ns += 100_000_000;
        self.count();
        plan
    }

    /// Threads that move in each of `intervals`.
    fn run(&mut self, intervals: usize) -> Vec<usize> {
        (0..intervals).map(|_| self.step().moves.len()).collect()
    }

    fn places(&self) -> Vec<usize> {
        self.snapshot.threads.iter().map(|thread| thread.node.0).collect()
    }

    fn state(&mut self) -> &mut State {
        self.memory.of()
    }

    fn id(&self, at: usize) -> ThreadId {
        self.snapshot.threads[at].id
    }
}

const A: Load = Load::Sharer { group: 0 };
const B: Load = Load::Sharer { group: 1 };

fn streams(home: usize) -> Load {
    Load::Memory { home, per_s: 15e6 }
}

#[test]
fn eight_sharers_among_eight_hogs_end_on_one_node_within_five_intervals_and_stay() {
    let threads: Vec<_> = (0..16).map(|at| (at / 2 % 2, if at % 2 == 0 { A } else { Load::Hog })).collect();
    let mut world = World::new(two_nodes(4), &threads);
    world.run(5);
    let places = world.places();
    assert!((0..16).all(|at| places[at] == (places[0] + at % 2) % 2), "{places:?}");
    assert_eq!(world.run(20), [0; 20]);
    assert!(world.state().trials.is_empty());
}

#[test]
fn eight_memory_bound_threads_on_one_node_are_spread_four_and_four() {
    let mut world = World::new(two_nodes(8), &[(0, streams(0)); 8]);
    world.run(5);
    assert_eq!(world.places().iter().sum::<usize>(), 4);
    assert_eq!(world.run(20), [0; 20]);
}

/// Samples say that nobody accesses memory, the counters say otherwise, and the other way round.
#[test]
fn lines_that_were_counted_come_before_accesses_that_were_sampled() {
    let moves = |sampled: f64, counted: f64| {
        let mut world = World::new(two_nodes(8), &[(0, Load::Memory { home: 0, per_s: sampled }); 8]);
        let lines = MemoryLines { all: Some(counted), remote: Some(0.0) };
        world.snapshot.threads.iter_mut().for_each(|thread| thread.memory_lines_per_s = lines);
        world.plan().moves.len()
    };
    assert_eq!((moves(0.0, 15e6), moves(15e6, 0.0), moves(15e6, f64::NAN)), (4, 0, 4));
}

/// Two threads that were brought to the other node: of one the counters see remote memory, of the other samples only.
#[test]
fn a_displaced_thread_returns_by_what_was_counted_of_remote_memory_where_it_ran() {
    let returns = |sampled: f64, counted: Option<f64>, ran_here: bool| {
        let mut world = World::new(two_nodes(2), &[(1, Load::Memory { home: 0, per_s: sampled })]);
        let thread = &mut world.snapshot.threads[0];
        thread.memory_lines_per_s = MemoryLines { all: None, remote: counted };
        if !ran_here {
            thread.run_ns = vec![100_000_000, 0].into();
        }
        let id = world.id(0);
        world.state().origins = BTreeMap::from([(id, NodeIndex(0))]);
        world.plan().moves.len() == 1
    };
    assert!(returns(10e6, None, true) && !returns(0.0, None, true), "samples alone");
    assert!(returns(0.0, Some(10e6), true) && !returns(10e6, Some(0.0), true), "counted");
    assert!(!returns(0.0, Some(10e6), false) && returns(10e6, Some(0.0), false), "counted while it ran elsewhere");
    assert!(returns(10e6, Some(f64::NAN), true));
}

#[test]
fn memory_bound_threads_are_not_spread_where_that_overloads_another_node() {
    let heavy = |home| Load::Memory { home, per_s: 20e6 };
    let mut world = World::new(two_nodes(8), &[0, 0, 0, 0, 0, 1, 1, 1].map(|node| (node, heavy(node))));
    assert_eq!(world.run(3), [0; 3]);
}

#[test]
fn memory_bound_threads_on_a_full_machine_change_places_with_hogs() {
    let mut threads = vec![(0, streams(0)); 8];
    threads.extend([(1, Load::Hog); 8]);
    let mut world = World::new(two_nodes(8), &threads);
    let plan = world.step();
    assert!(plan.moves.iter().all(|planned| matches!(planned.action, Action::Interchange { .. })));
    assert_eq!((plan.moves.len(), world.plan().moves.len()), (4, 0));
}

/// A sharer and a memory-bound thread on each node of two CPUs.
fn displaced() -> World {
    let heavy = |home| Load::Memory { home, per_s: 40e6 };
    World::new(two_nodes(2), &[(0, A), (0, heavy(0)), (1, A), (1, heavy(1))])
}

#[test]
fn a_memory_bound_thread_is_displaced_reluctantly_and_returns_when_the_sharers_exit() {
    let mut world = displaced();
    assert_eq!(world.run(4), [1, 0, 0, 0]);
    assert_eq!(world.places(), [0, 1, 0, 1]);
    let displaced = world.id(1);
    assert_eq!(world.state().origins, BTreeMap::from([(displaced, NodeIndex(0))]));
    world.snapshot.threads.retain(|thread| ![0, 2].contains(&thread.id.tid));
    assert_eq!(world.run(3), [1, 0, 0]);
    assert_eq!(world.places(), [0, 1]);
    assert!(world.state().origins.is_empty());
}

#[test]
fn a_displaced_thread_returns_for_a_hog_before_its_displacers_exit() {
    let mut world = displaced();
    world.run(2);
    let sharer = world.id(0);
    world.loads.insert(sharer, Load::Hog);
    world.count();
    assert_eq!(world.run(3), [1, 0, 0]);
    assert_eq!(world.places()[1], 0);
}

#[test]
fn threads_moved_the_other_way_return_for_each_other() {
    let heavy = |home| Load::Memory { home, per_s: 40e6 };
    let mut world = World::new(two_nodes(2), &[(1, heavy(0)), (1, Load::Hog), (0, heavy(1)), (0, Load::Hog)]);
    let ids = [world.id(0), world.id(2)];
    world.state().origins = BTreeMap::from([(ids[0], NodeIndex(0)), (ids[1], NodeIndex(1))]);
    let plan = world.step();
    let [first, second] = ids;
    let action = Action::Interchange { first, second, first_node: NodeIndex(1), second_node: NodeIndex(0) };
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].action, action);
    assert_eq!(world.run(3), [0; 3]);
}

/// Node 0 is full of threads that are at home there.
#[test]
fn a_thread_does_not_return_where_it_would_only_change_places_with_another() {
    let heavy = |home| Load::Memory { home, per_s: 30e6 };
    let mut world = World::new(two_nodes(1), &[(1, heavy(0)), (0, heavy(0))]);
    let id = world.id(0);
    let parameters = POLICY.parameters(&BTreeMap::from([("bandwidth_per_s".to_owned(), 25e6)])).unwrap();
    world.state().origins = BTreeMap::from([(id, NodeIndex(0))]);
    let memory = &mut world.memory;
    let inputs = &mut Inputs { snapshot: &world.snapshot, parameters: &parameters, memory, seed: 1, steps: 1 };
    assert!(POLICY.decide(inputs).unwrap().is_empty());
}

#[test]
fn a_free_slot_is_taken_before_anybody_is_displaced() {
    let mut world = World::new(two_nodes(2), &[(0, A), (1, A), (1, Load::Hog)]);
    let thread = world.id(1);
    let plan = world.step();
    let action = Action::MoveThread { thread, from: NodeIndex(1), to: NodeIndex(0), cpu: None };
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].action, action);
    assert_eq!(plan.moves[0].reason, "1.30 lines per 1000 cycles come from other nodes' caches");
}

#[test]
fn a_hog_is_displaced_before_a_memory_bound_thread() {
    let heavy = Load::Memory { home: 0, per_s: 30e6 };
    let mut world =
        World::new(two_nodes(3), &[(0, heavy), (0, A), (0, Load::Hog), (1, A), (1, Load::Hog), (1, Load::Hog)]);
    world.step();
    assert_eq!(world.places(), [0, 0, 1, 0, 1, 1]);
    assert!(world.state().origins.is_empty());
}

/// Group A is together on node 0, so that group B gathers on node 1.
#[test]
fn a_thread_with_its_group_is_never_displaced() {
    let mut world = World::new(two_nodes(3), &[(0, A), (0, A), (0, B), (1, B), (1, Load::Hog), (1, Load::Hog)]);
    world.run(2);
    let places = world.places();
    assert_eq!(&places[..4], [0, 0, 1, 1]);
    assert_eq!(world.run(5), [0; 5]);
}

#[test]
fn sharers_that_do_not_fit_one_node_stay() {
    let mut world = World::new(two_nodes(4), &[0, 0, 0, 1, 1, 1].map(|node| (node, A)));
    assert_eq!(world.run(3), [0; 3]);
}

#[test]
fn a_move_after_which_transfers_within_the_node_do_not_rise_is_undone() {
    let mut world = World::new(two_nodes(2), &[(0, Load::NeverWithin), (1, Load::NeverWithin), (1, Load::Hog)]);
    assert_eq!(world.step().moves.len(), 1);
    assert_eq!(world.places(), [0, 0, 1]);
    let plan = world.step();
    assert_eq!(world.places()[1], 1);
    let reason = "undone: of 1.30 lines per 1000 cycles across nodes 0.00 went, transfers within node 0 rose by 0.00";
    assert_eq!(plan.moves[0].reason, reason);
}

/// Who begins to share with more threads is not better off for the move.
#[test]
fn a_move_after_which_transfers_across_nodes_do_not_fall_is_undone() {
    let undone = |across_nodes: f64| {
        let mut world = World::new(two_nodes(2), &[(0, A), (1, A), (1, Load::Hog)]);
        world.step();
        assert_eq!(world.places(), [0, 0, 1]);
        world.snapshot.threads[1].transfers_per_s = Some(Transfers { within_node: SHARER_PER_S, across_nodes });
        world.plan().moves.iter().any(|moved| moved.reason.starts_with("undone: of 1.30 lines per 1000 cycles"))
    };
    assert!(undone(SHARER_PER_S) && !undone(0.9 * SHARER_PER_S));
}

#[test]
fn what_was_undone_is_not_tried_again_at_once() {
    let mut world = World::new(two_nodes(2), &[(0, Load::NeverWithin), (1, Load::NeverWithin)]);
    let moved = world.run(100);
    assert!(moved.iter().sum::<usize>() <= 4, "{moved:?}");
    assert!(moved[5..].iter().all(|&moves| moves == 0), "{moved:?}");
    assert_eq!(world.places(), [0, 1]);
    assert!(world.run(10).iter().sum::<usize>() > 0);
}

#[test]
fn an_undone_exchange_brings_the_displaced_thread_back() {
    let threads = [(0, Load::NeverWithin), (0, Load::Hog), (1, Load::NeverWithin), (1, Load::Hog)];
    let mut world = World::new(two_nodes(2), &threads);
    world.step();
    assert_eq!(world.places(), [0, 1, 0, 1]);
    world.run(20);
    assert_eq!(world.places(), [0, 0, 1, 1]);
}

#[test]
fn an_undo_waits_for_the_end_of_the_cooldown() {
    let mut world = World::new(two_nodes(2), &[(0, Load::NeverWithin), (1, Load::NeverWithin)]);
    world.step();
    world.snapshot.threads.iter_mut().for_each(|thread| thread.on_cooldown = true);
    assert_eq!(world.run(5), [0; 5]);
    world.snapshot.threads.iter_mut().for_each(|thread| thread.on_cooldown = false);
    assert!(world.step().moves[0].reason.starts_with("undone"));
}

#[test]
fn a_thread_without_the_signal_is_neither_moved_nor_displaced() {
    let mut world = World::new(two_nodes(2), &[(0, A), (0, Load::Hog), (1, A), (1, Load::Hog)]);
    assert_eq!(world.plan().moves.len(), 1);
    for signal in [0, 1] {
        world.memory = Memory::default();
        world.count();
        for at in [1, 3] {
            match signal {
                0 => world.snapshot.threads[at].transfers_per_s = None,
                _ => world.snapshot.threads[at].accesses_per_s = None,
            }
        }
        assert!(world.plan().is_empty());
        world.snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = Some(vec![0.0; 2].into()));
    }
}

#[test]
fn without_accesses_sharers_are_gathered_all_the_same() {
    let mut world = World::new(two_nodes(2), &[(0, A), (0, Load::Hog), (1, A), (1, Load::Hog)]);
    world.snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = None);
    assert_eq!(world.plan().moves.len(), 1);
}

#[test]
fn no_thread_with_transfers_is_a_missing_signal() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).build();
    let missing = MissingSignal { policy: "sam", signal: Signal::ThreadTransfers };
    assert_eq!(decided(&POLICY, &snapshot, 1, 1).unwrap_err(), missing);
}

/// 550 k lines a second at 2.2 GHz, or half of that for a thread that runs half the time.
#[test]
fn the_threshold_is_by_cycle_whether_cycles_are_counted_or_not() {
    let moves = |per_s: f64, share: f64, cycles_per_s: Option<f64>| {
        let mut world = World::new(two_nodes(2), &[(0, A), (1, A)]);
        for thread in &mut world.snapshot.threads {
            thread.transfers_per_s = Some(Transfers { within_node: 0.0, across_nodes: per_s });
            thread.cpu_time_ns = (share * 1e9) as u64;
            thread.cycles_per_s = cycles_per_s;
        }
        world.plan().moves.len()
    };
    assert_eq!((moves(540e3, 1.0, None), moves(560e3, 1.0, None)), (0, 1));
    assert_eq!((moves(270e3, 0.5, None), moves(280e3, 0.5, None)), (0, 1));
    assert_eq!((moves(560e3, 1.0, Some(4e9)), moves(280e3, 1.0, Some(1.1e9))), (0, 1));
}
