// SPDX-License-Identifier: GPL-2.0-only
//! What an agent saw and did, for people and programs that ask afterwards.

use std::collections::{BTreeMap, VecDeque};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use tandem_act::{Outcome, Purpose};
use tandem_policies::model::{ProcessId, ThreadId};
use tandem_policies::stall::Locality;
use tandem_sense::{SamplerCounters, SensorCounters};
use tandem_trace::Recording;
use tandem_view::{PlanVerdict, Superseding};

use crate::cost::CostReport;
use crate::verify::Seen;

/// Entries of each list that are kept; older ones are dropped and counted.
const KEPT: usize = 10_000;
/// Plans whose savings tell what is to be had of the next one.
const REMEMBERED_PLANS: usize = 16;

/// A list that forgets its oldest entries.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Recent<T> {
    entries: VecDeque<T>,
    #[serde(skip)]
    dropped: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), dropped: 0 }
    }
}

impl<T> Recent<T> {
    /// Adds an entry, and drops the oldest if there are too many.
    pub fn push(&mut self, entry: T) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
            self.dropped += 1;
        }
        self.entries.push_back(entry);
    }

    /// Entries from the oldest on.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.entries.iter()
    }

    /// The last `count` entries that are kept, from the oldest on.
    pub fn last(&self, count: usize) -> impl Iterator<Item = &T> {
        self.entries.iter().skip(self.entries.len().saturating_sub(count))
    }

    /// Entries that were ever added.
    pub fn total(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// Entries from the oldest on, to be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.entries.iter_mut()
    }
}

/// A thread that was sent to another node.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadMove {
    /// When, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The thread.
    #[serde(flatten)]
    pub thread: ThreadId,
    /// The kernel's id of its node before.
    pub from: u32,
    /// And after.
    pub to: u32,
    /// The plan that it was moved for, or taken back from.
    pub generation: u64,
    /// Why.
    pub reason: String,
}

/// Pages that were moved.
#[derive(Clone, Debug, Serialize)]
pub struct PagesMove {
    /// When it was done, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Whose pages.
    pub process: u32,
    /// Address of the first.
    pub start: u64,
    /// The kernel's id of the target node.
    pub to: u32,
    /// Pages that are there now and were elsewhere before.
    pub moved_pages: u64,
    /// Why.
    pub reason: String,
    /// What became of each page, in full.
    pub outcome: Outcome,
}

/// Pages of a process that were moved since it is managed.
#[derive(Clone, Copy, Debug, Default)]
pub struct MovedOf {
    /// By plans.
    pub pages: u64,
    /// Back, as a plan did not pay.
    pub returned_pages: u64,
}

impl MovedOf {
    /// Counts what became of a move.
    pub fn note(&mut self, outcome: &Outcome) {
        match outcome.purpose {
            Purpose::Plan => self.pages += outcome.moved_pages,
            Purpose::Undo { .. } => self.returned_pages += outcome.moved_pages,
        }
    }
}

/// A plan and what it brought.
#[derive(Clone, Debug, Serialize)]
pub struct PlanResult {
    /// When it was decided, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Its generation.
    pub generation: u64,
    /// The interval at the end of which it was decided.
    pub interval: u64,
    /// Intervals from then until it was judged, the last time if it was judged twice.
    pub judged_after_intervals: Option<u64>,
    /// Moves in it.
    pub moves: usize,
    /// Stall it should save, as far as threads can really wait.
    pub predicted_gain_ns_per_s: Option<f64>,
    /// The latency that an access would have had then without it.
    pub without_ns: Option<f64>,
    /// Stall it saved, by that and the accesses then.
    pub measured_gain_ns_per_s: Option<f64>,
    /// For how much of what accesses and latencies come to that was ([`tandem_policies::stall::Waited::share`]).
    pub waited_share: f64,
    /// What accesses were like when it was decided; `None` when a signal was missing, as below.
    pub before: Option<Locality>,
    /// What they should be like after it, if threads go on as they did.
    pub expected: Option<Locality>,
    /// What they were like when it was judged.
    pub after: Option<Locality>,
    /// What became of it.
    pub verdict: PlanVerdict,
    /// Why it was superseded, if it was.
    pub superseded_by: Option<Superseding>,
    /// Processes of which what it changed was taken back alone.
    pub undone_of: Vec<u32>,
}

