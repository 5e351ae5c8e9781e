// SPDX-License-Identifier: GPL-2.0-only
//! Snapshots for tests.

use crate::model::*;
use crate::registry::{Inputs, Memory, MissingSignal, Parameters, Policy};

/// What `policy` decides with its defaults, remembering nothing.
pub fn decided(policy: &Policy, snapshot: &Snapshot, seed: u64, steps: u64) -> Result<Plan, MissingSignal> {
    policy.decide(&mut Inputs { snapshot, parameters: &policy.defaults(), memory: &mut Memory::default(), seed, steps })
}

/// What `policy` decides with its defaults and what it remembers.
pub fn decided_with(policy: &Policy, snapshot: &Snapshot, memory: &mut Memory) -> Result<Plan, MissingSignal> {
    policy.decide(&mut Inputs { snapshot, parameters: &policy.defaults(), memory, seed: 1, steps: u64::MAX })
}

/// A machine with `cpus[n]` CPUs and 1 Mi pages, all free, on each node; ids 0, 1, 2, ...
pub fn machine(cpus: &[u32], distance: &[&[u32]]) -> Topology {
    let ids: Vec<u32> = (0..cpus.len() as u32).collect();
    machine_with_ids(&ids, cpus, distance)
}

/// The same with the kernel's ids given.
pub fn machine_with_ids(ids: &[u32], cpus: &[u32], distance: &[&[u32]]) -> Topology {
    let mut next = 0;
    let node = |at: usize| {
        let cpus: Vec<CpuId> = (next..next + cpus[at]).map(CpuId).collect();
        next += cpus.len() as u32;
        let row = PerNode::from(distance[at].to_vec());
        Node {
            id: NodeId(ids[at]),
            llcs: vec![cpus.clone()],
            slow_cpus: Default::default(),
            cpus,
            memory_pages: 1 << 20,
            free_pages: 1 << 20,
            latency_ns: Topology::latency_from_distance(&row),
            distance: row,
        }
    };
    Topology::new((0..ids.len()).map(node).collect(), LatencySource::Distance).unwrap()
}

/// Two nodes at distance 21.
pub fn two_nodes(cpus: u32) -> Topology {
    machine(&[cpus; 2], &[&[10, 21], &[21, 10]])
}

/// The same machine, the CPUs of node `node` of which have this capacity.
pub fn throttled(mut topology: Topology, node: usize, capacity: u32) -> Topology {
    let node = &mut topology.nodes[NodeIndex(node)];
    node.slow_cpus = node.cpus.iter().map(|&cpu| (cpu, capacity)).collect();
    topology
}

/// Four nodes in a ring: 12 to a neighbour, 20 across.
pub fn ring_of_four(cpus: u32) -> Topology {
    machine(&[cpus; 4], &[&[10, 12, 20, 12], &[12, 10, 12, 20], &[20, 12, 10, 12], &[12, 20, 12, 10]])
}

/// Two nodes with `cpus` CPUs each, on each of which `threads` threads of one program do so many operations a second and touch no memory;
/// the second that ends at `interval` + 1.
pub fn hogs(cpus: u32, threads: u32, operations_per_s: &[f64; 2], interval: u64) -> Snapshot {
    let mut builder = SnapshotBuilder::new(two_nodes(cpus));
    for tid in 0..2 * threads {
        let node = (tid / threads) as usize;
        let counted = |thread: &mut Thread| thread.operations_per_s = Some(operations_per_s[node]);
        builder = builder.thread(tid + 1, node, None).with_thread(counted);
    }
    let mut snapshot = builder.build();
    snapshot.time_ns = (interval + 1) * 1_000_000_000;
    snapshot
}

/// Builds a [`Snapshot`] of one process over one second.
pub struct SnapshotBuilder(Snapshot);

