// SPDX-License-Identifier: GPL-2.0-only
//! Cold memory beside a node without CPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use tandem_guest_tests::{Memory, Worker, set_affinity, wait_until};
use tandem_policies::model::{Node, PAGE_BYTES, Topology};

use crate::agent::{MOST_PAGES, PAGES, cpus, manage_this_process, memory_on};
use crate::trial;

/// Memory that is taken at a time to make a node short of it; less than what a node that is short has left.
const PART_BYTES: usize = 4 << 20;
/// What is kept free on a node; more than by default, so that the kernel has enough where a node is short.
const RESERVE_PERCENT: u64 = 15;
/// A node with less than 5 % besides is short of memory, and with this by more than is used here.
const SHORT_PERCENT: u64 = 2;
/// CPU time in which enough is seen of what a thread uses.
const SEEN_NS: u64 = 5_000_000_000;

/// Of a machine that has such a node.
pub fn tests(topology: &Topology) -> Vec<Trial> {
    let Some([near, without_cpus]) = nodes(topology) else { return Vec::new() };
    let test = move || cold_memory_goes_to_a_node_without_cpus(&near, &without_cpus);
    vec![trial("cold_memory_goes_to_a_node_without_cpus_when_told_to_and_comes_back_when_used", test)]
}

/// A node with CPUs, on which the kernel has little memory of its own, and one without.
fn nodes(topology: &Topology) -> Option<[Node; 2]> {
    let is_without_cpus = |node: &&Node| node.cpus.is_empty() && node.memory_pages > 0;
    let near = topology.nodes_with_cpus().last().map(|at| &topology.nodes[at])?;
    Some([near.clone(), topology.nodes.values().find(is_without_cpus)?.clone()])
}

fn cold_memory_goes_to_a_node_without_cpus(near: &Node, without_cpus: &Node) {
    let reserve = format!("tandem.reserve_percent={RESERVE_PERCENT}");
    let scx = manage_this_process(&["--parameter", "tandem.cold_to_memory_only=1", "--parameter", &reserve]);
    let rests = Arc::new(AtomicBool::new(false));
    let used = memory_on(near, PAGES);
    let worker = Worker::doing({
        let (rests, used, own) = (Arc::clone(&rests), Arc::clone(&used), memory_on(near, PAGES / 4));
        move || {
            own.walk();
            if !rests.load(Ordering::Relaxed) {
                used.walk();
            }
        }
    });
    set_affinity(worker.tid, &cpus(near));
    wait_until("it is seen what the thread uses", || worker.cpu_time_ns() > SEEN_NS);
    let taken = make_short(near);
    assert_eq!(used.pages_on(near.id.0), PAGES, "what is used stays");
    rests.store(true, Ordering::Relaxed);
    wait_until("what nobody uses makes room", || used.pages_on(without_cpus.id.0) >= MOST_PAGES);
    drop(taken);
    rests.store(false, Ordering::Relaxed);
    wait_until("what is used again comes back", || used.pages_on(near.id.0) >= MOST_PAGES);
    assert!(scx.stop().success());
}

/// Takes memory of a node until it is short of it.
fn make_short(node: &Node) -> Vec<Memory> {
    let mut taken = Vec::new();
    let free_pages = || {
        let now = tandem_machine::read_running().expect("the guest has a topology").topology;
        now.nodes[now.index_of(node.id).expect("it is still there")].free_pages
    };
    while free_pages() * 100 >= node.memory_pages * (RESERVE_PERCENT + SHORT_PERCENT) {
        taken.push(Memory::on_node(node.id.0, PART_BYTES));
    }
    println!("{} MiB taken, {} MiB left", (taken.len() * PART_BYTES) >> 20, (free_pages() * PAGE_BYTES) >> 20);
    taken
}
