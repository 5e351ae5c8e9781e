// SPDX-License-Identifier: GPL-2.0-only
//! Moves 4 MiB of its own and of a child's memory between two real nodes and back, in base and in huge pages; and huge pages to
//! a node whose free memory is in pieces; pages with which the kernel does something else at the same time; and pages that it will
//! not move.

mod faults;
mod rivals;

use std::path::Path;
use std::time::Instant;

use procfs::process::Process;
use tandem_act::{
    Cooldowns, Ended, Generation, LinuxMovePages, MemoryWatch, MovePages, Mover, MoverConfig, Outcome, PageMove,
    PageMover, PageStatus, Room, UNWRITTEN, ZoneRooms,
};
use tandem_machine::parse_cpu_list;
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

const BYTES: usize = 4 << 20;
const HUGE_BYTES: usize = 2 << 20;
const PAGES: u64 = BYTES as u64 / PAGE_BYTES;
/// More than a node has left in large blocks after [`break_up`].
const MANY_HUGE_BYTES: usize = 64 << 20;
const MPOL_DEFAULT: i32 = 0;
const MPOL_PREFERRED: i32 = 1;
const MPOL_BIND: i32 = 2;

fn main() {
    let nodes = nodes_with_memory();
    let [first, second, ..] = nodes[..] else {
        println!("skipped: needs two nodes with memory, this machine has {}", nodes.len());
        return;
    };
    for huge in [false, true] {
        let start = map(BYTES, huge);
        touch_on(first, start, BYTES, MPOL_BIND);
        there_and_back(ProcessId(std::process::id()), start, huge, first, second);
        println!("ok: own memory, huge pages {huge}");

        let start = map(BYTES, huge);
        let child = Child::that_touches(first, start, BYTES);
        there_and_back(ProcessId(child.0 as u32), start, huge, first, second);
        println!("ok: a child's memory, huge pages {huge}");
    }
    rivals::moves_beside_ksm([first, second]);
    println!("ok: beside KSM");
    rivals::moves_beside_huge_pages_that_come_and_go([first, second]);
    println!("ok: beside huge pages that come and go");
    rivals::moves_beside_damon([first, second]);
    println!("ok: beside DAMON");
    faults::pages_under_io_stay([first, second]);
    println!("ok: pages that I/O holds");
    faults::pages_of_hugetlbfs_are_accounted_for([first, second]);
    println!("ok: pages of hugetlbfs");
    faults::a_process_exits_in_the_middle([first, second]);
    println!("ok: a process that exits in the middle");
    faults::a_node_fills_up_without_reclaim([first, second]);
    println!("ok: a node that fills up");
    // The last one: it leaves memory in pieces.
    stay_whole_where_memory_is_in_pieces(first, second);
    println!("ok: huge pages stay whole where memory is in pieces");
}

fn nodes_with_memory() -> Vec<NodeId> {
    let list = std::fs::read_to_string("/sys/devices/system/node/has_memory").expect("a kernel with NUMA in sysfs");
    parse_cpu_list(&list).expect("a list of nodes").into_iter().map(NodeId).collect()
}

/// Untouched private memory, aligned to huge pages and never unmapped.
fn map(bytes: usize, huge: bool) -> u64 {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel likes; the advice covers the aligned part of it only.
    unsafe {
        let mapped = libc::mmap(std::ptr::null_mut(), bytes + HUGE_BYTES, protection, flags, -1, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        let start = mapped as usize + mapped.align_offset(HUGE_BYTES);
        assert_eq!(libc::madvise(start as *mut _, bytes, advice), 0);
        start as u64
    }
}

/// Writes to every page under this policy of memory for `node`. Makes system calls only: safe after fork.
fn touch_on(node: NodeId, start: u64, bytes: usize, policy: i32) {
    let mask = [1u64 << node.0];
    // SAFETY: the mask has 64 bits and lives through the call; `start` has so many writable bytes.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), 65), 0);
        (start as *mut u8).write_bytes(1, bytes);
        assert_eq!(libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, std::ptr::null::<u64>(), 0), 0);
    }
}

/// A child that has touched its memory and waits; killed and reaped when dropped.
struct Child(libc::pid_t);

