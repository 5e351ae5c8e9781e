// SPDX-License-Identifier: GPL-2.0-only
//! The tables that the BPF side reads: the machine in dense indices.
//!
//! A task with an assignment is taken away from home only after it has waited longer than the
//! price of running elsewhere. Whoever waits makes no progress at all, so the price stands for what
//! the trip costs, not for the slower memory: half a slice where memory is twice as far as at home
//! (SLIT 20), in proportion elsewhere, at least a quarter.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use tandem_bpf::skeleton::types;
use tandem_bpf::{MAX_CPUS, MAX_NODES, NO_NODE};
use tandem_policies::model::{NodeIndex, Topology};
use thiserror::Error;

/// Distance that the kernel gives a node to itself.
const LOCAL_DISTANCE: u32 = 10;

/// Why a machine cannot be scheduled.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum TablesError {
    /// More nodes than the BPF side has room for.
    #[error("this machine has {0} nodes; scx_tandem handles up to {MAX_NODES}")]
    TooManyNodes(usize),
    /// A CPU number that the BPF side has no room for.
    #[error("this machine has a CPU {0}; scx_tandem handles CPU numbers below {MAX_CPUS}")]
    TooManyCpus(u32),
    /// All CPUs are on one node.
    #[error(
        "this machine has CPUs on one NUMA node only: there is nothing for scx_tandem to place, keep the stock scheduler"
    )]
    OneNode,
}

/// What is written into the object before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    nr_cpus: u32,
    node_ids: Vec<u32>,
    cpu_nodes: Vec<u8>,
    node_nr_cpus: Vec<u32>,
    /// For each node the others with CPUs, nearest first.
    near_nodes: Vec<Vec<u8>>,
    price_ns: Vec<Vec<u64>>,
    slice_ns: u64,
    max_lease_ns: u64,
}

impl Tables {
    /// The tables for a machine.
    pub fn new(topology: &Topology, slice_ns: u64, max_lease_ns: u64) -> Result<Self, TablesError> {
        let nodes = topology.len();
        if nodes > MAX_NODES {
            return Err(TablesError::TooManyNodes(nodes));
        }
        if topology.nodes_with_cpus().count() < 2 {
            return Err(TablesError::OneNode);
        }
        let mut cpu_nodes = Vec::new();
        for (index, node) in topology.nodes.iter() {
            for cpu in &node.cpus {
                let at = cpu.0 as usize;
                if at >= MAX_CPUS {
                    return Err(TablesError::TooManyCpus(cpu.0));
                }
                if cpu_nodes.len() <= at {
                    cpu_nodes.resize(at + 1, NO_NODE);
                }
                cpu_nodes[at] = index.0 as u8;
            }
        }
        let indices = || (0..nodes).map(NodeIndex);
        Ok(Self {
            nr_cpus: cpu_nodes.len() as u32,
            node_ids: topology.nodes.values().map(|node| node.id.0).collect(),
            cpu_nodes,
            node_nr_cpus: topology.nodes.values().map(|node| node.cpus.len() as u32).collect(),
            near_nodes: indices().map(|node| near_nodes(topology, node)).collect(),
            price_ns: indices()
                .map(|from| indices().map(|to| price_ns(topology.distance(from, to), slice_ns)).collect())
                .collect(),
            slice_ns,
            max_lease_ns,
        })
    }

    /// Same hash, same tables.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }

    /// Writes the tables into an object that is not loaded yet.
    pub fn write(&self, rodata: &mut types::rodata) {
        rodata.nr_nodes = self.node_ids.len() as u32;
        rodata.nr_cpus = self.nr_cpus;
        rodata.slice_ns = self.slice_ns;
        rodata.max_lease_ns = self.max_lease_ns;
        rodata.cpu_nodes = [NO_NODE; MAX_CPUS];
        rodata.cpu_nodes[..self.cpu_nodes.len()].copy_from_slice(&self.cpu_nodes);
        rodata.node_ids[..self.node_ids.len()].copy_from_slice(&self.node_ids);
        rodata.node_nr_cpus[..self.node_nr_cpus.len()].copy_from_slice(&self.node_nr_cpus);
        for (node, near) in self.near_nodes.iter().enumerate() {
            rodata.node_order[node * MAX_NODES..][..near.len()].copy_from_slice(near);
            rodata.node_order_len[node] = near.len() as u8;
        }
        for (node, prices) in self.price_ns.iter().enumerate() {
            rodata.migration_price_ns[node * MAX_NODES..][..prices.len()].copy_from_slice(prices);
        }
    }
}

