// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel writes down about the scheduler when it is asked (SysRq-D) or ejects it.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::{AssignOutcome, Assignment};
use tandem_guest_tests::{Scx, TRACE, Worker, assignment, read, trace, wait_until};

use crate::trial;

const DUMPS: &str = "sched_ext/sched_ext_dump";

pub fn tests() -> Vec<Trial> {
    vec![trial("the_dump_shows_queues_assignments_and_leases", the_dump_shows_queues_assignments_and_leases)]
}

fn the_dump_shows_queues_assignments_and_leases() {
    const GENERATION: u64 = 4711;
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let worker = Worker::start();
    let node = scx.topology.nodes_with_cpus().last().expect("a node");
    let lasting = assignment(&worker.record(&scheduler), node, Duration::from_secs(50));
    let assignment = Assignment { generation: GENERATION, ..lasting };
    assert_eq!(scheduler.assign(&[assignment]).expect("assigned"), [AssignOutcome::Applied]);
    trace(DUMPS, true);
    fs::write("/proc/sysrq-trigger", "D").expect("SysRq-D");
    let id = scx.topology.nodes[node].id.0;
    let wanted = [
        format!("of node {id}: "),
        format!("assigned to node {id} by generation {GENERATION}, leased for 4"),
        "own queue: 0 waiting".to_owned(),
    ];
    wait_until("the dump is there", || read(TRACE).contains("claims"));
    let dump = read(TRACE);
    trace(DUMPS, false);
    let pages = dump.split(" pages resident").next().and_then(|before| before.rsplit(' ').next());
    let pages: u64 = pages.expect("a number").parse().expect("a number");
    assert!((100..1_000_000).contains(&pages), "this process has {pages} pages");
    for wanted in wanted {
        assert!(dump.contains(&wanted), "no '{wanted}' in {dump}");
    }
}
