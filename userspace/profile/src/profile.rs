// SPDX-License-Identifier: GPL-2.0-only
//! The document of a profile: what was seen, the metrics of it, and where threads should run. docs/profile.md has its fields.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tandem_metrics::communication::kept_partners;
use tandem_metrics::meaning::percent;
use tandem_metrics::phases::{self, MIN_CHANGE, phases};
use tandem_metrics::{Communication, Footprint, PageUse, Phase};
use tandem_policies::model::{NodeIndex, PAGE_BYTES};
use tandem_policies::sharing::SharingMatrix;

use crate::machine::Machine;
use crate::metrics;
use crate::placement::{Placement, Present, Program, accessed, first_touch};
use crate::trace::{ThreadTotal, Trace};

/// Version of the document.
const VERSION: u32 = 1;

/// How time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Instructions of the farthest thread that make a millisecond; where a program was sampled, ns.
    pub instructions_per_ms: u64,
    /// Length of a slice.
    pub slice_ms: f64,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of this document.
    pub version: u32,
    /// What was run.
    pub command: Vec<String>,
    /// The machine that threads are placed on.
    pub machine: String,
    /// The kernel's ids of its nodes, by index.
    pub node_ids: Vec<u32>,
    /// How time was counted.
    pub clock: Clock,
    /// What saw the accesses; `None` if all of them were seen.
    pub sampler: Option<Sampled>,
    /// Time that the program ran by this clock.
    pub seconds: f64,
    /// What one should know of how this came about.
    pub notes: Vec<String>,
    /// Threads, by number.
    pub threads: Vec<Thread>,
    /// Meetings of the whole run: (thread, thread, how often), the lower thread first.
    pub events: Vec<(usize, usize, u64)>,
    /// The run in slices.
    pub slices: Vec<Slice>,
    /// Phases of the busy threads' C_H.
    pub phases: Vec<Phase>,
    /// Every metric with its sentence.
    pub metrics: Vec<Metric>,
    /// Placements of the threads: scattered, compact, recommended.
    pub placements: Vec<Placement>,
    /// Memory against caches; `None` if the caches are not known.
    pub footprint: Option<Footprint>,
    /// Local accesses over time, by placement of threads and pages.
    pub local: Vec<LocalCourse>,
    /// Memory by node over time, in MiB: where first touches of scattered threads put it; of a program that runs, where it was.
    #[serde(default)]
    pub memory: Vec<LocalCourse>,
    /// Use of every page.
    pub pages: Vec<PageUse>,
}

/// How a program was sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The sampler's name.
    pub name: String,
    /// Accesses that it saw.
    pub samples: u64,
}

/// What is known of a program that runs, besides the samples of it.
#[derive(Clone, Debug)]
pub struct Running {
    /// How it was sampled.
    pub sampler: Sampled,
    /// Index of the node on which each thread ran last.
    pub nodes: Vec<usize>,
    /// Thread ids and names.
    pub names: Vec<String>,
    /// Index of the node of each page that was accessed; `None` where nobody knows.
    pub homes: Vec<Option<usize>>,
    /// (s, MiB by node) of its memory.
    pub memory: Vec<(f64, Vec<f64>)>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Index of its process.
    pub process: usize,
    /// Its number within the process, in the order of creation.
    pub number: usize,
    /// Its thread id and name, where it was seen to run.
    pub name: Option<String>,
    /// Instructions it executed; where it was sampled, ns of CPU time.
    pub instructions: u64,
    /// Memory accesses it made, or those of them that were sampled.
    pub accesses: u64,
    /// Whether it counts in metrics and mapping.
    pub busy: bool,
}

/// One slice of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Its begin.
    pub at_ms: f64,
    /// C_H of the busy threads (equation 2).
    pub c_h: f64,
    /// Meetings: (thread, thread, how often).
    pub events: Vec<(usize, usize, u64)>,
}

/// A number with its meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// What it is called.
    pub name: String,
    /// Its equation in docs/profile.md.
    pub equation: u32,
    /// The number; `None` if there is nothing to take it of.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// What it means.
    pub meaning: String,
}

