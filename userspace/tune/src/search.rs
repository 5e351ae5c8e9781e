// SPDX-License-Identifier: GPL-2.0-only
//! The search: which of many configurations is the fastest, with as few runs as possible.
//!
//! Problem: hundreds of configurations, each run takes as long as the program, and runs differ by chance. Mechanism:
//! successive halving. Everybody runs once; the best fifth runs again, the best fifth of these as often again, and so on,
//! up to [`Settings::repeats`] runs each. A run is stopped when it takes [`Settings::patience`] times the best median.
//! After two runs who is further behind than runs of anybody are apart is out; from four on intervals decide: who is worse than
//! the best with 95 % confidence runs no more, and when, with confidence, nobody that is left is better than the best by more than
//! [`Settings::near`], it is over. Few configurations
//! ([`Settings::few`]) are searched exhaustively: only intervals end their runs. The same readings give the same search.
//! The reference is compared, not ranked: it takes nobody's place, and does not run where ranks alone decide.
//! Which runs tell how much faster the best one is than it, and are made for that: `evidence`.
//!
//! Terms: *candidate*: index of a configuration; *reading*: one run's result; *survivor*: still in the race.

mod evidence;

use anyhow::Result;
use tandem_ab::statistics::{Better, Comparison, Sample, Verdict};

pub use evidence::Choice;

/// One of so many goes on to the next round.
const ONE_OF: usize = 5;

/// Runs of each side from which on an interval decides: of two and two equal ones, every third pair is disjoint.
pub(crate) const FEWEST: usize = 4;

/// So many candidates tell by two runs each how far runs are apart.
const KNOWN: usize = 5;

/// Stopping a run that takes less than this too long saves nothing, and a busy machine may delay any run as much.
const LEAST_SAVED_S: f64 = 0.5;

/// How the search goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Runs of the last survivors.
    pub repeats: usize,
    /// So many candidates, or fewer, are not halved.
    pub few: usize,
    /// A run is stopped at so many times the best median, and no sooner than half a second after that.
    pub patience: f64,
    /// Candidates within this share of the best are equal to it: it takes no runs to find out which of them is better.
    pub near: f64,
    /// Everybody runs [`Settings::repeats`] times, to the end: what a search is compared with.
    pub exhaustive: bool,
}

impl Settings {
    /// Runs that everybody who is left has after each round.
    fn rounds(&self) -> impl Iterator<Item = usize> {
        let repeats = self.repeats;
        let first = if self.exhaustive { repeats } else { 1.min(repeats) };
        std::iter::successors(Some(first), move |&goal| (goal < repeats).then(|| (2 * goal).min(repeats)))
    }

    /// When a run is stopped if the best median is `seconds`.
    pub fn limit_s(&self, seconds: f64) -> f64 {
        (seconds * self.patience).max(seconds + LEAST_SAVED_S)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { repeats: 10, few: 8, patience: 2.0, near: 0.02, exhaustive: false }
    }
}

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// It took so many seconds.
    Seconds(f64),
    /// It was stopped after so many.
    SlowerThan(f64),
    /// It did not end well; why, in words.
    Failed(String),
    /// There is no time for it, or the user wants to stop.
    Stop,
}

/// All runs of a candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    /// Of the runs that ended, in their order; of later ones that were stopped, until then.
    pub seconds: Vec<f64>,
    /// After how long its only run was stopped.
    pub slower_than: Option<f64>,
    /// Why it failed.
    pub failure: Option<String>,
}

impl Runs {
    /// Its runs, if each one ended.
    pub fn sample(&self) -> Option<Sample> {
        if self.has_ended_badly() { None } else { Sample::new(&self.seconds) }
    }

    /// Whether it runs no more.
    fn has_ended_badly(&self) -> bool {
        self.failure.is_some() || self.slower_than.is_some()
    }

    /// Median in s, if each run ended.
    pub fn median(&self) -> Option<f64> {
        self.sample().map(|sample| sample.median())
    }
}

/// How the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last survivors had all their runs, or none but the best was left.
    Decided,
    /// All survivors are equal to the best.
    Near,
    /// A reading said so.
    Stopped,
    /// No run of any candidate ended well.
    NoneWorks,
}

impl End {
    /// Whether more runs would not have changed what was found.
    pub fn is_decision(self) -> bool {
        matches!(self, Self::Decided | Self::Near)
    }
}

/// What the search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The candidate with the least median, among those that were left in the end.
    pub best: Option<usize>,
    /// By candidate.
    pub runs: Vec<Runs>,
    /// How it ended.
    pub end: End,
    /// By what it is the best.
    pub choice: Choice,
}

/// Who runs candidates.
pub trait Readings {
    /// Runs a candidate: its index, how often it has run, and after how many seconds to stop it.
    ///
    /// # Errors
    /// It cannot be run.
    fn read(&mut self, candidate: usize, attempt: usize, limit_s: Option<f64>) -> Result<Reading>;

