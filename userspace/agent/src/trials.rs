// SPDX-License-Identifier: GPL-2.0-only
//! The plan on trial, and the one before it that was kept: what of them paid, and taking back what made things worse.
//!
//! At most one plan is on trial, and nothing new is decided meanwhile. One that is kept while most of what is known of accesses is of
//! before it is looked at once more when that has changed ([`crate::verify`]), unless another plan has begun since. What is taken
//! back goes where it was at once if that is a thread, and by the mover's queue if it is pages: until they are back
//! ([`Trials::is_going_back`]) nobody plans with where they are.

use std::collections::BTreeSet;

use tandem_act::{Assignments, Cooldowns, Generation, Outcome, PageMover};
use tandem_policies::model::{GroupId, NodeIndex, ProcessId, Snapshot, ThreadId, Topology};
use tandem_policies::stall::Changed;
use tandem_view::{PlanVerdict, Superseding};
use tracing::warn;

use crate::moves::{LONGEST_NS, Moves};
use crate::parts::Turned;
use crate::reasons::UNDONE;
use crate::record::Notes;
use crate::report::{Report, ThreadMove};
use crate::verify::{Seen, Trial, Verdict};

/// What plans are carried out with, and taken back.
pub struct Actuators<'a> {
    /// The time, on CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// The machine.
    pub topology: &'a Topology,
    /// Moves pages.
    pub mover: &'a mut dyn PageMover,
    /// Keeps threads on nodes.
    pub assignments: &'a mut Assignments,
    /// Who rests.
    pub cooldowns: &'a mut Cooldowns,
    /// The last generation.
    pub generation: &'a mut Generation,
    /// What became of plans, for the recording.
    pub notes: &'a mut Notes,
    /// How long what was undone is not tried again.
    pub hold_ns: u64,
    /// Page moves that ended by what was done.
    pub ended: Vec<Outcome>,
}

/// Plans that are watched.
#[derive(Debug, Default)]
pub struct Trials {
    on_trial: Option<Trial>,
    /// The plan before it, if it was kept when what was known of accesses was mostly of before it, and no other one came since.
    kept: Option<Trial>,
    /// When something was last undone.
    undone_ns: Option<u64>,
}

impl Trials {
    /// Watches a plan. The one before it paid, as far as it is known.
    pub fn begin(&mut self, trial: Trial) {
        *self = Self { on_trial: Some(trial), kept: None, undone_ns: self.undone_ns };
    }

    /// Whether a plan is on trial.
    pub fn is_any_on_trial(&self) -> bool {
        self.on_trial.is_some()
    }

    /// Leaves the plan on trial without a verdict, and the one that was kept as it is.
    pub fn give_up(&mut self, by: Superseding, report: &mut Report) {
        self.kept = None;
        if let Some(trial) = self.on_trial.take() {
            report.supersede(trial.generation.0, by);
        }
    }

    /// Whether what was undone is still going back, for as long as a plan may take to move. Then it is planned anew with what is
    /// where by now, as it is while memory pressure holds all moves up.
    pub fn is_going_back(&self, mover: &dyn PageMover, now_ns: u64) -> bool {
        let is_young = |undone_ns: u64| now_ns.saturating_sub(undone_ns) < LONGEST_NS;
        mover.is_returning() && !mover.is_paused() && self.undone_ns.is_some_and(is_young)
    }

    /// Looks at the plan on trial, or once more at one that was kept, and undoes what of it made things worse; returns whether
    /// anything did.
    pub fn verify(&mut self, snapshot: &Snapshot, turned: &Turned, by: &mut Actuators, report: &mut Report) -> bool {
        let Some(mut trial) = self.on_trial.take() else { return self.verify_again(snapshot, turned, by, report) };
        let left = trial.leave(turned);
        if !left.is_empty() {
            by.stop_moves(&trial, &|process| left.contains(&process));
        }
        if trial.is_parted() && self.is_going_back(by.mover, by.now_ns) && !trial.is_done() {
            self.on_trial = Some(trial);
            return false;
        }
        let on_their_way = on_their_way(by.mover, trial.generation, snapshot);
        let moves = Moves::of(on_their_way.len(), by.mover.is_paused(), by.now_ns.saturating_sub(trial.since_ns));
        // What memory pressure holds up is where it is.
        let seen = trial.seen(snapshot, if moves.go_on() { &on_their_way } else { &[] });
        let verdict = trial.judge(moves, &seen);
        let undone = self.end(&mut trial, &verdict, &seen, by, report);
        match verdict {
            Verdict::Undo { .. } => {}
            Verdict::Wait => self.on_trial = Some(trial),
            Verdict::UndoParts(_) if !trial.is_done() => self.on_trial = Some(trial),
            Verdict::Keep { .. } if !trial.is_known(by.now_ns) => self.kept = Some(trial),
            Verdict::Keep { .. } => by.settle(&trial),
            Verdict::UndoParts(_) | Verdict::Superseded(_) => by.drop_trial(&trial),
        }
        undone
    }

