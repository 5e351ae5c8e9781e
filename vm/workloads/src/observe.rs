// SPDX-License-Identifier: GPL-2.0-only
//! The observer: every interval, where the threads and pages of a truth document are.

use crate::measures::{PagesByNode, Picture, ThreadUse, first_settled, node_changes};
use crate::page_homes::{page_bytes, page_homes};
use crate::process_files::{Migrations, Stat};
use crate::topology::{CpuId, NodeId, Topology};
use crate::truth::{Truth, monotonic_ns, write_json};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that loading a scheduler may take at least: on a busy emulated machine it is half a minute.
const LOADING_NS: u64 = 120_000_000_000;

/// At least every so-manieth page is asked for, and never more pages than `MAX_SAMPLED_PAGES`.
const MIN_STRIDE_PAGES: u64 = 8;
/// Bound on the pages asked for in an interval: the observer runs on the machine it observes.
const MAX_SAMPLED_PAGES: u64 = 4096;
/// "90 % local": remote share at or below this, for so many samples in a row.
const LOCAL_REMOTE_SHARE: f64 = 0.10;
const LOCAL_SAMPLES: usize = 3;
/// sched_ext's state as the kernel shows it; absent in kernels without sched_ext.
const SCHED_EXT_STATE: &str = "/sys/kernel/sched_ext/state";

/// Options of `tandem-load observe`.
#[derive(clap::Args)]
pub struct Options {
    /// Who touches what, as `crossed` or `truth-of` wrote it.
    #[arg(long)]
    truth: PathBuf,
    /// Length of the observation in seconds, counted from its start mark.
    #[arg(long)]
    seconds: u64,
    /// Milliseconds between two samples.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..))]
    interval_ms: u64,
    /// The start mark: times count from there, samples before it have negative times.
    #[arg(long, value_enum, default_value_t = Start::FirstSample)]
    start: Start,
    /// Where to write the series and its summary.
    #[arg(long)]
    json: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Start {
    /// The first sample.
    FirstSample,
    /// The first sample with a sched_ext scheduler loaded; it must come within --seconds.
    SchedExt,
}

/// One sample. Shares are 0 to 1, `null` when no page is in memory.
#[derive(Serialize)]
struct Sample {
    time_s: f64,
    monotonic_ns: u64,
    sched_ext: Option<String>,
    remote_share: Option<f64>,
    local_pages_share: Option<f64>,
    private_local_share: Option<f64>,
    pairs_together: usize,
    pages_per_node: PagesByNode,
    threads_per_node: PagesByNode,
    thread_nodes: Vec<NodeId>,
    right_place: Vec<bool>,
    /// Threads that are on a new node here and in the next sample.
    thread_moves: usize,
    /// Pages whose home differs from the sample before (estimated from the sampled ones).
    page_home_changes: u64,
    /// Counted since the sample before.
    migrations: Migrations,
}

/// From the start mark to the end.
#[derive(Serialize)]
struct Summary {
    observed_s: f64,
    remote_share_start: Option<f64>,
    remote_share_end: Option<f64>,
    local_pages_share_end: Option<f64>,
    private_local_share_end: Option<f64>,
    /// Share of (thread, sample) in the right place.
    right_place_share: f64,
    pairs: usize,
    pairs_together_end: usize,
    thread_node_changes: usize,
    thread_moves: usize,
    page_home_changes: u64,
    migrations: Migrations,
    /// Seconds from the start mark to the first of three samples at most 10 % remote.
    time_to_90_percent_local_s: Option<f64>,
}

/// What `observe` writes.
#[derive(Serialize)]
struct Observation {
    workload: String,
    interval_ms: u64,
    /// Every so-manieth page was asked for; page counts are scaled by it.
    stride_pages: u64,
    page_bytes: u64,
    nodes: Vec<NodeId>,
    tids: Vec<i32>,
    pairs: Vec<[i32; 2]>,
    /// CPU time the observer used.
    observer_cpu_s: f64,
    /// Why the observation ended before its time, if it did.
    ended_early: Option<String>,
    summary: Option<Summary>,
    samples: Vec<Sample>,
}

/// Observes until the time is over or a thread ends, and writes the document in either case.
pub fn run(options: &Options) -> Result<()> {
    let truth = Truth::read(&options.truth)?;
    if options.start == Start::SchedExt && !Path::new(SCHED_EXT_STATE).exists() {
        bail!("--start sched-ext needs a kernel with sched_ext; this one has no {SCHED_EXT_STATE}");
    }
    let mut observer = Observer::new(&truth)?;
    let (mut samples, ended_early) = observer.observe(options)?;
    let marked = samples.iter().position(|sample| sample.time_s >= 0.0).map(|mark| &mut samples[mark..]);
    let summary = marked.and_then(|samples| summarize(samples, observer.pairs.len()));
    let observation = Observation {
        workload: truth.workload.clone(),
        interval_ms: options.interval_ms,
        stride_pages: observer.stride_pages,
        page_bytes: page_bytes(),
        nodes: observer.nodes.clone(),
        tids: truth.threads.iter().map(|thread| thread.tid).collect(),
        pairs: truth.pairs.clone(),
        observer_cpu_s: own_cpu_s(),
        ended_early: ended_early.clone(),
        summary,
        samples,
    };
    write_json(&options.json, &observation)?;
    ended_early.map_or(Ok(()), |why| bail!("the observation ended early: {why}"))
}

/// A range of a process and the pages of it that are asked for.
struct SampledRange {
    pid: i32,
    addresses: Vec<u64>,
    homes: Vec<Option<NodeId>>,
}

struct Observer<'a> {
    truth: &'a Truth,
    nodes: Vec<NodeId>,
    node_of_cpu: BTreeMap<CpuId, NodeId>,
    uses: Vec<ThreadUse>,
    pairs: Vec<[usize; 2]>,
    ranges: Vec<SampledRange>,
    stride_pages: u64,
    migrations: Migrations,
}

