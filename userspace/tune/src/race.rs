// SPDX-License-Identifier: GPL-2.0-only
//! What a search reads: a session's runs, from its store or else of the program.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::launch::Limit;
use crate::places::Places;
use crate::plan::Plan;
use crate::regions::Region;
use crate::search::{self, Reading};
use crate::session::{Asked, Session};

/// A run that is not known: of which candidate, which attempt, and when it is stopped, in s.
type Missing = (usize, usize, Option<f64>);

/// The search of one session: reads from its store what is there.
pub(crate) struct RaceOf<'a> {
    pub session: &'a Session<'a>,
    pub candidates: &'a [Option<Plan>],
    pub usual_s: f64,
    pub deadline: Option<Instant>,
    /// Parallel regions by candidate and run.
    pub regions: &'a mut [Vec<Vec<Region>>],
    /// By candidate and attempt, runs that could not be set up elsewhere: the store does not keep them.
    pub not_set_up: BTreeMap<(usize, usize), Reading>,
}

impl RaceOf<'_> {
    /// Whether a run that begins now would end too late.
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() + Duration::from_secs_f64(self.usual_s) > deadline)
    }

    /// When a run of a candidate is stopped, in s, if the search says `limit_s`: at the latest at what the time of the program as it
    /// is allows, which is known. That one itself is not stopped, nor is anybody where all are to be measured.
    fn limit_s(&self, candidate: usize, limit_s: Option<f64>) -> Option<f64> {
        let settings = &self.session.settings;
        let is_stopped = self.candidates[candidate].is_some() && !settings.exhaustive;
        is_stopped.then(|| limit_s.unwrap_or_else(|| settings.limit_s(self.usual_s)))
    }

    /// What is to be run of these candidates' attempts, with these limits: those whose pages can be placed; `None`: the user
    /// stopped.
    fn asked(&mut self, missing: Vec<Missing>) -> Result<Option<(Vec<Asked>, Vec<Missing>)>> {
        let (mut asked, mut runs) = (Vec::new(), Vec::new());
        for (candidate, attempt, limit_s) in missing {
            let plan = self.candidates[candidate].clone();
            let places = match plan.as_ref().map(|plan| self.session.places_of(plan)).transpose()? {
                None => Places::default(),
                Some(Some(Ok(places))) => places,
                // It is said where the run is read.
                Some(Some(Err(_))) => continue,
                Some(None) => return Ok(None),
            };
            let time = self.session.longest_s(limit_s).map(Duration::from_secs_f64);
            let limit = Limit { time, entries: self.session.first_entries };
            asked.push(Asked { plan, places, limit });
            runs.push((candidate, attempt, limit_s));
        }
        Ok(Some((asked, runs)))
    }
}

impl search::Readings for RaceOf<'_> {
    fn read(&mut self, candidate: usize, attempt: usize, limit_s: Option<f64>) -> Result<Reading> {
        if let Some(reading) = self.not_set_up.get(&(candidate, attempt)) {
            return Ok(reading.clone());
        }
        let (one, limit_s) = (self.candidates[candidate].as_ref(), self.limit_s(candidate, limit_s));
        if self.is_late() && self.session.known(one, attempt, limit_s)?.is_none() {
            return Ok(Reading::Stop);
        }
        let Some(row) = self.session.row(one, attempt, limit_s)? else { return Ok(Reading::Stop) };
        if let (Reading::Seconds(_), Some(of_runs)) = (&row.reading, self.regions.get_mut(candidate)) {
            of_runs.push(row.regions);
        }
        Ok(row.reading)
    }

    fn ahead(&mut self, runs: &[(usize, usize)], limit_s: Option<f64>) -> Result<()> {
        let Some(run_many) = self.session.run_many.filter(|_| !self.is_late()) else { return Ok(()) };
        let mut missing = Vec::new();
        for &(candidate, attempt) in runs {
            let (one, limit_s) = (self.candidates[candidate].as_ref(), self.limit_s(candidate, limit_s));
            if self.session.known(one, attempt, limit_s)?.is_none() {
                missing.push((candidate, attempt, limit_s));
            }
        }
        if missing.is_empty() || self.session.stop.wished() {
            return Ok(());
        }
        let Some((asked, runs)) = self.asked(missing)? else { return Ok(()) };
        run_many(&asked, self.deadline, &mut |at, ran| {
            let ((candidate, attempt, limit_s), was_set_up) = (runs[at], ran.is_ok());
            let limit_s = self.session.longest_s(limit_s);
            let row = self.session.take(self.candidates[candidate].as_ref(), attempt, limit_s, ran)?;
            if let Some(row) = row.filter(|_| !was_set_up) {
                self.not_set_up.insert((candidate, attempt), row.reading);
            }
            Ok(())
        })
    }
}
