// SPDX-License-Identifier: GPL-2.0-only
//! Capacities of nodes, learnt from what the threads of one program get done on them.
//!
//! Problem: what kernel and firmware state of a CPU holds at its best; a node that is throttled (heat, a power limit, a
//! hypervisor's) does less, and nobody says so. Mechanism: a program with threads on two nodes is a divisible load, and an
//! interval is a window of it for IHP ([`super::Shares`]), one learner for each node against a *reference node*:
//!
//! | term | value |
//! |---|---|
//! | program | busy threads of one process with the same command name |
//! | comparable thread | used 10 % of a CPU, 90 % of that on one node; its memory is near: mean latency at most 1.1 times that of the node's own, or no accesses |
//! | share of a window | operations on the node / operations on both |
//! | times of a window | CPU seconds used on the node and on the reference node |
//! | speed of a node | share / (1 - share), of what one CPU each should get so that both take equally long |
//! | capacity of its CPUs | what is stated of them times speed x stated(reference) / stated(node); then all so that the fastest has 1024 |
//!
//! - *Comparable.* Operations per second also fall where memory is far or busy, and unlike threads do unlike work. At least two
//!   comparable threads on each of both nodes make a window, if both are about as full: siblings of a core share it, and few busy
//!   cores have a higher clock.
//! - *Reference.* The node with most CPU time of comparable threads when the first window was seen.
//! - *Trust.* Five windows; differences below 10 % from what is stated are none; ten minutes after its last window a node has its stated
//!   capacity again, because nobody would find out that it is not throttled any more once all threads have left.
//!
//! IHP is the thesis' (chapter 2), with the history's linear weights; what a window is, and all numbers here, are ours. Without counters of
//! operations nothing is learnt.

use std::collections::BTreeMap;

use super::{Settings, Shares, Window};
use crate::model::{FULL_CAPACITY, NodeIndex, ProcessId, Snapshot, Thread, Topology};

/// Share of a CPU that a comparable thread uses.
const LEAST_USE: f64 = 0.1;
/// Share of its CPU time that it spends on one node.
const ON_ONE_NODE: f64 = 0.9;
/// Mean latency of its accesses, in those of the node's own memory.
const NEAR: f64 = 1.1;
/// Comparable threads of a program on each node.
const LEAST_THREADS: usize = 2;
/// Busy shares of two nodes' CPUs that are at most this far apart are alike.
const ALIKE_BUSY: f64 = 0.1;
/// Windows before a speed counts.
const LEAST_WINDOWS: u32 = 5;
/// Nodes that are nearer than this to what is stated are as stated.
const SAME: f64 = 0.1;
/// Time after which a node that taught nothing is as stated, in ns.
const FORGOTTEN_NS: u64 = 600_000_000_000;

/// What is known of one node against the reference node.
#[derive(Clone, Debug)]
struct Learner {
    shares: Shares,
    windows: u32,
    last_ns: u64,
}

/// Speeds of nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeSpeeds {
    reference: Option<NodeIndex>,
    learners: BTreeMap<NodeIndex, Learner>,
}

/// Operations and CPU time of a program's comparable threads on a node.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    threads: usize,
    operations: f64,
    cpu_s: f64,
}

type Programs<'a> = BTreeMap<(ProcessId, &'a str), BTreeMap<NodeIndex, Done>>;

