// SPDX-License-Identifier: GPL-2.0-only
//! Thread policies `compact`, `scatter`, `contiguous` and `direct`: placements that look at no signal.
//!
//! Problem: something to compare with, and for programs whose best placement is known. Mechanism: busy threads get
//! seats, by process and then by id, and a seat has a node:
//!
//! | policy | node of seat s of n |
//! |---|---|
//! | `compact` | a node is filled before the next one begins; when all are full, from the first again |
//! | `scatter` | round robin over nodes that have a CPU left; when all are full, from the first again |
//! | `contiguous` | equal consecutive blocks of seats, in proportion to the nodes' capacities |
//! | `direct` | all threads of a process on one node, that with the fewest of our threads for its capacity |
//!
//! Sources: `compact` is the comparison of kMAF (PACT 2014), `scatter` and `contiguous` are the thread placements of
//! Popov et al., ICS 2019, with their NUMA degree as parameter `nodes`; `direct` is numactl's binding to one node, as
//! the Thanos thesis compares with. Nodes come in the order of the first node with CPUs and then always the one
//! nearest to those taken.
//!
//! Ours: capacity ([`crate::capacity`]) where the sources have CPUs, which are the same where all CPUs are alike. A thread keeps its seat while it lives, idle or not, else one that falls idle would send all others to other
//! nodes; a new thread takes the lowest seat that is empty. If `nodes` nodes have too few CPUs, as many more as it
//! takes are used, and all when that is not enough. A thread that may not run on its seat's node goes to the next in
//! order where it may. `compact` places threads on processing units in the source; here nodes decide, and the
//! scheduler picks the CPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{NodeIndex, Plan, ProcessId, Snapshot, Thread, ThreadId, Topology};
use crate::registry::{Inputs, MissingSignal, Parameter, Parameters, Policy};
use crate::relocation;

/// Thread policy `compact`.
pub static COMPACT: Policy = Policy {
    name: "compact",
    source: "Diener et al.: kMAF, PACT 2014, mapping Compact",
    decide: |inputs: &mut Inputs| decide(inputs, "compact", compact),
    ..STATIC
};

/// Thread policy `scatter`.
pub static SCATTER: Policy = Policy {
    name: "scatter",
    source: "Popov, Jimborean, Black-Schaffer: Thread/Page/Parallelism Autotuning, ICS 2019, scatter",
    decide: |inputs: &mut Inputs| decide(inputs, "scatter", scatter),
    ..STATIC
};

/// Thread policy `contiguous`.
pub static CONTIGUOUS: Policy = Policy {
    name: "contiguous",
    source: "Popov, Jimborean, Black-Schaffer: Thread/Page/Parallelism Autotuning, ICS 2019, contiguous",
    decide: |inputs: &mut Inputs| decide(inputs, "contiguous", contiguous),
    ..STATIC
};

/// Thread policy `direct`.
pub static DIRECT: Policy = Policy {
    name: "direct",
    parameters: &[MIN_CPU_PERCENT],
    source: "Laso Rodriguez, PhD thesis, USC, 2023: comparison Direct (numactl, one node)",
    decide: decide_direct,
    ..STATIC
};

const STATIC: Policy = Policy { parameters: PARAMETERS, ..Policy::PLAIN };

const MIN_CPU_PERCENT: Parameter = Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0);

/// Parameters of `compact`, `scatter` and `contiguous`.
pub const PARAMETERS: &[Parameter] =
    &[Parameter::whole("nodes", 0.0, "nodes used; 0 is all", 0.0, 1024.0), MIN_CPU_PERCENT];

/// A node with how many CPUs it has, and their capacity.
#[derive(Clone, Copy, Debug)]
struct Used {
    node: NodeIndex,
    cpus: usize,
    capacity: u64,
}

