// SPDX-License-Identifier: GPL-2.0-only
//! The agent's state, for those who ask while it runs.

use std::collections::BTreeMap;

use tandem_policies::decider::PolicyChoice;
use tandem_policies::model::{NodeIndex, ProcessId, Snapshot, ThreadId};
use tandem_policies::registry::Kind;
use tandem_policies::stall::{self, Locality};
use tandem_policies::stay::Stay;
use tandem_view::{Activity, AgentView, Maybe, MoveView, PlanView, SamplerView, Status, Superseding, Survey, survey};

use crate::config::AgentConfig;
use crate::report::{PlanResult, Report};

/// Moves and plans that are shown.
const SHOWN_MOVES: usize = 200;
const SHOWN_PLANS: usize = 50;

/// What is under way.
#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    /// Where threads are assigned to.
    pub assigned: BTreeMap<ThreadId, NodeIndex>,
    /// Threads that the last decision left away from the memory that they use most, and why.
    pub stays: BTreeMap<ThreadId, Stay>,
    /// Page groups that wait to be moved.
    pub queued_groups: usize,
}

/// Name of the policy that decides about what `kind` does: its own, or a joint one.
fn policy_of(config: &AgentConfig, kind: Kind) -> String {
    let decides = |policy: &&PolicyChoice| [kind, Kind::Joint].contains(&policy.kind());
    config.policies.iter().find(decides).map_or("none", PolicyChoice::name).to_owned()
}

/// The state after the interval of `snapshot`.
pub fn status(config: &AgentConfig, snapshot: &Snapshot, report: &Report, under_way: UnderWay) -> Status {
    let Survey { nodes, mut processes, mut threads, local_share, rates } = survey(snapshot);
    let mut moved = BTreeMap::new();
    for one in report.thread_moves.iter() {
        moved.insert(one.thread, one);
    }
    // A survey has the threads of its snapshot, in their order.
    for (thread, known) in threads.iter_mut().zip(snapshot.threads.iter()) {
        let assigned = under_way.assigned.get(&known.id);
        thread.assigned_to = assigned.map(|&node| u64::from(snapshot.topology.nodes[node].id.0)).into();
        // What was decided may be of before it went elsewhere or turned to other memory.
        let still = |stay: &&Stay| stay.at == known.node && Some(stay.preferred) == known.preferred_node();
        thread.stays_because = under_way.stays.get(&known.id).filter(still).map(Stay::to_string).unwrap_or_default();
        if let Some(one) = moved.get(&known.id) {
            thread.moved_at_ns = Maybe(Some(one.time_ns));
            thread.moved_from = Maybe(Some(u64::from(one.from)));
            thread.moved_to = Maybe(Some(u64::from(one.to)));
            thread.moved_generation = Maybe(Some(one.generation));
            thread.moved_why.clone_from(&one.reason);
        }
    }
    for process in &mut processes {
        let moved = u32::try_from(process.pid).ok().and_then(|pid| report.moved_of.get(&ProcessId(pid)));
        (process.moved_pages, process.returned_pages) =
            moved.map_or((0, 0), |moved| (moved.pages, moved.returned_pages));
    }
    let processes_of = snapshot.threads.iter().map(|thread| (thread.id, u64::from(thread.process.0))).collect();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time_ns: snapshot.time_ns,
        loaded_at_ns: report.loaded_at_ns,
        interval_ns: snapshot.interval_ns,
        mode: if config.dry_run { "dry-run" } else { "acting" }.to_owned(),
        thread_policy: policy_of(config, Kind::Thread),
        page_policy: policy_of(config, Kind::Page),
        local_share,
        latency_ns: stall::latency_ns(snapshot).into(),
        sampler: sampler(report, rates),
        activity: activity(report, &under_way),
        agent: agent(report),
        nodes,
        processes,
        threads,
        moves: moves(report, &processes_of),
        plans: report.plans.last(SHOWN_PLANS).map(plan).collect(),
    }
}

