// SPDX-License-Identifier: GPL-2.0-only
//! Snapshots of a run, in the shape in which policies get them from a real machine.
//!
//! A sampler sees a share of the accesses that reach memory: each thread gives [`SenseSettings::samples_per_s`] samples a
//! second of CPU time, which fall on page groups by chance (Poisson), halve every 3 s, and are forgotten when faint, as
//! `tandem-sense` has it. With 0 samples every access is counted, without chance. Counters (operations, cycles, transfers,
//! latencies) are exact. P = O x I / L of the Thanos thesis is remembered by node and faded (eqs. 3.6, 3.7).

use rand_core::SeedableRng;
use rand_distr::{Distribution, Poisson};
use rand_pcg::Pcg64;
use tandem_machine::LINE_BYTES;
use tandem_policies::model::{
    GroupId, MemoryLines, NodeIndex, NodeLoad, PageGroup, PerNode, ProcessId, Snapshot, Thread, ThreadId, Transfers,
    Unmovable,
};

use crate::rates::Target;
use crate::sim::{Sim, Status, add};

/// Time in which a sample loses half its weight.
const HALF_LIFE_NS: f64 = 3e9;
/// Weights below this are forgotten.
const FAINTEST: f64 = 0.01;
/// Users of a group that a snapshot names, and threads per group between which sharing is looked for.
const TOP_USERS: usize = 8;
/// Weight below which a thread counts as one without a signal.
const MIN_SAMPLES: f64 = 24.0;
/// Cycles of a core in one ns, as the kernel's instructions in the lab.
const CYCLES_PER_NS: f64 = 3.2;
/// Ids of the first thread and the first process.
const FIRST_TID: u32 = 1000;
const FIRST_PROCESS: u32 = 100;

/// How much is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SenseSettings {
    /// Samples of each thread in a second of its CPU time; 0: every access.
    pub samples_per_s: f64,
}

/// The id under which policies know a thread.
pub fn thread_id(thread: usize) -> ThreadId {
    ThreadId { tid: FIRST_TID + thread as u32, start_boottime_ns: 1 }
}

/// The thread of an id.
pub fn thread_of(id: ThreadId) -> usize {
    (id.tid - FIRST_TID) as usize
}

/// The id under which policies know a page group.
pub fn group_id(sim: &Sim, region: usize, group: usize) -> GroupId {
    let spec = &sim.world.regions[region];
    let start = spec.start + group as u64 * spec.group_pages * tandem_policies::model::PAGE_BYTES;
    GroupId { process: ProcessId(FIRST_PROCESS + spec.program as u32), start }
}

/// The region and group of an id; `None` if there is no such group.
pub fn group_of(sim: &Sim, id: GroupId) -> Option<(usize, usize)> {
    let program = sim.world.programs.get((id.process.0 - FIRST_PROCESS) as usize)?;
    let regions = &sim.world.regions[program.regions.clone()];
    let at = regions.partition_point(|region| region.start <= id.start).checked_sub(1)?;
    let group_bytes = regions[at].group_pages * tandem_policies::model::PAGE_BYTES;
    let group = ((id.start - regions[at].start) / group_bytes) as usize;
    (group < regions[at].groups()).then_some((program.regions.start + at, group))
}

/// What is remembered of a thread.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Aged weight of its samples, and accesses per second that a weight of 1 stands for.
    weight: f64,
    scale: f64,
    /// P by node, with the time it was seen.
    performance: Vec<(usize, f64, f64)>,
}

/// The sampler, and what it remembers.
pub struct Sensor {
    settings: SenseSettings,
    random: Pcg64,
    seed: u64,
    threads: Vec<Seen>,
    /// By region and group: aged weights by thread.
    groups: Vec<Vec<Vec<(usize, f64)>>>,
}

impl Sensor {
    /// Nothing seen.
    pub fn new(sim: &Sim, settings: SenseSettings, seed: u64) -> Self {
        Self {
            settings,
            random: Pcg64::seed_from_u64(seed),
            seed,
            threads: vec![Seen::default(); sim.world.threads.len()],
            groups: vec![Vec::new(); sim.world.regions.len()],
        }
    }

