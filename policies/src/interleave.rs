// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `interleave`: groups round robin over the nodes.
//!
//! Problem: memory bandwidth of few nodes limits, and who uses what is unknown or changes all the time. Mechanism: the
//! group of 2 MiB at address a goes to the node number floor(a / 2 MiB) mod n of the n nodes with memory, as
//! interleaved allocation does with pages. By address, so that groups that come and go move no others.
//! Parameters: [`PARAMETERS`].
//!
//! Needs no accesses. Our block is the page group; the kernel's is a page of 4 KiB, or a large page. Data hot within
//! one group stays on one node. The gain is unknown: the latency matrix does not tell what contention costs.

use crate::model::{Plan, Snapshot};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Parameter, Parameters, Policy, Signal};

/// Page policy `interleave`.
///
/// Groups go to the nodes by turns:
///
/// ```
/// use tandem_policies::{example, interleave};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&interleave::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x400000 of process 1 (2048 KiB) -> node 0: block 2 of 2 MiB is the turn of node 0"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "interleave",
    kind: Kind::Page,
    needs: &[Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Linux memory policy 'interleave', set_mempolicy(2); comparator in all sources",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters)),
    ..Policy::PLAIN
};

/// Parameters of `interleave`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("page_nodes", 0.0, "nodes, the first ones with memory; 0: all", 0.0, 1024.0),
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Bytes that stay together.
const BLOCK_BYTES: u64 = 2 << 20;

/// Moves of groups to their node in turn.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Plan {
    let nodes = page_moves::memory_nodes(&snapshot.topology, parameters.get("page_nodes"));
    let mut moves = PageMoves::new(snapshot, parameters);
    if nodes.is_empty() {
        return moves.plan();
    }
    for group in &snapshot.groups {
        let block = group.id.start / BLOCK_BYTES;
        let turn = (block % nodes.len() as u64) as usize;
        let id = snapshot.topology.nodes[nodes[turn]].id;
        let reason =
            |_: &PageMoves| format!("block {block} of 2 MiB is the turn of node {id}, {} of {}", turn + 1, nodes.len());
        moves.send_for(group, nodes[turn], None, reason);
    }
    moves.plan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeIndex, Unmovable};
    use crate::testing::{PageRun, SnapshotBuilder, ring_of_four, two_nodes};

    /// Eight groups from address 2 MiB on, all on node 0 of the ring and used by nobody.
    fn eight() -> SnapshotBuilder {
        let add =
            |all: SnapshotBuilder, _| all.group(&[512, 0, 0, 0], &[0.0; 4]).with_group(|group| group.samples = 0.0);
        (0..8).fold(SnapshotBuilder::new(ring_of_four(1)), add)
    }

    #[test]
    fn groups_go_round_robin_and_then_stay() {
        let mut run = PageRun::new(&POLICY, eight().build());
        assert_eq!(run.step(), [(0, 1), (1, 2), (2, 3), (4, 1), (5, 2), (6, 3)]);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn a_group_that_vanishes_moves_no_other() {
        let mut run = PageRun::new(&POLICY, eight().build());
        run.step();
        run.snapshot.groups.remove(2);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn only_nodes_with_memory_and_only_as_many_as_asked_for_take_turns() {
        let mut run = PageRun::new(&POLICY, eight().build()).with("page_nodes", 2.0);
        run.snapshot.topology.nodes[NodeIndex(1)].memory_pages = 0;
        assert_eq!(run.step(), [(0, 2), (2, 2), (4, 2), (6, 2)]);
    }

    #[test]
    fn a_bound_group_stays() {
        let builder = SnapshotBuilder::new(two_nodes(1)).group(&[512, 0], &[1.0, 0.0]);
        let mut run = PageRun::new(&POLICY, builder.build());
        assert_eq!(run.decide(), [(0, 1)]);
        run.snapshot.groups[0].unmovable = Some(Unmovable::Bound);
        assert_eq!(run.decide(), []);
    }

    #[test]
    fn the_reason_names_the_turn_and_no_gain_is_claimed() {
        let plan = PageRun::new(&POLICY, eight().build()).plan().unwrap();
        assert_eq!(plan.moves[0].reason, "block 1 of 2 MiB is the turn of node 1, 2 of 4");
        assert_eq!(plan.moves[0].gain_ns_per_s, None);
    }
}
