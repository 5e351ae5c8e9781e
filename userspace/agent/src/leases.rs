// SPDX-License-Identifier: GPL-2.0-only
//! Which threads a plan keeps where.
//!
//! A plan counts on every busy thread staying where it was seen. Without a lease the scheduler may run a thread on
//! another node whenever a CPU is idle there, and pages that follow it would follow for nothing. So a plan leases all
//! busy threads, those that do not move as well. One that moves threads has weighed the load of the nodes. One that moves
//! pages only has not: it leases no more threads to a node than the node has CPUs, and the others stay free to go where
//! there is room.

use tandem_policies::model::{Action, NodeIndex, PerNode, Plan, Snapshot, Thread, ThreadId};

/// One thread's node before and under the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The thread.
    pub thread: ThreadId,
    /// Where it was seen.
    pub from: NodeIndex,
    /// Where it shall run.
    pub to: NodeIndex,
}

/// Threads that used at least 1 % of a CPU.
pub fn busy(snapshot: &Snapshot) -> impl Iterator<Item = &Thread> {
    snapshot.threads.iter().filter(|thread| thread.cpu_time_ns >= snapshot.interval_ns / 100)
}

/// The leases of a plan, ascending by thread; none for an empty plan.
pub fn leases(snapshot: &Snapshot, plan: &Plan) -> Vec<Lease> {
    if plan.is_empty() {
        return Vec::new();
    }
    let moves_threads = plan.moves.iter().any(|planned| !matches!(planned.action, Action::MovePages { .. }));
    let after = snapshot.after_thread_moves(plan);
    let mut room = PerNode::from_fn(snapshot.topology.len(), |node| snapshot.topology.nodes[node].cpus.len());
    busy(snapshot)
        .filter_map(|thread| {
            let to = after.thread(thread.id).expect("the same threads after the plan").node;
            if !moves_threads {
                room[to] = room[to].checked_sub(1)?;
            }
            Some(Lease { thread: thread.id, from: thread.node, to })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{
        CpuId, GroupId, LatencySource, Move, Node, NodeId, NodeLoad, PerNode, ProcessId, Topology,
    };

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn id(tid: u32) -> ThreadId {
        ThreadId { tid, start_boottime_ns: 1 }
    }

    /// Two nodes of two CPUs; threads 1, 2, ... on `nodes`, which used the CPU time beside them.
    fn snapshot(threads: &[(usize, u64)]) -> Snapshot {
        let node = |at: u32| Node {
            id: NodeId(at),
            cpus: vec![CpuId(2 * at), CpuId(2 * at + 1)],
            llcs: vec![vec![CpuId(2 * at), CpuId(2 * at + 1)]],
            memory_pages: 1 << 20,
            free_pages: 1 << 20,
            distance: PerNode::from_fn(2, |other| if other.0 == at as usize { 10 } else { 20 }),
            latency_ns: PerNode::from_fn(2, |other| if other.0 == at as usize { 100.0 } else { 200.0 }),
        };
        let thread = |(at, &(node, cpu_time_ns)): (usize, &(usize, u64))| Thread {
            id: id(at as u32 + 1),
            process: ProcessId(1),
            command: "worker".to_owned(),
            node: NodeIndex(node),
            allowed: PerNode::filled(2, true),
            cpu_time_ns,
            run_ns: PerNode::filled(2, cpu_time_ns / 2),
            accesses_per_s: None,
            latency_ns: None,
            performance: PerNode::filled(2, None),
            sharing: vec![],
            on_cooldown: false,
        };
        Snapshot {
            time_ns: SECOND_NS,
            interval_ns: SECOND_NS,
            topology: Topology::new(vec![node(0), node(1)], LatencySource::Distance).unwrap(),
            threads: threads.iter().enumerate().map(thread).collect(),
            groups: vec![],
            nodes: PerNode::filled(2, NodeLoad { busy_ns: 0, unmanaged_ns: 0, served_latency_ns: None }),
        }
    }

    fn plan(action: Action) -> Plan {
        Plan { moves: vec![Move { action, gain_ns_per_s: None, reason: "test".to_owned() }] }
    }

    fn page_plan() -> Plan {
        plan(Action::MovePages { group: GroupId { process: ProcessId(1), start: 0 }, bytes: 4096, to: NodeIndex(1) })
    }

    fn tids(leases: &[Lease]) -> Vec<u32> {
        leases.iter().map(|lease| lease.thread.tid).collect()
    }

    #[test]
    fn an_empty_plan_leases_nobody() {
        assert!(leases(&snapshot(&[(0, SECOND_NS)]), &Plan::default()).is_empty());
    }

    #[test]
    fn a_thread_plan_leases_every_busy_thread_to_its_node_under_the_plan() {
        let snapshot = snapshot(&[(0, SECOND_NS), (0, SECOND_NS), (0, SECOND_NS), (1, SECOND_NS / 200)]);
        let plan = plan(Action::MoveThread { thread: id(2), from: NodeIndex(0), to: NodeIndex(1) });
        let expected = [(1, 0, 0), (2, 0, 1), (3, 0, 0)].map(|(tid, from, to)| Lease {
            thread: id(tid),
            from: NodeIndex(from),
            to: NodeIndex(to),
        });
        assert_eq!(leases(&snapshot, &plan), expected);
    }

    #[test]
    fn a_page_plan_holds_threads_where_they_are_as_far_as_their_node_has_cpus() {
        let snapshot = snapshot(&[(0, SECOND_NS), (0, SECOND_NS), (0, SECOND_NS), (1, SECOND_NS)]);
        let leases = leases(&snapshot, &page_plan());
        assert_eq!(tids(&leases), [1, 2, 4], "thread 3 may go where there is room");
        assert!(leases.iter().all(|lease| lease.from == lease.to));
    }
}
