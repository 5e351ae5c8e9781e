// SPDX-License-Identifier: GPL-2.0-only
//! Another process, with memory that is far away from its thread.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use tandem_guest_tests::{Worker, set_affinity};

use crate::agent::{PAGES, cpus, far_nodes, memory_on};

/// As the first argument, makes this program a [`Visitor`].
pub const PROGRAM: &str = "visit-memory";

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

/// A user with no rights.
const NOBODY: u32 = 65534;

/// A process with memory far away from its thread.
pub struct Visitor {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Visitor {
    /// Without memory yet.
    pub fn start() -> Self {
        Self::begin(&mut Command::new("/proc/self/exe"))
    }

    /// The same of somebody else.
    pub fn start_as_nobody() -> Self {
        Self::begin(Command::new("/proc/self/exe").uid(NOBODY).gid(NOBODY))
    }

    fn begin(command: &mut Command) -> Self {
        let mut process =
            command.arg(PROGRAM).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program starts");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, orders, answers }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The first time it places its memory; then how many of its pages are where its thread is.
    pub fn near(&mut self) -> usize {
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