impl PlanResult {
    /// Latency of an access that it saved when it was judged.
    fn saved_ns(&self) -> Option<f64> {
        self.without_ns.zip(self.after).map(|(without_ns, after)| without_ns - after.latency_ns)
    }
}

/// What a policy said of what it is doing, from then on.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyStatement {
    /// When, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Its name.
    pub policy: &'static str,
    /// In its own words.
    pub statement: String,
}

/// What the sampler may use and did use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SamplerReport {
    /// Name of the sampler.
    pub name: &'static str,
    /// CPU time allowed, in percent of one CPU.
    pub budget_percent: f64,
    /// CPU time used, in percent of one CPU.
    pub used_percent: f64,
    /// Managed threads with a signal in the last interval, of those that used a CPU.
    pub covered_threads: usize,
    /// Managed threads that used a CPU in the last interval.
    pub busy_threads: usize,
    /// Page groups known.
    pub groups: usize,
    /// Memory that these and the pages in which sharing is looked for take.
    pub group_bytes: usize,
    /// Everything it counts.
    pub counters: SamplerCounters,
    /// What happened to accesses afterwards: what found no room, what nobody could tell.
    pub tables: SensorCounters,
}

/// What the mover may use and did use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MoverReport {
    /// Pages per second allowed.
    pub budget_pages_per_s: u64,
    /// Time inside system calls allowed per second.
    pub budget_call_ns_per_s: u64,
    /// Pages moved.
    pub moved_pages: u64,
    /// Time inside system calls.
    pub call_ns: u64,
    /// Measured cost of a page that moves by itself.
    pub cost_ns_per_page: Option<f64>,
    /// The same of a huge page that moves whole.
    pub cost_ns_per_huge_page: Option<f64>,
    /// Times that moves waited for memory pressure to end.
    pub pressure_pauses: u64,
    /// Blocks of 2 MiB of which pages that were moved cannot go back any more if their plan is undone, as there was no room to note more.
    pub lost_undo_entries: u64,
}

/// Everything.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// When the scheduler was there, on CLOCK_MONOTONIC.
    pub loaded_at_ns: u64,
    /// Intervals since.
    pub intervals: u64,
    /// Sampling.
    pub sampler: SamplerReport,
    /// Page moving.
    pub mover: MoverReport,
    /// What all of this took.
    pub cost: CostReport,
    /// Threads moved; written with their number as `thread_moves_total`.
    #[serde(flatten, serialize_with = "thread_moves")]
    pub thread_moves: Recent<ThreadMove>,
    /// Pages moved; written with their number as `page_moves_total`.
    #[serde(flatten, serialize_with = "page_moves")]
    pub page_moves: Recent<PagesMove>,
    /// Of processes that are managed still.
    #[serde(skip)]
    pub moved_of: BTreeMap<ProcessId, MovedOf>,
    /// Plans; written with their number as `plans_total`.
    #[serde(flatten, serialize_with = "plans")]
    pub plans: Recent<PlanResult>,
    /// Plans that were rolled back, or something of which was.
    pub undone_plans: u64,
    /// Times that leases ran out because this process stood still, so that the plan under way was given up.
    pub lost_leases: u64,
    /// What joint policies chose, and why.
    pub choices: Recent<PolicyStatement>,
    /// Assignments by outcome, since the scheduler was loaded.
    pub assignments: BTreeMap<&'static str, u64>,
    /// Events of the scheduler, since it was loaded.
    pub scheduler: BTreeMap<&'static str, u64>,
    /// The recording, if there is one; written when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<Recording>,
}

fn thread_moves<S: Serializer>(moves: &Recent<ThreadMove>, serializer: S) -> Result<S::Ok, S::Error> {
    with_total(["thread_moves", "thread_moves_total"], moves, serializer)
}

fn page_moves<S: Serializer>(moves: &Recent<PagesMove>, serializer: S) -> Result<S::Ok, S::Error> {
    with_total(["page_moves", "page_moves_total"], moves, serializer)
}

fn plans<S: Serializer>(plans: &Recent<PlanResult>, serializer: S) -> Result<S::Ok, S::Error> {
    with_total(["plans", "plans_total"], plans, serializer)
}

