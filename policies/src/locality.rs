// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `locality`: each page to the node of the thread that accesses it most.
//!
//! Problem: pages are on a node other than the thread that needs them most. Mechanism (Popov et al., ICS 2019, page
//! placement *locality*): a group goes to the node of its top thread. This is not the node with most accesses:
//! one thread may access a group most while two others on another node access it more together.
//! Parameters: [`PARAMETERS`].
//!
//! The source computes the placement once, from a whole profile. We decide again and again, from samples, so that
//! `min_samples` and `min_lead_percent` are ours: a group leaves a node that hosts one of its threads only if its top
//! thread leads that one by so much. Its page NUMA degree equals that of the threads, as the source demands, because
//! pages go where threads are.

use crate::model::{NodeIndex, PageGroup, Plan, Snapshot};
use crate::page_moves::{self, Home, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::Users;

/// Page policy `locality`.
///
/// Each group goes to the thread that accesses it most:
///
/// ```
/// use tandem_policies::{example, locality};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&locality::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: thread 1 on node 0 accesses it most"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "locality",
    kind: Kind::Page,
    needs: &[Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Popov, Jimborean, Black-Schaffer, ICS 2019: page placement 'locality'",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
};

/// Parameters of `locality`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("min_lead_percent", 10.0, "% more accesses than a thread at home", 0.0, 1000.0),
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Moves of groups to their top threads.
///
/// # Errors
/// [`MissingSignal`] if no group knows its users.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    page_moves::require(snapshot, POLICY.name, Signal::GroupUsers, |group| !group.users.is_empty())?;
    let users = Users::of(snapshot);
    let mut moves = PageMoves::new(snapshot, parameters);
    let min_samples = parameters.get("min_samples");
    let lead = 1.0 + parameters.get("min_lead_percent") / 100.0;
    for group in snapshot.groups.iter().filter(|group| group.samples >= min_samples) {
        let Some((thread, node, per_s)) = users.top(group) else { continue };
        let Some(to) = moves.destination(node) else { continue };
        if most_at_home(&users, group, &moves).is_some_and(|(home, most)| home != to && per_s < lead * most) {
            continue;
        }
        moves.send(group, to, |moves| reason(moves, thread.tid, node, moves.home_in_words(group)));
    }
    Ok(moves.plan())
}

/// The node where most of `group` is, with the accesses per second of its top thread there.
fn most_at_home(users: &Users, group: &PageGroup, moves: &PageMoves) -> Option<(NodeIndex, f64)> {
    let home = group.home()?;
    let there = users.present(group).filter(|&(_, node, _)| moves.destination(node) == Some(home));
    there.map(|(_, _, per_s)| per_s).reduce(f64::max).map(|most| (home, most))
}

/// Why a group whose home is `home` goes to `node`, where thread `tid` is, in words.
pub(crate) fn reason(moves: &PageMoves, tid: u32, node: NodeIndex, home: Home) -> String {
    format!("thread {tid} on node {} accesses it most{home}", moves.snapshot.topology.nodes[node].id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PageRun, SnapshotBuilder, two_nodes};

    const ALL: u64 = 512;

    /// Threads 1 on node 0, 2 and 3 on node 1 of two.
    fn three_threads() -> SnapshotBuilder {
        SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).thread(2, 1, None).thread(3, 1, None)
    }

    fn moved(builder: SnapshotBuilder) -> Vec<(usize, usize)> {
        PageRun::new(&POLICY, builder.build()).decide()
    }

    #[test]
    fn a_group_goes_to_its_top_thread_though_another_node_accesses_it_more() {
        let builder = three_threads().group_used_by(&[0, ALL], &[(1, 4.0), (2, 3.0), (3, 3.0)]);
        assert_eq!(moved(builder), [(0, 0)]);
    }

    #[test]
    fn private_data_goes_to_its_threads_and_then_all_is_quiet() {
        let builder = three_threads().group_used_by(&[ALL, 0], &[(1, 5.0)]).group_used_by(&[ALL, 0], &[(2, 5.0)]);
        let mut run = PageRun::new(&POLICY, builder.group_used_by(&[ALL, 0], &[(3, 5.0)]).build());
        assert_eq!(run.step(), [(1, 1), (2, 1)]);
        assert_eq!(run.accuracy(), 1.0);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn a_group_leaves_the_node_of_a_thread_only_for_one_with_a_lead() {
        let lead = |per_s| moved(three_threads().group_used_by(&[ALL, 0], &[(1, 10.0), (2, per_s)]));
        assert_eq!((lead(10.9), lead(11.1)), (vec![], vec![(0, 1)]));
    }

    #[test]
    fn a_thread_that_is_gone_counts_for_nothing() {
        let builder = three_threads().group_used_by(&[ALL, 0], &[(2, 5.0)]);
        let gone =
            |group: &mut PageGroup| group.users.push((crate::model::ThreadId { tid: 9, start_boottime_ns: 1 }, 50.0));
        assert_eq!(moved(builder.with_group(gone)), [(0, 1)]);
    }

    #[test]
    fn without_users_the_signal_is_missing() {
        let error = PageRun::new(&POLICY, three_threads().group(&[ALL, 0], &[0.0, 9.0]).build()).plan().unwrap_err();
        assert_eq!(error.signal, Signal::GroupUsers);
    }

    #[test]
    fn the_reason_names_the_thread_and_both_nodes() {
        let snapshot = three_threads().group_used_by(&[ALL, 0], &[(2, 5.0)]).build();
        let plan = PageRun::new(&POLICY, snapshot).plan().unwrap();
        assert_eq!(plan.moves[0].reason, "thread 2 on node 1 accesses it most; 100 % of its pages are on node 0");
    }
}
