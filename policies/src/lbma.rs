// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `lbma`: a lottery of random threads' moves, weighted by nearness to memory.
//!
//! Problem: threads run far from the memory they access, and which move helps is uncertain. Mechanism (Thanos thesis,
//! Alg. 3.2, eq. 3.12): m random threads may go to every CPU of every other node. A free CPU gives q1 + q2 points, an
//! exchange with a resident q2 of both threads where they go ([`crate::score`], distance-scaled q2). Each of these
//! candidates draws a number between 0 and its points; the m highest are carried out. Parameters: [`PARAMETERS`].
//!
//! What the source leaves unclear: Alg. 3.2 line 12 iterates the wrong core and line 15 lists destinations reversed; the
//! thread goes to the resident's CPU and the resident to the thread's. Winners that are in each other's way: the higher
//! draw goes first, a thread moves once. The present place is not compared: the policy never comes to rest.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::board::{Board, lottery, settled};
use crate::model::{Plan, Snapshot};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::score;

/// Thread policy `lbma`.
///
/// Threads whose memory is elsewhere draw lots to change places:
///
/// ```
/// use tandem_policies::{example, lbma};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&lbma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 4 and 1: nodes 1 <-> 0: drew "));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "lbma",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.2, eq. 3.12",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.seed),
    explores: true,
    ..Policy::PLAIN
};

/// Parameters of `lbma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("threads_per_interval", 5.0, "threads", 1.0, 1024.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// The winners of one interval's lottery.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64) -> Result<Plan, MissingSignal> {
    let threads = settled(snapshot, parameters.get("min_cpu_percent"));
    if !threads.is_empty() && threads.iter().all(|thread| thread.accesses_per_s.is_none()) {
        return Err(MissingSignal { policy: "lbma", signal: Signal::ThreadAccesses });
    }
    let most = parameters.get("threads_per_interval") as usize;
    let mut rng = Pcg64::seed_from_u64(seed);
    let worth = |topology: &_, thread: &_, _, node| score::preferred(topology, thread, node);
    let mut board = Board::of_cpus(snapshot, threads, |thread| thread.accesses_per_s.is_some(), worth);
    let mut candidates = Vec::new();
    for thread in board.draw_threads(most, &mut rng) {
        board.candidates(thread, &mut candidates);
    }
    let mut plan = Plan::default();
    for (drawn, candidate) in lottery(candidates, &mut rng) {
        let why = format!("drew {drawn:.1} of {:.1} points", candidate.points);
        plan.moves.extend(board.take(&candidate, &why).into_iter().flat_map(|(moves, _)| moves));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, CpuId, NodeIndex, Thread};
    use crate::testing::{SnapshotBuilder, machine, two_nodes};

    fn run(snapshot: &Snapshot, seed: u64) -> Plan {
        decide(snapshot, &POLICY.defaults(), seed).unwrap()
    }

    #[test]
    fn a_thread_and_the_resident_of_the_cpu_it_wins_change_places() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
        let snapshot = snapshot.build();
        let plan = run(&snapshot, 3);
        let after = snapshot.after_thread_moves(&plan);
        assert_eq!(
            after.threads.iter().map(|thread| (thread.node.0, thread.cpu.0)).collect::<Vec<_>>(),
            [(1, 1), (0, 0)]
        );
        assert_eq!((plan.moves.len(), plan.moves[0].gain_ns_per_s), (1, Some(2.0 * 1e6 * 110.0)));
    }

    /// CPU 1 is on node 0: a CPU number taken for a node would prefer CPU 1, not CPUs 2 and 3.
    #[test]
    fn cpus_score_by_their_node_and_not_by_their_number() {
        let topology = machine(&[2, 2, 2], &[&[10, 30, 60], &[30, 10, 60], &[60, 60, 10]]);
        let snapshot = SnapshotBuilder::new(topology).thread_with_memory_on(1, 2, 1).build();
        let wins = |cpu: u32| {
            let to = |seed: &u64| match run(&snapshot, *seed).moves[0].action {
                Action::MoveThread { cpu: Some(chosen), .. } => chosen == CpuId(cpu),
                _ => false,
            };
            (0..2000).filter(to).count()
        };
        // Points: 2 + 4/3 on CPUs 0 and 1, 2 + 4 on CPUs 2 and 3.
        let (far, near) = (wins(0) + wins(1), wins(2) + wins(3));
        assert_eq!(far + near, 2000);
        assert!(near > 1500 && far > 100, "{near} near, {far} far");
    }

    #[test]
    fn the_own_node_is_no_destination() {
        let snapshot = SnapshotBuilder::new(two_nodes(3)).thread_with_memory_on(1, 0, 0).build();
        for seed in 0..50 {
            let after = snapshot.after_thread_moves(&run(&snapshot, seed));
            assert_eq!(after.threads[0].node, NodeIndex(1), "seed {seed}");
        }
    }

    #[test]
    fn a_thread_without_the_signal_is_left_alone_while_others_have_it() {
        let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).thread(2, 1, None);
        let snapshot = builder.build();
        assert!((0..50).all(|seed| run(&snapshot, seed).is_empty()));
        let missing = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
        let error = decide(&missing, &POLICY.defaults(), 1).unwrap_err();
        assert_eq!(error, MissingSignal { policy: "lbma", signal: Signal::ThreadAccesses });
    }

    #[test]
    fn no_more_candidates_win_than_are_asked_for_and_none_twice() {
        let add = |all: SnapshotBuilder, k: u32| all.thread_with_memory_on(k, k as usize % 2, k as usize % 2);
        let snapshot = (0..12).fold(SnapshotBuilder::new(two_nodes(6)), add).build();
        let parameters = POLICY.parameters(&[("threads_per_interval".to_owned(), 3.0)].into()).unwrap();
        for seed in 0..50 {
            let plan = decide(&snapshot, &parameters, seed).unwrap();
            let after = snapshot.after_thread_moves(&plan);
            let moved = |(a, b): (&Thread, &Thread)| a.node != b.node;
            let count = snapshot.threads.iter().zip(&after.threads).filter(|&pair| moved(pair)).count();
            // All CPUs are taken: exchanges, of two threads each.
            assert!(plan.moves.len() <= 3 && count == 2 * plan.moves.len(), "seed {seed}");
        }
    }
}
