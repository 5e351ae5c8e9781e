// SPDX-License-Identifier: GPL-2.0-only
//! Carrying out a plan: leases for its threads, and a queue for its pages.

use std::collections::{BTreeMap, BTreeSet};

use tandem_act::{Generation, PageMove, Refused};
use tandem_policies::decider::PolicyChoice;
use tandem_policies::model::{Action, GroupId, Move, NodeIndex, PerNode, Plan, Snapshot, ThreadId};
use tandem_policies::stall::{Changed, localities, localities_expected, waited};
use tandem_sense::monotonic_ns;
use tandem_trace::Decision;
use tandem_view::PlanVerdict;
use tracing::{debug, info, warn};

use super::Agent;
use crate::leases::{Lease, leases};
use crate::parts::Parts;
use crate::report::{PlanResult, Report, ThreadMove};
use crate::talk;
use crate::verify::Trial;

impl Agent {
    /// Carries out the plan that was taken, if one was; returns its number, none if it was left.
    pub(super) fn carry_out(&mut self, snapshot: &Snapshot, decision: &Decision, report: &mut Report) -> Option<u64> {
        let choice = self.decider.choices()[decision.taken?].clone();
        self.act(snapshot, decision.plan()?, &choice, report)
    }

    /// Carries out a plan; returns its number, none if it was left.
    fn act(&mut self, snapshot: &Snapshot, plan: &Plan, of: &PolicyChoice, report: &mut Report) -> Option<u64> {
        self.tell(snapshot, plan);
        self.plans += 1;
        if self.config.dry_run {
            return None;
        }
        let generation = self.generation.advance();
        let now_ns = monotonic_ns();
        let turned_ns = |thread| snapshot.thread(thread).and_then(|known| known.turned_ns);
        let rest_ns = self.rest.of(plan, turned_ns, now_ns);
        let (moved, held) = self.act_on_threads(snapshot, plan, generation, (now_ns, rest_ns), report);
        let queued = self.act_on_pages(snapshot, plan, generation, (now_ns, rest_ns));
        if moved.is_empty() && queued.is_empty() {
            // Nobody will judge it, so nobody would let go of whom it holds.
            held.iter().for_each(|&thread| self.assignments.withdraw(thread, generation));
            return Some(generation.0);
        }
        self.mover.forget_before(generation);
        // What is expected is what was begun.
        let begun = without_pages_but(plan, &queued);
        let before = localities(snapshot);
        let before_ns = before.all.map(|before| before.latency_ns);
        let gains_ns_per_s: Option<f64> = begun.moves.iter().map(|planned| planned.gain_ns_per_s).sum();
        let waited = waited(snapshot);
        let expected = localities_expected(snapshot, &begun);
        report.plans.push(PlanResult {
            time_ns: now_ns,
            generation: generation.0,
            interval: report.intervals,
            judged_after_intervals: None,
            moves: moved.len() + queued.len(),
            predicted_gain_ns_per_s: gains_ns_per_s.map(|gains| (gains * waited.share).min(waited.ns_per_s)),
            without_ns: None,
            measured_gain_ns_per_s: None,
            waited_share: waited.share,
            before: before.all,
            expected: expected.all,
            after: None,
            verdict: PlanVerdict::Trial,
            superseded_by: None,
            undone_of: Vec::new(),
        });
        let changed = Changed { threads: moved, groups: places_of_moved(snapshot, &begun) };
        let expected_ns = expected.all.map(|expected| expected.latency_ns);
        let parts = Parts::of(snapshot, (&changed, &held), &before, &expected);
        let trial = Trial::new(generation, now_ns, before_ns, changed, of.explores()).holding(held).in_parts(parts);
        self.trials.begin(trial.expecting(expected_ns, gains_ns_per_s.filter(|_| of.weighs_cpus())));
        Some(generation.0)
    }

    /// Says the moves of a plan, the first of them if there are many.
    fn tell(&mut self, snapshot: &Snapshot, plan: &Plan) {
        let would = if self.config.dry_run { "would: " } else { "" };
        let told = self.talk.take(monotonic_ns(), plan.moves.len());
        for planned in &plan.moves[..told] {
            talk::tell(planned, &snapshot.topology, self.config.dry_run);
        }
        if told > 0 && told < plan.moves.len() {
            info!("{would}{} further moves, which are not listed", plan.moves.len() - told);
        }
    }

