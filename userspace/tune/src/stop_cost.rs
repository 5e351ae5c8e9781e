// SPDX-License-Identifier: GPL-2.0-only
//! What a program loses by stopping at breakpoints, in whichever of its threads.

use std::time::{Duration, Instant};

/// What one stop takes.
const STOP: Duration = Duration::from_micros(10);

/// Stops after which it is judged what they take.
const LOOK_AFTER: u32 = 1000;

/// Percent of its time that a program may lose by them.
pub const MOST_PERCENT: u32 = 5;

/// The stops since they were judged last.
#[derive(Clone, Debug)]
pub struct Stops {
    number: u32,
    since: Instant,
}

impl Stops {
    /// None until now.
    pub fn none() -> Self {
        Self { number: 0, since: Instant::now() }
    }

    /// One more; whether the latest ones took too much of the time.
    pub fn take_too_much(&mut self) -> bool {
        self.number += 1;
        if self.number < LOOK_AFTER {
            return false;
        }
        let took = std::mem::replace(self, Self::none()).since.elapsed();
        took * MOST_PERCENT < STOP * LOOK_AFTER * 100
    }
}
