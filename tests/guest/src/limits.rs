// SPDX-License-Identifier: GPL-2.0-only
//! Limits that somebody else set: memory nodes of a cpuset, and memory of a control group. Of a minute each: they run in the
//! full suite.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use libtest_mimic::Trial;
use tandem_guest_tests::{ControlGroup, Worker, set_affinity, wait_until};

use crate::agent::{MOST_PAGES, PAGES, cpus, far_nodes, manage_this_process, memory_on};
use crate::trial;

/// As the first argument, makes this program a [`Visitor`].
pub const PROGRAM: &str = "visit-memory";
const KIB: u64 = 1024;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("limits_of_a_cpuset_keep_pages_from_a_node", limits_of_a_cpuset_keep_pages_from_a_node)
            .with_ignored_flag(true),
        trial("limits_of_memory_are_not_run_into_by_moves", limits_of_memory_are_not_run_into_by_moves)
            .with_ignored_flag(true),
    ]
}

/// The program: at a first line it places memory on a node, then uses it from one that is far away; at each further line it
/// says how many pages are there.
pub fn visit_memory() {
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    let [home, away] = far_nodes(&topology);
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().is_some_and(|line| line.is_ok());
    if !next() {
        return;
    }
    let memory = memory_on(&home, PAGES);
    let worker = Worker::doing({
        let memory = Arc::clone(&memory);
        move || memory.walk()
    });
    set_affinity(worker.tid, &cpus(&away));
    println!("0");
    while next() {
        println!("{}", memory.pages_on(away.id.0));
    }
}

/// A process with memory far away from its thread.
struct Visitor {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Visitor {
    /// Without memory yet.
    fn start() -> Self {
        let mut command = Command::new("/proc/self/exe");
        let mut process =
            command.arg(PROGRAM).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program starts");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, orders, answers }
    }

    /// The first time it places its memory; then how many of its pages are where its thread is.
    fn near(&mut self) -> usize {
        writeln!(self.orders).expect("it reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it answers");
        answer.trim().parse().expect("a number")
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.process.kill().expect("it has not been waited for");
        self.process.wait().expect("a child can be waited for");
    }
}

/// Both would gain by the same moves; all of it is decided at once, when of both is known what they use.
fn limits_of_a_cpuset_keep_pages_from_a_node() {
    let set = ControlGroup::new("one-memory");
    let report = Path::new("/tmp/limits.json");
    let (mut bound, mut free) = (Visitor::start(), Visitor::start());
    let [home, _] = far_nodes(&tandem_machine::read_running().expect("the guest has a topology").topology);
    set.set("cpuset.mems", &home.id.0.to_string());
    set.take(bound.process.id());
    // Memory is placed under the scheduler: before, the kernel's own balancing would move it.
    let scx = manage_this_process(&["--policy", "none+locality", "--report", &report.display().to_string()]);
    bound.near();
    free.near();
    wait_until("the pages of the other come", || free.near() >= MOST_PAGES);
    assert_eq!(bound.near(), 0);
    let report = scx.stop_and_report(report);
    let moves = report["page_moves"].as_array().expect("moves are listed");
    let of = |visitor: &Visitor| moves.iter().filter(|one| one["process"] == visitor.process.id()).count();
    assert!(of(&free) > 0, "{report}");
    assert_eq!(of(&bound), 0, "they were not even tried: {report}");
    drop(bound);
}

/// A control group has room for less than one batch of pages, and all its pages move.
fn limits_of_memory_are_not_run_into_by_moves() {
    let group = ControlGroup::new("full");
    let mut visitor = Visitor::start();
    group.take(visitor.process.id());
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
