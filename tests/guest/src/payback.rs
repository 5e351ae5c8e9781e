// SPDX-License-Identifier: GPL-2.0-only
//! The migration-cost benchmark (R. Laso Rodriguez, PhD thesis, USC 2023, algorithm 4.1): threads that are bound to two nodes, half
//! of the pages on each, and a share of the accesses to each page from where it is. Below one half moving pays; from there on it is
//! cost alone, and nobody moves what costs more than it saves.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use tandem_guest_tests::{Memory, Scx, Worker, set_affinity, wait_until};
use tandem_view::{Client, SOCKET, ThreadView};

use crate::agent::{MOST_PAGES, PAGES, cpus, manage_every, memory_on, two_nodes};
use crate::trial;

const INTERVALS: [&str; 2] = ["--interval-ms", "1000"];
/// CPU time of each thread in which pages that are to move have begun to: enough is seen of them by then.
const SEEN_NS: u64 = 8_000_000_000;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("pages_that_the_other_node_uses_more_move", pages_that_the_other_node_uses_more_move),
        trial(
            "pages_that_their_own_node_uses_as_much_or_more_stay",
            pages_that_their_own_node_uses_as_much_or_more_stay,
        ),
        trial("pages_that_cost_more_than_they_save_stay", pages_that_cost_more_than_they_save_stay),
    ]
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

    /// Nothing moves in the time in which pages that the other node uses more would have, and it is known what the threads access.
    fn assert_stay(self) {
        wait_until("it is seen what the threads access", || self.workers.iter().all(|one| one.cpu_time_ns() > SEEN_NS));
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

fn pages_that_the_other_node_uses_more_move() {
    let report = Path::new("/tmp/payback.json");
    let benchmark = Benchmark::start(2, &["--report", &report.display().to_string()]);
    wait_until("the pages begin to change nodes", || benchmark.moved().iter().any(|&pages| pages > 0));
    let ran_ns = benchmark.workers.iter().map(Worker::cpu_time_ns).max();
    wait_until("the pages change nodes", || benchmark.moved().iter().all(|&pages| pages >= MOST_PAGES));
    assert!(ran_ns < Some(SEEN_NS), "{ran_ns:?} ns: longer than those are watched that stay");
    let report = benchmark.scx.stop_and_report(report);
    let cost_ns = report["mover"]["cost_ns_per_page"].as_f64();
    println!("a page took {cost_ns:?} ns");
    assert!(cost_ns.is_some_and(|ns| ns > 0.0), "it was learnt");
}

fn pages_that_their_own_node_uses_as_much_or_more_stay() {
    [5, 8].into_iter().for_each(|local_of_ten| Benchmark::start(local_of_ten, &[]).assert_stay());
}

/// A page takes a second, until one was measured, which none is.
fn pages_that_cost_more_than_they_save_stay() {
    Benchmark::start(2, &["--parameter", "tandem.page_move_ns=1e9"]).assert_stay();
}