/// A list, and how many entries it ever had: what it forgot was there.
fn with_total<T: Serialize, S: Serializer>(
    [list, total]: [&str; 2],
    entries: &Recent<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry(list, entries)?;
    map.serialize_entry(total, &entries.total())?;
    map.end()
}

impl Report {
    /// The plan of this generation was judged by what was seen of it. What it saved is told against what it would be without it, for
    /// what programs do now: they may do something else than before it, which is not its doing.
    pub fn end_trial(&mut self, generation: u64, verdict: PlanVerdict, seen: &Seen) {
        let was_parted = self.plan(generation).is_some_and(|result| !result.undone_of.is_empty());
        self.undone_plans += u64::from(verdict == PlanVerdict::Undone && !was_parted);
        let intervals = self.intervals;
        if let Some(result) = self.plan(generation) {
            (result.verdict, result.after) = (verdict, seen.after);
            result.judged_after_intervals = Some(intervals - result.interval);
            result.without_ns = seen.without_ns.filter(|_| result.before.is_some());
            result.measured_gain_ns_per_s = result.saved_ns().map(|ns| ns * result.waited_share * seen.accesses_per_s);
        }
    }

    /// What the plan of this generation changed of these processes was taken back.
    pub fn undo_parts(&mut self, generation: u64, processes: Vec<u32>) {
        let Some(result) = self.plan(generation) else { return };
        let is_first = result.undone_of.is_empty();
        result.undone_of.extend(processes);
        self.undone_plans += u64::from(is_first);
    }

    /// The plan of this generation was given up before it was judged.
    pub fn supersede(&mut self, generation: u64, by: Superseding) {
        if let Some(result) = self.plan(generation) {
            (result.verdict, result.superseded_by) = (PlanVerdict::Superseded, Some(by));
        }
    }

    fn plan(&mut self, generation: u64) -> Option<&mut PlanResult> {
        self.plans.iter_mut().rev().find(|plan| plan.generation == generation)
    }

    /// Of the latency that the last plans that were judged should save, the share that they did: 1 if all came as expected, less
    /// than 0 if it became worse. `None` before the first of them.
    pub fn realised_share(&self) -> Option<f64> {
        let (plans, saved_ns, expected_ns) = self.savings();
        (plans > 0 && expected_ns > 0.0).then(|| saved_ns / expected_ns)
    }

    /// The same for the next plan: one that comes as expected counts with those that were judged, so that the first of them does not
    /// decide alone.
    pub fn expectable_share(&self) -> Option<f64> {
        let (plans, saved_ns, expected_ns) = self.savings();
        let one_ns = expected_ns / plans.max(1) as f64;
        (plans > 0 && expected_ns > 0.0).then(|| (saved_ns + one_ns) / (expected_ns + one_ns))
    }

