// SPDX-License-Identifier: GPL-2.0-only
//! What is told of a parallel region.

use serde::{Deserialize, Serialize};

/// A region of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Its function.
    pub name: String,
    /// How often it was entered.
    pub entries: u64,
    /// Time from its entries to its ends; what passes for several processes at once counts once.
    pub seconds: f64,
    /// The number of threads that the program itself gave it last, against what it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_threads: Option<usize>,
    /// If it took seats in turns, by choice: seconds from each entry that was measured to the next one. Other regions are in that:
    /// they have to get their threads back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Vec<f64>>,
}

/// Regions of the same name as one, those with the most time first.
pub(crate) fn together(regions: impl Iterator<Item = Region>) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    for region in regions {
        match all.iter_mut().find(|known| known.name == region.name) {
            Some(known) => {
                known.entries += region.entries;
                known.seconds += region.seconds;
                known.own_threads = known.own_threads.or(region.own_threads);
                known.samples.resize(known.samples.len().max(region.samples.len()), Vec::new());
                known.samples.iter_mut().zip(region.samples).for_each(|(all, new)| all.extend(new));
            }
            None => all.push(region),
        }
    }
    all.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    all
}
