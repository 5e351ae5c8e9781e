// SPDX-License-Identifier: GPL-2.0-only
//! A working thread's view: its program's memory, its fellow threads, the time, and what is noted about itself.

use crate::affinity::Affinity;
use crate::frame::meeting::Meeting;
use crate::frame::memory::{Line, Memory};
use crate::frame::plan::{Claim, Thread};
use crate::frame::walk::Walk;
use crate::topology::{CpuId, NodeId, Topology};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Visits between two looks at the CPU the thread is on; about 0.4 ms of remote accesses.
const VISITS_PER_LOOK: u64 = 4096;

/// When a thread's work is over.
#[derive(Clone, Copy)]
pub enum Until<'a> {
    /// When its fixed amount of work is done.
    WorkIsDone,
    /// At a time, or when the flag is set.
    Time(Instant, &'a AtomicBool),
}

/// What a thread notes about itself in the timed part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Notes {
    /// Work done, in the workload's unit.
    pub work: u64,
    /// Node it was on at its end.
    pub node: Option<NodeId>,
    /// Changes of node seen between two looks at its CPU.
    pub moves: u64,
    /// Time runnable but not running, if the kernel counts it.
    pub run_delay_ns: Option<u64>,
}

/// A thread at work.
pub struct Worker<'a> {
    /// Its number in its program.
    pub number: usize,
    /// How long each request took, for workloads about latency.
    pub latencies_ns: Vec<u64>,
    /// What it noted.
    pub notes: Notes,
    memory: &'a [Memory],
    meeting: &'a Meeting,
    topology: &'a Topology,
    is_bound: bool,
    until: Until<'a>,
}

impl<'a> Worker<'a> {
    /// A thread of a program with this memory; they meet at `meeting`.
    pub fn new(number: usize, memory: &'a [Memory], meeting: &'a Meeting, topology: &'a Topology) -> Self {
        let (latencies_ns, notes, until) = (Vec::new(), Notes::default(), Until::WorkIsDone);
        Self { number, latencies_ns, notes, memory, meeting, topology, is_bound: false, until }
    }

    /// Says whether it is pinned and when its work ends.
    pub fn prepare(&mut self, is_bound: bool, until: Until<'a>) {
        (self.is_bound, self.until) = (is_bound, until);
        self.notes.node = self.node_now();
    }

    /// Does what `thread` does. If that fails, its fellows no longer wait for it.
    pub fn work(&mut self, thread: &Thread) -> Result<Vec<Claim>> {
        (thread.body)(self).inspect_err(|_| self.meeting.break_up())
    }

    /// The lines of the program's array `region`.
    pub fn lines(&self, region: usize) -> &'a [Line] {
        self.memory[region].lines()
    }

    /// Whether round `round` of `rounds` is to be done; in a run for a time it is the time that counts.
    pub fn goes_on(&self, round: u64, rounds: u64) -> bool {
        match self.until {
            Until::WorkIsDone => round < rounds,
            Until::Time(end, stop) => !stop.load(Relaxed) && Instant::now() < end,
        }
    }

    /// Counts so many visits of a walk; each is one unit of work.
    pub fn count(&mut self, walk: &mut Walk, counter: usize, visits: u64) {
        self.in_bouts(visits, |visits| walk.count(counter, visits));
    }

    /// Counts visits of two walks in turns; for each its counter and its visits per turn.
    pub fn count_in_turns(&mut self, one: (&mut Walk, usize, u64), other: (&mut Walk, usize, u64), turns: u64) {
        for _ in 0..turns {
            one.0.count(one.1, one.2);
            other.0.count(other.1, other.2);
        }
        self.notes.work += turns * (one.2 + other.2);
        self.look();
    }

    /// Makes so many visits of a walk that only read; each is one unit of work.
    pub fn read(&mut self, walk: &mut Walk, visits: u64) {
        self.in_bouts(visits, |visits| walk.read(visits));
    }

    fn in_bouts(&mut self, visits: u64, mut bout: impl FnMut(u64)) {
        let mut left = visits;
        while left > 0 {
            let now = left.min(VISITS_PER_LOOK);
            bout(now);
            left -= now;
            self.look();
        }
        self.notes.work += visits;
    }

    /// Waits for all threads of the program.
    pub fn meet(&mut self) {
        self.meeting.wait();
        self.look();
    }

    /// Notes where it is now.
    pub fn look(&mut self) {
        let now = self.node_now();
        if now != self.notes.node {
            self.notes.moves += 1;
            self.notes.node = now;
        }
    }

    /// Goes to another CPU if the workload decides; under `--placement none` it stays where it is.
    pub fn go_to(&mut self, cpu: CpuId) -> Result<()> {
        if self.is_bound {
            Affinity::to(&[cpu]).apply()?;
            self.notes.node = self.node_now();
        }
        Ok(())
    }

    fn node_now(&self) -> Option<NodeId> {
        // SAFETY: takes nothing; it fails on no kernel that has the call.
        let cpu = unsafe { libc::sched_getcpu() };
        self.topology.node_of(CpuId(u32::try_from(cpu).ok()?))
    }
}

