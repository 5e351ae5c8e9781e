// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `cra`: random placement on CPUs, a control.
//!
//! Problem: what a policy brings must be told from what moving threads at all does. Mechanism (Thanos thesis, Alg. 3.1):
//! in each interval m random threads go to a random other CPU each, in exchange with a random resident if there is one.
//! It looks at no signal. Parameters: [`PARAMETERS`].
//!
//! What the source leaves unclear: T_CRA is not stated; a decision of ours is an interval. A CPU hosts somebody if a busy
//! thread ran on it last. A resident that may not move is no resident to exchange with; if there is no
//! other, the thread stays.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::anneal::below;
use crate::board::{Board, Candidate, settled};
use crate::model::{Plan, Snapshot};
use crate::registry::{Inputs, Kind, Parameter, Parameters, Policy};

/// Thread policy `cra`.
///
/// A control: every thread gets a CPU that is drawn, on whatever node:
///
/// ```
/// use tandem_policies::{cra, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&cra::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 4: node 1 -> 1: drawn at random"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "cra",
    kind: Kind::Thread,
    needs: &[],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.1",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters, inputs.seed)),
    explores: true,
    ..Policy::PLAIN
};

/// Parameters of `cra`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("threads_per_interval", 5.0, "threads", 1.0, 1024.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Random moves and exchanges; empty only if nobody can go anywhere.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64) -> Plan {
    let mut rng = Pcg64::seed_from_u64(seed);
    let threads = settled(snapshot, parameters.get("min_cpu_percent"));
    let mut board = Board::of_cpus(snapshot, threads, |_| true, |_, _, _, _| 0.0);
    let mut plan = Plan::default();
    for thread in board.draw_threads(parameters.get("threads_per_interval") as usize, &mut rng) {
        let places = board.other_places(thread);
        if places.is_empty() {
            continue;
        }
        let to = places[below(&mut rng, places.len())];
        let partners = board.partners(thread, to);
        if !board.is_empty(to) && partners.is_empty() {
            continue;
        }
        let partner = (!partners.is_empty()).then(|| partners[below(&mut rng, partners.len())]);
        let candidate = Candidate { thread, to, partner, points: 0.0 };
        plan.moves.extend(board.take(&candidate, "drawn at random").into_iter().flat_map(|(moves, _)| moves));
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cost::threads_stall_ns_per_s;
    use crate::model::Action;
    use crate::testing::{SnapshotBuilder, ring_of_four, two_nodes};

    fn run(snapshot: &Snapshot, seed: u64) -> Plan {
        decide(snapshot, &POLICY.defaults(), seed)
    }

    fn local(threads: usize, cpus: u32) -> Snapshot {
        let add = |all: SnapshotBuilder, k: usize| all.thread_with_memory_on(k as u32, k % 4, k % 4);
        (0..threads).fold(SnapshotBuilder::new(ring_of_four(cpus)), add).build()
    }

    #[test]
    fn on_a_full_machine_threads_only_change_places() {
        let snapshot = local(8, 2);
        for seed in 0..50 {
            let plan = run(&snapshot, seed);
            let after = snapshot.after_thread_moves(&plan);
            let cpus: BTreeSet<_> = after.threads.iter().map(|thread| thread.cpu).collect();
            assert!(!plan.is_empty() && cpus.len() == 8, "seed {seed}");
        }
    }

    #[test]
    fn a_well_placed_machine_gets_worse() {
        let snapshot = local(16, 8);
        let worse = |seed| threads_stall_ns_per_s(&snapshot.after_thread_moves(&run(&snapshot, seed)));
        let mean = (0..50).map(worse).sum::<f64>() / 50.0;
        assert!(mean > 1.1 * threads_stall_ns_per_s(&snapshot), "{mean}");
    }

    #[test]
    fn every_other_cpu_is_drawn_and_its_own_is_not() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build();
        let drawn = |seed| match run(&snapshot, seed).moves[0].action {
            Action::MoveThread { from, to, cpu: Some(cpu), .. } => (from.0, to.0, cpu.0),
            ref other => panic!("{other:?}"),
        };
        assert_eq!((0..50).map(drawn).collect::<BTreeSet<_>>(), BTreeSet::from([(0, 0, 1), (0, 1, 2), (0, 1, 3)]));
    }

    #[test]
    fn two_threads_of_one_node_change_cpus() {
        let closed = |thread: &mut crate::model::Thread| thread.allowed = vec![true, false].into();
        let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(closed);
        let snapshot = builder.thread(2, 0, None).with_thread(closed).build();
        let plan = run(&snapshot, 1);
        let after = snapshot.after_thread_moves(&plan);
        assert_eq!((after.threads[0].cpu, after.threads[1].cpu), (snapshot.threads[1].cpu, snapshot.threads[0].cpu));
        assert!(plan.moves.iter().all(|planned| matches!(planned.action, Action::MoveThread { .. })));
    }

    #[test]
    fn at_most_as_many_threads_are_drawn_as_are_asked_for() {
        let snapshot = local(4, 8);
        let values = [("threads_per_interval".to_owned(), 2.0)].into();
        let parameters = POLICY.parameters(&values).unwrap();
        assert!((0..50).all(|seed| decide(&snapshot, &parameters, seed).moves.len() <= 2));
    }

    #[test]
    fn a_resident_on_cooldown_is_not_exchanged() {
        let stay = |thread: &mut crate::model::Thread| thread.on_cooldown = true;
        let builder = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None);
        let alone = builder.thread(2, 1, None).with_thread(stay).build();
        // With more threads than CPUs its CPU has a slot left, but it is taken all the same.
        let builder = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).thread(2, 0, None);
        let crowded = builder.thread(3, 1, None).with_thread(stay).build();
        for seed in 0..20 {
            assert!(run(&alone, seed).is_empty() && run(&crowded, seed).is_empty(), "seed {seed}");
        }
    }
}
