// SPDX-License-Identifier: GPL-2.0-only
//! Profiles of programs that run: samples of their accesses, and where their threads and pages are.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use procfs::ProcError;
use procfs::process::{Process, Task};
use tandem_machine::read_running;
use tandem_policies::foreign::printable;
use tandem_policies::model::{CpuId, NodeId, PAGE_BYTES, ProcessId, Topology};
use tandem_profile::machine::Machine;
use tandem_profile::profile::{Profile, Running, Sampled};
use tandem_profile::samples::Samples;
use tandem_sense::{SamplerChoice, monotonic_ns};
use tandem_trace::Recorder;

use super::homes::{HOMES_EVERY, PageHomes};
use super::source::Source;
use crate::observe::observed;

/// What is behind a sample must be read while it is fresh.
const TICK: Duration = Duration::from_millis(20);

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// With what.
    pub sampler: SamplerChoice,
    /// CPU time for that, as a share of one CPU.
    pub budget: f64,
    /// Length of a slice.
    pub slice: Duration,
}

/// A process and its descendants, while they are sampled.
pub struct Watch {
    root: u32,
    machine: Machine,
    source: Source,
    slice_ns: u64,
    begin_ns: u64,
    looked_ns: u64,
    samples: Samples,
    threads: BTreeMap<(u32, u32), Seen>,
    homes: PageHomes,
    asked_ns: u64,
    memory: Vec<(f64, Vec<f64>)>,
}

/// What was seen of a thread.
struct Seen {
    name: String,
    cpu: CpuId,
    /// CPU time that it had used when the profile began.
    before_ns: u64,
}

impl Watch {
    /// Begins to sample the process `root` and its descendants, and to record what policies would see of them if there is
    /// a recorder.
    ///
    /// # Errors
    /// There is no such process, or the sampler cannot be used.
    pub fn open(root: u32, settings: &Settings, recorder: Option<&Recorder>) -> Result<Self> {
        let machine = Machine::running()?;
        let running = read_running().context("the machine's topology cannot be read")?;
        let source = Source::open(root, settings, &running, recorder)?;
        let (begin_ns, slice_ns) = (monotonic_ns(), settings.slice.as_nanos() as u64);
        let mut watch = Self {
            root,
            machine,
            source,
            slice_ns,
            begin_ns,
            looked_ns: begin_ns,
            samples: Samples::new(begin_ns, slice_ns),
            threads: BTreeMap::new(),
            homes: PageHomes::new(),
            asked_ns: begin_ns,
            memory: Vec::new(),
        };
        if !watch.look()? {
            bail!("process {root} has ended");
        }
        Ok(watch)
    }

    /// Samples until `over` says so, or all processes have ended.
    ///
    /// # Errors
    /// The sampler cannot go on, or what the kernel tells of the processes may not be read.
    pub fn run(&mut self, mut over: impl FnMut() -> Result<bool>) -> Result<()> {
        while !over()? {
            std::thread::sleep(TICK);
            self.sample()?;
            if monotonic_ns() >= self.asked_ns + HOMES_EVERY.as_nanos() as u64 {
                self.ask_homes();
            }
            if monotonic_ns() >= self.looked_ns + self.slice_ns && !self.look()? {
                return Ok(());
            }
        }
        self.ask_homes();
        self.look().map(drop)
    }

    fn ask_homes(&mut self) {
        self.asked_ns = monotonic_ns();
        self.homes.ask(&self.machine.topology.node_ids());
    }

    fn sample(&mut self) -> Result<()> {
        for access in self.source.sample()? {
            let (process, thread) = (access.process.0, (access.process.0, access.tid));
            self.samples.add(process, access.tid, access.time_ns, access.address);
            self.homes.accessed(process, access.address / PAGE_BYTES);
            let new = || Seen { name: access.tid.to_string(), cpu: access.cpu, before_ns: 0 };
            self.threads.entry(thread).or_insert_with(new).cpu = access.cpu;
        }
        Ok(())
    }

