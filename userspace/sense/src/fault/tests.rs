// SPDX-License-Identifier: GPL-2.0-only
//! The sampler over this kernel's own faults. Needs perf events for kernel and user (root or CAP_PERFMON), and fails
//! without them. Extra faults are tried in guests, whose kernels track writes.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr;

use tandem_policies::model::{PAGE_BYTES, ThreadId};

use super::*;
use crate::frames::FrameTable;
use crate::fresh_pages::FreshPages;
use crate::monotonic_ns;

const PAGES: usize = 64;

fn open() -> Fault {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let cpus: Vec<_> = tandem_machine::parse_cpu_list(list.trim()).unwrap().into_iter().map(CpuId).collect();
    let mut fault = Fault::open(FaultConfig::default(), &cpus).unwrap_or_else(|error| panic!("{error}"));
    fault.set_managed(&[ProcessId(std::process::id())].into());
    // No faults but those that tests make; what measuring their cost touched is forgotten.
    fault.writes = false;
    fault.drain(monotonic_ns()).unwrap();
    fault
}

fn own_tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// Faults of a thread within the [`PAGES`] from `start` on. Other tests may have had the same addresses.
fn within(batch: &Batch, start: u64, tid: u32) -> Vec<Access> {
    let range = start..start + PAGES as u64 * PAGE_BYTES;
    let is_meant = |access: &&Access| range.contains(&access.address) && access.tid == tid;
    batch.accesses.iter().filter(is_meant).copied().collect()
}

#[test]
fn a_first_touch_tells_thread_address_and_frame() {
    let mut fault = open();
    let before_ns = monotonic_ns();
    let (start, tid) = std::thread::spawn(|| {
        let pages = FreshPages::small(PAGES).unwrap();
        pages.touch();
        let start = pages.start();
        // For the rest of the test program: the frames are looked up below.
        std::mem::forget(pages);
        (start, own_tid())
    })
    .join()
    .unwrap();
    let batch = fault.drain(monotonic_ns()).unwrap();
    let seen = within(&batch, start, tid);
    let expected: Vec<_> = (0..PAGES as u64).map(|page| start + page * PAGE_BYTES).collect();
    assert_eq!(seen.iter().map(|access| access.address).collect::<Vec<_>>(), expected, "{:?}", fault.counters());
    for access in &seen {
        assert!((before_ns..=monotonic_ns()).contains(&access.time_ns));
    }
    let map = File::open("/proc/self/pagemap").unwrap();
    for access in &seen {
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, access.address / PAGE_BYTES * 8).unwrap();
        let frame = u64::from_ne_bytes(entry) & ((1 << 55) - 1);
        assert_eq!(access.measured.unwrap().physical.map(|physical| physical / PAGE_BYTES), Some(frame));
    }
    assert_eq!((fault.counters().malformed, fault.counters().broken_rings, fault.counters().lost), (0, 0, 0));
    assert!(fault.counters().fault_ns > 0 && fault.counters().threads_ns >= PAGES as u64 * fault.counters().fault_ns);
}

/// Maps the first page of `memory` once more and writes to it: one page fault. Returns the address; `None` if refused.
fn touch_anew(memory: &OwnedFd) -> Option<u64> {
    let (protection, bytes) = (libc::PROT_READ | libc::PROT_WRITE, PAGE_BYTES as usize);
    // SAFETY: a new mapping, which nobody else knows of.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: inside the mapping.
    unsafe { at.cast::<u8>().write_volatile(1) };
    Some(at as u64)
}

