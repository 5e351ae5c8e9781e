// SPDX-License-Identifier: GPL-2.0-only
//! Regions one by one: seats of its own for each region above 5 % of the time, after the search for the whole program.
//!
//! Problem: every region may want another number of threads and other places, and to run the program for each combination
//! takes too long. Mechanism: pages are those of a configuration that the search for the whole program found, the *base*.
//! Each region takes the seats that promise something in turns while the program runs under the base: *in place*. What
//! each gains there from one entry to the next (what other regions lose when they get their threads back is in that), times
//! the entries, predicts the time of any combination; the best predicted ones are run as whole programs, and only these runs
//! decide. A region that is entered too seldom for turns, or whose entries differ much among themselves, is measured by
//! runs of the whole program, one choice each. If that is wished, one entry is captured and replayed instead (`checkpoints`).
//!
//! Regions whose own best configurations place pages differently (`placed`) are in *conflict*: there is a base for each of these
//! configurations then, and the regions are measured under all of them.

mod checkpoints;
pub(crate) mod effort;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tandem_ab::statistics::{Better, Verdict, median};

use crate::apart::{self, RegionResult};
use crate::plan::{ENOUGH, MEASURED, Plan, RegionSeats, Turns, WARM_UP};
use crate::race::RaceOf;
use crate::regions::Region;
use crate::search::{self, Found, Reading};
use crate::session::{Outcome, Session};
use crate::space::{Configuration, Space};
use checkpoints::FROM_A_CHECKPOINT;
use effort::{RUN, are_of_one_kind, is_long, of_whole_runs, runs_in_place};

/// Regions with their own pages that get a base, those with the most time first, and the whole program's best one.
const BASES: usize = 3;

/// Seats under which a region took more than so many times its best in the search for the whole program are left out.
const HOPELESS: f64 = 2.0;

/// How a region is measured by runs of the whole program.
const WHOLE: &str = "whole runs";

/// A plan and what was predicted of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// The plan; `None` is the program as it is.
    pub plan: Option<Plan>,
    /// Its predicted time; `None` for what had been measured before.
    pub predicted_s: Option<f64>,
    /// How its regions were measured.
    pub way: String,
}

/// What came of tuning regions one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct OneByOne {
    /// What was run as a whole program: the best of the search for the whole program, then by predicted time.
    pub contenders: Vec<Contender>,
    /// Their runs.
    pub found: Found,
    /// Their regions by contender and run that ended.
    pub regions: Vec<Vec<Vec<Region>>>,
    /// The one that is better than the first with confidence, if there is one.
    pub chosen: Option<usize>,
}

/// A prediction and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// The plan.
    pub plan: String,
    /// Time of the program that was predicted.
    pub predicted_s: f64,
    /// Median of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_s: Option<f64>,
    /// Number of these.
    pub runs: usize,
    /// How its regions were measured.
    pub way: String,
}

impl Contender {
    /// Whether its time was not predicted but measured: a single region by whole runs is so by those of this very plan.
    fn is_known(&self) -> bool {
        self.way == WHOLE && self.plan.as_ref().is_some_and(|plan| plan.regions.len() == 1)
    }
}

impl OneByOne {
    /// The plan that was chosen, and its runs.
    pub fn plan(&self) -> Option<(&Plan, &search::Runs)> {
        let chosen = self.chosen?;
        Some((self.contenders[chosen].plan.as_ref()?, &self.found.runs[chosen]))
    }

    /// Plans with seats of their own for regions, and their runs.
    pub fn plans_by_region(&self) -> impl Iterator<Item = (&Plan, &search::Runs)> {
        let plans = self.contenders.iter().map(|one| one.plan.as_ref().filter(|plan| plan.is_by_region()));
        plans.zip(&self.found.runs).filter_map(|(plan, runs)| Some((plan?, runs)))
    }

    /// The regions of the plan that was chosen, by run.
    pub fn regions_of_plan(&self) -> Option<&[Vec<Region>]> {
        self.chosen.map(|chosen| &self.regions[chosen][..])
    }

    /// What was predicted and what became of it.
    pub fn predictions(&self) -> Vec<Prediction> {
        let prediction = |(one, runs): (&Contender, &search::Runs)| {
            Some(Prediction {
                plan: one.plan.as_ref()?.to_string(),
                predicted_s: one.predicted_s?,
                real_s: runs.median(),
                runs: runs.seconds.len(),
                way: one.way.clone(),
            })
        };
        self.contenders.iter().zip(&self.found.runs).filter_map(prediction).collect()
    }
}

