// SPDX-License-Identifier: GPL-2.0-only
//! Machines of several sizes under a load that gives every policy something to do.
//!
//! Nodes form a hypercube. Threads share in pairs and weakly in rings, a third of them far from their partner and from
//! their memory. Page groups lie in runs, most on one node and some on two, wherever; few threads of their process use
//! each. All is drawn from a seed, so that a snapshot is the same everywhere.

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tandem_policies::model::*;
use tandem_policies::registry::{Parameters, Policy};

/// How large a machine and its load are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Busy threads.
    pub threads: usize,
    /// Nodes with CPUs and memory.
    pub nodes: usize,
    /// Page groups.
    pub groups: usize,
}

/// The sizes that decision times are given for; goals hold for the first and the last.
pub const SIZES: [Size; 3] = [
    Size { threads: 64, nodes: 4, groups: 10_000 },
    Size { threads: 256, nodes: 16, groups: 30_000 },
    Size { threads: 1024, nodes: 64, groups: 100_000 },
];

/// Threads of one process.
const THREADS_OF_PROCESS: usize = 32;
/// Threads that use a group.
const USERS: usize = 8;
/// Groups without a gap between them.
const RUN: u64 = 64;
const GROUP_BYTES: u64 = 2 << 20;
const GROUP_PAGES: u64 = 512;

/// Random numbers as snapshots need them.
struct Draw(Pcg64);