fn sampler(report: &Report, rates: String) -> SamplerView {
    let sampler = &report.sampler;
    SamplerView {
        name: sampler.name.to_owned(),
        rates,
        budget_percent: sampler.budget_percent,
        used_percent: sampler.used_percent,
        busy_threads: sampler.busy_threads as u64,
        covered_threads: sampler.covered_threads as u64,
        groups: sampler.groups as u64,
        group_bytes: sampler.group_bytes as u64,
    }
}

fn agent(report: &Report) -> AgentView {
    let cost = &report.cost;
    AgentView {
        cpu_ns: cost.cpu_ns,
        cpu_percent: cost.cpu_percent,
        interval_cpu_percent: cost.interval_cpu_percent,
        peak_resident_bytes: cost.peak_resident_bytes.into(),
    }
}

fn activity(report: &Report, under_way: &UnderWay) -> Activity {
    Activity {
        intervals: report.intervals,
        assigned_threads: under_way.assigned.len() as u64,
        thread_moves: report.thread_moves.total(),
        moved_pages: report.mover.moved_pages,
        queued_groups: under_way.queued_groups as u64,
        pressure_pauses: report.mover.pressure_pauses,
        lost_leases: report.lost_leases,
        plans: report.plans.total(),
        undone_plans: report.undone_plans,
        realised_share: report.realised_share().into(),
    }
}

/// Moves of threads and of pages in the order in which they were made.
fn moves(report: &Report, processes: &BTreeMap<ThreadId, u64>) -> Vec<MoveView> {
    let threads = report.thread_moves.last(SHOWN_MOVES).map(|one| MoveView {
        time_ns: one.time_ns,
        pid: processes.get(&one.thread).copied().into(),
        tid: Some(u64::from(one.thread.tid)).into(),
        from: Some(u64::from(one.from)).into(),
        to: u64::from(one.to),
        pages: 0,
        generation: Some(one.generation).into(),
        reason: one.reason.clone(),
    });
    let pages = report.page_moves.last(SHOWN_MOVES).map(|one| MoveView {
        time_ns: one.time_ns,
        pid: Some(u64::from(one.process)).into(),
        tid: Maybe(None),
        from: Maybe(None),
        to: u64::from(one.to),
        pages: one.moved_pages,
        generation: Some(one.outcome.generation.0).into(),
        reason: one.reason.clone(),
    });
    let mut all: Vec<MoveView> = threads.chain(pages).collect();
    all.sort_by_key(|one| one.time_ns);
    all.split_off(all.len().saturating_sub(SHOWN_MOVES))
}

fn latency_ns(locality: Option<Locality>) -> Maybe<f64> {
    locality.map(|locality| locality.latency_ns).into()
}

fn remote_share(locality: Option<Locality>) -> Maybe<f64> {
    locality.map(|locality| locality.remote_share).into()
}

