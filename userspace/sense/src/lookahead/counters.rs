// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler did and what it gave up, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;

/// Why an emulated run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The instruction limit was reached: a full run.
    Limit,
    /// So many accesses went where the run had been already that more of them would tell nothing new.
    Returned,
    /// The thread enters the kernel.
    Syscall,
    /// A page of code cannot be read, or the process is gone.
    UnreadableCode,
    /// A page of data cannot be read.
    UnreadableData,
    /// An instruction that can neither be run nor stepped over.
    Unsupported,
    /// An address depends on a value that is not known.
    UnknownAddress,
    /// A branch depends on a value that is not known.
    UnknownBranch,
    /// An exception such as a division by zero.
    Fault,
    /// So much memory had to be copied that going on would cost too much.
    Copies,
}

/// Totals since the sampler was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LookaheadCounters {
    /// Samples of managed threads read from the rings.
    pub samples: u64,
    /// Samples of other processes that the kernel did not write.
    pub declined: u64,
    /// Samples of other processes that it wrote, dropped unread.
    pub unmanaged: u64,
    /// Samples without user registers (kernel threads).
    pub kernel: u64,
    /// Samples of 32-bit code.
    pub abi_32: u64,
    /// Samples that the kernel lost because a ring was full.
    pub lost: u64,
    /// Records that did not parse, and rings of them that were given up.
    pub malformed: u64,
    /// Samples emulated.
    pub emulated: u64,
    /// Samples dropped for a newer one of the same thread.
    pub superseded: u64,
    /// Samples dropped because the time budget was used up.
    pub over_budget: u64,
    /// Samples dropped because their registers were too old.
    pub too_old: u64,
    /// Accesses handed out.
    pub accesses: u64,
    /// Accesses dropped: near the stack pointer.
    pub stack_accesses: u64,
    /// Accesses dropped: another word of a line already touched in the same sample.
    pub repeated_accesses: u64,
    /// Accesses dropped: lines that recur in almost every sample of the thread.
    pub cached_accesses: u64,
    /// Samples run without a known thread-local base.
    pub unknown_tls: u64,
    /// Instructions run.
    pub instructions: u64,
    /// Instructions stepped over.
    pub stepped_over: u64,
    /// Pieces of data and pages of code copied from processes.
    pub copies: u64,
    /// CPU time spent: reading samples, emulating them and all that goes with it.
    pub cost_ns: u64,
    /// The emulated runs' part of it.
    pub emulation_ns: u64,
    /// Emulated samples by the reason they ended.
    pub stops: BTreeMap<StopReason, u64>,
}

impl LookaheadCounters {
    /// Mean CPU time of an emulated run alone; `None` before the first.
    pub fn mean_run_ns(&self) -> Option<u64> {
        self.emulation_ns.checked_div(self.emulated)
    }
}
