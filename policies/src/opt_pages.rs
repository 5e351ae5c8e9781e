// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `opt`: each page to the node that accesses it most.
//!
//! Problem: pages are on a node other than the one that uses them most. Mechanism (Diener et al., Performance
//! Evaluation 2015): pages go to the arg-max node of their accesses, each at most once in 10 s. Parameters:
//! [`PARAMETERS`].
//!
//! The source knows every access; we know samples, so that `min_samples` keeps chance out. Our unit is the page group
//! (2 MiB). The 10 s run from the plan that moved a group, if it was seen to have arrived: a move that nobody made does
//! not count. There is no threshold: a group that two nodes use alike may move every 10 s.

use std::collections::BTreeMap;

use crate::model::{GroupId, NodeIndex, PageGroup, Plan, Snapshot};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Memory, Parameter, Parameters, Policy, Signal};

/// Page policy `opt`.
///
/// Each group goes to the node with most accesses to it:
///
/// ```
/// use tandem_policies::{example, opt_pages};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&opt_pages::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: 100 % of its accesses come from node 0"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "opt",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Diener, Cruz, Pilla, Dupros, Navaux, Performance Evaluation 2015: OPT, data mapping",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters, inputs.memory)),
    ..Policy::PLAIN
};

/// Parameters of `opt`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("min_interval_s", 10.0, "s between moves of a group", 0.0, 3600.0),
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Groups sent, by where and when.
#[derive(Debug, Default)]
struct Sent(BTreeMap<GroupId, (NodeIndex, u64)>);

impl Sent {
    /// Forgets what was sent before `min_interval_s`.
    fn forget(&mut self, time_ns: u64, min_interval_s: f64) {
        self.0.retain(|_, &mut (_, sent_ns)| (time_ns.saturating_sub(sent_ns) as f64) < min_interval_s * 1e9);
    }

    /// Whether `group` was sent not long ago and arrived.
    fn has_arrived(&self, group: &PageGroup) -> bool {
        self.0.get(&group.id).is_some_and(|&(to, _)| group.home() == Some(to))
    }
}

/// Moves of groups to the node that accesses them most.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, memory: &mut Memory) -> Plan {
    let sent = memory.of::<Sent>();
    sent.forget(snapshot.time_ns, parameters.get("min_interval_s"));
    let mut moves = PageMoves::new(snapshot, parameters);
    let min_samples = parameters.get("min_samples");
    for group in snapshot.groups.iter().filter(|group| group.samples >= min_samples) {
        let Some(accessor) = group.accesses_per_s.argmax() else { continue };
        let Some(to) = moves.destination(accessor) else { continue };
        if sent.has_arrived(group) || !moves.is_away(group, to) {
            continue;
        }
        if moves.send(group, to, |moves| moves.reason(group, accessor)) {
            sent.0.insert(group.id, (to, snapshot.time_ns));
        }
    }
    moves.plan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Unmovable;
    use crate::testing::{PageRun, SnapshotBuilder, ring_of_four, two_nodes};

    const ALL: u64 = 512;

    fn on_node_0_used_from_1() -> SnapshotBuilder {
        SnapshotBuilder::new(two_nodes(1)).group(&[ALL, 0], &[1.0, 9.0])
    }

    #[test]
    fn a_group_goes_to_the_node_that_accesses_it_most_by_however_little() {
        let builder = SnapshotBuilder::new(ring_of_four(1)).group(&[0, ALL, 0, 0], &[26.0, 25.0, 25.0, 24.0]);
        let mut run = PageRun::new(&POLICY, builder.build());
        assert_eq!(run.decide(), [(0, 0)]);
    }

    #[test]
    fn a_group_moves_at_most_once_in_ten_seconds() {
        let mut run = PageRun::new(&POLICY, on_node_0_used_from_1().build());
        assert_eq!(run.step(), [(0, 1)]);
        run.snapshot.groups[0].accesses_per_s = vec![9.0, 1.0].into();
        run.pass_ns(9_999_999_999);
        assert_eq!(run.step(), []);
        run.pass_ns(1);
        assert_eq!(run.step(), [(0, 0)]);
    }

    #[test]
    fn a_move_that_was_not_made_is_planned_again() {
        let mut run = PageRun::new(&POLICY, on_node_0_used_from_1().build());
        assert_eq!(run.decide(), [(0, 1)]);
        run.pass_ns(1_000_000_000);
        assert_eq!(run.decide(), [(0, 1)]);
    }

    #[test]
    fn the_pages_that_their_initialiser_touched_all_end_with_their_users() {
        let part = |all: SnapshotBuilder, node: usize| {
            let accesses: Vec<f64> = (0..4).map(|at| if at == node { 5.0 } else { 0.0 }).collect();
            all.group(&[ALL, 0, 0, 0], &accesses)
        };
        let snapshot = (0..4).fold(SnapshotBuilder::new(ring_of_four(1)), part).build();
        let mut run = PageRun::new(&POLICY, snapshot);
        assert_eq!(run.accuracy(), 0.25);
        assert_eq!(run.step(), [(1, 1), (2, 2), (3, 3)]);
        assert_eq!(run.accuracy(), 1.0);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn too_few_samples_and_unmovable_groups_stay() {
        let few = on_node_0_used_from_1().with_group(|group| group.samples = 3.0);
        let pinned = on_node_0_used_from_1().with_group(|group| group.unmovable = Some(Unmovable::Pinned));
        for builder in [few, pinned] {
            assert_eq!(PageRun::new(&POLICY, builder.build()).decide(), []);
        }
    }
}