impl SnapshotBuilder {
    pub fn new(topology: Topology) -> Self {
        let load = NodeLoad::default();
        let nodes = PerNode::filled(topology.len(), load);
        let (time_ns, interval_ns) = (1_000_000_000, 1_000_000_000);
        Self(Snapshot {
            time_ns,
            interval_ns,
            topology,
            threads: vec![],
            groups: vec![],
            nodes,
            process_memory: std::collections::BTreeMap::new(),
            page_move_ns: None,
            huge_page_move_ns: None,
            realised_share: None,
            access_rates: None,
        })
    }

    /// A busy thread on node `node`; call with ascending `tid`.
    pub fn thread(mut self, tid: u32, node: usize, accesses: Option<&[f64]>) -> Self {
        let nodes = self.0.topology.len();
        let cpus = &self.0.topology.nodes[NodeIndex(node)].cpus;
        // One after the other, again from the first when all have one.
        let before = self.0.threads.iter().filter(|thread| thread.node.0 == node).count();
        let cpu = cpus.get(before % cpus.len().max(1)).copied().unwrap_or(CpuId(0));
        self.0.threads.push(Thread {
            id: ThreadId { tid, start_boottime_ns: 1 },
            process: ProcessId(1),
            cgroup: None,
            command: "worker".to_owned(),
            node: NodeIndex(node),
            cpu,
            allowed: PerNode::filled(nodes, true),
            cpu_time_ns: 1_000_000_000,
            run_ns: PerNode::from_fn(nodes, |at| if at.0 == node { 1_000_000_000 } else { 0 }),
            accesses_per_s: accesses.map(|row| row.to_vec().into()),
            latency_ns: None,
            operations_per_s: None,
            cycles_per_s: None,
            transfers_per_s: None,
            memory_lines_per_s: MemoryLines::default(),
            performance: PerNode::filled(nodes, None),
            sharing: vec![],
            on_cooldown: false,
            turned_ns: None,
            in_step_ns: None,
            woken_by: None,
        });
        self
    }

    /// A busy thread all of whose accesses go to node `memory`.
    pub fn thread_with_memory_on(self, tid: u32, node: usize, memory: usize) -> Self {
        let mut row = vec![0.0; self.0.topology.len()];
        row[memory] = 1e6;
        self.thread(tid, node, Some(&row))
    }

    /// Changes the last thread.
    pub fn with_thread(mut self, change: impl FnOnce(&mut Thread)) -> Self {
        change(self.0.threads.last_mut().unwrap());
        self
    }

    /// What two threads share, in accesses per second; they are counted from 0.
    pub fn shared(mut self, one: usize, other: usize, per_s: f64) -> Self {
        let ids = [one, other].map(|at| self.0.threads[at].id);
        for (at, partner) in [(one, ids[1]), (other, ids[0])] {
            let row = &mut self.0.threads[at].sharing;
            row.push((partner, per_s));
            row.sort_by_key(|cell| cell.0);
        }
        self
    }

    /// A group of 2 MiB with 100 samples right after the last one.
    pub fn group(mut self, resident: &[u64], accesses: &[f64]) -> Self {
        let start = self.0.groups.last().map_or(0x20_0000, |last| last.id.start + last.bytes);
        self.0.groups.push(PageGroup {
            id: GroupId { process: ProcessId(1), start },
            bytes: 0x20_0000,
            resident_pages: resident.to_vec().into(),
            huge: false,
            accesses_per_s: accesses.to_vec().into(),
            users: Default::default(),
            samples: 100.0,
            latency_ns: None,
            unmovable: None,
        });
        self
    }

    /// The same, accessed by threads there are: (tid, accesses per second), ascending.
    pub fn group_used_by(self, resident: &[u64], users: &[(u32, f64)]) -> Self {
        let mut accesses = vec![0.0; resident.len()];
        let mut known = vec![];
        for &(tid, per_s) in users {
            let thread = self.0.threads.iter().find(|thread| thread.id.tid == tid).unwrap();
            accesses[thread.node.0] += per_s;
            known.push((thread.id, per_s));
        }
        self.group(resident, &accesses).with_group(|group| group.users = known.into())
    }