    /// The last plans that were judged and should make accesses nearer: how many, and what they saved and should save of an
    /// access, in sum. Some plans spread what memories have to do where no wait was measured: of these nothing can be expected.
    fn savings(&self) -> (usize, f64, f64) {
        let judged = self
            .plans
            .iter()
            .rev()
            .filter_map(|plan| Some((plan.saved_ns()?, plan.before?.latency_ns - plan.expected?.latency_ns)));
        let nearer = judged.filter(|&(_, expected_ns)| expected_ns > 0.0);
        nearer.take(REMEMBERED_PLANS).fold((0, 0.0, 0.0), |(plans, saved_ns, expected_ns), (saved, expected)| {
            (plans + 1, saved_ns + saved, expected_ns + expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan_result;

    #[test]
    fn the_end_of_a_trial_is_noted_for_its_plan_alone() {
        let mut report = Report::default();
        for generation in 1..=3 {
            report.plans.push(plan_result(generation, PlanVerdict::Trial));
        }
        report.supersede(2, Superseding::Turned);
        report.intervals = 3;
        let worse = Locality { latency_ns: 110.0, remote_share: 0.6 };
        let seen = |after| Seen { after, without_ns: Some(100.0), accesses_per_s: 2e6, ..Seen::default() };
        report.end_trial(3, PlanVerdict::Undone, &seen(Some(worse)));
        let ended: Vec<_> = report.plans.iter().map(|plan| (plan.verdict, plan.after)).collect();
        let expected =
            [(PlanVerdict::Trial, None), (PlanVerdict::Superseded, None), (PlanVerdict::Undone, Some(worse))];
        assert_eq!((ended.as_slice(), report.undone_plans), (expected.as_slice(), 1));
        report.undo_parts(1, vec![17]);
        report.undo_parts(1, vec![18]);
        report.end_trial(1, PlanVerdict::Undone, &seen(None));
        assert_eq!((report.undone_plans, &report.plan(1).unwrap().undone_of[..]), (2, &[17, 18][..]));
        let intervals: Vec<_> = report.plans.iter().map(|plan| plan.judged_after_intervals).collect();
        assert_eq!(intervals, [Some(3), None, Some(3)], "since it was made");
        let gains: Vec<_> = report.plans.iter().map(|plan| plan.measured_gain_ns_per_s).collect();
        assert_eq!(gains, [None, None, Some(-2e7)], "10 ns more, 2 million times");
    }

    #[test]
    fn what_plans_brought_is_told_of_what_was_expected_of_them() {
        let mut report = Report::default();
        assert_eq!((report.realised_share(), report.expectable_share()), (None, None), "no plan");
        for generation in 1..=4 {
            // Of 100 ns an access, 80 are expected to be left.
            report.plans.push(plan_result(generation, PlanVerdict::Trial));
        }
        let seen = |without_ns, latency_ns| {
            let after = Some(Locality { latency_ns, remote_share: 0.3 });
            Seen { after, without_ns: Some(without_ns), accesses_per_s: 1.0, ..Seen::default() }
        };
        report.end_trial(1, PlanVerdict::Kept, &seen(100.0, 85.0));
        assert_eq!((report.realised_share(), report.expectable_share()), (Some(0.75), Some(0.875)));
        report.end_trial(2, PlanVerdict::Undone, &seen(100.0, 105.0));
        report.supersede(3, Superseding::Turned);
        assert_eq!(report.realised_share(), Some(0.25), "15 ns saved and 5 lost, of 40");
        assert_eq!(report.expectable_share(), Some(0.5), "and 20 of 20 more");
        report.end_trial(4, PlanVerdict::Kept, &seen(190.0, 160.0));
        assert_eq!(
            report.realised_share(),
            Some(40.0 / 60.0),
            "dearer, as the program does something else: not its doing"
        );
    }

    #[test]
    fn only_the_last_plans_that_should_save_something_tell_of_the_next() {
        let locality = |latency_ns| Some(Locality { latency_ns, remote_share: 0.5 });
        let mut report = Report::default();
        let mut judged = |expected_ns, after_ns| {
            let result = plan_result(report.plans.total(), PlanVerdict::Kept);
            let (expected, after, without_ns) = (locality(expected_ns), locality(after_ns), Some(100.0));
            report.plans.push(PlanResult { expected, after, without_ns, ..result });
            report.realised_share()
        };
        assert_eq!(judged(80.0, 100.0), Some(0.0));
        assert_eq!(judged(120.0, 100.0), Some(0.0), "it spread pages");
        let last = (0..REMEMBERED_PLANS).map(|_| judged(80.0, 80.0)).last();
        assert_eq!(last, Some(Some(1.0)), "the first is forgotten");
    }

    #[test]
    fn a_report_tells_how_much_there_was_of_which_it_has_the_last() {
        let mut report = Report::default();
        for generation in 0..KEPT as u64 + 3 {
            report.plans.push(plan_result(generation, PlanVerdict::Kept));
        }
        let written = serde_json::to_value(&report).unwrap();
        assert_eq!((written["plans"].as_array().unwrap().len(), &written["plans_total"]), (KEPT, &(KEPT + 3).into()));
        assert_eq!((&written["thread_moves"], &written["thread_moves_total"]), (&serde_json::json!([]), &0.into()));
        assert_eq!((&written["page_moves"], &written["page_moves_total"]), (&serde_json::json!([]), &0.into()));
        assert!(written["intervals"] == 0 && written.get("recording").is_none(), "{}", written["intervals"]);
    }

    #[test]
    fn lists_forget_the_oldest() {
        let mut recent = Recent::default();
        for number in 0..KEPT + 3 {
            recent.push(number);
        }
        assert_eq!(recent.iter().next(), Some(&3));
        assert_eq!(recent.total(), KEPT as u64 + 3);
        assert_eq!(recent.last(2).copied().collect::<Vec<_>>(), [KEPT + 1, KEPT + 2]);
    }
}
