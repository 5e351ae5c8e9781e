// SPDX-License-Identifier: GPL-2.0-only
//! Wrong input, for every policy there is: signals that are no numbers, infinite, negative or all zero; impossible
//! capacities; threads, page groups and CPUs that vanish between two decisions; one node, nothing at all, more threads than
//! capacity. Plans stay valid for their snapshot, and what has converged is left alone.

use super::*;
use crate::model::{Action, MemoryLines, NodeIndex, PageGroup, PerNode, Transfers};
use crate::registry::{Inputs, Memory, Policy, policies};
use crate::testing::{decided_with, machine, throttled, two_nodes};

const NONSENSE: [f64; 7] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MIN_POSITIVE, f64::MAX];

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
pub fn with_all_signals(mut snapshot: Snapshot) -> Snapshot {
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
    if signals & (1 << 14) != 0 {
        break_capacities(&mut broken, signals);
    }
    if signals & (1 << 15) != 0 {
        broken.interval_ns = 0;
    }
    if signals & 1 != 0 {
        broken.nodes[NodeIndex(0)].served_latency_ns = Some(value);
        broken.nodes[NodeIndex(0)].latency_ns_from = PerNode::filled(broken.topology.len(), Some(value));
        broken.page_move_ns = Some(value);
    }
    broken
}