impl<'a> Observer<'a> {
    fn new(truth: &'a Truth) -> Result<Self> {
        let topology = Topology::read()?;
        let mut keys: Vec<(i32, u64, u64)> = Vec::new();
        let mut uses = Vec::new();
        for thread in &truth.threads {
            let mut ranges = Vec::new();
            for range in &thread.ranges {
                let key = (thread.pid, range.start, range.bytes);
                let index = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                });
                ranges.push((index, range.weight));
            }
            uses.push(ThreadUse { tid: thread.tid, ranges });
        }
        let index_of = |tid: i32| uses.iter().position(|thread| thread.tid == tid).expect("Truth::read checks pairs");
        let pairs = truth.pairs.iter().map(|pair| pair.map(index_of)).collect();
        let stride_pages = stride_for(keys.iter().map(|(_, _, bytes)| bytes / page_bytes()).sum());
        let ranges = keys.into_iter().map(|(pid, start, bytes)| {
            let step = (stride_pages * page_bytes()) as usize;
            SampledRange { pid, addresses: (start..start + bytes).step_by(step).collect(), homes: Vec::new() }
        });
        Ok(Self {
            truth,
            nodes: topology.nodes(),
            node_of_cpu: topology.node_of_cpu(),
            pairs,
            ranges: ranges.collect(),
            uses,
            stride_pages,
            migrations: Migrations::read()?,
        })
    }

    /// All samples, and why they end early if they do.
    fn observe(&mut self, options: &Options) -> Result<(Vec<Sample>, Option<String>)> {
        let begin = monotonic_ns();
        let mut mark = None;
        let mut samples: Vec<Sample> = Vec::new();
        let length = Duration::from_secs(options.seconds).as_nanos() as u64;
        for tick in 0.. {
            let due = begin + tick * options.interval_ms * 1_000_000;
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
            let sample = match self.sample() {
                Ok(sample) => sample,
                Err(error) => {
                    return Ok((count_from(samples, mark), Some(format!("{error:#}"))));
                }
            };
            let now = sample.monotonic_ns;
            let is_loaded = sample.sched_ext.as_deref() == Some("enabled");
            if mark.is_none() && (options.start == Start::FirstSample || is_loaded) {
                mark = Some(now);
            }
            samples.push(sample);
            match mark {
                Some(mark) if now - mark >= length => break,
                None if now - begin >= length.max(LOADING_NS) => {
                    let why = format!("no sched_ext scheduler was loaded within {} s", (now - begin) / 1_000_000_000);
                    return Ok((count_from(samples, mark), Some(why)));
                }
                _ => {}
            }
        }
        Ok((count_from(samples, mark), None))
    }

    fn sample(&mut self) -> Result<Sample> {
        let now = monotonic_ns();
        let thread_nodes = self.thread_nodes()?;
        let page_home_changes = self.update_homes()? * self.stride_pages;
        let picture = Picture { thread_nodes, range_pages: self.ranges.iter().map(|r| self.pages_of(r)).collect() };
        let migrations = Migrations::read()?;
        let since = migrations.since(&self.migrations);
        self.migrations = migrations;
        Ok(Sample {
            time_s: 0.0,
            monotonic_ns: now,
            sched_ext: sched_ext_state()?,
            remote_share: picture.remote_share(&self.uses),
            local_pages_share: picture.local_pages_share(&self.uses, false),
            private_local_share: picture.local_pages_share(&self.uses, true),
            pairs_together: picture.pairs_together(&self.pairs),
            pages_per_node: picture.pages_per_node(),
            threads_per_node: picture.threads_per_node(),
            right_place: picture.right_place(&self.uses),
            thread_nodes: picture.thread_nodes,
            thread_moves: 0,
            page_home_changes,
            migrations: since,
        })
    }

    fn thread_nodes(&self) -> Result<Vec<NodeId>> {
        let node_of = |cpu: CpuId| self.node_of_cpu.get(&cpu).copied();
        let threads = self.truth.threads.iter();
        threads
            .map(|thread| {
                let cpu = Stat::read(thread.pid, thread.tid)?.cpu;
                node_of(cpu).with_context(|| format!("CPU {} of thread {} has no node", cpu.0, thread.tid))
            })
            .collect()
    }

    /// Asks for the homes of all sampled pages; how many of them changed.
    fn update_homes(&mut self) -> Result<u64> {
        let mut changed = 0;
        for range in &mut self.ranges {
            let homes = page_homes(range.pid, &range.addresses)?;
            changed += range
                .homes
                .iter()
                .zip(&homes)
                .filter(|(old, new)| old.is_some() && new.is_some() && old != new)
                .count();
            range.homes = homes;
        }
        Ok(changed as u64)
    }

    fn pages_of(&self, range: &SampledRange) -> PagesByNode {
        let mut pages = PagesByNode::new();
        for node in range.homes.iter().flatten() {
            *pages.entry(*node).or_default() += self.stride_pages;
        }
        pages
    }
}

