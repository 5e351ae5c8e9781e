// SPDX-License-Identifier: GPL-2.0-only
//! Observing without a scheduler: the sampler of scx_tandem, and CPU time from /proc in the place of BPF's accounts.
//!
//! The time that a thread ran between two looks counts for the node of the CPU on which it was last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use procfs::process::{Process, StatFlags, Task, all_processes};
use tandem_machine::{parse_cpu_list, process_text, read_running, refresh_free_memory};
use tandem_policies::model::{CpuId, NodeIndex, PerNode, ProcessId, Snapshot, ThreadId, Topology};
use tandem_policies::stall::latency_ns;
use tandem_sense::{Access, Sensor, SensorConfig, TaskAccount, monotonic_ns};
use tandem_view::{Activity, SamplerView, Status, Survey, survey};

/// Share of one CPU per CPU of the machine that sampling may take, as in scx_tandem.
const BUDGET_PER_CPU: f64 = 0.01 / 8.0;
/// Time between two looks at the samples: what is behind a sample must be read while it is fresh.
const TICK: Duration = Duration::from_millis(20);

/// Watches all processes, or one with its descendants.
pub struct Observer {
    topology: Topology,
    sensor: Sensor,
    budget: f64,
    tree: Option<u32>,
    ran_ns: BTreeMap<ThreadId, u64>,
    looked_ns: u64,
    opened_ns: u64,
    looks: u64,
}

impl Observer {
    /// Begins to observe all processes, or the process `tree` and its descendants.
    ///
    /// # Errors
    /// The sampler cannot be used, or there is no such process.
    pub fn open(tree: Option<u32>) -> Result<Self> {
        // Said alone: it has nothing to do with whether a scx_tandem answers.
        tree.map_or(Ok(()), can_be_observed)?;
        let cpus = tandem_machine::online_cpus().context("the machine's CPUs cannot be read")?;
        let config = SensorConfig { budget: BUDGET_PER_CPU * cpus.len() as f64, ..SensorConfig::default() };
        Self::open_with(tree, config).context("no scx_tandem answers, and the sampler cannot be used to observe alone")
    }

    /// The same, sensing as `config` says.
    ///
    /// # Errors
    /// The sampler cannot be used, or there is no such process.
    pub fn open_with(tree: Option<u32>, config: SensorConfig) -> Result<Self> {
        tree.map_or(Ok(()), can_be_observed)?;
        let topology = read_running().context("the machine's topology cannot be read")?.topology;
        let cpus: Vec<CpuId> = topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
        let (budget, sensor) = (config.budget, Sensor::open(config, &topology, &cpus)?);
        let now_ns = monotonic_ns();
        let ran_ns = BTreeMap::new();
        let mut observer =
            Self { topology, sensor, budget, tree, ran_ns, looked_ns: now_ns, opened_ns: now_ns, looks: 0 };
        observer.accounts()?;
        Ok(observer)
    }

    /// Takes in what the sampler saw, and tells it. Call often.
    ///
    /// # Errors
    /// The sampler cannot go on.
    pub fn sample(&mut self) -> Result<&[Access]> {
        self.sensor.sample(monotonic_ns())?;
        Ok(self.sensor.fresh())
    }

    /// What sees the accesses.
    pub fn sampler(&self) -> &'static str {
        self.sensor.name()
    }

    /// Observes for `duration`.
    ///
    /// # Errors
    /// The sampler cannot go on.
    pub fn observe(&mut self, duration: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < duration {
            std::thread::sleep(TICK.min(duration.saturating_sub(start.elapsed())));
            self.sample()?;
        }
        Ok(())
    }

    /// What was seen since the last look, as policies want it.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let accounts = self.accounts()?;
        refresh_free_memory(&mut self.topology, None)?;
        let (start_ns, now_ns) = (self.looked_ns, monotonic_ns());
        self.looked_ns = now_ns;
        self.looks += 1;
        Ok(self.sensor.snapshot(&self.topology, accounts, start_ns, now_ns, |_, _| None))
    }

    /// The same, as it is shown.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn look(&mut self) -> Result<Status> {
        let start_ns = self.looked_ns;
        let snapshot = self.snapshot()?;
        let now_ns = self.looked_ns;
        let Survey { nodes, processes, threads, local_share, rates } = survey(&snapshot);
        let busy = || threads.iter().filter(|thread| thread.load_cpus >= 0.01);
        let cost_ns = self.sensor.counters().cost_ns() as f64;
        let sampler = SamplerView {
            name: self.sensor.name().to_owned(),
            rates,
            budget_percent: self.budget * 100.0,
            used_percent: cost_ns / (now_ns - self.opened_ns).max(1) as f64 * 100.0,
            busy_threads: busy().count() as u64,
            covered_threads: busy().filter(|thread| thread.local_share.0.is_some()).count() as u64,
            groups: snapshot.groups.len() as u64,
            group_bytes: self.sensor.group_bytes() as u64,
        };
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time_ns: now_ns,
            loaded_at_ns: self.opened_ns,
            interval_ns: now_ns - start_ns,
            mode: "observing".to_owned(),
            thread_policy: "none".to_owned(),
            page_policy: "none".to_owned(),
            local_share,
            latency_ns: latency_ns(&snapshot).into(),
            sampler,
            activity: Activity { intervals: self.looks, ..Activity::default() },
            nodes,
            processes,
            threads,
            ..Status::default()
        })
    }

    /// What every observed thread ran since the last call; tells the sampler whom to watch.
    fn accounts(&mut self) -> Result<Vec<TaskAccount>> {
        let processes = observed(self.tree)?;
        self.sensor.set_managed(processes.keys().map(|&pid| ProcessId(pid)).collect());
        let mut ran_ns = BTreeMap::new();
        let mut accounts = Vec::new();
        for (pid, process) in processes {
            // A process or thread that ends while it is read is left out.
            let Ok(tasks) = process.tasks() else { continue };
            for task in tasks.flatten() {
                if let Some((account, total_ns)) = self.account(pid, &task) {
                    ran_ns.insert(account.id, total_ns);
                    accounts.push(account);
                }
            }
        }
        self.ran_ns = ran_ns;
        accounts.sort_by_key(|account| account.id);
        Ok(accounts)
    }

    fn account(&self, pid: u32, task: &Task) -> Option<(TaskAccount, u64)> {
        let stat = task.stat().ok()?;
        let total_ns = task.schedstat().ok()?.sum_exec_runtime;
        let ticks_ns = 1_000_000_000 / procfs::ticks_per_second();
        let id = ThreadId { tid: task.tid as u32, start_boottime_ns: stat.starttime * ticks_ns };
        let cpu = CpuId(stat.processor? as u32);
        let node = self.topology.node_of(cpu)?;
        let ran_ns = self.ran_ns.get(&id).map_or(0, |before| total_ns.saturating_sub(*before));
        let account = TaskAccount {
            id,
            process: ProcessId(pid),
            cgroup: None,
            command: stat.comm,
            node,
            cpu,
            allowed: self.allowed(pid, task.tid),
            run_ns: PerNode::from_fn(self.topology.len(), |at| if at == node { ran_ns } else { 0 }),
            on_cooldown: false,
            woken_by: None,
        };
        Some((account, total_ns))
    }

    fn allowed(&self, pid: u32, tid: i32) -> PerNode<bool> {
        let status = process_text(Path::new(&format!("/proc/{pid}/task/{tid}/status"))).unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let cpus: BTreeSet<u32> = parse_cpu_list(list.trim()).unwrap_or_default().into_iter().collect();
        let on = |node: NodeIndex| self.topology.nodes[node].cpus.iter().any(|cpu| cpus.contains(&cpu.0));
        PerNode::from_fn(self.topology.len(), on)
    }
}

