// SPDX-License-Identifier: GPL-2.0-only
//! Limits that somebody else set: memory nodes of a cpuset, and memory of a control group. Of a minute each: they run in the
//! full suite.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use tandem_guest_tests::{ControlGroup, wait_until};
use tandem_view::{Client, SOCKET, Status};

use crate::agent::{LONG_INTERVAL_NS, MOST_PAGES, far_nodes, manage_this_process};
use crate::visitor::Visitor;
use crate::{trial, tuning};

const KIB: u64 = 1024;

/// Pages that would gain by a move have been moved by then.
const INTERVALS: u64 = 5;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("limits_of_a_cpuset_keep_pages_from_a_node", limits_of_a_cpuset_keep_pages_from_a_node)
            .with_ignored_flag(true),
        trial("limits_of_memory_are_not_run_into_by_moves", limits_of_memory_are_not_run_into_by_moves)
            .with_ignored_flag(true),
        trial("limits_that_a_task_waits_at_hold_moves_up", limits_that_a_task_waits_at_hold_moves_up)
            .with_ignored_flag(true),
    ]
}

/// Both would gain by the same moves; all of it is decided at once, when of both is known what they use.
fn limits_of_a_cpuset_keep_pages_from_a_node() {
    let set = ControlGroup::new("one-memory");
    let report = Path::new("/tmp/limits.json");
    let (mut bound, mut free) = (Visitor::start(), Visitor::start());
    let [home, _] = far_nodes(&tandem_machine::read_running().expect("the guest has a topology").topology);
    set.set("cpuset.mems", &home.id.0.to_string());
    set.take(bound.pid());
    // Memory is placed under the scheduler: before, the kernel's own balancing would move it.
    let scx = manage_this_process(&["--policy", "none+locality", "--report", &report.display().to_string()]);
    bound.near();
    free.near();
    wait_until("the pages of the other come", || free.near() >= MOST_PAGES);
    assert_eq!(bound.near(), 0);
    let report = scx.stop_and_report(report);
    let moves = report["page_moves"].as_array().expect("moves are listed");
    let of = |visitor: &Visitor| moves.iter().filter(|one| one["process"] == visitor.pid()).count();
    assert!(of(&free) > 0, "{report}");
    assert_eq!(of(&bound), 0, "they were not even tried: {report}");
    drop(bound);
}

/// A control group has room for less than one batch of pages, and all its pages move.
fn limits_of_memory_are_not_run_into_by_moves() {
    let group = ControlGroup::new("full");
    let mut visitor = Visitor::start();
    group.take(visitor.pid());
    let scx = manage_this_process(&["--policy", "none+locality"]);
    visitor.near();
    let used: u64 = group.get("memory.current").parse().expect("a number");
    group.set("memory.high", &(used + 512 * KIB).to_string());
    group.set("memory.max", &(used + 768 * KIB).to_string());
    let events = || group.get("memory.events");
    let before = events();
    wait_until("the pages come", || visitor.near() >= MOST_PAGES);
    assert_eq!(events(), before, "it was pushed into reclaim");
    assert!(scx.stop().success());
    drop(visitor);
}

/// The percent of the last 10 s in which some task waited for memory.
fn waited_percent() -> f64 {
    let text = std::fs::read_to_string("/proc/pressure/memory").expect("the kernel tells pressure");
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10=")).expect("it tells the last 10 s");
    some.split(' ').next().and_then(|percent| percent.parse().ok()).expect("a number")
}

/// A process of a control group wants more memory than that may have, so the kernel lets it wait.
fn limits_that_a_task_waits_at_hold_moves_up() {
    let group = ControlGroup::new("pressed");
    group.set("memory.high", "8M");
    let hog = Command::new("/proc/self/exe").args([tuning::PROGRAM, "/tmp/pressed"]).spawn();
    let mut hog = hog.expect("this program starts");
    group.take(hog.id());
    wait_until("its task waits for memory", || waited_percent() > 40.0);
    let (report, mut visitor) = (Path::new("/tmp/pressed.json"), Visitor::start());
    let scx = manage_this_process(&["--policy", "none+locality", "--report", &report.display().to_string()]);
    visitor.near();
    wait_until("moves wait", || scx.log().contains("page moves wait until that is below 5 %"));
    let mut client = Client::connect(Path::new(SOCKET)).expect("scx_tandem answers");
    let mut status = || client.status().expect("scx_tandem answers");
    let pid = u64::from(visitor.pid());
    let known = |status: &Status| {
        let mut threads = status.threads.iter().filter(|thread| thread.pid == pid);
        threads.any(|thread| thread.accesses_per_s.iter().any(|&per_s| per_s > 0.0))
    };
    let mut known_at_ns = 0;
    wait_until("it is known who uses the memory", || {
        known_at_ns = status().filter(known).map_or(0, |status| status.time_ns);
        known_at_ns > 0
    });
    let over_ns = known_at_ns + INTERVALS * LONG_INTERVAL_NS;
    wait_until("some intervals are over", || status().is_some_and(|status| status.time_ns > over_ns));
    assert_eq!(visitor.near(), 0);
    assert!(waited_percent() > 5.0, "there is pressure still");
    hog.kill().expect("it is a child");
    hog.wait().expect("it is a child");
    wait_until("the pages come", || visitor.near() >= MOST_PAGES);
    assert!(scx.log().contains("memory pressure has ended: page moves go on"), "{}", scx.log());
    let report = scx.stop_and_report(report);
    assert_eq!(report["mover"]["pressure_pauses"], 1, "{}", report["mover"]);
    drop(visitor);
}