/// Nodes in order with their CPUs, as many as `nodes` says and `threads` threads need; all if `nodes` is 0.
fn nodes_used(topology: &Topology, nodes: usize, threads: usize) -> Vec<Used> {
    let mut left: Vec<NodeIndex> = topology.nodes_with_cpus().collect();
    let mut used: Vec<Used> = Vec::new();
    let mut room = 0;
    while !left.is_empty() && (nodes == 0 || used.len() < nodes || room < threads) {
        let away = |to: NodeIndex| used.iter().map(|from| u64::from(topology.distance(from.node, to))).sum::<u64>();
        let nearest = (0..left.len()).min_by_key(|&at| away(left[at])).expect("not empty");
        let node = left.remove(nearest);
        let known = &topology.nodes[node];
        room += known.cpus.len();
        used.push(Used { node, cpus: known.cpus.len(), capacity: known.capacity() });
    }
    used
}

/// For each of `seats` seats, the position of its node in `nodes`.
fn compact(nodes: &[Used], seats: usize) -> Vec<usize> {
    let filled: Vec<usize> = nodes.iter().enumerate().flat_map(|(at, used)| vec![at; used.cpus]).collect();
    filled.into_iter().cycle().take(seats).collect()
}

/// As [`compact`], round robin.
fn scatter(nodes: &[Used], seats: usize) -> Vec<usize> {
    let most = nodes.iter().map(|used| used.cpus).max().unwrap_or(0);
    let with_cpu = |round: usize| (0..nodes.len()).filter(move |&at| nodes[at].cpus > round);
    let dealt: Vec<usize> = (0..most).flat_map(with_cpu).collect();
    dealt.into_iter().cycle().take(seats).collect()
}

/// As [`compact`], in equal blocks.
fn contiguous(nodes: &[Used], seats: usize) -> Vec<usize> {
    let ends = nodes.iter().scan(0, |end, used| {
        *end += used.capacity;
        Some(*end)
    });
    let ends: Vec<u64> = ends.collect();
    let all = ends.last().copied().unwrap_or(0);
    let node_at = |start: u64| ends.partition_point(|&end| end <= start);
    (0..seats as u64).map(|seat| node_at(seat * all / seats as u64)).collect()
}

/// Who has which seat.
#[derive(Debug, Default)]
struct Seats(BTreeMap<ThreadId, usize>);

impl Seats {
    /// Frees the seats of threads that are gone and gives seats to busy ones that have none.
    fn update(&mut self, snapshot: &Snapshot, busy: &[&Thread]) {
        self.0.retain(|&id, _| snapshot.thread(id).is_some());
        let taken: BTreeSet<usize> = self.0.values().copied().collect();
        let mut empty = (0..).filter(|seat| !taken.contains(seat));
        let mut new: Vec<&&Thread> = busy.iter().filter(|thread| !self.0.contains_key(&thread.id)).collect();
        new.sort_by_key(|thread| (thread.process, thread.id));
        for thread in new {
            self.0.insert(thread.id, empty.next().expect("seats are endless"));
        }
    }

    /// Seats up to the last one that is taken.
    fn count(&self) -> usize {
        self.0.values().max().map_or(0, |last| last + 1)
    }
}

fn decide(inputs: &mut Inputs, name: &str, place: fn(&[Used], usize) -> Vec<usize>) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    let threads = busy(snapshot, parameters);
    let seats = inputs.memory.of::<Seats>();
    seats.update(snapshot, &threads);
    let nodes = nodes_used(&snapshot.topology, parameters.get("nodes") as usize, seats.0.len());
    if nodes.is_empty() {
        return Ok(Plan::default());
    }
    let at = place(&nodes, seats.count());
    let node_of = |thread: &Thread| from_seat(snapshot, &nodes, at[seats.0[&thread.id]], thread);
    let reason = |thread: &Thread, to: NodeIndex| {
        let id = snapshot.topology.nodes[to].id;
        format!("{name}: seat {} of {} is on node {id}", seats.0[&thread.id] + 1, seats.count())
    };
    Ok(plan(snapshot, &threads, node_of, reason))
}

/// The first of `nodes` from position `wanted` on where `thread` may run.
fn from_seat(snapshot: &Snapshot, nodes: &[Used], wanted: usize, thread: &Thread) -> Option<NodeIndex> {
    let mut in_order = (0..nodes.len()).map(|next| nodes[(wanted + next) % nodes.len()].node);
    in_order.find(|&node| relocation::may_run(snapshot, thread, node))
}

