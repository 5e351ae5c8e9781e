// SPDX-License-Identifier: GPL-2.0-only
//! Entries of regions that are replayed from checkpoints: kept in the store like runs, one a replay.

use std::time::Duration;

use anyhow::Result;

use super::{Ran, Session};
use crate::launch::{Entry, Limit};
use crate::places::Places;
use crate::plan::{Plan, RegionSeats};
use crate::search::Reading;
use crate::space::Configuration;
use crate::store::Row;

/// What the store adds to the name of a plan of which one entry alone was run.
const FROM_A_CHECKPOINT: &str = " from a checkpoint";

/// A replay that is asked for. Plans and places tell the program the same number of threads.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What the run is under of which a checkpoint is made.
    pub base: Plan,
    /// The places of that.
    pub base_places: Places,
    /// The entry.
    pub entry: Entry,
    /// What it is replayed under: the same, but for the seats of its region.
    pub plan: Plan,
    /// The places of that.
    pub places: Places,
    /// The number of threads that the program is told.
    pub threads: usize,
    /// When the run is ended that does not come to the entry.
    pub capture_limit: Limit,
    /// When a replay is ended.
    pub limit: Limit,
}

/// Replays an entry of a region. Its trial is of the region alone. An error ends the session.
pub type Replayer<'a> = dyn Fn(&Replay) -> Result<Ran> + 'a;

/// An entry under a base that is to be replayed.
pub(crate) struct Replayed<'a> {
    pub base: Configuration,
    pub entry: &'a Entry,
    /// The most threads that any choice of the region has.
    pub most_threads: usize,
    /// The longest that a whole run may take.
    pub run_s: f64,
    /// The longest that the region may take.
    pub region_s: f64,
}

impl Session<'_> {
    /// The entry with these seats for its region: from the store, or replayed now. `None` when the user stopped, or the time was over.
    ///
    /// # Errors
    /// The store cannot be used.
    pub(crate) fn replayed(&self, what: &Replayed<'_>, seats: RegionSeats, attempt: usize) -> Result<Option<Row>> {
        let with = |seats| Plan { regions: [(what.entry.region.clone(), seats)].into(), ..what.base.into() };
        let (base, plan) = (with(what.base.into()), with(seats));
        let (plan_of, number, told) = (self.key(Some(&plan)), what.entry.number + 1, what.most_threads);
        let name = format!("{plan_of}, of {told} threads at most, entry {number}{FROM_A_CHECKPOINT}");
        let says_enough =
            |row: &Row| !matches!(row.reading, Reading::SlowerThan(_)) || row.is_known_until(Some(what.region_s));
        if let Some(row) = self.store.run(&name, attempt)?.filter(says_enough) {
            return Ok(Some(row));
        }
        let Some(replay) = self.replay.filter(|_| !self.stop.wished()) else { return Ok(None) };
        if plan.base.needs_moving() && !self.is_mapped(&plan) {
            return Ok(Some(Row::failed("its pages are moved while it runs".to_owned())));
        }
        let (Some(base_places), Some(places)) = (self.places_of(&base)?, self.places_of(&plan)?) else {
            return Ok(None);
        };
        let told = |places: Places| Places { threads: Some(told), ..places };
        let (base_places, places) = match (base_places, places) {
            (Ok(base_places), Ok(places)) => (told(base_places), told(places)),
            (Err(why), _) | (_, Err(why)) => return Ok(Some(Row::failed(why))),
        };
        let limit = |seconds: f64| Limit { time: Some(Duration::from_secs_f64(seconds)), entries: None };
        let (entry, threads) = (what.entry.clone(), what.most_threads);
        let left_s = self.left().map_or(what.run_s, |left| left.as_secs_f64());
        let (capture_limit, limit) = (limit(what.run_s.min(left_s)), limit(what.region_s));
        match replay(&Replay { base, base_places, entry, plan, places, threads, capture_limit, limit })? {
            Ok(trial) => self.keep(&name, attempt, Some(what.region_s), trial, ""),
            Err(why) => Ok(Some(Row::failed(why))),
        }
    }
}
