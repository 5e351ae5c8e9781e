// SPDX-License-Identifier: GPL-2.0-only
//! Memory that does not stay where plans put it: something else moves it back each time, or its program frees it and touches it
//! anew from elsewhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::Value;
use tandem_guest_tests::{Memory, Scx, Worker, set_affinity, wait_until};
use tandem_policies::model::Node;
use tandem_view::{Client, SOCKET};

use crate::agent::{MOST_PAGES, PAGES, cpus, memory_on, two_nodes};
use crate::trial;

/// From the first move on.
const WINDOW: Duration = Duration::from_secs(30);
/// A contested group rests six cooldowns at first, 6 s, and then 12 and 24 s: it moves three times in the window, and the first
/// rest may be of a part of it only. Each time it rested for a cooldown it would move ten times and more.
const COOLDOWN: [&str; 2] = ["--cooldown-s", "1"];
const MOST_MOVES: usize = 4;
/// So long the memory stays where a plan put it.
const STAYS: Duration = Duration::from_millis(300);
/// Of base pages of 4 KiB.
const PAGES_MIB: u64 = PAGES as u64 / 256;
const WORDS: &str = "something else moves pages";

pub fn tests() -> Vec<Trial> {
    vec![
        trial(
            "pages_that_something_else_moves_back_rest_ever_longer",
            pages_that_something_else_moves_back_rest_ever_longer,
        ),
        trial(
            "pages_that_are_touched_anew_elsewhere_are_not_contested",
            pages_that_are_touched_anew_elsewhere_are_not_contested,
        ),
    ]
}

/// Somebody who puts memory back on its first node whenever it has left it, until this is dropped.
struct Rival {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    fn start(memory: Arc<Memory>, [home, away]: [Node; 2], put_back: impl Fn(&Memory) + Send + 'static) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stops = Arc::clone(&stops);
            move || {
                // SAFETY: gettid cannot fail.
                set_affinity(unsafe { libc::gettid() } as u32, &cpus(&home));
                while !stops.load(Ordering::Relaxed) {
                    thread::sleep(STAYS);
                    if memory.pages_on(away.id.0) >= MOST_PAGES {
                        thread::sleep(STAYS);
                        put_back(&memory);
                    }
                }
            }
        });
        Self { stops, thread: Some(thread) }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the rival does not panic");
        }
    }
}

fn pages_that_something_else_moves_back_rest_ever_longer() {
    let seen = watch("/tmp/contested.json", |memory, home| memory.move_to(home));
    assert!((2..=MOST_MOVES).contains(&seen.moves), "{} moves", seen.moves);
    assert_eq!(seen.log.matches(WORDS).count(), 1, "it is said once: {}", seen.log);
    assert!(seen.contested_mib >= PAGES_MIB / 2, "{} MiB", seen.contested_mib);
}

/// The kernel does not tell these pages from others, but that nobody migrated them.
fn pages_that_are_touched_anew_elsewhere_are_not_contested() {
    let seen = watch("/tmp/touched.json", |memory, _| {
        memory.free();
        memory.walk();
    });
    assert!(seen.moves > MOST_MOVES, "{} moves", seen.moves);
    assert!(seen.contested_mib == 0 && !seen.log.contains(WORDS), "{} MiB: {}", seen.contested_mib, seen.log);
}

/// What happened in the window.
struct Seen {
    /// How often a plan brought the memory to its user.
    moves: usize,
    /// The most memory that was said to be contested.
    contested_mib: u64,
    /// What scx_tandem said.
    log: String,
}

/// Lets one thread use memory from afar that is put back in some way whenever it has come.
fn watch(report: &str, put_back: fn(&Memory, u32)) -> Seen {
    let process = format!("pid={}", std::process::id());
    let options = ["--sampler-budget", "25", "--mover-budget", "50", "--policy", "none+locality", "--report", report];
    let scx = Scx::start(&[&options[..], &COOLDOWN, &["--manage", &process]].concat());
    let nodes = two_nodes(&scx);
    let [home, away] = nodes.clone();
    let disputed = memory_on(&home, PAGES);
    // Whoever touches it anew does so before its user does.
    let turn = Arc::new(Mutex::new(()));
    let user = Worker::doing({
        let (disputed, turn) = (Arc::clone(&disputed), Arc::clone(&turn));
        move || {
            let _turn = turn.lock().expect("nobody panics");
            disputed.walk();
        }
    });
    set_affinity(user.tid, &cpus(&away));
    wait_until("the pages come to their user", || disputed.pages_on(away.id.0) >= MOST_PAGES);
    let rival = Rival::start(Arc::clone(&disputed), nodes, move |memory| {
        let _turn = turn.lock().expect("nobody panics");
        put_back(memory, home.id.0);
    });
    let contested_mib = most_contested_mib();
    drop(rival);
    let log = scx.log();
    let report = scx.stop_and_report(Path::new(report));
    Seen { moves: moves_of(&report, &disputed), contested_mib, log }
}

/// Lets the window pass. The most memory of this process that scx_tandem says is contested.
fn most_contested_mib() -> u64 {
    let mut client = Client::connect(Path::new(SOCKET)).expect("scx_tandem answers");
    let (begin, own, mut most_mib) = (Instant::now(), u64::from(std::process::id()), 0);
    while begin.elapsed() < WINDOW {
        thread::sleep(STAYS);
        let status = client.status().expect("scx_tandem answers");
        let of_this = status.iter().flat_map(|status| &status.processes).filter(|process| process.pid == own);
        most_mib = of_this.map(|process| process.contested_mib).fold(most_mib, u64::max);
    }
    most_mib
}

/// Plans that moved at least half of the memory.
fn moves_of(report: &Value, memory: &Memory) -> usize {
    let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
    let number = |one: &Value, name: &str| one[name].as_u64().expect("a number");
    for one in report["page_moves"].as_array().expect("moves are listed") {
        if one["outcome"]["purpose"] == "plan" && memory.range().contains(&number(one, "start")) {
            *pages.entry(number(&one["outcome"], "generation")).or_default() += number(one, "moved_pages");
        }
    }
    println!("pages by plan: {pages:?}");
    pages.values().filter(|&&pages| pages >= PAGES as u64 / 2).count()
}
