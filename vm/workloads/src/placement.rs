// SPDX-License-Identifier: GPL-2.0-only
//! On which node each thread starts and its memory is first touched: all of it wrong, on purpose.

use crate::topology::{NodeId, Topology};
use anyhow::{Result, bail};

/// One thread's nodes at the start of the measured phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartPlacement {
    /// Node the thread starts on.
    pub start: NodeId,
    /// Node its private buffer is first touched on.
    pub private: NodeId,
    /// Node its pair's shared buffer is first touched on.
    pub shared: NodeId,
}

/// Start placement of `threads` threads; threads 2j and 2j+1 are pair j.
///
/// With n > 2 nodes, the threads of pair j start on nodes j and j+1, their private memory is on node j+2 and their
/// shared memory on node j+3 (mod n): every thread is away from its memory and from its partner, and one node suits
/// both. With two nodes both start on node j, their private memory is on the other one.
pub fn plan(topology: &Topology, threads: usize) -> Result<Vec<StartPlacement>> {
    let run = topology.nodes_with_cpus();
    let touch = topology.nodes_with_cpus_and_memory();
    if run.is_empty() || touch.is_empty() {
        bail!("no node has both memory and a CPU that this process may use; widen its affinity or cpuset");
    }
    // Memory goes to nodes relative to the start node, so that CPU nodes without memory shift nothing.
    let after = |start: NodeId, steps: usize| {
        let at_or_after = touch.iter().position(|node| *node >= start).unwrap_or(0);
        touch[(at_or_after + steps) % touch.len()]
    };
    let apart = usize::from(touch.len() > 2);
    Ok((0..threads)
        .map(|thread| {
            let pair = thread / 2;
            let pair_start = run[pair % run.len()];
            StartPlacement {
                start: run[(pair + apart * (thread % 2)) % run.len()],
                private: after(pair_start, 1 + apart),
                shared: after(pair_start, 2 + apart),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::topology_of;

    fn four_nodes() -> Topology {
        topology_of(&[(0, &[0, 1], true), (1, &[2, 3], true), (2, &[4, 5], true), (3, &[6, 7], true)])
    }

    #[test]
    fn pairs_start_apart_and_one_other_node_has_the_private_memory_of_both() {
        let plan = plan(&four_nodes(), 8).unwrap();
        for (thread, placement) in plan.iter().enumerate() {
            let pair = thread as u32 / 2;
            assert_eq!(placement.start, NodeId((pair + thread as u32 % 2) % 4));
            assert_eq!(placement.private, NodeId((pair + 2) % 4));
            assert_eq!(placement.shared, NodeId((pair + 3) % 4));
        }
    }

    #[test]
    fn starts_and_memory_are_spread_evenly() {
        let plan = plan(&four_nodes(), 8).unwrap();
        for node in 0..4 {
            assert_eq!(plan.iter().filter(|placement| placement.start == NodeId(node)).count(), 2);
            assert_eq!(plan.iter().filter(|placement| placement.private == NodeId(node)).count(), 2);
        }
    }

    #[test]
    fn private_memory_is_remote_on_every_machine_with_two_nodes_of_memory() {
        let two = topology_of(&[(0, &[0, 1], true), (1, &[2, 3], true)]);
        let with_gaps = topology_of(&[(0, &[0, 1], true), (3, &[], true), (5, &[4], true)]);
        for machine in [two, with_gaps, four_nodes()] {
            for placement in plan(&machine, 8).unwrap() {
                assert_ne!(placement.start, placement.private);
            }
        }
    }

    #[test]
    fn one_node_takes_everything() {
        let plan = plan(&topology_of(&[(0, &[0], true)]), 4).unwrap();
        assert!(plan.iter().all(|p| (p.start, p.private, p.shared) == (NodeId(0), NodeId(0), NodeId(0))));
    }

    #[test]
    fn a_machine_without_usable_memory_nodes_is_refused() {
        assert!(plan(&topology_of(&[(0, &[0], false), (1, &[], true)]), 2).is_err());
    }
}