    /// Sets the plan's leases; threads that it moves now rest for so long. Returns the threads that change node, with the
    /// node before, and those that it keeps where they are though nothing did before.
    fn act_on_threads(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        generation: Generation,
        (now_ns, rest_ns): (u64, u64),
        report: &mut Report,
    ) -> (Vec<(ThreadId, NodeIndex)>, Vec<ThreadId>) {
        let reasons = reasons_by_thread(plan);
        let (mut moved, mut held) = (Vec::new(), Vec::new());
        for Lease { thread, from, to } in leases(snapshot, plan) {
            let was_leased = self.assignments.node_of(thread).is_some();
            self.assignments.set(thread, to, generation);
            if from == to {
                held.extend((!was_leased).then_some(thread));
                continue;
            }
            self.cooldowns.start_thread(thread, now_ns, rest_ns);
            report.thread_moves.push(ThreadMove {
                time_ns: now_ns,
                thread,
                from: self.topology.nodes[from].id.0,
                to: self.topology.nodes[to].id.0,
                generation: generation.0,
                reason: reasons.get(&thread).cloned().unwrap_or_default(),
            });
            moved.push((thread, from));
        }
        (moved, held)
    }

    /// Queues page moves, from now on; pages rest for so long once they moved. Returns those that were taken.
    fn act_on_pages(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        generation: Generation,
        (now_ns, rest_ns): (u64, u64),
    ) -> BTreeSet<GroupId> {
        let huge_groups: BTreeSet<GroupId> =
            snapshot.groups.iter().filter(|group| group.huge).map(|group| group.id).collect();
        let (mut queued, mut too_many) = (BTreeSet::new(), 0);
        for planned in &plan.moves {
            let Action::MovePages { group, bytes, to } = planned.action else { continue };
            let to = self.topology.nodes[to].id;
            let huge = huge_groups.contains(&group);
            let wanted = PageMove { group, bytes, huge, to, generation, cooldown_ns: rest_ns };
            match self.mover.enqueue(wanted, now_ns, &self.cooldowns) {
                Ok(()) => {
                    self.reasons.note(generation, group, planned.reason.clone());
                    queued.insert(group);
                }
                Err(refused) => {
                    debug!("pages at {:#x} of {} stay: {refused}", group.start, group.process.0);
                    too_many += usize::from(refused == Refused::QueueFull);
                }
            }
        }
        if too_many > 0 {
            warn!("{too_many} groups of pages stay where they are: {}", Refused::QueueFull);
        }
        queued
    }
}

/// The plan with those of its page moves alone that `queued` names.
fn without_pages_but(plan: &Plan, queued: &BTreeSet<GroupId>) -> Plan {
    let is_begun = |planned: &&Move| match &planned.action {
        Action::MovePages { group, .. } => queued.contains(group),
        Action::MoveThread { .. } | Action::Interchange { .. } => true,
    };
    Plan { moves: plan.moves.iter().filter(is_begun).cloned().collect() }
}

/// Where the pages of groups that a plan moves are before it.
pub(super) fn places_of_moved(snapshot: &Snapshot, plan: &Plan) -> BTreeMap<GroupId, PerNode<u64>> {
    let group = |planned: &Move| if let Action::MovePages { group, .. } = planned.action { Some(group) } else { None };
    let moved: BTreeSet<GroupId> = plan.moves.iter().filter_map(group).collect();
    let places = snapshot.groups.iter().filter(|group| moved.contains(&group.id));
    places.map(|group| (group.id, group.resident_pages.clone())).collect()
}

fn reasons_by_thread(plan: &Plan) -> BTreeMap<ThreadId, String> {
    let mut reasons = BTreeMap::new();
    for planned in &plan.moves {
        match planned.action {
            Action::MoveThread { thread, .. } => {
                reasons.insert(thread, planned.reason.clone());
            }
            Action::Interchange { first, second, .. } => {
                reasons.insert(first, planned.reason.clone());
                reasons.insert(second, planned.reason.clone());
            }
            Action::MovePages { .. } => {}
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::ProcessId;

    use super::*;
    use crate::testing::id;

    #[test]
    fn of_a_plan_the_threads_and_the_pages_that_were_queued_are_begun() {
        let group = |start| GroupId { process: ProcessId(1), start };
        let pages = |start| Action::MovePages { group: group(start), bytes: 4096, to: NodeIndex(1) };
        let thread = Action::MoveThread { thread: id(1), from: NodeIndex(0), to: NodeIndex(1), cpu: None };
        let planned = |action| Move { action, gain_ns_per_s: Some(1.0), reason: "test".to_owned() };
        let plan = Plan { moves: [pages(0), thread.clone(), pages(4096)].map(planned).into() };
        let begun = without_pages_but(&plan, &[group(4096)].into());
        let actions: Vec<Action> = begun.moves.into_iter().map(|planned| planned.action).collect();
        assert_eq!(actions, [thread, pages(4096)]);
    }
}
