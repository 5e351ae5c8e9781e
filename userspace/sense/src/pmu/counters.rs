// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler did and what it gave up, in numbers.

use serde::Serialize;

/// Totals since the sampler was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PmuCounters {
    /// Samples of managed threads.
    pub samples: u64,
    /// Samples of other processes, dropped.
    pub unmanaged: u64,
    /// Samples of the kernel, dropped.
    pub kernel: u64,
    /// Samples that accessed nothing, or whose address the hardware did not have.
    pub no_address: u64,
    /// Samples that a cache of the core or its cluster answered, dropped.
    pub cached: u64,
    /// Accesses handed out.
    pub accesses: u64,
    /// Records that the kernel lost because a ring was full.
    pub lost: u64,
    /// Samples that the hardware or the kernel dropped.
    pub lost_samples: u64,
    /// Records that did not parse.
    pub malformed: u64,
    /// Rings that made no sense and were given up to their head.
    pub broken_rings: u64,
    /// Times that the kernel stopped an event because it took too much time.
    pub throttled: u64,
    /// Traces with gaps or collisions.
    pub gaps: u64,
    /// Traced operations whose thread is not known.
    pub unattributed: u64,
    /// Nanoseconds that events were enabled, and that they were on the hardware: less is multiplexing.
    pub enabled_ns: u64,
    /// See `enabled_ns`.
    pub running_ns: u64,
    /// CPU time spent on draining rings; the kernel's is not known.
    pub cost_ns: u64,
}
