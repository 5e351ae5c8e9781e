// SPDX-License-Identifier: GPL-2.0-only
//! The machine: nodes, their CPUs and memory, and how far they are from each other.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CpuId, NodeId, NodeIndex, PerNode};

/// Latency assumed for local memory when only distances are known.
const ASSUMED_LOCAL_NS: f64 = 100.0;

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
    /// Node ids are not strictly ascending.
    #[error("node ids must ascend: {0} comes after a higher or equal id")]
    Order(NodeId),
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

    /// The index of the node with the kernel's id `id`.
    pub fn index_of(&self, id: NodeId) -> Option<NodeIndex> {
        self.nodes.iter().find(|(_, node)| node.id == id).map(|(index, _)| index)
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
