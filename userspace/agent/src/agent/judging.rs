// SPDX-License-Identifier: GPL-2.0-only
//! Whether the plan under trial paid, and taking it back if it made things worse.

use std::collections::BTreeSet;

use tandem_act::{Generation, PageMover};
use tandem_policies::model::{GroupId, NodeIndex, ProcessId, Snapshot, ThreadId};
use tandem_policies::stall::Changed;
use tandem_sense::monotonic_ns;
use tandem_view::{PlanVerdict, Superseding};
use tracing::warn;

use super::{Agent, HOLD_COOLDOWNS};
use crate::moves::{LONGEST_NS, Moves};
use crate::parts::Turned;
use crate::reasons::UNDONE;
use crate::report::{Report, ThreadMove};
use crate::verify::{Seen, Trial, Verdict};

impl Agent {
    /// Looks at the plan under trial, or once more at one that was kept, and undoes what of it made things worse; returns whether
    /// anything did.
    pub(super) fn verify(&mut self, snapshot: &Snapshot, report: &mut Report) -> bool {
        let turned = if self.pace.is_quick() { Turned::of(snapshot) } else { Turned::default() };
        let Some(mut trial) = self.trial.take() else { return self.verify_again(snapshot, &turned, report) };
        let left = trial.leave(&turned);
        if !left.is_empty() {
            self.stop_moves(&trial, &|process| left.contains(&process), report);
        }
        if trial.is_parted() && self.is_going_back() && !trial.is_done() {
            self.trial = Some(trial);
            return false;
        }
        let on_their_way = on_their_way(self.mover.as_ref(), trial.generation, snapshot);
        let since_plan_ns = monotonic_ns().saturating_sub(trial.since_ns);
        let moves = Moves::of(on_their_way.len(), self.mover.is_paused(), since_plan_ns);
        // What memory pressure holds up is where it is.
        let seen = trial.seen(snapshot, if moves.go_on() { &on_their_way } else { &[] });
        let verdict = trial.judge(moves, &seen);
        let undone = self.end_trial(&mut trial, &verdict, &seen, report);
        match verdict {
            Verdict::Undo { .. } => {}
            Verdict::Wait => self.trial = Some(trial),
            Verdict::UndoParts(_) if !trial.is_done() => self.trial = Some(trial),
            Verdict::Keep { .. } if !trial.is_known(monotonic_ns()) => self.kept = Some(trial),
            Verdict::Keep { .. } => self.mover.forget_before(Generation(trial.generation.0 + 1)),
            Verdict::UndoParts(_) | Verdict::Superseded(_) => self.drop_trial(&trial, report),
        }
        undone
    }

    /// What is still on its way of a plan that is not watched any more need not go there, and what it moved stays.
    fn drop_trial(&mut self, trial: &Trial, report: &mut Report) {
        self.stop_moves(trial, &|_| true, report);
        self.mover.forget_before(Generation(trial.generation.0 + 1));
    }

    /// Drops what is still queued of a plan, of the processes that are meant.
    fn stop_moves(&mut self, trial: &Trial, is_meant: &dyn Fn(ProcessId) -> bool, report: &mut Report) {
        let stopped = self.mover.stop_of(trial.generation, is_meant, monotonic_ns(), &mut self.cooldowns);
        self.note_outcomes(stopped, report);
    }

    /// What has the numbers and addresses of processes that are `gone` is not what plans moved. Of the plan under trial, and of the
    /// one that was kept, what is left is judged.
    pub(super) fn leave_plans_of(&mut self, gone: &BTreeSet<ProcessId>, report: &mut Report) {
        self.kept.take_if(|kept| {
            kept.forget(gone);
            kept.is_done()
        });
        let free = self.trial.as_mut().map(|trial| trial.forget(gone)).unwrap_or_default();
        if !free.is_empty() {
            let generation = self.generation.advance();
            free.into_iter().for_each(|thread| self.assignments.withdraw(thread, generation));
        }
        if let Some(trial) = self.trial.take_if(|trial| trial.is_done()) {
            report.supersede(trial.generation.0, Superseding::ProcessesGone);
            self.drop_trial(&trial, report);
        }
    }

    /// Whether what was undone is still going back, for as long as a plan may take to move. Then it is planned anew with what is
    /// where by now, as it is while memory pressure holds all moves up.
    pub(super) fn is_going_back(&self) -> bool {
        let is_long = monotonic_ns().saturating_sub(self.undone_ns) >= LONGEST_NS;
        self.mover.is_returning() && !self.mover.is_paused() && !is_long
    }

