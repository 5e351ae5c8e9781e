// SPDX-License-Identifier: GPL-2.0-only
//! The stall that threads suffered: from where they really ran and where the pages that they access really are, not
//! from what was ordered. An assignment that was not followed and a page that did not move do not count.

use crate::model::{Action, GroupId, Plan, Snapshot, Thread};
use crate::users::Users;

/// Least share of their users' stall that moving pages must save. Small pages that several nodes use about equally would
/// else follow every change of who uses them a little more.
const FAINTEST_GAIN: f64 = 0.005;

/// Accesses per second of a thread, and the stall that they cost from where it ran, in ns per second; `None` without a
/// signal.
fn stall_of(snapshot: &Snapshot, thread: &Thread) -> Option<(f64, f64)> {
    let accesses = thread.accesses_per_s.as_ref()?;
    let ran_ns: u64 = thread.run_ns.values().sum();
    if ran_ns == 0 {
        return None;
    }
    let mut stall_ns_per_s = 0.0;
    for (run, &on_node_ns) in thread.run_ns.iter() {
        let share = on_node_ns as f64 / ran_ns as f64;
        for (memory, &rate) in accesses.iter() {
            stall_ns_per_s += share * rate * snapshot.topology.latency_ns(run, memory);
        }
    }
    Some((accesses.total(), stall_ns_per_s))
}

/// Mean latency of an access of all threads with a signal; `None` if there is none.
pub fn latency_ns(snapshot: &Snapshot) -> Option<f64> {
    let stalls = snapshot.threads.iter().filter_map(|thread| stall_of(snapshot, thread));
    let (accesses_per_s, stall_ns_per_s) = stalls.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (accesses_per_s > 0.0).then(|| stall_ns_per_s / accesses_per_s)
}

/// Whether a plan for pages should save enough of the stall of the threads that use them to be noticed at all. Where the
/// signal or the prediction is missing, nothing speaks against it.
pub fn is_worth_a_trial(plan: &Plan, snapshot: &Snapshot) -> bool {
    let group = |action: &Action| if let Action::MovePages { group, .. } = action { Some(*group) } else { None };
    let mut moved: Vec<GroupId> = plan.moves.iter().filter_map(|planned| group(&planned.action)).collect();
    // Both in the order of addresses, so that they can be gone through side by side: plans may name all groups.
    moved.sort_unstable();
    let mut moved = moved.into_iter().peekable();
    let threads = Users::positions(snapshot);
    let mut uses = vec![false; snapshot.threads.len()];
    for group in &snapshot.groups {
        while moved.next_if(|&id| id < group.id).is_some() {}
        if moved.peek() == Some(&group.id) {
            group.users.iter().filter_map(|user| threads.seat(user.0)).for_each(|(at, _)| uses[at] = true);
        }
    }
    let users = snapshot.threads.iter().zip(uses).filter(|user| user.1);
    let stalls = users.filter_map(|(thread, _)| stall_of(snapshot, thread));
    let stall_ns_per_s: f64 = stalls.map(|(_, stall_ns_per_s)| stall_ns_per_s).sum();
    let gains: Option<f64> = plan.moves.iter().map(|planned| planned.gain_ns_per_s).sum();
    stall_ns_per_s == 0.0 || gains.is_none_or(|gain_ns_per_s| gain_ns_per_s >= stall_ns_per_s * FAINTEST_GAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Move, NodeIndex, PerNode, Topology};
    use crate::testing::{SnapshotBuilder, two_nodes};

    const SECOND_NS: u64 = 1_000_000_000;

    /// One thread that ran on node 0 with 1000 accesses per second to node 0 and `remote_per_s` to node 1 (100 and 200 ns
    /// away), the latter to one group, and a plan that brings the group and should save `gain_ns_per_s`.
    fn page_plan(remote_per_s: f64, gain_ns_per_s: Option<f64>) -> (Plan, Snapshot) {
        let mut topology = two_nodes(2);
        for node in [NodeIndex(0), NodeIndex(1)] {
            let distance = PerNode::from_fn(2, |other| if other == node { 10 } else { 20 });
            topology.nodes[node].latency_ns = Topology::latency_from_distance(&distance);
            topology.nodes[node].distance = distance;
        }
        let builder = SnapshotBuilder::new(topology).thread(1, 0, Some(&[1000.0, remote_per_s]));
        let snapshot = builder
            .with_thread(|thread| thread.run_ns = vec![SECOND_NS, 0].into())
            .group_used_by(&[0, 1], &[(1, remote_per_s)])
            .build();
        let action = Action::MovePages { group: snapshot.groups[0].id, bytes: 4096, to: NodeIndex(0) };
        (Plan { moves: vec![Move { action, gain_ns_per_s, reason: "test".to_owned() }] }, snapshot)
    }

    #[test]
    fn the_latency_is_that_of_where_threads_ran() {
        assert_eq!(latency_ns(&page_plan(1000.0, None).1), Some(150.0));
        assert_eq!(latency_ns(&SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build()), None, "no signal");
    }

    #[test]
    fn page_moves_that_nobody_would_notice_are_not_worth_a_trial() {
        let worth = |gain| {
            let (plan, snapshot) = page_plan(1.0, gain);
            is_worth_a_trial(&plan, &snapshot)
        };
        assert!(!worth(Some(100.0)), "a thousandth of 100 us of stall");
        assert!(worth(Some(1000.0)), "a hundredth");
        assert!(worth(None), "nothing predicted");
        let (plan, mut snapshot) = page_plan(1.0, Some(100.0));
        snapshot.threads[0].accesses_per_s = None;
        assert!(is_worth_a_trial(&plan, &snapshot), "no signal");
    }
}
