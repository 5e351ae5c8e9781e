// SPDX-License-Identifier: GPL-2.0-only
//! Which thread sits where, and which memory goes with it: the vocabulary in which workloads state placements.
//!
//! Threads are dealt to CPUs in blocks along a tour of the nodes, so that neighbours in number are neighbours on the
//! machine. The seed says at which node the tour begins. On a machine with one node all placements are the same.

use crate::frame::plan::Request;
use crate::topology::{NodeId, Seat};
use anyhow::{Result, bail};

impl Request<'_> {
    /// Nodes with CPUs, each followed by one near to it.
    pub fn tour(&self) -> Result<Vec<NodeId>> {
        let nodes = self.topology.nodes_with_cpus();
        if nodes.is_empty() || self.topology.nodes_with_cpus_and_memory().is_empty() {
            bail!("no node has both memory and a CPU that this process may use; widen its affinity or cpuset");
        }
        Ok(self.topology.tour_from(nodes[self.seed as usize % nodes.len()]))
    }

    /// The number of threads: size `threads`, or with 0 as many as there are CPUs, in whole groups of `group`.
    pub fn threads(&self, group: usize) -> Result<usize> {
        let asked = self.sizes.of("threads") as usize;
        if !asked.is_multiple_of(group) {
            bail!("--threads {asked}: this workload needs a multiple of {group}");
        }
        let cpus = self.topology.counted_cpus();
        Ok(if asked > 0 { asked } else { (cpus / group * group).max(group) })
    }

    /// Bytes of each of `parts` equal parts of the array whose size in MiB is called `name`, in whole pages.
    pub fn part_bytes(&self, name: &str, parts: usize) -> Result<usize> {
        let bytes = self.sizes.mib(name) / parts / 4096 * 4096;
        if bytes == 0 {
            bail!("--{name} {}: less than a page for each of {parts} threads", self.sizes.of(name));
        }
        Ok(bytes)
    }

    /// Seats of `threads` threads, in blocks along the tour, each node getting as many as its share of the CPUs.
    pub fn seats(&self, threads: usize) -> Result<Vec<Seat>> {
        Ok(self.seats_on(&self.tour()?, threads))
    }

    /// Seats of `threads` threads on these nodes, in blocks, each node getting as many as its share of their CPUs.
    pub fn seats_on(&self, nodes: &[NodeId], threads: usize) -> Vec<Seat> {
        let all = self.topology.seats(nodes);
        let nodes: Vec<NodeId> = (0..threads).map(|thread| all[thread * all.len() / threads].node).collect();
        self.seats_at(&nodes)
    }

    /// A seat on the node named for each thread. A CPU is taken twice only when all of its node are taken.
    pub fn seats_at(&self, nodes: &[NodeId]) -> Vec<Seat> {
        let mut taken = std::collections::BTreeMap::new();
        let seats = nodes.iter().map(|node| {
            let next = taken.entry(*node).or_insert(0);
            let cpus = self.topology.cpus_of(*node);
            *next += 1;
            Seat { cpu: cpus[(*next - 1) % cpus.len()], node: *node }
        });
        seats.collect()
    }

    /// Where memory is local to `node`.
    pub fn local_to(&self, node: NodeId) -> NodeId {
        self.topology.memory_at(node).expect("tour() found a node with memory")
    }

    /// Where memory is far from `node`; different nodes have different far ones.
    pub fn far_from(&self, node: NodeId) -> NodeId {
        self.topology.far_from(node).expect("tour() found a node with memory")
    }

    /// As many threads as size `threads` says, or with 0 as the first node of the tour has CPUs.
    pub fn threads_of_a_node(&self) -> Result<usize> {
        Ok(match self.sizes.of("threads") as usize {
            0 => self.topology.counted_cpus_of(self.tour()?[0]),
            asked => asked,
        })
    }

    /// The local node of each of these seats.
    pub fn locals(&self, seats: &[Seat]) -> Vec<NodeId> {
        seats.iter().map(|seat| self.local_to(seat.node)).collect()
    }

    /// The far node of each of these seats.
    pub fn fars(&self, seats: &[Seat]) -> Vec<NodeId> {
        seats.iter().map(|seat| self.far_from(seat.node)).collect()
    }

    /// A random 64-bit number that depends on the seed and on `stream` only.
    pub fn random(&self, stream: u64) -> u64 {
        mix(self.seed ^ mix(stream))
    }
}

/// A 64-bit mixing function (splitmix64's finaliser, Steele and others 2014): neighbours become unlike.
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The upper half of `random` scaled to 0..length.
pub fn scaled(random: u64, length: usize) -> usize {
    (((random >> 32) * length as u64) >> 32) as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::frame::plan::Placement;
    use crate::frame::spec::Values;
    use crate::topology::{Topology, ring_of_four, topology_of};

    /// A request without sizes, seed 0.
    pub(crate) fn request(topology: &Topology, placement: Placement) -> Request<'_> {
        static NONE: Values = Values(std::collections::BTreeMap::new());
        Request { topology, sizes: &NONE, placement, seed: 0 }
    }

    fn oracle(topology: &Topology) -> Request<'_> {
        request(topology, Placement::Oracle)
    }

    fn cpus(seats: &[Seat]) -> Vec<u32> {
        seats.iter().map(|seat| seat.cpu.0).collect()
    }

    #[test]
    fn threads_sit_in_blocks_and_every_cpu_is_used_before_one_is_used_twice() {
        let ring = ring_of_four();
        let request = oracle(&ring);
        assert_eq!(cpus(&request.seats(8).unwrap()), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(cpus(&request.seats(4).unwrap()), [0, 2, 4, 6]);
        assert_eq!(cpus(&request.seats(2).unwrap()), [0, 4]);
        assert_eq!(cpus(&request.seats(16).unwrap()), [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7]);
    }

    #[test]
    fn nodes_get_threads_by_their_cpus_and_memory_goes_to_the_nearest_node_that_has_some() {
        let uneven = topology_of(&[(0, &[0, 1, 2], true), (3, &[], true), (7, &[3], false)]);
        let request = oracle(&uneven);
        let seats = request.seats(4).unwrap();
        assert_eq!(cpus(&seats), [0, 1, 2, 3]);
        assert_eq!(request.locals(&seats), [NodeId(0); 4]);
    }

    #[test]
    fn the_seed_turns_the_tour() {
        let ring = ring_of_four();
        let first = |seed| Request { seed, ..oracle(&ring) }.tour().unwrap()[0].0;
        assert_eq!([first(0), first(1), first(2), first(3), first(4)], [0, 1, 2, 3, 0]);
    }

    #[test]
    fn threads_default_to_whole_groups_that_the_cpus_hold_and_others_are_refused() {
        let three = topology_of(&[(0, &[0, 1, 2], true)]);
        let threads = |asked: u64, group: usize| {
            let sizes = Values([("threads", asked)].into());
            Request { sizes: &sizes, ..oracle(&three) }.threads(group)
        };
        assert_eq!((threads(0, 2).unwrap(), threads(0, 4).unwrap(), threads(6, 2).unwrap()), (2, 4, 6));
        assert!(threads(5, 2).unwrap_err().to_string().contains("multiple of 2"));
    }

    #[test]
    fn a_machine_without_usable_memory_nodes_is_refused() {
        let bare = topology_of(&[(0, &[0], false), (1, &[], true)]);
        assert!(oracle(&bare).seats(1).is_err());
    }
}
