// SPDX-License-Identifier: GPL-2.0-only
//! Tuning one program on one machine, from the first run to the result.
//!
//! Order: one run as it is, which tells how long one takes and how many threads there are; one with another number of
//! threads, which tells whether the program follows; then the space, its count and the expected time; then the search.
//! Every run is looked up in the store first and kept there as soon as it has ended. The program as it is takes part in
//! the search as its reference, so that the result is compared with it by enough runs to be sure.

mod checkpoints;
mod notes;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use tandem_ab::stop::Stop;
use tandem_policies::model::Topology;

use crate::births;
use crate::first_touch::Bimodal;
use crate::launch::{Limit, Seen};
use crate::mapping::Mapping;
use crate::one_by_one::{OneByOne, Tuning};
use crate::page_map::PageMap;
use crate::places::Places;
use crate::plan::Plan;
use crate::race::RaceOf;
use crate::regions::Region;
use crate::search::{self, Found, Reading, Settings};
use crate::space::{Configuration, PagePlacement, Space};
use crate::store::{Row, Store};
pub(crate) use checkpoints::Replayed;
pub use checkpoints::{Replay, Replayer};

/// What can be applied while a program starts, without its help and as anybody: where threads are born, the kernel's own rules
/// for pages, and what memory can be bound by as it is allocated.
pub const AT_BIRTH: &[PagePlacement] = if births::POSSIBLE {
    &[PagePlacement::FirstTouch, PagePlacement::Interleave, PagePlacement::Dataset]
} else {
    &[PagePlacement::FirstTouch, PagePlacement::Interleave]
};

/// Programs that end sooner say nothing about placement: starting a process takes milliseconds.
const SHORTEST_S: f64 = 0.02;

/// What the store calls the program without placement.
pub const AS_IT_IS: &str = "as it is";

/// What the store adds to the name of a plan whose pages go by a map.
pub const BY_A_MAP: &str = ", by a map";

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// What was seen.
    pub seen: Seen,
    /// The last words of the program.
    pub last_words: String,
    /// Pages that were moved while it ran, or why whoever was to move them failed; `None` when nobody was to.
    pub moved_pages: Option<Result<u64, String>>,
    /// Name of the machine that ran it, if that is known.
    #[serde(default)]
    pub host: Option<String>,
}

/// A run, or why it could not be set up: in words.
pub type Ran = Result<Trial, String>;

/// Runs the program: under this plan, in these places, to this limit at most. Moves its pages while it runs if the
/// plan's configuration [needs that](Configuration::needs_moving). An error ends the session.
pub type Runner<'a> = dyn Fn(Option<&Plan>, &Places, Limit) -> Result<Ran> + 'a;

/// A run that is asked for: under this plan, in these places, to this limit at most.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As it is if none.
    pub plan: Option<Plan>,
    /// The plan's.
    pub places: Places,
    /// When it is ended.
    pub limit: Limit,
}

/// Runs the program as often as is asked, on as many machines as there are, and hands over what
/// each run gave with its index as soon as it has ended. When the user stops it, or from that time on, some may be missing.
pub type ManyRunner<'a> =
    dyn Fn(&[Asked], Option<Instant>, &mut dyn FnMut(usize, Ran) -> Result<()>) -> Result<()> + 'a;