/// The mapping `compact` of `threads` that have no seats yet, over all nodes: node by thread. One that may not be moved
/// stays.
pub(crate) fn compact_mapping(snapshot: &Snapshot, threads: &[&Thread]) -> Vec<usize> {
    let mut seats = Seats::default();
    seats.update(snapshot, threads);
    let nodes = nodes_used(&snapshot.topology, 0, threads.len());
    let at = compact(&nodes, seats.count());
    let node_of = |thread: &Thread| from_seat(snapshot, &nodes, at[seats.0[&thread.id]], thread);
    places(snapshot, threads, node_of)
}

fn busy<'a>(snapshot: &'a Snapshot, parameters: &Parameters) -> Vec<&'a Thread> {
    relocation::busy(snapshot, parameters.get("min_cpu_percent"))
}

/// Node by thread: its own by `node_of` if it has one and may be moved, else its present one.
fn places(snapshot: &Snapshot, threads: &[&Thread], node_of: impl Fn(&Thread) -> Option<NodeIndex>) -> Vec<usize> {
    let to = |thread: &&Thread| match node_of(thread) {
        Some(node) if relocation::may_go(snapshot, thread, node) => node.0,
        _ => thread.node.0,
    };
    threads.iter().map(to).collect()
}

/// Brings each thread to its node, if it has one and may be moved.
fn plan(
    snapshot: &Snapshot,
    threads: &[&Thread],
    node_of: impl Fn(&Thread) -> Option<NodeIndex>,
    reason: impl Fn(&Thread, NodeIndex) -> String,
) -> Plan {
    let place = places(snapshot, threads, node_of);
    relocation::plan(snapshot, threads, &place, reason)
}

/// The node of each process.
#[derive(Debug, Default)]
struct Bindings(BTreeMap<ProcessId, NodeIndex>);

fn decide_direct(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let snapshot = inputs.snapshot;
    let threads = busy(snapshot, inputs.parameters);
    let Bindings(bound) = inputs.memory.of::<Bindings>();
    let nodes: Vec<NodeIndex> = snapshot.topology.nodes_with_cpus().collect();
    let alive: BTreeSet<ProcessId> = snapshot.threads.iter().map(|thread| thread.process).collect();
    bound.retain(|process, node| alive.contains(process) && nodes.contains(node));
    let mut by_process: BTreeMap<ProcessId, Vec<&Thread>> = BTreeMap::new();
    for &thread in &threads {
        by_process.entry(thread.process).or_default().push(thread);
    }
    let mut bound_threads = vec![0; snapshot.topology.len()];
    for (process, node) in bound.iter() {
        bound_threads[node.0] += by_process.get(process).map_or(0, Vec::len);
    }
    for (&process, own) in &by_process {
        if bound.contains_key(&process) {
            continue;
        }
        let load = |node: NodeIndex| bound_threads[node.0] as f64 / snapshot.topology.nodes[node].capacity() as f64;
        let barred = |node: NodeIndex| own.iter().filter(|t| !relocation::may_run(snapshot, t, node)).count();
        let elsewhere = |node: NodeIndex| own.iter().filter(|thread| thread.node != node).count();
        let rank = |&a: &NodeIndex, &b: &NodeIndex| {
            (barred(a).cmp(&barred(b))).then(load(a).total_cmp(&load(b))).then(elsewhere(a).cmp(&elsewhere(b)))
        };
        if let Some(node) = nodes.iter().copied().min_by(rank) {
            bound.insert(process, node);
            bound_threads[node.0] += own.len();
        }
    }
    let node_of = |thread: &Thread| bound.get(&thread.process).copied();
    let reason = |thread: &Thread, to: NodeIndex| {
        format!("direct: process {} is bound to node {}", thread.process.0, snapshot.topology.nodes[to].id)
    };
    Ok(plan(snapshot, &threads, node_of, reason))
}

#[cfg(test)]
mod tests;