    /// Looks once more at the plan that was kept, if there has been no other one since and enough is known by now. Of processes that
    /// went on to another phase nothing more is to be learnt.
    fn verify_again(&mut self, snapshot: &Snapshot, turned: &Turned, by: &mut Actuators, report: &mut Report) -> bool {
        let is_ready = |kept: &mut Trial| {
            kept.leave(turned);
            kept.is_done() || kept.is_known(by.now_ns)
        };
        let Some(mut kept) = self.kept.take_if(is_ready) else { return false };
        let seen = kept.seen(snapshot, &[]);
        // Where nothing is known any more what was measured at first stands.
        let is_judged = !kept.is_done() && seen.after.is_some();
        let verdict = is_judged.then(|| kept.judge_again(&seen));
        let undone = verdict.as_ref().is_some_and(|verdict| self.end(&mut kept, verdict, &seen, by, report));
        if matches!(verdict, Some(Verdict::UndoParts(_))) && !kept.is_done() {
            self.on_trial = Some(kept);
        } else {
            by.settle(&kept);
        }
        undone
    }

    /// What has the numbers and addresses of processes that are `gone` is not what plans moved. Of the plan on trial, and of the
    /// one that was kept, what is left is judged.
    pub fn leave_gone(&mut self, gone: &BTreeSet<ProcessId>, by: &mut Actuators, report: &mut Report) {
        self.kept.take_if(|kept| {
            kept.forget(gone);
            kept.is_done()
        });
        let free = self.on_trial.as_mut().map(|trial| trial.forget(gone)).unwrap_or_default();
        if !free.is_empty() {
            let generation = by.generation.advance();
            free.into_iter().for_each(|thread| by.assignments.withdraw(thread, generation));
        }
        if let Some(trial) = self.on_trial.take_if(|trial| trial.is_done()) {
            report.supersede(trial.generation.0, Superseding::ProcessesGone);
            by.drop_trial(&trial);
        }
    }

    /// Notes what became of a plan, and undoes what of it is to go; returns whether anything is.
    fn end(
        &mut self,
        trial: &mut Trial,
        verdict: &Verdict,
        seen: &Seen,
        by: &mut Actuators,
        report: &mut Report,
    ) -> bool {
        let generation = trial.generation.0;
        match *verdict {
            Verdict::Wait => false,
            Verdict::Superseded(superseding) => {
                report.supersede(generation, superseding);
                false
            }
            Verdict::UndoParts(ref processes) => {
                self.undone_ns = Some(by.now_ns);
                by.undo_parts(trial, processes, report);
                if trial.is_done() {
                    report.end_trial(generation, PlanVerdict::Undone, seen);
                    by.notes.judged(trial, seen.after.map(|after| after.latency_ns), true);
                }
                true
            }
            Verdict::Keep { after_ns } => {
                report.end_trial(generation, PlanVerdict::Kept, seen);
                by.notes.judged(trial, after_ns, false);
                false
            }
            Verdict::Undo { after_ns } => {
                self.undone_ns = Some(by.now_ns);
                report.end_trial(generation, PlanVerdict::Undone, seen);
                by.notes.judged(trial, Some(after_ns), true);
                by.undo(trial, report);
                true
            }
        }
    }
}

impl Actuators<'_> {
    /// What a plan moved stays.
    fn settle(&mut self, trial: &Trial) {
        self.mover.forget_before(Generation(trial.generation.0 + 1));
    }

    /// What is still on its way of a plan that is not watched any more need not go there, and what it moved stays.
    fn drop_trial(&mut self, trial: &Trial) {
        self.stop_moves(trial, &|_| true);
        self.settle(trial);
    }

    /// Drops what is still queued of a plan, of the processes that are meant.
    fn stop_moves(&mut self, trial: &Trial, is_meant: &dyn Fn(ProcessId) -> bool) {
        self.ended.extend(self.mover.stop_of(trial.generation, is_meant, self.now_ns, self.cooldowns));
    }

    fn undo(&mut self, trial: &Trial, report: &mut Report) {
        warn!(event = "undo", "the last plan did not pay: undoing it");
        self.return_threads(trial.generation, &trial.changed, &trial.held, report);
        self.ended.extend(self.mover.undo(trial.generation, self.now_ns, self.hold_ns));
    }

    fn undo_parts(&mut self, trial: &mut Trial, processes: &BTreeSet<ProcessId>, report: &mut Report) {
        let pids: Vec<u32> = processes.iter().map(|process| process.0).collect();
        warn!(event = "undo", "the last plan slowed {} down: undoing what it changed there", listed(&pids));
        let (changed, held) = trial.take_parts(processes);
        self.return_threads(trial.generation, &changed, &held, report);
        let is_meant = |process| processes.contains(&process);
        self.ended.extend(self.mover.undo_of(trial.generation, &is_meant, self.now_ns, self.hold_ns));
        report.undo_parts(trial.generation.0, pids);
    }

    /// Brings threads back to where they were before a plan, and lets those go that it held.
    fn return_threads(&mut self, plan: Generation, changed: &Changed, held: &[ThreadId], report: &mut Report) {
        let generation = self.generation.advance();
        for &(thread, node) in &changed.threads {
            let Some(now_at) = self.assignments.node_of(thread) else { continue };
            self.assignments.set(thread, node, generation);
            self.cooldowns.start_thread(thread, self.now_ns, self.hold_ns);
            report.thread_moves.push(ThreadMove {
                time_ns: self.now_ns,
                thread,
                from: self.topology.nodes[now_at].id.0,
                to: self.topology.nodes[node].id.0,
                generation: plan.0,
                reason: UNDONE.to_owned(),
            });
        }
        // Where nothing kept them before.
        held.iter().for_each(|&thread| self.assignments.withdraw(thread, generation));
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

#[cfg(test)]
mod tests;
