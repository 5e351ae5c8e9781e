// SPDX-License-Identifier: GPL-2.0-only
//! The machine: nodes, their CPUs and memory, and how far they are from each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CpuId, NodeId, NodeIndex, PerNode};

/// Latency assumed for local memory when only distances are known.
const ASSUMED_LOCAL_NS: f64 = 100.0;

/// Capacity of one of the machine's fastest CPUs. Capacities are in parts of it, as the kernel's are.
pub const FULL_CAPACITY: u64 = 1024;

/// Where the latency rows came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencySource {
    /// Measured on this machine.
    Measured,
    /// Given in a machine file.
    MachineFile,
    /// Derived from distances: 100 ns locally, in proportion to the distance elsewhere.
    Distance,
}

/// One node. CPU-less and memory-only nodes are nodes too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The kernel's id.
    pub id: NodeId,
    /// Online CPUs, ascending; empty on a memory-only node.
    pub cpus: Vec<CpuId>,
    /// The same CPUs by last-level cache.
    pub llcs: Vec<Vec<CpuId>>,
    /// Those of the CPUs that are slower than the machine's fastest (efficiency cores, throttled nodes), with their
    /// capacity: 1 to [`FULL_CAPACITY`]. All others have that.
    pub slow_cpus: BTreeMap<CpuId, u32>,
    /// Installed memory; 0 on a node without memory.
    pub memory_pages: u64,
    /// Free memory when the snapshot was taken.
    pub free_pages: u64,
    /// Distance to each node, in SLIT units (10 = local).
    pub distance: PerNode<u32>,
    /// Latency of a load from here to each node's memory.
    pub latency_ns: PerNode<f64>,
}

/// All online nodes of a machine, ascending by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The nodes; [`NodeIndex`] counts in this order.
    pub nodes: PerNode<Node>,
    /// Where the latency rows came from.
    pub latency_source: LatencySource,
}

/// Why a description is no machine.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TopologyError {
    /// There is no node.
    #[error("the machine has no node")]
    NoNode,
    /// A row's length is not the number of nodes.
    #[error("node {node}: its {row} row has {found} entries, the machine has {nodes} nodes")]
    RowLength {
        /// The node with the bad row.
        node: NodeId,
        /// Which row.
        row: &'static str,
        /// Its length.
        found: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A CPU has a capacity that none can have.
    #[error("node {node}: CPU {} has capacity {capacity}; it must be 1 to {FULL_CAPACITY}, and the node's own CPU", cpu.0)]
    Capacity {
        /// The node.
        node: NodeId,
        /// Its CPU.
        cpu: CpuId,
        /// The capacity given.
        capacity: u32,
    },
    /// Node ids are not strictly ascending.
    #[error("node ids must ascend: {0} comes after a higher or equal id")]
    Order(NodeId),
}

impl Node {
    /// Capacity of one of its CPUs.
    pub fn cpu_capacity(&self, cpu: CpuId) -> u64 {
        self.slow_cpus.get(&cpu).map_or(FULL_CAPACITY, |&capacity| u64::from(capacity))
    }

    /// Capacity of all its CPUs together.
    pub fn capacity(&self) -> u64 {
        self.cpus.iter().map(|&cpu| self.cpu_capacity(cpu)).sum()
    }

    /// Mean capacity of its CPUs; [`FULL_CAPACITY`] on a node without.
    pub fn mean_cpu_capacity(&self) -> f64 {
        if self.cpus.is_empty() { FULL_CAPACITY as f64 } else { self.capacity() as f64 / self.cpus.len() as f64 }
    }
}

impl Topology {
    /// Checks `nodes` and makes a machine of them.
    pub fn new(nodes: Vec<Node>, latency_source: LatencySource) -> Result<Self, TopologyError> {
        let count = nodes.len();
        if count == 0 {
            return Err(TopologyError::NoNode);
        }
        for node in &nodes {
            for (row, found) in [("distance", node.distance.len()), ("latency", node.latency_ns.len())] {
                if found != count {
                    return Err(TopologyError::RowLength { node: node.id, row, found, nodes: count });
                }
            }
            let possible = |cpu: &CpuId, capacity: u32| {
                (1..=FULL_CAPACITY).contains(&u64::from(capacity)) && node.cpus.contains(cpu)
            };
            if let Some((&cpu, &capacity)) = node.slow_cpus.iter().find(|(cpu, capacity)| !possible(cpu, **capacity)) {
                return Err(TopologyError::Capacity { node: node.id, cpu, capacity });
            }
        }
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Err(TopologyError::Order(pair[1].id));
        }
        Ok(Self { nodes: nodes.into(), latency_source })
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never true for a checked topology; here because [`Topology::len`] is.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The kernel's numbers of all nodes, in their order.
    pub fn node_ids(&self) -> Vec<NodeId> {
        self.nodes.values().map(|node| node.id).collect()
    }

    /// The index of the node with the kernel's id `id`.
    pub fn index_of(&self, id: NodeId) -> Option<NodeIndex> {
        self.nodes.iter().find(|(_, node)| node.id == id).map(|(index, _)| index)
    }

    /// The node of an online CPU; `None` if it is none of this machine's.
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeIndex> {
        self.nodes.iter().find(|(_, node)| node.cpus.contains(&cpu)).map(|(index, _)| index)
    }

    /// Distance from `from` to `to`, in SLIT units.
    pub fn distance(&self, from: NodeIndex, to: NodeIndex) -> u32 {
        self.nodes[from].distance[to]
    }

    /// Latency of a load from a CPU of `from` to memory of `to`.
    pub fn latency_ns(&self, from: NodeIndex, to: NodeIndex) -> f64 {
        self.nodes[from].latency_ns[to]
    }

    /// Nodes that can run threads.
    pub fn nodes_with_cpus(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.nodes.iter().filter(|(_, node)| !node.cpus.is_empty()).map(|(index, _)| index)
    }

    /// The latency row that goes with a distance row when nothing better is known: 100 ns locally.
    pub fn latency_from_distance(distance: &PerNode<u32>) -> PerNode<f64> {
        PerNode::from_fn(distance.len(), |node| ASSUMED_LOCAL_NS * f64::from(distance[node]) / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::two_nodes;

    fn with_slow_cpu(cpu: u32, capacity: u32) -> Result<Topology, TopologyError> {
        let mut nodes: Vec<Node> = two_nodes(2).nodes.values().cloned().collect();
        nodes[1].slow_cpus = [(CpuId(cpu), capacity)].into();
        Topology::new(nodes, LatencySource::Distance)
    }

    #[test]
    fn a_node_has_the_capacity_of_its_cpus() {
        let topology = with_slow_cpu(3, 512).unwrap();
        let capacity: Vec<u64> = topology.nodes.values().map(Node::capacity).collect();
        assert_eq!(capacity, [2048, 1536]);
        assert_eq!(topology.nodes[NodeIndex(1)].mean_cpu_capacity(), 768.0);
    }

    #[test]
    fn impossible_capacities_are_refused_with_the_cpu() {
        for (cpu, capacity) in [(3, 0), (3, 1025), (0, 512)] {
            let error = with_slow_cpu(cpu, capacity).unwrap_err();
            assert_eq!(error, TopologyError::Capacity { node: NodeId(1), cpu: CpuId(cpu), capacity });
            assert!(error.to_string().contains(&format!("CPU {cpu} has capacity {capacity}")), "{error}");
        }
    }
}
