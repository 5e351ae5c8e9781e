// SPDX-License-Identifier: GPL-2.0-only
//! What holds for the plans of the thread policies after the Thanos thesis and of `autopin`, also when signals are
//! nonsense.

use super::*;
use crate::model::{CpuId, PerNode, ProcessId};
use crate::registry::{Memory, MissingSignal, Policy};
use crate::testing::{lagging_snapshot, machine, two_nodes};
use crate::{autopin, cimar, cra, dyrmma, imar2, lbma, nimar};

const POLICIES: [&Policy; 7] =
    [&autopin::POLICY, &cimar::POLICY, &cra::POLICY, &dyrmma::POLICY, &imar2::POLICY, &lbma::POLICY, &nimar::POLICY];

/// Those that come to rest.
const AT_REST: [&Policy; 3] = [&cimar::POLICY, &dyrmma::POLICY, &nimar::POLICY];

/// Operations, latency, process, CPU and which signal is nonsense, for each thread.
type CounterDraw = (Option<u8>, Option<u8>, u32, u32, u8);

const NONSENSE: [f64; 6] = [f64::NAN, f64::INFINITY, 0.0, -1.0, f64::MIN_POSITIVE, f64::MAX];

/// Snapshots with counters. With `wild` some of them are nonsense.
fn counted(wild: bool) -> impl Strategy<Value = Snapshot> {
    let draw = (proptest::option::of(0u8..9), proptest::option::of(0u8..9), 0u32..3, 0u32..14, 0u8..48);
    (snapshot(), proptest::collection::vec(draw, 14)).prop_map(move |(mut snapshot, draws)| {
        snapshot.threads.iter_mut().zip(draws).for_each(|(thread, draw)| count(thread, draw, wild));
        snapshot
    })
}

fn count(thread: &mut Thread, (operations, latency, process, cpu, wild_draw): CounterDraw, wild: bool) {
    thread.operations_per_s = operations.map(|known| 1e8 * f64::from(known));
    thread.cycles_per_s = operations.map(|_| 1e9);
    thread.latency_ns = latency.map(|known| 100.0 * f64::from(known));
    thread.process = ProcessId(process);
    thread.cpu = CpuId(cpu);
    let nonsense = NONSENSE[usize::from(wild_draw) % NONSENSE.len()];
    match usize::from(wild_draw) / NONSENSE.len() {
        _ if !wild => {}
        0 => (thread.operations_per_s, thread.cycles_per_s) = (Some(nonsense), Some(nonsense)),
        1 => thread.latency_ns = Some(nonsense),
        2 => thread.performance = PerNode::filled(4, Some(nonsense)),
        3 => thread.accesses_per_s = Some(PerNode::filled(4, nonsense)),
        _ => {}
    }
}

fn plan(policy: &Policy, snapshot: &Snapshot, seed: u64) -> Plan {
    decided(policy, snapshot, seed, 5_000).unwrap_or_default()
}

