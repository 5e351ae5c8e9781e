// SPDX-License-Identifier: GPL-2.0-only
//! What measuring a region takes, and whether its entries tell anything.

use crate::plan::{ENOUGH, MEASURED, WARM_UP};
use crate::regions::SHORTEST;
use crate::search::Settings;

/// So many of the best predicted plans are run.
pub(crate) const RUN: usize = 5;

/// Entries of which the slower ones take so many times the faster ones (the quarters of both ends left aside) are not of
/// one kind: taking turns says nothing of them.
pub(crate) const OF_ONE_KIND: f64 = 2.0;

/// Runs for each choice when a region is measured by whole runs, at most.
const WHOLE_RUNS: usize = 4;

/// Whether a region that takes so many seconds in so many entries can be told apart in place.
pub(crate) fn is_long(seconds: f64, entries: u64) -> bool {
    seconds >= entries as f64 * SHORTEST.as_secs_f64()
}

/// The settings of a search among the choices of one region.
pub(crate) fn of_whole_runs(settings: Settings) -> Settings {
    Settings { repeats: settings.repeats.min(WHOLE_RUNS), ..settings }
}

/// Runs that taking turns needs, unless one run for each choice says as much.
pub(crate) fn runs_in_place(choices: usize, entries: u64) -> Option<usize> {
    let turn = WARM_UP + MEASURED;
    let needed = choices * ENOUGH.div_ceil(MEASURED) * turn;
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    if entries < turn {
        return None;
    }
    Some(needed.div_ceil(entries)).filter(|&runs| runs <= choices)
}

/// Whether entries of a region take similar times.
pub(crate) fn are_of_one_kind(samples: &[f64]) -> bool {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    sorted[sorted.len() - 1 - quarter] <= OF_ONE_KIND * sorted[quarter]
}
