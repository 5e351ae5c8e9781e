// SPDX-License-Identifier: GPL-2.0-only
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::testing::{unseen, withheld};

#[test]
fn own_memory_is_found_and_text_is_skipped() {
    let me = ProcessId(std::process::id());
    let mut regions = Regions::default();
    regions.refresh(me, 1);
    let data = vec![0_u8; 8 << 20];
    regions.refresh(me, 2);
    let address = data.as_ptr() as u64 + 4096;
    let region = regions.find(me, address).expect("the buffer is mapped");
    assert!(region.start <= address && address < region.end);
    assert_eq!((region.kind, region.unmovable()), (RegionKind::Data, None));
    let text = own_memory_is_found_and_text_is_skipped as fn() as usize as u64;
    assert_eq!(regions.find(me, text).map(|region| region.kind), Some(RegionKind::Skipped));
    assert_eq!(regions.find(me, 8), None);
}

/// Names in Latin-1 are usual where data is old.
#[test]
fn a_mapped_file_with_a_name_in_other_bytes_hides_no_region() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"caf\xe9.bin"));
    std::fs::write(&path, [1; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    // SAFETY: a new mapping where the kernel likes, of a file that nobody changes.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let (me, mut regions) = (ProcessId(std::process::id()), Regions::default());
    regions.refresh(me, 1);
    assert_eq!((regions.races, regions.find(me, mapped as u64).map(|region| region.kind)), (0, Some(RegionKind::Data)));
    // SAFETY: the mapping just made, which nobody uses.
    unsafe { libc::munmap(mapped, 4096) };
}

#[test]
fn a_file_is_shared_as_long_as_another_known_process_maps_it_too() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping where the kernel likes, of a file that nobody else knows.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let (me, others) = (ProcessId(std::process::id()), [ProcessId(u32::MAX), ProcessId(u32::MAX - 1)]);
    let mut regions = Regions::default();
    let kind = |regions: &mut Regions| {
        regions.refresh(me, 1);
        regions.find(me, mapped as u64).map(|region| region.kind).unwrap()
    };
    assert_eq!(kind(&mut regions), RegionKind::Data);
    let object = regions.find(me, mapped as u64).unwrap().object.unwrap();
    others.into_iter().for_each(|other| regions.maps(other, [object].into()));
    assert_eq!(kind(&mut regions), RegionKind::Shared);
    regions.maps(others[0], [object].into());
    regions.maps(others[0], [].into());
    assert_eq!(kind(&mut regions), RegionKind::Shared, "one of them maps it still");
    regions.retain(|process| process == me);
    assert_eq!((kind(&mut regions), regions.mapped_by.get(&object)), (RegionKind::Data, Some(&1)));
    // SAFETY: the mapping just made, which nobody uses.
    unsafe { libc::munmap(mapped, 4096) };
    regions.refresh(me, 1);
    assert!(!regions.mapped_by.contains_key(&object));
}

#[test]
fn an_address_is_found_in_the_region_that_holds_it() {
    let data = |start, end| Region::of(start, end, RegionKind::Data);
    let layout = Layout { regions: vec![data(10, 20), data(20, 30), data(40, 50)], ..Default::default() };
    let process = ProcessId(1);
    let regions = Regions { processes: BTreeMap::from([(process, layout)]), ..Regions::default() };
    let start = |address| regions.find(process, address).map(|region| region.start);
    assert_eq!(
        [9, 10, 19, 20, 29, 30, 39, 40, 50].map(start),
        [None, Some(10), Some(10), Some(20), Some(20), None, None, Some(40), None]
    );
    assert_eq!(regions.find(ProcessId(2), 10), None);
}

#[test]
fn a_process_that_ended_is_counted() {
    let mut child = Command::new("true").spawn().unwrap();
    let gone = ProcessId(child.id());
    child.wait().unwrap();
    let mut regions = Regions::default();
    regions.refresh(gone, 1);
    assert_eq!((regions.races, regions.find(gone, 4096)), (1, None));
}