fn near_nodes(topology: &Topology, node: NodeIndex) -> Vec<u8> {
    let mut others: Vec<NodeIndex> = topology.nodes_with_cpus().filter(|&other| other != node).collect();
    others.sort_by_key(|&other| (topology.distance(node, other), other));
    others.into_iter().map(|other| other.0 as u8).collect()
}

fn price_ns(distance: u32, slice_ns: u64) -> u64 {
    if distance <= LOCAL_DISTANCE {
        return 0;
    }
    let farther = u64::from(distance - LOCAL_DISTANCE);
    (slice_ns * farther / u64::from(2 * LOCAL_DISTANCE)).max(slice_ns / 4)
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{CpuId, LatencySource, Node, NodeId, PerNode};

    use super::*;

    const SLICE_NS: u64 = 5_000_000;

    /// Nodes with the given ids and CPUs; distances from a matrix.
    fn machine(nodes: &[(u32, &[u32])], distance: &[&[u32]]) -> Topology {
        let nodes = nodes
            .iter()
            .zip(distance)
            .map(|(&(id, cpus), &row)| {
                let distance = PerNode::from(row.to_vec());
                Node {
                    id: NodeId(id),
                    cpus: cpus.iter().copied().map(CpuId).collect(),
                    llcs: Vec::new(),
                    memory_pages: 1,
                    free_pages: 1,
                    latency_ns: Topology::latency_from_distance(&distance),
                    distance,
                }
            })
            .collect();
        Topology::new(nodes, LatencySource::Distance).unwrap()
    }

    fn tables(topology: &Topology) -> Tables {
        Tables::new(topology, SLICE_NS, 1).unwrap()
    }

    #[test]
    fn near_nodes_come_by_distance_and_leave_out_nodes_without_cpus() {
        let ring = machine(
            &[(0, &[0]), (1, &[1]), (2, &[]), (3, &[3])],
            &[&[10, 20, 12, 12], &[20, 10, 12, 20], &[12, 12, 10, 20], &[12, 20, 20, 10]],
        );
        let tables = tables(&ring);
        assert_eq!(tables.near_nodes[0], [3, 1]);
        assert_eq!(tables.near_nodes[2], [0, 1, 3]);
        assert_eq!(tables.node_nr_cpus, [1, 1, 0, 1]);
    }

    #[test]
    fn sparse_node_ids_become_dense_indices() {
        let sparse = machine(&[(0, &[0, 1]), (2, &[4]), (5, &[2])], &[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
        let tables = tables(&sparse);
        assert_eq!(tables.node_ids, [0, 2, 5]);
        assert_eq!(tables.cpu_nodes, [0, 0, 2, NO_NODE, 1]);
        assert_eq!(tables.nr_cpus, 5);
    }

    #[test]
    fn the_price_grows_with_distance_from_a_quarter_of_a_slice() {
        assert_eq!(price_ns(10, SLICE_NS), 0);
        assert_eq!(price_ns(12, SLICE_NS), SLICE_NS / 4);
        assert_eq!(price_ns(20, SLICE_NS), SLICE_NS / 2);
        assert_eq!(price_ns(40, SLICE_NS), SLICE_NS * 3 / 2);
    }

    #[test]
    fn one_node_with_cpus_is_refused() {
        let single = machine(&[(0, &[0, 1]), (1, &[])], &[&[10, 20], &[20, 10]]);
        assert_eq!(Tables::new(&single, SLICE_NS, 1), Err(TablesError::OneNode));
    }

    #[test]
    fn other_tables_have_another_hash() {
        let two = |far| machine(&[(0, &[0]), (1, &[1])], &[&[10, far], &[far, 10]]);
        assert_eq!(tables(&two(20)).hash(), tables(&two(20)).hash());
        assert_ne!(tables(&two(20)).hash(), tables(&two(21)).hash());
    }
}
