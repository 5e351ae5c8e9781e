// SPDX-License-Identifier: GPL-2.0-only
//! Whether the plan under trial paid, and taking it back if it made things worse.

use tandem_policies::model::Snapshot;
use tandem_sense::monotonic_ns;
use tracing::warn;

use super::{Agent, HOLD_COOLDOWNS};
use crate::report::{Report, ThreadMove};
use crate::verify::{Seen, Trial, Verdict};

impl Agent {
    /// Looks at the plan under trial, and undoes it if it made things worse; returns whether it did.
    pub(super) fn verify(&mut self, snapshot: &Snapshot, report: &mut Report) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let moving = self.mover.queued_groups() > 0;
        if self.pace.is_quick() && self.sensor.threads_turned() > 0 && !moving {
            // Before and after are of different phases, and a new plan brings back what is better where it was.
            self.mover.forget_before(trial.generation);
            self.trial = None;
            return false;
        }
        let seen = Seen::of(snapshot, &trial.changed);
        let verdict = trial.judge(moving, seen);
        let (after_ns, undone) = match verdict {
            Verdict::Wait => return false,
            Verdict::Keep { after_ns } => (after_ns, false),
            Verdict::Undo { after_ns } => (Some(after_ns), true),
        };
        if let Some(result) = report.plans.iter_mut().rev().find(|plan| plan.generation == trial.generation.0) {
            result.after_ns = after_ns;
            result.judged = true;
            result.undone = undone;
        }
        let trial = self.trial.take().expect("looked at above");
        self.notes.judged(&trial, after_ns, undone);
        if undone {
            report.undone_plans += 1;
            self.undo(&trial, report);
        } else {
            self.mover.forget_before(trial.generation);
        }
        undone
    }

    fn undo(&mut self, trial: &Trial, report: &mut Report) {
        warn!(event = "undo", "the last plan did not pay: undoing it");
        let now_ns = monotonic_ns();
        let hold_ns = self.config.cooldown.as_nanos() as u64 * HOLD_COOLDOWNS;
        let generation = self.generation.advance();
        for &(thread, node) in &trial.changed.threads {
            let Some(now_at) = self.assignments.node_of(thread) else { continue };
            self.assignments.set(thread, node, generation);
            self.cooldowns.start_thread(thread, now_ns, hold_ns);
            report.thread_moves.push(ThreadMove {
                time_ns: now_ns,
                tid: thread.tid,
                from: self.topology.nodes[now_at].id.0,
                to: self.topology.nodes[node].id.0,
                reason: "undone: the plan did not pay".to_owned(),
            });
        }
        let cancelled = self.mover.undo(trial.generation, now_ns, hold_ns);
        self.note_outcomes(cancelled, report);
    }
}
