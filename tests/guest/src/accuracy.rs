// SPDX-License-Identifier: GPL-2.0-only
//! What samplers say of a program beside what is true, in a guest of the timing lab: a line of JSON an interval.
//!
//! The truth are samples of the lab's ring (of one miss in 64, at most 10000 a second and CPU), each joined with the thread
//! that ran on its CPU then; the samplers see what they see when they are chosen. `tests/accuracy.py` starts this and compares.
//!
//! It ends after so many seconds, or with the program.
//!
//! usage: sampler-accuracy COMMAND_NAME SECONDS SAMPLER[:unfiltered][=PERCENT_OF_A_CPU]...

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use procfs::process::{Task, all_processes};
use serde::Serialize;
use tandem_machine::read_running;
use tandem_policies::model::{CpuId, PAGE_BYTES, PerNode, ProcessId, Snapshot, ThreadId, Topology};
use tandem_sense::affinity::GROUP_BYTES;
use tandem_sense::{
    Access, Device, DeviceConfig, DeviceCounters, LookaheadConfig, Sampler, SamplerChoice, SamplerCounters,
    SamplerKind, Sensor, SensorConfig, TaskAccount, monotonic_ns,
};

/// What the truth is made of. All there is in the ring would keep this program from anything else, the samplers too.
const TRUTH_HZ: u64 = 10_000;
/// Misses for each in the ring.
const MISSES: f64 = 64.0;
const TICK: Duration = Duration::from_millis(10);
const INTERVAL_NS: u64 = 500_000_000;
/// As scx_tandem: 1 % of one CPU for every 8 CPUs.
const BUDGET_PER_CPU: f64 = 0.01 / 8.0;

/// Accesses of each thread, by node of the memory.
type ByThread = BTreeMap<u32, Vec<f64>>;
/// Accesses to each 2 MiB of each process, by node of the CPU: process, first byte, accesses.
type Groups = Vec<(u32, u64, Vec<f64>)>;

/// What somebody knows of an interval. Sharing is that of pairs of threads, the lower one first.
#[derive(Default, Serialize)]
struct Picture {
    threads: ByThread,
    groups: Groups,
    sharing: Vec<(u32, u32, f64)>,
    /// CPU time that it took since the start, and what else it counted.
    cost_ns: u64,
    counters: SamplerCounters,
    /// Samples that were overwritten before they were read, since the start.
    overrun: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Since the first interval began.
    time_s: f64,
    truth: Picture,
    /// What was counted of the program since it was first seen.
    counted: DeviceCounters,
    samplers: BTreeMap<&'a str, Picture>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, seconds, names @ ..] = &arguments[..] else {
        return Err("usage: sampler-accuracy COMMAND_NAME SECONDS SAMPLER[:unfiltered][=PERCENT_OF_A_CPU]...".into());
    };
    let topology = read_running()?.topology;
    let cpus: Vec<CpuId> = topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let mut truth = Truth::open(&topology, &cpus)?;
    let mut sensors = Vec::new();
    for name in names {
        let config = config_of(name, BUDGET_PER_CPU * cpus.len() as f64)?;
        sensors.push((name.as_str(), Sensor::open(config, &topology, &cpus)?));
    }
    let mut accounts = Accounts { command, topology: &topology, ran_ns: BTreeMap::new() };
    let begun_ns = monotonic_ns();
    let mut start_ns = begun_ns;
    accounts.read()?;
    while start_ns < begun_ns + seconds.parse::<u64>()? * 1_000_000_000 {
        while monotonic_ns() < start_ns + INTERVAL_NS {
            std::thread::sleep(TICK);
            truth.take()?;
            for (_, sensor) in &mut sensors {
                sensor.sample(monotonic_ns())?;
            }
        }
        let tasks = accounts.read()?;
        if tasks.is_empty() {
            break;
        }
        let managed: BTreeSet<ProcessId> = tasks.iter().map(|task| task.process).collect();
        truth.device.set_managed(&managed);
        let now_ns = monotonic_ns();
        let mut samplers = BTreeMap::new();
        for (name, sensor) in &mut sensors {
            sensor.set_managed(managed.clone());
            let snapshot = sensor.snapshot(&topology, tasks.clone(), start_ns, now_ns, |_, _| None);
            let counters = sensor.counters();
            samplers.insert(*name, Picture { cost_ns: counters.cost_ns(), counters, ..seen(&snapshot) });
        }
        let counted = *truth.device.counters();
        let line = Line { time_s: (now_ns - begun_ns) as f64 * 1e-9, truth: truth.picture(), counted, samplers };
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&line)?)?;
        start_ns = now_ns;
    }
    Ok(())
}

/// What a name on the command line stands for; with a budget of `usual`, a share of a CPU, if it has none of its own.
fn config_of(name: &str, usual: f64) -> Result<SensorConfig, Box<dyn Error>> {
    let (sampler, percent) = name.split_once('=').map_or((name, None), |(name, percent)| (name, Some(percent)));
    let (sampler, cache_filter) = sampler.strip_suffix(":unfiltered").map_or((sampler, true), |name| (name, false));
    let budget = percent.map_or(Ok(usual), |percent| percent.parse().map(|percent: f64| percent / 100.0))?;
    let lookahead = LookaheadConfig { cache_filter, ..LookaheadConfig::default() };
    Ok(SensorConfig { sampler: SamplerChoice::Named(kind(sampler)?), budget, lookahead, ..SensorConfig::default() })
}

