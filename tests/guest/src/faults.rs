// SPDX-License-Identifier: GPL-2.0-only
//! The `fault` sampler on a kernel that tracks writes and balances memory: threads that use the same pages all the time
//! fault again, and an agent that sees nothing else makes a plan.

use std::cell::RefCell;
use std::sync::Arc;

use libtest_mimic::Trial;
use tandem_guest_tests::{Memory, Scx, Worker, set_affinity, set_sched_ext, wait_until};
use tandem_policies::model::ProcessId;
use tandem_sense::{Fault, FaultConfig, FaultCounters, Sampler, monotonic_ns};

use crate::agent::{PAGES, cpus, manage_this_process, memory_on, two_nodes};
use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("writes_fault_again_in_full_mode", writes_fault_again_in_full_mode),
        trial("reads_fault_again_in_partial_mode", reads_fault_again_in_partial_mode),
        trial("a_plan_is_made_of_page_faults", a_plan_is_made_of_page_faults),
    ]
}

/// Waits until `worker` has faulted at every page of `memory` on the average; returns what the sampler counted. All the
/// pages have been there before.
fn wait_for_faults(scx: &Scx, memory: &Memory, worker: &Worker, hints: bool) -> FaultCounters {
    let online: Vec<_> = scx.topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let opened = Fault::open(FaultConfig { budget_fraction: 0.5, hints }, &online);
    let fault = opened.unwrap_or_else(|error| panic!("{error}"));
    let (fault, seen) = (RefCell::new(fault), RefCell::new(0));
    fault.borrow_mut().set_managed(&[ProcessId(std::process::id())].into());
    wait_until("a thread faults again at pages that it has used before", || {
        let batch = fault.borrow_mut().drain(monotonic_ns()).expect("the sampler goes on");
        let of_worker = |access: &&tandem_sense::Access| {
            access.tid == worker.tid
                && memory.range().contains(&access.address)
                && access.measured.is_some_and(|measured| measured.physical.is_some())
        };
        *seen.borrow_mut() += batch.accesses.iter().filter(of_worker).count();
        *seen.borrow() >= PAGES
    });
    let counters = *fault.borrow().counters();
    println!("{counters:?}");
    counters
}

fn writes_fault_again_in_full_mode() {
    let scx = Scx::start_observing();
    let memory = memory_on(&two_nodes(&scx)[0], PAGES);
    let worker = Worker::doing({
        let memory = Arc::clone(&memory);
        move || memory.walk()
    });
    let counters = wait_for_faults(&scx, &memory, &worker, false);
    assert!(counters.write_rounds > 0 && counters.hint_rounds == 0, "{counters:?}");
}

fn reads_fault_again_in_partial_mode() {
    let scx = Scx::start(&["--dry-run", "--partial"]);
    let memory = memory_on(&two_nodes(&scx)[0], PAGES);
    let worker = Worker::doing({
        let memory = Arc::clone(&memory);
        move || memory.read()
    });
    set_sched_ext(worker.tid);
    let counters = wait_for_faults(&scx, &memory, &worker, true);
    assert!(counters.hint_rounds > 0, "{counters:?}");
}

fn a_plan_is_made_of_page_faults() {
    let scx = manage_this_process(&["--sampler", "fault"]);
    let [home, away] = two_nodes(&scx);
    let memory = memory_on(&home, PAGES);
    let worker = Worker::doing(move || memory.walk());
    set_affinity(worker.tid, &cpus(&away));
    wait_until("a plan is made", || scx.log().contains("saves"));
    drop(worker);
    assert!(scx.stop().success());
}
