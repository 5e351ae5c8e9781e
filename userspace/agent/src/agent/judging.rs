// SPDX-License-Identifier: GPL-2.0-only
//! Whether the plan under trial paid, and taking it back if it made things worse.

use std::collections::BTreeSet;

use tandem_act::{Generation, Outcome, PageMover};
use tandem_policies::model::{GroupId, NodeIndex, ProcessId, Snapshot};
use tandem_policies::phases;
use tandem_sense::monotonic_ns;
use tandem_view::{PlanVerdict, Superseding};
use tracing::warn;

use super::{Agent, HOLD_COOLDOWNS};
use crate::leases::busy;
use crate::reasons::UNDONE;
use crate::report::{Report, ThreadMove};
use crate::verify::{LONGEST_NS, Moves, Seen, Trial, Verdict};

impl Agent {
    /// Looks at the plan under trial, or once more at one that was kept, and undoes it if it made things worse; returns whether it
    /// did.
    pub(super) fn verify(&mut self, snapshot: &Snapshot, report: &mut Report) -> bool {
        let new_phase =
            self.pace.is_quick() && phases::threads_turned(self.sensor.threads_turned(), busy(snapshot).count());
        let Some(trial) = &mut self.trial else { return self.verify_again(snapshot, new_phase, report) };
        let on_their_way = on_their_way(self.mover.as_ref(), trial.generation, snapshot);
        let since_plan_ns = monotonic_ns().saturating_sub(trial.since_ns);
        let moves = Moves::of(on_their_way.len(), self.mover.is_paused(), since_plan_ns);
        let seen = Seen::of(snapshot, &trial.changed, &on_their_way);
        let verdict = trial.judge(moves, new_phase, seen);
        if verdict == Verdict::Wait {
            return false;
        }
        let trial = self.trial.take().expect("looked at above");
        if self.end_trial(&trial, verdict, seen, report) {
            return true;
        }
        if matches!(verdict, Verdict::Superseded(_)) {
            let stopped = self.mover.stop(trial.generation, monotonic_ns(), &mut self.cooldowns);
            self.note_outcomes(stopped, report);
        }
        if matches!(verdict, Verdict::Keep { .. }) && !trial.is_known(monotonic_ns()) {
            self.kept = Some(trial);
        } else {
            self.mover.forget_before(Generation(trial.generation.0 + 1));
        }
        false
    }

    /// What has the numbers and addresses of processes that are `gone` is not what plans moved. The one under trial is left without a
    /// verdict if moves of it were `stopped`; the one that was kept is not judged again.
    pub(super) fn leave_plans_of(&mut self, gone: &BTreeSet<ProcessId>, stopped: &[Outcome], report: &mut Report) {
        self.kept.take_if(|kept| kept.changed.groups.keys().any(|group| gone.contains(&group.process)));
        if let Some(trial) = &mut self.trial {
            trial.changed.groups.retain(|group, _| !gone.contains(&group.process));
        }
        let was_stopped = |trial: &mut Trial| stopped.iter().any(|outcome| outcome.generation == trial.generation);
        if let Some(trial) = self.trial.take_if(was_stopped) {
            report.supersede(trial.generation.0, Superseding::ProcessesGone);
        }
    }

    /// Whether what was undone is still going back, for as long as a plan may take to move. Then it is planned anew with what is
    /// where by now, as it is while memory pressure holds all moves up.
    pub(super) fn is_going_back(&self) -> bool {
        let is_long = monotonic_ns().saturating_sub(self.undone_ns) >= LONGEST_NS;
        self.mover.is_returning() && !self.mover.is_paused() && !is_long
    }

    /// Looks once more at the plan that was kept, if there has been no other one since and enough is known by now. Where the program
    /// went on to another phase nothing more is to be learnt of it.
    fn verify_again(&mut self, snapshot: &Snapshot, new_phase: bool, report: &mut Report) -> bool {
        let Some(kept) = self.kept.take_if(|kept| new_phase || kept.is_known(monotonic_ns())) else { return false };
        let seen = Seen::of(snapshot, &kept.changed, &[]);
        // Where nothing is known any more what was measured at first stands.
        if !new_phase && seen.after.is_some() && self.end_trial(&kept, kept.judge_again(seen), seen, report) {
            return true;
        }
        self.mover.forget_before(Generation(kept.generation.0 + 1));
        false
    }

    /// Notes what became of a plan, and undoes it if that is the verdict; returns whether it is.
    fn end_trial(&mut self, trial: &Trial, verdict: Verdict, seen: Seen, report: &mut Report) -> bool {
        let generation = trial.generation.0;
        match verdict {
            Verdict::Wait => false,
            Verdict::Superseded(by) => {
                report.supersede(generation, by);
                false
            }
            Verdict::Keep { after_ns } => {
                report.end_trial(generation, PlanVerdict::Kept, seen.after, seen.accesses_per_s);
                self.notes.judged(trial, after_ns, false);
                false
            }
            Verdict::Undo { after_ns } => {
                report.end_trial(generation, PlanVerdict::Undone, seen.after, seen.accesses_per_s);
                self.notes.judged(trial, Some(after_ns), true);
                self.undo(trial, report);
                true
            }
        }
    }

    fn undo(&mut self, trial: &Trial, report: &mut Report) {
        warn!(event = "undo", "the last plan did not pay: undoing it");
        let now_ns = monotonic_ns();
        self.undone_ns = now_ns;
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
        // Where nothing kept them before.
        trial.held.iter().for_each(|&thread| self.assignments.withdraw(thread, generation));
        let cancelled = self.mover.undo(trial.generation, now_ns, hold_ns);
        self.note_outcomes(cancelled, report);
    }
}

/// The groups of a plan that still have to go, with where they go.
fn on_their_way(mover: &dyn PageMover, generation: Generation, snapshot: &Snapshot) -> Vec<(GroupId, NodeIndex)> {
    let index_of = |id| snapshot.topology.nodes.iter().find(|(_, node)| node.id == id).map(|(index, _)| index);
    mover.queued_of(generation).into_iter().filter_map(|(group, to)| Some((group, index_of(to)?))).collect()
}
