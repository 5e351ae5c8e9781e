// SPDX-License-Identifier: GPL-2.0-only
//! Which threads wait for others of their process that they work in step with ([`tandem_policies::in_step`]).
//!
//! Those that worked along with others in two intervals at least no longer ago than [`LONGEST_WAIT_NS`], and do not now: in the interval
//! in which threads begin that another one made, that one works as well, and then waits for them to end. No more of a process than
//! worked at the same time in that while, less those that work now, the last ones first: of a pool whose threads take turns nobody waits.
//! Where intervals are as long as that, nobody does either: who sleeps through one needs no CPU.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tandem_policies::capacity::demand_by_use;
use tandem_policies::in_step::{LONGEST_WAIT_NS, working};
use tandem_policies::model::{ProcessId, Snapshot, Thread, ThreadId};

/// Intervals in which a thread must have worked along with others.
const LEAST_INTERVALS: u32 = 2;

/// What threads did lately. Times are CLOCK_MONOTONIC in ns.
#[derive(Debug, Default)]
pub struct Steps {
    /// When each last worked along with others, and in how many intervals it did.
    worked: BTreeMap<ThreadId, (u64, u32)>,
    /// By process, how many did at a time.
    together: BTreeMap<ProcessId, Vec<(u64, usize)>>,
}

impl Steps {
    /// Takes in what threads did in an interval, and tells of those that wait when they last worked.
    pub fn note(&mut self, snapshot: &mut Snapshot) {
        let now_ns = snapshot.time_ns;
        let threads: Vec<&Thread> = snapshot.threads.iter().collect();
        // What a busy node makes of a thread that hardly runs is no work.
        let used: Vec<u64> = threads.iter().map(|thread| demand_by_use(snapshot, thread)).collect();
        let is_late = |at_ns: u64| now_ns.saturating_sub(at_ns) >= LONGEST_WAIT_NS;
        self.worked.retain(|_, (last_ns, _)| !is_late(*last_ns));
        self.together.values_mut().for_each(|times| times.retain(|(at_ns, _)| !is_late(*at_ns)));
        self.together.retain(|_, times| !times.is_empty());
        let mut now: BTreeMap<ProcessId, usize> = BTreeMap::new();
        for (thread, _) in threads.iter().zip(working(&threads, &used)).filter(|(_, works)| *works) {
            let (last_ns, intervals) = self.worked.entry(thread.id).or_default();
            (*last_ns, *intervals) = (now_ns, intervals.saturating_add(1));
            *now.entry(thread.process).or_default() += 1;
        }
        now.iter().for_each(|(&process, &count)| self.together.entry(process).or_default().push((now_ns, count)));
        let waiting = self.waiting(&threads, &now, now_ns);
        snapshot.threads.iter_mut().for_each(|thread| thread.in_step_ns = waiting.get(&thread.id).copied());
    }

    /// Those that wait, with when they last worked, given how many of each process work now.
    fn waiting(&self, threads: &[&Thread], now: &BTreeMap<ProcessId, usize>, now_ns: u64) -> BTreeMap<ThreadId, u64> {
        let mut of_process: BTreeMap<ProcessId, Vec<(Reverse<u64>, ThreadId)>> = BTreeMap::new();
        for thread in threads {
            let worked = self.worked.get(&thread.id).filter(|worked| worked.0 < now_ns && worked.1 >= LEAST_INTERVALS);
            if let Some(&(last_ns, _)) = worked {
                of_process.entry(thread.process).or_default().push((Reverse(last_ns), thread.id));
            }
        }
        let mut waiting = BTreeMap::new();
        for (process, mut threads) in of_process {
            threads.sort_unstable();
            let most = self.together.get(&process).into_iter().flatten().map(|(_, count)| *count).max().unwrap_or(0);
            let count = most.saturating_sub(now.get(&process).copied().unwrap_or(0));
            waiting.extend(threads.into_iter().take(count).map(|(Reverse(last_ns), thread)| (thread, last_ns)));
        }
        waiting
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
    fn who_waits_for_others_worked_in_step_lately_and_who_works_does_not_wait() {
        let both = [(8, [100, 100, 0]), (9, [100, 100, 0])];
        let then = |interval| told(&[both[0], both[1], interval]);
        assert_eq!(told(&both), [None; 3]);
        assert_eq!(then((10, [0, 100, 0])), [Some(9), Some(9), None], "one of them works alone now");
        assert_eq!(then((10, [0, 0, 0])), [Some(9), Some(9), None]);
        assert_eq!(told(&[both[0], (9, [0, 0, 0])]), [None; 3], "in one interval");
        assert_eq!(then((19, [0, 0, 0])), [None; 3], "too long ago");
        let hardly = [(8, [30, 30, 30]), (9, [30, 30, 30]), (10, [0, 0, 0])];
        assert_eq!(told(&hardly), [None; 3], "as those of a server do");
    }

    #[test]
    fn one_that_prepares_all_and_waits_for_those_that_it_made_did_not_work_in_step() {
        let prepares = [(7, [100, 0, 0]), (8, [50, 50, 50]), (9, [0, 100, 100]), (10, [0, 0, 0])];
        assert_eq!(told(&prepares), [None, Some(9), Some(9)]);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut steps = Steps::default();
        for (time_ns, used_ns) in [(5 * SECOND_NS, SECOND_NS), (6 * SECOND_NS, 0)] {
            let mut seen = Snapshot { time_ns, ..snapshot(&[(0, used_ns), (1, used_ns)]) };
            steps.note(&mut seen);
            assert_eq!((steps.worked.len(), steps.together.len()), if used_ns > 0 { (2, 1) } else { (0, 0) });
        }
    }

    #[test]
    fn of_threads_that_take_turns_nobody_waits() {
        let turns = [[100, 100, 0], [0, 100, 100], [100, 0, 100], [100, 100, 0], [0, 100, 100]];
        let turns: Vec<(u64, [u64; 3])> = (5..).zip(turns).collect();
        assert_eq!(told(&turns), [None; 3], "two worked at a time, and two do now");
    }
}
