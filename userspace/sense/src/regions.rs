// SPDX-License-Identifier: GPL-2.0-only
//! The memory regions of processes, from /proc/PID/maps; which of them are bound to nodes a BPF program tells.
//!
//! Where that cannot be loaded numa_maps does, which is dear: for it the kernel walks all page tables of the process, while nobody can
//! map or unmap memory of that. Regions without a policy have that of the main thread, by either.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, MemoryMaps};
use procfs::{FromRead, ProcResult};
use tandem_bpf::{RegionPolicies, RegionPolicy};
use tandem_machine::{process_text, thread_cpu_ns};
use tandem_policies::model::{ProcessId, Unmovable};

/// Policies of regions are read not more often than this.
pub(crate) const POLICY_INTERVAL_NS: u64 = 10_000_000_000;
/// It is read again after this time though no region changed: mbind(2) of a whole region leaves its bounds as they are.
pub(crate) const POLICY_RENEWAL_NS: u64 = 60_000_000_000;
/// Nor before this many times as long as it took, but no more seldom than [`POLICY_LONGEST_NS`]: numa_maps takes 8 ms/GiB in pages of
/// 4 KiB or more, a second where a process has 128 GiB of them.
const POLICY_COST_DIVISOR: u64 = 1000;
const POLICY_LONGEST_NS: u64 = 600_000_000_000;

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
    /// CPU time that this took.
    policies_cost_ns: u64,
    /// Regions have changed since.
    policies_stale: bool,
}

impl Layout {
    /// Whether policies are to be read again.
    fn policies_due(&self, now_ns: u64) -> bool {
        let usual_ns = if self.policies_stale { POLICY_INTERVAL_NS } else { POLICY_RENEWAL_NS };
        let wait_ns = self.policies_cost_ns.saturating_mul(POLICY_COST_DIVISOR).clamp(usual_ns, POLICY_LONGEST_NS);
        self.policies_read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= wait_ns)
    }
}

/// What maps does not say of regions: their first bytes, ascending.
#[derive(Debug, Default, PartialEq)]
struct Policies {
    /// Bound to nodes.
    bound: Vec<u64>,
    /// Of huge pages that come from each node's pool.
    hugetlb: Vec<u64>,
}

impl From<Vec<RegionPolicy>> for Policies {
    fn from(regions: Vec<RegionPolicy>) -> Self {
        let those = |wanted: fn(&RegionPolicy) -> bool| {
            regions.iter().filter(|region| wanted(region)).map(|region| region.start).collect()
        };
        Self { bound: those(|region| region.bound), hugetlb: those(|region| region.hugetlb) }
    }
}

/// Regions of the managed processes, as of their last reading.
#[derive(Default)]
pub struct Regions {
    processes: BTreeMap<ProcessId, Layout>,
    /// How many of them map an object, so that nobody looks through all others for each.
    mapped_by: HashMap<Object, usize>,
    /// Processes that were gone when they were read.
    pub races: u64,
    /// What tells which regions are bound; else numa_maps does.
    program: Option<RegionPolicies>,
}

impl Regions {
    /// With the program if it can be loaded, which takes some 30 ms.
    pub(crate) fn open() -> Self {
        let program = RegionPolicies::load().inspect_err(|error| {
            tracing::debug!(%error, "which regions are bound is read from numa_maps");
        });
        Self { program: program.ok(), ..Self::default() }
    }

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
        if layout.policies_due(now_ns) {
            let before_ns = thread_cpu_ns();
            layout.policies = policies(process, self.program.as_ref());
            layout.policies_cost_ns = thread_cpu_ns() - before_ns;
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
fn told_of(process: ProcessId, file: &str) -> io::Result<String> {
    process_text(&Path::new("/proc").join(process.0.to_string()).join(file))
}

/// Those of a process, of which numa_maps tells if no program does.
fn policies(process: ProcessId, program: Option<&RegionPolicies>) -> Policies {
    let told = program.and_then(|program| {
        let told = program.of(process.0);
        told.inspect_err(|error| tracing::debug!(%error, process = process.0, "numa_maps is read instead")).ok()
    });
    // A kernel without NUMA has no such file, and then nothing is bound.
    told.map_or_else(|| parse_policies(&told_of(process, "numa_maps").unwrap_or_default()), Policies::from)
}

fn read_maps(process: ProcessId) -> ProcResult<MemoryMaps> {
    MemoryMaps::from_read(told_of(process, "maps")?.as_bytes())
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
#[path = "regions_tests.rs"]
mod tests;
