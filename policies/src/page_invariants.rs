// SPDX-License-Identifier: GPL-2.0-only
//! What holds for the plans of every page policy, on snapshots drawn at random.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::invariants::snapshot;
use crate::model::{Action, NodeIndex, PerNode, Plan, Snapshot};
use crate::registry::{Kind, Policy, policies};
use crate::testing::{PageRun, SnapshotBuilder, machine};

/// By group: who uses it (bits by position of the thread), latency.
type Decoration = (u16, Option<u16>);

/// A snapshot whose groups know users and latencies, and whose threads and nodes know latencies.
fn decorated() -> impl Strategy<Value = Snapshot> {
    let decoration = (0u16..1 << 14, proptest::option::weighted(0.8, 1u16..1000));
    (snapshot(), proptest::collection::vec(decoration, 12)).prop_map(|(mut snapshot, decorations)| {
        let threads: Vec<_> = snapshot.threads.iter().map(|thread| thread.id).collect();
        for (group, (users, latency)) in snapshot.groups.iter_mut().zip(decorations) {
            decorate(group, &threads, (users, latency));
        }
        for (at, thread) in snapshot.threads.iter_mut().enumerate() {
            thread.latency_ns = (at % 3 > 0).then_some(100.0 + at as f64);
        }
        snapshot
    })
}

fn decorate(group: &mut crate::model::PageGroup, threads: &[crate::model::ThreadId], (users, latency): Decoration) {
    let uses = |at: &usize| users & (1 << at) != 0;
    let per_s = |at: usize| f64::from(users) / (1.0 + at as f64);
    group.users = (0..threads.len()).filter(uses).map(|at| (threads[at], per_s(at))).collect();
    group.latency_ns = latency.map(f64::from);
}

fn page_policies() -> impl Iterator<Item = &'static Policy> {
    policies().iter().copied().filter(|policy| policy.kind == Kind::Page)
}

/// A run with a policy that does not wait for threads.
fn run(policy: &'static Policy, snapshot: &Snapshot) -> PageRun {
    let run = PageRun::new(policy, snapshot.clone());
    if policy.parameters.iter().any(|parameter| parameter.name == "wait_decisions") {
        run.with("wait_decisions", 0.0)
    } else {
        run
    }
}

/// Two decisions a second apart, in between some groups were touched; the plans, empty without a signal.
fn two_plans(policy: &'static Policy, snapshot: &Snapshot) -> [Plan; 2] {
    let mut run = run(policy, snapshot);
    let first = run.plan().unwrap_or_default();
    touch(&mut run);
    [first, run.plan().unwrap_or_default()]
}

fn touch(run: &mut PageRun) {
    run.pass_ns(1_000_000_000);
    run.snapshot.groups.iter_mut().step_by(2).for_each(|group| group.samples += 2.0);
}

fn check(snapshot: &Snapshot, policy: &Policy, plan: &Plan) {
    let mut arriving = vec![0; snapshot.topology.len()];
    let mut seen = BTreeSet::new();
    for planned in &plan.moves {
        let Action::MovePages { group, bytes, to } = planned.action else { panic!("{}: {planned:?}", policy.name) };
        assert!(seen.insert(group), "{}: {group:?} twice", policy.name);
        let group = snapshot.groups.iter().find(|known| known.id == group).unwrap();
        assert!(group.unmovable.is_none() && bytes == group.bytes, "{}: {planned:?}", policy.name);
        assert!(snapshot.may_use(group.id.process, to), "{}: {planned:?}", policy.name);
        assert!(
            group.resident_pages.iter().any(|(node, &pages)| node != to && pages > 0),
            "{}: for nothing",
            policy.name
        );
        assert!(!planned.reason.is_empty() && !planned.reason.contains('\n'), "{}", policy.name);
        arriving[to.0] += group.resident_pages.values().sum::<u64>() - group.resident_pages[to];
    }
    for (node, of) in snapshot.topology.nodes.iter() {
        let fits = arriving[node.0] + of.memory_pages / 50 <= of.free_pages && of.memory_pages > 0;
        assert!(fits || arriving[node.0] == 0, "{}: no room on {node:?}", policy.name);
    }
}