/// A configuration of the whole program under which regions are measured.
#[derive(Clone, Debug)]
struct Base {
    configuration: Configuration,
    /// Time of the program.
    seconds: f64,
    /// Its regions.
    regions: Vec<Region>,
}

/// A region under a base.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    region: String,
    entries: u64,
    /// From an entry to the next one, with the base's seats.
    base_s: f64,
    /// The same by choice.
    choices: Vec<(RegionSeats, f64)>,
    way: String,
}

impl Table {
    /// What the program gains by a choice, in s.
    fn gain_s(&self, choice: usize) -> f64 {
        self.entries as f64 * (self.base_s - self.choices[choice].1)
    }

    /// What they take, the best choice first.
    fn in_words(&self) -> String {
        let mut choices: Vec<&(RegionSeats, f64)> = self.choices.iter().collect();
        choices.sort_by(|one, other| one.1.total_cmp(&other.1));
        let choices: Vec<String> =
            choices.into_iter().map(|(seats, seconds)| format!("{seats} {:.3} ms", 1e3 * seconds)).collect();
        let what = if self.way == FROM_A_CHECKPOINT { "an entry takes" } else { "from one entry to the next" };
        format!("{} was measured {}: {what} with {}", self.region, self.way, choices.join(", "))
    }
}

/// Tuning the regions of one session's program one by one.
pub(crate) struct Tuning<'a> {
    pub session: &'a Session<'a>,
    pub outcome: &'a Outcome,
    pub space: &'a Space,
    pub deadline: Option<Instant>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Whether something is still to be measured: there was no time, or the user stopped.
    pub is_cut_off: bool,
}