impl NodeSpeeds {
    /// Learns from an interval.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        let programs = programs(snapshot);
        if self.reference.is_none() {
            self.reference = busiest(&programs);
        }
        let Some(reference) = self.reference else { return };
        self.learners.retain(|_, learner| snapshot.time_ns.saturating_sub(learner.last_ns) < FORGOTTEN_NS);
        for nodes in programs.values() {
            let Some(there) = nodes.get(&reference) else { continue };
            let alike = |node| (busy_share(snapshot, node) - busy_share(snapshot, reference)).abs() <= ALIKE_BUSY;
            for (&node, here) in nodes.iter().filter(|&(&node, _)| node != reference && alike(node)) {
                let first = stated(&snapshot.topology, node);
                let second = stated(&snapshot.topology, reference);
                let begin =
                    || Learner { shares: Shares::new(Settings::default(), first, second), windows: 0, last_ns: 0 };
                let learner = self.learners.entry(node).or_insert_with(begin);
                let share = here.operations / (here.operations + there.operations);
                learner.shares.observe_window(Window { share, first_s: here.cpu_s, second_s: there.cpu_s });
                learner.windows += 1;
                learner.last_ns = snapshot.time_ns;
            }
        }
    }

    /// `topology` with the capacities that were learnt; `None` if all are as stated.
    pub fn applied(&self, topology: &Topology) -> Option<Topology> {
        let factors = self.factors(topology);
        if factors.is_empty() {
            return None;
        }
        let mut learnt = topology.clone();
        let factor = |node: NodeIndex| factors.get(&node).copied().unwrap_or(1.0);
        let capacity = |node: NodeIndex, cpu| topology.nodes[node].cpu_capacity(cpu) as f64 * factor(node);
        let all = topology.nodes.iter().flat_map(|(node, its)| its.cpus.iter().map(move |&cpu| capacity(node, cpu)));
        let best = all.fold(0.0, f64::max);
        for (node, its) in topology.nodes.iter() {
            let scaled = its.cpus.iter().map(|&cpu| {
                let parts = (FULL_CAPACITY as f64 * capacity(node, cpu) / best).round() as u64;
                (cpu, parts.clamp(1, FULL_CAPACITY) as u32)
            });
            learnt.nodes[node].slow_cpus = scaled.filter(|&(_, parts)| u64::from(parts) < FULL_CAPACITY).collect();
        }
        Some(learnt)
    }

    /// What was learnt, in words and to 10 %, so that it does not change all the time; `None` if all nodes are as stated.
    pub fn statement(&self, topology: &Topology) -> Option<String> {
        let of = |(node, factor): (NodeIndex, f64)| {
            format!(
                "a CPU of node {} does about {:.0} % of what is stated of it",
                topology.nodes[node].id,
                (factor * 10.0).round() * 10.0
            )
        };
        let all: Vec<String> = self.factors(topology).into_iter().map(of).collect();
        let reference = topology.nodes.get(self.reference?)?.id;
        (!all.is_empty()).then(|| format!("{}, node {reference} taken for 100 %", all.join(", ")))
    }

    /// Learnt over stated capacity, of the nodes where that is not about 1.
    fn factors(&self, topology: &Topology) -> BTreeMap<NodeIndex, f64> {
        let Some(reference) = self.reference else { return BTreeMap::new() };
        let of = |(&node, learner): (&NodeIndex, &Learner)| {
            let share = learner.shares.share();
            if learner.windows < LEAST_WINDOWS || share <= 0.0 || share >= 1.0 || node.0 >= topology.len() {
                return None;
            }
            let factor = share / (1.0 - share) * stated(topology, reference) / stated(topology, node);
            ((factor - 1.0).abs() > SAME).then_some((node, factor))
        };
        self.learners.iter().filter_map(of).collect()
    }
}

/// Mean capacity of a node's CPUs by the machine's own account.
fn stated(topology: &Topology, node: NodeIndex) -> f64 {
    topology.nodes[node].mean_cpu_capacity()
}

/// Share of the interval in which the node's CPUs were busy.
fn busy_share(snapshot: &Snapshot, node: NodeIndex) -> f64 {
    let cpus = snapshot.topology.nodes[node].cpus.len().max(1) as f64;
    snapshot.nodes[node].busy_ns as f64 / (cpus * snapshot.interval_ns.max(1) as f64)
}

/// What the comparable threads of each program did on each node, where there are enough of them.
fn programs(snapshot: &Snapshot) -> Programs<'_> {
    let mut programs: Programs = BTreeMap::new();
    for thread in &snapshot.threads {
        if let Some((node, done)) = comparable(snapshot, thread) {
            let sum = programs.entry((thread.process, &thread.command)).or_default().entry(node).or_default();
            sum.threads += 1;
            sum.operations += done.operations;
            sum.cpu_s += done.cpu_s;
        }
    }
    programs.values_mut().for_each(|nodes| nodes.retain(|_, done| done.threads >= LEAST_THREADS));
    programs
}

/// Where and what a comparable thread did; `None` if it is none.
fn comparable(snapshot: &Snapshot, thread: &Thread) -> Option<(NodeIndex, Done)> {
    let cpu_time_ns = thread.cpu_time_ns as f64;
    let (node, _) =
        thread.run_ns.iter().find(|&(_, &ns)| cpu_time_ns > 0.0 && ns as f64 >= ON_ONE_NODE * cpu_time_ns)?;
    let interval_s = snapshot.interval_ns as f64 * 1e-9;
    let operations = thread.operations_per_s.filter(|per_s| per_s.is_finite() && *per_s > 0.0)? * interval_s;
    let accesses = thread.accesses_per_s.as_ref().map_or(0.0, |row| row.total());
    let own_ns = snapshot.topology.latency_ns(node, node);
    let near = match thread.latency_ns {
        Some(latency_ns) => latency_ns <= NEAR * own_ns,
        None => accesses == 0.0,
    };
    let busy = cpu_time_ns >= LEAST_USE * snapshot.interval_ns as f64;
    (near && busy).then_some((node, Done { threads: 1, operations, cpu_s: cpu_time_ns * 1e-9 }))
}

/// The node with most CPU time among the programs that are on several nodes.
fn busiest(programs: &Programs) -> Option<NodeIndex> {
    let mut cpu_s: BTreeMap<NodeIndex, f64> = BTreeMap::new();
    for nodes in programs.values().filter(|nodes| nodes.len() > 1) {
        for (&node, done) in nodes {
            *cpu_s.entry(node).or_default() += done.cpu_s;
        }
    }
    // The lowest index of those with as much.
    cpu_s.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(node, _)| node)
}

#[cfg(test)]
#[path = "speeds_tests.rs"]
mod tests;