/// A number over time: the local part of the accesses, or MiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalCourse {
    /// Threads and pages, or the node.
    pub name: String,
    /// (end of a slice in s, number), where there were accesses; the first once more at its begin.
    pub points: Vec<(f64, f64)>,
}

/// What the sharing of some threads is like: over the run and by slice, with threads renumbered from 0.
pub(crate) struct Sharing {
    /// Over the run.
    pub whole: SharingMatrix,
    /// By slice.
    pub slices: Vec<SharingMatrix>,
    /// Least part of the sharing that stayed from one window to the next (equation 5).
    pub least_kept: Option<f64>,
}

impl Sharing {
    fn of(trace: &Trace, threads: &[usize]) -> Self {
        let at = |thread: usize| threads.binary_search(&thread).ok();
        let cell = |(&(one, other), &count): (&(usize, usize), &u64)| Some((at(one)?, at(other)?, count as f64));
        let slices: Vec<SharingMatrix> =
            trace.slices.iter().map(|slice| SharingMatrix::new(threads.len(), slice.iter().filter_map(cell))).collect();
        let window = (slices.len() / 8).clamp(1, phases::WINDOW);
        let windows: Vec<SharingMatrix> = slices.chunks(window).map(|part| sum(part, threads.len())).collect();
        let kept = windows.windows(2).filter_map(|pair| kept_partners(&pair[0], &pair[1]));
        let least_kept = kept.reduce(f64::min);
        Self { whole: sum(&slices, threads.len()), slices, least_kept }
    }
}

fn sum(matrices: &[SharingMatrix], threads: usize) -> SharingMatrix {
    let mut cells = BTreeMap::new();
    for (one, other, events) in matrices.iter().flat_map(SharingMatrix::pairs) {
        *cells.entry((one, other)).or_insert(0.0) += events;
    }
    SharingMatrix::new(threads, cells.into_iter().map(|((one, other), events)| (one, other, events)))
}

impl Profile {
    /// The profile of a trace of `command`.
    ///
    /// # Errors
    /// The trace cannot be read again, or the machine has no CPU.
    pub fn of(trace: &Trace, command: &[String], machine: &Machine, instructions_per_ms: u64) -> Result<Self> {
        Self::build(trace, command, machine, instructions_per_ms, None)
    }

    /// The profile of a program that runs: of samples of it ([`crate::samples`]), and what else is known.
    ///
    /// # Errors
    /// The machine has no CPU.
    pub fn of_running(trace: &Trace, command: &[String], machine: &Machine, running: &Running) -> Result<Self> {
        Self::build(trace, command, machine, NS_PER_MS, Some(running))
    }

    fn build(
        trace: &Trace,
        command: &[String],
        machine: &Machine,
        instructions_per_ms: u64,
        running: Option<&Running>,
    ) -> Result<Self> {
        let slice_ms = trace.slice_instructions as f64 / instructions_per_ms as f64;
        let clock = Clock { instructions_per_ms, slice_ms };
        let end = trace.processes.iter().filter_map(|process| process.end).max();
        let seconds = match end {
            Some(end) => end as f64 / instructions_per_ms as f64 / 1e3,
            None => trace.slices.len() as f64 * slice_ms / 1e3,
        };
        let everybody = Sharing::of(trace, &(0..trace.threads.len()).collect::<Vec<_>>());
        let instructions: Vec<u64> = trace.threads.iter().map(|thread| thread.instructions).collect();
        let present = running.map(|running| Present { nodes: &running.nodes, homes: &running.homes });
        let program =
            Program { instructions: &instructions, sharing: &everybody.whole, pages: &trace.pages, seconds, present };
        let busy = program.busy();
        let sharing = Sharing::of(trace, &busy);
        let placements = program.placements(&machine.topology)?;
        let c_h: Vec<f64> = sharing.slices.iter().map(|matrix| Communication::of(matrix).c_h).collect();
        let touched_bytes = trace.pages.len() as u64 * PAGE_BYTES;
        let mut profile = Self {
            version: VERSION,
            command: command.to_vec(),
            machine: machine.name.clone(),
            node_ids: machine.topology.nodes.values().map(|node| node.id.0).collect(),
            clock,
            sampler: running.map(|running| running.sampler.clone()),
            seconds,
            notes: running.map_or_else(|| notes(trace), |running| notes_of_samples(trace, &running.homes)),
            threads: threads(trace, &busy, running),
            events: everybody.whole.pairs().map(|(one, other, events)| (one, other, events as u64)).collect(),
            slices: slices(trace, &c_h, slice_ms),
            phases: phases(&c_h, phases::WINDOW, MIN_CHANGE),
            metrics: vec![],
            footprint: machine.cache_bytes.map(|cache_bytes| Footprint { touched_bytes, cache_bytes }),
            local: local_courses(trace, &placements, slice_ms, present)?,
            memory: match running {
                Some(running) => memory_seen(running, machine),
                None => memory_touched(trace, &placements[0], machine, slice_ms)?,
            },
            placements,
            pages: trace.pages.clone(),
        };
        profile.metrics = metrics::all(&profile, &sharing);
        Ok(profile)
    }

