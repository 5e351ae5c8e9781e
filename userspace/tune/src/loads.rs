// SPDX-License-Identifier: GPL-2.0-only
//! When a traced program loads or unloads code while it runs (`dlopen`): plugins and modules of interpreters bring an OpenMP
//! runtime with them, and are part of what is tuned.
//!
//! Mechanism: the dynamic linker calls a function of its own before and after it changes what is loaded, which is there for
//! debuggers. A breakpoint at it stops the program twice a change. One that loses too much of its time by that goes on without, and
//! without those at its regions: who they are is not known then. That is judged after thousands of stops, and not where regions are
//! told to the end.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::unistd::Pid;

use crate::breakpoint::{Breakpoint, Stand, linker};
use crate::stop_cost::MOST_PERCENT;
use crate::symbols::Code;

/// What the linkers of glibc and musl call that function.
const CHANGES: &str = "_dl_debug_state";

/// Stops after which it is judged what they take: an interpreter loads hundreds of modules when it begins.
const LOOK_AFTER: u32 = 4000;

/// Watches what a process loads.
#[derive(Debug)]
pub struct Loads {
    point: Breakpoint,
    /// Stops since what they took was judged last, and what that is.
    stops: u32,
    took: Duration,
    since: Instant,
    /// Whether it goes on, whatever it takes.
    is_kept: bool,
    is_over: bool,
}

impl Loads {
    /// Those of a process whose main thread is stopped where the program proper begins; `None` if it has no linker, or another one.
    /// They go on whatever that takes if `is_kept`.
    pub fn of(process: Pid, is_kept: bool) -> Option<Self> {
        let change = Code::at(process, linker(process)?).find(process, |name| name == CHANGES).pop()?;
        let (point, since) = (Breakpoint::set_over(process, change.address, change.word)?, Instant::now());
        Some(Self { point, stops: 0, took: Duration::ZERO, since, is_kept, is_over: false })
    }

    /// Those of a process that is a copy of this one.
    pub fn of_a_copy(&self) -> Self {
        Self { stops: 0, took: Duration::ZERO, since: Instant::now(), ..*self }
    }

    /// Whether `thread` stands where what is loaded changes.
    pub fn are_at(&self, thread: Pid) -> bool {
        Stand::of(thread).is_some_and(|stand| stand.at == self.point.address)
    }

    /// Whether changes are not told any more.
    pub fn are_over(&self) -> bool {
        self.is_over
    }

    /// Has `thread`, which stands there since `stopped`, be ready to go on. [They may be over](Self::are_over) then.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn pass(&mut self, thread: Pid, stopped: Instant) -> Result<()> {
        self.stops += 1;
        self.took += stopped.elapsed();
        if self.stops >= LOOK_AFTER {
            self.is_over |= !self.is_kept && self.took * 100 > self.since.elapsed() * MOST_PERCENT;
            (self.stops, self.took, self.since) = (0, Duration::ZERO, Instant::now());
        }
        // A copy of the process from a moment ago may have the breakpoint still.
        if self.is_over { self.point.remove(thread) } else { self.point.step_over(thread).map(drop) }
    }
}
