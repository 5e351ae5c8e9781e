// SPDX-License-Identifier: GPL-2.0-only
//! Limits that somebody else set: memory nodes of a cpuset, and memory of a control group. Of a minute each: they run in the
//! full suite.

use std::path::Path;

use libtest_mimic::Trial;
use tandem_guest_tests::{ControlGroup, wait_until};

use crate::agent::{MOST_PAGES, far_nodes, manage_this_process};
use crate::trial;
use crate::visitor::Visitor;

const KIB: u64 = 1024;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("limits_of_a_cpuset_keep_pages_from_a_node", limits_of_a_cpuset_keep_pages_from_a_node)
            .with_ignored_flag(true),
        trial("limits_of_memory_are_not_run_into_by_moves", limits_of_memory_are_not_run_into_by_moves)
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
