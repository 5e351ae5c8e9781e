// SPDX-License-Identifier: GPL-2.0-only
//! What a replay came to: as it goes in words, at the end as JSON.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use tandem_policies::foreign::printable;
use tandem_policies::model::{Action, Move, Plan};
use tandem_trace::{Answer, Difference, Interval, PolicySettings, Replayed, Settings};

/// Everything, in JSON's form.
#[derive(Serialize)]
pub struct Report {
    /// Name of the recording.
    pub file: String,
    /// One for each time an agent began.
    pub sessions: Vec<Session>,
    decisions: Vec<Decision>,
    /// Sums.
    pub totals: Totals,
    /// Why the recording is read in part only; none if it is whole.
    pub warning: Option<String>,
}

/// What one agent ran with, and what it is replayed with.
#[derive(Serialize)]
pub struct Session {
    recorded: Settings,
    replayed_with: Vec<PolicySettings>,
}

#[derive(Serialize)]
struct Decision {
    session: usize,
    interval: u64,
    time_ns: u64,
    seed: u64,
    /// What each policy answered, in the order in which they were asked.
    answers: Vec<AnswerForm>,
    /// Which answer was taken.
    taken: Option<usize>,
    same: bool,
    differences: Vec<DifferenceForm>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum AnswerForm {
    Plan(Plan),
    Missing(String),
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum DifferenceForm {
    OnlyRecorded(Move),
    OnlyReplayed(Move),
    Changed { recorded: Move, replayed: Move },
}

/// Sums over all decisions.
#[derive(Default, Serialize)]
pub struct Totals {
    intervals: u64,
    decisions: u64,
    same: u64,
    /// Decisions that differ.
    pub different: u64,
    recorded: PlanTotals,
    replayed: PlanTotals,
}

/// What plans hold together.
#[derive(Default, Serialize)]
struct PlanTotals {
    plans: u64,
    thread_moves: u64,
    interchanges: u64,
    page_moves: u64,
    page_bytes: u64,
    /// Of the moves for which a gain was predicted.
    predicted_gain_ns_per_s: f64,
}

impl PlanTotals {
    fn add(&mut self, plan: Option<&Plan>) {
        let Some(plan) = plan.filter(|plan| !plan.is_empty()) else { return };
        self.plans += 1;
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { .. } => self.thread_moves += 1,
                Action::Interchange { .. } => self.interchanges += 1,
                Action::MovePages { bytes, .. } => {
                    self.page_moves += 1;
                    self.page_bytes += bytes;
                }
            }
            self.predicted_gain_ns_per_s += planned.gain_ns_per_s.unwrap_or(0.0);
        }
    }
}

impl Report {
    /// Nothing read yet.
    pub fn new(file: String) -> Self {
        Self { file, sessions: Vec::new(), decisions: Vec::new(), totals: Totals::default(), warning: None }
    }

    /// An agent began.
    pub fn begin(&mut self, recorded: &Settings, replayed_with: Vec<PolicySettings>) {
        self.sessions.push(Session { recorded: recorded.clone(), replayed_with });
    }

    /// An interval passed, with a decision or without. Returns its number.
    pub fn interval(&mut self, interval: &Interval, replayed: Option<&Replayed>) -> u64 {
        let totals = &mut self.totals;
        totals.intervals += 1;
        if let Some(replayed) = replayed {
            totals.decisions += 1;
            *(if replayed.same { &mut totals.same } else { &mut totals.different }) += 1;
            totals.recorded.add(interval.decision.as_ref().and_then(|recorded| recorded.plan()));
            totals.replayed.add(replayed.decision.plan());
        }
        totals.intervals
    }

    /// Keeps a whole decision of the interval with this number.
    pub fn keep(&mut self, number: u64, interval: &Interval, replayed: Replayed) {
        let session = self.sessions.len() - 1;
        self.decisions.push(Decision::new(session, number, interval.snapshot.time_ns, replayed));
    }

    /// What the current agent's decisions are made again with.
    pub fn replayed_with(&self) -> &[PolicySettings] {
        self.sessions.last().map_or(&[], |session| &session.replayed_with)
    }
}

impl Decision {
    fn new(session: usize, interval: u64, time_ns: u64, replayed: Replayed) -> Self {
        let answer = |answer| match answer {
            Answer::Plan(plan) => AnswerForm::Plan(plan),
            Answer::Missing(words) => AnswerForm::Missing(words),
        };
        let difference = |difference| match difference {
            Difference::Gone(planned) => DifferenceForm::OnlyRecorded(planned),
            Difference::New(planned) => DifferenceForm::OnlyReplayed(planned),
            Difference::Changed { recorded, now } => DifferenceForm::Changed { recorded, replayed: now },
        };
        Self {
            session,
            interval,
            time_ns,
            seed: replayed.decision.seed,
            answers: replayed.decision.answers.into_iter().map(answer).collect(),
            taken: replayed.decision.taken,
            same: replayed.same,
            differences: replayed.differences.into_iter().map(difference).collect(),
        }
    }
}

