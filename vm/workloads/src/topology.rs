// SPDX-License-Identifier: GPL-2.0-only
//! The machine's nodes as sysfs shows them: CPUs and memory, sparse ids, CPU-less nodes.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tandem_machine::parse_cpu_list;

/// A NUMA node's id as the kernel numbers it; ids may have gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A logical CPU's number as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuId(pub u32);

/// Online nodes with their CPUs, and which of them have memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<NodeId, Vec<CpuId>>,
    with_memory: BTreeSet<NodeId>,
}

impl Topology {
    /// Reads `/sys/devices/system/node`.
    pub fn read() -> Result<Self> {
        Self::read_from(Path::new("/sys/devices/system/node"))
    }

    fn read_from(directory: &Path) -> Result<Self> {
        let list = |path: &Path| -> Result<Vec<u32>> {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            parse_cpu_list(&text).with_context(|| format!("{} is not a list of numbers", path.display()))
        };
        let mut cpus = BTreeMap::new();
        for node in list(&directory.join("online"))? {
            let of_node = list(&directory.join(format!("node{node}/cpulist")))?;
            cpus.insert(NodeId(node), of_node.into_iter().map(CpuId).collect());
        }
        let with_memory = list(&directory.join("has_memory"))?.into_iter().map(NodeId).collect();
        Ok(Self { cpus, with_memory })
    }

    /// The same nodes, with only those CPUs that are in `allowed`.
    pub fn restricted_to(mut self, allowed: &[CpuId]) -> Self {
        for cpus in self.cpus.values_mut() {
            cpus.retain(|cpu| allowed.contains(cpu));
        }
        self
    }

    /// All online nodes, ascending.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.cpus.keys().copied().collect()
    }

    /// The CPUs of `node`; empty if it has none (left).
    pub fn cpus_of(&self, node: NodeId) -> &[CpuId] {
        self.cpus.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Nodes on which threads can run, ascending.
    pub fn nodes_with_cpus(&self) -> Vec<NodeId> {
        self.cpus.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(node, _)| *node).collect()
    }

    /// Nodes on which a thread running there first touches local memory, ascending.
    pub fn nodes_with_cpus_and_memory(&self) -> Vec<NodeId> {
        self.nodes_with_cpus().into_iter().filter(|node| self.with_memory.contains(node)).collect()
    }

    /// CPU to node, of all CPUs.
    pub fn node_of_cpu(&self) -> BTreeMap<CpuId, NodeId> {
        self.cpus.iter().flat_map(|(node, cpus)| cpus.iter().map(|cpu| (*cpu, *node))).collect()
    }
}

#[cfg(test)]
pub(crate) fn topology_of(nodes: &[(u32, &[u32], bool)]) -> Topology {
    Topology {
        cpus: nodes
            .iter()
            .map(|(node, cpus, _)| (NodeId(*node), cpus.iter().map(|cpu| CpuId(*cpu)).collect()))
            .collect(),
        with_memory: nodes.iter().filter(|(_, _, memory)| *memory).map(|(node, _, _)| NodeId(*node)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_ids_and_cpu_less_nodes_are_read_as_found() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("online", "0,2,5\n");
        write("has_memory", "0,5\n");
        write("node0/cpulist", "0-1\n");
        write("node2/cpulist", "2\n");
        write("node5/cpulist", "\n");
        let topology = Topology::read_from(directory.path()).unwrap();
        assert_eq!(topology, topology_of(&[(0, &[0, 1], true), (2, &[2], false), (5, &[], true)]));
        assert_eq!(topology.nodes_with_cpus(), [NodeId(0), NodeId(2)]);
        assert_eq!(topology.nodes_with_cpus_and_memory(), [NodeId(0)]);
        let restricted = topology.restricted_to(&[CpuId(1)]);
        assert_eq!(restricted.nodes_with_cpus(), [NodeId(0)]);
        assert_eq!(restricted.nodes().len(), 3);
    }
}
