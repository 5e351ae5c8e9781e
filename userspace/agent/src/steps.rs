// SPDX-License-Identifier: GPL-2.0-only
//! When each thread last worked in step with others of its process ([`tandem_policies::in_step`]).
//!
//! In the interval in which threads begin that another one made, that one works as well, and then waits for them to end: it is in step with
//! others only from the second such interval on.

use std::collections::BTreeMap;

use tandem_policies::capacity;
use tandem_policies::in_step::{LONGEST_WAIT_NS, working};
use tandem_policies::model::{Snapshot, Thread, ThreadId};

/// Of the threads that did lately, when, on CLOCK_MONOTONIC, and in how many intervals.
#[derive(Debug, Default)]
pub struct Steps {
    worked: BTreeMap<ThreadId, (u64, u32)>,
}

/// Intervals in which a thread must have worked along with others.
const LEAST_INTERVALS: u32 = 2;

impl Steps {
    /// Takes in what threads did in an interval, and tells of each when it last worked in step.
    pub fn note(&mut self, snapshot: &mut Snapshot) {
        let now_ns = snapshot.time_ns;
        let threads: Vec<&Thread> = snapshot.threads.iter().collect();
        let working = working(&threads, &capacity::demands(snapshot, &threads));
        self.worked.retain(|_, (last_ns, _)| now_ns.saturating_sub(*last_ns) < LONGEST_WAIT_NS);
        for (thread, _) in threads.iter().zip(working).filter(|(_, works)| *works) {
            let (last_ns, intervals) = self.worked.entry(thread.id).or_default();
            (*last_ns, *intervals) = (now_ns, intervals.saturating_add(1));
        }
        for thread in &mut snapshot.threads {
            let worked = self.worked.get(&thread.id).filter(|worked| worked.1 >= LEAST_INTERVALS);
            thread.in_step_ns = worked.map(|worked| worked.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SECOND_NS, snapshot};

    /// When each thread last worked in step, in tenths of a second, after intervals that ended then in which they used their CPUs so.
    fn told(intervals: &[(u64, [u64; 3])]) -> Vec<Option<u64>> {
        let mut steps = Steps::default();
        let mut told = Vec::new();
        for &(tenths, shares_percent) in intervals {
            let mut seen = snapshot(&shares_percent.map(|percent| (0, percent * SECOND_NS / 1000)));
            (seen.time_ns, seen.interval_ns) = (tenths * SECOND_NS / 10, SECOND_NS / 10);
            steps.note(&mut seen);
            told = seen.threads.iter().map(|thread| thread.in_step_ns.map(|ns| ns * 10 / SECOND_NS)).collect();
        }
        told
    }

    #[test]
    fn who_waits_for_others_worked_in_step_lately_and_who_worked_alone_did_not() {
        let both = [(9, [100, 100, 0]), (10, [100, 100, 0])];
        let then = |interval| told(&[both[0], both[1], interval]);
        assert_eq!((told(&both), told(&both[..1])), (vec![Some(10), Some(10), None], vec![None; 3]));
        assert_eq!(then((11, [0, 100, 0])), [Some(10), Some(10), None], "alone now");
        assert_eq!(then((19, [0, 100, 100])), [Some(10), Some(19), None]);
        assert_eq!(then((20, [0, 0, 0])), [None; 3], "too long ago");
        assert_eq!(told(&[(9, [30, 30, 30]), (10, [30, 30, 30])]), [None; 3], "as those of a server do");
    }

    #[test]
    fn one_that_prepares_all_and_waits_for_those_that_it_made_did_not_work_in_step() {
        let prepares = [(8, [100, 0, 0]), (9, [50, 50, 50]), (10, [0, 100, 100])];
        assert_eq!(told(&prepares), [None, Some(10), Some(10)]);
    }
}