    /// The snapshot of the interval that ends now; `cooling` tells which threads and groups rest.
    pub fn snapshot(
        &mut self,
        sim: &Sim,
        interval_ns: f64,
        thread_cools: impl Fn(usize) -> bool,
        group_cools: impl Fn(usize, usize) -> bool,
    ) -> Snapshot {
        self.age(sim, interval_ns);
        self.sample(sim, interval_ns);
        let (groups, mut accesses) = self.page_groups(sim, group_cools);
        let mut sharing = self.sharing(sim);
        let threads = sim.active.iter().enumerate().map(|(at, &thread)| {
            let row = std::mem::take(&mut accesses[thread]);
            let shared = std::mem::take(&mut sharing[thread]);
            self.thread(sim, at, interval_ns, row, shared, thread_cools(thread))
        });
        let threads: Vec<Thread> = threads.collect();
        let mut topology = sim.machine.topology.clone();
        let mut nodes = Vec::new();
        for node in 0..sim.machine.nodes() {
            topology.nodes[NodeIndex(node)].free_pages = sim.free_pages[node].max(0.0) as u64;
            let busy_ns = threads.iter().map(|thread| thread.run_ns[NodeIndex(node)]).sum();
            let served_latency_ns = sim.rates.served_ns(sim.machine, node);
            nodes.push(NodeLoad { busy_ns, served_latency_ns, ..NodeLoad::default() });
        }
        Snapshot {
            time_ns: sim.now_ns as u64,
            interval_ns: interval_ns as u64,
            topology,
            threads,
            groups,
            nodes: nodes.into(),
            process_memory: std::collections::BTreeMap::new(),
            page_move_ns: None,
            huge_page_move_ns: None,
            realised_share: None,
            access_rates: None,
        }
    }

    /// Lets all weights age, and forgets what is gone.
    fn age(&mut self, sim: &Sim, interval_ns: f64) {
        let factor = libm::exp2(-interval_ns / HALF_LIFE_NS);
        let is_active = |thread: usize| sim.threads[thread].status == Status::Active;
        for (region, groups) in self.groups.iter_mut().enumerate() {
            groups.resize(sim.regions[region].groups.len(), Vec::new());
            for users in groups {
                users.retain_mut(|(thread, weight)| {
                    *weight *= factor;
                    *weight >= FAINTEST && is_active(*thread)
                });
            }
        }
        self.threads.iter_mut().for_each(|seen| seen.weight *= factor);
    }

    /// Draws the interval's samples.
    fn sample(&mut self, sim: &Sim, interval_ns: f64) {
        for &thread in &sim.active {
            let mut to: Vec<(usize, f64)> = Vec::new();
            for &(phase, accesses) in &sim.threads[thread].recent {
                for one in &sim.world.threads[thread].phases[phase].uses {
                    if let Target::Memory { region, miss, .. } = one.target {
                        add(&mut to, region, accesses * one.share * miss);
                    }
                }
            }
            let all: f64 = to.iter().map(|entry| entry.1).sum();
            if all <= 0.0 {
                continue;
            }
            let ran_ns: f64 = sim.threads[thread].ran_ns.iter().map(|entry| entry.1).sum();
            let samples = self.settings.samples_per_s * ran_ns * 1e-9;
            for (region, accesses) in to {
                let expected = if samples > 0.0 { accesses / all * samples } else { accesses };
                self.add_samples(sim, thread, region, expected, samples > 0.0);
            }
            let seen = &mut self.threads[thread];
            seen.scale = if seen.weight > 0.0 { all / (interval_ns * 1e-9) / seen.weight } else { 0.0 };
        }
    }

    fn add_samples(&mut self, sim: &Sim, thread: usize, region: usize, expected: f64, by_chance: bool) {
        let spec = &sim.world.regions[region];
        for group in 0..self.groups[region].len() {
            let mean = expected * spec.pages_of_group(group) as f64 / spec.pages as f64;
            let drawn = match Poisson::new(mean) {
                Ok(poisson) if by_chance => poisson.sample(&mut self.random),
                _ => mean,
            };
            if drawn > 0.0 {
                add(&mut self.groups[region][group], thread, drawn);
                self.threads[thread].weight += drawn;
            }
        }
    }

