// SPDX-License-Identifier: GPL-2.0-only
//! Nodes that are parts of one socket, found by latency.
//!
//! Problem: processors that show several nodes each (sub-NUMA clustering) have remote memory of two kinds, and the kernel's
//! numbering says nothing of which nodes belong together. Mechanism: the pairs of nodes, sorted by latency, are cut where it
//! rises most, in proportion; pairs before the cut are near. Nodes are in groups if being near is transitive: within a group
//! all are near, between groups none is. On a ring neighbours are near, but a neighbour's neighbour is not: no groups.
//! Source: spread of latencies of R. Laso Rodriguez, PhD thesis, USC 2023, table 4.2a, whose pairs this recovers.

use super::{NodeIndex, Topology};

/// A rise that noise of measured latencies does not make. Ours; the thesis's machine has 132 / 90.
const LEAST_RISE: f64 = 1.2;

impl Topology {
    /// Groups of nodes that are nearer to each other than to all others, each sorted, in the order of their first nodes. None
    /// if latencies tell no groups, or each node is one, or all are one.
    pub fn near_groups(&self) -> Vec<Vec<NodeIndex>> {
        let nodes: Vec<NodeIndex> = (0..self.len()).map(NodeIndex).collect();
        let mean_ns = |one: NodeIndex, two: NodeIndex| (self.latency_ns(one, two) + self.latency_ns(two, one)) / 2.0;
        let pairs = nodes.iter().flat_map(|&one| nodes[one.0 + 1..].iter().map(move |&two| (one, two)));
        let mut sorted_ns: Vec<f64> = pairs.map(|(one, two)| mean_ns(one, two)).collect();
        sorted_ns.sort_by(f64::total_cmp);
        let rises = sorted_ns.windows(2).map(|pair| (pair[1] / pair[0], pair[0]));
        let Some((rise, near_ns)) = rises.max_by(|one, two| one.0.total_cmp(&two.0)) else { return Vec::new() };
        if rise < LEAST_RISE {
            return Vec::new();
        }
        let near = |one: NodeIndex, two: NodeIndex| one == two || mean_ns(one, two) <= near_ns;
        let group = |one: NodeIndex| nodes.iter().copied().filter(|&two| near(one, two)).collect::<Vec<_>>();
        let of_all: Vec<Vec<NodeIndex>> = nodes.iter().map(|&node| group(node)).collect();
        let transitive = of_all.iter().all(|group| group.iter().all(|node| of_all[node.0] == *group));
        if !transitive {
            return Vec::new();
        }
        of_all.into_iter().enumerate().filter(|(node, group)| group[0].0 == *node).map(|(_, group)| group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LatencySource, Node, PerNode};
    use crate::testing::two_nodes;

    /// A machine with these latencies.
    fn machine(latency_ns: impl Fn(usize, usize) -> f64, nodes: usize) -> Topology {
        let like = two_nodes(1).nodes[NodeIndex(0)].clone();
        let node = |at: usize| Node {
            id: crate::model::NodeId(at as u32),
            distance: PerNode::filled(nodes, 10),
            latency_ns: PerNode::from_fn(nodes, |to| latency_ns(at, to.0)),
            ..like.clone()
        };
        Topology::new((0..nodes).map(node).collect(), LatencySource::Measured).unwrap()
    }

    fn groups(topology: &Topology) -> Vec<Vec<usize>> {
        topology.near_groups().iter().map(|group| group.iter().map(|node| node.0).collect()).collect()
    }

    #[test]
    fn sub_numa_pairs_of_a_measured_matrix_are_recovered() {
        // 77-84 ns locally, 84-90 at the sibling, 132-148 elsewhere, and not the same both ways.
        let measured = |from: usize, to: usize| match (from, to) {
            _ if from == to => 77.0 + from as f64,
            _ if from % 4 == to % 4 => 84.0 + ((from * 5 + to) % 7) as f64,
            _ => 132.0 + ((from * 7 + to * 3) % 17) as f64,
        };
        assert_eq!(groups(&machine(measured, 8)), [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]]);
    }

    #[test]
    fn rings_and_machines_whose_nodes_are_all_as_far_have_no_groups() {
        let hops = |from: usize, to: usize| (from.abs_diff(to)).min(4 - from.abs_diff(to));
        assert!(groups(&machine(|from, to| [90.0, 140.0, 200.0][hops(from, to)], 4)).is_empty());
        assert!(groups(&machine(|from, to| if from == to { 90.0 } else { 180.0 + (from * to) as f64 }, 4)).is_empty());
        assert!(groups(&machine(|_, _| 90.0, 1)).is_empty());
        assert!(groups(&two_nodes(4)).is_empty());
    }

    #[test]
    fn a_node_apart_from_all_others_is_a_group_of_its_own() {
        let apart = |from: usize, to: usize| {
            if from == to {
                90.0
            } else if from.max(to) == 2 {
                300.0
            } else {
                120.0
            }
        };
        assert_eq!(groups(&machine(apart, 3)), [vec![0, 1], vec![2]]);
    }
}
