// SPDX-License-Identifier: GPL-2.0-only
//! The runs of a session: looked up in the store first, and kept there as soon as they have ended.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{AS_IT_IS, BY_A_MAP, Ran, SHORTEST_S, Session, Trial, plan_name};
use crate::births::MapUse;
use crate::launch::{End, Limit, Seen};
use crate::places::Places;
use crate::plan::Plan;
use crate::search::Reading;
use crate::stop_cost::MOST_PERCENT;
use crate::store::Row;

impl Trial {
    /// One that ended because a stop was wished.
    pub fn stopped() -> Self {
        Self { seen: Seen::of(End::Stopped, 0.0), last_words: String::new(), moved_pages: None, host: None }
    }

    /// How many threads it had, if it came to its end with fewer than it was asked to have.
    fn threads_in_words(&self, asked: usize) -> String {
        let Seen { end, threads, .. } = &self.seen;
        let has_ended = matches!(end, End::Code(0) | End::Measured);
        match *threads {
            1 if has_ended && asked > 1 => ", 1 thread".to_owned(),
            threads if has_ended && threads < asked => format!(", {threads} threads"),
            _ => String::new(),
        }
    }

    /// What it gave; `None` when the user stopped it.
    fn reading(&self, limit_s: Option<f64>) -> Option<Reading> {
        let failed = |end: &str| Reading::Failed(failure(end, &self.last_words));
        Some(match (&self.seen.end, &self.moved_pages) {
            (End::Stopped, _) => return None,
            // The program ran on, but not under its configuration.
            (_, Some(Err(why))) => Reading::Failed(why.clone()),
            _ if self.seen.map_use.as_ref().is_some_and(|map_use| !map_use.fits()) => {
                Reading::Failed(self.seen.map_use.as_ref().and_then(MapUse::in_words).unwrap_or_default())
            }
            (End::Code(0) | End::Measured, _) => Reading::Seconds(self.seen.seconds),
            (End::TooLong, _) => Reading::SlowerThan(limit_s.unwrap_or(self.seen.seconds)),
            (End::WantsTerminal, _) => failed("it wants the terminal, which no program has while it is tuned"),
            (End::Code(code), _) => failed(&format!("exit code {code}")),
            (End::Signal(signal), _) => failed(&format!("ended by signal {signal}")),
        })
    }
}