/// The processes to observe: no kernel threads, and not this one; all, or `tree` and its descendants.
///
/// # Errors
/// /proc cannot be read.
pub fn observed(tree: Option<u32>) -> Result<BTreeMap<u32, Process>> {
    let mut parents = BTreeMap::new();
    let mut processes = BTreeMap::new();
    for process in all_processes().context("/proc cannot be read")?.flatten() {
        let Ok(stat) = process.stat() else { continue };
        let is_kernels = StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD);
        parents.insert(stat.pid as u32, stat.ppid as u32);
        if !is_kernels && stat.pid as u32 != std::process::id() {
            processes.insert(stat.pid as u32, process);
        }
    }
    if let Some(root) = tree {
        processes.retain(|&pid, _| is_below(&parents, pid, root));
    }
    Ok(processes)
}

/// Whether there is a process `pid` that can be observed.
///
/// # Errors
/// There is none, or what has this number is none, in a sentence.
pub fn can_be_observed(pid: u32) -> Result<()> {
    let status = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).and_then(|process| process.status()).ok());
    let Some(status) = status else { bail!("there is no process {pid}") };
    if status.tgid as u32 != pid {
        bail!("{pid} is a thread of process {}: give that", status.tgid);
    }
    if pid == std::process::id() {
        bail!("process {pid} is this tandem: give another one");
    }
    // Only what has memory of its own has a size.
    if status.vmsize.is_none() && status.state.starts_with('Z') {
        bail!("process {pid} has ended, and its parent has not asked how yet");
    }
    if status.vmsize.is_none() {
        bail!("process {pid} is a thread of the kernel, which has no memory of its own: give a program");
    }
    Ok(())
}

fn is_below(parents: &BTreeMap<u32, u32>, mut pid: u32, root: u32) -> bool {
    // Parents are read one after the other, so that they may form a circle: never go round in it.
    for _ in 0..=parents.len() {
        if pid == root {
            return true;
        }
        match parents.get(&pid) {
            Some(&parent) => pid = parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_and_circles_end() {
        let parents = BTreeMap::from([(11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        assert!([10, 11, 12].iter().all(|&pid| is_below(&parents, pid, 10)));
        assert!(!is_below(&parents, 20, 10) && !is_below(&parents, 30, 10));
    }

    #[test]
    fn what_cannot_be_observed_is_called_what_it_is() {
        let why = |pid: u32| can_be_observed(pid).unwrap_err().to_string();
        assert_eq!(why(4_194_305), "there is no process 4194305");
        assert_eq!(why(u32::MAX), "there is no process 4294967295");
        let own = std::process::id();
        assert!(why(own).contains("is this tandem"));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid has no preconditions and cannot fail.
            tell.send(unsafe { libc::gettid() } as u32).unwrap();
            ended.recv()
        });
        let tid = told.recv().unwrap();
        assert_eq!(why(tid), format!("{tid} is a thread of process {own}: give that"));
        drop(end);
        assert!(thread.join().unwrap().is_err());
        assert!(can_be_observed(std::os::unix::process::parent_id()).is_ok());
        // In a namespace of its own there may be none.
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert!(why(2).contains("process 2 is a thread of the kernel"), "{}", why(2));
        }
    }

    #[test]
    fn the_parent_of_this_process_is_observed_and_this_one_is_not() {
        let all = observed(None).unwrap();
        assert!(!all.contains_key(&std::process::id()));
        let parent = std::os::unix::process::parent_id();
        assert!(all.contains_key(&parent));
        assert!(observed(Some(parent)).unwrap().contains_key(&parent));
    }
}
