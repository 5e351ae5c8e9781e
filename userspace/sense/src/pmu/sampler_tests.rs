// SPDX-License-Identifier: GPL-2.0-only
//! The sampler over the kernel's own records. Page faults are the one event with data addresses that every machine
//! has: they go through the same ring, record layout and intake as hardware samples.
//!
//! Needs perf events (root or CAP_PERFMON) and fails without them.

use perf_event_open_sys::bindings;
use tandem_policies::model::PAGE_BYTES;

use super::super::event::Attributes;
use super::super::ibs::IbsQuirks;
use super::super::record::Fields;
use super::super::sysfs::Encoding;
use super::super::testing::FakeSystem;
use super::*;
use crate::monotonic_ns;
use crate::source::Level;

const PAGES: usize = 64;

fn page_faults(fields: Fields, decoder: Decoder) -> PlannedEvent {
    let config = [u64::from(bindings::PERF_COUNT_SW_PAGE_FAULTS), 0, 0, 0, 0];
    let attributes = Attributes {
        encoding: Encoding { kind: bindings::PERF_TYPE_SOFTWARE, config },
        fields,
        sampling: Sampling::Period(1),
        precise: 0,
        user_only: true,
        monotonic: true,
        switches: false,
        disabled: false,
    };
    PlannedEvent { leader: None, attributes, cpus: None, decoder }
}

fn online_cpus() -> Vec<CpuId> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    tandem_machine::parse_cpu_list(list.trim()).unwrap().into_iter().map(CpuId).collect()
}

fn open(planned: PlannedEvent) -> Pmu {
    let opened = Pmu::open_planned(vec![planned], &online_cpus(), Pace::new(1000, None), Path::new("/"));
    let mut pmu = opened.unwrap_or_else(|error| panic!("{error}"));
    pmu.set_managed(&[ProcessId(std::process::id())].into());
    pmu
}

/// Keeps this thread on one CPU: each has a ring of its own.
fn stay_on_this_cpu() {
    // SAFETY: takes nothing; all zeros is an empty set, and the CPU is within it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut set);
        set
    };
    // SAFETY: the kernel reads the set.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }, 0);
}

/// Touches fresh memory and returns its first page.
fn touch() -> u64 {
    let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = PAGES * PAGE_BYTES as usize;
    // SAFETY: a new mapping, which is left in place for the rest of the test program; huge pages are declined so that
    // each page has its own fault, and the writes are inside it.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
        for page in 0..PAGES {
            start.cast::<u8>().add(page * PAGE_BYTES as usize + 8).write_volatile(1);
        }
        start as u64
    }
}

#[test]
fn the_kernels_records_become_accesses_of_the_thread_that_made_them() {
    let mut pmu = open(page_faults(Fields::DECODED_PHYSICAL, Decoder::Kernel { store: true }));
    let before_ns = monotonic_ns();
    let (start, tid) = std::thread::spawn(|| {
        // SAFETY: no arguments.
        let tid = unsafe { libc::gettid() } as u32;
        (touch(), tid)
    })
    .join()
    .unwrap();
    let after_ns = monotonic_ns();
    let batch = pmu.drain(after_ns).unwrap();
    let end = start + PAGES as u64 * PAGE_BYTES;
    let mut seen: Vec<_> = batch.accesses.iter().filter(|access| (start..end).contains(&access.address)).collect();
    // Rings are read CPU by CPU, and the thread may have changed its CPU.
    seen.sort_by_key(|access| access.address);
    let expected: Vec<_> = (0..PAGES as u64).map(|page| start + page * PAGE_BYTES + 8).collect();
    assert_eq!(seen.iter().map(|access| access.address).collect::<Vec<_>>(), expected, "{:?}", pmu.counters());
    for access in seen {
        assert_eq!((access.tid, access.process), (tid, ProcessId(std::process::id())));
        assert!(access.store && (before_ns..=after_ns).contains(&access.time_ns), "{access:?}");
        let measured = access.measured.unwrap();
        assert_eq!((measured.source.level, measured.period, measured.latency_ns), (Level::Unknown, 1, None));
    }
    let counters = pmu.counters();
    assert_eq!((counters.malformed, counters.broken_rings, counters.lost), (0, 0, 0));
}

#[test]
fn a_full_ring_loses_records_and_says_how_many() {
    let mut pmu = open(page_faults(Fields::DECODED, Decoder::Kernel { store: true }));
    stay_on_this_cpu();
    // Its ring has room for about 3000 of these samples.
    for _ in 0..200 {
        touch();
    }
    let first = pmu.drain(monotonic_ns()).unwrap().accesses.len() as u64;
    // The loss is told before the next record.
    touch();
    let next = pmu.drain(monotonic_ns()).unwrap().accesses.len();
    assert!(pmu.counters().lost > 0 && next >= PAGES, "{:?}", pmu.counters());
    assert!(first < 200 * PAGES as u64);
    assert_eq!((pmu.counters().malformed, pmu.counters().broken_rings), (0, 0));
}

#[test]
fn processes_that_are_not_managed_are_dropped() {
    let mut pmu = open(page_faults(Fields::DECODED, Decoder::Kernel { store: true }));
    pmu.set_managed(&BTreeSet::new());
    touch();
    assert!(pmu.drain(monotonic_ns()).unwrap().accesses.is_empty());
    assert!(pmu.counters().unmanaged >= PAGES as u64 && pmu.counters().samples == 0);
}

#[test]
fn raw_data_of_another_event_is_no_access_and_no_panic() {
    let mut pmu = open(page_faults(Fields::RAW, Decoder::Ibs(IbsQuirks::default())));
    touch();
    assert!(pmu.drain(monotonic_ns()).unwrap().accesses.is_empty());
    assert!(pmu.counters().malformed >= PAGES as u64, "page faults have no registers: {:?}", pmu.counters());
}

#[test]
fn the_time_on_the_hardware_is_read() {
    let mut pmu = open(page_faults(Fields::DECODED, Decoder::Kernel { store: true }));
    let now_ns = monotonic_ns();
    pmu.drain(now_ns).unwrap();
    assert_eq!(pmu.counters().enabled_ns, 0, "not read at each drain");
    pmu.drain(now_ns + TIMES_NS).unwrap();
    let counters = pmu.counters();
    assert!(counters.enabled_ns > 0);
    assert_eq!(counters.running_ns, counters.enabled_ns, "software events are never multiplexed");
}

#[test]
fn what_cannot_be_opened_names_the_cpu_and_the_remedy() {
    let planned = || vec![page_faults(Fields::DECODED, Decoder::Kernel { store: true })];
    let pace = Pace::new(1, None);
    let refused = Pmu::open_planned(planned(), &[CpuId(4000)], pace, Path::new("/")).err().expect("no CPU 4000");
    assert!(refused.to_string().contains("CPU 4000") && refused.to_string().contains("online"), "{refused}");
    let nowhere = Pmu::open_planned(planned(), &[], pace, Path::new("/")).err().expect("no CPU");
    assert!(matches!(nowhere, PmuError::NoCpu));
}

#[test]
fn a_system_without_sampling_is_refused_with_the_reason() {
    let guest = FakeSystem::new().x86("GenuineIntel", 6, 0x8f, 8, "hypervisor");
    let reason: PmuError = detect(guest.root()).unwrap_err().into();
    assert!(reason.to_string().starts_with("this virtual machine has no PMU"));
}
