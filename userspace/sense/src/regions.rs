// SPDX-License-Identifier: GPL-2.0-only
//! The memory regions of processes, from /proc/PID/maps and numa_maps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, MemoryMaps};
use procfs::{FromRead, ProcResult};
use tandem_machine::process_text;
use tandem_policies::model::{ProcessId, Unmovable};

/// Reading numa_maps makes the kernel walk all page tables: not more often than this.
pub(crate) const POLICY_INTERVAL_NS: u64 = 10_000_000_000;
/// It is read again after this time though no region changed: mbind(2) of a whole region leaves its bounds as they are.
pub(crate) const POLICY_RENEWAL_NS: u64 = 60_000_000_000;

/// What kind of memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Data that this process maps for itself, or shared memory that no other known process maps.
    Data,
    /// A shared mapping of a file or shared-memory object that another known process maps too.
    Shared,
    /// Program text, the main stack, or memory of the kernel's own: not grouped.
    Skipped,
}

/// Device and inode of what a shared mapping maps.
type Object = (i32, i32, u64);

/// A contiguous region of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What it holds.
    pub kind: RegionKind,
    /// The process binds it to nodes itself.
    pub bound: bool,
    /// Of hugetlbfs, or mapped with MAP_HUGETLB.
    pub hugetlb: bool,
    /// Of a shared mapping.
    object: Option<Object>,
}

impl Region {
    #[cfg(test)]
    pub(crate) fn of(start: u64, end: u64, kind: RegionKind) -> Self {
        Self { start, end, kind, bound: false, hugetlb: false, object: None }
    }