    /// Changes the last group.
    pub fn with_group(mut self, change: impl FnOnce(&mut PageGroup)) -> Self {
        change(self.0.groups.last_mut().unwrap());
        self
    }

    pub fn build(self) -> Snapshot {
        self.0
    }
}

/// Threads of one process with (node, node of the memory), and the remembered performance that goes with it: local
/// distance / distance to the memory, on the present node only.
pub fn lagging_snapshot(topology: Topology, placed: &[(usize, usize)]) -> Snapshot {
    let seen = |thread: &mut Thread, topology: &Topology| {
        let memory = thread.preferred_node().unwrap();
        let performance = 10.0 / f64::from(topology.distance(thread.node, memory));
        thread.performance[thread.node] = Some(performance);
    };
    let builder = SnapshotBuilder::new(topology.clone());
    let add = |all: SnapshotBuilder, (tid, &(node, memory)): (usize, &(usize, usize))| {
        all.thread_with_memory_on(tid as u32, node, memory).with_thread(|thread| seen(thread, &topology))
    };
    placed.iter().enumerate().fold(builder, add).build()
}

/// Positions in `snapshot.groups` of the groups that `plan` moves, with the index of the node they go to.
pub fn page_destinations(snapshot: &Snapshot, plan: &Plan) -> Vec<(usize, usize)> {
    let position = |planned: &Move| match planned.action {
        Action::MovePages { group, to, .. } => {
            (snapshot.groups.iter().position(|known| known.id == group).unwrap(), to.0)
        }
        _ => panic!("a page policy moves pages: {planned:?}"),
    };
    plan.moves.iter().map(position).collect()
}

/// A page policy that decides again and again and remembers.
pub struct PageRun {
    pub policy: &'static Policy,
    pub parameters: Parameters,
    pub memory: Memory,
    pub snapshot: Snapshot,
    pub seed: u64,
}

impl PageRun {
    pub fn new(policy: &'static Policy, snapshot: Snapshot) -> Self {
        Self { policy, parameters: policy.defaults(), memory: Memory::default(), snapshot, seed: 1 }
    }

    /// The same with one parameter set.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        let mut values: std::collections::BTreeMap<String, f64> =
            self.parameters.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        values.insert(name.to_owned(), value);
        self.parameters = self.policy.parameters(&values).unwrap();
        self
    }

    /// The plan for the snapshot as it is, or what is missing.
    pub fn plan(&mut self) -> Result<Plan, MissingSignal> {
        let Self { policy, parameters, memory, snapshot, seed } = self;
        policy.decide(&mut Inputs { snapshot, parameters, memory, seed: *seed, steps: u64::MAX })
    }

    /// Groups that should move and where to.
    pub fn decide(&mut self) -> Vec<(usize, usize)> {
        let plan = self.plan().unwrap();
        page_destinations(&self.snapshot, &plan)
    }

    /// The same, and they move.
    pub fn step(&mut self) -> Vec<(usize, usize)> {
        let moved = self.decide();
        for &(group, to) in &moved {
            let group = &mut self.snapshot.groups[group];
            let resident: u64 = group.resident_pages.values().sum();
            let nodes = group.resident_pages.len();
            group.resident_pages = PerNode::from_fn(nodes, |node| if node.0 == to { resident } else { 0 });
        }
        moved
    }

    /// Time goes on.
    pub fn pass_ns(&mut self, ns: u64) {
        self.snapshot.time_ns += ns;
    }

    /// Share of the accesses that go to groups on the node that accesses them most (spec: Acc_app).
    pub fn accuracy(&self) -> f64 {
        let of = |group: &PageGroup| (group.accesses_per_s.total(), group.home() == group.accesses_per_s.argmax());
        let all: f64 = self.snapshot.groups.iter().map(|group| of(group).0).sum();
        self.snapshot.groups.iter().filter(|group| of(group).1).map(|group| of(group).0).sum::<f64>() / all
    }
}
