// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `rmma`: random migration, a control.
//!
//! Problem: does a policy win by what it knows, or because anything moved? Mechanism (Thanos thesis, section 3.6.2):
//! in each decision m random page groups go to random other nodes with memory. Parameters: [`PARAMETERS`].
//!
//! The thesis gives no m for pages; ours is the default of its tool for threads. Our unit is the page group (2 MiB)
//! where the thesis has a 4 KiB page. Groups that may not move are not drawn; a group that finds no room on the node
//! drawn for it stays, so that fewer than m may move. It never comes to rest.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::anneal::below;
use crate::model::{Plan, Snapshot};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Parameter, Parameters, Policy, Signal};

/// Page policy `rmma`.
///
/// A control: groups go to nodes that are drawn:
///
/// ```
/// use tandem_policies::{example, rmma};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&rmma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x800000 of process 1 (2048 KiB) -> node 1: drawn at random"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "rmma",
    kind: Kind::Page,
    needs: &[Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: section 3.6.2, RMMA",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters, inputs.seed)),
    explores: true,
    ..Policy::PLAIN
};

/// Parameters of `rmma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("groups_per_decision", 5.0, "page groups", 0.0, 1e6),
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Moves of random groups to random nodes.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64) -> Plan {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut moves = PageMoves::new(snapshot, parameters);
    let nodes = page_moves::memory_nodes(&snapshot.topology, 0.0);
    let mut groups: Vec<_> =
        snapshot.groups.iter().filter(|group| group.unmovable.is_none() && group.home().is_some()).collect();
    for _ in 0..parameters.get("groups_per_decision") as usize {
        if groups.is_empty() {
            break;
        }
        let group = groups.swap_remove(below(&mut rng, groups.len()));
        let others: Vec<_> = nodes.iter().copied().filter(|&node| Some(node) != group.home()).collect();
        if others.is_empty() {
            continue;
        }
        let to = others[below(&mut rng, others.len())];
        moves.send(group, to, |moves| format!("drawn at random{}", moves.home_in_words(group)));
    }
    moves.plan()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::model::Action;
    use crate::testing::{PageRun, SnapshotBuilder, decided, page_destinations, ring_of_four, two_nodes};

    /// `count` groups on node 2 of the ring.
    fn groups(count: usize) -> Snapshot {
        let add = |all: SnapshotBuilder, _| all.group(&[0, 0, 512, 0], &[1.0, 0.0, 0.0, 0.0]);
        (0..count).fold(SnapshotBuilder::new(ring_of_four(1)), add).build()
    }

    #[test]
    fn five_different_groups_go_to_other_nodes() {
        for seed in 0..20 {
            let moved = page_destinations(&groups(50), &decided(&POLICY, &groups(50), seed, 0).unwrap());
            assert_eq!(moved.iter().map(|&(group, _)| group).collect::<BTreeSet<_>>().len(), 5);
            assert!(moved.iter().all(|&(_, to)| to != 2));
        }
    }

    #[test]
    fn every_group_and_every_other_node_is_drawn_sooner_or_later() {
        let of = |seed| page_destinations(&groups(4), &decide(&groups(4), &one_group(), seed));
        let drawn: BTreeSet<_> = (0..400).flat_map(of).collect();
        assert_eq!(drawn.len(), 4 * 3);
    }

    fn one_group() -> Parameters {
        POLICY.parameters(&BTreeMap::from([("groups_per_decision".to_owned(), 1.0)])).unwrap()
    }

    /// A control must lose: from groups that are all where their users are, ten decisions of five moves among 50.
    #[test]
    fn from_the_best_placement_it_makes_accesses_take_longer() {
        let local = |all: SnapshotBuilder, k: usize| {
            let at = |value: u64| (0..4).map(move |node| if node == k % 4 { value } else { 0 });
            all.group(&at(512).collect::<Vec<_>>(), &at(1000).map(|rate| rate as f64).collect::<Vec<_>>())
        };
        let start = (0..50).fold(SnapshotBuilder::new(ring_of_four(1)), local).build();
        let stall_ns = |snapshot: &Snapshot| -> f64 {
            let of = |group: &crate::model::PageGroup| {
                let home = group.home().unwrap();
                group
                    .accesses_per_s
                    .iter()
                    .map(|(node, rate)| rate * snapshot.topology.latency_ns(node, home))
                    .sum::<f64>()
            };
            snapshot.groups.iter().map(of).sum()
        };
        let after = |seed: u64| {
            let mut run = PageRun::new(&POLICY, start.clone());
            for decision in 0..10 {
                run.seed = 100 * seed + decision;
                run.step();
            }
            stall_ns(&run.snapshot) / stall_ns(&start)
        };
        let mean = (0..50).map(after).sum::<f64>() / 50.0;
        assert!(mean > 1.2, "{mean} of the stall before");
    }

    #[test]
    fn the_seed_decides() {
        let of = |seed| decided(&POLICY, &groups(50), seed, 0).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn with_one_node_with_memory_nothing_moves() {
        let mut topology = two_nodes(1);
        topology.nodes[crate::model::NodeIndex(1)].memory_pages = 0;
        let snapshot = SnapshotBuilder::new(topology).group(&[512, 0], &[1.0, 0.0]).build();
        assert!(decided(&POLICY, &snapshot, 1, 0).unwrap().is_empty());
    }

    #[test]
    fn a_move_for_the_worse_says_so() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).group(&[512, 0], &[10.0, 0.0]).build();
        let plan = decided(&POLICY, &snapshot, 1, 0).unwrap();
        assert!(matches!(plan.moves[0].action, Action::MovePages { .. }));
        assert_eq!(plan.moves[0].gain_ns_per_s, Some(10.0 * (100.0 - 210.0)));
    }
}
