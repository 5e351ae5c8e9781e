// SPDX-License-Identifier: GPL-2.0-only
//! Moves of what the kernel will not move: pages that I/O holds, huge pages of hugetlbfs, a process that exits in the middle, a node that
//! fills up. Each page has an outcome, and nobody reclaims memory to make room.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use tandem_act::{Cooldowns, Ended, Generation, LinuxMovePages, Mover, MoverConfig, Outcome, PageMove, PageMover};
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

use super::rivals::{all_pages, number, write};
use super::{
    BYTES, Child, HUGE_BYTES, MPOL_BIND, MPOL_PREFERRED, PAGES, count_on, has_room, map, run, touch_on, vmstat,
};

/// Pages that a pipe holds.
const HELD_PAGES: u64 = 16;
/// More than one run of the mover moves.
const MANY_BYTES: usize = 64 << 20;

/// Moves memory of a process in base pages to a node, as fast as it goes.
fn move_to(node: NodeId, process: ProcessId, start: u64, bytes: usize) -> Outcome {
    let config = MoverConfig { call_ns_per_s: 1_000_000_000, ..MoverConfig::default() };
    let (mut mover, mut cooldowns) = (Mover::new(LinuxMovePages::default(), config), Cooldowns::new(1));
    let (group, generation) = (GroupId { process, start }, Generation(1));
    let wanted = PageMove { group, bytes: bytes as u64, huge: false, to: node, generation, cooldown_ns: 0 };
    mover.enqueue(wanted, 0, &cooldowns).expect("a fresh mover takes it");
    let outcome = run(&mut mover, Instant::now(), &mut cooldowns).remove(0);
    assert_eq!(all_pages(&outcome), outcome.requested_pages, "{outcome:?}");
    outcome
}

fn me() -> ProcessId {
    ProcessId(std::process::id())
}

/// A pipe that holds the first pages of this memory, as a network card would that sends them.
fn held_by_pipe(start: u64) -> [OwnedFd; 2] {
    use std::os::fd::FromRawFd;
    let mut pipe = [0; 2];
    let part = libc::iovec { iov_base: start as *mut _, iov_len: (HELD_PAGES * PAGE_BYTES) as usize };
    // SAFETY: the descriptors are new and owned from here on; the memory is mapped and stays.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pipe = pipe.map(|end| OwnedFd::from_raw_fd(end));
        let held = libc::vmsplice(pipe[1].as_raw_fd(), &raw const part, 1, 0);
        assert_eq!(held, part.iov_len as isize, "{}", std::io::Error::last_os_error());
        pipe
    }
}

/// What a pipe refers to cannot move; once it does not any more, it can.
pub fn pages_under_io_stay(nodes: [NodeId; 2]) {
    let start = map(BYTES, false);
    touch_on(nodes[0], start, BYTES, MPOL_BIND);
    let pipe = held_by_pipe(start);
    let outcome = move_to(nodes[1], me(), start, BYTES);
    let moved = (outcome.ended, outcome.busy_pages, outcome.moved_pages);
    assert_eq!(moved, (Ended::Done, HELD_PAGES, PAGES - HELD_PAGES), "{outcome:?}");
    drop(pipe);
    let outcome = move_to(nodes[1], me(), start, BYTES);
    assert_eq!((outcome.moved_pages, outcome.already_there_pages), (HELD_PAGES, PAGES - HELD_PAGES), "{outcome:?}");
}

/// Pages of hugetlbfs are no group of a plan; were they one, each would be accounted for.
pub fn pages_of_hugetlbfs_are_accounted_for([first, second]: [NodeId; 2]) {
    let pool = format!("/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages", first.0);
    let reserved = (BYTES / HUGE_BYTES) as u64;
    write(pool.as_ref(), &reserved.to_string());
    assert_eq!(number(&pool), reserved, "huge pages on node {}", first.0);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    // SAFETY: a new mapping where the kernel likes, unmapped below.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    touch_on(first, mapped as u64, BYTES, MPOL_BIND);
    let outcome = move_to(second, me(), mapped as u64, BYTES);
    let on_second = count_on(me(), mapped as u64, BYTES, second);
    assert_eq!(outcome.moved_pages + outcome.already_there_pages, on_second, "{outcome:?}");
    println!("{outcome:?}");
    // SAFETY: the mapping from above, which nobody uses any more.
    assert_eq!(unsafe { libc::munmap(mapped, BYTES) }, 0);
    write(pool.as_ref(), "0");
}

/// A process that exits while its pages move: what came before counts, and it is told that it is gone.
pub fn a_process_exits_in_the_middle([first, second]: [NodeId; 2]) {
    let start = map(MANY_BYTES, false);
    let child = Child::that_touches(first, start, MANY_BYTES);
    let process = ProcessId(child.0 as u32);
    let moves = AtomicBool::new(true);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            while moves.load(Ordering::Relaxed) && count_on(process, start, BYTES, second) < PAGES / 2 {
                thread::yield_now();
            }
            drop(child);
        });
        let outcome = move_to(second, process, start, MANY_BYTES);
        moves.store(false, Ordering::Relaxed);
        outcome
    });
    println!("{outcome:?}");
    assert_eq!(outcome.ended, Ended::ProcessGone, "{outcome:?}");
    assert!(outcome.moved_pages > 0 && outcome.not_tried_pages > 0, "{outcome:?}");
}

/// A node that fills up takes pages as far as it has any to spare, and nobody reclaims memory for more.
pub fn a_node_fills_up_without_reclaim([first, second]: [NodeId; 2]) {
    let start = map(MANY_BYTES, false);
    touch_on(first, start, MANY_BYTES, MPOL_BIND);
    let mut taken = Vec::new();
    while has_room(second, MANY_BYTES as u64 / 2 / PAGE_BYTES) {
        let part = map(BYTES, false);
        touch_on(second, part, BYTES, MPOL_PREFERRED);
        taken.push(part);
    }
    let counts = || ["pgscan_kswapd ", "pgscan_direct ", "allocstall_normal ", "compact_stall "].map(vmstat);
    let before = counts();
    let outcome = move_to(second, me(), start, MANY_BYTES);
    println!("{outcome:?}");
    assert_eq!(
        (outcome.ended, outcome.moved_pages + outcome.not_tried_pages),
        (Ended::TargetFull, outcome.requested_pages)
    );
    assert!(outcome.moved_pages > 0, "{outcome:?}");
    assert_eq!(counts(), before, "nobody looked for memory to reclaim");
    for part in taken.into_iter().chain([start]) {
        let bytes = if part == start { MANY_BYTES } else { BYTES };
        // SAFETY: mappings from above, which nobody reads any more.
        assert_eq!(unsafe { libc::munmap(part as *mut _, bytes) }, 0);
    }
}