impl Tuning<'_> {
    /// Measures regions and the best plans; `None` if there is nothing to tune, or no time.
    ///
    /// # Errors
    /// The program cannot be run, or the store not be used.
    pub fn tune(&mut self) -> Result<Option<OneByOne>> {
        let all = apart::regions(self.outcome);
        if all.len() < 2 {
            return Ok(None);
        }
        let regions = self.long_enough(all);
        let mut plans = Vec::new();
        for (base, candidate) in self.bases(&regions).into_iter().enumerate() {
            let Some(base_of) = self.base(candidate) else { continue };
            let mut tables = Vec::new();
            for region in &regions {
                if self.is_late(base_of.seconds) {
                    self.cut_off("there was no time to tune all regions one by one: the same command goes on".into());
                    return Ok(None);
                }
                tables.extend(self.measure(region, &base_of)?);
            }
            // Of a base in conflict the best plan with seats of its own is run, whatever was predicted of it.
            let mut must = base > 0;
            plans.extend(predicted(&base_of, &tables).into_iter().map(|one| {
                let is_run = must && one.plan.as_ref().is_some_and(Plan::is_by_region);
                must &= !is_run;
                (is_run, one)
            }));
        }
        if self.session.stop.wished() {
            self.is_cut_off = true;
            return Ok(None);
        }
        self.decide(chosen_to_run(plans))
    }

    /// Notes what was not measured.
    fn cut_off(&mut self, note: String) {
        self.notes.push(note);
        self.is_cut_off = true;
    }

    /// Whether a run of so many seconds that begins now would end too late.
    fn is_late(&self, seconds: f64) -> bool {
        let ends = Instant::now() + Duration::from_secs_f64(seconds);
        self.session.stop.wished() || self.deadline.is_some_and(|deadline| ends > deadline)
    }

    /// Those that can be told apart in place.
    fn long_enough(&mut self, mut regions: Vec<RegionResult>) -> Vec<RegionResult> {
        regions.retain(|region| {
            let is_long = is_long(region.as_it_is_s, region.entries);
            if !is_long {
                let name = &region.name;
                self.notes
                    .push(format!("{name} takes less than 0.5 ms an entry: it has the whole program's configuration"));
            }
            is_long
        });
        regions
    }

    /// Configurations under which regions are measured: the best one, and those of regions that want pages differently.
    fn bases(&mut self, regions: &[RegionResult]) -> Vec<usize> {
        let (candidates, runs) = (&self.outcome.candidates, &self.outcome.found.runs);
        let known = (0..candidates.len()).filter(|&at| candidates[at].is_some());
        let medians = known.filter_map(|at| Some((at, runs[at].median()?)));
        let single = self.outcome.best().map(|(_, at)| at);
        let fastest = medians.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at);
        let mut bases: Vec<usize> = single.or(fastest).into_iter().collect();
        let pages = |at: usize| self.outcome.pages_alike[at];
        for region in regions {
            let own = candidates.iter().position(|one| one.is_some_and(|one| one.to_string() == region.best));
            let own = own.filter(|&own| bases.iter().all(|&base| pages(base) != pages(own)));
            if let Some(own) = own.filter(|_| bases.len() < BASES) {
                self.notes.push(format!(
                    "{} is fastest with its pages elsewhere than the whole program ({}): plans with both were measured",
                    region.name, region.best
                ));
                bases.push(own);
            }
        }
        bases
    }

    fn base(&self, candidate: usize) -> Option<Base> {
        let configuration = self.outcome.candidates[candidate]?;
        let regions = self.outcome.regions[candidate].first()?.clone();
        Some(Base { configuration, seconds: self.outcome.found.runs[candidate].median()?, regions })
    }

    /// What each choice of a region does under a base; `None` if that cannot be told.
    fn measure(&mut self, result: &RegionResult, base: &Base) -> Result<Option<Table>> {
        let Some(region) = base.regions.iter().find(|one| one.name == result.name && one.entries > 0) else {
            return Ok(None);
        };
        let choices = self.choices(region, base);
        if choices.len() < 2 {
            return Ok(None);
        }
        let runs = runs_in_place(choices.len(), region.entries);
        let name = &region.name;
        if self.session.replay.is_some() {
            (self.session.say)(&format!("{name}: {} choices of seats from a checkpoint", choices.len()));
            match self.by_a_checkpoint(region, base, &choices)? {
                Ok(table) => {
                    self.notes.push(table.in_words());
                    return Ok(Some(table));
                }
                Err(why) => self.notes.push(format!("{name} was not measured from a checkpoint: {why}")),
            }
        }
        let mut why = format!("it is entered {} times a run, too seldom for turns", region.entries);
        if let Some(runs) = runs {
            (self.session.say)(&format!("{name}: {} choices of seats in turns", choices.len()));
            match self.in_place(region, base, &choices, runs)? {
                Ok(table) => {
                    self.notes.push(table.in_words());
                    return Ok(Some(table));
                }
                Err(instead) => why = instead,
            }
        }
        if self.is_late(base.seconds) {
            self.cut_off(format!("there was no time to measure {name}, it has the whole program's seats: {why}"));
            return Ok(None);
        }
        (self.session.say)(&format!("{name}: {} choices of seats by whole runs: {why}", choices.len()));
        self.notes.push(format!("{name} was measured by whole runs: {why}"));
        self.by_whole_runs(region, base, &choices).map(Some)
    }

    /// The seats that promise something, the base's first.
    fn choices(&mut self, region: &Region, base: &Base) -> Vec<RegionSeats> {
        let is_named = self.session.functions.contains(&region.name);
        let threads = match region.own_threads {
            _ if is_named => vec![base.configuration.threads],
            Some(own) => {
                let note =
                    format!("{} has its own number of threads, {own}: only their places are varied", region.name);
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
                vec![own]
            }
            None => self.space.threads.clone(),
        };
        let all = RegionSeats::all(&threads, self.session.topology);
        let known: Vec<Option<f64>> = all.iter().map(|seats| self.best_known_s(&region.name, seats)).collect();
        let best = known.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let promising =
            all.into_iter().zip(known).filter(|(_, known)| known.is_none_or(|known| known <= HOPELESS * best));
        let own: RegionSeats = base.configuration.into();
        let nodes = |seats: &RegionSeats| seats.nodes(self.session.topology);
        let others = promising.map(|(seats, _)| seats).filter(|seats| nodes(seats) != nodes(&own));
        std::iter::once(own).chain(others).collect()
    }

    /// The least time in the region with these seats in the search for the whole program, whatever its pages.
    fn best_known_s(&self, region: &str, seats: &RegionSeats) -> Option<f64> {
        let with_them = self.outcome.candidates.iter().zip(&self.outcome.regions);
        let with_them = with_them.filter(|(one, _)| one.is_some_and(|one| RegionSeats::from(one) == *seats));
        let seconds = with_them.flat_map(|(_, runs)| runs.iter().flatten()).filter(|one| one.name == region);
        seconds.map(|one| one.seconds).min_by(f64::total_cmp)
    }

    /// Lets the region take its choices in turns; or why that says nothing.
    fn in_place(
        &self,
        region: &Region,
        base: &Base,
        choices: &[RegionSeats],
        runs: usize,
    ) -> Result<Result<Table, String>> {
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); choices.len()];
        let mut first = 0;
        let limit_s = self.session.settings.limit_s(HOPELESS * base.seconds);
        let mut had = 0;
        // One more, as runs need not have equally many entries.
        while had <= runs && samples.iter().any(|one| one.len() < ENOUGH) {
            if self.is_late(base.seconds) {
                return Ok(Err("there was no time for more runs".to_owned()));
            }
            let turns = Turns { region: region.name.clone(), choices: choices.to_vec(), first };
            let plan = Plan { turns: Some(turns), ..base.configuration.into() };
            let Some(row) = self.session.row(Some(&plan), 0, Some(limit_s))? else {
                let why = if self.session.stop.wished() { "the session was stopped" } else { "the time was over" };
                return Ok(Err(why.to_owned()));
            };
            if let Reading::Failed(why) = row.reading {
                return Ok(Err(format!("taking turns it failed: {why}")));
            }
            let Some(seen) = row.regions.into_iter().find(|one| one.name == region.name) else { break };
            samples.iter_mut().zip(seen.samples).for_each(|(all, new)| all.extend(new));
            first += (seen.entries as usize).div_ceil(WARM_UP + MEASURED);
            had += 1;
        }
        if samples.iter().any(|one| one.len() < ENOUGH) {
            return Ok(Err(format!("{had} runs had too few entries for {} choices", choices.len())));
        }
        if !are_of_one_kind(&samples[0]) {
            return Ok(Err("its entries take too different times".to_owned()));
        }
        let medians = samples.iter().map(|one| median(one.iter().copied()).unwrap_or(f64::INFINITY));
        let choices: Vec<(RegionSeats, f64)> = choices.iter().copied().zip(medians).collect();
        let way = if had == 1 { "in place".to_owned() } else { format!("in place in {had} runs") };
        let (region, entries) = (region.name.clone(), region.entries);
        Ok(Ok(Table { region, entries, base_s: choices[0].1, choices, way }))
    }

    /// Runs the program once and more for each choice. What an entry takes is what explains the program's time.
    fn by_whole_runs(&mut self, region: &Region, base: &Base, choices: &[RegionSeats]) -> Result<Table> {
        let with = |seats: &RegionSeats| {
            let regions = [(region.name.clone(), *seats)].into();
            Some(Plan { regions, ..base.configuration.into() })
        };
        let plans: Vec<Option<Plan>> = choices[1..].iter().map(with).collect();
        let settings = of_whole_runs(self.session.settings);
        let found = search::search(plans.len(), None, &settings, self.race(&plans, base.seconds, &mut []))?;
        if found.end == search::End::Stopped {
            let name = &region.name;
            self.cut_off(format!("there was no time to measure {name} to the end: the same command goes on"));
        }
        let entries = region.entries;
        let base_s = region.seconds / entries as f64;
        let of = |(seats, runs): (&RegionSeats, &search::Runs)| {
            Some((*seats, base_s - (base.seconds - runs.median()?) / entries as f64))
        };
        let own = std::iter::once((choices[0], base_s));
        let choices = own.chain(choices[1..].iter().zip(&found.runs).filter_map(of)).collect();
        Ok(Table { region: region.name.clone(), entries, base_s, choices, way: WHOLE.to_owned() })
    }

    fn race<'b>(&'b self, plans: &'b [Option<Plan>], usual_s: f64, regions: &'b mut [Vec<Vec<Region>>]) -> RaceOf<'b> {
        RaceOf {
            session: self.session,
            candidates: plans,
            usual_s,
            deadline: self.deadline,
            regions,
            not_set_up: BTreeMap::new(),
        }
    }

    /// Runs the best of the search for the whole program and these plans.
    fn decide(&mut self, plans: Vec<Contender>) -> Result<Option<OneByOne>> {
        let Some(reference) = self.outcome.found.best.filter(|_| !plans.is_empty()) else { return Ok(None) };
        let single = self.outcome.candidates[reference].map(Plan::from);
        let contenders: Vec<Contender> =
            std::iter::once(Contender { plan: single, predicted_s: None, way: String::new() }).chain(plans).collect();
        let plans: Vec<Option<Plan>> = contenders.iter().map(|one| one.plan.clone()).collect();
        (self.session.say)(&format!("the {} best predicted plans are run", contenders.len() - 1));
        let usual_s = self.outcome.found.runs[reference].median().unwrap_or_default();
        let mut regions = vec![Vec::new(); plans.len()];
        let race = self.race(&plans, usual_s, &mut regions);
        let found = search::search(plans.len(), Some(0), &self.session.settings, race)?;
        if found.end == search::End::Stopped {
            self.cut_off("there was no time to run all predicted plans: the same command goes on".into());
        }
        let is_better =
            |&one: &usize| found.compared(one, 0).is_some_and(|known| known.verdict(Better::Lower) == Verdict::Better);
        let chosen = found.best.filter(|&best| best != 0).filter(is_better);
        let one_by_one = OneByOne { contenders, found, regions, chosen };
        self.notes.extend(accuracy(&one_by_one.predictions()));
        Ok(Some(one_by_one))
    }
}