impl Child {
    fn that_touches(node: NodeId, start: u64, bytes: usize) -> Self {
        let mut pipe = [0; 2];
        // SAFETY: the child makes system calls only until it is killed; the descriptors are ours.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                touch_on(node, start, bytes, MPOL_BIND);
                libc::write(pipe[1], [1u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
            let child = Self(pid);
            libc::close(pipe[1]);
            let mut byte = 0u8;
            assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 1, "the child could not touch its memory");
            libc::close(pipe[0]);
            child
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not reaped yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Where each page of some memory is.
fn places(process: ProcessId, start: u64, bytes: usize) -> Vec<PageStatus> {
    let addresses: Vec<u64> = (start..start + bytes as u64).step_by(PAGE_BYTES as usize).collect();
    let mut raw = vec![UNWRITTEN; addresses.len()];
    let asked = LinuxMovePages::default().call(process, &addresses, None, &mut raw).result;
    if asked.is_err() {
        return Vec::new();
    }
    raw.into_iter().map(PageStatus::from_raw).collect()
}

/// How many pages of some memory are on a node; none if the process is gone.
fn count_on(process: ProcessId, start: u64, bytes: usize, node: NodeId) -> u64 {
    places(process, start, bytes).into_iter().filter(|&place| place == PageStatus::On(node)).count() as u64
}

fn assert_all_on(process: ProcessId, start: u64, node: NodeId) {
    assert_eq!(count_on(process, start, BYTES, node), PAGES);
}

fn anon_huge_bytes(process: ProcessId, start: u64) -> u64 {
    let maps = Process::new(process.0 as i32).and_then(|process| process.smaps()).expect("smaps of our own processes");
    let map = maps.iter().find(|map| map.address.0 <= start && start < map.address.1).expect("our mapping");
    map.extension.map["AnonHugePages"]
}

/// Runs until the queue is empty; a budget that never refills would be seen as a hang, so there is a limit.
fn run(mover: &mut Mover<LinuxMovePages>, begin: Instant, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut watch = MemoryWatch::new(Path::new("/proc"), MoverConfig::default());
    while mover.queued_groups() > 0 {
        assert!(begin.elapsed().as_secs() < 60, "not moved within 60 s");
        let now_ns = begin.elapsed().as_nanos() as u64;
        watch.look(mover, now_ns);
        outcomes.extend(mover.run(now_ns, cooldowns));
    }
    outcomes
}

fn there_and_back(process: ProcessId, start: u64, huge: bool, first: NodeId, second: NodeId) {
    assert_all_on(process, start, first);
    let huge_bytes = if huge { BYTES as u64 } else { 0 };
    assert_eq!(anon_huge_bytes(process, start), huge_bytes, "before");
    let (begin, mut cooldowns) = (Instant::now(), Cooldowns::new(16));
    let mut mover = Mover::new(LinuxMovePages::default(), MoverConfig::default());
    let (group, generation) = (GroupId { process, start }, Generation(1));
    let wanted = PageMove { group, bytes: BYTES as u64, huge, to: second, generation, cooldown_ns: 1 };
    mover.enqueue(wanted, 0, &cooldowns).expect("a fresh mover takes it");
    let there = run(&mut mover, begin, &mut cooldowns);
    assert_eq!((there[0].ended, there[0].moved_pages), (Ended::Done, PAGES), "{there:?}");
    assert_all_on(process, start, second);
    assert_eq!(anon_huge_bytes(process, start), huge_bytes, "huge pages stay whole");
    let prices = (mover.cost_ns_per_page(), mover.cost_ns_per_huge_page());
    println!("cost of a page, and of a huge page: {prices:?} ns");
    assert_eq!((prices.0.is_some(), prices.1.is_some()), (!huge, huge));

    mover.undo(generation, begin.elapsed().as_nanos() as u64, 1_000_000_000);
    let back = run(&mut mover, begin, &mut cooldowns);
    assert_eq!(back.iter().map(|outcome| outcome.moved_pages).sum::<u64>(), PAGES, "{back:?}");
    assert_all_on(process, start, first);
    assert_eq!(anon_huge_bytes(process, start), huge_bytes, "huge pages stay whole on the way back");
}

/// Whether a node has so many pages to spare.
fn has_room(node: NodeId, pages: u64) -> bool {
    let text = std::fs::read_to_string("/proc/zoneinfo").expect("the kernel tells of zones");
    Room::new(&ZoneRooms::parse(&text).expect("zones"), None).fits(node, pages)
}

/// Takes what the node has but for 8 MiB, and gives every other page back. What is left in large blocks is less than
/// [`MANY_HUGE_BYTES`]; much is free in single pages.
fn break_up(node: NodeId) {
    std::fs::write("/proc/sys/vm/compaction_proactiveness", "0").expect("a kernel that compacts memory");
    let has_room = || has_room(node, 2 * PAGES);
    let mut taken = Vec::new();
    while has_room() {
        let start = map(BYTES, false);
        touch_on(node, start, BYTES, MPOL_PREFERRED);
        taken.push(start);
    }
    for page in taken.iter().flat_map(|start| (0..PAGES).step_by(2).map(move |page| start + page * PAGE_BYTES)) {
        // SAFETY: a page of memory that was mapped above and that nobody reads.
        assert_eq!(unsafe { libc::madvise(page as *mut _, PAGE_BYTES as usize, libc::MADV_DONTNEED) }, 0);
    }
    assert!(has_room(), "half of {} MiB was given back", (taken.len() * BYTES) >> 20);
}

/// A count of /proc/vmstat.
fn vmstat(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").expect("the kernel counts");
    let count = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    count.unwrap_or_else(|| panic!("no {name}: {text}"))
}

fn stay_whole_where_memory_is_in_pieces(first: NodeId, second: NodeId) {
    let start = map(MANY_HUGE_BYTES, true);
    touch_on(first, start, MANY_HUGE_BYTES, MPOL_BIND);
    break_up(second);
    let counts = || ["thp_migration_split ", "thp_split_page ", "compact_stall "].map(vmstat);
    let process = ProcessId(std::process::id());
    let before = (anon_huge_bytes(process, start), counts());
    assert_eq!(before.0, MANY_HUGE_BYTES as u64);
    let mut mover = Mover::new(LinuxMovePages::default(), MoverConfig::default());
    let (group, mut cooldowns) = (GroupId { process, start }, Cooldowns::new(16));
    let bytes = MANY_HUGE_BYTES as u64;
    let wanted = PageMove { group, bytes, huge: true, to: second, generation: Generation(1), cooldown_ns: 1 };
    mover.enqueue(wanted, 0, &cooldowns).expect("a fresh mover takes it");
    let outcome = run(&mut mover, Instant::now(), &mut cooldowns).remove(0);
    println!("{} of {} pages moved", outcome.moved_pages, outcome.requested_pages);
    assert_eq!(outcome.ended, Ended::TargetFragmented, "{outcome:?}");
    assert_eq!(outcome.moved_pages + outcome.not_tried_pages, outcome.requested_pages, "{outcome:?}");
    assert_eq!((anon_huge_bytes(process, start), counts()), before, "nothing was split, nobody compacted");
}
