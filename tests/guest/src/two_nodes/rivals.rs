// SPDX-License-Identifier: GPL-2.0-only
//! Moves beside what else the kernel does with the same pages at the same time: merging equal ones (KSM), making huge pages
//! and taking them apart, and migrating them itself (DAMON). No page is lost, none changes, and each has an outcome.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tandem_act::{Cooldowns, Generation, LinuxMovePages, Mover, MoverConfig, Outcome, PageMove, PageMover};
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

use super::{BYTES, HUGE_BYTES, MPOL_BIND, PAGES, map, run, touch_on};

const KSM: &str = "/sys/kernel/mm/ksm";
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const LIMIT: Duration = Duration::from_secs(120);
/// Moves there and back, at least, while something else is at work.
const ROUNDS: u64 = 10;

/// A file of the kernel's that is as it was before when this is dropped.
struct Setting(PathBuf, String);

impl Setting {
    fn new(path: impl Into<PathBuf>, value: &str) -> Self {
        let path = path.into();
        let before = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        write(&path, value);
        Self(path, before.trim().to_owned())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        write(&self.0, &self.1);
    }
}

pub fn write(path: &Path, value: &str) {
    fs::write(path, value).unwrap_or_else(|error| panic!("{value} > {}: {error}", path.display()));
}

pub fn number(path: impl AsRef<Path>) -> u64 {
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()));
    text.trim().parse().unwrap_or_else(|_| panic!("{}: {text}", path.as_ref().display()))
}

/// Memory of which every page tells its number, except for its first half: there all pages are alike.
struct Numbered(u64);

impl Numbered {
    fn on(node: NodeId) -> Self {
        let memory = Self(map(BYTES, false));
        touch_on(node, memory.0, BYTES, MPOL_BIND);
        (0..PAGES).for_each(|page| memory.write(page));
        memory
    }

    fn cell(&self, page: u64) -> *mut u64 {
        (self.0 + page * PAGE_BYTES) as *mut u64
    }

    fn write(&self, page: u64) {
        let number = page.max(PAGES / 2);
        // SAFETY: a page of a mapping that stays, written by one thread at a time.
        unsafe { self.cell(page).write_volatile(number) };
    }

    fn assert_unchanged(&self) {
        for page in 0..PAGES {
            // SAFETY: as above.
            assert_eq!(unsafe { self.cell(page).read_volatile() }, page.max(PAGES / 2), "page {page}");
        }
    }

