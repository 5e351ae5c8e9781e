// SPDX-License-Identifier: GPL-2.0-only
//! What is recorded of an interval.

use tandem_policies::decider;
use tandem_policies::model::{GroupId, NodeId, Plan, Snapshot, ThreadId};
use tandem_policies::registry::MissingSignal;

/// One interval: what became of earlier plans in it, what was seen at its end, what was decided then.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// What was seen.
    pub snapshot: Snapshot,
    /// What became of earlier plans since the last interval.
    pub outcomes: Vec<Outcome>,
    /// `None` if nothing was to be decided: a plan was under trial, or too little was known.
    pub decision: Option<Decision>,
}

/// What the policies answered and what was made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The seed given to the policies.
    pub seed: u64,
    /// One answer for each policy asked, in the order of [`crate::Settings::policies`]; those not asked are absent.
    pub answers: Vec<Answer>,
    /// The answer that was taken, if one was.
    pub taken: Option<usize>,
    /// Number of the plan, if it was carried out; outcomes refer to it.
    pub generation: Option<u64>,
}

/// What a policy answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A plan; an empty one if nothing pays.
    Plan(Plan),
    /// The snapshot lacks a signal; in words.
    Missing(String),
}

/// What became of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The move of a page group ended.
    Pages {
        /// The plan that moved them.
        generation: u64,
        /// Whether they were moved back because the plan did not pay.
        undo: bool,
        /// The group.
        group: GroupId,
        /// Where its pages were to go.
        to: NodeId,
        /// Pages asked for.
        requested_pages: u64,
        /// Pages that are there now and were elsewhere before.
        moved_pages: u64,
        /// Time inside system calls.
        time_ns: u64,
        /// How it ended, in a word.
        ended: String,
    },
    /// The scheduler refused to assign a thread.
    Refused {
        /// The thread.
        thread: ThreadId,
        /// Why, in a word.
        why: String,
    },
    /// A plan was judged.
    Judged {
        /// The plan.
        generation: u64,
        /// Mean latency of an access before it; `None` without a signal.
        before_ns: Option<f64>,
        /// And after it.
        after_ns: Option<f64>,
        /// Whether it was undone.
        undone: bool,
    },
}

impl Decision {
    /// What a decider came to with `seed`; not carried out yet.
    pub fn new(seed: u64, decision: decider::Decision) -> Self {
        let answer = |answer: Result<Plan, MissingSignal>| match answer {
            Ok(plan) => Answer::Plan(plan),
            Err(missing) => Answer::Missing(missing.to_string()),
        };
        Self {
            seed,
            answers: decision.answers.into_iter().map(answer).collect(),
            taken: decision.taken,
            generation: None,
        }
    }

    /// The plan that was taken.
    pub fn plan(&self) -> Option<&Plan> {
        match self.answers.get(self.taken?)? {
            Answer::Plan(plan) => Some(plan),
            Answer::Missing(_) => None,
        }
    }
}