/// What a session needs.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// Its cores, whatever their hardware threads.
    pub cores: usize,
    /// Page placements to try.
    pub page_placements: &'a [PagePlacement],
    /// Which are left out though nobody asked for that, and why: one sentence.
    pub left_out: Option<&'a str>,
    /// Whether regions are tuned one by one.
    pub one_by_one: bool,
    /// Replays entries of regions from checkpoints, if regions are to be measured by that.
    pub replay: Option<&'a Replayer<'a>>,
    /// Functions that count as regions.
    pub functions: &'a [String],
    /// Whether the command has `{threads}`, so that it is told the number of threads.
    pub command_has_threads: bool,
    /// Where runs are kept.
    pub store: &'a Store,
    /// How the search goes.
    pub settings: Settings,
    /// When it began.
    pub started: Instant,
    /// How long the session may take, at most.
    pub budget: Option<Duration>,
    /// Whether the program is run to its end though that does not fit the budget.
    pub only_whole_runs: bool,
    /// After how many entries of its parallel regions each run is ended; the session finds out itself whether that is needed.
    pub first_entries: Option<u64>,
    /// The user's wish to stop.
    pub stop: &'a Stop,
    /// Takes sentences for the user.
    pub say: &'a dyn Fn(&str),
    /// Runs the program.
    pub run: &'a Runner<'a>,
    /// Told when a run has been kept.
    pub kept: &'a dyn Fn() -> Result<()>,
    /// Makes maps of pages, if that can be done here.
    pub mapping: Option<&'a Mapping<'a>>,
    /// Runs it many times at once, if there are other machines for that.
    pub run_many: Option<&'a ManyRunner<'a>>,
    /// How many times at once.
    pub machines: usize,
}

/// What a session found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// All configurations, the program as it is first (`None`).
    pub candidates: Vec<Option<Configuration>>,
    /// What the search found among them.
    pub found: Found,
    /// By candidate, the first one whose pages are where its are.
    pub pages_alike: Vec<usize>,
    /// Their parallel regions by candidate and run that ended.
    pub regions: Vec<Vec<Vec<Region>>>,
    /// What the user should know, one sentence each.
    pub notes: Vec<String>,
    /// What came of tuning regions one by one.
    pub one_by_one: Option<OneByOne>,
    /// Whether the search came to its end, and so did tuning regions one by one and finding out where the main thread should begin.
    pub is_complete: bool,
    /// Whether its time depends on where the main thread happens to be.
    pub bimodal: Option<Bimodal>,
    /// Where pages go, if the best one places them by a map.
    pub page_map: Option<PageMap>,
    /// After how many entries of its regions each run was ended.
    pub first_entries: Option<u64>,
}

impl Outcome {
    /// What is best of all, with its runs: a plan with regions of their own or the best configuration; `None` when the program
    /// as it is is the best.
    pub fn plan(&self) -> Option<(Plan, &search::Runs)> {
        let by_region = self.one_by_one.as_ref().and_then(OneByOne::plan);
        by_region
            .map(|(plan, runs)| (plan.clone(), runs))
            .or_else(|| self.best().map(|(one, best)| (one.into(), &self.found.runs[best])))
    }

    /// The best configuration, and the index of its runs; `None` when the program as it is is the best.
    pub fn best(&self) -> Option<(Configuration, usize)> {
        let best = self.found.best?;
        Some((self.candidates[best]?, best))
    }
}

