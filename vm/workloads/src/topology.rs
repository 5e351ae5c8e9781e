// SPDX-License-Identifier: GPL-2.0-only
//! The machine's nodes as sysfs shows them: CPUs, memory and distances, sparse ids, CPU-less nodes.

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

/// A CPU and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The CPU.
    pub cpu: CpuId,
    /// The node it belongs to.
    pub node: NodeId,
}

/// Online nodes with their CPUs, which of them have memory, and how far they are from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<NodeId, Vec<CpuId>>,
    /// CPUs of each node that default sizes are made for.
    counted: BTreeMap<NodeId, usize>,
    with_memory: BTreeSet<NodeId>,
    /// SLIT distances (10 = local) from the first node to the second.
    distances: BTreeMap<(NodeId, NodeId), u32>,
}

impl Topology {
    /// Reads `/sys/devices/system/node`.
    ///
    /// Of a node's CPUs, those that are first in their core come first.
    pub fn read() -> Result<Self> {
        let mut topology = Self::read_from(Path::new("/sys/devices/system/node"))?;
        for cpus in topology.cpus.values_mut() {
            let mut ranked = Vec::new();
            for cpu in cpus.iter() {
                let path = format!("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu.0);
                let siblings = list(Path::new(&path))?;
                ranked.push((siblings.iter().position(|sibling| *sibling == cpu.0), *cpu));
            }
            ranked.sort_unstable();
            *cpus = ranked.into_iter().map(|(_, cpu)| cpu).collect();
        }
        Ok(topology)
    }

    fn read_from(directory: &Path) -> Result<Self> {
        let online = list(&directory.join("online"))?;
        let (mut cpus, mut distances) = (BTreeMap::new(), BTreeMap::new());
        for node in &online {
            let of_node = list(&directory.join(format!("node{node}/cpulist")))?;
            cpus.insert(NodeId(*node), of_node.into_iter().map(CpuId).collect());
            for (other, distance) in online.iter().zip(distance_row(&directory.join(format!("node{node}/distance")))?) {
                distances.insert((NodeId(*node), NodeId(*other)), distance);
            }
        }
        let with_memory = list(&directory.join("has_memory"))?.into_iter().map(NodeId).collect();
        Ok(Self { counted: counts(&cpus), cpus, with_memory, distances })
    }

    /// The same nodes, with only those CPUs that are in `allowed`. Default sizes are made for these, or for the whole machine.
    pub fn restricted_to(mut self, allowed: &[CpuId], whole_machine: bool) -> Self {
        for cpus in self.cpus.values_mut() {
            cpus.retain(|cpu| allowed.contains(cpu));
        }
        if !whole_machine {
            self.counted = counts(&self.cpus);
        }
        self
    }

    /// CPUs of `node` that default sizes are made for.
    pub fn counted_cpus_of(&self, node: NodeId) -> usize {
        self.counted.get(&node).copied().unwrap_or(0)
    }

    /// Nodes with CPUs that default sizes are made for.
    pub fn counted_nodes(&self) -> usize {
        self.counted.values().filter(|&&cpus| cpus > 0).count()
    }

    /// CPUs of all nodes together that default sizes are made for.
    pub fn counted_cpus(&self) -> usize {
        self.counted.values().sum()
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

    /// SLIT distance from CPUs of `from` to memory of `to`; 10 is local.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        self.distances.get(&(from, to)).copied().unwrap_or(u32::MAX)
    }

    /// `node` itself if memory can be first touched there, else the nearest node where it can.
    pub fn memory_at(&self, node: NodeId) -> Option<NodeId> {
        self.nodes_with_cpus_and_memory().into_iter().min_by_key(|home| (self.distance(node, *home), *home))
    }

    /// The node with CPUs and memory that is far from `node`, such that different nodes have different far nodes and
    /// the sum of all their distances is greatest; among equals, the one halfway round the list.
    pub fn far_from(&self, node: NodeId) -> Option<NodeId> {
        let homes = self.nodes_with_cpus_and_memory();
        let own = homes.iter().position(|home| Some(*home) == self.memory_at(node))?;
        let count = homes.len();
        let worth = |from: usize, to: usize| {
            let off_halfway = ((to + count - from) % count).abs_diff(count.div_ceil(2));
            u64::from(self.distance(homes[from], homes[to])) * 1000 - off_halfway as u64
        };
        Some(homes[greatest_assignment(count, worth)[own]])
    }

    /// Nodes with CPUs in the order of a tour that goes to the nearest node not yet visited, from `first`.
    pub fn tour_from(&self, first: NodeId) -> Vec<NodeId> {
        let mut left = self.nodes_with_cpus();
        let mut tour = Vec::new();
        let mut at = first;
        while let Some(next) = left.iter().copied().min_by_key(|node| (self.distance(at, *node), *node)) {
            left.retain(|node| *node != next);
            tour.push(next);
            at = next;
        }
        tour
    }

    /// The CPUs of `nodes`, node by node.
    pub fn seats(&self, nodes: &[NodeId]) -> Vec<Seat> {
        nodes.iter().flat_map(|node| self.cpus_of(*node).iter().map(|cpu| Seat { cpu: *cpu, node: *node })).collect()
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpus.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(node, _)| *node)
    }

