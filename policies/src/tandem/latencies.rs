// SPDX-License-Identifier: GPL-2.0-only
//! Latencies between the nodes of a machine, in the orders in which sums over them are made.
//!
//! A sum over memories for one node waits at each step for the one before. For all nodes at once no step waits for another, as long as
//! the latencies to one memory are one behind the other: on 64 nodes that takes a quarter of the time.

use smallvec::{SmallVec, smallvec};

use crate::model::{NodeIndex, Topology};
use crate::signals::sound;

/// A number for each node, on the stack where these are few: there are rows of everything that may move.
pub type Row = SmallVec<[f64; 8]>;

/// Latencies of an idle machine, in ns.
#[derive(Clone, Debug)]
pub struct Latencies {
    nodes: usize,
    /// By node of the CPU, then of the memory.
    by_cpu: Vec<f64>,
    /// By node of the memory, then of the CPU.
    by_memory: Vec<f64>,
    /// Between two nodes, both ways.
    between: Vec<f64>,
}

impl Latencies {
    /// Those of a machine.
    pub fn of(topology: &Topology) -> Self {
        let nodes = topology.len();
        let all = |latency: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..nodes * nodes).map(|at| latency(at / nodes, at % nodes)).collect()
        };
        let ns = |from: usize, to: usize| sound(topology.latency_ns(NodeIndex(from), NodeIndex(to)));
        let between = |one: usize, other: usize| (ns(one, other) + ns(other, one)) / 2.0;
        Self { nodes, by_cpu: all(&ns), by_memory: all(&|memory, node| ns(node, memory)), between: all(&between) }
    }

    /// From a node's CPUs, by memory.
    pub fn from(&self, node: usize) -> &[f64] {
        &self.by_cpu[node * self.nodes..][..self.nodes]
    }

    /// To a memory, by node of the CPU.
    pub fn to(&self, memory: usize) -> &[f64] {
        &self.by_memory[memory * self.nodes..][..self.nodes]
    }

    /// Between a node and each other, both ways.
    pub fn between(&self, node: usize) -> &[f64] {
        &self.between[node * self.nodes..][..self.nodes]
    }

    /// The least and the greatest.
    pub fn range(&self) -> (f64, f64) {
        self.by_cpu.iter().fold((f64::INFINITY, 0.0), |(least, most), &ns| (ns.min(least), ns.max(most)))
    }

    /// By node, what accesses from it to memories cost, so many per second to each, in ns per second.
    pub fn costs_from(&self, memories: impl Iterator<Item = (usize, f64)>) -> Row {
        self.costs(memories.map(|(memory, per_s)| (self.to(memory), per_s)))
    }

    /// By memory, what accesses to it from nodes cost, so many per second from each, in ns per second.
    pub fn costs_to(&self, nodes: impl Iterator<Item = (usize, f64)>) -> Row {
        self.costs(nodes.map(|(node, per_s)| (self.from(node), per_s)))
    }

    fn costs<'l>(&self, rows: impl Iterator<Item = (&'l [f64], f64)>) -> Row {
        let mut costs: Row = smallvec![0.0; self.nodes];
        for (row, per_s) in rows {
            costs.iter_mut().zip(row).for_each(|(cost, ns)| *cost += per_s * ns);
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LatencySource, PerNode};
    use crate::testing::two_nodes;

    /// Twenty nodes, and from each to each another latency, there and back.
    fn asymmetric() -> Topology {
        let node = two_nodes(1).nodes[NodeIndex(0)].clone();
        let nodes = (0..20).map(|from: usize| crate::model::Node {
            id: crate::model::NodeId(from as u32),
            cpus: vec![crate::model::CpuId(from as u32)],
            llcs: vec![],
            distance: PerNode::from_fn(20, |to| if to.0 == from { 10 } else { 20 }),
            latency_ns: PerNode::from_fn(20, |to| (1 + from * 20 + to.0) as f64),
            ..node.clone()
        });
        Topology::new(nodes.collect(), LatencySource::Distance).unwrap()
    }

    #[test]
    fn costs_are_sums_from_nodes_to_memories_and_not_the_other_way_round() {
        let (topology, accesses) = (asymmetric(), [(3, 2.0), (17, 5.0)]);
        let latencies = Latencies::of(&topology);
        let ns = |from: usize, to: usize| (1 + from * 20 + to) as f64;
        let (from, to) = (latencies.costs_from(accesses.into_iter()), latencies.costs_to(accesses.into_iter()));
        for node in 0..20 {
            assert_eq!(from[node], 2.0 * ns(node, 3) + 5.0 * ns(node, 17));
            assert_eq!(to[node], 2.0 * ns(3, node) + 5.0 * ns(17, node));
            assert_eq!((latencies.from(7)[node], latencies.to(7)[node]), (ns(7, node), ns(node, 7)));
            assert_eq!(latencies.between(7)[node], (ns(7, node) + ns(node, 7)) / 2.0);
        }
        assert_eq!(latencies.range(), (1.0, 400.0));
    }
}
