// SPDX-License-Identifier: GPL-2.0-only
//! What a run brought.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};
use tandem_view::{PlanVerdict, Status};

/// What is needed of scx_tandem's report.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Report {
    intervals: u64,
    thread_moves_total: u64,
    mover: Mover,
    plans_total: u64,
    undone_plans: u64,
    /// The last of them.
    plans: Vec<Plan>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Mover {
    moved_pages: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Plan {
    predicted_gain_ns_per_s: Option<f64>,
    measured_gain_ns_per_s: Option<f64>,
    verdict: PlanVerdict,
}

impl Report {
    /// Pages that it moved.
    pub fn moved_pages(&self) -> u64 {
        self.mover.moved_pages
    }
}

/// Remote shares over the run.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    first: Option<f64>,
    last: Option<f64>,
}

impl Shares {
    /// Takes a look into account.
    pub fn note(&mut self, status: &Status) {
        let Some(local) = status.local_share.0 else { return };
        self.first.get_or_insert(1.0 - local);
        self.last = Some(1.0 - local);
    }
}

/// The summary. Shares are between 0 and 1; what could not be measured is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    command: Vec<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    seconds: f64,
    dry_run: bool,
    intervals: u64,
    /// Of accesses, when they were seen for the first and for the last time.
    remote_share_before: Option<f64>,
    remote_share_after: Option<f64>,
    thread_moves: u64,
    moved_pages: u64,
    plans: u64,
    /// Plans that were undone, or something of which was.
    undone_plans: u64,
    /// Of the last plans, which are in the report: those whose outcome was not known when the program ended, or could not be (superseded).
    unjudged_plans: u64,
    /// Of those that were kept: what they should save, and what follows from the latencies measured.
    predicted_gain_ns_per_s: Option<f64>,
    measured_gain_ns_per_s: Option<f64>,
}

impl Summary {
    /// Draws it up.
    pub fn new(
        command: &[OsString],
        status: ExitStatus,
        seconds: f64,
        shares: Shares,
        report: &Report,
        dry_run: bool,
    ) -> Self {
        let are = |verdicts: &[PlanVerdict]| {
            report.plans.iter().filter(|plan| verdicts.contains(&plan.verdict)).count() as u64
        };
        let kept = || report.plans.iter().filter(|plan| plan.verdict == PlanVerdict::Kept);
        let sum = |gain: fn(&Plan) -> Option<f64>| kept().filter_map(gain).reduce(|one, two| one + two);
        Self {
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            exit_code: status.code(),
            signal: status.signal(),
            seconds,
            dry_run,
            intervals: report.intervals,
            remote_share_before: shares.first,
            remote_share_after: shares.last,
            thread_moves: report.thread_moves_total,
            moved_pages: report.mover.moved_pages,
            plans: report.plans_total,
            undone_plans: report.undone_plans,
            unjudged_plans: are(&[PlanVerdict::Trial, PlanVerdict::Superseded]),
            predicted_gain_ns_per_s: sum(|plan| plan.predicted_gain_ns_per_s),
            measured_gain_ns_per_s: sum(|plan| plan.measured_gain_ns_per_s),
        }
    }

    /// The summary for people.
    pub fn in_words(&self) -> String {
        let mut text = String::new();
        let percent =
            |share: Option<f64>| share.map_or("unknown".to_owned(), |share| format!("{:.1} %", share * 100.0));
        let gain = |ns: Option<f64>| ns.map_or("unknown".to_owned(), |ns| format!("{:.3} s/s", ns / 1e9));
        let ended = match (self.exit_code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let mut line = |words: String| writeln!(text, "tandem: {words}").expect("a String takes all");
        line(format!("{}: {:.2} s, {ended}", self.command.join(" "), self.seconds));
        if self.dry_run {
            line("dry run: nothing was moved".to_owned());
        }
        let (before, after) = (percent(self.remote_share_before), percent(self.remote_share_after));
        line(format!("remote share of accesses: {before} at first, {after} at last"));
        line(format!("moves: {} of threads, {} pages", self.thread_moves, self.moved_pages));
        let (plans, undone, unjudged) = (self.plans, self.undone_plans, self.unjudged_plans);
        line(format!("plans: {plans}, of which {undone} were undone and {unjudged} not judged yet"));
        let (predicted, measured) = (gain(self.predicted_gain_ns_per_s), gain(self.measured_gain_ns_per_s));
        line(format!("stall saved by plans that were kept: {predicted} predicted, {measured} measured"));
        if self.remote_share_before.is_none() {
            line("too few accesses were sampled: the program was too short, or hardly used memory".to_owned());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use tandem_view::Maybe;

    use super::*;

    fn plan(predicted: f64, measured_gain_ns_per_s: Option<f64>, verdict: PlanVerdict) -> Plan {
        Plan { predicted_gain_ns_per_s: Some(predicted), measured_gain_ns_per_s, verdict }
    }

    fn status(local: Option<f64>) -> Status {
        Status { local_share: Maybe(local), ..Status::default() }
    }

    fn summary(plans: Vec<Plan>, shares: Shares) -> Summary {
        let report =
            Report { plans_total: 12_000, undone_plans: 7, thread_moves_total: 11_000, plans, ..Report::default() };
        Summary::new(&["x".into()], ExitStatus::from_raw(0), 1.0, shares, &report, false)
    }

    #[test]
    fn only_plans_that_were_kept_count_as_gain() {
        let mut shares = Shares::default();
        for local in [None, Some(0.25), Some(0.5), None] {
            shares.note(&status(local));
        }
        let plans = vec![
            plan(3e8, Some(2e8), PlanVerdict::Kept),
            plan(1e8, None, PlanVerdict::Kept),
            plan(2e8, Some(-5e7), PlanVerdict::Kept),
            plan(5e8, Some(-1e8), PlanVerdict::Undone),
            plan(7e8, None, PlanVerdict::Trial),
            plan(9e8, None, PlanVerdict::Superseded),
        ];
        let summary = summary(plans, shares);
        assert_eq!((summary.remote_share_before, summary.remote_share_after), (Some(0.75), Some(0.5)));
        assert_eq!(summary.unjudged_plans, 2);
        assert_eq!(summary.predicted_gain_ns_per_s, Some(6e8));
        assert_eq!(summary.measured_gain_ns_per_s, Some(1.5e8));
    }

    #[test]
    fn what_the_lists_of_the_report_forgot_counts_too() {
        let summary = summary(vec![plan(5e8, None, PlanVerdict::Undone)], Shares::default());
        assert_eq!((summary.plans, summary.undone_plans, summary.thread_moves), (12_000, 7, 11_000));
    }

    #[test]
    fn what_was_not_measured_is_said_to_be_unknown() {
        let words = summary(vec![], Shares::default()).in_words();
        assert!(words.contains("unknown at first, unknown at last") && words.contains("too few accesses"), "{words}");
        assert!(words.starts_with("tandem: x: 1.00 s, exit code 0\n"), "{words}");
    }
}