/// The same for people, as it comes.
pub struct Words {
    output: Option<io::StdoutLock<'static>>,
    kept: Option<String>,
    first_ns: Option<u64>,
    /// Somebody decided when it was recorded.
    compares: bool,
}

impl Words {
    /// To standard output if they are to be printed; kept if they are needed again.
    pub fn new(print: bool, keep: bool) -> Self {
        let (output, kept) = (print.then(|| io::stdout().lock()), keep.then(String::new));
        Self { output, kept, first_ns: None, compares: true }
    }

    /// All that was said, if it was kept.
    pub fn kept(&self) -> &str {
        self.kept.as_deref().unwrap_or_default()
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) -> Result<()> {
        if let Some(kept) = &mut self.kept {
            std::fmt::Write::write_fmt(kept, format_args!("{text}\n"))?;
        }
        let Some(output) = &mut self.output else { return Ok(()) };
        writeln!(output, "{text}").context("standard output cannot be written")
    }

    /// An agent began.
    pub fn begin(&mut self, recorded: &Settings, replayed_with: &[PolicySettings]) -> Result<()> {
        let names = |policies: &[PolicySettings]| {
            policies.iter().map(|policy| printable(&policy.name)).collect::<Vec<_>>().join("+")
        };
        self.compares = !recorded.policies.is_empty();
        let Settings { program, sampler, seed, policies, .. } = recorded;
        let (program, sampler) = (printable(program), printable(sampler));
        let interval_s = recorded.interval_ns as f64 * 1e-9;
        self.line(format_args!(
            "recorded by {program} with {}, sampler {sampler}, seed {seed}, every {interval_s} s; replayed with {}",
            if self.compares { names(policies) } else { "no policies".to_owned() },
            names(replayed_with)
        ))
    }

    /// What was decided again in the interval with this number.
    pub fn decision(
        &mut self,
        number: u64,
        interval: &Interval,
        replayed: &Replayed,
        policies: &[PolicySettings],
    ) -> Result<()> {
        if self.output.is_none() && self.kept.is_none() {
            return Ok(());
        }
        let snapshot = &interval.snapshot;
        let first_ns = *self.first_ns.get_or_insert(snapshot.time_ns);
        let after_s = snapshot.time_ns.saturating_sub(first_ns) as f64 * 1e-9;
        let decision = &replayed.decision;
        let what = match (decision.plan(), decision.taken.and_then(|taken| policies.get(taken))) {
            (Some(plan), Some(policy)) => format!("{} moves by {}", plan.moves.len(), policy.name),
            _ => "nothing to do".to_owned(),
        };
        let (threads, groups) = (snapshot.threads.len(), snapshot.groups.len());
        let verdict = match (self.compares, replayed.same) {
            (false, _) => "",
            (true, true) => ", as recorded",
            (true, false) => ", not as recorded",
        };
        self.line(format_args!(
            "interval {number}, {after_s:.3} s, {threads} threads, {groups} page groups: {what}{verdict}"
        ))?;
        for answer in &decision.answers {
            if let Answer::Missing(words) = answer {
                self.line(format_args!("    {}", printable(words)))?;
            }
        }
        if replayed.same {
            return decision.plan().map_or(Ok(()), |plan| {
                plan.moves
                    .iter()
                    .try_for_each(|planned| self.line(format_args!("    {}", planned.in_words(&snapshot.topology))))
            });
        }
        if replayed.differences.is_empty() && self.compares {
            return self.line(format_args!("    only answers differ that were not taken"));
        }
        replayed.differences.iter().try_for_each(|difference| match difference {
            Difference::Gone(planned) => self.line(format_args!("  - {}", planned.in_words(&snapshot.topology))),
            Difference::New(planned) => self.line(format_args!("  + {}", planned.in_words(&snapshot.topology))),
            Difference::Changed { recorded, now } => {
                self.line(format_args!("  - {}", recorded.in_words(&snapshot.topology)))?;
                self.line(format_args!("  + {}", now.in_words(&snapshot.topology)))
            }
        })
    }

    /// The sums.
    pub fn totals(&mut self, totals: &Totals) -> Result<()> {
        let Totals { intervals, decisions, same, different, recorded, replayed } = totals;
        let compared = if self.compares {
            format!(": {same} as recorded, {different} different (- recorded, + replayed)")
        } else {
            String::new()
        };
        self.line(format_args!("{intervals} intervals, {decisions} decisions{compared}"))?;
        for (name, sums) in [("recorded", recorded), ("replayed", replayed)] {
            let PlanTotals { plans, thread_moves, interchanges, page_moves, .. } = sums;
            self.line(format_args!(
                "{name}: {plans} plans, {thread_moves} threads moved, {interchanges} interchanges, {page_moves} page groups \
                 moved ({} KiB), {:.3} s/s to be saved",
                sums.page_bytes / 1024,
                sums.predicted_gain_ns_per_s * 1e-9
            ))?;
        }
        Ok(())
    }
}
