// SPDX-License-Identifier: GPL-2.0-only
//! Whether the plan under trial paid, and taking it back if it made things worse.

use tandem_act::{Generation, PageMover};
use tandem_policies::model::{GroupId, NodeIndex, Snapshot};
use tandem_policies::phases;
use tandem_sense::monotonic_ns;
use tandem_view::PlanVerdict;
use tracing::warn;

use super::{Agent, HOLD_COOLDOWNS};
use crate::leases::busy;
use crate::reasons::UNDONE;
use crate::report::{Report, ThreadMove};
use crate::verify::{Moves, Seen, Trial, Verdict};

impl Agent {
    /// Looks at the plan under trial, and undoes it if it made things worse; returns whether it did.
    pub(super) fn verify(&mut self, snapshot: &Snapshot, report: &mut Report) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let on_their_way = on_their_way(self.mover.as_ref(), trial.generation, snapshot);
        let since_plan_ns = monotonic_ns().saturating_sub(trial.since_ns);
        let moves = Moves::of(self.mover.queued_groups(), self.mover.is_paused(), since_plan_ns);
        let new_phase =
            self.pace.is_quick() && phases::threads_turned(self.sensor.threads_turned(), busy(snapshot).count());
        let seen = Seen::of(snapshot, &trial.changed, &on_their_way);
        let verdict = trial.judge(moves, new_phase, seen);
        if verdict == Verdict::Wait {
            return false;
        }
        let trial = self.trial.take().expect("looked at above");
        let (generation, mut undone) = (trial.generation, false);
        match verdict {
            Verdict::Wait => {}
            Verdict::Superseded(by) => report.supersede(generation.0, by),
            Verdict::Keep { after_ns } => {
                report.end_trial(generation.0, PlanVerdict::Kept, seen.after);
                self.notes.judged(&trial, after_ns, false);
            }
            Verdict::Undo { after_ns } => {
                report.end_trial(generation.0, PlanVerdict::Undone, seen.after);
                self.notes.judged(&trial, Some(after_ns), true);
                self.undo(&trial, report);
                undone = true;
            }
        }
        if !undone {
            let stopped = self.mover.stop(generation, monotonic_ns(), &mut self.cooldowns);
            self.note_outcomes(stopped, report);
            self.mover.forget_before(Generation(generation.0 + 1));
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
                thread,
                from: self.topology.nodes[now_at].id.0,
                to: self.topology.nodes[node].id.0,
                generation: trial.generation.0,
                reason: UNDONE.to_owned(),
            });
        }
        let cancelled = self.mover.undo(trial.generation, now_ns, hold_ns);
        self.note_outcomes(cancelled, report);
    }
}

/// The groups of a plan that still have to go, with where they go.
fn on_their_way(mover: &dyn PageMover, generation: Generation, snapshot: &Snapshot) -> Vec<(GroupId, NodeIndex)> {
    let index_of = |id| snapshot.topology.nodes.iter().find(|(_, node)| node.id == id).map(|(index, _)| index);
    mover.queued_of(generation).into_iter().filter_map(|(group, to)| Some((group, index_of(to)?))).collect()
}
