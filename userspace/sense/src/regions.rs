// SPDX-License-Identifier: GPL-2.0-only
//! The memory regions of processes, from /proc/PID/maps and numa_maps.

use std::collections::BTreeMap;

use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use tandem_policies::model::{ProcessId, Unmovable};

/// Reading numa_maps makes the kernel walk all page tables: not more often than this.
const POLICY_INTERVAL_NS: u64 = 10_000_000_000;

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
    /// Device and inode of a shared mapping.
    object: Option<(i32, i32, u64)>,
}

impl Region {
    #[cfg(test)]
    pub(crate) fn of(start: u64, end: u64, kind: RegionKind) -> Self {
        Self { start, end, kind, bound: false, object: None }
    }

    /// Why its pages must stay where they are, as far as the region tells.
    pub fn unmovable(&self) -> Option<Unmovable> {
        match self {
            Region { kind: RegionKind::Shared, .. } => Some(Unmovable::Shared),
            Region { bound: true, .. } => Some(Unmovable::Bound),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Layout {
    regions: Vec<Region>,
    /// First bytes of the regions bound to nodes.
    bound: Vec<u64>,
    policies_read_ns: Option<u64>,
}

/// Regions of the managed processes, as of their last reading.
#[derive(Default)]
pub struct Regions {
    processes: BTreeMap<ProcessId, Layout>,
    /// Processes that were gone when they were read.
    pub races: u64,
}

impl Regions {
    /// Reads the regions of `process` anew. A process that has ended leaves none, and is counted.
    pub fn refresh(&mut self, process: ProcessId, now_ns: u64) {
        let maps = Process::new(process.0 as i32).and_then(|handle| Ok((handle.maps()?, handle)));
        let Ok((maps, handle)) = maps else {
            self.processes.remove(&process);
            self.races += 1;
            return;
        };
        let others = self.objects_of_others(process);
        let layout = self.processes.entry(process).or_default();
        let mut regions: Vec<_> = maps.0.iter().map(Region::from).collect();
        let changed = regions.len() != layout.regions.len()
            || regions.iter().zip(&layout.regions).any(|(new, old)| (new.start, new.end) != (old.start, old.end));
        let due = layout.policies_read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= POLICY_INTERVAL_NS);
        if changed && due {
            // A kernel without NUMA has no such file, and then nothing is bound.
            layout.bound = read_bound(&handle).unwrap_or_default();
            layout.policies_read_ns = Some(now_ns);
        }
        for region in &mut regions {
            region.bound = layout.bound.binary_search(&region.start).is_ok();
            if region.kind == RegionKind::Data && region.object.is_some_and(|object| others.contains(&object)) {
                region.kind = RegionKind::Shared;
            }
        }
        layout.regions = regions;
    }

    fn objects_of_others(&self, process: ProcessId) -> Vec<(i32, i32, u64)> {
        let others = self.processes.iter().filter(|(other, _)| **other != process);
        others.flat_map(|(_, layout)| layout.regions.iter().filter_map(|region| region.object)).collect()
    }

    /// The region of `process` that holds `address`.
    pub fn find(&self, process: ProcessId, address: u64) -> Option<&Region> {
        let regions = &self.processes.get(&process)?.regions;
        let at = regions.partition_point(|region| region.end <= address);
        regions.get(at).filter(|region| region.start <= address)
    }

    /// Forgets all other processes.
    pub fn retain(&mut self, managed: impl Fn(ProcessId) -> bool) {
        self.processes.retain(|process, _| managed(*process));
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
            object: shared.then_some((map.dev.0, map.dev.1, map.inode)),
        }
    }
}

fn read_bound(process: &Process) -> Result<Vec<u64>, ProcError> {
    let mut text = String::new();
    let mut file = process.open_relative("numa_maps")?;
    std::io::Read::read_to_string(&mut file, &mut text)?;
    Ok(parse_bound(&text))
}

/// First bytes of the regions whose policy names nodes, ascending.
fn parse_bound(numa_maps: &str) -> Vec<u64> {
    let mut bound: Vec<_> = numa_maps
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let start = u64::from_str_radix(words.next()?, 16).ok()?;
            let policy = words.next()?;
            let named = ["bind", "prefer", "interleave", "weighted interleave"];
            (policy.contains(':') && named.iter().any(|name| policy.starts_with(name))).then_some(start)
        })
        .collect();
    bound.sort_unstable();
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn an_address_is_found_in_the_region_that_holds_it() {
        let data = |start, end| Region::of(start, end, RegionKind::Data);
        let layout = Layout { regions: vec![data(10, 20), data(20, 30), data(40, 50)], ..Default::default() };
        let process = ProcessId(1);
        let regions = Regions { processes: BTreeMap::from([(process, layout)]), races: 0 };
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
        let text =
            "7f00 default anon=1 N0=1\n6f00 bind:0-1 anon=3 N1=3\n7f10 prefer:1 heap\n7f20 local\n7f30 interleave:0,2";
        assert_eq!(parse_bound(text), [0x6f00, 0x7f10, 0x7f30]);
    }
}
