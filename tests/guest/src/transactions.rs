// SPDX-License-Identifier: GPL-2.0-only
//! Assignments: every outcome has its case, and what is refused changes nothing.

use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::{AssignOutcome, Assignment, Scheduler};
use tandem_guest_tests::{Scx, Worker, assignment, monotonic_ns, set_affinity, wait_until};

use tandem_policies::model::NodeIndex;

use crate::trial;

const LEASE: Duration = Duration::from_secs(20);

pub fn tests() -> Vec<Trial> {
    vec![
        trial("an_assigned_thread_runs_on_its_node", an_assigned_thread_runs_on_its_node),
        trial("full_nodes_exchange_their_threads", full_nodes_exchange_their_threads),
        trial("bad_assignments_are_refused_each_for_its_reason", bad_assignments_are_refused_each_for_its_reason),
        trial("withdrawing_ends_an_assignment", withdrawing_ends_an_assignment),
        trial("affinity_is_stronger_than_an_assignment", affinity_is_stronger_than_an_assignment),
        trial("a_large_batch_is_answered_in_order", a_large_batch_is_answered_in_order),
    ]
}

/// An assignment of a worker that is right in every field, and not the first.
fn good(worker: &Worker, scheduler: &Scheduler, node: u32) -> Assignment {
    Assignment { generation: 10, ..assignment(&worker.record(scheduler), NodeIndex(node as usize), LEASE) }
}

fn assign_one(scheduler: &mut Scheduler, assignment: Assignment) -> AssignOutcome {
    scheduler.assign(&[assignment]).expect("the batch is taken")[0]
}

/// Waits until a worker runs on `node` only.
fn wait_until_on(worker: &Worker, scheduler: &Scheduler, node: u32) {
    wait_until("the thread runs on its node", || {
        let before = worker.record(scheduler).run_ns;
        std::thread::sleep(std::time::Duration::from_millis(200));
        let after = worker.record(scheduler).run_ns;
        let ran: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        ran[node as usize] > 0 && ran.iter().sum::<u64>() == ran[node as usize]
    });
}

fn nodes_with_cpus(scx: &Scx) -> Vec<u32> {
    scx.topology.nodes_with_cpus().map(|node| node.0 as u32).collect()
}

fn an_assigned_thread_runs_on_its_node() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    for node in nodes_with_cpus(&scx) {
        let assignment = good(&worker, &scheduler, node);
        assert_eq!(assign_one(&mut scheduler, assignment), AssignOutcome::Applied);
        wait_until_on(&worker, &scheduler, node);
        assert_eq!(worker.record(&scheduler).assigned, Some(node));
    }
}

/// No CPU is idle: threads change places only by meeting in the queues.
fn full_nodes_exchange_their_threads() {
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes = nodes_with_cpus(&scx);
    let places: Vec<u32> = nodes
        .iter()
        .flat_map(|&node| {
            let cpus = scx.topology.nodes[tandem_policies::model::NodeIndex(node as usize)].cpus.len();
            std::iter::repeat_n(node, cpus)
        })
        .collect();
    let workers: Vec<Worker> = places.iter().map(|_| Worker::start()).collect();
    for turn in 0..2 {
        let batch: Vec<Assignment> = workers
            .iter()
            .zip(&places)
            .map(|(worker, place)| {
                let at = nodes.iter().position(|node| node == place).expect("one of them");
                good(worker, &scheduler, nodes[(at + turn) % nodes.len()])
            })
            .collect();
        let outcomes = scheduler.assign(&batch).expect("the batch is taken");
        assert!(outcomes.iter().all(|&outcome| outcome == AssignOutcome::Applied), "{outcomes:?}");
        for (worker, assignment) in workers.iter().zip(&batch) {
            wait_until_on(worker, &scheduler, assignment.node.expect("given"));
        }
    }
}

