// SPDX-License-Identifier: GPL-2.0-only
//! When a traced program loads or unloads code while it runs (`dlopen`): plugins and modules of interpreters bring an OpenMP
//! runtime with them, and are part of what is tuned.
//!
//! Mechanism: the dynamic linker calls a function of its own before and after it changes what is loaded, which is there for
//! debuggers. A breakpoint at it stops the program twice a change. One that loses too much of its time by that goes on without.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::unistd::Pid;

use crate::breakpoint::{Breakpoint, Stand, linker};
use crate::stop_cost::{LOOK_AFTER, MOST_PERCENT};
use crate::symbols::Code;

/// What the linkers of glibc and musl call that function.
const CHANGES: &str = "_dl_debug_state";

/// Watches what a process loads.
#[derive(Debug)]
pub struct Loads {
    point: Breakpoint,
    /// Stops since what they took was judged last, and what that is.
    stops: u32,
    took: Duration,
    since: Instant,
}

impl Loads {
    /// Those of a process whose main thread is stopped where the program proper begins; `None` if it has no linker, or another one.
    pub fn of(process: Pid) -> Option<Self> {
        let (address, _) = Code::at(process, linker(process)?).find(|name| name == CHANGES).pop()?;
        let (point, since) = (Breakpoint::set(process, address)?, Instant::now());
        Some(Self { point, stops: 0, took: Duration::ZERO, since })
    }

    /// Those of a process that is a copy of this one.
    pub fn of_a_copy(&self) -> Self {
        Self { stops: 0, took: Duration::ZERO, since: Instant::now(), ..*self }
    }

    /// Whether `thread` stands where what is loaded changes.
    pub fn are_at(&self, thread: Pid) -> bool {
        Stand::of(thread).is_some_and(|stand| stand.at == self.point.address)
    }

    /// Has `thread`, which stands there since `stopped`, be ready to go on; false if nothing more is to be told after this.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn pass(&mut self, thread: Pid, stopped: Instant) -> Result<bool> {
        self.stops += 1;
        self.took += stopped.elapsed();
        if self.stops < LOOK_AFTER {
            return self.point.step_over(thread).map(|_| true);
        }
        if self.took * 100 > self.since.elapsed() * MOST_PERCENT {
            return self.point.remove(thread).map(|()| false);
        }
        (self.stops, self.took, self.since) = (0, Duration::ZERO, Instant::now());
        self.point.step_over(thread).map(|_| true)
    }
}