/// A process that waits, bound to node 0.
fn bound_process() -> io::Result<Child> {
    let bind = || {
        let node = 1_u64;
        // SAFETY: a policy for this thread; the set of nodes lives through the call.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, &raw const node, 64_usize) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut cat = Command::new("cat");
    // SAFETY: a system call and what it returns, between fork and exec.
    let mut child = unsafe { cat.stdin(Stdio::piped()).stdout(Stdio::piped()).pre_exec(bind).spawn() }?;
    // It has all its memory once it gives back what it is given.
    child.stdin.as_mut().expect("a pipe was asked for").write_all(b"x")?;
    child.stdout.as_mut().expect("a pipe was asked for").read_exact(&mut [0])?;
    Ok(child)
}

#[test]
fn the_program_tells_of_regions_what_numa_maps_does() {
    // SAFETY: only returns a number.
    let program = match (RegionPolicies::load(), unsafe { libc::geteuid() }) {
        (Ok(program), _) => program,
        (Err(error), 0) if Path::new("/sys/kernel/btf/vmlinux").exists() => panic!("{error}"),
        (Err(error), _) => return unseen(&error.to_string()),
    };
    let mut child = match withheld(bound_process()) {
        Ok(child) => child,
        Err(why) => return unseen(&why),
    };
    let of_child = |program| policies(ProcessId(child.id()), program);
    let (told, shown) = (of_child(Some(&program)), of_child(None));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(told, shown);
    assert!(told.bound.len() > 10, "all its regions: {told:?}");

    let huge = libc::MAP_PRIVATE | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
    let [own, shared, free, huge] = [libc::MAP_PRIVATE, libc::MAP_SHARED, libc::MAP_PRIVATE, huge].map(|flags| {
        let (protection, bytes) = (libc::PROT_READ | libc::PROT_WRITE, 4 << 20);
        // SAFETY: a new mapping where the kernel likes; it stays, and nobody touches it.
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags | libc::MAP_ANONYMOUS, -1, 0) }
    });
    // SAFETY: what was mapped is mapped at a second place as well.
    let shared_again = unsafe { libc::mremap(shared, 0, 4 << 20, libc::MREMAP_MAYMOVE) };
    for mapped in [own, shared] {
        let node = 1_u64;
        // SAFETY: a policy for a mapping just made; the set of nodes lives through the call.
        let bound = unsafe { libc::syscall(libc::SYS_mbind, mapped, 4 << 20, libc::MPOL_BIND, &raw const node, 64, 0) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
    }
    for program in [Some(&program), None] {
        let told = policies(ProcessId(std::process::id()), program);
        let is_bound = [own, shared, shared_again, free].map(|mapped| told.bound.contains(&(mapped as u64)));
        assert_eq!(is_bound, [true, true, true, false], "{}", program.is_some());
        assert_eq!(told.hugetlb.contains(&(huge as u64)), huge != libc::MAP_FAILED, "{}", program.is_some());
    }
    let gone = policies(ProcessId(child.id()), Some(&program));
    assert_eq!(gone, Policies::default());
}

#[test]
fn what_takes_long_to_read_is_read_seldom() {
    const SECOND: u64 = 1_000_000_000;
    let due = |policies_cost_ns, policies_stale, after_s: u64| {
        let read = Layout { policies_read_ns: Some(5), policies_cost_ns, policies_stale, ..Layout::default() };
        read.policies_due(5 + after_s * SECOND)
    };
    assert!(Layout::default().policies_due(0), "never read");
    for (cost_ns, stale, wait_s) in [(0, true, 10), (0, false, 60), (SECOND, true, 600), (SECOND / 50, true, 20)] {
        assert!(!due(cost_ns, stale, wait_s - 1) && due(cost_ns, stale, wait_s), "{cost_ns} {stale} {wait_s}");
    }
}

#[test]
fn bound_regions_are_those_whose_policy_names_nodes() {
    let text = "7f00 default anon=1 N0=1\n6f00 bind:0-1 anon=3 N1=3\n7f10 prefer:1 heap\n7f20 local\n\
                    7f30 interleave:0,2\n7f40 weighted interleave:0-1 anon=1\n7f50 prefer (many):0-1\n";
    let bound = vec![0x6f00, 0x7f10, 0x7f30, 0x7f40, 0x7f50];
    assert_eq!(parse_policies(text), Policies { bound, hugetlb: vec![] });
}