fn bad_assignments_are_refused_each_for_its_reason() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes = nodes_with_cpus(&scx);
    let right = good(&worker, &scheduler, nodes[0]);
    assert_eq!(assign_one(&mut scheduler, right), AssignOutcome::Applied);
    let other = Some(nodes[1]);
    let now_ns = monotonic_ns();
    let mut cases = vec![
        (AssignOutcome::NoTask, Assignment { tid: 4_000_000, node: other, ..right }),
        (
            AssignOutcome::WrongStart,
            Assignment { start_boottime_ns: right.start_boottime_ns + 1, node: other, ..right },
        ),
        (AssignOutcome::Stale, Assignment { generation: right.generation - 1, node: other, ..right }),
        (AssignOutcome::Expired, Assignment { expires_ns: now_ns - 1, node: other, ..right }),
        (AssignOutcome::LeaseTooLong, Assignment { expires_ns: now_ns + 3_600_000_000_000, node: other, ..right }),
        (AssignOutcome::BadNode, Assignment { node: Some(scx.topology.len() as u32), ..right }),
        (AssignOutcome::BadNode, Assignment { node: Some(4_000_000_000), ..right }),
    ];
    if let Some((memory_only, _)) = scx.topology.nodes.iter().find(|(_, node)| node.cpus.is_empty()) {
        cases.push((AssignOutcome::BadNode, Assignment { node: Some(memory_only.0 as u32), ..right }));
    }
    for (reason, assignment) in cases {
        let counted = |scheduler: &Scheduler| {
            let statistics = scheduler.statistics().expect("statistics");
            statistics.assignments().find(|&(outcome, _)| outcome == reason).expect("counted").1
        };
        let before = counted(&scheduler);
        assert_eq!(assign_one(&mut scheduler, assignment), reason);
        assert_eq!(counted(&scheduler), before + 1, "{reason:?} is counted");
        assert_eq!(worker.record(&scheduler).assigned, Some(nodes[0]), "{reason:?} changes nothing");
    }
}

fn withdrawing_ends_an_assignment() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let assignment = good(&worker, &scheduler, nodes_with_cpus(&scx)[1]);
    assert_eq!(assign_one(&mut scheduler, assignment), AssignOutcome::Applied);
    assert_eq!(assign_one(&mut scheduler, Assignment { node: None, ..assignment }), AssignOutcome::Applied);
    assert_eq!(worker.record(&scheduler).assigned, None);
}

fn affinity_is_stronger_than_an_assignment() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes = nodes_with_cpus(&scx);
    let cpu_of = |node: u32| scx.topology.nodes[tandem_policies::model::NodeIndex(node as usize)].cpus[0].0;
    let assignment = good(&worker, &scheduler, nodes[1]);
    assert_eq!(assign_one(&mut scheduler, assignment), AssignOutcome::Applied);
    wait_until_on(&worker, &scheduler, nodes[1]);
    // Affinity that excludes the home moves the thread, and then the assignment is refused.
    set_affinity(worker.tid, &[cpu_of(nodes[0])]);
    wait_until_on(&worker, &scheduler, nodes[0]);
    assert_eq!(assign_one(&mut scheduler, assignment), AssignOutcome::NodeForbidden);
    // Without it the lease, which still runs, counts again.
    set_affinity(worker.tid, &nodes.iter().map(|&node| cpu_of(node)).collect::<Vec<_>>());
    wait_until_on(&worker, &scheduler, nodes[1]);
}

fn a_large_batch_is_answered_in_order() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let right = good(&worker, &scheduler, nodes_with_cpus(&scx)[0]);
    let count = tandem_bpf::MAX_BATCH * 2 + 3;
    let batch: Vec<Assignment> = (0..count)
        .map(|at| if at % 3 == 0 { right } else { Assignment { tid: 4_000_000 + at as u32, ..right } })
        .collect();
    let outcomes = scheduler.assign(&batch).expect("the batches are taken");
    let expected = |at| if at % 3 == 0 { AssignOutcome::Applied } else { AssignOutcome::NoTask };
    assert_eq!(outcomes, (0..count).map(expected).collect::<Vec<_>>());
}