impl Session<'_> {
    /// Finds the best configuration.
    ///
    /// # Errors
    /// One sentence: the program cannot be run, fails as it is or is too short, or the store cannot be used.
    pub fn tune(&self) -> Result<Option<Outcome>> {
        if self.store.is_empty()? {
            let bounded = if self.budget.is_none() { "; --budget TIME bounds all runs" } else { "" };
            (self.say)(&format!("the program runs once as it is, to see how long it takes{bounded}"));
        }
        match self.within_budget()? {
            Some(session) => session.search(),
            None => Ok(None),
        }
    }

    fn search(&self) -> Result<Option<Outcome>> {
        let Some(first) = self.row(None, 0, self.left().map(|left| left.as_secs_f64()))? else { return Ok(None) };
        let usual_s = self.judge_first(&first)?;
        let mut notes: Vec<String> = self.note_of_part().into_iter().collect();
        let Some(space) = self.space(&first, &mut notes)? else { return Ok(None) };
        self.announce(&space, usual_s, &first.regions);
        let Some(space) = self.with_maps(space, &first, &mut notes)? else { return Ok(None) };
        let configurations = space.configurations(self.topology);
        if first.processes > 1 {
            let processes = first.processes;
            notes.push(format!(
                "the program and what it starts are {processes} processes: each one's threads are placed by themselves, and what \
                 would run on when the program itself ends is ended then"
            ));
        }
        if first.regions.is_empty() {
            notes
                .push("it has no parallel regions of an OpenMP runtime, or they are too short, or entered too often, to be told apart".to_owned());
        }
        for function in self.functions {
            if first.regions.iter().all(|region| region.name != *function) {
                notes.push(format!("{function} was not called by the main thread, or too often to be measured, or is no symbol of the program"));
            }
        }
        let candidates: Vec<Option<Configuration>> =
            std::iter::once(None).chain(configurations.into_iter().map(Some)).collect();
        let deadline = self.deadline();
        let mut regions = vec![Vec::new(); candidates.len()];
        let plans: Vec<Option<Plan>> = candidates.iter().map(|one| one.map(Plan::from)).collect();
        let (regions_of, not_set_up) = (&mut regions[..], BTreeMap::new());
        let race = RaceOf { session: self, candidates: &plans, usual_s, deadline, regions: regions_of, not_set_up };
        let found = search::search(candidates.len(), Some(0), &self.settings, race)?;
        notes.extend(self.notes_of(&candidates, &found)?);
        let pages_alike = self.pages_alike(&candidates, &found.runs)?;
        let (one_by_one, bimodal, page_map) = (None, None, None);
        let first_entries = self.first_entries;
        let is_complete = found.end.is_decision();
        let outcome = Outcome {
            candidates,
            found,
            pages_alike,
            regions,
            notes,
            one_by_one,
            is_complete,
            bimodal,
            page_map,
            first_entries,
        };
        let outcome = self.with_regions(outcome, &space, deadline)?;
        let outcome = self.with_chance(outcome, deadline)?;
        self.with_page_map(outcome).map(Some)
    }

    /// When it has to be over.
    fn deadline(&self) -> Option<Instant> {
        self.budget.map(|budget| self.started + budget)
    }

    /// What is left of its time.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The same with what came of tuning its regions one by one.
    fn with_regions(&self, outcome: Outcome, space: &Space, deadline: Option<Instant>) -> Result<Outcome> {
        if !self.one_by_one || !outcome.is_complete {
            return Ok(outcome);
        }
        let (notes, is_cut_off) = (Vec::new(), false);
        let mut tuning = Tuning { session: self, outcome: &outcome, space, deadline, notes, is_cut_off };
        let one_by_one = tuning.tune()?;
        let notes = outcome.notes.iter().cloned().chain(tuning.notes).collect();
        Ok(Outcome { notes, one_by_one, is_complete: !tuning.is_cut_off, ..outcome })
    }

    /// Seconds of the first run, if the program can be tuned.
    pub(crate) fn judge_first(&self, first: &Row) -> Result<f64> {
        match &first.reading {
            Reading::Seconds(seconds) if *seconds >= SHORTEST_S => Ok(*seconds),
            Reading::Seconds(seconds) => bail!(
                "the program ends after {:.1} ms: too short to tell configurations apart (it should take {} ms at least); \
                 give it more to do{}",
                seconds * 1e3,
                SHORTEST_S * 1e3,
                match first.processes {
                    0 | 1 => ". If it reads its standard input, give that with --stdin FILE",
                    _ => ", or tune what it starts: that runs on when the program itself has ended",
                }
            ),
            Reading::Failed(why) => {
                bail!("the program fails as it is: {why}. If it reads its standard input, give that with --stdin FILE")
            }
            _ => {
                bail!(
                    "one run of the program takes longer than --budget: give it more time, the program less to do, or the \
                     name of a function that it calls again and again (--region), by which its beginning can be told"
                )
            }
        }
    }

    /// The axes that this program follows. `None`: the user stopped.
    fn space(&self, first: &Row, notes: &mut Vec<String>) -> Result<Option<Space>> {
        let space = Space::of(self.topology, self.cores, self.page_placements);
        let others: Vec<usize> = space.threads.iter().copied().filter(|&one| !fits(one, first.threads)).collect();
        let usual = self.settings.limit_s(first.seconds) * first.threads.max(1) as f64;
        let mut said_nothing = false;
        for threads in others {
            let alone = Space { threads: vec![threads], page_placements: AT_BIRTH.to_vec() };
            let Some(probe) = alone.configurations(self.topology).into_iter().next() else { continue };
            let limit = self.left().map_or(usual, |left| usual.min(left.as_secs_f64()));
            let Some(row) = self.row(Some(&probe.into()), 0, Some(limit))? else {
                if self.stop.wished() {
                    return Ok(None);
                }
                // The time was over before another machine had run it.
                said_nothing = true;
                break;
            };
            match row.reading {
                _ if fits(threads, row.threads) => return Ok(Some(space)),
                Reading::Seconds(_) if row.threads.abs_diff(first.threads) <= 1 => {
                    return Ok(Some(self.with_own_threads(space, threads, row.threads, notes)));
                }
                // It has threads besides those that it was told to have.
                Reading::Seconds(_) => return Ok(Some(space)),
                // Another number of threads may suit the program.
                Reading::Failed(_) => said_nothing = true,
                // As long would each other number take, that it does not follow either.
                _ => {
                    said_nothing = true;
                    break;
                }
            }
        }
        if said_nothing {
            notes.push(
                "whether the program follows a given number of threads is not known, as it did not end with another one: \
                 all were tried"
                    .to_owned(),
            );
        }
        Ok(Some(space))
    }

    /// The part of a space that is left of a program that had so many threads when it was asked for other ones.
    fn with_own_threads(&self, space: Space, asked: usize, had: usize, notes: &mut Vec<String>) -> Space {
        let cpus: usize = self.topology.nodes.values().map(|node| node.cpus.len()).sum();
        let threads = had.clamp(1, cpus);
        notes.push(format!(
            "the program has {} at a time, whether OMP_NUM_THREADS is {asked} or not set: their number was not varied ({})",
            if had == 1 { "1 thread".to_owned() } else { format!("{had} threads") },
            if self.command_has_threads {
                "nor does {threads} in its command change it"
            } else {
                "write {threads} where the command takes it"
            }
        ));
        Space { threads: vec![threads], ..space }
    }

    /// Says what is to come: the count, how long the search takes with the runs that tell who uses which page, and how long tuning these
    /// regions one by one.
    fn announce(&self, space: &Space, usual_s: f64, regions: &[Region]) {
        let configurations = space.configurations(self.topology);
        let (different, combinations) = (configurations.len(), space.combinations(self.topology));
        let mapped = configurations.iter().filter(|one| self.mapping.is_some() && one.needs_moving());
        let profiles: BTreeSet<usize> = mapped.map(|one| one.threads).collect();
        let of = |machines| search::expected_runs(different + 1, &self.settings, machines) + profiles.len();
        let (runs, expected) = (of(1), in_words(of(self.machines) as f64 * usual_s));
        let by_region = if self.one_by_one { self.runs_by_region(space, regions, usual_s, 1.0) } else { 0 };
        let besides = match by_region {
            0 => String::new(),
            runs => format!(", and about {} for single regions", in_words(runs as f64 * usual_s)),
        };
        let plural = if different == 1 { "" } else { "s" };
        (self.say)(&format!(
            "{different} configuration{plural} ({combinations} combinations, less duplicates and what does not fit); about {runs} \
             runs of {usual_s:.3} s: {expected}{besides}{}",
            self.budget.map_or(String::new(), |budget| format!(", {} at most", in_words(budget.as_secs_f64())))
        ));
        if self.topology.len() == 1 {
            (self.say)("this machine has one node: there is nothing to place, only the number of threads is tuned");
        } else if let Some(sentence) = self.left_out {
            (self.say)(sentence);
        }
    }
}

/// The name of a configuration in the store and in tables.
pub fn name(one: Option<&Configuration>) -> String {
    one.map_or(AS_IT_IS.to_owned(), Configuration::to_string)
}

/// The name of a plan in the store and in tables.
pub fn plan_name(plan: Option<&Plan>) -> String {
    plan.map_or(AS_IT_IS.to_owned(), Plan::to_string)
}

/// Whether a program that was asked for so many threads has followed. One more waits for the others in many programs.
fn fits(asked: usize, seen: usize) -> bool {
    seen == asked || seen == asked + 1
}

/// A time in the unit that one would say it in.
pub fn in_words(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests;
