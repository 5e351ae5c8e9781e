// SPDX-License-Identifier: GPL-2.0-only
//! What the agent tells: its log, its report and its status.

use anyhow::Result;
use tandem_act::{Ended, Outcome, Purpose};
use tandem_policies::model::{PAGE_BYTES, Snapshot};
use tandem_sense::monotonic_ns;
use tandem_view::Status;
use tracing::{debug, info, warn};

use super::Agent;
use crate::leases::busy;
use crate::report::{PagesMove, PolicyStatement, Report};
use crate::status::{UnderWay, status};
use crate::talk::tell_statistics;

impl Agent {
    /// Logs what policies say of what they are doing, once for each change.
    pub(super) fn note_statements(&mut self, report: &mut Report) {
        let statements = self.decider.statements();
        for (at, choice) in self.decider.choices().iter().enumerate() {
            let said = statements[at].as_ref().filter(|now| self.statements.get(at) != Some(&Some((*now).clone())));
            if let Some(statement) = said {
                info!("policy {} {statement}", choice.name());
                let (time_ns, policy) = (monotonic_ns(), choice.name());
                report.choices.push(PolicyStatement { time_ns, policy, statement: statement.clone() });
            }
        }
        self.statements = statements;
        let speeds = self.decider.speeds(&self.topology);
        if speeds != self.speeds {
            info!("{}", speeds.as_deref().unwrap_or("all nodes do what is stated of them"));
            self.speeds = speeds;
        }
    }

    /// Counts what became of moves of pages, and tells those that moved or could not.
    pub(super) fn note_outcomes(&mut self, outcomes: Vec<Outcome>, report: &mut Report) {
        if let Some(left) = left_by_undo(&outcomes) {
            warn!(event = "undo_incomplete", "{left}");
        }
        for outcome in outcomes {
            self.notes.pages(&outcome);
            self.stuck.note(&outcome, monotonic_ns());
            self.contested.note(&outcome, monotonic_ns());
            if outcome.ended == Ended::NodeNotAllowed {
                self.process_memories.doubt(outcome.group.process);
            }
            if outcome.moved_pages > 0 {
                self.sensor.note_moved(outcome.group);
            }
            report.mover.moved_pages += outcome.moved_pages;
            report.moved_of.entry(outcome.group.process).or_default().note(&outcome);
            report.mover.call_ns += outcome.time_ns;
            let reason = self.reasons.take(&outcome);
            debug!("pages at {:#x} of {}: {:?}", outcome.start, outcome.group.process.0, outcome.ended);
            if outcome.moved_pages == 0 && outcome.already_there_pages == outcome.requested_pages {
                continue;
            }
            report.page_moves.push(PagesMove {
                time_ns: monotonic_ns(),
                process: outcome.group.process.0,
                start: outcome.start,
                to: outcome.to.0,
                moved_pages: outcome.moved_pages,
                reason,
                outcome,
            });
        }
    }

    /// Brings report and status up to date at the end of an interval.
    pub(super) fn update_report(&mut self, snapshot: &Snapshot, report: &mut Report) -> Result<()> {
        let statistics = self.scheduler.statistics()?;
        report.assignments = statistics.assignments().map(|(outcome, count)| (outcome.name(), count)).collect();
        report.scheduler = statistics.events().collect();
        report.mover.budget_pages_per_s = self.config.page_rate_bytes_per_s / PAGE_BYTES;
        report.mover.budget_call_ns_per_s = (self.config.mover_budget * 1e9) as u64;
        report.mover.cost_ns_per_page = self.mover.cost_ns_per_page();
        report.mover.cost_ns_per_huge_page = self.mover.cost_ns_per_huge_page();
        let lost_undo_entries = self.mover.lost_undo_entries();
        if let Some(words) = lost_in_words(report.mover.lost_undo_entries, lost_undo_entries) {
            warn!("{words}");
        }
        report.mover.lost_undo_entries = lost_undo_entries;
        report.sampler.busy_threads = busy(snapshot).count();
        report.sampler.covered_threads = busy(snapshot).filter(|thread| thread.accesses_per_s.is_some()).count();
        report.sampler.groups = snapshot.groups.len();
        report.sampler.group_bytes = self.sensor.group_bytes();
        report.sampler.name = self.sensor.name();
        report.sampler.budget_percent = self.config.sampler_budget * 100.0;
        report.sampler.counters = self.sensor.counters();
        report.sampler.tables = self.sensor.table_counters();
        let elapsed_ns = monotonic_ns() - self.started_ns;
        report.cost.note_interval();
        report.sampler.used_percent = report.sampler.counters.cost_ns() as f64 / elapsed_ns.max(1) as f64 * 100.0;
        let under_way = UnderWay {
            assigned: self.assignments.nodes().collect(),
            // In a dry run others do not go where that counts on them.
            stays: self.decider.stays().filter(|_| !self.config.dry_run).map(|&stay| (stay.thread, stay)).collect(),
            queued_groups: self.mover.queued_groups(),
        };
        let status = status(&self.config, snapshot, report, under_way);
        self.print_stats(&status);
        if let Some(board) = &self.config.board {
            board.publish(status);
        }
        Ok(())
    }