fn check(policy: &Policy, snapshot: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let moves = thread_moves(plan);
    let distinct: BTreeSet<ThreadId> = moves.iter().map(|&(id, ..)| id).collect();
    prop_assert_eq!(distinct.len(), moves.len(), "{}", policy.name);
    let busy: BTreeSet<ThreadId> = busy(snapshot).iter().map(|thread| thread.id).collect();
    prop_assert!(distinct.is_subset(&busy), "{}: an idle thread moves", policy.name);
    for (id, from, to) in moves {
        let thread = snapshot.thread(id).unwrap();
        prop_assert!(may_run(snapshot, thread, to), "{}: thread {id} to {to:?}", policy.name);
        prop_assert!(from == thread.node && !thread.on_cooldown, "{}: thread {id}", policy.name);
    }
    for planned in &plan.moves {
        prop_assert!(planned.gain_ns_per_s.is_none_or(f64::is_finite), "{}: {planned:?}", policy.name);
        prop_assert!(!planned.reason.is_empty() && !planned.reason.contains('\n'), "{}", policy.name);
        match planned.action {
            Action::MoveThread { thread, from, to, cpu } => {
                let known = cpu.is_none_or(|cpu| snapshot.topology.nodes[to].cpus.contains(&cpu));
                let elsewhere = from != to || cpu.is_some_and(|cpu| cpu != snapshot.thread(thread).unwrap().cpu);
                prop_assert!(known && elsewhere, "{}: {planned:?}", policy.name);
            }
            Action::Interchange { first_node, second_node, .. } => prop_assert!(first_node != second_node),
            Action::MovePages { .. } => prop_assert!(false, "{} moves pages", policy.name),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn plans_are_valid_for_their_snapshot(snapshot in counted(false), seed: u64) {
        for policy in POLICIES {
            check(policy, &snapshot, &plan(policy, &snapshot, seed))?;
        }
    }

    #[test]
    fn plans_are_valid_when_signals_are_nonsense(snapshot in counted(true), seed: u64) {
        for policy in POLICIES {
            check(policy, &snapshot, &plan(policy, &snapshot, seed))?;
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_plan(snapshot in counted(false), seed: u64) {
        for policy in POLICIES {
            prop_assert_eq!(decided(policy, &snapshot, seed, 300), decided(policy, &snapshot, seed, 300));
        }
    }

    /// With measured performance and none remembered. What is measured stays as it is when threads move, operations and
    /// latency alike: a predicted latency would change alone.
    #[test]
    fn policies_that_come_to_rest_do(snapshot in counted(false), seed: u64) {
        for policy in AT_REST {
            let mut now = snapshot.clone();
            for thread in &mut now.threads {
                thread.performance = PerNode::filled(4, None);
                thread.latency_ns = thread.latency_ns.or(Some(100.0));
            }
            let rounds = (0..60).take_while(|_| {
                let plan = plan(policy, &now, seed);
                now = now.after_thread_moves(&plan);
                !plan.is_empty()
            });
            prop_assert!(rounds.count() < 60, "{}", policy.name);
        }
    }

    /// Of several decisions, each from what the last one left behind.
    #[test]
    fn imar2_undoes_nothing_it_may_not(snapshots in proptest::collection::vec(counted(true), 2..6), seed: u64) {
        let (mut memory, policy) = (Memory::default(), &imar2::POLICY);
        let (mut time_ns, parameters) = (0, policy.defaults());
        let mut now = snapshots[0].clone();
        for next in &snapshots {
            now.threads.iter_mut().zip(&next.threads).for_each(|(thread, next)| {
                (thread.performance, thread.on_cooldown) = (next.performance.clone(), next.on_cooldown);
                (thread.operations_per_s, thread.latency_ns) = (next.operations_per_s, next.latency_ns);
            });
            time_ns += 10_000_000_000;
            now.time_ns = time_ns;
            let inputs = &mut crate::registry::Inputs { snapshot: &now, parameters: &parameters, memory: &mut memory, seed, steps: 0 };
            let plan = policy.decide(inputs).unwrap_or_default();
            check(policy, &now, &plan)?;
            now = now.after_thread_moves(&plan);
        }
    }
}

#[test]
fn one_node_and_no_threads_give_empty_plans() {
    let one = lagging_snapshot(machine(&[2], &[&[10]]), &[(0, 0), (0, 0), (0, 0)]);
    let none = lagging_snapshot(two_nodes(1), &[]);
    for policy in POLICIES {
        let leaves = |plan: &Plan| thread_moves(plan).iter().any(|(_, from, to)| from != to);
        assert!(!leaves(&plan(policy, &one, 1)), "{}", policy.name);
        assert!(decided(policy, &none, 1, 100).unwrap().is_empty(), "{}", policy.name);
    }
}

#[test]
fn counters_that_are_all_zero_move_nobody_by_performance() {
    let mut snapshot = lagging_snapshot(two_nodes(2), &[(0, 0), (0, 1), (1, 0)]);
    for thread in &mut snapshot.threads {
        thread.accesses_per_s = Some(PerNode::filled(2, 0.0));
        (thread.operations_per_s, thread.latency_ns) = (Some(0.0), Some(0.0));
    }
    for policy in [&cimar::POLICY, &dyrmma::POLICY, &imar2::POLICY, &nimar::POLICY] {
        assert_eq!(decided(policy, &snapshot, 1, 1000), Ok(Plan::default()), "{}", policy.name);
    }
}

#[test]
fn a_signal_that_nobody_has_is_missing() {
    let mut snapshot = lagging_snapshot(two_nodes(2), &[(0, 0), (0, 1)]);
    snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = None);
    for policy in POLICIES.into_iter().filter(|policy| !policy.needs.is_empty()) {
        let error = MissingSignal { policy: policy.name, signal: policy.needs[0] };
        assert_eq!(decided(policy, &snapshot, 1, 1000), Err(error));
    }
}
