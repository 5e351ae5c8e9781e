// SPDX-License-Identifier: GPL-2.0-only
//! `tandem tune` and `tandem run --tuned` where pages are moved while the program runs, by a scx_tandem that is there for
//! that long.

use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_bpf::Pins;
use tandem_guest_tests::{Scx, state, wait_until};

use crate::trial;

/// As the first argument, makes this program the one that is tuned.
pub const PROGRAM: &str = "walk-parts";

/// Threads of the program, its main one included, whatever it is told.
const THREADS: usize = 4;
/// Bytes that each of them walks through, three times what the caches of the guest hold: what these absorb counts for no
/// sampler. The main thread fills all of them.
const PART_BYTES: usize = 48 << 20;

pub fn tests() -> Vec<Trial> {
    // Minutes each, so that one machine a kernel has to do.
    vec![
        trial("tuning_moves_pages_while_the_program_runs", tuning_moves_pages_while_the_program_runs)
            .with_ignored_flag(true),
        trial("tuning_binds_pages_by_a_map_of_who_uses_them", tuning_binds_pages_by_a_map_of_who_uses_them)
            .with_ignored_flag(true),
        trial(
            "tuning_binds_pages_by_a_map_that_another_machine_made",
            tuning_binds_pages_by_a_map_that_another_machine_made,
        )
        .with_ignored_flag(true),
        trial("tuning_goes_on_when_its_scheduler_is_killed", tuning_goes_on_when_its_scheduler_is_killed)
            .with_ignored_flag(true),
        trial("tuning_that_is_interrupted_unloads", tuning_that_is_interrupted_unloads).with_ignored_flag(true),
        trial("tuning_leaves_a_loaded_scheduler_alone", tuning_leaves_a_loaded_scheduler_alone),
    ]
}

/// The program: walks through its parts for some seconds, fewer with a scheduler or if they are on several nodes from the start, and notes in `notes` that it
/// begins, and in the end whether there was one and how many pages of the parts are not on node 0.
pub fn walk_parts(notes: &Path) {
    let had = state();
    note(notes, "begun");
    let begin = Instant::now();
    let all = vec![1_u8; THREADS * PART_BYTES];
    let pages = (all.len() / 4096) as u64;
    let is_spread = (pages / 8..pages * 7 / 8).contains(&pages_elsewhere(&all));
    let end = begin + Duration::from_secs(if had == "enabled" || is_spread { 15 } else { 20 });
    std::thread::scope(|scope| {
        let mut parts = all.chunks(PART_BYTES);
        let own = parts.next().expect("there is a part");
        parts.for_each(|part| {
            scope.spawn(move || walk(part, end));
        });
        walk(own, end);
    });
    note(notes, &format!("{had} {}", pages_elsewhere(&all)));
}

fn walk(part: &[u8], end: Instant) {
    while Instant::now() < end {
        let sum = part.iter().step_by(64).fold(0_u64, |sum, byte| {
            // SAFETY: a reference can be read. Volatile, so that every line is.
            sum + u64::from(unsafe { std::ptr::read_volatile(byte) })
        });
        black_box(sum);
    }
}

pub fn note(notes: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(notes).expect("notes can be written");
    writeln!(file, "{line}").expect("notes can be written");
}

/// Pages of this memory that are not on node 0. It may be in several mappings, and the first one may begin below it.
fn pages_elsewhere(memory: &[u8]) -> u64 {
    let maps = fs::read_to_string("/proc/self/numa_maps").expect("the guest has several nodes");
    let begin = |line: &&str| line.split(' ').next().and_then(|start| usize::from_str_radix(start, 16).ok());
    let all = memory.as_ptr_range();
    let below = maps.lines().filter(|line| begin(line).is_some_and(|start| start <= all.start as usize));
    let first = below.max_by_key(begin).and_then(|line| begin(&line)).expect("the array is mapped");
    let inside = |line: &&str| begin(line).is_some_and(|start| (first..all.end as usize).contains(&start));
    let words = maps.lines().filter(inside).flat_map(|line| line.split(' '));
    let nodes = words.filter_map(|word| word.strip_prefix('N')?.split_once('='));
    nodes.filter(|(node, _)| *node != "0").map(|(_, pages)| pages.parse::<u64>().expect("a number")).sum()
}