    fn advise(&self, from: u64, pages: u64, advice: i32) -> std::io::Result<()> {
        let start = (self.0 + from * PAGE_BYTES) as *mut libc::c_void;
        // SAFETY: within the mapping; advice that takes contents away is given where they are written anew.
        let advised = unsafe { libc::madvise(start, (pages * PAGE_BYTES) as usize, advice) };
        if advised == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Moves all of it to and fro until `enough` says so, at least for [`ROUNDS`]; every page is accounted for each time.
    fn move_until(&self, nodes: [NodeId; 2], enough: impl Fn(&Outcome) -> bool) {
        let begin = Instant::now();
        let group = GroupId { process: ProcessId(std::process::id()), start: self.0 };
        for round in 1.. {
            let config = MoverConfig { call_ns_per_s: 1_000_000_000, ..MoverConfig::default() };
            let mut mover = Mover::new(LinuxMovePages::default(), config);
            let (to, generation) = (nodes[round as usize % 2], Generation(round));
            let mut cooldowns = Cooldowns::new(1);
            let wanted = PageMove { group, bytes: BYTES as u64, huge: false, to, generation, cooldown_ns: 0 };
            mover.enqueue(wanted, 0, &cooldowns).expect("a fresh mover takes it");
            let outcome = run(&mut mover, Instant::now(), &mut cooldowns).remove(0);
            assert_eq!(all_pages(&outcome), PAGES, "{outcome:?}");
            if round >= ROUNDS && enough(&outcome) {
                println!("{round} moves; the last one: {outcome:?}");
                break;
            }
            assert!(begin.elapsed() < LIMIT, "still not so after {round} moves: {outcome:?}");
        }
        self.assert_unchanged();
    }
}

pub fn all_pages(outcome: &Outcome) -> u64 {
    let counts = [
        outcome.moved_pages,
        outcome.already_there_pages,
        outcome.busy_pages,
        outcome.absent_pages,
        outcome.shared_pages,
        outcome.no_memory_pages,
        outcome.invalid_pages,
        outcome.moved_on_pages,
        outcome.not_tried_pages,
    ];
    counts.iter().sum::<u64>() + outcome.other_pages.values().sum::<u64>()
}

/// Pages that are alike become one while they move; what is merged is shared, and stays.
pub fn moves_beside_ksm(nodes: [NodeId; 2]) {
    let memory = Numbered::on(nodes[0]);
    memory.advise(0, PAGES, libc::MADV_MERGEABLE).expect("a kernel with KSM");
    let _pages = Setting::new(format!("{KSM}/pages_to_scan"), "2000");
    let run = PathBuf::from(format!("{KSM}/run"));
    write(&run, "1");
    memory.move_until(nodes, |outcome| outcome.shared_pages >= PAGES / 4);
    // Takes apart what was merged: each page is private again.
    write(&run, "2");
    assert_eq!(number(format!("{KSM}/pages_shared")), 0);
    memory.move_until(nodes, |outcome| outcome.moved_pages == PAGES);
    write(&run, "0");
}

/// Huge pages are made of the pages and taken apart while these move.
pub fn moves_beside_huge_pages_that_come_and_go(nodes: [NodeId; 2]) {
    let memory = Numbered::on(nodes[0]);
    memory.advise(0, PAGES, libc::MADV_HUGEPAGE).expect("a kernel with huge pages");
    let (goes_on, splits) = (AtomicBool::new(true), || super::vmstat("thp_split_page "));
    let before = splits();
    thread::scope(|scope| {
        scope.spawn(|| {
            let huge = HUGE_BYTES as u64 / PAGE_BYTES;
            while goes_on.load(Ordering::Relaxed) {
                for from in (0..PAGES).step_by(huge as usize) {
                    // Fails where pages are on the move just now.
                    let made = memory.advise(from, huge, libc::MADV_COLLAPSE).is_ok();
                    if made {
                        memory.advise(from, huge / 2, libc::MADV_COLD).expect("part of it may cool");
                    }
                }
            }
        });
        memory.move_until(nodes, |_| splits() > before + ROUNDS);
        goes_on.store(false, Ordering::Relaxed);
    });
    memory.assert_unchanged();
}

/// DAMON brings all that it sees to the second node, whatever is moved to the first.
pub fn moves_beside_damon(nodes: [NodeId; 2]) {
    let statistics = Path::new("/sys/module/damon_stat/parameters/enabled");
    // It would not have anybody beside it.
    let _statistics = statistics.exists().then(|| Setting::new(statistics, "N"));
    let memory = Numbered::on(nodes[0]);
    let kdamonds = Setting::new(format!("{DAMON}/nr_kdamonds"), "1");
    let kdamond = PathBuf::from(format!("{DAMON}/0"));
    let context = kdamond.join("contexts/0");
    write(&kdamond.join("contexts/nr_contexts"), "1");
    write(&context.join("operations"), "vaddr");
    write(&context.join("monitoring_attrs/intervals/sample_us"), "1000");
    write(&context.join("monitoring_attrs/intervals/aggr_us"), "20000");
    write(&context.join("targets/nr_targets"), "1");
    write(&context.join("targets/0/pid_target"), &std::process::id().to_string());
    write(&context.join("targets/0/regions/nr_regions"), "1");
    write(&context.join("targets/0/regions/0/start"), &memory.0.to_string());
    write(&context.join("targets/0/regions/0/end"), &(memory.0 + BYTES as u64).to_string());
    write(&context.join("schemes/nr_schemes"), "1");
    let scheme = context.join("schemes/0");
    write(&scheme.join("action"), "migrate_cold");
    write(&scheme.join("target_nid"), &nodes[1].0.to_string());
    for limit in ["sz", "nr_accesses", "age"] {
        write(&scheme.join("access_pattern").join(limit).join("max"), "4294967295");
    }
    write(&kdamond.join("state"), "on");
    let applied = || {
        write(&kdamond.join("state"), "update_schemes_stats");
        number(scheme.join("stats/sz_applied"))
    };
    memory.move_until(nodes, |_| applied() >= BYTES as u64);
    write(&kdamond.join("state"), "off");
    drop(kdamonds);
    memory.move_until(nodes, |outcome| outcome.moved_pages == PAGES);
}