/// Capacities that no CPU has, past the check of a topology.
fn break_capacities(snapshot: &mut Snapshot, draw: u16) {
    for (at, node) in snapshot.topology.nodes.values_mut().enumerate() {
        let impossible = [0, u32::MAX, 1, 512][(usize::from(draw) + at) % 4];
        node.slow_cpus = node.cpus.iter().map(|&cpu| (cpu, impossible)).collect();
    }
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
        thread.memory_lines_per_s = MemoryLines { all: Some(value), remote: Some(value) };
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

pub fn check(policy: &Policy, snapshot: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
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
        prop_assert!(snapshot.may_use(id.process, to), "{name}: {planned:?}");
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

/// A thread that was moved is as fast as the CPUs are where it is now and as its memory is far from there: what is
/// predicted of places then agrees from wherever it is predicted.
fn perform_elsewhere(snapshot: &Snapshot, thread: &mut Thread) {
    let Some(before) = snapshot.thread(thread.id) else { return };
    let Some(accesses) = &before.accesses_per_s else { return };
    let stall = |node| accesses.iter().map(|(memory, rate)| rate * snapshot.topology.latency_ns(node, memory)).sum();
    let (then, now): (f64, f64) = (stall(before.node), stall(thread.node));
    if then <= 0.0 {
        return;
    }
    let capacity = |node| snapshot.topology.nodes[node].mean_cpu_capacity();
    let (farther, faster) = (now / then, capacity(thread.node) / capacity(before.node));
    thread.latency_ns = thread.latency_ns.map(|latency_ns| latency_ns * farther);
    thread.operations_per_s = thread.operations_per_s.map(|operations| operations * faster / farther);
    for rate in thread.accesses_per_s.iter_mut().flat_map(|accesses| accesses.values_mut()) {
        *rate *= faster / farther;
    }
}

/// What `snapshot` is a second later, when `plan` was carried out.
pub fn carried_out(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let mut after = snapshot.after_thread_moves(plan);
    after.time_ns += 1_000_000_000;
    after.threads.iter_mut().for_each(|thread| perform_elsewhere(snapshot, thread));
    let fastest_ns = snapshot.groups.iter().filter_map(|group| group.latency_ns).min_by(f64::total_cmp);
    for planned in &plan.moves {
        let Action::MovePages { group: id, to, .. } = planned.action else { continue };
        for group in after.groups.iter_mut().filter(|group| group.id == id) {
            let pages: u64 = group.resident_pages.values().sum();
            let nodes = group.resident_pages.len();
            group.resident_pages = crate::model::PerNode::from_fn(nodes, |node| if node == to { pages } else { 0 });
            // What moved is as fast as anything is.
            group.latency_ns = fastest_ns;
        }
    }
    after
}

/// Policies that decide by what their moves change, which does not change here: they judge themselves, take back what did not
/// help and go on.
const NEVER_AT_REST_HERE: [&str; 2] = ["sam", "auto"];

fn comes_to_rest(policy: &Policy) -> bool {
    !policy.explores && !NEVER_AT_REST_HERE.contains(&policy.name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn there_is_no_plan_for_what_has_converged(snapshot in snapshot(), slow in proptest::option::of(0usize..4)) {
        let whole = with_all_signals(match slow {
            Some(node) => Snapshot { topology: throttled(snapshot.topology.clone(), node, 400), ..snapshot },
            None => snapshot,
        });
        for policy in policies().iter().copied().filter(|policy| comes_to_rest(policy)) {
            let (mut memory, mut now, mut rests) = (Memory::default(), whole.clone(), 0);
            // What is remembered would change with every move.
            now.threads.iter_mut().for_each(|thread| thread.performance = crate::model::PerNode::filled(4, None));
            for _ in 0..80 {
                let plan = decided_with(policy, &now, &mut memory).unwrap_or_default();
                check(policy, &now, &plan)?;
                rests = if plan.is_empty() { rests + 1 } else { 0 };
                now = carried_out(&now, &plan);
            }
            prop_assert!(rests >= 10, "{} {} still had a plan {rests} decisions ago", policy.kind, policy.name);
        }
    }
}

/// Threads that lag, share and are far from their memory, and groups that are far from their users.
pub fn anything_but_well_placed(topology: crate::model::Topology, threads: u32) -> Snapshot {
    let nodes = topology.len();
    let add = |all: SnapshotBuilder, k: u32| all.thread_with_memory_on(k, 0, k as usize % nodes);
    let builder = (0..threads).fold(SnapshotBuilder::new(topology), add);
    let mut pages = vec![0; nodes];
    pages[0] = 512;
    let group = |all: SnapshotBuilder, k: u32| all.group_used_by(&pages, &[(k, 1e6)]);
    with_all_signals((0..threads).fold(builder, group).build())
}

#[test]
fn on_one_node_nothing_goes_anywhere() {
    let snapshot = anything_but_well_placed(machine(&[2], &[&[10]]), 5);
    for &policy in policies() {
        let mut memory = Memory::default();
        for _ in 0..3 {
            let plan = decided_with(policy, &snapshot, &mut memory).unwrap_or_default();
            check(policy, &snapshot, &plan).unwrap();
            let leaves = |planned: &crate::model::Move| match planned.action {
                Action::MoveThread { from, to, .. } => from != to,
                Action::Interchange { .. } | Action::MovePages { .. } => true,
            };
            assert!(!plan.moves.iter().any(leaves), "{} {}: {plan:?}", policy.kind, policy.name);
        }
    }
}

#[test]
fn nothing_seen_is_an_empty_plan_or_a_missing_signal() {
    let nothing = SnapshotBuilder::new(two_nodes(2)).build();
    for &policy in policies() {
        let plan = decided_with(policy, &nothing, &mut Memory::default());
        assert!(plan.is_err() || plan.is_ok_and(|plan| plan.is_empty()), "{} {}", policy.kind, policy.name);
    }
}

#[test]
fn more_threads_than_capacity_are_spread_and_then_left_alone() {
    for &policy in policies() {
        let mut now = anything_but_well_placed(throttled(two_nodes(2), 1, 512), 12);
        let mut memory = Memory::default();
        let last = (0..20).map(|_| {
            let plan = decided_with(policy, &now, &mut memory).unwrap_or_default();
            check(policy, &now, &plan).unwrap();
            now = carried_out(&now, &plan);
            plan
        });
        let rests = last.last().is_some_and(|plan| plan.is_empty());
        assert!(rests || !comes_to_rest(policy), "{} {}", policy.kind, policy.name);
    }
}

#[test]
fn signals_that_are_all_zero_move_nothing_that_is_spread_already() {
    let builder =
        (0..4).fold(SnapshotBuilder::new(two_nodes(2)), |all, k| all.thread(k, k as usize / 2, Some(&[0.0, 0.0])));
    let groups = (0..4).fold(builder, |all, k| all.group_used_by(&[256 * (k % 2), 256 * ((k + 1) % 2)], &[]));
    let mut zero = with_all_signals(groups.build());
    zero.threads.iter_mut().for_each(|thread| break_thread(thread, 0.0, 0b1111_1110));
    zero.groups.iter_mut().for_each(|group| break_group(group, 0.0, 0b1_1110_0000_0000));
    // Those that look at no signal.
    let blind = ["compact", "contiguous", "direct", "scatter", "interleave", "dataset"];
    for &policy in policies().iter().filter(|policy| !policy.explores && !blind.contains(&policy.name)) {
        let mut memory = Memory::default();
        for _ in 0..3 {
            let plan = decided_with(policy, &zero, &mut memory).unwrap_or_default();
            assert!(plan.is_empty(), "{} {}: {plan:?}", policy.kind, policy.name);
        }
    }
}

#[test]
fn a_plan_for_threads_and_groups_that_are_gone_by_then_changes_nobody_else() {
    let snapshot = anything_but_well_placed(two_nodes(2), 4);
    let (first, was_on) = (snapshot.threads[0].id, snapshot.threads[0].node);
    let mut moving = 0;
    for &policy in policies() {
        let plan = decided_with(policy, &snapshot, &mut Memory::default()).unwrap_or_default();
        let goes_to = plan.moves.iter().find_map(|planned| match planned.action {
            Action::MoveThread { thread, to, .. } if thread == first => Some(to),
            // There are two nodes.
            Action::Interchange { first: one, second: other, .. } if one == first || other == first => {
                Some(NodeIndex(1 - was_on.0))
            }
            _ => None,
        });
        moving += usize::from(goes_to.is_some_and(|to| to != was_on));
        let mut fewer = snapshot.clone();
        fewer.threads.truncate(1);
        fewer.groups.clear();
        let after = fewer.after_thread_moves(&plan);
        let expected = goes_to.unwrap_or(was_on);
        assert_eq!((after.threads.len(), after.threads[0].node), (1, expected), "{} {}", policy.kind, policy.name);
    }
    assert!(moving > 0, "some policy moves the first thread");
}
