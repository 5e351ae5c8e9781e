// SPDX-License-Identifier: GPL-2.0-only
//! Which threads a plan keeps where.
//!
//! A plan counts on every busy thread staying where it was seen. Without a lease the scheduler may run a thread on
//! another node whenever a CPU is idle there, and pages that follow it would follow for nothing. So a plan leases the
//! threads that it moves, and all busy ones, those that do not move as well. One that moves threads has weighed the load of the nodes. One that moves
//! pages only has not: it leases threads to a node only as far as the node's CPUs reach for what they take, and the others
//! stay free to go where there is room, unless an earlier plan leased them.

use std::time::Duration;

use tandem_policies::capacity::{Room, demands};
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

/// Whether leases that were renewed at `renewed_ns` had run out by `now_ns`: this process was stopped, or did not get a CPU, and
/// the scheduler has placed threads by itself meanwhile.
pub fn ran_out(renewed_ns: u64, lease: Duration, now_ns: u64) -> bool {
    now_ns.saturating_sub(renewed_ns) > lease.as_nanos() as u64
}

/// Threads that used at least 1 % of a CPU.
pub fn busy(snapshot: &Snapshot) -> impl Iterator<Item = &Thread> {
    snapshot.threads.iter().filter(|thread| is_busy(snapshot, thread))
}

fn is_busy(snapshot: &Snapshot, thread: &Thread) -> bool {
    thread.cpu_time_ns >= snapshot.interval_ns / 100
}

/// Whether a thread that works began within the interval: what it will do, and whether the one that made it goes on beside
/// it, shows in the next one. Threads begin by a clock that goes on while the machine sleeps: once it has slept, those that
/// begin seem to do so later than now, and are taken for old ones.
pub fn just_began(snapshot: &Snapshot) -> bool {
    let since_ns = snapshot.time_ns.saturating_sub(snapshot.interval_ns);
    busy(snapshot).any(|thread| (since_ns + 1..=snapshot.time_ns).contains(&thread.id.start_boottime_ns))
}

/// Share of its time that a thread runs on another node than its own from which on it wanders.
const WANDERS: f64 = 0.1;

/// Whether most of the threads that work went to and fro between nodes in the interval: a program that prepares its memory node by
/// node, or threads that found no place yet. Where their memory should be shows once they stay.
pub fn wander(snapshot: &Snapshot) -> bool {
    let elsewhere_ns = |thread: &Thread| thread.run_ns.values().sum::<u64>() - thread.run_ns[thread.node];
    let wanders = |thread: &&Thread| elsewhere_ns(thread) as f64 >= WANDERS * thread.cpu_time_ns as f64;
    2 * busy(snapshot).filter(wanders).count() > busy(snapshot).count()
}

