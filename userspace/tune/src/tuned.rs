// SPDX-License-Identifier: GPL-2.0-only
//! The result as a file: the best configuration with its evidence, for people to read and `tandem run --tuned` to apply.

mod check;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tandem_ab::statistics::{Better, Comparison, Sample, Verdict};

use crate::apart::{self, RegionResult, regions};
use crate::first_touch::{Bimodal, Remedy};
use crate::one_by_one::{OneByOne, Prediction};
use crate::page_map::PageMap;
use crate::plan::{Plan, RegionSeats};
use crate::session::{AS_IT_IS, Outcome, name};
use crate::space::Configuration;
use crate::subject::Subject;
use crate::surroundings::open_regular;

/// Version of the file.
const VERSION: u32 = 4;

/// The oldest version that is read: it knew no seats of single regions; version 3 knew nothing of chance.
const OLDEST: u32 = 2;

/// Runs of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Its name.
    pub configuration: String,
    /// Number of runs that ended.
    pub runs: usize,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_s: Option<f64>,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_s: Option<f64>,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greatest_s: Option<f64>,
    /// A run was stopped after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_s: Option<f64>,
    /// A run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// How much faster the best configuration is, by runs that did not choose it (`search/evidence.rs`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Median as it is.
    pub as_it_is_s: f64,
    /// Median under the configuration.
    pub tuned_s: f64,
    /// The first over the second.
    pub speed_up: f64,
    /// 95 % interval of that.
    pub interval: [f64; 2],
    /// Runs as it is and under the configuration.
    pub runs: [usize; 2],
    /// How many of each it takes to tell the difference from chance, if that is more than ever is needed.
    #[serde(default)]
    pub needed_runs: usize,
    /// Whether the session came to its end.
    pub complete: bool,
    /// After how many entries of its parallel regions each run was ended, if runs were not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_entries: Option<u64>,
}

impl Evidence {
    /// That of what is best of all; `None` where that is the program as it is, or this gave no time.
    fn of(outcome: &Outcome) -> Option<Self> {
        let by_region = outcome.one_by_one.as_ref().and_then(|all| Some((&all.found, all.chosen?)));
        let (found, best) = by_region.or_else(|| Some((&outcome.found, outcome.best()?.1)))?;
        let seconds = [outcome.found.evidence(0)?, found.evidence(best)?];
        let [as_it_is, tuned] = seconds.map(Sample::new);
        let (as_it_is, tuned) = (as_it_is?, tuned?);
        let known = Comparison::among(&as_it_is, &tuned, found.choice.comparisons());
        Some(Self {
            as_it_is_s: as_it_is.median(),
            tuned_s: tuned.median(),
            speed_up: known.ratio,
            interval: known.interval.into(),
            runs: seconds.map(<[f64]>::len),
            needed_runs: found.choice.needed(),
            complete: outcome.is_complete,
            first_entries: outcome.first_entries,
        })
    }

    /// Whether the difference can be told from chance.
    fn verdict(&self) -> Verdict {
        let runs = self.runs[0].min(self.runs[1]);
        let runs = if runs < self.needed_runs { 0 } else { runs };
        Comparison { ratio: self.speed_up, interval: self.interval.into(), runs }.verdict(Better::Higher)
    }
}

/// How far a session came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    /// The search, which was cut off.
    Search,
    /// The search's end, but not that of what follows: regions one by one, and where the main thread begins.
    Regions,
    /// The end of all.
    End,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    version: u32,
    /// Whether the session came to its end; older files say it of their evidence only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    /// Whether the search alone did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    searched: Option<bool>,
    /// What was tuned, and where.
    pub subject: Subject,
    /// The release of the kernel there. Another one is no other subject: most updates change nothing that a program's time shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The best one; the program as it is when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// Regions with seats of their own, by their functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seats: BTreeMap<String, RegionSeats>,
    /// What it brings, when both were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Whether its time depends on where its main thread happens to be, and what is done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_touch: Option<Bimodal>,
    /// Its parallel regions above 5 % of its time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionResult>,
    /// What was predicted of plans for single regions, and what became of it.
    #[serde(default, rename = "prediction", skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Prediction>,
    /// All configurations that ran, the fastest first.
    pub measured: Vec<Measured>,
    /// Where its pages go, if they are bound by a map as they are allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_map: Option<PageMap>,
}

