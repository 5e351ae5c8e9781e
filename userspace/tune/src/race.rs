// SPDX-License-Identifier: GPL-2.0-only
//! What a search reads: a session's runs, from its store or else of the program.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::launch::Limit;
use crate::plan::Plan;
use crate::regions::Region;
use crate::search::{self, Reading};
use crate::session::Session;

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
}

impl search::Readings for RaceOf<'_> {
    fn read(&mut self, candidate: usize, attempt: usize, limit_s: Option<f64>) -> Result<Reading> {
        if let Some(reading) = self.not_set_up.get(&(candidate, attempt)) {
            return Ok(reading.clone());
        }
        let one = self.candidates[candidate].as_ref();
        if self.is_late() && self.session.store.run(&self.session.key(one), attempt)?.is_none() {
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
        // Nobody is stopped sooner than the program as it is takes, which is known.
        let limit_s = limit_s.or(Some(self.session.settings.limit_s(self.usual_s)));
        let mut missing = Vec::new();
        for &(candidate, attempt) in runs {
            if self.session.known(self.candidates[candidate].as_ref(), attempt, limit_s)?.is_none() {
                missing.push((candidate, attempt));
            }
        }
        if missing.is_empty() || self.session.stop.wished() {
            return Ok(());
        }
        let plans: Vec<_> = missing.iter().map(|&(candidate, _)| self.candidates[candidate].clone()).collect();
        let limit = Limit { time: limit_s.map(Duration::from_secs_f64), entries: self.session.first_entries };
        run_many(&plans, limit, &mut |at, ran| {
            let ((candidate, attempt), was_set_up) = (missing[at], ran.is_ok());
            let row = self.session.take(self.candidates[candidate].as_ref(), attempt, limit_s, ran)?;
            if let Some(row) = row.filter(|_| !was_set_up) {
                self.not_set_up.insert(missing[at], row.reading);
            }
            Ok(())
        })
    }
}
