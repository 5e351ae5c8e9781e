// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `nimar`: lagging threads to better nodes, as far as that scores more than now.
//!
//! Problem: some threads of a process fall behind because they run far from their memory; which CPU of a node they
//! have is the scheduler's business. Mechanism (Thanos thesis, Alg. 3.5): `cimar` ([`crate::cimar`]) with nodes in place
//! of CPUs. A node is free while it has room ([`crate::capacity`]); a full one
//! offers an exchange with each resident. q2 is scaled by distance (eq. 3.17). Parameters: [`PARAMETERS`].
//!
//! What the source leaves unclear is as for `cimar`. With more demand than capacity a node's room is its share of the demand
//! (ours), or every node would be full.

use crate::board::{Board, judged};
use crate::cimar;
use crate::model::{NodeIndex, Plan, Snapshot, Thread, Topology};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::score;

/// Thread policy `nimar`.
///
/// A thread that gets much less done than others lags, and changes places:
///
/// ```
/// use tandem_policies::{example, nimar};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads[0].operations_per_s = Some(1e8);
/// snapshot.threads[0].latency_ns = Some(400.0);
/// let moves = example::decided(&nimar::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: 12.0 points there"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "nimar",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses, Signal::ThreadPerformance],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.5, eq. 3.13 to 3.17",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
};

/// Parameters of `nimar`.
pub const PARAMETERS: &[Parameter] = cimar::PARAMETERS;

/// Moves and exchanges of lagging threads that score more than the present state; empty if none does.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`, or none a performance.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    let Some((threads, standing)) = judged("nimar", snapshot, parameters.get("min_cpu_percent"))? else {
        return Ok(Plan::default());
    };
    let board = Board::of_nodes(snapshot, threads, |thread| thread.accesses_per_s.is_some(), worth);
    Ok(cimar::best(board, &standing, parameters))
}

/// Points of a thread on `node` but for q1 and q4.
fn worth(topology: &Topology, thread: &Thread, present: NodeIndex, node: NodeIndex) -> f64 {
    score::preferred(topology, thread, node) + score::remembered_from(thread, present, node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, Move};
    use crate::testing::{SnapshotBuilder, lagging_snapshot as snapshot, machine, ring_of_four, two_nodes};

    fn run(snapshot: &Snapshot) -> Plan {
        decide(snapshot, &POLICY.defaults()).unwrap()
    }

    fn nodes(snapshot: &Snapshot) -> Vec<usize> {
        snapshot.threads.iter().map(|thread| thread.node.0).collect()
    }

    #[test]
    fn one_pair_with_its_memory_exchanged_on_full_nodes_is_one_interchange_and_then_silence() {
        let before = snapshot(two_nodes(4), &[(0, 0), (0, 0), (0, 0), (0, 1), (1, 1), (1, 1), (1, 1), (1, 0)]);
        let plan = run(&before);
        assert_eq!(plan.moves.len(), 1);
        let (first, second) = (before.threads[3].id, before.threads[7].id);
        let action = Action::Interchange { first, second, first_node: NodeIndex(0), second_node: NodeIndex(1) };
        assert_eq!(plan.moves[0].action, action);
        assert_eq!(plan.moves[0].gain_ns_per_s, Some(2.0 * 1e6 * 110.0));
        let words = "15.0 points there, P_rel 0.55 here; thread 3 is on node 0, 100 % of its accesses go to node 1; \
                     thread 7 is on node 1, 100 % of its accesses go to node 0";
        assert_eq!(plan.moves[0].reason, words);
        assert!(
            run(&snapshot(two_nodes(4), &[(0, 0), (0, 0), (0, 0), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0)])).is_empty()
        );
    }

    #[test]
    fn a_lagging_thread_goes_to_its_memory_or_the_free_node_nearest_to_it() {
        let destination = |placed: &[(usize, usize)]| match run(&snapshot(ring_of_four(3), placed)).moves[..] {
            [Move { action: Action::MoveThread { to, cpu: None, .. }, .. }] => to.0,
            ref other => panic!("{other:?}"),
        };
        assert_eq!(destination(&[(0, 2), (0, 0), (0, 0), (2, 2), (2, 2)]), 2);
        // A resident of the full node 2 would lose as much by an exchange as is won.
        assert_eq!(destination(&[(0, 2), (0, 0), (0, 0), (2, 2), (2, 2), (2, 2)]), 1);
    }

    /// Node 0 by memory and node 1 by remembered performance, with the distances so near that each looks better from the
    /// other one: 4 - 4*10/16 = 1.5 points of q2, +2 or -1 of q3.
    #[test]
    fn a_thread_does_not_go_back_and_forth_between_memory_and_remembered_performance() {
        let near = || machine(&[1, 1], &[&[10, 16], &[16, 10]]);
        let torn = |node: usize| {
            let performance = |thread: &mut Thread| thread.performance = vec![Some(1.0), Some(1.2)].into();
            SnapshotBuilder::new(near()).thread_with_memory_on(1, node, 0).with_thread(performance).build()
        };
        let all = POLICY.parameters(&[("lagging_below".to_owned(), 10.0)].into()).unwrap();
        for node in 0..2 {
            assert!(decide(&torn(node), &all).unwrap().is_empty(), "node {node}");
        }
    }

    #[test]
    fn no_node_gets_more_threads_than_it_has_cpus() {
        let placed: Vec<(usize, usize)> = (0..12).map(|k| if k < 4 { (0, 1) } else { (k / 4, k / 4) }).collect();
        let mut now = snapshot(ring_of_four(5), &placed);
        for _ in 0..6 {
            now = now.after_thread_moves(&run(&now));
            let most = (0..4).map(|node| nodes(&now).iter().filter(|&&on| on == node).count()).max();
            assert!(most <= Some(5), "{:?}", nodes(&now));
        }
    }

    #[test]
    fn threads_that_are_alone_in_their_process_are_candidates_only_above_the_mean() {
        let alone = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1);
        let alone = alone.with_thread(|thread| thread.performance[NodeIndex(0)] = Some(1.0)).build();
        assert!(run(&alone).is_empty());
        let all = POLICY.parameters(&[("lagging_below".to_owned(), 10.0)].into()).unwrap();
        assert_eq!(nodes(&alone.after_thread_moves(&decide(&alone, &all).unwrap())), [1]);
    }
}
