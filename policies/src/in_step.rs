// SPDX-License-Identifier: GPL-2.0-only
//! Threads that wait for each other want their CPUs at the same times.
//!
//! Problem: the threads of a parallel program meet again and again, and who is there first sleeps until the last one is. In
//! the mean each of them uses less than a CPU, so that five of them seem to fit on four. But all run at the same times: one
//! of the five waits for a CPU in each round, and the others wait for it. Mechanism: where at least two threads of a process
//! want `IN_STEP` each, all that do want a whole CPU. Threads that want less are taken to come and go as they are needed,
//! as those of a server do, whose demands add up.
//!
//! Where intervals are short, who is there first sleeps for one or two of them: its CPU seems to be free, and another thread
//! that went there would take it from the one that comes back. So what waits for others since it worked in step,
//! no longer ago than [`LONGEST_WAIT_NS`], wants its CPU still. Whoever makes the snapshot tells who does ([`Thread::in_step_ns`]).

use std::collections::BTreeMap;

use crate::model::{FULL_CAPACITY, ProcessId, Thread};

/// Demand from which on a thread is taken to work in step with others of its process.
const IN_STEP: u64 = FULL_CAPACITY / 2;

/// For so long a thread that waits for others is taken to come back.
pub const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// Of `threads` with these demands, in 1/1024 of a CPU, those that work in step with others.
pub fn working(threads: &[&Thread], demands: &[u64]) -> Vec<bool> {
    let wants = |demand: &u64| *demand >= IN_STEP;
    let mut of_process: BTreeMap<ProcessId, usize> = BTreeMap::new();
    for (thread, _) in threads.iter().zip(demands).filter(|(_, demand)| wants(demand)) {
        *of_process.entry(thread.process).or_default() += 1;
    }
    threads.iter().zip(demands).map(|(thread, demand)| wants(demand) && of_process[&thread.process] > 1).collect()
}

/// The demands of `threads` at a time on CLOCK_MONOTONIC, where those that work in step, or did, want a whole CPU.
pub fn demands(threads: &[&Thread], mut demands: Vec<u64>, now_ns: u64) -> Vec<u64> {
    let is_waiting = |thread: &Thread| thread.in_step_ns.is_some_and(|ns| now_ns.saturating_sub(ns) < LONGEST_WAIT_NS);
    let working = working(threads, &demands);
    for ((thread, works), demand) in threads.iter().zip(working).zip(&mut demands) {
        if works || is_waiting(thread) {
            *demand = FULL_CAPACITY;
        }
    }
    demands
}