impl Tuned {
    /// What `outcome` found about `subject`.
    pub fn new(subject: Subject, outcome: &Outcome) -> Self {
        let runs = &outcome.found.runs;
        let best = outcome.plan();
        let ran = outcome.candidates.iter().zip(runs).filter(|(_, runs)| **runs != crate::search::Runs::default());
        let mut measured: Vec<Measured> = ran.map(|(one, runs)| measured(name(one.as_ref()), runs)).collect();
        measured.extend(outcome.one_by_one.iter().flat_map(measured_plans));
        // What failed is worth nothing, however fast it was before.
        let ended = |one: &Measured| one.median_s.or(one.slower_than_s).filter(|_| one.failure.is_none());
        let key = |one: &Measured| ended(one).unwrap_or(f64::INFINITY);
        measured.sort_by(|one, other| key(one).total_cmp(&key(other)));
        Self {
            version: VERSION,
            complete: Some(outcome.is_complete),
            searched: Some(outcome.found.end.is_decision()),
            notes: subject.threads_by.note().into_iter().chain(outcome.notes.iter().cloned()).collect(),
            subject,
            kernel: None,
            configuration: best.as_ref().map(|(plan, _)| plan.base),
            seats: best.map(|(plan, _)| plan.regions).unwrap_or_default(),
            page_map: outcome.page_map.clone(),
            evidence: Evidence::of(outcome),
            first_touch: outcome.bimodal.clone(),
            regions: regions(outcome),
            predictions: outcome.one_by_one.as_ref().map(OneByOne::predictions).unwrap_or_default(),
            measured,
        }
    }

    /// The same, found under a kernel of this release.
    #[must_use]
    pub fn under(self, kernel: Option<String>) -> Self {
        Self { kernel, ..self }
    }

    /// In one sentence that it was found under another kernel than that of release `here`, if that is so and known.
    pub fn other_kernel(&self, here: Option<&str>) -> Option<String> {
        let (then, here) = (self.kernel.as_deref()?, here?);
        (then != here).then(|| format!("it was tuned under Linux {then}, here is Linux {here}"))
    }

    /// What a run is under that applies it; `None` if that is the program as it is.
    pub fn plan(&self) -> Option<Plan> {
        Some(Plan { regions: self.seats.clone(), ..self.configuration?.into() })
    }

    /// The node that the main thread alone is bound to at first, if the program is as it is otherwise.
    pub fn main_node(&self) -> Option<u32> {
        let bimodal = self.first_touch.as_ref().filter(|bimodal| bimodal.remedy == Remedy::MainThread);
        bimodal.filter(|_| self.configuration.is_none()).map(|bimodal| bimodal.node)
    }

    /// Whether `tandem run --tuned` does anything.
    pub fn is_applied(&self) -> bool {
        self.configuration.is_some() || self.main_node().is_some()
    }

    /// Whether what is applied is known to be faster than the program as it is.
    pub fn gains(&self) -> bool {
        self.evidence.as_ref().is_none_or(|evidence| evidence.verdict() == Verdict::Better)
    }

    /// How far its session came, as far as that is known.
    pub fn reached(&self) -> Reached {
        let of_evidence = || self.evidence.as_ref().is_none_or(|evidence| evidence.complete);
        let is_complete = self.complete.unwrap_or_else(of_evidence);
        match (is_complete, self.searched.unwrap_or(is_complete)) {
            (true, _) => Reached::End,
            (false, true) => Reached::Regions,
            (false, false) => Reached::Search,
        }
    }

    /// What was found, in one sentence.
    pub fn in_words(&self) -> String {
        let Some(plan) = self.plan() else {
            let main = self.main_node().map(|node| format!(", with its main thread on node {node} at first"));
            return format!("the program as it is is the fastest that was found{}", main.unwrap_or_default());
        };
        let Some(evidence) = &self.evidence else { return self.alone_in_words(&plan) };
        let [low, high] = evidence.interval;
        let so = match evidence.verdict() {
            Verdict::NoDifference => ": no difference that can be told from chance",
            Verdict::TooFewRuns => ": too few runs to tell that from chance",
            Verdict::Better | Verdict::Worse => "",
        };
        let part = evidence.first_entries.map(|entries| format!(" until its regions were entered {entries} times"));
        let part = part.unwrap_or_default();
        format!(
            "{plan}: {:.3} s{part}, as it is {:.3} s: {:.2} times as fast (95 %: {low:.2} to {high:.2}, {} and {} runs){so}",
            evidence.tuned_s, evidence.as_it_is_s, evidence.speed_up, evidence.runs[1], evidence.runs[0]
        )
    }

