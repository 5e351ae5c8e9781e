// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler did and what it gave up, in numbers.

use serde::Serialize;

/// Totals since the sampler was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounters {
    /// Faults of managed threads.
    pub samples: u64,
    /// Faults of other processes, dropped.
    pub unmanaged: u64,
    /// Faults on the kernel's own addresses, dropped.
    pub kernel: u64,
    /// Accesses handed out.
    pub accesses: u64,
    /// Of these, those whose physical frame is not known: gone again, or the page of zeros that untouched memory reads.
    pub no_frame: u64,
    /// Records that the kernel lost because a ring was full.
    pub lost: u64,
    /// Records that did not parse.
    pub malformed: u64,
    /// Rings that made no sense and were given up to their head.
    pub broken_rings: u64,
    /// Address spaces that were made to fault at their next writes (soft-dirty bits cleared).
    pub write_rounds: u64,
    /// Threads that were lent to the fair class, so that the kernel marks pages for hint faults.
    pub hint_rounds: u64,
    /// Processes and threads that were gone when they were to fault, or may not be changed.
    pub refused: u64,
    /// What a fault costs its thread, in ns, as measured at the start.
    pub fault_ns: u64,
    /// CPU time of the sampler itself.
    pub own_ns: u64,
    /// CPU time that managed threads lost to faults, natural ones included: their number times `fault_ns`.
    pub threads_ns: u64,
}
