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
        trial("memory_of_64_kib_pages_is_made_of_units_of_16", memory_of_64_kib_pages_is_made_of_units_of_16),
        trial("a_plan_is_made_of_page_faults", a_plan_is_made_of_page_faults),
    ]
}

const LARGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Units, in base pages, of which 1 MiB is made that was touched while pages of 64 KiB were handed out as `enabled` says.
fn units_of_1_mib(enabled: &str) -> u64 {
    const BYTES: usize = 1 << 20;
    std::fs::write(format!("{LARGE_PAGES}/hugepages-64kB/enabled"), enabled).expect("root may say so");
    let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, sharing, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    for page in 0..BYTES / 4096 {
        // SAFETY: inside the mapping.
        unsafe { start.cast::<u8>().add(page * 4096).write_volatile(1) };
    }
    let bytes = start as u64..start as u64 + BYTES as u64;
    let units = tandem_sense::folios::largest_pages(ProcessId(std::process::id()), &bytes).expect("root may ask");
    // SAFETY: mapped above.
    unsafe { libc::munmap(start, BYTES) };
    units
}

fn memory_of_64_kib_pages_is_made_of_units_of_16() {
    let setting = |size: &str| format!("{LARGE_PAGES}/hugepages-{size}/enabled");
    let Ok(before) = std::fs::read_to_string(setting("64kB")) else {
        return println!("skipped: this kernel has no pages of 64 KiB");
    };
    let whole = std::fs::read_to_string(setting("2048kB")).expect("the kernel's own page size");
    std::fs::write(setting("2048kB"), "never").expect("root may say so");
    let units = [units_of_1_mib("always"), units_of_1_mib("never")];
    for (size, text) in [("64kB", before), ("2048kB", whole)] {
        let chosen = text.split(['[', ']']).nth(1).expect("one is chosen");
        std::fs::write(setting(size), chosen).expect("root may say so");
    }
    assert_eq!(units, [16, 1]);
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
