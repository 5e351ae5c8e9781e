// SPDX-License-Identifier: GPL-2.0-only
//! A region that is measured from a checkpoint of one of its entries.

use anyhow::Result;
use tandem_ab::statistics::median;

use super::{Base, HOPELESS, Table, Tuning};
use crate::launch::Entry;
use crate::plan::{ENOUGH, RegionSeats};
use crate::regions::Region;
use crate::search::Reading;
use crate::session::Replayed;

/// Replays of each choice that do not count: CRIU has not read the checkpoint yet.
const WARM_UP: usize = 1;

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
        for attempt in 0..WARM_UP + ENOUGH {
            for (seats, samples) in choices.iter().zip(&mut samples) {
                if self.is_late(base.seconds) {
                    return Ok(Err("there was no time".to_owned()));
                }
                let Some(row) = self.session.replayed(&what, *seats, attempt)? else {
                    return Ok(Err("the session was stopped".to_owned()));
                };
                match row.reading {
                    Reading::Failed(why) => return Ok(Err(why)),
                    _ if attempt < WARM_UP => {}
                    // One that was stopped takes that long at least, which is too long.
                    _ => samples.push(row.seconds),
                }
            }
        }
        let medians = samples.iter().map(|one| median(one.iter().copied()).unwrap_or(f64::INFINITY));
        let choices: Vec<(RegionSeats, f64)> = choices.iter().copied().zip(medians).collect();
        let (way, entries) = (FROM_A_CHECKPOINT.to_owned(), region.entries);
        Ok(Ok(Table { region: entry.region, entries, base_s: choices[0].1, choices, way }))
    }
}