/// A place for the files of a session.
pub struct Bench {
    directory: PathBuf,
    /// The first argument of this program as the one that is tuned.
    program: &'static str,
}

impl Bench {
    fn new(name: &str) -> Self {
        Self::of(name, PROGRAM)
    }

    /// One of another program.
    pub fn of(name: &str, program: &'static str) -> Self {
        let directory = PathBuf::from("/tmp").join(name);
        fs::create_dir_all(&directory).expect("there is room in /tmp");
        Self { directory, program }
    }

    pub fn notes(&self) -> String {
        fs::read_to_string(self.directory.join("notes")).unwrap_or_default()
    }

    /// `tandem` with these arguments and the program.
    fn command(&self, arguments: &[&str]) -> Command {
        let this = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new("/bin/tandem");
        command.args(arguments).arg("--").arg(this).arg(self.program).arg(self.directory.join("notes"));
        // Looking at a thread costs an emulated CPU 30 times what it costs a real one, so 1 % would see too little; and where
        // the host is busy, so would 30.
        command.env("TANDEM_SAMPLER_BUDGET", "90");
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn tandem(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("tandem is in the guest")
    }

    /// Tunes until the program runs beside a scheduler.
    fn tune_until_moving(&self) -> Child {
        let tune = self.command(&["tune", "--repeats", "1", "--pages", "locality", "--page-maps", "off"]).spawn();
        let tune = tune.expect("tandem is in the guest");
        wait_until("a scheduler is loaded for a trial", || state() == "enabled");
        let begun = || self.notes().lines().filter(|line| *line == "begun").count();
        let before = begun();
        wait_until("the program begins", || begun() > before);
        tune
    }
}

pub fn assert_nothing_is_loaded() {
    assert_eq!(state(), "disabled");
    assert!(!Pins::default().dir().exists());
}

/// What `tune` said.
pub fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// By run that ended: whether a scheduler was there, and its pages that are not on node 0.
fn runs(notes: &str) -> Vec<(bool, u64)> {
    let ended = notes.lines().filter_map(|line| line.split_once(' '));
    ended.map(|(state, pages)| (state == "enabled", pages.parse().expect("a number"))).collect()
}

fn tuning_moves_pages_while_the_program_runs() {
    let bench = Bench::new("moving");
    let output = bench.tandem(&["tune", "--repeats", "1", "--pages", "locality", "--page-maps", "off"]);
    let said = words(&output);
    assert!(output.status.success(), "{output:?}");
    assert_nothing_is_loaded();
    let trials: Vec<&str> = said.lines().filter(|line| line.contains(" pages moved")).collect();
    assert!(!trials.is_empty() && trials.iter().all(|line| line.contains("pages locality on")), "{said}");
    assert!(trials.iter().all(|line| !line.contains(", 0 pages moved")), "{said}");
    let runs = runs(&bench.notes());
    assert!(runs.iter().any(|(scheduled, _)| !scheduled), "as it is it has the kernel's: {runs:?}");
    let moved: Vec<_> = runs.iter().filter(|(scheduled, _)| *scheduled).collect();
    assert!(moved.len() == trials.len() && moved.iter().all(|(_, pages)| *pages > 0), "{runs:?} {said}");
    let file = result(&bench);
    let text = fs::read_to_string(&file).expect("a result");
    let best = text.split("[configuration]").nth(1).expect("trials with a scheduler take less");
    assert!(best.split('[').next().expect("a table").contains("page_placement = \"locality\""), "{text}");
    let before = runs.len();
    let applied = bench.tandem(&["run", "--tuned", file.to_str().expect("a plain name")]);
    assert!(applied.status.success(), "{applied:?}");
    let runs = self::runs(&bench.notes());
    assert!(matches!(runs[before..], [(true, 1..)]), "{runs:?}");
    assert_nothing_is_loaded();
}

/// The file that a session left.
pub fn result(bench: &Bench) -> PathBuf {
    let mut files = fs::read_dir(&bench.directory).expect("its directory").flatten().map(|entry| entry.path());
    files.find(|path| path.extension().is_some_and(|kind| kind == "toml")).expect("a result")
}

fn tuning_binds_pages_by_a_map_of_who_uses_them() {
    bound_by_a_map(&Bench::new("mapped"), &[]);
}

/// The other machine is this one, where a worker carries out one request at a time.
fn tuning_binds_pages_by_a_map_that_another_machine_made() {
    let bench = Bench::new("mapped_far");
    let reach = bench.directory.join("reach");
    let skip = "while [ \"$1\" = -o ]; do shift 2; done";
    fs::write(&reach, format!("#!/bin/sh\n{skip}\necho \"$1\" >> hosts\nexec sh -c \"$2\"\n"))
        .expect("there is room in /tmp");
    fs::set_permissions(&reach, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let ssh = reach.to_str().expect("a plain name");
    bound_by_a_map(&bench, &["--executor", "ssh-hosts", "--hosts", "far", "--ssh", ssh]);
    let asked = fs::read_to_string(bench.directory.join("hosts")).expect("a worker was asked");
    let ended = runs(&bench.notes()).len();
    assert!(asked.lines().count() >= ended, "each run but that of `tandem run`, and once what machine it is: {asked}");
}

/// Tunes with this page placement alone, and with these options, and applies what is found.
fn bound_by_a_map(bench: &Bench, options: &[&str]) {
    let output = bench.tandem(&[&["tune", "--repeats", "1", "--pages", "locality"], options].concat());
    let said = words(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("who uses which page, seen once with 4 threads"), "{said}");
    assert!(!said.contains("pages moved") && !said.contains("not those that were profiled"), "{said}");
    let file = result(bench);
    let text = fs::read_to_string(&file).expect("a result");
    assert!(text.contains("page_placement = \"locality\"") && text.contains("[[page_map.allocation]]"), "{text}");
    let before = runs(&bench.notes());
    assert!(before.iter().all(|(scheduled, _)| !scheduled), "{before:?}");
    let applied = bench.tandem(&["run", "--tuned", file.to_str().expect("a plain name")]);
    assert!(applied.status.success() && !words(&applied).contains("warning"), "{applied:?}");
    let runs = runs(&bench.notes());
    let pages = (THREADS * PART_BYTES / 4096) as u64;
    // Two of its four threads are on each node, and a part is a thread's.
    let [(false, elsewhere)] = runs[before.len()..] else { panic!("{runs:?}") };
    // Emulated, it gives so few samples that some parts of what a thread uses were not seen.
    assert!((pages / 4..=pages * 3 / 5).contains(&elsewhere), "{elsewhere} of {pages} pages: {text}");
}

fn tuning_goes_on_when_its_scheduler_is_killed() {
    let bench = Bench::new("killed");
    let tune = bench.tune_until_moving();
    let agent = scx_tandem().expect("it runs");
    // SAFETY: a plain system call; the process is a child of a child.
    unsafe { libc::kill(agent, libc::SIGKILL) };
    let output = tune.wait_with_output().expect("a child can be waited for");
    let said = words(&output);
    assert!(output.status.success(), "{output:?}");
    let failed = said.lines().filter(|line| line.contains("failed: scx_tandem did not end well (signal: 9")).count();
    assert_eq!(failed, 1, "{said}");
    assert!(said.contains(" pages moved"), "the search goes on: {said}");
    assert_nothing_is_loaded();
}

fn tuning_that_is_interrupted_unloads() {
    let bench = Bench::new("interrupted");
    let tune = bench.tune_until_moving();
    // SAFETY: a plain system call on a child.
    unsafe { libc::kill(tune.id() as i32, libc::SIGINT) };
    let output = tune.wait_with_output().expect("a child can be waited for");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_nothing_is_loaded();
}

fn tuning_leaves_a_loaded_scheduler_alone() {
    let bench = Bench::new("loaded");
    let scx = Scx::start_observing();
    let output = bench.tandem(&["tune", "--pages", "first-touch,locality", "--page-maps", "off"]);
    let said = words(&output);
    assert!(output.status.code() == Some(2) && said.trim().lines().count() == 1, "{output:?}");
    assert!(said.contains("a sched_ext scheduler (tandem") && said.contains("is loaded already"), "{said}");
    assert_eq!((state().as_str(), bench.notes().as_str()), ("enabled", ""));
    assert!(scx.stop().success());
}

/// The process of the scx_tandem that runs.
fn scx_tandem() -> Option<i32> {
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "scx_tandem\n");
    processes.filter(is_it).find_map(|path| path.file_name()?.to_str()?.parse().ok())
}
