// SPDX-License-Identifier: GPL-2.0-only
//! Moves 4 MiB of its own and of a child's memory between two real nodes and back, in base and in huge pages.

use std::time::Instant;

use procfs::process::Process;
use tandem_act::{
    Cooldowns, Ended, Generation, LinuxMovePages, MovePages, Mover, MoverConfig, Outcome, PageMove, PageStatus,
    UNWRITTEN,
};
use tandem_machine::parse_cpu_list;
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

const BYTES: usize = 4 << 20;
const HUGE_BYTES: usize = 2 << 20;
const PAGES: u64 = BYTES as u64 / PAGE_BYTES;
const MPOL_DEFAULT: i32 = 0;
const MPOL_BIND: i32 = 2;

fn main() {
    let nodes = nodes_with_memory();
    let [first, second, ..] = nodes[..] else {
        println!("skipped: needs two nodes with memory, this machine has {}", nodes.len());
        return;
    };
    for huge in [false, true] {
        let start = map(huge);
        touch_on(first, start);
        there_and_back(ProcessId(std::process::id()), start, huge, first, second);
        println!("ok: own memory, huge pages {huge}");

        let start = map(huge);
        let child = Child::that_touches(first, start);
        there_and_back(ProcessId(child.0 as u32), start, huge, first, second);
        println!("ok: a child's memory, huge pages {huge}");
    }
}

fn nodes_with_memory() -> Vec<NodeId> {
    let list = std::fs::read_to_string("/sys/devices/system/node/has_memory").expect("a kernel with NUMA in sysfs");
    parse_cpu_list(&list).expect("a list of nodes").into_iter().map(NodeId).collect()
}

/// Untouched private memory, aligned to huge pages and never unmapped.
fn map(huge: bool) -> u64 {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel likes; the advice covers the aligned part of it only.
    unsafe {
        let mapped = libc::mmap(std::ptr::null_mut(), BYTES + HUGE_BYTES, protection, flags, -1, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        let start = mapped as usize + mapped.align_offset(HUGE_BYTES);
        assert_eq!(libc::madvise(start as *mut _, BYTES, advice), 0);
        start as u64
    }
}

/// Writes to every page with the thread's memory bound to `node`. Makes system calls only: safe after fork.
fn touch_on(node: NodeId, start: u64) {
    let mask = [1u64 << node.0];
    // SAFETY: the mask has 64 bits and lives through the call; `start` has BYTES writable bytes.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), 65), 0);
        (start as *mut u8).write_bytes(1, BYTES);
        assert_eq!(libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, std::ptr::null::<u64>(), 0), 0);
    }
}

/// A child that has touched its memory and waits; killed and reaped when dropped.
struct Child(libc::pid_t);

impl Child {
    fn that_touches(node: NodeId, start: u64) -> Self {
        let mut pipe = [0; 2];
        // SAFETY: the child makes system calls only until it is killed; the descriptors are ours.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                touch_on(node, start);
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

fn assert_all_on(process: ProcessId, start: u64, node: NodeId) {
    let addresses: Vec<u64> = (0..PAGES).map(|page| start + page * PAGE_BYTES).collect();
    let mut raw = vec![UNWRITTEN; addresses.len()];
    assert_eq!(LinuxMovePages::default().call(process, &addresses, None, &mut raw).result, Ok(0));
    for (page, raw) in raw.into_iter().enumerate() {
        assert_eq!(PageStatus::from_raw(raw), PageStatus::On(node), "page {page}");
    }
}

fn anon_huge_bytes(process: ProcessId, start: u64) -> u64 {
    let maps = Process::new(process.0 as i32).and_then(|process| process.smaps()).expect("smaps of our own processes");
    let map = maps.iter().find(|map| map.address.0 <= start && start < map.address.1).expect("our mapping");
    map.extension.map["AnonHugePages"]
}

/// Runs until the queue is empty; a budget that never refills would be seen as a hang, so there is a limit.
fn run(mover: &mut Mover<LinuxMovePages>, begin: Instant, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while mover.queued_groups() > 0 {
        assert!(begin.elapsed().as_secs() < 60, "4 MiB not moved within 60 s");
        outcomes.extend(mover.run(begin.elapsed().as_nanos() as u64, cooldowns));
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
    let wanted = PageMove { group, bytes: BYTES as u64, to: second, generation, cooldown_ns: 1 };
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