    /// Looks once more at the plan that was kept, if there has been no other one since and enough is known by now. Of processes that
    /// went on to another phase nothing more is to be learnt.
    fn verify_again(&mut self, snapshot: &Snapshot, turned: &Turned, report: &mut Report) -> bool {
        let is_ready = |kept: &mut Trial| {
            kept.leave(turned);
            kept.is_done() || kept.is_known(monotonic_ns())
        };
        let Some(mut kept) = self.kept.take_if(is_ready) else { return false };
        let seen = kept.seen(snapshot, &[]);
        // Where nothing is known any more what was measured at first stands.
        let is_judged = !kept.is_done() && seen.after.is_some();
        let verdict = is_judged.then(|| kept.judge_again(&seen));
        let undone = verdict.as_ref().is_some_and(|verdict| self.end_trial(&mut kept, verdict, &seen, report));
        if matches!(verdict, Some(Verdict::UndoParts(_))) && !kept.is_done() {
            self.trial = Some(kept);
        } else {
            self.mover.forget_before(Generation(kept.generation.0 + 1));
        }
        undone
    }

    /// Notes what became of a plan, and undoes what of it is to go; returns whether anything is.
    fn end_trial(&mut self, trial: &mut Trial, verdict: &Verdict, seen: &Seen, report: &mut Report) -> bool {
        let generation = trial.generation.0;
        match *verdict {
            Verdict::Wait => false,
            Verdict::Superseded(by) => {
                report.supersede(generation, by);
                false
            }
            Verdict::UndoParts(ref processes) => {
                self.undo_parts(trial, processes, report);
                if trial.is_done() {
                    report.end_trial(generation, PlanVerdict::Undone, seen.after, seen.accesses_per_s);
                    self.notes.judged(trial, seen.after.map(|after| after.latency_ns), true);
                }
                true
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
        let now_ns = self.return_threads(trial.generation, &trial.changed, &trial.held, report);
        let cancelled = self.mover.undo(trial.generation, now_ns, self.hold_ns());
        self.note_outcomes(cancelled, report);
    }

    fn undo_parts(&mut self, trial: &mut Trial, processes: &BTreeSet<ProcessId>, report: &mut Report) {
        let pids: Vec<u32> = processes.iter().map(|process| process.0).collect();
        warn!(event = "undo", "the last plan slowed {} down: undoing what it changed there", listed(&pids));
        let (changed, held) = trial.take_parts(processes);
        let now_ns = self.return_threads(trial.generation, &changed, &held, report);
        let (is_meant, hold_ns) = (|process| processes.contains(&process), self.hold_ns());
        let cancelled = self.mover.undo_of(trial.generation, &is_meant, now_ns, hold_ns);
        report.undo_parts(trial.generation.0, pids);
        self.note_outcomes(cancelled, report);
    }

    /// How long what was undone is not tried again.
    fn hold_ns(&self) -> u64 {
        self.config.cooldown.as_nanos() as u64 * HOLD_COOLDOWNS
    }

    /// Brings threads back to where they were before a plan, and lets those go that it held; returns the time from which on.
    fn return_threads(&mut self, plan: Generation, changed: &Changed, held: &[ThreadId], report: &mut Report) -> u64 {
        let now_ns = monotonic_ns();
        self.undone_ns = now_ns;
        let hold_ns = self.hold_ns();
        let generation = self.generation.advance();
        for &(thread, node) in &changed.threads {
            let Some(now_at) = self.assignments.node_of(thread) else { continue };
            self.assignments.set(thread, node, generation);
            self.cooldowns.start_thread(thread, now_ns, hold_ns);
            report.thread_moves.push(ThreadMove {
                time_ns: now_ns,
                thread,
                from: self.topology.nodes[now_at].id.0,
                to: self.topology.nodes[node].id.0,
                generation: plan.0,
                reason: UNDONE.to_owned(),
            });
        }
        // Where nothing kept them before.
        held.iter().for_each(|&thread| self.assignments.withdraw(thread, generation));
        now_ns
    }
}

/// Processes in words.
fn listed(pids: &[u32]) -> String {
    let all = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if pids.len() == 1 { format!("process {all}") } else { format!("processes {all}") }
}

/// The groups of a plan that still have to go, with where they go.
fn on_their_way(mover: &dyn PageMover, generation: Generation, snapshot: &Snapshot) -> Vec<(GroupId, NodeIndex)> {
    let index_of = |id| snapshot.topology.nodes.iter().find(|(_, node)| node.id == id).map(|(index, _)| index);
    mover.queued_of(generation).into_iter().filter_map(|(group, to)| Some((group, index_of(to)?))).collect()
}
