// SPDX-License-Identifier: GPL-2.0-only
//! Time in a region of a process and its copies, which may be in it at once: that passes once for all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many are in a region, by its function, and since when time has passed that nobody has counted.
#[derive(Clone, Debug, Default)]
pub struct Stays(Arc<Mutex<Inside>>);

/// By function: how many are inside, and since when time is not counted.
type Inside = BTreeMap<u64, (usize, Instant)>;

/// That a process is in a region; a copy of the process is as well.
#[derive(Debug)]
pub struct Stay {
    all: Stays,
    function: u64,
}

impl Stays {
    fn all(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more is in the region from now on.
    pub fn begin(&self, function: u64) -> Stay {
        let mut all = self.all();
        let (inside, since) = all.entry(function).or_insert_with(|| (0, Instant::now()));
        if *inside == 0 {
            *since = Instant::now();
        }
        *inside += 1;
        Stay { all: self.clone(), function }
    }
}

impl Stay {
    /// Ends it: how long somebody was in the region, as far as nobody has counted that.
    pub fn end(self, now: Instant) -> Duration {
        let mut all = self.all.all();
        all.get_mut(&self.function).map_or(Duration::ZERO, |(_, since)| now - std::mem::replace(since, now))
    }
}

impl Clone for Stay {
    fn clone(&self) -> Self {
        self.all.begin(self.function)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if let Some((inside, _)) = self.all.all().get_mut(&self.function) {
            *inside -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_passes_for_several_counts_once_and_not_while_nobody_is_there() {
        let stays = Stays::default();
        let begin = Instant::now();
        let first = stays.begin(1);
        let second = first.clone();
        let after = |ms| begin + Duration::from_secs(10) + Duration::from_millis(ms);
        let counted = first.end(after(0));
        assert!(counted <= after(0) - begin && counted > Duration::from_secs(5), "{counted:?}");
        assert_eq!(second.end(after(30)), Duration::from_millis(30));
        let other = stays.begin(1);
        assert!(other.end(Instant::now() + Duration::from_secs(1)) < Duration::from_secs(5), "begun anew");
        let mut left = [stays.begin(2), stays.begin(2)].into_iter();
        drop(left.next());
        assert_eq!(stays.all()[&2].0, 1);
        drop(left);
        assert_eq!(stays.all()[&2].0, 0);
    }
}