    fn print_stats(&mut self, status: &Status) {
        let Some(every) = self.config.stats_interval else { return };
        let now_ns = monotonic_ns();
        if now_ns - self.last_stats_ns >= every.as_nanos() as u64 {
            self.last_stats_ns = now_ns;
            tell_statistics(status);
        }
    }
}

/// What is to be said, the first time, of pages of which it is not known any more where they came from.
fn lost_in_words(known: u64, lost: u64) -> Option<String> {
    (known == 0 && lost > 0).then(|| {
        format!(
            "a plan moves pages from more places than can be noted: pages in {lost} blocks so far stay where they are if it \
             does not pay"
        )
    })
}

/// What is to be said, once for all of them, of pages that should have gone back and did not though their process is there: where they
/// stay they slow it down.
fn left_by_undo(outcomes: &[Outcome]) -> Option<String> {
    let left = |outcome: &Outcome| outcome.no_memory_pages + outcome.not_tried_pages + outcome.busy_pages;
    let of_undo =
        |outcome: &&Outcome| matches!(outcome.purpose, Purpose::Undo { .. }) && outcome.ended != Ended::ProcessGone;
    let incomplete: Vec<&Outcome> = outcomes.iter().filter(of_undo).filter(|outcome| left(outcome) > 0).collect();
    let first = incomplete.first()?;
    let pages: u64 = incomplete.iter().map(|outcome| left(outcome)).sum();
    Some(format!(
        "{pages} pages did not go back when a plan was undone, the first of them at {:#x} of process {} to node {} ({:?}): they \
         stay until a plan moves them",
        first.start, first.group.process.0, first.to.0, first.ended
    ))
}

#[cfg(test)]
mod tests {
    use tandem_act::Generation;
    use tandem_policies::model::{GroupId, NodeId, ProcessId};

    use super::*;
    use crate::testing::outcome;

    #[test]
    fn runs_that_cannot_go_back_any_more_are_told_once() {
        assert_eq!(lost_in_words(0, 0), None);
        assert!(lost_in_words(0, 3).unwrap().contains("pages in 3 blocks so far stay where they are"));
        assert_eq!(lost_in_words(3, 4), None);
    }

    #[test]
    fn pages_that_could_not_go_back_are_told() {
        let group = GroupId { process: ProcessId(7), start: 0x1000 };
        let back = Purpose::Undo { from: NodeId(0) };
        let of = |purpose, no_memory_pages, ended| Outcome {
            no_memory_pages,
            ended,
            ..outcome(group, Generation(1), purpose)
        };
        let silent =
            [of(back, 0, Ended::Done), of(Purpose::Plan, 1, Ended::TargetFull), of(back, 1, Ended::ProcessGone)];
        assert_eq!(left_by_undo(&silent), None);
        let told = left_by_undo(&[of(back, 1, Ended::TargetFull), of(back, 2, Ended::Cancelled)]).unwrap();
        let expected = "3 pages did not go back when a plan was undone, the first of them at 0x1000 of process 7 to node 1 \
                        (TargetFull): they stay until a plan moves them";
        assert_eq!(told, expected);
    }
}