    /// The plan that was found, where the program as it is gives no time to compare it with.
    fn alone_in_words(&self, plan: &Plan) -> String {
        let of = |name: &str| self.measured.iter().find(|one| one.configuration == name);
        let tuned = of(&plan.to_string()).and_then(|one| one.median_s);
        let tuned = tuned.map_or(String::new(), |seconds| format!(": {seconds:.3} s"));
        let failure = of(AS_IT_IS).and_then(|one| one.failure.as_ref());
        let why = failure.map_or("was not measured".to_owned(), |failure| format!("failed: {failure}"));
        format!("{plan}{tuned}; not compared with the program as it is, which {why}")
    }

    /// What is known of its regions, as text; empty if it has none.
    pub fn regions_in_words(&self) -> String {
        if self.regions.is_empty() {
            return String::new();
        }
        // Regions with seats of their own are what they can be.
        let whole = self.measured.iter().find(|one| one.configuration == name(self.configuration.as_ref()));
        let whole = whole.filter(|_| self.seats.is_empty());
        let bound = whole.and_then(|one| one.median_s);
        let bound = bound.map_or(String::new(), |tuned_s| apart::at_best_in_words(tuned_s, &self.regions));
        apart::table(&self.regions) + &bound
    }

    /// The file's text.
    ///
    /// # Errors
    /// None that is known; the type is that of writing.
    pub fn text(&self) -> Result<String> {
        let mut text = String::new();
        writeln!(text, "# Found by `tandem tune`; `tandem run --tuned THIS-FILE -- CMD` applies it.")?;
        writeln!(text, "# {}", self.in_words())?;
        Ok(text + &toml::to_string_pretty(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no result of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let (text, version) = Self::begin(path)?;
        if !(OLDEST..=VERSION).contains(&version) {
            bail!("{}: is of version {version}, this is version {VERSION}: tune again", path.display());
        }
        parsed(path, &text)
    }

    /// The result that would be replaced by one in this file; `None` if there is no file, or a result of a version that is not read.
    ///
    /// # Errors
    /// There is something else, or it cannot be read.
    pub fn earlier(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let (text, version) = Self::begin(path)?;
        (OLDEST..=VERSION).contains(&version).then(|| parsed(path, &text)).transpose()
    }

    /// The text and the version of a result.
    fn begin(path: &Path) -> Result<(String, u32)> {
        /// What results of all versions have.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
            #[serde(rename = "subject")]
            _subject: toml::Table,
        }
        let mut text = String::new();
        let read = open_regular(path)?.read_to_string(&mut text);
        read.with_context(|| format!("{}: cannot be read", path.display()))?;
        let head: Head = parsed(path, &text)?;
        Ok((text, head.version))
    }
}

/// What the text of a file means.
fn parsed<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let lines = |span: std::ops::Range<usize>| text.as_bytes()[..span.start].split(|&byte| byte == b'\n').count();
        let line = error.span().map_or(String::new(), |span| format!(" (line {})", lines(span)));
        let why = error.message().trim().replace('\n', ", ");
        anyhow!("{}: is no result of tandem tune: {why}{line}", path.display())
    })
}

/// Plans for single regions that ran.
fn measured_plans(all: &OneByOne) -> Vec<Measured> {
    all.plans_by_region()
        .filter(|(_, runs)| **runs != crate::search::Runs::default())
        .map(|(plan, runs)| measured(plan.to_string(), runs))
        .collect()
}

fn measured(configuration: String, runs: &crate::search::Runs) -> Measured {
    let ended = tandem_ab::statistics::Sample::new(&runs.seconds);
    let range = ended.as_ref().map(tandem_ab::statistics::Sample::range);
    Measured {
        configuration,
        runs: runs.seconds.len(),
        median_s: ended.as_ref().map(tandem_ab::statistics::Sample::median),
        least_s: range.map(|range| range.0),
        greatest_s: range.map(|range| range.1),
        slower_than_s: runs.slower_than,
        failure: runs.failure.clone(),
    }
}

#[cfg(test)]
mod tests;
