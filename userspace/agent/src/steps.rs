// SPDX-License-Identifier: GPL-2.0-only
//! When each thread last worked in step with others of its process ([`tandem_policies::in_step`]).

use std::collections::BTreeMap;

use tandem_policies::capacity;
use tandem_policies::in_step::{LONGEST_WAIT_NS, working};
use tandem_policies::model::{Snapshot, Thread, ThreadId};

/// When threads did, on CLOCK_MONOTONIC; of those that did lately.
#[derive(Debug, Default)]
pub struct Steps {
    last_ns: BTreeMap<ThreadId, u64>,
}

impl Steps {
    /// Takes in what threads did in an interval, and tells of each when it last worked in step.
    pub fn note(&mut self, snapshot: &mut Snapshot) {
        let now_ns = snapshot.time_ns;
        let threads: Vec<&Thread> = snapshot.threads.iter().collect();
        let working = working(&threads, &capacity::demands(snapshot, &threads));
        self.last_ns.retain(|_, last_ns| now_ns.saturating_sub(*last_ns) < LONGEST_WAIT_NS);
        let in_step = threads.iter().zip(working).filter(|(_, works)| *works);
        self.last_ns.extend(in_step.map(|(thread, _)| (thread.id, now_ns)));
        for thread in &mut snapshot.threads {
            thread.in_step_ns = self.last_ns.get(&thread.id).copied();
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
        assert_eq!(told(&[(10, [100, 100, 0])]), [Some(10), Some(10), None]);
        assert_eq!(told(&[(10, [100, 100, 0]), (11, [0, 100, 0])]), [Some(10), Some(10), None], "alone now");
        assert_eq!(told(&[(10, [100, 100, 0]), (19, [0, 100, 100])]), [Some(10), Some(19), Some(19)]);
        assert_eq!(told(&[(10, [100, 100, 0]), (20, [0, 0, 0])]), [None; 3], "too long ago");
        assert_eq!(told(&[(10, [0, 0, 100]), (11, [0, 0, 0])]), [None; 3], "the one that prepared all");
        assert_eq!(told(&[(10, [30, 30, 30])]), [None; 3], "as those of a server do");
    }
}
