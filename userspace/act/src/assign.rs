// SPDX-License-Identifier: GPL-2.0-only
//! Assignments in force: which thread is leased to which node.
//!
//! BPF forgets an assignment when its lease ends, so whoever holds this table renews all of them
//! each interval. When the agent dies nobody renews, and the machine is as if it had never been.

use std::collections::BTreeMap;

use tandem_bpf::{AssignOutcome, Assignment};
use tandem_policies::model::{NodeIndex, ThreadId};

use crate::Generation;

/// Where transactions go. The loaded scheduler is one; tests script another.
pub trait AssignmentSink {
    /// Why a batch was not taken at all.
    type Error;

    /// Sends assignments; one outcome each, in order.
    fn assign(&mut self, assignments: &[Assignment]) -> Result<Vec<AssignOutcome>, Self::Error>;
}

impl AssignmentSink for tandem_bpf::Scheduler {
    type Error = tandem_bpf::Error;

    fn assign(&mut self, assignments: &[Assignment]) -> Result<Vec<AssignOutcome>, Self::Error> {
        tandem_bpf::Scheduler::assign(self, assignments)
    }
}

/// An assignment that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// `None`: to be withdrawn.
    node: Option<NodeIndex>,
    generation: Generation,
}

/// All assignments that are wanted, renewed together.
#[derive(Debug)]
pub struct Assignments {
    wanted: BTreeMap<ThreadId, Wanted>,
    lease_ns: u64,
}

/// An assignment that was refused, and is wanted no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAssignment {
    /// The thread.
    pub thread: ThreadId,
    /// Where it should have gone.
    pub node: Option<NodeIndex>,
    /// Why not.
    pub outcome: AssignOutcome,
}

impl Assignments {
    /// An empty table whose leases last `lease_ns` from each renewal.
    pub fn new(lease_ns: u64) -> Self {
        Self { wanted: BTreeMap::new(), lease_ns }
    }

    /// Wants `thread` on `node` from the next renewal on.
    pub fn set(&mut self, thread: ThreadId, node: NodeIndex, generation: Generation) {
        self.wanted.insert(thread, Wanted { node: Some(node), generation });
    }

    /// Withdraws at the next renewal what is assigned to threads of which `is_meant` is not true.
    pub fn keep(&mut self, is_meant: impl Fn(ThreadId) -> bool, generation: Generation) {
        for (_, wanted) in self.wanted.iter_mut().filter(|(thread, _)| !is_meant(**thread)) {
            *wanted = Wanted { node: None, generation: wanted.generation.max(generation) };
        }
    }

    /// Withdraws at the next renewal what is assigned to `thread`, if anything is.
    pub fn withdraw(&mut self, thread: ThreadId, generation: Generation) {
        if let Some(wanted) = self.wanted.get_mut(&thread) {
            *wanted = Wanted { node: None, generation };
        }
    }

    /// Withdraws everything at the next renewal.
    pub fn withdraw_all(&mut self, generation: Generation) {
        for wanted in self.wanted.values_mut() {
            *wanted = Wanted { node: None, generation };
        }
    }

    /// The node wanted for `thread`.
    pub fn node_of(&self, thread: ThreadId) -> Option<NodeIndex> {
        self.wanted.get(&thread).and_then(|wanted| wanted.node)
    }

    /// Threads with an assignment, ascending, and where to.
    pub fn nodes(&self) -> impl Iterator<Item = (ThreadId, NodeIndex)> {
        self.wanted.iter().filter_map(|(thread, wanted)| Some((*thread, wanted.node?)))
    }

