// SPDX-License-Identifier: GPL-2.0-only
//! Whether enough is known to decide.
//!
//! A mapping of some threads by their memory and of the others by nothing would be undone at once; but a thread that never gives
//! a signal must not hold up all others.

use std::time::Duration;

use tandem_policies::model::Snapshot;

use crate::leases::busy;

/// Intervals after which it is decided without what is not known.
const INTERVALS: u32 = 10;

/// Since when too little is known.
#[derive(Debug)]
pub struct Patience {
    limit_ns: u64,
    since_ns: Option<u64>,
}

impl Patience {
    /// Nothing was waited for yet.
    pub fn new(interval: Duration) -> Self {
        Self { limit_ns: (INTERVALS * interval).as_nanos() as u64, since_ns: None }
    }

    /// Whether the signals cover the busy threads, or were waited for long enough.
    pub fn is_enough(&mut self, snapshot: &Snapshot) -> bool {
        if busy(snapshot).all(|thread| thread.accesses_per_s.is_some()) {
            self.since_ns = None;
            return true;
        }
        let since_ns = *self.since_ns.get_or_insert(snapshot.time_ns);
        snapshot.time_ns.saturating_sub(since_ns) >= self.limit_ns
    }

    /// Whether too little is known, and has not been for long: what gives no signal within an interval is in no hurry.
    pub fn is_new(&self, now_ns: u64) -> bool {
        self.since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) < self.limit_ns / u64::from(INTERVALS))
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::PerNode;

    use super::*;
    use crate::testing::{SECOND_NS, snapshot};

    /// Two busy threads and an idle one, of which the first are known.
    fn known(threads: usize, at_ns: u64) -> Snapshot {
        let mut snapshot = snapshot(&[(0, SECOND_NS), (1, SECOND_NS), (1, 0)]);
        snapshot.time_ns = at_ns;
        for (at, thread) in snapshot.threads.iter_mut().enumerate() {
            thread.accesses_per_s = (at < threads).then(|| PerNode::filled(2, 1.0));
        }
        snapshot
    }

    #[test]
    fn a_busy_thread_without_a_signal_is_waited_for_ten_intervals_and_idle_ones_are_not() {
        let mut patience = Patience::new(Duration::from_secs(1));
        assert!(patience.is_enough(&known(2, 0)));
        let waited = [5, 14, 15, 20].map(|at_s| patience.is_enough(&known(1, at_s * SECOND_NS)));
        assert_eq!(waited, [false, false, true, true]);
    }

    #[test]
    fn what_is_not_known_is_new_for_an_interval() {
        let mut patience = Patience::new(Duration::from_secs(1));
        assert!(patience.is_enough(&known(2, 0)) && !patience.is_new(0), "all is known");
        let mut is_new = |at_ns| {
            patience.is_enough(&known(1, at_ns));
            patience.is_new(at_ns)
        };
        assert_eq!([5, 6].map(|at_s| is_new(at_s * SECOND_NS)), [true, false]);
        assert!(!is_new(16 * SECOND_NS), "nor does it become so again once it was waited for long enough");
    }

    #[test]
    fn once_all_was_known_it_is_waited_anew() {
        let mut patience = Patience::new(Duration::from_secs(1));
        assert!(!patience.is_enough(&known(1, 0)) && patience.is_enough(&known(2, 9 * SECOND_NS)));
        assert!(!patience.is_enough(&known(0, 10 * SECOND_NS)) && patience.is_enough(&known(0, 20 * SECOND_NS)));
    }
}
