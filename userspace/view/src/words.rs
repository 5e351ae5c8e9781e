// SPDX-License-Identifier: GPL-2.0-only
//! The state in words.

use crate::{Maybe, Status};

/// A share in percent, `-` if it is unknown.
pub fn percent(share: Maybe<f64>) -> String {
    share.0.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

/// One line, for `--stats` and `--monitor`.
pub fn line(status: &Status) -> String {
    let (sampler, activity) = (&status.sampler, &status.activity);
    let agent = &status.agent;
    let resident =
        agent.peak_resident_bytes.0.map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    let latency = status.latency_ns.0.map_or_else(|| "unknown".to_owned(), |ns| format!("{ns:.0} ns"));
    format!(
        "local {}, latency {latency}, threads {}/{} covered, groups {}, sampling {:.2} of {} % of a CPU, all of scx_tandem \
         {:.2} % (lately {:.2} %) and {resident} at most, assigned {}, thread moves {}, pages moved {}, queued groups {}, plans undone {} of {}",
        percent(status.local_share),
        sampler.covered_threads,
        sampler.busy_threads,
        sampler.groups,
        sampler.used_percent,
        sampler.budget_percent,
        agent.cpu_percent,
        agent.interval_cpu_percent,
        activity.assigned_threads,
        activity.thread_moves,
        activity.moved_pages,
        activity.queued_groups,
        activity.undone_plans,
        activity.plans,
    )
}
