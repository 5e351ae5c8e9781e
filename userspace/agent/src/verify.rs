// SPDX-License-Identifier: GPL-2.0-only
//! Whether a plan paid: the mean latency of an access, before the plan and after it was carried out.
//!
//! Latency is taken from where threads really ran and where the pages that they access really are, not from what was
//! ordered: an assignment that was not followed and a page that did not move do not count.

use std::collections::BTreeSet;
use tandem_act::Generation;

use tandem_policies::model::{Action, NodeIndex, Plan, Snapshot, Thread, ThreadId};

/// Rise of the latency that is still taken for noise.
const NOISE: f64 = 0.02;
/// Least share of their users' stall that moving pages must save. Small pages that several nodes use about equally would
/// else follow every change of who uses them a little more.
const FAINTEST_GAIN: f64 = 0.005;
/// Intervals between the end of the last move and the verdict: the first holds the moves themselves.
const SETTLE_INTERVALS: u32 = 2;

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
    let moved: BTreeSet<_> = plan
        .moves
        .iter()
        .filter_map(|planned| match planned.action {
            Action::MovePages { group, .. } => Some(group),
            _ => None,
        })
        .collect();
    let groups = snapshot.groups.iter().filter(|group| moved.contains(&group.id));
    let users: BTreeSet<ThreadId> = groups.flat_map(|group| &group.users).map(|&(thread, _)| thread).collect();
    let stalls = users.iter().filter_map(|&user| stall_of(snapshot, snapshot.thread(user)?));
    let stall_ns_per_s: f64 = stalls.map(|(_, stall_ns_per_s)| stall_ns_per_s).sum();
    let gains: Option<f64> = plan.moves.iter().map(|planned| planned.gain_ns_per_s).sum();
    stall_ns_per_s == 0.0 || gains.is_none_or(|gain_ns_per_s| gain_ns_per_s >= stall_ns_per_s * FAINTEST_GAIN)
}

/// A plan that was carried out and is watched.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The plan.
    pub generation: Generation,
    /// Latency when it was decided.
    pub before_ns: Option<f64>,
    /// Threads that it moved, with their nodes before.
    pub threads: Vec<(ThreadId, NodeIndex)>,
    settled_intervals: u32,
}

/// What is to be done about a watched plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Too early to say.
    Wait,
    /// It stays.
    Keep {
        /// Latency now.
        after_ns: Option<f64>,
    },
    /// It goes.
    Undo {
        /// Latency now.
        after_ns: f64,
    },
}

impl Trial {
    /// Watches a plan from now on.
    pub fn new(generation: Generation, before_ns: Option<f64>, threads: Vec<(ThreadId, NodeIndex)>) -> Self {
        Self { generation, before_ns, threads, settled_intervals: 0 }
    }

    /// One interval later: `moving` says whether moves are still under way. Without a signal before or after, nothing
    /// speaks against the plan.
    pub fn judge(&mut self, moving: bool, after_ns: Option<f64>) -> Verdict {
        if moving {
            return Verdict::Wait;
        }
        self.settled_intervals += 1;
        if self.settled_intervals < SETTLE_INTERVALS {
            return Verdict::Wait;
        }
        match (self.before_ns, after_ns) {
            (Some(before_ns), Some(after_ns)) if after_ns > before_ns * (1.0 + NOISE) => Verdict::Undo { after_ns },
            _ => Verdict::Keep { after_ns },
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, Move, PageGroup, ProcessId};

    use super::*;
    use crate::testing::{SECOND_NS, id, snapshot};

    fn judged(before_ns: Option<f64>, after_ns: Option<f64>) -> Verdict {
        let mut trial = Trial::new(Generation(1), before_ns, vec![]);
        assert_eq!(trial.judge(true, Some(1e9)), Verdict::Wait, "while moves are under way");
        assert_eq!(trial.judge(false, Some(1e9)), Verdict::Wait, "the interval of the moves");
        trial.judge(false, after_ns)
    }

    /// One thread on node 0 with 1000 accesses per second to node 0 and `remote_per_s` to node 1, all to one group, and a
    /// plan that brings the group and should save `gain_ns_per_s`.
    fn page_plan(remote_per_s: f64, gain_ns_per_s: Option<f64>) -> (Plan, Snapshot) {
        let mut snapshot = snapshot(&[(0, SECOND_NS)]);
        snapshot.threads[0].run_ns = vec![SECOND_NS, 0].into();
        snapshot.threads[0].accesses_per_s = Some(vec![1000.0, remote_per_s].into());
        let group = GroupId { process: ProcessId(1), start: 0 };
        snapshot.groups.push(PageGroup {
            id: group,
            bytes: 4096,
            resident_pages: vec![0, 1].into(),
            accesses_per_s: vec![remote_per_s, 0.0].into(),
            users: vec![(id(1), remote_per_s)],
            samples: 100.0,
            latency_ns: None,
            unmovable: None,
        });
        let action = Action::MovePages { group, bytes: 4096, to: NodeIndex(0) };
        (Plan { moves: vec![Move { action, gain_ns_per_s, reason: "test".to_owned() }] }, snapshot)
    }

    #[test]
    fn the_latency_is_that_of_where_threads_ran() {
        assert_eq!(latency_ns(&page_plan(1000.0, None).1), Some(150.0));
        assert_eq!(latency_ns(&snapshot(&[(0, SECOND_NS)])), None, "no signal");
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

    #[test]
    fn a_plan_that_paid_stays() {
        assert_eq!(judged(Some(200.0), Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), Some(101.0)), Verdict::Keep { after_ns: Some(101.0) }, "noise");
    }

    #[test]
    fn a_plan_that_made_it_worse_goes() {
        assert_eq!(judged(Some(100.0), Some(103.0)), Verdict::Undo { after_ns: 103.0 });
    }

    #[test]
    fn without_a_signal_nothing_is_undone() {
        assert_eq!(judged(None, Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), None), Verdict::Keep { after_ns: None });
    }
}
