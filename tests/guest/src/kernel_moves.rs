// SPDX-License-Identifier: GPL-2.0-only
//! `--mover kernel`: the kernel's own NUMA balancing brings pages to where a plan wants them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use tandem_guest_tests::{
    Memory, Scx, Worker, program, read, scx_tandem_fails, set_affinity, set_fair, set_sched_ext, unload, wait_until,
};

use crate::agent::{MOST_PAGES, PAGES, cpus, manage_this_process, memory_on, two_nodes};
use crate::trial;

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const NOTE: &str = "/run/scx_tandem.lent.pages";

pub fn tests() -> Vec<Trial> {
    vec![
        trial("the_kernel_brings_pages_where_a_plan_wants_them", the_kernel_brings_pages_where_a_plan_wants_them),
        trial("what_a_killed_agent_had_lent_is_taken_back", what_a_killed_agent_had_lent_is_taken_back),
        trial(
            "the_kernel_is_not_left_to_move_pages_while_it_does_not",
            the_kernel_is_not_left_to_move_pages_while_it_does_not,
        ),
    ]
}

/// The kernel's NUMA balancing, which is as before afterwards.
struct Balancing(String);

impl Balancing {
    fn set(to: &str) -> Self {
        let before = read(BALANCING);
        fs::write(BALANCING, to).expect("root may say so");
        Self(before)
    }
}

impl Drop for Balancing {
    fn drop(&mut self) {
        fs::write(BALANCING, &self.0).expect("root may say so");
    }
}

/// Makes the calling thread, and those that it starts, of class SCHED_EXT until this is dropped: else the kernel looks at the
/// memory of their process in the one that is not, and brings pages without a plan.
struct OfOurClass;

impl OfOurClass {
    fn enter() -> Self {
        set_sched_ext(0);
        Self
    }
}

impl Drop for OfOurClass {
    fn drop(&mut self) {
        set_fair(0);
    }
}

/// A thread that walks through memory of another node, under a scheduler that has the kernel move pages.
fn walk_from_afar(report: &Path) -> (Scx, OfOurClass, Worker, Arc<Memory>, u32) {
    let report = report.display().to_string();
    let scx =
        manage_this_process(&["--partial", "--mover", "kernel", "--policy", "none+locality", "--report", &report]);
    let class = OfOurClass::enter();
    let [home, away] = two_nodes(&scx);
    let memory = memory_on(&home, PAGES);
    let worker = Worker::doing({
        let memory = Arc::clone(&memory);
        move || memory.walk()
    });
    set_affinity(worker.tid, &cpus(&away));
    (scx, class, worker, memory, away.id.0)
}

fn class_of(worker: &Worker) -> i32 {
    // SAFETY: takes no pointers.
    unsafe { libc::sched_getscheduler(worker.tid as i32) }
}

const SCHED_EXT: i32 = 7;

fn the_kernel_brings_pages_where_a_plan_wants_them() {
    let _on = Balancing::set("1");
    let report = Path::new("/tmp/kernel_moves.json");
    let (scx, _class, worker, memory, away) = walk_from_afar(report);
    wait_until("the kernel brings the pages", || memory.pages_on(away) >= MOST_PAGES);
    wait_until("what was lent is taken back", || class_of(&worker) == SCHED_EXT && fs::metadata(NOTE).is_err());
    let report = scx.stop_and_report(report);
    let moved = |one: &serde_json::Value| one["outcome"]["moved_pages"].as_u64().expect("each has its outcome");
    let moves = report["page_moves"].as_array().expect("moves are listed");
    assert!(moves.iter().map(moved).sum::<u64>() >= MOST_PAGES as u64, "{moves:?}");
}

fn what_a_killed_agent_had_lent_is_taken_back() {
    let _on = Balancing::set("1");
    wait_until("it is killed before it takes the thread back", || {
        let (scx, _class, worker, ..) = walk_from_afar(Path::new("/dev/null"));
        wait_until("the thread is lent", || class_of(&worker) == libc::SCHED_OTHER && fs::metadata(NOTE).is_ok());
        scx.kill();
        let killed_in_time = class_of(&worker) == libc::SCHED_OTHER;
        unload();
        assert_eq!((class_of(&worker), fs::metadata(NOTE).is_err()), (SCHED_EXT, true));
        killed_in_time
    });
}

fn the_kernel_is_not_left_to_move_pages_while_it_does_not() {
    let _off = Balancing::set("0");
    let refusal = scx_tandem_fails(program().args(["--partial", "--mover", "kernel"]));
    assert!(refusal.message.contains("which is off: sysctl kernel.numa_balancing=1"), "{}", refusal.message);
}