fn kind(name: &str) -> Result<SamplerKind, String> {
    let kinds = [SamplerKind::Lookahead, SamplerKind::Pmu, SamplerKind::Device, SamplerKind::Fault];
    kinds.into_iter().find(|kind| kind.to_string() == name).ok_or_else(|| format!("there is no sampler {name}"))
}

/// What a snapshot says.
fn seen(snapshot: &Snapshot) -> Picture {
    let row = |row: &PerNode<f64>| row.values().copied().collect::<Vec<f64>>();
    let threads = snapshot.threads.iter();
    let pairs = threads.clone().flat_map(|thread| {
        let later = thread.sharing.iter().filter(|(other, _)| other.tid > thread.id.tid);
        later.map(|(other, shared)| (thread.id.tid, other.tid, *shared))
    });
    Picture {
        sharing: pairs.collect(),
        threads: threads.filter_map(|thread| Some((thread.id.tid, row(thread.accesses_per_s.as_ref()?)))).collect(),
        groups: snapshot
            .groups
            .iter()
            .map(|group| (group.id.process.0, group.id.start / GROUP_BYTES * GROUP_BYTES, row(&group.accesses_per_s)))
            .collect(),
        ..Picture::default()
    }
}

/// The whole ring.
struct Truth<'a> {
    device: Device,
    topology: &'a Topology,
    threads: ByThread,
    groups: BTreeMap<(u32, u64), Vec<f64>>,
    /// By process and page: accesses of each thread.
    pages: BTreeMap<(u32, u64), BTreeMap<u32, f64>>,
}

impl<'a> Truth<'a> {
    fn open(topology: &'a Topology, cpus: &[CpuId]) -> Result<Self, Box<dyn Error>> {
        let device = Device::open(DeviceConfig { frequency_hz: TRUTH_HZ }, cpus)?;
        Ok(Self { device, topology, threads: ByThread::new(), groups: BTreeMap::new(), pages: BTreeMap::new() })
    }

    fn take(&mut self) -> Result<(), Box<dyn Error>> {
        for access in self.device.drain(monotonic_ns())?.accesses {
            self.add(&access);
        }
        Ok(())
    }

    fn add(&mut self, access: &Access) {
        let (process, nodes) = (access.process.0, self.topology.len());
        // Those that were left out are in the period.
        let weight = access.measured.map_or(0.0, |measured| measured.period as f64 / MISSES);
        let memory = access.measured.and_then(|measured| self.topology.index_of(measured.node?));
        let (Some(memory), Some(run)) = (memory, self.topology.node_of(access.cpu)) else { return };
        self.threads.entry(access.tid).or_insert_with(|| vec![0.0; nodes])[memory.0] += weight;
        let group = access.address / GROUP_BYTES * GROUP_BYTES;
        self.groups.entry((process, group)).or_insert_with(|| vec![0.0; nodes])[run.0] += weight;
        let page = self.pages.entry((process, access.address / PAGE_BYTES)).or_default();
        *page.entry(access.tid).or_default() += weight;
    }

    /// What was true since the last call.
    fn picture(&mut self) -> Picture {
        let mut sharing: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for users in std::mem::take(&mut self.pages).values() {
            for (one, accesses) in users {
                for (other, others) in users.range(one + 1..) {
                    *sharing.entry((*one, *other)).or_default() += accesses.min(*others);
                }
            }
        }
        let counters = self.device.counters();
        Picture {
            threads: std::mem::take(&mut self.threads),
            groups: std::mem::take(&mut self.groups).into_iter().map(|((pid, start), row)| (pid, start, row)).collect(),
            sharing: sharing.into_iter().map(|((one, other), shared)| (one, other, shared)).collect(),
            cost_ns: counters.cost_ns,
            counters: SamplerCounters::Device(*counters),
            overrun: counters.overrun,
        }
    }
}

/// What the threads of all processes of a name ran.
struct Accounts<'a> {
    command: &'a str,
    topology: &'a Topology,
    ran_ns: BTreeMap<ThreadId, u64>,
}

impl Accounts<'_> {
    fn read(&mut self) -> Result<Vec<TaskAccount>, Box<dyn Error>> {
        let mut accounts = Vec::new();
        // A process or thread that ends while it is read is left out.
        for process in all_processes()?.flatten() {
            if process.stat().is_ok_and(|stat| stat.comm == self.command) {
                let tasks = process.tasks().into_iter().flatten().flatten();
                accounts.extend(tasks.filter_map(|task| self.account(process.pid as u32, &task)));
            }
        }
        accounts.sort_by_key(|account| account.id);
        Ok(accounts)
    }

    fn account(&mut self, pid: u32, task: &Task) -> Option<TaskAccount> {
        let stat = task.stat().ok()?;
        let total_ns = task.schedstat().ok()?.sum_exec_runtime;
        let id = ThreadId { tid: task.tid as u32, start_boottime_ns: stat.starttime };
        let cpu = CpuId(stat.processor? as u32);
        let node = self.topology.node_of(cpu)?;
        let ran_ns = total_ns - self.ran_ns.insert(id, total_ns).unwrap_or(total_ns).min(total_ns);
        Some(TaskAccount {
            id,
            process: ProcessId(pid),
            cgroup: None,
            command: stat.comm,
            node,
            cpu,
            allowed: PerNode::filled(self.topology.len(), true),
            run_ns: PerNode::from_fn(self.topology.len(), |at| if at == node { ran_ns } else { 0 }),
            on_cooldown: false,
            woken_by: None,
        })
    }
}
