// SPDX-License-Identifier: GPL-2.0-only
//! A region that is measured from a checkpoint of one of its entries.

use anyhow::Result;
use tandem_ab::statistics::median;

use super::effort::OF_ONE_KIND;
use super::{Base, HOPELESS, Table, Tuning};
use crate::launch::Entry;
use crate::plan::{ENOUGH, RegionSeats};
use crate::regions::Region;
use crate::search::Reading;
use crate::session::Replayed;

/// Replays of each choice that do not count: CRIU has not read the checkpoint yet.
const WARM_UP: usize = 1;

/// Why one entry is not replayed for all.
const DIFFERENT: &str = "the entry that was captured takes another time than entries do in the mean";

/// How such a region is measured.
pub(super) const FROM_A_CHECKPOINT: &str = "from a checkpoint";

impl Tuning<'_> {
    /// Replays an entry with each choice of seats, in turns; or why that says nothing.
    pub(super) fn by_a_checkpoint(
        &self,
        region: &Region,
        base: &Base,
        choices: &[RegionSeats],
    ) -> Result<Result<Table, String>> {
        // At the first one threads are born, and much is touched for the first time.
        let entry = Entry { region: region.name.clone(), number: 1.min(region.entries - 1) };
        let usual_s = region.seconds / region.entries as f64;
        let settings = &self.session.settings;
        let what = Replayed {
            base: base.configuration,
            entry: &entry,
            most_threads: choices.iter().map(|seats| seats.threads).fold(base.configuration.threads, usize::max),
            run_s: settings.limit_s(HOPELESS * base.seconds),
            region_s: settings.limit_s(HOPELESS * usual_s),
        };
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); choices.len()];
        // Who was stopped once takes so long at least, which is too long.
        let mut hopeless = vec![false; choices.len()];
        for attempt in 0..WARM_UP + ENOUGH {
            let mut late = Vec::new();
            for (choice, seats) in choices.iter().enumerate().filter(|(choice, _)| !hopeless[*choice]) {
                if self.is_late(usual_s) {
                    return Ok(Err("there was no time".to_owned()));
                }
                let Some(row) = self.session.replayed(&what, *seats, attempt)? else {
                    return Ok(Err("the session was stopped".to_owned()));
                };
                match row.reading {
                    Reading::Failed(why) => return Ok(Err(why)),
                    Reading::SlowerThan(_) if choice == 0 => return Ok(Err(DIFFERENT.to_owned())),
                    Reading::SlowerThan(_) => late.push(choice),
                    _ if attempt < WARM_UP => {}
                    _ => samples[choice].push(row.seconds),
                }
            }
            late.into_iter().for_each(|choice| hopeless[choice] = true);
        }
        let medians: Vec<Option<f64>> = samples.iter().map(|one| median(one.iter().copied())).collect();
        let own_s = medians[0].unwrap_or(f64::INFINITY);
        if own_s > OF_ONE_KIND * usual_s || usual_s > OF_ONE_KIND * own_s {
            return Ok(Err(DIFFERENT.to_owned()));
        }
        // This entry need not take what an entry takes in the mean.
        let seconds = |(median, hopeless): (Option<f64>, bool)| {
            if hopeless { what.region_s } else { median.unwrap_or(what.region_s) }
        };
        let seconds = medians.into_iter().zip(hopeless).map(seconds).map(|seconds| seconds * usual_s / own_s);
        let choices: Vec<(RegionSeats, f64)> = choices.iter().copied().zip(seconds).collect();
        let (way, entries) = (FROM_A_CHECKPOINT.to_owned(), region.entries);
        Ok(Ok(Table { region: entry.region, entries, base_s: usual_s, choices, way }))
    }
}