    /// Reads what the kernel tells of the processes; whether there is any left.
    fn look(&mut self) -> Result<bool> {
        let first = self.looked_ns == self.begin_ns && self.memory.is_empty();
        self.looked_ns = monotonic_ns();
        let processes = observed(Some(self.root))?;
        if processes.is_empty() {
            return Ok(false);
        }
        self.source.look(&processes.keys().map(|&pid| ProcessId(pid)).collect(), first)?;
        let mut mib = vec![0.0; self.machine.topology.len()];
        for (&pid, process) in &processes {
            // A process or thread that ends while it is read is left out.
            for task in process.tasks().into_iter().flatten().flatten() {
                self.look_at(pid, &task, first);
            }
            add_memory(process, &self.machine.topology, &mut mib)?;
        }
        self.memory.push(((self.looked_ns - self.begin_ns) as f64 * 1e-9, mib));
        Ok(true)
    }

    fn look_at(&mut self, pid: u32, task: &Task, first: bool) {
        let (Ok(stat), Ok(scheduled)) = (task.stat(), task.schedstat()) else { return };
        let (tid, ran_ns) = (task.tid as u32, scheduled.sum_exec_runtime);
        let cpu = CpuId(stat.processor.unwrap_or(0) as u32);
        let new = || Seen { name: String::new(), cpu, before_ns: if first { ran_ns } else { 0 } };
        let seen = self.threads.entry((pid, tid)).or_insert_with(new);
        seen.name = format!("{tid} ({})", printable(&stat.comm));
        seen.cpu = cpu;
        self.samples.ran(pid, tid, ran_ns.saturating_sub(seen.before_ns));
    }

    /// The profile of what was seen.
    ///
    /// # Errors
    /// Nothing was seen.
    pub fn profile(self, command: &[String]) -> Result<Profile> {
        if self.samples.count() == 0 {
            bail!(
                "no access was seen: process {} used too little CPU time; profile it longer, while it works",
                self.root
            );
        }
        let trace = self.samples.trace(self.looked_ns.max(self.begin_ns + 1))?;
        let threads: Vec<(u32, u32)> = self.samples.threads().collect();
        let node_of = |cpu| self.machine.topology.node_of(cpu).map_or(0, |index| index.0);
        let nodes: Vec<usize> = threads.iter().map(|thread| node_of(self.threads[thread].cpu)).collect();
        let homes = self.homes.of(&trace);
        let running = Running {
            sampler: Sampled { name: self.source.name().to_owned(), samples: self.samples.count() },
            names: threads.iter().map(|thread| self.threads[thread].name.clone()).collect(),
            nodes,
            homes,
            memory: self.memory,
        };
        Profile::of_running(&trace, command, &self.machine, &running)
    }
}

/// Adds the memory of a process to what is on each node, in MiB.
fn add_memory(process: &Process, topology: &Topology, mib: &mut [f64]) -> Result<()> {
    let mut text = String::new();
    let read = process
        .open_relative("numa_maps")
        .and_then(|mut file| Ok(std::io::Read::read_to_string(&mut file, &mut text)?));
    match read {
        Err(ProcError::NotFound(_)) => return Ok(()),
        // It ended between opening and reading.
        Err(ProcError::Io(error, _)) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        read => read.map(drop).with_context(|| format!("the memory of process {} cannot be read", process.pid))?,
    }
    for (node, kib) in text.lines().flat_map(kib_by_node) {
        if let Some(index) = topology.index_of(node) {
            mib[index.0] += kib as f64 / 1024.0;
        }
    }
    Ok(())
}

/// What a line of numa_maps says of each node.
fn kib_by_node(line: &str) -> Vec<(NodeId, u64)> {
    let page_kib = line.split(' ').find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
    let pages = |word: &str| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        Some((NodeId(node.parse().ok()?), pages.parse::<u64>().ok()? * page_kib?))
    };
    line.split(' ').filter_map(pages).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_pages_of_their_size() {
        let line = "7f0000000000 default anon=3 dirty=3 active=0 N0=1 N3=2 kernelpagesize_kB=2048";
        assert_eq!(kib_by_node(line), [(NodeId(0), 2048), (NodeId(3), 4096)]);
        assert_eq!(kib_by_node("7f00 default file=/lib/N0=7 mapped=1"), []);
    }

    #[test]
    fn the_memory_of_this_process_is_on_its_nodes() {
        let topology = read_running().unwrap().topology;
        let mut mib = vec![0.0; topology.len()];
        let data = vec![1u8; 8 << 20];
        add_memory(&Process::myself().unwrap(), &topology, &mut mib).unwrap();
        assert!(mib.iter().sum::<f64>() >= (data.len() >> 20) as f64, "{mib:?}");
    }
}