proptest! {
    #[test]
    fn page_plans_are_valid(snapshot in decorated()) {
        for policy in page_policies() {
            two_plans(policy, &snapshot).iter().for_each(|plan| check(&snapshot, policy, plan));
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_page_plans(snapshot in decorated()) {
        for policy in page_policies() {
            prop_assert_eq!(two_plans(policy, &snapshot), two_plans(policy, &snapshot));
        }
    }

    /// Nothing but the pages changes, so that after a while nothing is left to do; `rmma` never rests, and what `lmma`
    /// moves does not get faster here.
    #[test]
    fn page_policies_come_to_rest(snapshot in decorated()) {
        for policy in page_policies().filter(|policy| !["rmma", "lmma"].contains(&policy.name)) {
            let mut run = run(policy, &snapshot);
            let known = run.plan().is_ok();
            touch(&mut run);
            if !known || run.plan().is_err() {
                continue;
            }
            let rests = (0..40).any(|_| {
                run.pass_ns(1_000_000_000);
                run.step().is_empty() && run.step().is_empty()
            });
            prop_assert!(rests, "{} does not come to rest", policy.name);
        }
    }

    #[test]
    fn no_number_makes_a_page_policy_panic(snapshot in decorated(), bad in proptest::sample::select(
        vec![f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MAX]), at in 0usize..12
    ) {
        for policy in page_policies() {
            let mut broken = snapshot.clone();
            if let Some(group) = broken.groups.get_mut(at) {
                let nodes = group.accesses_per_s.len();
                group.accesses_per_s = PerNode::from_fn(nodes, |node| if node.0 == at % 4 { bad } else { 1.0 });
                group.latency_ns = Some(bad);
                group.users.iter_mut().for_each(|user| user.1 = bad);
            }
            broken.threads.iter_mut().for_each(|thread| thread.latency_ns = Some(bad));
            broken.nodes[NodeIndex(0)].served_latency_ns = Some(bad);
            let plans = two_plans(policy, &broken);
            plans.iter().for_each(|plan| check(&broken, policy, plan));
            broken.groups.iter_mut().for_each(|group| group.samples = bad);
            let plans = two_plans(policy, &broken);
            plans.iter().for_each(|plan| check(&broken, policy, plan));
            let gains = plans.iter().flat_map(|plan| &plan.moves).filter_map(|planned| planned.gain_ns_per_s);
            prop_assert!(gains.into_iter().all(f64::is_finite));
        }
    }
}

#[test]
fn one_node_no_group_no_thread_and_no_memory_leave_nothing_to_do() {
    let one = || SnapshotBuilder::new(machine(&[2], &[&[10]]));
    let mut without_memory = one().thread(1, 0, None).group_used_by(&[5], &[(1, 9.0)]).build();
    without_memory.topology.nodes[NodeIndex(0)].memory_pages = 0;
    let used = one().thread(1, 0, None).group_used_by(&[512], &[(1, 9.0)]);
    let snapshots = [one().build(), used.with_group(|group| group.latency_ns = Some(9.0)).build(), without_memory];
    for policy in page_policies() {
        for snapshot in &snapshots {
            assert!(two_plans(policy, snapshot).iter().all(Plan::is_empty), "{}", policy.name);
        }
    }
}

#[test]
fn all_zero_counters_move_nothing_but_what_needs_no_counters() {
    let add = |all: SnapshotBuilder, _| all.group_used_by(&[0, 512], &[(1, 0.0), (2, 0.0)]);
    let threads = SnapshotBuilder::new(crate::testing::two_nodes(1)).thread(1, 0, None).thread(2, 1, None);
    let mut snapshot = (0..4).fold(threads, add).build();
    snapshot.groups.iter_mut().for_each(|group| group.latency_ns = Some(0.0));
    for policy in page_policies().filter(|policy| !["rmma", "interleave", "dataset"].contains(&policy.name)) {
        assert!(two_plans(policy, &snapshot).iter().all(Plan::is_empty), "{}", policy.name);
    }
}