fn plan(result: &PlanResult) -> PlanView {
    PlanView {
        time_ns: result.time_ns,
        generation: result.generation,
        moves: result.moves as u64,
        predicted_gain_ns_per_s: result.predicted_gain_ns_per_s.into(),
        measured_gain_ns_per_s: result.measured_gain_ns_per_s.into(),
        before_ns: latency_ns(result.before),
        expected_ns: latency_ns(result.expected),
        after_ns: latency_ns(result.after),
        without_ns: result.without_ns.into(),
        remote_before: remote_share(result.before),
        remote_expected: remote_share(result.expected),
        remote_after: remote_share(result.after),
        verdict: result.verdict.name().to_owned(),
        superseded_because: result.superseded_by.map_or("", Superseding::in_words).to_owned(),
        undone_of: result.undone_of.iter().map(|&process| process.into()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::AccessRates;
    use tandem_view::PlanVerdict;

    use super::*;
    use crate::report::ThreadMove;
    use crate::testing::{SECOND_NS, config, id, plan_result, snapshot};
    use crate::verify::Seen;

    fn moved(tid: u32, time_ns: u64, reason: &str) -> ThreadMove {
        ThreadMove { time_ns, thread: id(tid), from: 0, to: 1, generation: time_ns / 10, reason: reason.to_owned() }
    }

    #[test]
    fn a_thread_bears_its_last_move() {
        let mut report = Report::default();
        for one in [moved(2, 10, "first"), moved(2, 30, "second"), moved(9, 20, "of a thread that is gone")] {
            report.thread_moves.push(one);
        }
        let seen =
            Snapshot { access_rates: Some(AccessRates::Inferred), ..snapshot(&[(0, SECOND_NS), (1, SECOND_NS)]) };
        let under_way = UnderWay { assigned: [(id(2), NodeIndex(1))].into(), ..UnderWay::default() };
        let status = status(&config(), &seen, &report, under_way);
        let assigned: Vec<_> = status.threads.iter().map(|thread| thread.assigned_to.0).collect();
        assert_eq!(assigned, [None, Some(1)]);
        assert_eq!((status.activity.assigned_threads, status.sampler.rates.as_str()), (1, "inferred"));
        assert_eq!(status.threads[0].moved_at_ns, Maybe(None));
        let last = &status.threads[1];
        assert_eq!((last.moved_at_ns, last.moved_generation), (Maybe(Some(30)), Maybe(Some(3))));
        assert_eq!(
            (last.moved_from, last.moved_to, last.moved_why.as_str()),
            (Maybe(Some(0)), Maybe(Some(1)), "second")
        );
        let order: Vec<_> = status.moves.iter().map(|one| (one.time_ns, one.pid.0)).collect();
        assert_eq!(order, [(10, Some(1)), (20, None), (30, Some(1))]);
        assert_eq!((status.activity.thread_moves, status.mode.as_str()), (3, "dry-run"));
    }

    #[test]
    fn why_a_thread_stays_is_told_while_it_is_where_that_was_said() {
        let mut seen = snapshot(&[(0, SECOND_NS), (0, SECOND_NS)]);
        let stay = Stay {
            thread: id(1),
            at: NodeIndex(0),
            preferred: NodeIndex(1),
            saved_ns_per_s: 1e8,
            cpus_ns_per_s: 1e9,
            waits_ns_per_s: 0.0,
            price_ns_per_s: 0.0,
        };
        let mut told = |node, accesses: [f64; 2]| {
            (seen.threads[0].node, seen.threads[0].accesses_per_s) = (NodeIndex(node), Some(accesses.to_vec().into()));
            let under_way = UnderWay { stays: [(id(1), stay)].into(), ..UnderWay::default() };
            status(&config(), &seen, &Report::default(), under_way).threads.remove(0).stays_because
        };
        assert_eq!(told(0, [1.0, 2.0]), stay.to_string());
        assert_eq!([told(1, [1.0, 2.0]), told(0, [2.0, 1.0])], ["", ""], "it moved, or turned to other memory");
    }

    #[test]
    fn a_plan_is_on_trial_until_it_is_judged() {
        let mut report = Report::default();
        for generation in 1..=4 {
            report.plans.push(plan_result(generation, PlanVerdict::Trial));
        }
        report.end_trial(1, PlanVerdict::Undone, &Seen::default());
        report.end_trial(2, PlanVerdict::Kept, &Seen::default());
        report.supersede(3, Superseding::TookLong);
        let status = status(&config(), &snapshot(&[]), &report, UnderWay::default());
        let verdicts: Vec<_> = status.plans.iter().map(|plan| plan.verdict.as_str()).collect();
        assert_eq!(verdicts, ["undone", "kept", "superseded", "trial"]);
        let why: Vec<_> = status.plans.iter().map(|plan| plan.superseded_because.as_str()).collect();
        assert_eq!(why, ["", "", Superseding::TookLong.in_words(), ""]);
    }
}
