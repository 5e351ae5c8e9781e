// SPDX-License-Identifier: GPL-2.0-only
//! Wrong input, for every policy there is: signals that are no numbers, infinite, negative or all zero; threads, page
//! groups and CPUs that vanish between two decisions; more threads than CPUs. Plans stay valid for their snapshot.

use super::*;
use crate::model::{PageGroup, Transfers};
use crate::registry::{Inputs, Memory, Policy, policies};

const NONSENSE: [f64; 6] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX];

/// What goes wrong before a decision: the value that signals take, for which of them (bits), which threads and groups are
/// still there (bits), whether a node loses its CPUs.
type Mishap = (f64, u16, u16, u16, Option<usize>);

fn mishap() -> impl Strategy<Value = Mishap> {
    let left = || prop_oneof![Just(u16::MAX), any::<u16>(), Just(0)];
    (
        proptest::sample::select(NONSENSE.to_vec()),
        any::<u16>(),
        left(),
        left(),
        proptest::option::weighted(0.2, 0usize..4),
    )
}

/// Every signal that there is, from numbers that the snapshot has.
fn with_all_signals(mut snapshot: Snapshot) -> Snapshot {
    let ids: Vec<ThreadId> = snapshot.threads.iter().map(|thread| thread.id).collect();
    for (at, thread) in snapshot.threads.iter_mut().enumerate() {
        let some = 1e6 * (1 + at % 5) as f64;
        (thread.latency_ns, thread.operations_per_s, thread.cycles_per_s) =
            (Some(some / 1e4), Some(some * 1e3), Some(1e9));
        thread.transfers_per_s = Some(Transfers { within_node: some / 10.0, across_nodes: some });
        let partners = ids.iter().copied().enumerate().filter(|&(other, _)| other != at && other % 3 == at % 3);
        thread.sharing = partners.map(|(_, id)| (id, some)).collect();
    }
    for (at, group) in snapshot.groups.iter_mut().enumerate() {
        group.users = ids.iter().skip(at % 4).step_by(3).map(|&id| (id, 10.0 * (1 + at) as f64)).collect();
        group.latency_ns = Some(100.0 * (1 + at % 4) as f64);
    }
    snapshot
}

/// The snapshot a second later, after what went wrong.
fn broken(snapshot: &Snapshot, seconds: u64, (value, signals, threads, groups, node): Mishap) -> Snapshot {
    let mut broken = snapshot.clone();
    broken.time_ns += seconds * 1_000_000_000;
    broken.threads = kept(broken.threads, threads);
    broken.groups = kept(broken.groups, groups);
    if let Some(node) = node {
        broken.topology.nodes[NodeIndex(node)].cpus.clear();
        broken.topology.nodes[NodeIndex(node)].llcs.clear();
    }
    broken.threads.iter_mut().for_each(|thread| break_thread(thread, value, signals));
    broken.groups.iter_mut().for_each(|group| break_group(group, value, signals));
    if signals & 1 != 0 {
        broken.nodes[NodeIndex(0)].served_latency_ns = Some(value);
    }
    broken
}

fn kept<T>(all: Vec<T>, bits: u16) -> Vec<T> {
    all.into_iter().enumerate().filter(|(at, _)| bits & (1 << (at % 16)) != 0).map(|(_, one)| one).collect()
}

fn break_thread(thread: &mut Thread, value: f64, signals: u16) {
    let is_hit = |bit: u32| signals & (1 << bit) != 0;
    if let (true, Some(row)) = (is_hit(1), &mut thread.accesses_per_s) {
        row.values_mut().for_each(|rate| *rate = value);
    }
    for (bit, signal) in
        [&mut thread.latency_ns, &mut thread.operations_per_s, &mut thread.cycles_per_s].into_iter().enumerate()
    {
        if is_hit(2 + bit as u32) {
            *signal = Some(value);
        }
    }
    if is_hit(5) {
        thread.transfers_per_s = Some(Transfers { within_node: value, across_nodes: value });
    }
    if is_hit(6) {
        thread.performance.values_mut().for_each(|performance| *performance = Some(value));
    }
    if is_hit(7) {
        thread.sharing.iter_mut().for_each(|cell| cell.1 = value);
    }
    if is_hit(8) {
        thread.run_ns.values_mut().for_each(|ns| *ns = 0);
    }
}

fn break_group(group: &mut PageGroup, value: f64, signals: u16) {
    let is_hit = |bit: u32| signals & (1 << bit) != 0;
    if is_hit(9) {
        group.accesses_per_s.values_mut().for_each(|rate| *rate = value);
    }
    if is_hit(10) {
        group.users.iter_mut().for_each(|user| user.1 = value);
    }
    if is_hit(11) {
        group.samples = value;
    }
    if is_hit(12) {
        group.latency_ns = Some(value);
    }
    if is_hit(13) {
        group.resident_pages.values_mut().for_each(|pages| *pages = 0);
    }
}

fn check(policy: &Policy, snapshot: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let name = format!("{} {}", policy.kind, policy.name);
    let moves = thread_moves(plan);
    let distinct: BTreeSet<ThreadId> = moves.iter().map(|&(id, ..)| id).collect();
    prop_assert_eq!(distinct.len(), moves.len(), "{}: a thread moves twice", name);
    for (id, from, to) in moves {
        let Some(thread) = snapshot.thread(id) else {
            return Err(TestCaseError::fail(format!("{name}: {id} is gone")));
        };
        prop_assert!(may_run(snapshot, thread, to), "{name}: thread {id} to {to:?}");
        prop_assert!(from == thread.node && !thread.on_cooldown, "{name}: thread {id}");
    }
    let mut arriving = vec![0; snapshot.topology.len()];
    let mut seen = BTreeSet::new();
    for planned in &plan.moves {
        prop_assert!(planned.gain_ns_per_s.is_none_or(f64::is_finite), "{name}: {planned:?}");
        prop_assert!(!planned.reason.is_empty() && !planned.reason.contains('\n'), "{name}: {planned:?}");
        let Action::MovePages { group: id, to, .. } = planned.action else { continue };
        let Some(group) = snapshot.groups.iter().find(|known| known.id == id) else {
            return Err(TestCaseError::fail(format!("{name}: {id:?} is gone")));
        };
        prop_assert!(seen.insert(id) && group.unmovable.is_none(), "{name}: {planned:?}");
        arriving[to.0] += group.resident_pages.values().sum::<u64>() - group.resident_pages[to];
    }
    for (node, of) in snapshot.topology.nodes.iter() {
        let fits = of.memory_pages > 0 && arriving[node.0] + of.memory_pages / 50 <= of.free_pages;
        prop_assert!(arriving[node.0] == 0 || fits, "{name}: no room on {node:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn plans_are_valid_whatever_goes_wrong(
        snapshot in snapshot(), mishaps in proptest::collection::vec(mishap(), 1..5), seed: u64
    ) {
        let whole = with_all_signals(snapshot);
        for &policy in policies() {
            let (mut memory, parameters) = (Memory::default(), policy.defaults());
            for (second, &mishap) in mishaps.iter().enumerate() {
                let now = broken(&whole, second as u64, mishap);
                let inputs =
                    &mut Inputs { snapshot: &now, parameters: &parameters, memory: &mut memory, seed, steps: 2000 };
                // A signal may be missing: threads and groups vanish with theirs.
                let plan = policy.decide(inputs).unwrap_or_default();
                check(policy, &now, &plan)?;
            }
        }
    }
}