/// Of Linux 6.18: a heap, a memfd and an anonymous mapping of huge pages, huge pages that were made of small ones.
#[test]
fn regions_of_pool_pages_are_those_marked_huge() {
    let text = "\
55c1c164a000 default heap anon=407 dirty=407 active=0 N0=407 kernelpagesize_kB=4
7f5ef7600000 default file=/memfd:buffers\\040(deleted) huge
7f5ef7a00000 default file=/anon_hugepage\\040(deleted) huge
7f5ef8000000 default anon=1024 dirty=1024 active=0 N0=1024 kernelpagesize_kB=4
7ffd2a371000 bind:0 file=/dev/hugepages/a\\040huge huge anon=1 dirty=1 N0=1 kernelpagesize_kB=2048
7ffd2a400000 default file=/mnt/a\\040huge\\040file mapped=3 N0=3 kernelpagesize_kB=4
";
    let huge = vec![0x7f5e_f760_0000, 0x7f5e_f7a0_0000, 0x7ffd_2a37_1000];
    assert_eq!(parse_policies(text), Policies { bound: vec![0x7ffd_2a37_1000], hugetlb: huge });
}

#[test]
fn pool_pages_stay_for_their_own_reason() {
    let region = Region { hugetlb: true, ..Region::of(0, 2 << 20, RegionKind::Data) };
    assert_eq!(region.unmovable(), Some(Unmovable::HugeTlb));
    assert_eq!(Region { bound: true, ..region }.unmovable(), Some(Unmovable::Bound), "the process says so");
}

#[test]
fn a_region_that_is_bound_as_it_is_is_seen_within_a_minute() {
    let (me, bytes) = (ProcessId(std::process::id()), 16 * 4096);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes; it stays until the test ends and nobody touches it. Executable, so
    // that it is no part of another one.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, 7, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let bind = |policy: i32| {
        let node = 1_u64;
        // SAFETY: a policy for the mapping just made; the set of nodes lives through the call.
        unsafe { libc::syscall(libc::SYS_mbind, mapped, bytes, policy, &raw const node, 64_usize, 0) }
    };
    let interleaved = match bind(libc::MPOL_INTERLEAVE) {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    if let Err(why) = withheld(interleaved) {
        return unseen(&why);
    }
    let mut regions = Regions::default();
    let mut bound = |now_ns| {
        regions.refresh(me, now_ns);
        // Other tests map memory too, and may hold up this one: it is read when it is due, no earlier and no later.
        let layout = regions.processes.get_mut(&me).unwrap();
        (layout.policies_stale, layout.policies_cost_ns) = (false, 0);
        regions.find(me, mapped as u64).map(|region| region.bound)
    };
    assert_eq!(bound(1), Some(true));
    // SAFETY: as above; the default policy takes no nodes.
    let reset = unsafe { libc::syscall(libc::SYS_mbind, mapped, bytes, libc::MPOL_DEFAULT, 0, 0, 0) };
    assert_eq!(reset, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(bound(2), Some(true), "its bounds are as they were");
    assert_eq!(bound(1 + POLICY_RENEWAL_NS), Some(false));
}

/// Maps huge pages without any in the pool: nothing is touched.
#[test]
fn a_mapping_that_came_between_two_readings_is_seen_at_the_next() {
    let me = ProcessId(std::process::id());
    let mut regions = Regions::default();
    regions.refresh(me, 1);
    regions.processes.get_mut(&me).unwrap().policies_cost_ns = 0;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel likes; it stays until the test ends and nobody touches it.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), 2 << 20, protection, flags | libc::MAP_HUGETLB | libc::MAP_NORESERVE, -1, 0)
    };
    let kinds = std::fs::read_to_string("/proc/filesystems").unwrap();
    if !kinds.contains("hugetlbfs") {
        return unseen("this kernel has no hugetlbfs");
    }
    assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let hugetlb = |regions: &Regions| regions.find(me, mapped as u64).map(|region| region.hugetlb);
    regions.refresh(me, 2);
    assert_eq!(hugetlb(&regions), Some(false), "too early to read numa_maps again");
    regions.refresh(me, 2 + POLICY_INTERVAL_NS);
    assert_eq!(hugetlb(&regions), Some(true));
}
