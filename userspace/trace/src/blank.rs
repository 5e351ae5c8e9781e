// SPDX-License-Identifier: GPL-2.0-only
//! What new rows are predicted from, and what reading starts with.

use std::collections::BTreeMap;

use tandem_policies::model::{
    Action, CpuId, GroupId, GroupUsers, LatencySource, MemoryLines, Move, Node, NodeId, NodeIndex, NodeLoad, PageGroup,
    PerNode, ProcessId, Snapshot, Thread, ThreadId, Topology,
};

use crate::interval::{Answer, Decision, Interval, Outcome};

pub(crate) const THREAD_ID: ThreadId = ThreadId { tid: 0, start_boottime_ns: 0 };

pub(crate) fn interval() -> Interval {
    Interval { snapshot: snapshot(), outcomes: Vec::new(), decision: None }
}

fn snapshot() -> Snapshot {
    Snapshot {
        time_ns: 0,
        interval_ns: 0,
        topology: Topology { nodes: Vec::new().into(), latency_source: LatencySource::Distance },
        threads: Vec::new(),
        groups: Vec::new(),
        nodes: Vec::new().into(),
        process_memory: BTreeMap::new(),
        page_move_ns: None,
        huge_page_move_ns: None,
        realised_share: None,
        access_rates: None,
    }
}

pub(crate) fn node() -> Node {
    Node {
        id: NodeId(0),
        cpus: Vec::new(),
        llcs: Vec::new(),
        slow_cpus: BTreeMap::new(),
        memory_pages: 0,
        free_pages: 0,
        distance: PerNode::default(),
        latency_ns: PerNode::default(),
    }
}

pub(crate) fn load() -> NodeLoad {
    NodeLoad::default()
}

pub(crate) fn thread() -> Thread {
    Thread {
        id: THREAD_ID,
        process: ProcessId(0),
        cgroup: None,
        command: String::new(),
        node: NodeIndex(0),
        cpu: CpuId(0),
        allowed: PerNode::default(),
        cpu_time_ns: 0,
        run_ns: PerNode::default(),
        accesses_per_s: None,
        latency_ns: None,
        operations_per_s: None,
        cycles_per_s: None,
        transfers_per_s: None,
        memory_lines_per_s: MemoryLines::default(),
        performance: PerNode::default(),
        sharing: Vec::new(),
        on_cooldown: false,
        turned_ns: None,
        in_step_ns: None,
        woken_by: None,
    }
}

pub(crate) fn group() -> PageGroup {
    PageGroup {
        id: GroupId { process: ProcessId(0), start: 0 },
        bytes: 0,
        resident_pages: PerNode::default(),
        huge: false,
        accesses_per_s: PerNode::default(),
        users: GroupUsers::new(),
        samples: 0.0,
        latency_ns: None,
        unmovable: None,
    }
}

pub(crate) fn planned() -> Move {
    let action = Action::MoveThread { thread: THREAD_ID, from: NodeIndex(0), to: NodeIndex(0), cpu: None };
    Move { action, gain_ns_per_s: None, reason: String::new() }
}

pub(crate) fn decision() -> Decision {
    Decision { seed: 0, answers: Vec::new(), taken: None, generation: None }
}

pub(crate) fn answer() -> Answer {
    Answer::Missing(String::new())
}

pub(crate) fn outcome() -> Outcome {
    Outcome::Refused { thread: THREAD_ID, why: String::new() }
}

pub(crate) fn pages_outcome() -> Outcome {
    Outcome::Pages {
        generation: 0,
        undo: false,
        group: group().id,
        to: NodeId(0),
        requested_pages: 0,
        moved_pages: 0,
        time_ns: 0,
        ended: String::new(),
    }
}

pub(crate) fn judged_outcome() -> Outcome {
    Outcome::Judged { generation: 0, before_ns: None, after_ns: None, undone: false }
}