impl Session<'_> {
    /// A run from the store, or else of the program; `None` when the user stopped, or the time was over.
    pub(crate) fn row(&self, one: Option<&Plan>, attempt: usize, limit_s: Option<f64>) -> Result<Option<Row>> {
        if let Some(row) = self.known(one, attempt, limit_s)? {
            return Ok(Some(row));
        }
        if self.stop.wished() {
            return Ok(None);
        }
        let places = match one.map(|one| self.places_of(one)).transpose()? {
            None => Places::default(),
            Some(Some(Ok(places))) => places,
            Some(Some(Err(why))) => return Ok(Some(self.not_run(one, &why))),
            Some(None) => return Ok(None),
        };
        let limit_s = self.longest_s(limit_s);
        // Without the first run of the program as it is nothing is known.
        let left = self.left().filter(|_| one.is_some() || attempt > 0);
        match self.run_within(left, &self.key(one), one, &places, limit_s)? {
            Some(ran) => self.take(one, attempt, limit_s, ran),
            None => Ok(None),
        }
    }

    /// Runs the program until it ends or is stopped after `limit_s`. Where it would still run when no time is `left` it is stopped then,
    /// and `None`: that says nothing.
    pub(crate) fn run_within(
        &self,
        left: Option<Duration>,
        name: &str,
        one: Option<&Plan>,
        places: &Places,
        limit_s: Option<f64>,
    ) -> Result<Option<Ran>> {
        // A limit may be what was left a moment ago.
        let cut = left.filter(|left| limit_s.is_none_or(|limit_s| limit_s > left.as_secs_f64() * 1.001));
        let time = cut.or(limit_s.map(Duration::from_secs_f64));
        let ran = (self.run)(one, places, Limit { time, entries: self.entries_of(one) })?;
        if cut.is_some() && ran.as_ref().is_ok_and(|trial| trial.seen.end == End::TooLong) {
            (self.say)(&format!("{name}: stopped, as the time is over"));
            return Ok(None);
        }
        Ok(Some(ran))
    }

    /// When a run is stopped, in s, if the search says `limit_s`: one that does not come as far as its entries this time would run
    /// for hours.
    pub(crate) fn longest_s(&self, limit_s: Option<f64>) -> Option<f64> {
        limit_s.or_else(|| self.first_entries.and(self.left()).map(|left| left.as_secs_f64()))
    }

    /// Keeps a run, or says why there was none; `None` if the user stopped it.
    ///
    /// # Errors
    /// The first run of the program as it is could not be begun.
    pub(crate) fn take(
        &self,
        one: Option<&Plan>,
        attempt: usize,
        limit_s: Option<f64>,
        ran: Ran,
    ) -> Result<Option<Row>> {
        match ran {
            Ok(trial) => {
                let asked = one.filter(|one| !one.is_by_region() && one.turns.is_none()).map(|one| one.base.threads);
                let fewer = asked.map(|asked| trial.threads_in_words(asked)).unwrap_or_default();
                self.keep(&self.key(one), attempt, limit_s, trial, &fewer)
            }
            Err(why) if one.is_some() || attempt > 0 => {
                Ok(Some(self.not_run(one, &format!("it could not be run: {why}"))))
            }
            Err(why) => bail!("{why}"),
        }
    }

    /// A run from the store, unless it was stopped sooner than it would be now, and so says too little, or the program failed
    /// as it is, or ended at once: what was missing may be there now.
    pub(crate) fn known(&self, one: Option<&Plan>, attempt: usize, limit_s: Option<f64>) -> Result<Option<Row>> {
        let says_enough = |row: &Row| match row.reading {
            Reading::SlowerThan(_) => row.is_known_until(limit_s),
            Reading::Failed(_) => one.is_some(),
            Reading::Seconds(seconds) => one.is_some() || seconds >= SHORTEST_S,
            _ => true,
        };
        Ok(self.store.run(&self.key(one), attempt)?.filter(says_enough))
    }

    /// What the store calls a plan: one whose pages go by a map is another one than one whose pages are moved, and so is the
    /// beginning of a run.
    pub(crate) fn key(&self, one: Option<&Plan>) -> String {
        let by_map = one.is_some_and(|one| self.is_mapped(one));
        plan_name(one) + if by_map { BY_A_MAP } else { "" } + &self.name_of_part(one)
    }

    /// Says what a run gave, with these words after its time, and keeps it; `None` if the user stopped it.
    pub(crate) fn keep(
        &self,
        name: &str,
        attempt: usize,
        limit_s: Option<f64>,
        trial: Trial,
        words: &str,
    ) -> Result<Option<Row>> {
        let Some(reading) = trial.reading(limit_s) else { return Ok(None) };
        let Trial { seen, moved_pages, host, .. } = trial;
        let misfit = seen.map_use.as_ref().and_then(MapUse::in_words).map(|words| format!("; {words}"));
        let misfit = misfit.filter(|_| !matches!(reading, Reading::Failed(_)));
        let moved = moved_pages.and_then(Result::ok).map(|pages| format!(", {pages} pages moved"));
        let disturbed = (seen.stops_too_often && name.starts_with(AS_IT_IS) && attempt == 0).then(without_regions);
        let others = [moved, misfit, disturbed].into_iter().flatten().collect::<String>();
        (self.say)(&format!("{name}: {}{words}{others}", reading_in_words(&reading)));
        // One that was stopped is known to take longer than its limit, whenever it was found to be dead.
        let seconds = if let Reading::SlowerThan(limit) = reading { limit } else { seen.seconds };
        let Seen { threads, processes, regions, first_touch, .. } = seen;
        let row = Row { reading, seconds, threads, processes, regions, first_touch, host };
        self.store.keep(name, attempt, &row)?;
        (self.kept)()?;
        Ok(Some(row))
    }

    /// Says why a run did not take place. It is not kept: it says nothing of the configuration, and may be possible next time.
    fn not_run(&self, one: Option<&Plan>, why: &str) -> Row {
        let row = Row::failed(why.to_owned());
        (self.say)(&format!("{}: {}", self.key(one), reading_in_words(&row.reading)));
        row
    }
}

/// What is said once of a program whose regions are not measured.
fn without_regions() -> String {
    format!(
        "; stops at its regions, or where it loads code, would take more than {MOST_PERCENT} % of its time, so it is measured without them"
    )
}

fn failure(end: &str, last_words: &str) -> String {
    if last_words.is_empty() { end.to_owned() } else { format!("{end}, its last words: {last_words}") }
}

fn reading_in_words(reading: &Reading) -> String {
    match reading {
        Reading::Seconds(seconds) => format!("{seconds:.3} s"),
        Reading::SlowerThan(seconds) => format!("more than {seconds:.3} s"),
        Reading::Failed(why) => format!("failed: {why}"),
        Reading::Stop => "not run".to_owned(),
    }
}
