// SPDX-License-Identifier: GPL-2.0-only
//! Machines for tests.

use tandem_policies::model::{CpuId, LatencySource, Node, NodeId, PerNode, Topology};

/// `nodes` nodes of one CPU each; remote memory is twice as far. Ids are 0, 2, 4, ...
pub(crate) fn topology(nodes: usize) -> Topology {
    let node = |at: usize| {
        let distance = PerNode::from_fn(nodes, |to| if to.0 == at { 10 } else { 20 });
        Node {
            id: NodeId(at as u32 * 2),
            cpus: vec![CpuId(at as u32)],
            llcs: vec![vec![CpuId(at as u32)]],
            slow_cpus: Default::default(),
            memory_pages: 1 << 20,
            free_pages: 1 << 19,
            latency_ns: Topology::latency_from_distance(&distance),
            distance,
        }
    };
    Topology::new((0..nodes).map(node).collect(), LatencySource::Distance).expect("a machine")
}
