// SPDX-License-Identifier: GPL-2.0-only
//! A small machine and what its threads did, for tests.

use tandem_act::{Ended, Generation, Outcome, Purpose};
use tandem_policies::decider::PolicyChoice;
use tandem_policies::model::{
    CpuId, GroupId, LatencySource, MemoryLines, Node, NodeId, NodeIndex, NodeLoad, PAGE_BYTES, PerNode, ProcessId,
    Snapshot, Thread, ThreadId, Topology,
};
use tandem_policies::stall::Locality;
use tandem_view::PlanVerdict;

use crate::config::{AgentConfig, MoverKind};
use crate::managed::ManagedSet;
use crate::report::PlanResult;

/// A plan that should save 2 ns a second.
pub fn plan_result(generation: u64, verdict: PlanVerdict) -> PlanResult {
    PlanResult {
        time_ns: 1,
        generation,
        interval: 0,
        judged_after_intervals: None,
        moves: 1,
        predicted_gain_ns_per_s: Some(2.0),
        without_ns: None,
        measured_gain_ns_per_s: None,
        waited_share: 1.0,
        before: Some(Locality { latency_ns: 100.0, remote_share: 0.5 }),
        expected: Some(Locality { latency_ns: 80.0, remote_share: 0.25 }),
        after: None,
        verdict,
        superseded_by: None,
        undone_of: Vec::new(),
    }
}

/// A move of one page that was tried, to node 1.
pub fn outcome(group: GroupId, generation: Generation, purpose: Purpose) -> Outcome {
    Outcome {
        group,
        start: group.start,
        bytes: PAGE_BYTES,
        to: NodeId(1),
        generation,
        purpose,
        ended: Ended::Done,
        requested_pages: 1,
        moved_pages: 1,
        already_there_pages: 0,
        busy_pages: 0,
        absent_pages: 0,
        shared_pages: 0,
        no_memory_pages: 0,
        invalid_pages: 0,
        moved_on_pages: 0,
        not_tried_pages: 0,
        other_pages: Default::default(),
        time_ns: 1,
    }
}

/// Of an agent that acts on nothing.
pub fn config() -> AgentConfig {
    AgentConfig {
        interval: Default::default(),
        lease: Default::default(),
        cooldown: Default::default(),
        policies: PolicyChoice::of_both("sma+none").unwrap(),
        managed: ManagedSet::new(vec![], vec![]),
        sampler_budget: 0.01,
        mover: MoverKind::MovePages,
        page_rate_bytes_per_s: 1,
        mover_budget: 0.1,
        dry_run: true,
        seed: 1,
        stats_interval: None,
        recorder: None,
        board: None,
        alive: || (),
    }
}

/// Length of the interval.
pub const SECOND_NS: u64 = 1_000_000_000;

/// A thread's id.
pub fn id(tid: u32) -> ThreadId {
    ThreadId { tid, start_boottime_ns: 1 }
}

/// Two nodes of two CPUs, 100 ns to the own memory and 200 ns to the other; threads 1, 2, ... on `nodes`, which used the CPU time beside them.
pub fn snapshot(threads: &[(usize, u64)]) -> Snapshot {
    let node = |at: u32| Node {
        id: NodeId(at),
        cpus: vec![CpuId(2 * at), CpuId(2 * at + 1)],
        llcs: vec![vec![CpuId(2 * at), CpuId(2 * at + 1)]],
        slow_cpus: Default::default(),
        memory_pages: 1 << 20,
        free_pages: 1 << 20,
        distance: PerNode::from_fn(2, |other| if other.0 == at as usize { 10 } else { 20 }),
        latency_ns: PerNode::from_fn(2, |other| if other.0 == at as usize { 100.0 } else { 200.0 }),
    };
    let thread = |(at, &(node, cpu_time_ns)): (usize, &(usize, u64))| Thread {
        id: id(at as u32 + 1),
        process: ProcessId(1),
        cgroup: None,
        command: "worker".to_owned(),
        node: NodeIndex(node),
        cpu: CpuId(2 * node as u32),
        allowed: PerNode::filled(2, true),
        cpu_time_ns,
        run_ns: PerNode::filled(2, cpu_time_ns / 2),
        accesses_per_s: None,
        latency_ns: None,
        operations_per_s: None,
        cycles_per_s: None,
        transfers_per_s: None,
        memory_lines_per_s: MemoryLines::default(),
        performance: PerNode::filled(2, None),
        sharing: vec![],
        on_cooldown: false,
        turned_ns: None,
        in_step_ns: None,
        woken_by: None,
    };
    Snapshot {
        time_ns: SECOND_NS,
        interval_ns: SECOND_NS,
        topology: Topology::new(vec![node(0), node(1)], LatencySource::Distance).unwrap(),
        threads: threads.iter().enumerate().map(thread).collect(),
        groups: vec![],
        nodes: PerNode::filled(2, NodeLoad::default()),
        process_memory: std::collections::BTreeMap::new(),
        page_move_ns: None,
        huge_page_move_ns: None,
        realised_share: None,
        access_rates: None,
    }
}

/// Threads 1 to 4, of which the first two are of process 1 and the others of process 2, all at work on these nodes.
pub fn two_processes(nodes: [usize; 4]) -> Snapshot {
    let mut snapshot = snapshot(&nodes.map(|node| (node, SECOND_NS)));
    snapshot.threads[2..].iter_mut().for_each(|thread| thread.process = ProcessId(2));
    snapshot
}