/// How well predictions held, in one sentence.
fn accuracy(predictions: &[Prediction]) -> Option<String> {
    let off = |one: &Prediction| Some((one.predicted_s / one.real_s? - 1.0).abs());
    let worst = predictions.iter().filter_map(off).max_by(f64::total_cmp)?;
    Some(format!("predicted times of plans were within {:.1} % of their real ones", worst * 100.0))
}

/// The plans with the least predicted time under a base, exactly, the best first; the base itself is one of them. Those that
/// promise nothing are there too, unless they are known: they tell as well as others what predictions are worth.
fn predicted(base: &Base, tables: &[Table]) -> Vec<Contender> {
    let known: usize = tables.iter().filter(|table| table.way == WHOLE).map(|table| table.choices.len()).sum();
    // (gain in s, choice by table); gains add up, so only the best sums of the first tables can be part of the best of all.
    let mut sums: Vec<(f64, Vec<Option<usize>>)> = vec![(0.0, Vec::new())];
    for table in tables {
        let gains = (1..table.choices.len()).map(|choice| (table.gain_s(choice), Some(choice)));
        let gains: Vec<_> = std::iter::once((0.0, None)).chain(gains).collect();
        let longer = |(sum, chosen): &(f64, Vec<Option<usize>>)| -> Vec<_> {
            let with = |&(gain, choice)| (sum + gain, chosen.iter().copied().chain([choice]).collect::<Vec<_>>());
            gains.iter().map(with).collect()
        };
        sums = sums.iter().flat_map(longer).collect();
        sums.sort_by(|one, other| other.0.total_cmp(&one.0));
        // The base itself may be one of those that are run, and is no plan of its own; nor do those that are known take a place.
        sums.truncate(RUN + 1 + known);
    }
    let contender = |(gain, chosen): (f64, Vec<Option<usize>>)| {
        let taken = tables.iter().zip(&chosen).filter_map(|(table, choice)| Some((table, (*choice)?)));
        let regions = taken.clone().map(|(table, choice)| (table.region.clone(), table.choices[choice].0)).collect();
        let mut ways: Vec<String> = taken.map(|(table, _)| table.way.clone()).collect();
        ways.sort();
        ways.dedup();
        let plan = Plan { regions, ..base.configuration.into() };
        let one = Contender { plan: Some(plan), predicted_s: Some(base.seconds - gain), way: ways.join(", ") };
        (gain > 0.0 || !one.is_known()).then_some(one)
    };
    sums.into_iter().filter_map(contender).collect()
}

/// Of plans of all bases those that are run: the ones that must be, the best predicted ones, and of those that are known
/// the best that gain something. A plan without regions is a configuration of the whole program, whose time is known.
fn chosen_to_run(plans: Vec<(bool, Contender)>) -> Vec<Contender> {
    let mut plans: Vec<(bool, Contender)> =
        plans.into_iter().filter(|(_, one)| one.plan.as_ref().is_some_and(Plan::is_by_region)).collect();
    let key = |one: &Contender| one.predicted_s.unwrap_or(f64::INFINITY);
    plans.sort_by(|one, other| key(&one.1).total_cmp(&key(&other.1)));
    let mut places = [0; 2];
    let run = plans.into_iter().filter(|(must, one)| {
        let place = &mut places[usize::from(one.is_known())];
        *place += 1;
        *must || *place <= RUN
    });
    run.map(|(_, one)| if one.is_known() { Contender { predicted_s: None, ..one } } else { one }).collect()
}

#[cfg(test)]
mod tests;