    /// CPU to node, of all CPUs.
    pub fn node_of_cpu(&self) -> BTreeMap<CpuId, NodeId> {
        self.cpus.iter().flat_map(|(node, cpus)| cpus.iter().map(|cpu| (*cpu, *node))).collect()
    }
}

/// The permutation of `count` things with the greatest sum of `worth(thing, its place)`, exact up to 16 things; above,
/// each goes halfway round the list. Dynamic programming over sets of places taken.
fn greatest_assignment(count: usize, worth: impl Fn(usize, usize) -> u64) -> Vec<usize> {
    if count > 16 {
        return (0..count).map(|thing| (thing + count / 2) % count).collect();
    }
    // best[taken]: the greatest sum with the first things in the places `taken`, and the last thing's place.
    let mut best = vec![(0u64, 0usize); 1 << count];
    for taken in 1..best.len() {
        let thing = taken.count_ones() as usize - 1;
        let places = (0..count).filter(|place| taken >> place & 1 == 1);
        let sums = places.map(|place| (best[taken & !(1 << place)].0 + worth(thing, place), place));
        best[taken] = sums.max().expect("a set that is not empty has a member");
    }
    let mut places = vec![0; count];
    let mut taken = best.len() - 1;
    for thing in (0..count).rev() {
        places[thing] = best[taken].1;
        taken &= !(1 << places[thing]);
    }
    places
}

/// The numbers of a file in the kernel's list format.
fn list(path: &Path) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_cpu_list(&text).with_context(|| format!("{} is not a list of numbers", path.display()))
}

/// The numbers of a `distance` file.
fn distance_row(path: &Path) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let numbers = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    numbers.with_context(|| format!("{} is not a row of distances", path.display()))
}

fn counts(cpus: &BTreeMap<NodeId, Vec<CpuId>>) -> BTreeMap<NodeId, usize> {
    cpus.iter().map(|(node, cpus)| (*node, cpus.len())).collect()
}

/// Nodes (id, CPUs, has memory) that are all 20 from each other.
#[cfg(test)]
pub(crate) fn topology_of(nodes: &[(u32, &[u32], bool)]) -> Topology {
    let ids = || nodes.iter().map(|(node, _, _)| NodeId(*node));
    let pairs = ids().flat_map(|from| ids().map(move |to| (from, to)));
    let cpus: BTreeMap<_, _> =
        nodes.iter().map(|(node, cpus, _)| (NodeId(*node), cpus.iter().copied().map(CpuId).collect())).collect();
    Topology {
        counted: counts(&cpus),
        cpus,
        with_memory: nodes.iter().filter(|(_, _, memory)| *memory).map(|(node, _, _)| NodeId(*node)).collect(),
        distances: pairs.map(|(from, to)| ((from, to), if from == to { 10 } else { 20 })).collect(),
    }
}

