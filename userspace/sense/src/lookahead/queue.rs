// SPDX-License-Identifier: GPL-2.0-only
//! Samples that wait for emulation: the newest of each thread, threads in turn.
//!
//! One sample a thread is enough: all that are pending are run on the memory of this moment, so an older one
//! would mostly repeat the newest, on registers that fit the memory less.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::emulator::Registers;
use crate::pmu::record::Moment;

/// A thread caught by the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) moment: Moment,
    pub(super) registers: Registers,
}

/// Pending samples by thread id.
#[derive(Default)]
pub(super) struct FairQueue {
    pending: BTreeMap<u32, Sample>,
    last: u32,
}

impl FairQueue {
    /// Adds a sample; returns whether one of the thread was there already (the newer one stays).
    pub(super) fn push(&mut self, sample: Sample) -> bool {
        let newest = self.pending.entry(sample.moment.tid).or_insert(sample);
        let superseded = newest.moment.time_ns != sample.moment.time_ns;
        if newest.moment.time_ns < sample.moment.time_ns {
            *newest = sample;
        }
        superseded
    }

    /// The sample of the thread whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Sample> {
        let after = self.pending.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        self.last = *after.or_else(|| self.pending.iter().next())?.0;
        self.pending.remove(&self.last)
    }

    /// Drops what is left and returns how many samples that were. The turn is kept.
    pub(super) fn clear(&mut self) -> u64 {
        let left = self.pending.len() as u64;
        self.pending.clear();
        left
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{CpuId, ProcessId};

    use super::*;

    fn sample(tid: u32, time_ns: u64) -> Sample {
        Sample {
            moment: Moment { process: ProcessId(1), tid, time_ns, cpu: CpuId(0) },
            registers: Registers { general: [0; 16], ip: 0, flags: 0 },
        }
    }

    #[test]
    fn threads_take_turns_across_drains_with_their_newest_sample() {
        let mut queue = FairQueue::default();
        assert!(!queue.push(sample(1, 3)));
        assert!(queue.push(sample(1, 5)) && queue.push(sample(1, 4)));
        queue.push(sample(2, 9));
        queue.push(sample(3, 9));
        let taken: Vec<_> =
            (0..2).filter_map(|_| queue.pop()).map(|sample| (sample.moment.tid, sample.moment.time_ns)).collect();
        assert_eq!(taken, [(1, 5), (2, 9)]);
        assert_eq!(queue.clear(), 1);
        for tid in 1..=3 {
            queue.push(sample(tid, 10));
        }
        assert_eq!(queue.pop().map(|sample| sample.moment.tid), Some(3), "the one that was left out is first");
        assert_eq!(queue.pop().map(|sample| sample.moment.tid), Some(1));
    }
}
