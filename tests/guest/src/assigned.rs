// SPDX-License-Identifier: GPL-2.0-only
//! `tandem tune --threads-by assignments`: threads that scx_tandem keeps on their nodes.

use std::fs;
use std::hint::spin_loop;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_guest_tests::state;

use crate::trial;
use crate::tuning::{Bench, assert_nothing_is_loaded, note, result, words};

/// As the first argument, makes this program the one that is tuned.
pub const PROGRAM: &str = "tell-seats";

/// Its threads, the main one included, whatever it is told.
const THREADS: usize = 4;
/// Nodes of the machine that this is for.
const NODES: usize = 2;
/// For how long it looks where they run.
const LOOKS_FOR: Duration = Duration::from_secs(1);
/// How much longer it takes where they are not as they shall be.
const LATER: Duration = Duration::from_secs(6);

pub fn tests() -> Vec<Trial> {
    // Minutes, so that one machine a kernel has to do.
    let test = trial("tuning_by_assignments_keeps_threads_on_nodes", tuning_by_assignments_keeps_threads_on_nodes);
    vec![test.with_ignored_flag(true)]
}

/// The program: notes the scheduler, on how few CPUs one of its threads may run, and by thread the node that it was on for
/// most of its time, and how much of it that was at least, in percent. Takes longer unless the first two were on one node and the others on another one.
pub fn tell_seats(notes: &Path) {
    let had = state();
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(look)).collect();
        let own = look();
        std::iter::once(own).chain(others.into_iter().map(|one| one.join().expect("it looks"))).collect()
    });
    let nodes: Vec<usize> = seen.iter().map(Seen::node).collect();
    let stays = seen.iter().map(|one| one.share_percent()).min().expect("there are threads");
    let cpus = seen.iter().map(|one| one.cpus).min().expect("there are threads");
    note(notes, &format!("{had} {cpus} {stays} {nodes:?}"));
    if !is_contiguous(&nodes) {
        let end = Instant::now() + LATER;
        while Instant::now() < end {
            spin_loop();
        }
    }
}

fn is_contiguous(nodes: &[usize]) -> bool {
    nodes[0] == nodes[1] && nodes[2] == nodes[3] && nodes[1] != nodes[2]
}

/// Where a thread was.
struct Seen {
    cpus: usize,
    /// Looks by node.
    looks: [u64; NODES],
}

impl Seen {
    /// Where it was most.
    fn node(&self) -> usize {
        (0..NODES).max_by_key(|&node| self.looks[node]).expect("there are nodes")
    }

    fn share_percent(&self) -> u64 {
        self.looks[self.node()] * 100 / self.looks.iter().sum::<u64>()
    }
}

fn look() -> Seen {
    let end = Instant::now() + LOOKS_FOR;
    let mut seen = Seen { cpus: allowed_cpus(), looks: [0; NODES] };
    while Instant::now() < end {
        seen.looks[own_node()] += 1;
    }
    seen
}

fn own_node() -> usize {
    let mut node = 0_u32;
    // SAFETY: the node lives through the call; the CPU is not asked for.
    let failed = unsafe { libc::syscall(libc::SYS_getcpu, std::ptr::null_mut::<u32>(), &raw mut node) };
    assert_eq!(failed, 0);
    node as usize
}

fn allowed_cpus() -> usize {
    std::thread::available_parallelism().expect("a thread knows where it may run").get()
}

/// What the program noted of a run: whether there was a scheduler, how few CPUs, how much of the time, and where.
fn runs(notes: &str) -> Vec<(bool, usize, u64, Vec<usize>)> {
    let run = |line: &str| {
        let (words, nodes) = line.split_once('[').expect("nodes");
        let words: Vec<&str> = words.split_whitespace().collect();
        let number = |word: &str| word.trim_matches([',', ']']).parse::<usize>().expect("a number");
        let nodes = nodes.split_whitespace().map(number).collect();
        (words[0] == "enabled", number(words[1]), number(words[2]) as u64, nodes)
    };
    notes.lines().map(run).collect()
}

fn tuning_by_assignments_keeps_threads_on_nodes() {
    let bench = Bench::of("assigned", PROGRAM);
    let by = ["--threads-by", "assignments", "--repeats", "1", "--pages", "first-touch"];
    let output = bench.tandem(&[&["tune"], &by[..]].concat());
    let said = words(&output);
    assert!(output.status.success() && !said.contains("failed"), "{output:?}");
    assert_nothing_is_loaded();
    let seen = runs(&bench.notes());
    let (with, without): (Vec<_>, Vec<_>) = seen.iter().partition(|run| run.0);
    assert!(with.len() >= 3 && !without.is_empty(), "as it is it has the kernel's scheduler: {seen:?} {said}");
    assert!(with.iter().all(|run| run.1 == 8), "none is bound: {seen:?}");
    assert!(with.iter().all(|run| run.2 >= 90), "each is where it shall be but for moments: {seen:?}");
    for nodes in [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]] {
        assert!(with.iter().any(|run| run.3 == nodes), "{nodes:?}: {seen:?} {said}");
    }
    let file = result(&bench);
    let text = fs::read_to_string(&file).expect("a result");
    assert!(text.contains("threads_by = \"assignments\"") && text.contains("\"contiguous\""), "{text}");
    let applied = bench.tandem(&["run", "--tuned", file.to_str().expect("a plain name")]);
    assert!(applied.status.success() && !words(&applied).contains("warning"), "{applied:?}");
    let all = runs(&bench.notes());
    let [(true, 8, 90.., nodes)] = &all[seen.len()..] else { panic!("{all:?}") };
    assert_eq!(nodes[..], [0, 0, 1, 1]);
    assert_nothing_is_loaded();
    for (refused, because) in [("--codelets=in-place", "single regions"), ("--page-maps=off", "moves pages")] {
        let output = bench.tandem(&["tune", "--threads-by", "assignments", "--pages", "locality", refused]);
        assert!(output.status.code() == Some(2) && words(&output).contains(because), "{output:?}");
    }
}
