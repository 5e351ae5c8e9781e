// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler did and what it gave up, in numbers.

use serde::Serialize;

use crate::access::{Counts, LineCounts};

/// Totals since the sampler was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounters {
    /// Samples of managed threads.
    pub samples: u64,
    /// Samples of other processes, dropped.
    pub unmanaged: u64,
    /// Samples of the kernel's memory, dropped.
    pub kernel: u64,
    /// Samples that a cache of the core or its cluster answered, dropped.
    pub cached: u64,
    /// Accesses handed out.
    pub accesses: u64,
    /// Samples that were overwritten before they were read.
    pub overrun: u64,
    /// Samples left out so that no more are taken than asked for; those taken stand for them.
    pub thinned: u64,
    /// Samples whose thread is not known: no switch was seen on their CPU since the sampler was opened.
    pub unattributed: u64,
    /// Samples dropped because their time is later than now: the clocks do not agree.
    pub misdated: u64,
    /// Context switches that the kernel lost because a ring was full.
    pub lost_switches: u64,
    /// Records of switches that did not parse, and rings of them that were given up.
    pub malformed: u64,
    /// Instructions that managed threads retired.
    pub instructions: u64,
    /// Cycles (of 1 ns) in which their CPUs did not halt.
    pub cycles: u64,
    /// Where their lines came from.
    pub lines: LineCounts,
    /// CPU time spent.
    pub cost_ns: u64,
}

impl DeviceCounters {
    /// Adds what was counted of a managed thread.
    pub(super) fn count(&mut self, counts: &Counts, lines: &LineCounts) {
        self.instructions += counts.instructions;
        self.cycles += counts.cycles;
        self.lines.l2_misses += lines.l2_misses;
        self.lines.l3_hits += lines.l3_hits;
        self.lines.l3_misses += lines.l3_misses;
        self.lines.remote_memory += lines.remote_memory;
        self.lines.remote_modified += lines.remote_modified;
    }
}