    /// These runs (candidate, attempt) will be asked for unless earlier ones of the same candidate fail: whoever can run many
    /// at once does that now.
    ///
    /// # Errors
    /// They cannot be run.
    fn ahead(&mut self, _runs: &[(usize, usize)], _limit_s: Option<f64>) -> Result<()> {
        Ok(())
    }
}

impl<F: FnMut(usize, usize, Option<f64>) -> Result<Reading>> Readings for F {
    fn read(&mut self, candidate: usize, attempt: usize, limit_s: Option<f64>) -> Result<Reading> {
        self(candidate, attempt, limit_s)
    }
}

/// Searches among `candidates`, of which number `reference` runs on, however bad, until it is worse with confidence.
///
/// # Errors
/// Those of `readings`.
pub fn search(
    candidates: usize,
    reference: Option<usize>,
    settings: &Settings,
    mut readings: impl Readings,
) -> Result<Found> {
    let mut survivors: Vec<usize> = (0..candidates).collect();
    let choice = Choice::of(0, &survivors, reference.map(|one| (one, 0)), settings);
    let mut race =
        Race { runs: vec![Runs::default(); candidates], settings: *settings, reference, choice, aside: vec![] };
    let mut goal = if settings.exhaustive { settings.repeats } else { 1 };
    loop {
        let is_through = race.bring_to(&race.due(&survivors, goal), &mut readings)?;
        let failed = |&one: &usize| race.runs[one].sample().is_none();
        let has_place_left = survivors.iter().any(|one| Some(*one) != reference && failed(one));
        survivors.retain(|one| !failed(one));
        if !is_through {
            return Ok(race.found(End::Stopped, &survivors));
        }
        if has_place_left && !race.aside.is_empty() {
            survivors.append(&mut race.aside);
            continue;
        }
        let Some(best) = race.best(&survivors) else { return Ok(race.found(End::NoneWorks, &[])) };
        if settings.exhaustive {
            return Ok(race.found(End::Decided, &survivors));
        }
        if goal >= FEWEST {
            survivors = race.not_worse(&survivors, best);
        }
        let rivals = survivors.iter().filter(|&&one| one != best).count();
        if goal >= settings.repeats || (rivals == 0 && goal >= FEWEST) {
            return race.confirmed(End::Decided, survivors, &mut readings);
        }
        if goal >= FEWEST && !survivors.iter().any(|&one| one != best && race.is_open(one, best)) {
            return race.confirmed(End::Near, survivors, &mut readings);
        }
        if candidates > settings.few {
            survivors = race.best_of(survivors);
            let had = reference.map(|one| (one, race.runs[one].seconds.len()));
            race.choice = race.choice.or(Choice::of(goal, &survivors, had, settings));
            if goal > 1 && goal < FEWEST {
                race.put_aside(&mut survivors);
            }
        }
        goal = (goal * 2).min(settings.repeats);
    }
}

/// About how many runs a search takes one after the other, if so many machines run those of a round: every round as far as
/// halving lets it come.
pub fn expected_runs(candidates: usize, settings: &Settings, machines: usize) -> usize {
    let machines = machines.max(1);
    if settings.exhaustive {
        return (candidates * settings.repeats).div_ceil(machines);
    }
    let (mut survivors, mut had, mut runs) = (candidates, 0, 0);
    for goal in settings.rounds() {
        runs += (survivors * (goal - had)).div_ceil(machines);
        if candidates > settings.few {
            survivors = survivors.div_ceil(ONE_OF).max(2).min(survivors);
        }
        had = goal;
    }
    runs
}

struct Race {
    /// By candidate.
    runs: Vec<Runs>,
    settings: Settings,
    reference: Option<usize>,
    choice: Choice,
    /// Who need not run on, unless one that does fails.
    aside: Vec<usize>,
}

impl Race {
    /// How many runs each of them has after a round to `goal` runs: ranks tell nothing of the reference, so it runs once, and on when
    /// they have decided.
    fn due(&self, survivors: &[usize], goal: usize) -> Vec<(usize, usize)> {
        let is_by_ranks = self.runs.len() > self.settings.few && goal < FEWEST.min(self.settings.repeats);
        let of = |one| if is_by_ranks && Some(one) == self.reference { 1 } else { goal };
        survivors.iter().map(|&one| (one, of(one))).collect()
    }

