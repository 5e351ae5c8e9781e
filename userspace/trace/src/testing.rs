// SPDX-License-Identifier: GPL-2.0-only
//! Intervals as the sensor makes them, from made-up samples: for tests of what records and replays.
//!
//! Every interval each thread is sampled some times; a sample is an access to a page of a group. From there on the numbers
//! come about as in the sensing room: counts age with a half-life of 3 s over intervals that are never quite as long as
//! they should be, at most 32 users of a group and 8 of a page are kept, weights below 0.01 are forgotten, a snapshot names
//! the 8 heaviest users, and what a sample stands for changes with each thread's rate and CPU time.

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tandem_policies::decider::{Decider, PolicyChoice};
use tandem_policies::model::{
    CpuId, GroupId, LatencySource, MemoryLines, Node, NodeId, NodeIndex, NodeLoad, PAGE_BYTES, PageGroup, PerNode,
    ProcessId, Snapshot, Thread, ThreadId, Topology,
};
use tandem_policies::registry::Kind;
use tandem_policies::stall::latency_ns;

use crate::frame::{self, FrameReader, FrameWriter};
use crate::{Decision, Interval, Outcome, Settings, TraceWriter};

const SECOND_NS: u64 = 1_000_000_000;
const GROUP_BYTES: u64 = 2 << 20;
const HALF_LIFE_S: f64 = 3.0;
const FAINTEST: f64 = 0.01;
const KEPT_USERS: usize = 32;
const KEPT_SHARERS: usize = 8;
const NAMED_USERS: usize = 8;
/// Aged samples below which a thread has no signal.
const LEAST_SAMPLES: f64 = 24.0;

/// What is made up.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Nodes of the machine.
    pub nodes: usize,
    /// Busy threads, each on a CPU of its own.
    pub threads: usize,
    /// Page groups, all of them used.
    pub groups: usize,
    /// Samples of each thread an interval.
    pub samples: usize,
    /// Share of groups that all threads use, in percent.
    pub common_percent: usize,
    /// Share of groups that 4 neighbouring threads use, in percent. Each of the others has one user.
    pub neighbours_percent: usize,
}

impl Shape {
    /// Two nodes with four threads that share a little: small enough to try every byte of its recording.
    pub const SMALL: Shape =
        Shape { nodes: 2, threads: 4, groups: 12, samples: 20, common_percent: 10, neighbours_percent: 30 };
}

/// Weights of threads, few.
type Weights = Vec<(ThreadId, f64)>;

/// Makes one interval after the other.
#[derive(Clone, Debug)]
pub struct Synthetic {
    shape: Shape,
    topology: Topology,
    rng: Pcg64,
    time_ns: u64,
    groups: BTreeMap<GroupId, Weights>,
    pages: BTreeMap<(GroupId, u64), Weights>,
    totals: BTreeMap<ThreadId, f64>,
    /// Accesses per instruction of each thread, which drift.
    densities: Vec<f64>,
    /// Node on which threads run now.
    nodes: Vec<NodeIndex>,
}