/// Pages between two sampled ones, of `total` pages.
fn stride_for(total: u64) -> u64 {
    total.div_ceil(MAX_SAMPLED_PAGES).max(MIN_STRIDE_PAGES)
}

/// Counts the samples' times from `mark`; without one, all are before it and end just below 0.
fn count_from(mut samples: Vec<Sample>, mark: Option<u64>) -> Vec<Sample> {
    let origin = mark.or(samples.last().map(|last| last.monotonic_ns + 1)).unwrap_or(0);
    for sample in &mut samples {
        sample.time_s = (sample.monotonic_ns as i64 - origin as i64) as f64 / 1e9;
    }
    samples
}

fn sched_ext_state() -> Result<Option<String>> {
    match std::fs::read_to_string(SCHED_EXT_STATE) {
        Ok(state) => Ok(Some(state.trim().into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {SCHED_EXT_STATE}")),
    }
}

/// Notes in every sample how many threads moved there; how many node changes there were at all.
fn note_moves(samples: &mut [Sample]) -> usize {
    let mut seen = 0;
    for thread in 0..samples.first().map_or(0, |first| first.thread_nodes.len()) {
        let changes = node_changes(&samples.iter().map(|sample| sample.thread_nodes[thread]).collect::<Vec<_>>());
        seen += changes.seen;
        for sample in changes.moves {
            samples[sample].thread_moves += 1;
        }
    }
    seen
}

fn summarize(samples: &mut [Sample], pairs: usize) -> Option<Summary> {
    let thread_node_changes = note_moves(samples);
    let (first, last) = (samples.first()?, samples.last()?);
    let remote: Vec<Option<f64>> = samples.iter().map(|sample| sample.remote_share).collect();
    let right = samples.iter().flat_map(|sample| &sample.right_place);
    let migrations = samples[1..].iter().fold(Migrations::default(), |sum, sample| sum.plus(&sample.migrations));
    Some(Summary {
        observed_s: last.time_s - first.time_s,
        remote_share_start: first.remote_share,
        remote_share_end: last.remote_share,
        local_pages_share_end: last.local_pages_share,
        private_local_share_end: last.private_local_share,
        right_place_share: right.clone().filter(|right| **right).count() as f64 / right.count() as f64,
        pairs,
        pairs_together_end: last.pairs_together,
        thread_node_changes,
        thread_moves: samples.iter().map(|sample| sample.thread_moves).sum(),
        page_home_changes: samples[1..].iter().map(|sample| sample.page_home_changes).sum(),
        migrations,
        time_to_90_percent_local_s: first_settled(&remote, LOCAL_REMOTE_SHARE, LOCAL_SAMPLES)
            .map(|index| samples[index].time_s - first.time_s),
    })
}

fn own_cpu_s() -> f64 {
    // SAFETY: all zeroes is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure it is given; RUSAGE_SELF always exists.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(monotonic_ns: u64, remote_share: f64, node: u32) -> Sample {
        Sample {
            time_s: 0.0,
            monotonic_ns,
            sched_ext: None,
            remote_share: Some(remote_share),
            local_pages_share: Some(1.0 - remote_share),
            private_local_share: None,
            pairs_together: 0,
            pages_per_node: PagesByNode::new(),
            threads_per_node: PagesByNode::new(),
            thread_nodes: vec![NodeId(node)],
            right_place: vec![node == 1],
            thread_moves: 0,
            page_home_changes: 8,
            migrations: Migrations { pgmigrate_success: 5, ..Migrations::default() },
        }
    }

    #[test]
    fn sampling_is_every_eighth_page_until_that_exceeds_the_bound() {
        assert_eq!(stride_for(100), 8);
        assert_eq!(stride_for(8 * 4096), 8);
        assert_eq!(stride_for(73_728), 18);
        assert!(1_000_000_u64.div_ceil(stride_for(1_000_000)) <= MAX_SAMPLED_PAGES);
    }

    #[test]
    fn times_count_from_the_mark_and_are_negative_before_it() {
        let samples = vec![sample(1_000_000_000, 1.0, 0), sample(1_500_000_000, 1.0, 0), sample(2_000_000_000, 1.0, 0)];
        let times: Vec<f64> = count_from(samples, Some(1_500_000_000)).iter().map(|sample| sample.time_s).collect();
        assert_eq!(times, [-0.5, 0.0, 0.5]);
        assert!(count_from(vec![sample(5, 1.0, 0)], None)[0].time_s < 0.0);
    }

    #[test]
    fn the_summary_is_of_the_time_after_its_first_sample() {
        let shares = [(0.9, 0), (0.5, 1), (0.1, 1), (0.0, 1), (0.0, 1)];
        let samples: Vec<Sample> =
            shares.iter().zip(4..).map(|((share, node), tick)| sample(tick * 500_000_000, *share, *node)).collect();
        let mut samples = count_from(samples, Some(2_000_000_000));
        let summary = summarize(&mut samples, 0).unwrap();
        assert_eq!(summary.remote_share_start, Some(0.9));
        assert_eq!(summary.remote_share_end, Some(0.0));
        assert_eq!(summary.time_to_90_percent_local_s, Some(1.0));
        assert_eq!((summary.thread_node_changes, summary.thread_moves, samples[1].thread_moves), (1, 1, 1));
        // What was counted up to the mark itself happened before it.
        assert_eq!((summary.page_home_changes, summary.migrations.pgmigrate_success), (32, 20));
        assert_eq!(summary.right_place_share, 0.8);
        assert_eq!(summary.observed_s, 2.0);
    }
}
