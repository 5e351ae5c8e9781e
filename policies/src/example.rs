// SPDX-License-Identifier: GPL-2.0-only
//! A snapshot of which every signal is known, for the examples of these pages and for first steps.

use crate::model::{
    CpuId, GroupId, LatencySource, MemoryLines, Node, NodeId, NodeIndex, NodeLoad, PageGroup, PerNode, ProcessId,
    Snapshot, Thread, ThreadId, Topology, Transfers,
};
use crate::registry::{Inputs, Memory, MissingSignal, Policy};

const SECOND_NS: u64 = 1_000_000_000;
/// Pages of a group of 2 MiB.
const GROUP_PAGES: u64 = 512;
const GROUP_BYTES: u64 = GROUP_PAGES * 4096;
const ACCESSES_PER_S: f64 = 1e6;
/// Steps that searches get: as many as the agent gives them in a second.
const STEPS: u64 = 100_000;

/// Two nodes at distance 20 with two CPUs each. Threads 1 and 2 run on node 0, 3 and 4 on node 1; each uses 2 MiB of its own,
/// which lie on the other node. Threads 1 and 3 share lines, and so do 2 and 4.
pub fn crossed() -> Snapshot {
    let groups = (1..=4).map(|tid| group(tid, 1 - node_of(tid))).collect();
    let load = NodeLoad { busy_ns: 2 * SECOND_NS, served_latency_ns: Some(200.0), ..NodeLoad::default() };
    Snapshot {
        time_ns: 10 * SECOND_NS,
        interval_ns: SECOND_NS,
        topology: Topology::new(vec![node(0), node(1)], LatencySource::Distance).expect("two nodes"),
        threads: (1..=4).map(thread).collect(),
        groups,
        nodes: PerNode::filled(2, load),
        process_memory: std::collections::BTreeMap::new(),
        page_move_ns: None,
        huge_page_move_ns: None,
        realised_share: None,
        access_rates: None,
    }
}

/// What a policy with its defaults would do about a snapshot, each move in words; it remembers nothing.
///
/// # Errors
/// [`MissingSignal`] if the snapshot lacks a signal that the policy needs.
pub fn decided(policy: &Policy, snapshot: &Snapshot) -> Result<Vec<String>, MissingSignal> {
    decided_again(policy, snapshot, &mut Memory::default())
}

/// The same by a policy that remembers what it decided before.
///
/// # Errors
/// As [`decided`].
pub fn decided_again(policy: &Policy, snapshot: &Snapshot, memory: &mut Memory) -> Result<Vec<String>, MissingSignal> {
    let parameters = &policy.defaults();
    let plan = policy.decide(&mut Inputs { snapshot, parameters, memory, seed: 1, steps: STEPS })?;
    Ok(plan.moves.iter().map(|planned| planned.in_words(&snapshot.topology)).collect())
}

/// Where thread `tid` runs.
fn node_of(tid: u32) -> usize {
    usize::from(tid > 2)
}

fn node(at: usize) -> Node {
    let cpus: Vec<CpuId> = [0, 1].map(|cpu| CpuId(2 * at as u32 + cpu)).to_vec();
    let distance = PerNode::from_fn(2, |to| if to.0 == at { 10 } else { 20 });
    Node {
        id: NodeId(at as u32),
        llcs: vec![cpus.clone()],
        cpus,
        slow_cpus: Default::default(),
        memory_pages: 1 << 20,
        free_pages: 1 << 19,
        latency_ns: Topology::latency_from_distance(&distance),
        distance,
    }
}

fn thread(tid: u32) -> Thread {
    let node = NodeIndex(node_of(tid));
    let only = |at: NodeIndex, value: f64| PerNode::from_fn(2, |node| if node == at { value } else { 0.0 });
    let partner = ThreadId { tid: (tid + 1) % 4 + 1, start_boottime_ns: 1 };
    Thread {
        id: ThreadId { tid, start_boottime_ns: 1 },
        process: ProcessId(1),
        cgroup: None,
        command: "worker".to_owned(),
        node,
        cpu: CpuId(tid - 1),
        allowed: PerNode::filled(2, true),
        cpu_time_ns: SECOND_NS,
        run_ns: PerNode::from_fn(2, |at| if at == node { SECOND_NS } else { 0 }),
        accesses_per_s: Some(only(NodeIndex(1 - node.0), ACCESSES_PER_S)),
        latency_ns: Some(200.0),
        operations_per_s: Some(1e9),
        cycles_per_s: Some(2e9),
        transfers_per_s: Some(Transfers { within_node: 0.0, across_nodes: 1e6 }),
        memory_lines_per_s: MemoryLines::default(),
        performance: PerNode::from_fn(2, |at| (at == node).then_some(0.5)),
        sharing: vec![(partner, 1e5)],
        on_cooldown: false,
        turned_ns: None,
        in_step_ns: None,
        woken_by: None,
    }
}

/// The memory of thread `tid`.
fn group(tid: u32, home: usize) -> PageGroup {
    let on = |at: usize, value: u64| PerNode::from_fn(2, |node| if node.0 == at { value } else { 0 });
    PageGroup {
        id: GroupId { process: ProcessId(1), start: u64::from(tid) * GROUP_BYTES },
        bytes: GROUP_BYTES,
        resident_pages: on(home, GROUP_PAGES),
        huge: false,
        accesses_per_s: PerNode::from_fn(2, |node| if node.0 == node_of(tid) { ACCESSES_PER_S } else { 0.0 }),
        users: [(ThreadId { tid, start_boottime_ns: 1 }, ACCESSES_PER_S)].into(),
        samples: 100.0,
        latency_ns: Some(200.0),
        unmovable: None,
    }
}
