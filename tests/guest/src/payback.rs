// SPDX-License-Identifier: GPL-2.0-only
//! The migration-cost benchmark (R. Laso Rodriguez, PhD thesis, USC 2023, algorithm 4.1): threads that are bound to two nodes, half
//! of the pages on each, and a share of the accesses to each page from where it is. Below one half moving pays; from there on it is
//! cost alone, and nobody moves what costs more than it saves.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use tandem_guest_tests::{Memory, Scx, Worker, set_affinity, wait_until};
use tandem_policies::model::Topology;
use tandem_view::{Client, SOCKET, ThreadView};

use crate::agent::{MOST_PAGES, PAGES, cpus, manage_every, memory_on, two_nodes};
use crate::trial;

const INTERVALS: [&str; 2] = ["--interval-ms", "1000"];
/// Of a machine with two nodes: on others pages that two use go between them.
pub fn tests(topology: &Topology) -> Vec<Trial> {
    if topology.len() != 2 {
        return Vec::new();
    }
    vec![trial("pages_move_if_that_pays", pages_move_if_that_pays)]
}

fn pages_move_if_that_pays() {
    let ran_ns = begin_to_move_after_ns();
    for local_of_ten in [5, 8] {
        Benchmark::start(local_of_ten, &[]).assert_stay(2 * ran_ns);
    }
    // A page takes a second, until one was measured, which none is.
    Benchmark::start(2, &["--parameter", "tandem.page_move_ns=1e9"]).assert_stay(2 * ran_ns);
}

/// The benchmark under way: a thread on each of two nodes, and as much memory there at first.
struct Benchmark {
    scx: Scx,
    nodes: [u32; 2],
    memory: [Arc<Memory>; 2],
    workers: [Worker; 2],
}

impl Benchmark {
    /// So many of ten accesses to each page come from the node where it is.
    fn start(local_of_ten: usize, options: &[&str]) -> Self {
        let scx = manage_every(&INTERVALS, options);
        let nodes = two_nodes(&scx);
        let memory = [0, 1].map(|at| memory_on(&nodes[at], PAGES));
        let workers = [0, 1].map(|at| {
            let (own, other) = (Arc::clone(&memory[at]), Arc::clone(&memory[1 - at]));
            let worker = Worker::doing(move || {
                (0..local_of_ten).for_each(|_| own.walk());
                (local_of_ten..10).for_each(|_| other.walk());
            });
            set_affinity(worker.tid, &cpus(&nodes[at]));
            worker
        });
        Self { scx, nodes: nodes.map(|node| node.id.0), memory, workers }
    }

    /// Pages of each part that are on the other node.
    fn moved(&self) -> [usize; 2] {
        [0, 1].map(|at| self.memory[at].pages_on(self.nodes[1 - at]))
    }

    /// Nothing moves until each thread had so much CPU time, and it is known then what they access.
    fn assert_stay(self, least_ns: u64) {
        wait_until("the threads work", || self.workers.iter().all(|worker| worker.cpu_time_ns() > least_ns));
        let status = Client::connect(Path::new(SOCKET)).expect("scx_tandem answers").status().expect("it answers");
        let threads = status.expect("intervals are over").threads;
        let is_ours = |thread: &&ThreadView| self.workers.iter().any(|worker| u64::from(worker.tid) == thread.tid);
        let shares: Vec<Option<f64>> = threads.iter().filter(is_ours).map(|thread| thread.local_share.0).collect();
        let stayed = [0, 1].map(|at| self.memory[at].pages_on(self.nodes[at]));
        println!("local shares {shares:?}, stayed {stayed:?}");
        assert!(shares.len() == 2 && shares.iter().all(Option::is_some), "{shares:?}");
        assert_eq!(stayed, [PAGES; 2], "{shares:?}");
        assert!(self.scx.stop().success());
    }
}

/// Pages that the other node uses more change nodes, all of them; the CPU time that a thread had when the first ones did.
fn begin_to_move_after_ns() -> u64 {
    let report = Path::new("/tmp/payback.json");
    let benchmark = Benchmark::start(2, &["--report", &report.display().to_string()]);
    wait_until("the pages begin to change nodes", || benchmark.moved().iter().any(|&pages| pages > 0));
    let ran_ns = benchmark.workers.iter().map(Worker::cpu_time_ns).max().expect("there are two");
    wait_until("the pages change nodes", || benchmark.moved().iter().all(|&pages| pages >= MOST_PAGES));
    let mut client = Client::connect(Path::new(SOCKET)).expect("scx_tandem answers");
    let mut intervals = || client.status().expect("it answers").map_or(0, |status| status.activity.intervals);
    let moved_in = intervals();
    wait_until("that interval is over", || intervals() > moved_in);
    let report = benchmark.scx.stop_and_report(report);
    let cost_ns = report["mover"]["cost_ns_per_page"].as_f64();
    println!("pages began to move after {ran_ns} ns of CPU time, and took {cost_ns:?} ns each");
    assert!(cost_ns.is_some_and(|ns| ns > 0.0), "it was learnt");
    ran_ns
}