impl Synthetic {
    /// The same `seed` gives the same intervals.
    pub fn new(shape: Shape, seed: u64) -> Self {
        let nodes = (0..shape.threads).map(|thread| NodeIndex(thread * shape.nodes / shape.threads)).collect();
        Self {
            topology: machine(shape.nodes, shape.threads.div_ceil(shape.nodes)),
            rng: Pcg64::seed_from_u64(seed),
            time_ns: 1000 * SECOND_NS,
            groups: BTreeMap::new(),
            pages: BTreeMap::new(),
            totals: BTreeMap::new(),
            densities: vec![0.1; shape.threads],
            nodes,
            shape,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }

    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One second and a little more later.
    pub fn next_snapshot(&mut self) -> Snapshot {
        let interval_ns = SECOND_NS + 1_000 + self.rng.next_u64() % 20_000_000;
        self.time_ns += interval_ns;
        self.age(interval_ns);
        for thread in 0..self.shape.threads {
            for _ in 0..self.shape.samples {
                self.sample(thread);
            }
            self.densities[thread] *= 0.98 + 0.04 * self.uniform();
        }
        for node in (0..self.shape.nodes).map(NodeIndex) {
            self.topology.nodes[node].free_pages = (1 << 22) + self.rng.next_u64() % 4096;
        }
        let run_ns: Vec<u64> = (0..self.shape.threads).map(|_| interval_ns - self.rng.next_u64() % 3_000_000).collect();
        self.snapshot(interval_ns, &run_ns)
    }

    fn age(&mut self, interval_ns: u64) {
        let factor = 0.5_f64.powf(interval_ns as f64 / SECOND_NS as f64 / HALF_LIFE_S);
        let fade = |weights: &mut Weights| {
            weights.retain_mut(|(_, weight)| {
                *weight *= factor;
                *weight >= FAINTEST
            });
            !weights.is_empty()
        };
        self.groups.retain(|_, users| fade(users));
        self.pages.retain(|_, users| fade(users));
        self.totals.values_mut().for_each(|total| *total *= factor);
    }

    /// One access of a thread: half of them to its own groups, the rest to those it shares.
    fn sample(&mut self, thread: usize) {
        let Shape { threads, groups, common_percent, neighbours_percent, .. } = self.shape;
        let (common, near) = (groups * common_percent / 100, groups * neighbours_percent / 100);
        let own = groups - common - near;
        let (kind, quads) = (self.below(4), threads.div_ceil(4));
        let at = match kind {
            0 if common > 0 => self.below(common),
            1 if near >= quads => common + thread / 4 * (near / quads) + self.below(near / quads),
            _ => common + near + thread * (own / threads) + self.below((own / threads).max(1)),
        };
        let (group, page) = (group_id(at), self.below(512) as u64);
        add(self.groups.entry(group).or_default(), thread_id(thread), KEPT_USERS);
        add(self.pages.entry((group, page)).or_default(), thread_id(thread), KEPT_SHARERS);
        *self.totals.entry(thread_id(thread)).or_default() += 1.0;
    }

    /// Accesses per second that a weight of 1 stands for, by thread.
    fn scales(&self, interval_ns: u64, run_ns: &[u64]) -> Vec<f64> {
        let scale = |thread: usize| {
            let per_s = self.densities[thread] * 1e9 * (run_ns[thread] as f64 / interval_ns as f64);
            self.totals.get(&thread_id(thread)).map_or(0.0, |total| per_s / total)
        };
        (0..self.shape.threads).map(scale).collect()
    }

    fn snapshot(&self, interval_ns: u64, run_ns: &[u64]) -> Snapshot {
        let scales = self.scales(interval_ns, run_ns);
        let nodes = self.shape.nodes;
        let mut accesses = vec![PerNode::filled(nodes, 0.0); self.shape.threads];
        let mut groups = Vec::new();
        for (&id, users) in &self.groups {
            let group = self.group(id, users, &scales);
            let pages: u64 = group.resident_pages.values().sum();
            for &(user, weight) in users {
                for (node, &here) in group.resident_pages.iter() {
                    accesses[place(user)][node] += weight * scales[place(user)] * here as f64 / pages as f64;
                }
            }
            groups.push(group);
        }
        let mut sharing = self.sharing(&scales);
        let known = |thread: usize| self.totals.get(&thread_id(thread)).is_some_and(|&total| total >= LEAST_SAMPLES);
        let threads = accesses.into_iter().enumerate().map(|(thread, row)| {
            let row = Some(row).filter(|_| known(thread));
            self.thread(thread, run_ns[thread], row, std::mem::take(&mut sharing[thread]))
        });
        let busy = |node| (0..self.shape.threads).filter(move |&thread| self.nodes[thread] == node);
        let load = |node| {
            let busy_ns = busy(node).map(|thread| run_ns[thread]).sum();
            NodeLoad { busy_ns, ..NodeLoad::default() }
        };
        Snapshot {
            time_ns: self.time_ns,
            interval_ns,
            topology: self.topology.clone(),
            threads: threads.collect(),
            nodes: PerNode::from_fn(nodes, load),
            groups,
            process_memory: BTreeMap::new(),
            page_move_ns: None,
            huge_page_move_ns: None,
            realised_share: None,
            access_rates: None,
        }
    }

    fn group(&self, id: GroupId, weights: &Weights, scales: &[f64]) -> PageGroup {
        let nodes = self.shape.nodes;
        let mut users: Vec<_> = weights.iter().map(|&(user, weight)| (user, weight * scales[place(user)])).collect();
        let mut accesses_per_s = PerNode::filled(nodes, 0.0);
        for &(user, value) in &users {
            accesses_per_s[self.nodes[place(user)]] += value;
        }
        users.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        users.truncate(NAMED_USERS);
        users.sort_by_key(|(user, _)| *user);
        // Everything was touched first on one node, every tenth group on two.
        let number = (id.start / GROUP_BYTES) as usize;
        let (home, other) = (number % nodes, if number.is_multiple_of(10) { 32 } else { 0 });
        let resident = |node: NodeIndex| match node.0 {
            node if node == home => 512 - other,
            node if node == (home + 1) % nodes => other,
            _ => 0,
        };
        PageGroup {
            id,
            bytes: GROUP_BYTES,
            resident_pages: PerNode::from_fn(nodes, resident),
            huge: false,
            accesses_per_s,
            users: users.into(),
            samples: weights.iter().map(|(_, weight)| weight).sum(),
            latency_ns: None,
            unmovable: None,
        }
    }

    fn sharing(&self, scales: &[f64]) -> Vec<Vec<(ThreadId, f64)>> {
        let mut rows: Vec<BTreeMap<ThreadId, f64>> = vec![BTreeMap::new(); self.shape.threads];
        for users in self.pages.values() {
            for (at, &(first, first_weight)) in users.iter().enumerate() {
                for &(second, second_weight) in &users[at + 1..] {
                    let shared = (first_weight * scales[place(first)]).min(second_weight * scales[place(second)]);
                    *rows[place(first)].entry(second).or_default() += shared;
                    *rows[place(second)].entry(first).or_default() += shared;
                }
            }
        }
        rows.into_iter().map(|row| row.into_iter().collect()).collect()
    }

    fn thread(
        &self,
        thread: usize,
        ran_ns: u64,
        accesses_per_s: Option<PerNode<f64>>,
        sharing: Vec<(ThreadId, f64)>,
    ) -> Thread {
        let (node, nodes) = (self.nodes[thread], self.shape.nodes);
        let latency_ns = accesses_per_s.as_ref().map(|row: &PerNode<f64>| {
            let stall: f64 = row.iter().map(|(memory, rate)| rate * self.topology.latency_ns(node, memory)).sum();
            stall / row.total()
        });
        Thread {
            id: thread_id(thread),
            process: ProcessId(1),
            cgroup: None,
            command: format!("worker-{thread}"),
            node,
            cpu: self.topology.nodes[node].cpus[thread % self.topology.nodes[node].cpus.len()],
            allowed: PerNode::filled(nodes, true),
            cpu_time_ns: ran_ns,
            run_ns: PerNode::from_fn(nodes, |at| if at == node { ran_ns } else { 0 }),
            accesses_per_s,
            latency_ns: None,
            operations_per_s: None,
            cycles_per_s: None,
            transfers_per_s: None,
            memory_lines_per_s: MemoryLines::default(),
            performance: PerNode::from_fn(nodes, |at| latency_ns.filter(|_| at == node).map(|ns| 1.0 / ns)),
            sharing,
            on_cooldown: false,
            turned_ns: None,
            in_step_ns: None,
            woken_by: None,
        }
    }

    /// An interval as an agent records it that asks `decider` and does what it says, as far as threads go.
    pub fn next_interval(&mut self, decider: &mut Decider, seed: u64, steps: u64) -> Interval {
        let snapshot = self.next_snapshot();
        let mut decision = Decision::new(seed, decider.decide(&snapshot, seed, steps));
        let mut outcomes = Vec::new();
        if let Some(plan) = decision.plan() {
            let after = snapshot.after_thread_moves(plan);
            self.nodes = after.threads.iter().map(|thread| thread.node).collect();
            let (generation, before_ns) = (snapshot.time_ns, latency_ns(&snapshot));
            outcomes.push(Outcome::Judged { generation, before_ns, after_ns: None, undone: false });
            decision.generation = Some(generation);
        }
        Interval { snapshot, outcomes, decision: Some(decision) }
    }
}

/// What an agent with these policies and their defaults would note.
pub fn settings(policies: &[PolicyChoice], seed: u64, steps: u64) -> Settings {
    Settings {
        program: "test 1.0".to_owned(),
        sampler: "made up".to_owned(),
        interval_ns: SECOND_NS,
        seed,
        steps,
        dry_run: false,
        policies: policies.iter().map(Into::into).collect(),
    }
}

/// The policies of these names.
///
/// # Panics
/// If there is no such policy.
pub fn choices(thread: &str, page: &str) -> Vec<PolicyChoice> {
    let choice = |kind, name| PolicyChoice::new(kind, name).expect("the name of a policy");
    vec![choice(Kind::Thread, thread), choice(Kind::Page, page)]
}

/// A recording of so many intervals, and the same as it went into it.
///
/// # Panics
/// If it cannot be written.
pub fn recording(shape: Shape, policies: &[PolicyChoice], seed: u64, intervals: usize) -> (Vec<u8>, Vec<Interval>) {
    let steps = 10_000;
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes).expect("memory takes all");
    writer.settings(&settings(policies, seed, steps)).expect("memory takes all");
    let (mut synthetic, mut decider) = (Synthetic::new(shape, seed), Decider::new(policies.to_vec()));
    let all: Vec<Interval> =
        (0..intervals).map(|at| synthetic.next_interval(&mut decider, seed + at as u64, steps)).collect();
    for interval in &all {
        writer.interval(interval.clone()).expect("memory takes all");
    }
    writer.end(None).expect("memory takes all");
    (bytes, all)
}

