// SPDX-License-Identifier: GPL-2.0-only
//! The whole loop with programs of which nothing is to be gained any more: soon it moves nothing, and then it moves nothing for long.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use tandem_guest_tests::{Scx, Worker, set_affinity};
use tandem_policies::model::Node;
use tandem_sense::monotonic_ns;

use crate::agent::{PAGES, cpus, memory_on, two_nodes};
use crate::trial;

/// Time until nothing moves any more: twice what is promised, as an emulated machine does and sees little in a second. And for how long it
/// is looked at then.
const SETTLES: Duration = Duration::from_secs(20);
const RESTS: Duration = Duration::from_secs(30);
const WORKERS: usize = 4;
/// Looks for the other one's move in a round.
const LOOKS: u64 = 10_000;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("players_of_ping_pong_come_to_rest", players_of_ping_pong_come_to_rest),
        trial("threads_that_share_all_memory_come_to_rest", threads_that_share_all_memory_come_to_rest),
        trial("threads_far_from_their_memory_come_to_rest", threads_far_from_their_memory_come_to_rest),
    ]
}

/// Loads scx_tandem, starts workers on the two nodes that are farthest from each other, and looks at what was moved when. Returns
/// the number of moves.
#[track_caller]
fn assert_comes_to_rest(start: impl FnOnce([Node; 2]) -> Vec<Worker>) -> usize {
    let (report, process) = (Path::new("/tmp/rest.json"), format!("pid={}", std::process::id()));
    let options = ["--sampler-budget", "25", "--mover-budget", "50", "--manage", &process];
    let scx = Scx::start(&[&options[..], &["--report", "/tmp/rest.json"]].concat());
    let workers = start(two_nodes(&scx));
    let begun_ns = monotonic_ns();
    // Nothing is waited for: that it lasts is what is tested.
    thread::sleep(SETTLES + RESTS);
    assert!(workers.iter().all(|worker| worker.rounds() > 0), "all get on");
    let report = scx.stop_and_report(report);
    drop(workers);
    let moves = ["thread_moves", "page_moves"].map(|kind| report[kind].as_array().expect("moves are listed"));
    println!("moves of threads and pages: {:?}", moves.map(Vec::len));
    let after_start_ns = |one: &Value| one["time_ns"].as_u64().expect("a time").saturating_sub(begun_ns);
    for plan in report["plans"].as_array().expect("plans are listed") {
        println!("{:.1} s after the start: {plan}", after_start_ns(plan) as f64 / 1e9);
    }
    for one in moves.into_iter().flatten() {
        println!("{:.1} s after the start: {one}", after_start_ns(one) as f64 / 1e9);
    }
    for one in moves.into_iter().flatten() {
        let after_ns = after_start_ns(one);
        assert!(after_ns < SETTLES.as_nanos() as u64, "{:.1} s after the start: {one}", after_ns as f64 / 1e9);
    }
    // At rest few looks are taken, and a thread that sleeps in between is not always among those that are known at the end.
    let known = report["sampler"]["covered_threads"].as_u64().expect("a number");
    assert!(known >= 1, "it is known what threads use: {}", report["sampler"]);
    moves.map(Vec::len).iter().sum()
}

/// Two that write the same memory in turns.
fn players_of_ping_pong_come_to_rest() {
    let _moves = assert_comes_to_rest(|[node, _]| {
        let (turn, memory) = (Arc::new(AtomicU64::new(0)), memory_on(&node, PAGES / 4));
        let player = |own: u64| {
            let (turn, memory) = (Arc::clone(&turn), Arc::clone(&memory));
            Worker::doing(move || {
                if (0..LOOKS).any(|_| turn.load(Ordering::Acquire) % 2 == own) {
                    memory.walk();
                    turn.fetch_add(1, Ordering::Release);
                }
            })
        };
        vec![player(0), player(1)]
    });
}

/// Each uses all of the memory, half of which is far from whomever.
fn threads_that_share_all_memory_come_to_rest() {
    let _moves = assert_comes_to_rest(|nodes| {
        let halves = nodes.map(|node| memory_on(&node, PAGES / 2));
        let worker = || {
            let halves = halves.clone();
            Worker::doing(move || halves.iter().for_each(|half| half.walk()))
        };
        std::iter::repeat_with(worker).take(WORKERS).collect()
    });
}

/// Each has memory of its own, on one or the other node, and runs on the other one until it is moved.
fn threads_far_from_their_memory_come_to_rest() {
    let moves = assert_comes_to_rest(|nodes| {
        let worker = |at: usize| {
            let memory = memory_on(&nodes[at % 2], PAGES / 4);
            let worker = Worker::doing(move || memory.walk());
            // It goes there at once, and may come back.
            set_affinity(worker.tid, &cpus(&nodes[1 - at % 2]));
            set_affinity(worker.tid, &nodes.iter().flat_map(cpus).collect::<Vec<_>>());
            worker
        };
        (0..WORKERS).map(worker).collect()
    });
    assert!(moves > 0, "there was something to be gained at first");
}
