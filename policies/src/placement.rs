// SPDX-License-Identifier: GPL-2.0-only
//! What the thread policies share that look at no signal: `compact`, `scatter`, `contiguous` and `direct`.
//!
//! Problem: something to compare with, and for programs whose best placement is known. Mechanism: busy threads get
//! seats, by process and then by id, and a policy says which seat is on which node. Nodes come in the order of the first
//! node with CPUs and then always the one nearest to those taken.
//!
//! Ours: capacity ([`crate::capacity`]) where the sources have CPUs, which are the same where all CPUs are alike. A
//! thread keeps its seat while it lives, idle or not, else one that falls idle would send all others to other nodes; a
//! new thread takes the lowest seat that is empty. If `nodes` nodes have too few CPUs, as many more as it takes are used,
//! and all when that is not enough. A thread that may not run on its seat's node goes to the next in order where it may.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{NodeIndex, Plan, Snapshot, Thread, ThreadId, Topology};
use crate::registry::{Inputs, MissingSignal, Parameter, Parameters, Policy};
use crate::relocation;

/// What the policies with seats have in common.
pub const SEATED: Policy = Policy { parameters: PARAMETERS, ..Policy::PLAIN };

/// CPU time from which on a thread is placed.
pub const MIN_CPU_PERCENT: Parameter = Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0);

/// Parameters of `compact`, `scatter` and `contiguous`.
pub const PARAMETERS: &[Parameter] =
    &[Parameter::whole("nodes", 0.0, "nodes used; 0 is all", 0.0, 1024.0), MIN_CPU_PERCENT];

/// A node with how many CPUs it has, and their capacity.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    pub node: NodeIndex,
    pub cpus: usize,
    pub capacity: u64,
}

/// Nodes in order with their CPUs, as many as `nodes` says and `threads` threads need; all if `nodes` is 0.
pub fn nodes_used(topology: &Topology, nodes: usize, threads: usize) -> Vec<Used> {
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

/// Who has which seat.
#[derive(Debug, Default)]
pub struct Seats(pub BTreeMap<ThreadId, usize>);

impl Seats {
    /// Frees the seats of threads that are gone and gives seats to busy ones that have none.
    pub fn update(&mut self, snapshot: &Snapshot, busy: &[&Thread]) {
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
    pub fn count(&self) -> usize {
        self.0.values().max().map_or(0, |last| last + 1)
    }
}

/// Brings each busy thread to the node of its seat, by `place`: for so many seats, the position of each one's node.
///
/// # Errors
/// None: no signal is needed.
pub fn decide(inputs: &mut Inputs, name: &str, place: fn(&[Used], usize) -> Vec<usize>) -> Result<Plan, MissingSignal> {
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
pub fn from_seat(snapshot: &Snapshot, nodes: &[Used], wanted: usize, thread: &Thread) -> Option<NodeIndex> {
    let mut in_order = (0..nodes.len()).map(|next| nodes[(wanted + next) % nodes.len()].node);
    in_order.find(|&node| relocation::may_run(snapshot, thread, node))
}

/// Threads that are placed.
pub fn busy<'a>(snapshot: &'a Snapshot, parameters: &Parameters) -> Vec<&'a Thread> {
    relocation::busy(snapshot, parameters.get("min_cpu_percent"))
}

/// Node by thread: its own by `node_of` if it has one and may be moved, else its present one.
pub fn places(snapshot: &Snapshot, threads: &[&Thread], node_of: impl Fn(&Thread) -> Option<NodeIndex>) -> Vec<usize> {
    let to = |thread: &&Thread| match node_of(thread) {
        Some(node) if relocation::may_go(snapshot, thread, node) => node.0,
        _ => thread.node.0,
    };
    threads.iter().map(to).collect()
}

/// Brings each thread to its node, if it has one and may be moved.
pub fn plan(
    snapshot: &Snapshot,
    threads: &[&Thread],
    node_of: impl Fn(&Thread) -> Option<NodeIndex>,
    reason: impl Fn(&Thread, NodeIndex) -> String,
) -> Plan {
    let place = places(snapshot, threads, node_of);
    relocation::plan(snapshot, threads, &place, reason)
}

#[cfg(test)]
mod tests;