/// Time that the calling thread was runnable but not running, in ns; `None` if the kernel does not count it.
pub fn run_delay_ns() -> Result<Option<u64>> {
    let path = "/proc/thread-self/schedstat";
    match std::fs::read_to_string(path) {
        Ok(text) => parse_run_delay(&text).map(Some).with_context(|| format!("{path} is not as expected: {text:?}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
    }
}

/// The second of the three numbers: time run, time waited, time slices.
fn parse_run_delay(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::topology_of;
    use std::time::Duration;

    #[test]
    fn fixed_work_ends_by_rounds_and_timed_work_by_the_clock_or_the_flag() {
        let topology = topology_of(&[(0, &[0], true)]);
        let meeting = Meeting::of(1);
        let mut worker = Worker::new(0, &[], &meeting, &topology);
        assert!(worker.goes_on(4, 5) && !worker.goes_on(5, 5));
        let stop = AtomicBool::new(false);
        worker.prepare(false, Until::Time(Instant::now() + Duration::from_secs(60), &stop));
        assert!(worker.goes_on(5, 5));
        stop.store(true, Relaxed);
        assert!(!worker.goes_on(5, 5));
        stop.store(false, Relaxed);
        worker.prepare(false, Until::Time(Instant::now(), &stop));
        assert!(!worker.goes_on(0, 5));
    }

    #[test]
    fn a_change_of_node_is_counted_once_and_going_where_it_is_told_is_none() {
        let before = Affinity::of_this_thread().unwrap();
        let cpus = before.cpus();
        let here: &[u32] = &[cpus[0].0];
        let elsewhere: Vec<u32> = cpus[1..].iter().map(|cpu| cpu.0).collect();
        let topology = topology_of(&[(0, here, true), (1, &elsewhere, true)]);
        let meeting = Meeting::of(1);
        Affinity::to(&cpus[..1]).apply().unwrap();
        let mut worker = Worker::new(0, &[], &meeting, &topology);
        worker.prepare(true, Until::WorkIsDone);
        worker.look();
        assert_eq!((worker.notes.moves, worker.notes.node), (0, Some(NodeId(0))));
        if let Some(other) = cpus.get(1) {
            Affinity::to(&[*other]).apply().unwrap();
            worker.look();
            worker.look();
            assert_eq!((worker.notes.moves, worker.notes.node), (1, Some(NodeId(1))));
            worker.go_to(cpus[0]).unwrap();
            worker.look();
            assert_eq!((worker.notes.moves, worker.notes.node), (1, Some(NodeId(0))));
        }
        before.apply().unwrap();
    }

    #[test]
    fn run_delay_is_the_second_number() {
        assert_eq!(parse_run_delay("12 345 6\n"), Some(345));
        assert_eq!(parse_run_delay("12\n"), None);
    }
}