impl Draw {
    /// A number below `count`.
    fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    /// A number in [least, most).
    fn real(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in so many of a hundred cases.
    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A snapshot of that size, drawn from `seed`.
pub fn snapshot(size: Size, seed: u64) -> Snapshot {
    let mut draw = Draw(Pcg64::seed_from_u64(seed));
    let topology = hypercube(size);
    let threads: Vec<Thread> = (0..size.threads).map(|at| thread(size, at, &mut draw)).collect();
    let groups = (0..size.groups).map(|at| group(size, at, &threads, &mut draw)).collect();
    let load = NodeLoad::default();
    let nodes = PerNode::from_fn(size.nodes, |_| {
        let served_latency_ns = Some(draw.real(90.0, 300.0));
        NodeLoad { served_latency_ns, ..load.clone() }
    });
    let (time_ns, interval_ns) = (1_000_000_000_000, 1_000_000_000);
    Snapshot {
        time_ns,
        interval_ns,
        topology,
        threads,
        groups,
        nodes,
        process_memory: BTreeMap::new(),
        page_move_ns: None,
        huge_page_move_ns: None,
        realised_share: None,
        access_rates: None,
    }
}

/// The same a second later: nobody moved, and half of the groups were sampled again.
pub fn later(snapshot: &Snapshot) -> Snapshot {
    let mut later = snapshot.clone();
    later.time_ns += later.interval_ns;
    later.groups.iter_mut().step_by(2).for_each(|group| group.samples += 3.0);
    later
}

/// The defaults of a policy, but that nothing keeps it from acting here: `kmaf` does not wait until threads have moved, `opt`
/// maps pairs of any number of threads, and `sma` and `dyrmma` need not gain more than a thousand threads can.
pub fn parameters(policy: &Policy) -> Parameters {
    let eager = [("wait_decisions", 0.0), ("min_heterogeneity", 1.0), ("gate_percent_per_thread", 0.02)];
    let has = |name: &str| policy.parameters.iter().any(|parameter| parameter.name == name);
    let values = eager.into_iter().filter(|(name, _)| has(name)).map(|(name, value)| (name.to_owned(), value));
    policy.parameters(&values.collect::<BTreeMap<_, _>>()).expect("these are in range")
}

fn hypercube(size: Size) -> Topology {
    let cpus_of_node = size.threads.div_ceil(size.nodes) as u32;
    let memory_pages = 8 * GROUP_PAGES * size.groups as u64 / size.nodes as u64;
    let node = |at: usize| {
        let cpus: Vec<CpuId> = (0..cpus_of_node).map(|cpu| CpuId(at as u32 * cpus_of_node + cpu)).collect();
        let distance = PerNode::from_fn(size.nodes, |to| match (at ^ to.0).count_ones() {
            0 => 10,
            hops => 12 + 4 * hops,
        });
        let latency_ns = Topology::latency_from_distance(&distance);
        let (id, llcs, free_pages) = (NodeId(at as u32), vec![cpus.clone()], memory_pages / 2);
        Node { id, cpus, llcs, slow_cpus: BTreeMap::new(), memory_pages, free_pages, distance, latency_ns }
    };
    Topology::new((0..size.nodes).map(node).collect(), LatencySource::Distance).expect("rows are square")
}

fn thread_id(at: usize) -> ThreadId {
    ThreadId { tid: 1000 + at as u32, start_boottime_ns: 1 }
}

fn thread(size: Size, at: usize, draw: &mut Draw) -> Thread {
    let node = if draw.percent(33) { draw.below(size.nodes) } else { at * size.nodes / size.threads };
    let cpus_of_node = size.threads.div_ceil(size.nodes);
    let memory = if draw.percent(67) { node } else { draw.below(size.nodes) };
    let row =
        |draw: &mut Draw| PerNode::from_fn(size.nodes, |to| if to.0 == memory { 4e7 } else { draw.real(0.0, 1e6) });
    let (partner, within) = (at ^ 1, size.threads);
    let mut sharing = vec![(partner % within, draw.real(5e5, 1e6))];
    sharing.extend((1..=7).map(|step| ((at + step * 13) % within, draw.real(0.0, 2e4))));
    let mut sharing: Vec<(ThreadId, f64)> =
        sharing.into_iter().filter(|&(other, _)| other != at).map(|(other, per_s)| (thread_id(other), per_s)).collect();
    sharing.sort_by_key(|cell| cell.0);
    sharing.dedup_by_key(|cell| cell.0);
    let across_nodes = if draw.percent(33) { draw.real(1e6, 4e6) } else { 0.0 };
    Thread {
        id: thread_id(at),
        process: ProcessId(1 + (at / THREADS_OF_PROCESS) as u32),
        cgroup: None,
        command: "worker".to_owned(),
        node: NodeIndex(node),
        cpu: CpuId((node * cpus_of_node + at % cpus_of_node) as u32),
        allowed: PerNode::filled(size.nodes, true),
        cpu_time_ns: 900_000_000,
        run_ns: PerNode::from_fn(size.nodes, |to| if to.0 == node { 900_000_000 } else { 0 }),
        accesses_per_s: Some(row(draw)),
        latency_ns: Some(draw.real(100.0, 400.0)),
        operations_per_s: Some(draw.real(5e8, 3e9)),
        cycles_per_s: Some(2e9),
        transfers_per_s: Some(Transfers { within_node: draw.real(0.0, 3e5), across_nodes }),
        memory_lines_per_s: MemoryLines::default(),
        performance: PerNode::from_fn(size.nodes, |to| (to.0 == node || draw.percent(10)).then(|| draw.real(0.5, 1.5))),
        sharing,
        on_cooldown: false,
        turned_ns: None,
        in_step_ns: None,
        woken_by: None,
    }
}

fn group(size: Size, at: usize, threads: &[Thread], draw: &mut Draw) -> PageGroup {
    let processes = size.threads.div_ceil(THREADS_OF_PROCESS);
    let of_process = size.groups.div_ceil(processes);
    let (process, number) = (at / of_process, (at % of_process) as u64);
    let first = process * THREADS_OF_PROCESS;
    let own = &threads[first..threads.len().min(first + THREADS_OF_PROCESS)];
    // Neighbouring groups have mostly the same users.
    let leader = (number / 16) as usize;
    let mut users: Vec<(ThreadId, f64)> = (0..USERS)
        .map(|step| (own[(leader + step * 5) % own.len()].id, draw.real(1.0, 1e4 / (1 + step) as f64)))
        .collect();
    users.sort_by_key(|user| user.0);
    users.dedup_by_key(|user| user.0);
    let mut accesses_per_s = PerNode::filled(size.nodes, 0.0);
    for (user, per_s) in &users {
        let at = threads.binary_search_by_key(user, |thread| thread.id).expect("users are threads");
        accesses_per_s[threads[at].node] += per_s;
    }
    let (home, other) = (draw.below(size.nodes), draw.below(size.nodes));
    let there = if draw.percent(80) { 0 } else { 1 + draw.below(200) as u64 };
    let mut resident_pages = PerNode::filled(size.nodes, 0);
    resident_pages[NodeIndex(home)] += GROUP_PAGES - there;
    resident_pages[NodeIndex(other)] += there;
    PageGroup {
        id: GroupId { process: ProcessId(1 + process as u32), start: (number + number / RUN) * GROUP_BYTES },
        bytes: GROUP_BYTES,
        resident_pages,
        huge: false,
        accesses_per_s,
        users: users.into(),
        samples: draw.real(2.0, 60.0),
        latency_ns: Some(draw.real(80.0, 600.0)),
        unmovable: draw.percent(3).then_some(Unmovable::Pinned),
    }
}