    /// Runs candidates until each has so many runs or fails; false if a reading says to stop. They take turns: a slow minute of the
    /// machine slows runs of all of them, not all runs of one.
    fn bring_to(&mut self, goals: &[(usize, usize)], readings: &mut impl Readings) -> Result<bool> {
        let most = goals.iter().map(|&(_, goal)| goal).max().unwrap_or(0);
        let is_due = |candidate: usize, goal: usize, attempt: usize| {
            (self.runs[candidate].seconds.len()..goal).contains(&attempt)
        };
        let turns: Vec<(usize, usize)> = (0..most)
            .flat_map(|attempt| goals.iter().map(move |&(candidate, goal)| (candidate, goal, attempt)))
            .filter(|&(candidate, goal, attempt)| is_due(candidate, goal, attempt))
            .map(|(candidate, _, attempt)| (candidate, attempt))
            .collect();
        readings.ahead(&turns, self.limit_s())?;
        for (candidate, attempt) in turns {
            if self.runs[candidate].has_ended_badly() {
                continue;
            }
            let limit = if Some(candidate) == self.reference { None } else { self.limit_s() };
            let runs = &mut self.runs[candidate];
            match readings.read(candidate, attempt, limit)? {
                Reading::Seconds(seconds) => runs.seconds.push(seconds),
                // One bad run of several is an outlier, which a median bears; it counts as what it took at least.
                Reading::SlowerThan(seconds) if !runs.seconds.is_empty() => runs.seconds.push(seconds),
                Reading::SlowerThan(seconds) => runs.slower_than = Some(seconds),
                Reading::Failed(why) => runs.failure = Some(why),
                Reading::Stop => return Ok(false),
            }
        }
        Ok(true)
    }

    /// When a run is stopped, in s.
    fn limit_s(&self) -> Option<f64> {
        if self.settings.exhaustive {
            return None;
        }
        let least = self.runs.iter().filter_map(Runs::median).min_by(f64::total_cmp);
        least.map(|median| self.settings.limit_s(median))
    }

    /// The one with the least median.
    fn best(&self, among: &[usize]) -> Option<usize> {
        let known = among.iter().filter_map(|&one| Some((one, self.runs[one].median()?)));
        known.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(one, _)| one)
    }

    fn against(&self, one: usize, best: usize) -> Option<Comparison> {
        Some(Comparison::of(&self.runs[one].sample()?, &self.runs[best].sample()?))
    }

    /// Those that are not worse than `best` with confidence.
    fn not_worse(&self, survivors: &[usize], best: usize) -> Vec<usize> {
        let stays = |one: usize| {
            let worse = self.against(one, best).is_none_or(|known| known.verdict(Better::Lower) == Verdict::Worse);
            one == best || !worse
        };
        survivors.iter().copied().filter(|&one| stays(one)).collect()
    }

    /// Whether more runs of it matter: it may be better than `best` by more than [`Settings::near`]. Of the reference people want to know
    /// how much worse it is, and where all runs are evidence, one that is ahead by luck must not end them: these matter until they
    /// are known to be as near.
    fn is_open(&self, one: usize, best: usize) -> bool {
        let near = 1.0 + self.settings.near;
        let is_told = Some(one) == self.reference || self.choice.runs == 0;
        let is_open = |(low, high): (f64, f64)| if is_told { high > near } else { low < 1.0 / near };
        self.against(one, best).is_none_or(|known| is_open(known.interval))
    }

    /// Puts aside who need not be told apart from the best one, by how far the runs of one candidate are apart at most: who is further
    /// behind than that with all of its runs; and where that is within [`Settings::near`], who is not better by more than this.
    /// `survivors` begin with the best one.
    fn put_aside(&mut self, survivors: &mut Vec<usize>) {
        let range = |one: usize| {
            let runs = &self.runs[one];
            runs.sample().filter(|_| runs.seconds.len() > 1).map(|all| all.range())
        };
        let apart: Vec<f64> =
            (0..self.runs.len()).filter_map(range).map(|(least, greatest)| greatest / least).collect();
        if apart.len() < KNOWN {
            return;
        }
        let (apart, near) = (apart.into_iter().fold(1.0, f64::max), 1.0 + self.settings.near);
        let Some((best, (_, of_best))) = survivors.first().and_then(|&best| Some((best, range(best)?))) else { return };
        let is_open = |(least, _): (f64, f64)| {
            if apart <= near { least * near < of_best } else { least <= of_best * apart }
        };
        let stays = |one: usize| one == best || Some(one) == self.reference || range(one).is_some_and(is_open);
        (*survivors, self.aside) = survivors.iter().partition(|&&one| stays(one));
    }

    /// One of [`ONE_OF`], the best ones, two at least, the best one first; and the reference, which is none of these.
    fn best_of(&self, survivors: Vec<usize>) -> Vec<usize> {
        let median = |one: usize| self.runs[one].median().unwrap_or(f64::INFINITY);
        let (reference, mut others): (Vec<usize>, Vec<usize>) =
            survivors.into_iter().partition(|&one| Some(one) == self.reference);
        others.sort_by(|&one, &other| median(one).total_cmp(&median(other)));
        others.truncate(others.len().div_ceil(ONE_OF).max(2));
        others.extend(reference);
        others
    }

    /// The best of those that are left: few runs claim more than they know, and who went further was better when both had as many.
    fn found(self, end: End, survivors: &[usize]) -> Found {
        Found { best: self.best(survivors), runs: self.runs, end, choice: self.choice }
    }
}

#[cfg(test)]
mod tests;