    /// Why its pages must stay where they are, as far as the region tells.
    pub fn unmovable(&self) -> Option<Unmovable> {
        match self {
            Region { kind: RegionKind::Shared, .. } => Some(Unmovable::Shared),
            Region { bound: true, .. } => Some(Unmovable::Bound),
            Region { hugetlb: true, .. } => Some(Unmovable::HugeTlb),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Layout {
    regions: Vec<Region>,
    /// What its shared mappings map.
    objects: BTreeSet<Object>,
    policies: Policies,
    policies_read_ns: Option<u64>,
    /// Regions have changed since.
    policies_stale: bool,
}

/// What numa_maps says of regions that maps does not: their first bytes, ascending.
#[derive(Debug, Default, PartialEq)]
struct Policies {
    /// Bound to nodes.
    bound: Vec<u64>,
    /// Of huge pages that come from each node's pool.
    hugetlb: Vec<u64>,
}

/// Regions of the managed processes, as of their last reading.
#[derive(Default)]
pub struct Regions {
    processes: BTreeMap<ProcessId, Layout>,
    /// How many of them map an object, so that nobody looks through all others for each.
    mapped_by: HashMap<Object, usize>,
    /// Processes that were gone when they were read.
    pub races: u64,
}

impl Regions {
    /// Reads the regions of `process` anew. A process that has ended leaves none, and is counted.
    pub fn refresh(&mut self, process: ProcessId, now_ns: u64) {
        let Ok(maps) = read_maps(process) else {
            self.forget(process);
            self.races += 1;
            return;
        };
        let mut regions: Vec<_> = maps.0.iter().map(Region::from).collect();
        self.maps(process, regions.iter().filter_map(|region| region.object).collect());
        let layout = self.processes.entry(process).or_default();
        layout.policies_stale |= regions.len() != layout.regions.len()
            || regions.iter().zip(&layout.regions).any(|(new, old)| (new.start, new.end) != (old.start, old.end));
        let age_ns = layout.policies_read_ns.map(|read_ns| now_ns.saturating_sub(read_ns));
        let limit_ns = if layout.policies_stale { POLICY_INTERVAL_NS } else { POLICY_RENEWAL_NS };
        if age_ns.is_none_or(|age_ns| age_ns >= limit_ns) {
            // A kernel without NUMA has no such file, and then nothing is bound.
            layout.policies = parse_policies(&told(process, "numa_maps").unwrap_or_default());
            layout.policies_read_ns = Some(now_ns);
            layout.policies_stale = false;
        }
        for region in &mut regions {
            region.bound = layout.policies.bound.binary_search(&region.start).is_ok();
            region.hugetlb = layout.policies.hugetlb.binary_search(&region.start).is_ok();
            let is_mapped_elsewhere = |object: Object| self.mapped_by.get(&object).is_some_and(|&by| by > 1);
            if region.kind == RegionKind::Data && region.object.is_some_and(is_mapped_elsewhere) {
                region.kind = RegionKind::Shared;
            }
        }
        layout.regions = regions;
    }

    /// A process maps these objects, and none besides.
    fn maps(&mut self, process: ProcessId, objects: BTreeSet<Object>) {
        let known = std::mem::replace(&mut self.processes.entry(process).or_default().objects, objects);
        let objects = &self.processes[&process].objects;
        for object in objects.difference(&known) {
            *self.mapped_by.entry(*object).or_default() += 1;
        }
        for object in known.difference(objects) {
            let by = self.mapped_by.entry(*object).or_default();
            *by = by.saturating_sub(1);
            if *by == 0 {
                self.mapped_by.remove(object);
            }
        }
    }

    fn forget(&mut self, process: ProcessId) {
        self.maps(process, BTreeSet::new());
        self.processes.remove(&process);
    }

    /// The region of `process` at the lowest address.
    pub(crate) fn first(&self, process: ProcessId) -> Option<&Region> {
        self.processes.get(&process)?.regions.first()
    }

    /// The region of `process` that holds `address`.
    pub fn find(&self, process: ProcessId, address: u64) -> Option<&Region> {
        let regions = &self.processes.get(&process)?.regions;
        let at = regions.partition_point(|region| region.end <= address);
        regions.get(at).filter(|region| region.start <= address)
    }

    /// Forgets all other processes.
    pub fn retain(&mut self, managed: impl Fn(ProcessId) -> bool) {
        let others: Vec<ProcessId> = self.processes.keys().copied().filter(|&process| !managed(process)).collect();
        others.into_iter().for_each(|process| self.forget(process));
    }
}

impl From<&MemoryMap> for Region {
    fn from(map: &MemoryMap) -> Self {
        let text = map.inode != 0 && map.perms.contains(MMPermissions::EXECUTE);
        let skipped = match map.pathname {
            MMapPath::Stack | MMapPath::Vdso | MMapPath::Vvar | MMapPath::Vsyscall => true,
            MMapPath::Other(_) => map.inode == 0 && !map.perms.contains(MMPermissions::WRITE),
            _ => text,
        };
        let shared = map.perms.contains(MMPermissions::SHARED) && map.inode != 0;
        Self {
            start: map.address.0,
            end: map.address.1,
            kind: if skipped { RegionKind::Skipped } else { RegionKind::Data },
            bound: false,
            hugetlb: false,
            object: shared.then_some((map.dev.0, map.dev.1, map.inode)),
        }
    }
}

/// What this file of /proc says of a process.
fn told(process: ProcessId, file: &str) -> io::Result<String> {
    process_text(&Path::new("/proc").join(process.0.to_string()).join(file))
}

fn read_maps(process: ProcessId) -> ProcResult<MemoryMaps> {
    MemoryMaps::from_read(told(process, "maps")?.as_bytes())
}

/// Whether a policy as numa_maps writes it, with anything behind it, names nodes.
pub(crate) fn names_nodes(policy: &str) -> bool {
    let named = ["bind", "prefer", "interleave", "weighted interleave"];
    policy.contains(':') && named.iter().any(|name| policy.starts_with(name))
}

fn parse_policies(numa_maps: &str) -> Policies {
    let mut policies = Policies::default();
    for line in numa_maps.lines() {
        let Some((start, rest)) = line.split_once(' ') else { continue };
        let Ok(start) = u64::from_str_radix(start, 16) else { continue };
        if names_nodes(rest) {
            policies.bound.push(start);
        }
        if rest.split(' ').any(|word| word == "huge") {
            policies.hugetlb.push(start);
        }
    }
    policies.bound.sort_unstable();
    policies.hugetlb.sort_unstable();
    policies
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

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
        assert_eq!(
            (regions.races, regions.find(me, mapped as u64).map(|region| region.kind)),
            (0, Some(RegionKind::Data))
        );
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
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = ProcessId(child.id());
        child.wait().unwrap();
        let mut regions = Regions::default();
        regions.refresh(gone, 1);
        assert_eq!((regions.races, regions.find(gone, 4096)), (1, None));
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
            // Other tests map memory too: what numa_maps is read for is not to be read earlier than it is due.
            regions.processes.get_mut(&me).unwrap().policies_stale = false;
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
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes; it stays until the test ends and nobody touches it.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 << 20,
                protection,
                flags | libc::MAP_HUGETLB | libc::MAP_NORESERVE,
                -1,
                0,
            )
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
}