/// kMAF's known answer: processes that share a page through shared memory, at different addresses, are seen to share.
#[test]
fn processes_that_share_a_page_at_different_addresses_are_seen_to_share() {
    let mut fault = open();
    // SAFETY: the name is a string; the descriptor is new and owned here.
    let memory = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC)) };
    File::from(memory.try_clone().unwrap()).set_len(PAGE_BYTES).unwrap();
    let first = touch_anew(&memory).unwrap();
    // SAFETY: the child does nothing but system calls and one write to memory of its own before it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(touch_anew(&memory).is_none());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: waits for the child, once.
    assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
    let again = touch_anew(&memory).unwrap();
    fault.set_managed(&[ProcessId(std::process::id()), ProcessId(child as u32)].into());
    let batch = fault.drain(monotonic_ns()).unwrap();

    let frame = |access: &Access| access.measured.and_then(|measured| measured.physical).map(|at| at / PAGE_BYTES);
    let is_first = |access: &&Access| access.address == first && access.tid == own_tid();
    let shared = batch.accesses.iter().find(is_first).and_then(frame);
    // Another test may have had the frame before.
    let since = batch.accesses.iter().skip_while(|access| !is_first(access));
    let faults: Vec<_> = since.filter(|access| shared.is_some() && frame(access) == shared).collect();
    let tids: Vec<u32> = faults.iter().map(|access| access.tid).collect();
    assert_eq!(tids, [own_tid(), child as u32, own_tid()], "{:?}", fault.counters());
    assert!(faults[1].address != first && faults[2].address == again && again != first);

    let mut table = FrameTable::new(16, u64::MAX);
    let thread = |tid| ThreadId { tid, start_boottime_ns: 1 };
    table.age(0);
    faults.iter().for_each(|access| table.add(thread(access.tid), frame(access).unwrap() * PAGE_BYTES));
    table.age(1_000_000_000);
    let sharing = table.sharing();
    let events: Vec<_> = sharing[&thread(own_tid())].iter().map(|(with, events)| (with.tid, events.round())).collect();
    assert_eq!(events, [(child as u32, 2.0)]);
}

#[test]
fn the_page_of_zeros_is_nobodys() {
    let mut fault = open();
    let pages = FreshPages::small(PAGES).unwrap();
    for page in 0..PAGES as u64 {
        // SAFETY: inside the mapping.
        unsafe { ((pages.start() + page * PAGE_BYTES) as *const u8).read_volatile() };
    }
    let batch = fault.drain(monotonic_ns()).unwrap();
    let seen = within(&batch, pages.start(), own_tid());
    assert_eq!(seen.len(), PAGES);
    assert!(seen.iter().all(|access| access.measured.unwrap().physical.is_none()));
    assert!(fault.counters().no_frame >= PAGES as u64);
}

#[test]
fn processes_that_are_not_managed_are_dropped() {
    let mut fault = open();
    fault.set_managed(&BTreeSet::new());
    let before = *fault.counters();
    FreshPages::small(PAGES).unwrap().touch();
    assert!(fault.drain(monotonic_ns()).unwrap().accesses.is_empty());
    let after = fault.counters();
    assert!(after.unmanaged - before.unmanaged >= PAGES as u64 && after.samples == before.samples);
}

#[test]
fn each_process_is_made_to_fault_once_a_second_the_longest_waiting_first() {
    let mut fault = open();
    fault.writes = true;
    let child = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mut children = [child(), child()];
    fault.set_managed(&children.iter().map(|child| ProcessId(child.id())).collect());
    let rounds = |fault: &Fault| fault.counters.write_rounds;
    let start_ns = 10 * ROUND_NS;
    let after = [0, 1, 2, ROUND_NS, ROUND_NS + 1, ROUND_NS + 2].map(|later_ns| {
        fault.make_faults(start_ns + later_ns);
        rounds(&fault)
    });
    assert_eq!((after, fault.counters.refused), ([1, 2, 2, 3, 4, 4], 0));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    fault.make_faults(start_ns + 2 * ROUND_NS);
    assert_eq!((rounds(&fault), fault.counters.refused), (4, 1), "it has ended");
}

#[test]
fn what_cannot_be_opened_names_the_cpu_and_the_remedy() {
    let refused = Fault::open(FaultConfig::default(), &[CpuId(4000)]).err().expect("no CPU 4000").to_string();
    assert!(refused.contains("CPU 4000") && refused.contains("online"), "{refused}");
    assert!(matches!(Fault::open(FaultConfig::default(), &[]), Err(FaultError::NoCpu)));
}