    /// The placement that fits what threads share.
    pub fn recommended(&self) -> &Placement {
        self.placements.last().expect("three placements")
    }
}

fn threads(trace: &Trace, busy: &[usize], running: Option<&Running>) -> Vec<Thread> {
    let thread = |(at, total): (usize, &ThreadTotal)| {
        let &ThreadTotal { process, number, instructions, accesses } = total;
        let name = running.and_then(|running| running.names.get(at).cloned());
        Thread { process, number, name, instructions, accesses, busy: busy.binary_search(&at).is_ok() }
    };
    trace.threads.iter().enumerate().map(thread).collect()
}

fn slices(trace: &Trace, c_h: &[f64], slice_ms: f64) -> Vec<Slice> {
    let slice = |at: usize| Slice {
        at_ms: at as f64 * slice_ms,
        c_h: c_h[at],
        events: trace.slices[at].iter().map(|(&(one, other), &count)| (one, other, count)).collect(),
    };
    (0..trace.slices.len()).map(slice).collect()
}

const NS_PER_MS: u64 = 1_000_000;
const SAMPLED_NOTE: &str = "Counts, and times of transfers, are those of the samples, a small part of all accesses: compare \
    them with each other, not with other profiles. `tandem profile --exact` counts all.";

/// How to read samples, and how much of them went to pages without a known home.
fn notes_of_samples(trace: &Trace, homes: &[Option<usize>]) -> Vec<String> {
    let count = |page: &PageUse| page.accesses.iter().map(|user| user.1).sum::<u64>();
    let all: u64 = accessed(&trace.pages).map(count).sum();
    let unknown: u64 =
        accessed(&trace.pages).zip(homes).filter(|(_, home)| home.is_none()).map(|(page, _)| count(page)).sum();
    let mut notes = vec![SAMPLED_NOTE.to_owned()];
    if unknown > 0 {
        let part = percent((unknown as f64 / all as f64).max(LEAST_SHOWN));
        notes.push(format!(
            "{part} of the accesses went to pages whose place is not known: they are left out of what is said of pages as \
             they are."
        ));
    }
    notes
}

/// The least part that does not look like none.
const LEAST_SHOWN: f64 = 0.001;

/// Threads beyond this share one number: the plugin's limit.
const MAX_THREADS: usize = 255;

fn notes(trace: &Trace) -> Vec<String> {
    let mut notes = Vec::new();
    for process in &trace.processes {
        let pid = process.pid;
        if process.became_another {
            notes.push(format!("process {pid} started another program (exec), which was not traced"));
        } else if process.end.is_none() {
            notes.push(format!("process {pid} was killed: what it did last is missing"));
        }
        if process.threads >= MAX_THREADS {
            notes.push(format!(
                "process {pid} had {MAX_THREADS} threads or more; the last number stands for all further ones"
            ));
        }
    }
    if trace.processes.len() > 1 {
        notes.push(format!("{} processes: what they share with each other is not seen", trace.processes.len()));
    }
    notes
}