/// The leases of a plan, ascending by thread; none for an empty plan.
pub fn leases(snapshot: &Snapshot, plan: &Plan) -> Vec<Lease> {
    if plan.is_empty() {
        return Vec::new();
    }
    let moves_threads = plan.moves.iter().any(|planned| !matches!(planned.action, Action::MovePages { .. }));
    let nodes = plan.thread_nodes();
    let is_leased = |thread: &&Thread| is_busy(snapshot, thread) || nodes.contains_key(&thread.id);
    let threads: Vec<&Thread> = snapshot.threads.iter().filter(is_leased).collect();
    let mut loads = PerNode::filled(snapshot.topology.len(), 0);
    let has_room = |node: NodeIndex, load: u64| Room::of(snapshot.topology.nodes[node].capacity(), 0, 0).is_free(load);
    threads
        .iter()
        .zip(demands(snapshot, &threads))
        .filter_map(|(thread, demand)| {
            let to = nodes.get(&thread.id).copied().unwrap_or(thread.node);
            if !moves_threads && !has_room(to, loads[to]) {
                return None;
            }
            loads[to] += demand;
            Some(Lease { thread: thread.id, from: thread.node, to })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, Move, ProcessId};

    use super::*;
    use crate::testing::{SECOND_NS, id, snapshot};

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
    fn leases_have_run_out_once_they_were_not_renewed_for_longer_than_they_last() {
        let lease = Duration::from_secs(3);
        assert!(!ran_out(SECOND_NS, lease, SECOND_NS) && !ran_out(SECOND_NS, lease, 4 * SECOND_NS));
        assert!(ran_out(SECOND_NS, lease, 4 * SECOND_NS + 1));
        assert!(!ran_out(2 * SECOND_NS, lease, SECOND_NS), "a time before is no time after");
    }

    #[test]
    fn threads_that_work_and_began_within_the_interval_just_began() {
        let began = |begun_ns: u64, used_ns: u64| {
            let mut snapshot = snapshot(&[(0, SECOND_NS), (0, used_ns)]);
            (snapshot.time_ns, snapshot.interval_ns) = (100 * SECOND_NS, SECOND_NS);
            snapshot.threads[1].id.start_boottime_ns = begun_ns;
            just_began(&snapshot)
        };
        let at = 99 * SECOND_NS;
        assert_eq!(
            [at, at + 1, 100 * SECOND_NS, 100 * SECOND_NS + 1].map(|at| began(at, SECOND_NS)),
            [false, true, true, false]
        );
        assert!(!began(at + 1, 0), "it does nothing yet");
    }

    #[test]
    fn threads_wander_where_most_of_those_that_work_ran_on_two_nodes() {
        let wandering = |elsewhere_percent: [u64; 3]| {
            let mut snapshot = snapshot(&[(0, SECOND_NS), (1, SECOND_NS), (0, SECOND_NS), (0, 0)]);
            for (thread, percent) in snapshot.threads.iter_mut().zip(elsewhere_percent) {
                let here = thread.node.0;
                thread.run_ns = PerNode::from_fn(2, |node| if node.0 == here { 100 - percent } else { percent });
                thread.run_ns.values_mut().for_each(|ns| *ns *= SECOND_NS / 100);
            }
            wander(&snapshot)
        };
        assert!(wandering([10, 10, 0]) && wandering([100, 50, 20]));
        assert!(!wandering([10, 9, 0]) && !wandering([100, 0, 0]) && !wandering([0; 3]));
        assert!(!wander(&snapshot(&[(0, 0)])), "nobody works");
    }

    #[test]
    fn an_empty_plan_leases_nobody() {
        assert!(leases(&snapshot(&[(0, SECOND_NS)]), &Plan::default()).is_empty());
    }

    #[test]
    fn a_thread_plan_leases_every_busy_thread_to_its_node_under_the_plan() {
        let snapshot = snapshot(&[(0, SECOND_NS), (0, SECOND_NS), (0, SECOND_NS), (1, SECOND_NS / 200)]);
        let plan = plan(Action::MoveThread { thread: id(2), from: NodeIndex(0), to: NodeIndex(1), cpu: None });
        let expected = [(1, 0, 0), (2, 0, 1), (3, 0, 0)].map(|(tid, from, to)| Lease {
            thread: id(tid),
            from: NodeIndex(from),
            to: NodeIndex(to),
        });
        assert_eq!(leases(&snapshot, &plan), expected);
    }

    #[test]
    fn a_thread_that_is_moved_is_leased_however_little_it_does() {
        let snapshot = snapshot(&[(0, SECOND_NS), (0, SECOND_NS / 200), (0, SECOND_NS / 200)]);
        let plan = plan(Action::MoveThread { thread: id(2), from: NodeIndex(0), to: NodeIndex(1), cpu: None });
        let leases = leases(&snapshot, &plan);
        assert_eq!((tids(&leases), leases[1].to), (vec![1, 2], NodeIndex(1)));
    }

    #[test]
    fn a_page_plan_holds_threads_where_they_are_as_far_as_their_node_has_cpus() {
        let snapshot = snapshot(&[(0, SECOND_NS), (0, SECOND_NS), (0, SECOND_NS), (1, SECOND_NS)]);
        let leases = leases(&snapshot, &page_plan());
        assert_eq!(tids(&leases), [1, 2, 4], "thread 3 may go where there is room");
        assert!(leases.iter().all(|lease| lease.from == lease.to));
    }

    #[test]
    fn threads_that_use_little_of_a_cpu_leave_room_for_others() {
        let fifth = SECOND_NS / 5;
        let snapshot = snapshot(&[(0, fifth), (0, fifth), (0, fifth), (0, SECOND_NS / 2)]);
        assert_eq!(tids(&leases(&snapshot, &page_plan())), [1, 2, 3, 4]);
    }
}
