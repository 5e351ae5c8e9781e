// SPDX-License-Identifier: GPL-2.0-only
//! Where the agent leaves its state for those who ask. It never waits for them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Status;

/// The last state, none before the end of the first interval. Clones are the same board.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Option<Published>>>);

/// A state, and when it came.
type Published = (Instant, Arc<Status>);

impl Board {
    /// Replaces the state.
    pub fn publish(&self, status: Status) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::new(status)));
    }

    /// The state that was published last.
    pub fn read(&self) -> Option<Arc<Status>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, status)| Arc::clone(status))
    }

    /// How long ago that was.
    pub fn age(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(at, _)| at.elapsed())
    }
}