fn thread_id(thread: usize) -> ThreadId {
    ThreadId { tid: 1000 + thread as u32, start_boottime_ns: 5 * SECOND_NS + thread as u64 * 54_321 }
}

fn place(thread: ThreadId) -> usize {
    thread.tid as usize - 1000
}

fn group_id(group: usize) -> GroupId {
    GroupId { process: ProcessId(1), start: 0x7f00_0000_0000 + group as u64 * GROUP_BYTES }
}

fn add(weights: &mut Weights, thread: ThreadId, most: usize) {
    if let Some((_, weight)) = weights.iter_mut().find(|(user, _)| *user == thread) {
        *weight += 1.0;
    } else if weights.len() < most {
        weights.push((thread, 1.0));
    } else if let Some(lightest) = weights.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1))
        && lightest.1 < 1.0
    {
        *lightest = (thread, 1.0);
    }
}

/// The payloads of the frames of a recording, with their kinds.
pub fn frames(mut recording: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    if let Ok(mut reader) = FrameReader::new(&mut recording) {
        while let Ok(Some((kind, payload))) = reader.next() {
            frames.push((kind as u8, payload));
        }
    }
    frames
}

/// A recording of these settings and columns of intervals, with right checksums whatever the columns are.
///
/// # Panics
/// If it cannot be written.
pub fn sealed<'a>(settings: &Settings, intervals: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::new(&mut bytes).expect("memory takes all");
    let settings = serde_json::to_vec(settings).expect("settings have text keys");
    writer.write(frame::Kind::Settings, &settings).expect("memory takes all");
    for payload in intervals {
        writer.write(frame::Kind::Interval, payload).expect("memory takes all");
    }
    writer.write(frame::Kind::End, &[]).expect("memory takes all");
    bytes
}

/// A machine of nodes at distance 20 from each other.
fn machine(nodes: usize, cpus: usize) -> Topology {
    let node = |at: usize| {
        let cpus: Vec<CpuId> = (at * cpus..(at + 1) * cpus).map(|cpu| CpuId(cpu as u32)).collect();
        let distance = PerNode::from_fn(nodes, |other| if other.0 == at { 10 } else { 20 });
        Node {
            id: NodeId(at as u32),
            llcs: vec![cpus.clone()],
            slow_cpus: BTreeMap::new(),
            cpus,
            memory_pages: 64 << 30 >> PAGE_BYTES.trailing_zeros(),
            free_pages: 1 << 22,
            latency_ns: Topology::latency_from_distance(&distance),
            distance,
        }
    };
    Topology::new((0..nodes).map(node).collect(), LatencySource::Distance).expect("rows are as long as they should be")
}