    /// The groups, and the threads' accesses per second by node of the memory.
    fn page_groups(&self, sim: &Sim, cools: impl Fn(usize, usize) -> bool) -> (Vec<PageGroup>, Vec<Vec<f64>>) {
        let nodes = sim.machine.nodes();
        let mut accesses = vec![Vec::new(); sim.threads.len()];
        sim.active.iter().for_each(|&thread| accesses[thread] = vec![0.0; nodes]);
        let mut groups = Vec::new();
        for (region, seen) in self.groups.iter().enumerate() {
            for (group, users) in seen.iter().enumerate().filter(|(_, users)| !users.is_empty()) {
                let on = &sim.regions[region].groups[group];
                let pages: f64 = on.iter().map(|entry| entry.1).sum();
                let mut by_node = PerNode::filled(nodes, 0.0);
                let (mut all, mut stall) = (0.0, 0.0);
                let mut rates: Vec<(usize, f64)> = Vec::new();
                for &(thread, weight) in users {
                    let (per_s, node) = (weight * self.threads[thread].scale, sim.threads[thread].node);
                    rates.push((thread, per_s));
                    by_node[NodeIndex(node)] += per_s;
                    for &(memory, here) in on {
                        accesses[thread][memory] += per_s * here / pages;
                        stall += per_s * here / pages * sim.rates.line_ns(sim.machine, node, memory);
                    }
                    all += per_s;
                }
                rates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                rates.truncate(TOP_USERS);
                rates.sort_by_key(|user| user.0);
                let resident = |node: NodeIndex| {
                    on.iter().find(|entry| entry.0 == node.0).map_or(0, |entry| libm::round(entry.1) as u64)
                };
                groups.push(PageGroup {
                    id: group_id(sim, region, group),
                    bytes: sim.world.regions[region].pages_of_group(group) * tandem_policies::model::PAGE_BYTES,
                    resident_pages: PerNode::from_fn(nodes, resident),
                    huge: false,
                    accesses_per_s: by_node,
                    users: rates.into_iter().map(|(thread, per_s)| (thread_id(thread), per_s)).collect(),
                    samples: users.iter().map(|user| user.1).sum(),
                    latency_ns: (all > 0.0).then(|| stall / all),
                    unmovable: cools(region, group).then_some(Unmovable::Cooldown),
                });
            }
        }
        (groups, accesses)
    }

    /// What threads share, each row ascending: for a group the lesser of two threads' rates on it, among up to
    /// [`TOP_USERS`] of its threads; for a set of lines the same.
    fn sharing(&self, sim: &Sim) -> Vec<Vec<(usize, f64)>> {
        let mut rows: Vec<std::collections::BTreeMap<usize, f64>> = vec![Default::default(); sim.threads.len()];
        let mut share = |users: &[(usize, f64)]| {
            for (at, &(first, a)) in users.iter().enumerate() {
                for &(second, b) in &users[at + 1..] {
                    *rows[first].entry(second).or_default() += a.min(b);
                    *rows[second].entry(first).or_default() += a.min(b);
                }
            }
        };
        for (region, groups) in self.groups.iter().enumerate() {
            for (group, users) in groups.iter().enumerate().filter(|(_, users)| users.len() > 1) {
                let mut rates: Vec<(usize, f64)> =
                    users.iter().map(|&(thread, weight)| (thread, weight * self.threads[thread].scale)).collect();
                self.choose(&mut rates, (region as u64) << 32 | group as u64);
                share(&rates);
            }
        }
        for (set, mut users) in line_users(sim).into_iter().enumerate() {
            self.choose(&mut users, u64::MAX - set as u64);
            share(&users);
        }
        rows.into_iter().map(|row| row.into_iter().collect()).collect()
    }

    /// Of many users some, always the same.
    fn choose(&self, users: &mut Vec<(usize, f64)>, of: u64) {
        if users.len() > TOP_USERS {
            users.sort_by_key(|user| (mix(self.seed ^ mix(of ^ mix(user.0 as u64))), user.0));
            users.truncate(TOP_USERS);
        }
    }

