// SPDX-License-Identifier: GPL-2.0-only
//! What the agent hands to the recorder, if there is one.

use tandem_act::{Ended, Outcome as Moved, Purpose};
use tandem_policies::decider::Decider;
use tandem_policies::model::{Snapshot, ThreadId};
use tandem_trace::{Decision, Interval, Outcome, Recorder, Settings};

use crate::config::AgentConfig;
use crate::verify::Trial;

/// What stays the same while this agent runs.
pub fn settings(config: &AgentConfig, decider: &Decider, sampler: &str, steps: u64) -> Settings {
    Settings {
        program: format!("scx_tandem {}", env!("CARGO_PKG_VERSION")),
        sampler: sampler.to_owned(),
        interval_ns: config.interval.as_nanos() as u64,
        seed: config.seed,
        steps,
        dry_run: config.dry_run,
        policies: decider.choices().iter().map(Into::into).collect(),
    }
}

/// What became of plans since the last interval was recorded. Without a recording nothing is kept.
#[derive(Debug)]
pub struct Notes {
    recorder: Option<Recorder>,
    outcomes: Vec<Outcome>,
}

impl Notes {
    /// Nothing noted yet.
    pub fn new(recorder: Option<Recorder>) -> Self {
        Self { recorder, outcomes: Vec::new() }
    }

    fn note(&mut self, outcome: impl FnOnce() -> Outcome) {
        if self.recorder.is_some() {
            self.outcomes.push(outcome());
        }
    }

    /// The move of a page group ended.
    pub fn pages(&mut self, moved: &Moved) {
        self.note(|| Outcome::Pages {
            generation: moved.generation.0,
            undo: moved.purpose != Purpose::Plan,
            group: moved.group,
            to: moved.to,
            requested_pages: moved.requested_pages,
            moved_pages: moved.moved_pages,
            time_ns: moved.time_ns,
            ended: ended(moved.ended),
        });
    }

    /// The scheduler refused to assign a thread.
    pub fn refused(&mut self, thread: ThreadId, why: &str) {
        self.note(|| Outcome::Refused { thread, why: why.to_owned() });
    }

    /// A plan was judged.
    pub fn judged(&mut self, trial: &Trial, after_ns: Option<f64>, undone: bool) {
        let (generation, before_ns) = (trial.generation.0, trial.before_ns);
        self.note(|| Outcome::Judged { generation, before_ns, after_ns, undone });
    }

    /// Hands over an interval, and forgets the recorder once it takes no more.
    pub fn record(&mut self, snapshot: Snapshot, decision: Option<Decision>) {
        let Some(recorder) = &self.recorder else { return };
        recorder.interval(Interval { snapshot, outcomes: std::mem::take(&mut self.outcomes), decision });
        if !recorder.is_recording() {
            self.recorder = None;
        }
    }
}

/// How a move ended, in a word.
fn ended(ended: Ended) -> String {
    match ended {
        Ended::Done => "done".to_owned(),
        Ended::TargetFull => "target full".to_owned(),
        Ended::TargetFragmented => "target fragmented".to_owned(),
        Ended::ProcessGone => "process gone".to_owned(),
        Ended::NotPermitted => "not permitted".to_owned(),
        Ended::NoSuchNode => "no such node".to_owned(),
        Ended::NodeNotAllowed => "node not allowed".to_owned(),
        Ended::Failed(errno) => format!("failed with errno {errno}"),
        Ended::NotUsed => "not used".to_owned(),
        Ended::NoThreadToLend => "no thread to lend".to_owned(),
        Ended::Cooldown => "cooldown".to_owned(),
        Ended::Cancelled => "cancelled".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tandem_act::Generation;
    use tandem_policies::stall::Changed;
    use tandem_trace::{Entry, TraceReader};

    use super::*;
    use crate::testing::{SECOND_NS, id, snapshot};

    #[test]
    fn outcomes_are_recorded_with_the_interval_in_which_they_came() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let recorder = Recorder::create(&path).unwrap();
        recorder.settings(Settings {
            program: "test".to_owned(),
            sampler: "none".to_owned(),
            interval_ns: SECOND_NS,
            seed: 1,
            steps: 1,
            dry_run: false,
            policies: vec![],
        });
        let mut notes = Notes::new(Some(recorder.clone()));
        notes.refused(id(1), "stale");
        notes.record(snapshot(&[(0, SECOND_NS)]), None);
        notes.judged(&Trial::new(Generation(7), 0, Some(100.0), Changed::default(), false), Some(90.0), false);
        notes.record(snapshot(&[(0, SECOND_NS)]), None);
        assert_eq!(recorder.finish().intervals, 2);
        let intervals: Vec<_> = TraceReader::new(std::fs::File::open(&path).unwrap())
            .unwrap()
            .filter_map(|entry| match entry.unwrap() {
                Entry::Interval(interval) => Some(interval),
                Entry::Settings(_) => None,
            })
            .collect();
        assert_eq!(intervals[0].outcomes, [Outcome::Refused { thread: id(1), why: "stale".to_owned() }]);
        let judged = Outcome::Judged { generation: 7, before_ns: Some(100.0), after_ns: Some(90.0), undone: false };
        assert_eq!(intervals[1].outcomes, [judged]);
    }

    #[test]
    fn nothing_is_kept_without_a_recording() {
        let mut notes = Notes::new(None);
        notes.refused(id(1), "stale");
        assert!(notes.outcomes.is_empty());
    }
}