/// Four nodes of two CPUs in a ring: neighbours are 12 from each other, opposite nodes 20.
#[cfg(test)]
pub(crate) fn ring_of_four() -> Topology {
    let mut ring = topology_of(&[(0, &[0, 1], true), (1, &[2, 3], true), (2, &[4, 5], true), (3, &[6, 7], true)]);
    for ((from, to), distance) in &mut ring.distances {
        *distance = [10, 12, 20, 12][from.0.abs_diff(to.0) as usize];
    }
    ring
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
        write("node0/distance", "10 20 20\n");
        write("node2/distance", "20 10 20\n");
        write("node5/distance", "20 20 10\n");
        let topology = Topology::read_from(directory.path()).unwrap();
        assert_eq!(topology, topology_of(&[(0, &[0, 1], true), (2, &[2], false), (5, &[], true)]));
        assert_eq!(topology.nodes_with_cpus(), [NodeId(0), NodeId(2)]);
        assert_eq!(topology.nodes_with_cpus_and_memory(), [NodeId(0)]);
        let restricted = topology.clone().restricted_to(&[CpuId(1)], false);
        assert_eq!(restricted.nodes_with_cpus(), [NodeId(0)]);
        assert_eq!(restricted.nodes().len(), 3);
        assert_eq!((restricted.counted_cpus(), restricted.counted_nodes()), (1, 1));
        let whole = topology.restricted_to(&[CpuId(1)], true);
        assert_eq!(whole.nodes_with_cpus(), [NodeId(0)]);
        assert_eq!((whole.counted_cpus(), whole.counted_nodes(), whole.counted_cpus_of(NodeId(0))), (3, 2, 2));
    }
    #[test]
    fn far_nodes_have_the_greatest_distances_and_differ_from_each_other() {
        let farthest = |topology: &Topology| -> Vec<u32> {
            topology.nodes().into_iter().map(|node| topology.far_from(node).unwrap().0).collect()
        };
        assert_eq!(farthest(&ring_of_four()), [2, 3, 0, 1]);
        let equal = topology_of(&[(0, &[0], true), (1, &[1], true), (2, &[2], true), (3, &[3], true)]);
        assert_eq!(farthest(&equal), [2, 3, 0, 1]);
        let two_and_a_bare_one = topology_of(&[(0, &[0], true), (2, &[], true), (5, &[1], true)]);
        assert_eq!(farthest(&two_and_a_bare_one), [5, 5, 0]);
        assert_eq!(farthest(&topology_of(&[(0, &[0], true)])), [0]);
        let mut remote_socket = equal;
        for ((from, to), distance) in &mut remote_socket.distances {
            // Node 3 is the farthest of all others; it can be far from one of them only.
            *distance = if from == to { 10 } else { 20 + 5 * from.0.max(to.0) };
        }
        assert_eq!(farthest(&remote_socket), [2, 3, 0, 1]);
    }

    #[test]
    fn memory_of_a_node_without_any_is_at_the_nearest_node() {
        let mut machine = topology_of(&[(0, &[0], true), (1, &[1], false), (2, &[2], true), (3, &[], true)]);
        machine.distances.insert((NodeId(1), NodeId(2)), 15);
        assert_eq!(machine.memory_at(NodeId(1)), Some(NodeId(2)));
        assert_eq!(machine.memory_at(NodeId(0)), Some(NodeId(0)));
        assert_eq!(topology_of(&[(0, &[0], false), (1, &[], true)]).memory_at(NodeId(0)), None);
    }

    #[test]
    fn a_tour_goes_from_neighbour_to_neighbour_and_visits_all() {
        let mut crossed = ring_of_four();
        for ((from, to), distance) in &mut crossed.distances {
            // A ring 0-2-1-3.
            let place = |node: NodeId| [0u32, 2, 1, 3][node.0 as usize];
            *distance = [10, 12, 20, 12][place(*from).abs_diff(place(*to)) as usize];
        }
        assert_eq!(crossed.tour_from(NodeId(0)), [0, 2, 1, 3].map(NodeId));
        assert_eq!(ring_of_four().tour_from(NodeId(2)), [2, 1, 0, 3].map(NodeId));
    }
}