    /// Number of threads with an assignment, or one that is to be withdrawn.
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether nothing is assigned.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Sends everything with a lease from `now_ns` (CLOCK_MONOTONIC) on. What is refused, and what was withdrawn, is
    /// wanted no longer; refusals are returned. On an error nothing is forgotten: the next renewal tries again.
    pub fn renew<S: AssignmentSink>(&mut self, sink: &mut S, now_ns: u64) -> Result<Vec<RefusedAssignment>, S::Error> {
        let batch: Vec<Assignment> = self
            .wanted
            .iter()
            .map(|(thread, wanted)| Assignment {
                tid: thread.tid,
                start_boottime_ns: thread.start_boottime_ns,
                node: wanted.node.map(|node| node.0 as u32),
                generation: wanted.generation.0,
                expires_ns: now_ns + self.lease_ns,
            })
            .collect();
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = sink.assign(&batch)?;
        let sent: Vec<(ThreadId, Wanted)> = self.wanted.iter().map(|(thread, wanted)| (*thread, *wanted)).collect();
        let mut refused = Vec::new();
        for ((thread, wanted), outcome) in sent.into_iter().zip(outcomes) {
            if outcome != AssignOutcome::Applied {
                refused.push(RefusedAssignment { thread, node: wanted.node, outcome });
            }
            if outcome != AssignOutcome::Applied || wanted.node.is_none() {
                self.wanted.remove(&thread);
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_NS: u64 = 3_000;

    /// Records what is sent; answers from a table, `Applied` by default.
    #[derive(Default)]
    struct Recorder {
        sent: Vec<Vec<Assignment>>,
        answers: BTreeMap<u32, AssignOutcome>,
        fails: bool,
    }

    impl AssignmentSink for Recorder {
        type Error = &'static str;

        fn assign(&mut self, assignments: &[Assignment]) -> Result<Vec<AssignOutcome>, Self::Error> {
            if self.fails {
                return Err("no scheduler");
            }
            self.sent.push(assignments.to_vec());
            Ok(assignments.iter().map(|one| *self.answers.get(&one.tid).unwrap_or(&AssignOutcome::Applied)).collect())
        }
    }

    fn thread(tid: u32) -> ThreadId {
        ThreadId { tid, start_boottime_ns: u64::from(tid) * 10 }
    }

    #[test]
    fn renewing_sends_everything_with_a_lease_from_now() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder::default();
        assignments.set(thread(1), NodeIndex(2), Generation(5));
        assignments.set(thread(2), NodeIndex(0), Generation(6));
        assert_eq!(assignments.renew(&mut sink, 1_000), Ok(vec![]));
        assert_eq!(assignments.renew(&mut sink, 2_000), Ok(vec![]));
        let expected =
            Assignment { tid: 1, start_boottime_ns: 10, node: Some(2), generation: 5, expires_ns: 2_000 + LEASE_NS };
        assert_eq!(sink.sent[1][0], expected);
        assert_eq!(sink.sent[1].len(), 2);
    }

    #[test]
    fn what_is_refused_is_returned_and_not_sent_again() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder { answers: BTreeMap::from([(1, AssignOutcome::NoTask)]), ..Recorder::default() };
        assignments.set(thread(1), NodeIndex(2), Generation(1));
        let refused = assignments.renew(&mut sink, 0).unwrap();
        assert_eq!(
            refused,
            [RefusedAssignment { thread: thread(1), node: Some(NodeIndex(2)), outcome: AssignOutcome::NoTask }]
        );
        assert!(assignments.is_empty());
        assert_eq!(assignments.renew(&mut sink, 1), Ok(vec![]));
        assert_eq!(sink.sent.len(), 1);
    }

    #[test]
    fn withdrawing_is_sent_once() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder::default();
        assignments.set(thread(1), NodeIndex(2), Generation(1));
        assignments.renew(&mut sink, 0).unwrap();
        assignments.withdraw_all(Generation(2));
        assert_eq!(assignments.node_of(thread(1)), None);
        assignments.renew(&mut sink, 1).unwrap();
        assert_eq!((sink.sent[1][0].node, sink.sent[1][0].generation), (None, 2));
        assert!(assignments.is_empty());
    }

    #[test]
    fn one_thread_is_withdrawn_and_one_without_an_assignment_is_none_to_be_withdrawn() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder::default();
        (1..=2).for_each(|tid| assignments.set(thread(tid), NodeIndex(2), Generation(1)));
        (2..=3).for_each(|tid| assignments.withdraw(thread(tid), Generation(2)));
        assignments.renew(&mut sink, 0).unwrap();
        let sent: Vec<_> = sink.sent[0].iter().map(|one| (one.tid, one.node, one.generation)).collect();
        assert_eq!(sent, [(1, Some(2), 1), (2, None, 2)]);
    }

    #[test]
    fn what_is_not_meant_any_more_is_withdrawn_and_the_rest_goes_on() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder::default();
        assignments.set(thread(1), NodeIndex(2), Generation(3));
        assignments.set(thread(2), NodeIndex(2), Generation(1));
        assignments.keep(|one| one == thread(2), Generation(2));
        assignments.renew(&mut sink, 0).unwrap();
        let sent: Vec<_> = sink.sent[0].iter().map(|one| (one.tid, one.node, one.generation)).collect();
        assert_eq!(sent, [(1, None, 3), (2, Some(2), 1)]);
        assert_eq!(assignments.len(), 1);
    }

    #[test]
    fn a_batch_that_failed_is_tried_again() {
        let mut assignments = Assignments::new(LEASE_NS);
        let mut sink = Recorder { fails: true, ..Recorder::default() };
        assignments.set(thread(1), NodeIndex(2), Generation(1));
        assert_eq!(assignments.renew(&mut sink, 0), Err("no scheduler"));
        sink.fails = false;
        assignments.renew(&mut sink, 1).unwrap();
        assert_eq!(sink.sent[0][0].node, Some(2));
    }
}
