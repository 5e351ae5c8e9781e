// SPDX-License-Identifier: GPL-2.0-only
//! Threads that wait for each other want their CPUs at the same times.
//!
//! Problem: the threads of a parallel program meet again and again, and who is there first sleeps until the last one is. In
//! the mean each of them uses less than a CPU, so that five of them seem to fit on four. But all run at the same times: one
//! of the five waits for a CPU in each round, and the others wait for it. Mechanism: where at least two threads of a process
//! want [`IN_STEP`] each, all that do want a whole CPU. Threads that want less are taken to come and go as they are needed,
//! as those of a server do, whose demands add up.

use std::collections::BTreeMap;

use crate::model::{FULL_CAPACITY, ProcessId, Thread};

/// Demand from which on a thread is taken to work in step with others of its process.
const IN_STEP: u64 = FULL_CAPACITY / 2;

/// The demands of `threads`, in 1/1024 of a CPU, where those that work in step want a whole one.
pub fn demands(threads: &[&Thread], mut demands: Vec<u64>) -> Vec<u64> {
    let mut working: BTreeMap<ProcessId, usize> = BTreeMap::new();
    for (thread, _) in threads.iter().zip(&demands).filter(|&(_, &demand)| demand >= IN_STEP) {
        *working.entry(thread.process).or_default() += 1;
    }
    for (thread, demand) in threads.iter().zip(&mut demands).filter(|(_, demand)| **demand >= IN_STEP) {
        if working[&thread.process] > 1 {
            *demand = FULL_CAPACITY;
        }
    }
    demands
}