    fn thread(
        &mut self,
        sim: &Sim,
        at: usize,
        interval_ns: f64,
        row: Vec<f64>,
        sharing: Vec<(usize, f64)>,
        on_cooldown: bool,
    ) -> Thread {
        let thread = sim.active[at];
        let (state, spec, nodes) = (&sim.threads[thread], &sim.world.threads[thread], sim.machine.nodes());
        let ran = |node: NodeIndex| state.ran_ns.iter().find(|entry| entry.0 == node.0).map_or(0.0, |entry| entry.1);
        let cpu_time_ns: f64 = state.ran_ns.iter().map(|entry| entry.1).sum();
        let accesses: f64 = state.recent.iter().map(|entry| entry.1).sum();
        let operations_per_s = accesses * (1.0 + spec.compute_ns / sim.machine.instruction_ns) / (interval_ns * 1e-9);
        let latency_ns = latency_ns(sim, thread);
        let memory_per_s: f64 = row.iter().sum();
        if let Some(latency_ns) = latency_ns
            && ran(NodeIndex(state.node)) * 2.0 > cpu_time_ns
            && memory_per_s > 0.0
        {
            let intensity = operations_per_s / (memory_per_s * LINE_BYTES as f64);
            let seen = &mut self.threads[thread].performance;
            seen.retain(|entry| entry.0 != state.node);
            seen.push((state.node, operations_per_s * intensity / latency_ns, sim.now_ns));
        }
        let remembered = |node: NodeIndex| {
            let (_, performance, seen_ns) = self.threads[thread].performance.iter().find(|entry| entry.0 == node.0)?;
            Some(performance * fading((sim.now_ns - seen_ns) * 1e-9)).filter(|performance| *performance > 0.0)
        };
        let known = self.threads[thread].weight >= MIN_SAMPLES && memory_per_s > 0.0;
        let node = state.lease.unwrap_or(state.node);
        let cpus = &sim.machine.topology.nodes[NodeIndex(state.node)].cpus;
        Thread {
            id: thread_id(thread),
            process: ProcessId(FIRST_PROCESS + spec.program as u32),
            cgroup: None,
            command: sim.world.programs[spec.program].name.clone(),
            node: NodeIndex(node),
            cpu: cpus[state.cpu.min(cpus.len() - 1)],
            allowed: PerNode::from_fn(nodes, |node| sim.machine.cpus(node.0) > 0),
            cpu_time_ns: cpu_time_ns as u64,
            run_ns: PerNode::from_fn(nodes, |node| ran(node) as u64),
            accesses_per_s: known.then(|| row.into()),
            latency_ns,
            operations_per_s: Some(operations_per_s),
            cycles_per_s: Some(cpu_time_ns * CYCLES_PER_NS / (interval_ns * 1e-9)),
            transfers_per_s: Some(transfers(sim, at)),
            memory_lines_per_s: MemoryLines::default(),
            performance: PerNode::from_fn(nodes, remembered),
            sharing: sharing.into_iter().map(|(other, per_s)| (thread_id(other), per_s)).collect(),
            on_cooldown,
            turned_ns: None,
            in_step_ns: None,
            woken_by: None,
        }
    }
}

/// f(t) of eq. 3.7 with p = 3, d = 30; 1 below one second, 0 when faint.
fn fading(age_s: f64) -> f64 {
    let faded = if age_s < 1.0 { 1.0 } else { libm::exp(-age_s * age_s * age_s / 30.0) };
    if faded < 1e-3 { 0.0 } else { faded }
}

/// Mean latency of what of a thread's accesses reaches memory, at the present speeds; `None` if nothing does.
fn latency_ns(sim: &Sim, thread: usize) -> Option<f64> {
    let of = |one: &crate::rates::Use| match one.target {
        Target::Memory { region, miss, .. } => {
            let latency_ns = sim.rates.latency_ns(sim.machine, sim.threads[thread].node, &sim.spreads[region]);
            (one.share * miss, one.share * miss * latency_ns)
        }
        Target::Lines { .. } => (0.0, 0.0),
    };
    let (all, stall) = sim.uses(thread).iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (all > 0.0).then(|| stall / all)
}

/// Lines per second that an active thread gets from other cores' caches, at the present speeds.
fn transfers(sim: &Sim, at: usize) -> Transfers {
    let mut transfers = Transfers::default();
    let (thread, speed) = (sim.active[at], sim.rates.accesses_per_ns[at]);
    let node = sim.threads[thread].node;
    for one in sim.uses(thread) {
        let Target::Lines { set } = one.target else { continue };
        for (other, lines_per_ns) in sim.rates.transfers(set, node, speed * one.share) {
            let to = if other == node { &mut transfers.within_node } else { &mut transfers.across_nodes };
            *to += lines_per_ns * 1e9;
        }
    }
    transfers
}

/// The active users of each set of lines, with their accesses per second.
fn line_users(sim: &Sim) -> Vec<Vec<(usize, f64)>> {
    let mut users = vec![Vec::new(); sim.world.sets];
    for (at, &thread) in sim.active.iter().enumerate() {
        for one in sim.uses(thread) {
            if let Target::Lines { set } = one.target {
                users[set].push((thread, sim.rates.accesses_per_ns[at] * one.share * 1e9));
            }
        }
    }
    users
}

/// A 64-bit mixing function (splitmix64's finaliser, Steele and others 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
