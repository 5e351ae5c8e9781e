// SPDX-License-Identifier: GPL-2.0-only
//! One process of a workload: its memory, its threads from start to end, and its check.

use crate::affinity::Affinity;
use crate::frame::child::{Ended, Message, Parent};
use crate::frame::fill::{fill, pages_by_node};
use crate::frame::meeting::Meeting;
use crate::frame::memory::{Memory, PageSize};
use crate::frame::plan::{Claim, Place, Placement, Program, Start, Thread};
use crate::frame::walk::check_counts;
use crate::frame::worker::{Notes, Until, Worker, run_delay_ns};
use crate::topology::{NodeId, Topology};
use crate::truth::{RangeTruth, ThreadTruth, monotonic_ns};
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What all programs of a run have in common.
pub struct Setting<'a> {
    /// The machine, with the CPUs that may be used.
    pub topology: &'a Topology,
    /// The affinity of threads that are not pinned.
    pub affinity: &'a Affinity,
    /// Who decides where threads and pages are.
    pub placement: Placement,
    /// Pages of all arrays.
    pub pages: PageSize,
    /// Run so long instead of to the end of the work.
    pub time_limit: Option<Duration>,
    /// Ends a run for a time early.
    pub stop: &'a AtomicBool,
}

impl Setting<'_> {
    fn is_bound(&self) -> bool {
        self.placement != Placement::None
    }
}

/// What a thread did.
struct Done {
    at_ns: u64,
    notes: Notes,
    claims: Vec<Claim>,
    latencies_ns: Vec<u64>,
}

/// Runs a program to its end, in step with `parent`.
pub fn run(program: &Program, setting: &Setting, parent: &mut Parent) -> Result<Message> {
    let mut memory = Vec::new();
    for region in &program.regions {
        memory.push(Memory::map(region.bytes, setting.pages)?);
        fill(&memory[memory.len() - 1], region, setting.is_bound(), setting.topology)?;
    }
    let mut done = run_threads(program, setting, &memory, |truth| parent.say_and_wait(&Message::Ready(truth)))?;
    let claims: Vec<Claim> = done.iter_mut().flat_map(|done| std::mem::take(&mut done.claims)).collect();
    let ended = Ended {
        at_ns: done.iter().map(|done| done.at_ns).max().unwrap_or(0),
        p99_ns: percentile_99(done.iter().flat_map(|done| done.latencies_ns.iter().copied()).collect()),
        threads: done.into_iter().map(|done| done.notes).collect(),
        claims: claims.clone(),
    };
    // A program that comes later checks itself as its last work, inside the timed part.
    let checked_early = program.start != Start::Together;
    let early_pages = if checked_early { Some(check(program, &memory, &claims)?) } else { None };
    let ended = if checked_early { Ended { at_ns: monotonic_ns(), ..ended } } else { ended };
    parent.say_and_wait(&Message::Ended(ended))?;
    Ok(Message::Checked(match early_pages {
        Some(pages) => pages,
        None => check(program, &memory, &claims)?,
    }))
}

/// Checks what the threads left in memory; gives the pages by node as they were before.
fn check(program: &Program, memory: &[Memory], claims: &[Claim]) -> Result<BTreeMap<NodeId, u64>> {
    let mut pages = BTreeMap::new();
    for array in memory {
        for (node, count) in pages_by_node(array, 0..array.bytes() as usize)? {
            *pages.entry(node).or_default() += count;
        }
    }
    for claim in claims {
        check_counts(&memory[claim.region].lines()[claim.lines.clone()], claim.counter, claim.visits)?;
    }
    program.check.as_ref().map_or(Ok(()), |check| check(memory))?;
    Ok(pages)
}

/// Starts the threads, calls `when_ready` with what they use, and lets them work.
fn run_threads<'a>(
    program: &Program,
    setting: &Setting<'a>,
    memory: &[Memory],
    when_ready: impl FnOnce(Vec<ThreadTruth>) -> Result<()>,
) -> Result<Vec<Done>> {
    let meeting = Meeting::of(program.threads.len());
    std::thread::scope(|scope| {
        let (mut ready, mut go, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for (number, thread) in program.threads.iter().enumerate() {
            let (to_main, from_thread) = channel();
            let (to_thread, from_main) = channel();
            let worker = Worker::new(number, memory, &meeting, setting.topology);
            let life = move || live(thread, worker, setting, memory, &to_main, &from_main);
            threads.push(std::thread::Builder::new().spawn_scoped(scope, life).context("cannot start a thread")?);
            ready.push(from_thread);
            go.push(to_thread);
        }
        // A thread that fails drops its sender; its own error, from join, says why.
        let prepared: Option<Vec<ThreadTruth>> = ready.iter().map(|thread| thread.recv().ok()).collect();
        let released = match prepared {
            Some(truth) => when_ready(truth),
            None => Err(anyhow!("a thread could not be prepared")),
        };
        if released.is_ok() {
            let end = setting.time_limit.map(|limit| Instant::now() + limit);
            for thread in &go {
                let _already_failed = thread.send(end);
            }
        }
        drop(go);
        let results = threads.into_iter().map(|thread| thread.join().expect("a worker never panics"));
        let done = results.collect::<Result<Vec<Option<Done>>>>()?;
        released?;
        Ok(done.into_iter().flatten().collect())
    })
}

/// A thread's life; `None` if it was never let go.
fn live<'a>(
    thread: &Thread,
    mut worker: Worker<'a>,
    setting: &Setting<'a>,
    memory: &[Memory],
    ready: &Sender<ThreadTruth>,
    go: &Receiver<Option<Instant>>,
) -> Result<Option<Done>> {
    match thread.place {
        Place::Anywhere => {}
        Place::Cpu(cpu) => Affinity::to(&[cpu]).apply()?,
        Place::Node(node) => Affinity::to(setting.topology.cpus_of(node)).apply()?,
    }
    ready.send(truth_of(thread, memory)).context("the process is ending")?;
    // Woken while still bound to its seat, so that the timed part starts there.
    let Ok(end) = go.recv() else { return Ok(None) };
    if !setting.is_bound() {
        setting.affinity.apply()?;
    }
    let until = end.map_or(Until::WorkIsDone, |end| Until::Time(end, setting.stop));
    worker.prepare(setting.is_bound(), until);
    let delay_before = run_delay_ns()?;
    let claims = worker.work(thread)?;
    let at_ns = monotonic_ns();
    worker.look();
    let delay_after = run_delay_ns()?;
    worker.notes.run_delay_ns = delay_before.zip(delay_after).map(|(before, after)| after - before);
    Ok(Some(Done { at_ns, notes: worker.notes, claims, latencies_ns: worker.latencies_ns }))
}

fn truth_of(thread: &Thread, memory: &[Memory]) -> ThreadTruth {
    let ranges = thread.uses.iter().map(|used| {
        let array = &memory[used.region];
        RangeTruth { start: array.start(), bytes: array.bytes(), weight: used.weight }
    });
    // SAFETY: gettid takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() };
    ThreadTruth { pid: std::process::id() as i32, tid, ranges: ranges.collect() }
}

/// The smallest value that at least 99 % of the values do not exceed.
pub fn percentile_99(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get((values.len() * 99).div_ceil(100).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_is_the_value_that_99_of_100_do_not_exceed() {
        assert_eq!(percentile_99((1..=100).rev().collect()), Some(99));
        assert_eq!(percentile_99((1..=1000).collect()), Some(990));
        assert_eq!(percentile_99(vec![7]), Some(7));
        assert_eq!(percentile_99(vec![]), None);
    }
}