/// The first and the recommended placement with pages at first touch (or where they are), and the recommended one with pages on
/// their best nodes.
fn local_courses(
    trace: &Trace,
    placements: &[Placement],
    slice_ms: f64,
    present: Option<Present<'_>>,
) -> Result<Vec<LocalCourse>> {
    let [first, .., recommended] = placements else { return Ok(vec![]) };
    let at: BTreeMap<(usize, u64), usize> =
        accessed(&trace.pages).enumerate().map(|(at, page)| ((page.process, page.page), at)).collect();
    let known = |homes: Vec<usize>| homes.into_iter().map(Some).collect();
    let best = |placement: &Placement| {
        let nodes = placement.first_touch.served.len();
        let size = tandem_metrics::PageSize::Base;
        tandem_metrics::Pages::by_node(&trace.pages, size, &placement.nodes, nodes).best_homes()
    };
    let of = |pages: &str, placement: &Placement, homes: Vec<Option<usize>>| -> Result<LocalCourse> {
        let mut counts = vec![(0u64, 0u64); trace.slices.len()];
        trace.records(|index, process, record| {
            let node = placement.nodes[process.first_thread + record.thread];
            let Some((local, all)) = counts.get_mut(record.slice as usize - 1) else { return };
            for &(page, count, _) in &record.pages {
                let Some(home) = homes[at[&(index, page)]] else { continue };
                *all += count;
                *local += if home == node { count } else { 0 };
            }
        })?;
        let points = counts.iter().enumerate().filter(|(_, count)| count.1 > 0);
        let end_s = |slice: usize| (slice + 1) as f64 * slice_ms / 1e3;
        let points: Vec<_> = points.map(|(slice, &(local, all))| (end_s(slice), local as f64 / all as f64)).collect();
        Ok(LocalCourse {
            name: format!("{} threads, pages {pages}", placement.name),
            points: from_its_begin(points, slice_ms),
        })
    };
    let homes = |placement: &Placement| match present {
        Some(present) => present.homes.to_vec(),
        None => known(first_touch(&trace.pages, &placement.nodes)),
    };
    let pages = if present.is_some() { "where they are" } else { "at first touch" };
    Ok(vec![
        of(pages, first, homes(first))?,
        of(pages, recommended, homes(recommended))?,
        of("on their best nodes", recommended, known(best(recommended)))?,
    ])
}

/// A point tells of the slice before it, so the first one is also the begin.
fn from_its_begin(points: Vec<(f64, f64)>, slice_ms: f64) -> Vec<(f64, f64)> {
    let begin = points.first().map(|&(end_s, value)| ((end_s - slice_ms / 1e3).max(0.0), value));
    begin.into_iter().chain(points).collect()
}

const BYTES_PER_MIB: f64 = (1 << 20) as f64;

/// Where the first touches of threads that are placed so put the memory.
fn memory_touched(trace: &Trace, placement: &Placement, machine: &Machine, slice_ms: f64) -> Result<Vec<LocalCourse>> {
    let nodes = machine.topology.len();
    let mut touched = vec![vec![0u64; nodes]; trace.slices.len()];
    trace.records(|_, process, record| {
        let first = record.pages.iter().filter(|page| page.2).count() as u64;
        touched[record.slice as usize - 1][placement.nodes[process.first_thread + record.thread]] += first;
    })?;
    let course = |node: usize| {
        let mut pages = 0;
        let point = |(slice, touched): (usize, &Vec<u64>)| {
            pages += touched[node];
            ((slice + 1) as f64 * slice_ms / 1e3, (pages * PAGE_BYTES) as f64 / BYTES_PER_MIB)
        };
        let points: Vec<_> = touched.iter().enumerate().map(point).collect();
        LocalCourse { name: node_name(machine, node), points: from_its_begin(points, slice_ms) }
    };
    Ok((0..nodes).map(course).collect())
}

/// Where the memory of a program that runs was.
fn memory_seen(running: &Running, machine: &Machine) -> Vec<LocalCourse> {
    let course = |node: usize| LocalCourse {
        name: node_name(machine, node),
        points: running.memory.iter().map(|(at_s, mib)| (*at_s, mib[node])).collect(),
    };
    (0..machine.topology.len()).map(course).collect()
}

fn node_name(machine: &Machine, node: usize) -> String {
    format!("node {}", machine.topology.nodes[NodeIndex(node)].id)
}

#[cfg(test)]
mod tests;
