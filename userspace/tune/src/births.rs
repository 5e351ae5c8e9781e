// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is bound to nodes when it is born, before anybody touches it.
//!
//! Problem: pages whose place is known beforehand should never be elsewhere: moving them later costs, and needs somebody who
//! is allowed to. Mechanism: the traced program stops at the calls that get it memory (mmap, brk, mremap), for the filter
//! of `crate::call_filter`; it is let do what it called for, and then made to call mbind for each run of pages
//! (`crate::inject`). Its static arrays are bound when the program proper begins. What it gets with less than
//! [`LEAST_BYTES`] at a time, its stacks and its files stay where they are touched first; a heap that grows in smaller steps is one
//! allocation (`heap`).
//!
//! mremap refuses memory whose parts have policies of their own. So what it is asked to change is first given back the
//! policy of the process, as a whole; what comes out of it is bound as if it were new.
//!
//! Where they go is either the same for all (equal chunks), or told allocation by allocation ([`crate::page_map`]): an allocation is
//! known again by where the program asks for it and how many it has asked for there (`call_site`).
//!
//! Why a filter and ptrace, and not BPF: a BPF program can see an allocation but can neither set another process's memory policy nor
//! hold the thread until somebody has; and a filter needs no root and sees static programs too.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tandem_machine::monotonic_ns;
use tandem_policies::model::PAGE_BYTES;

use heap::{Growth, Heap, Step};
use mappings::{Parts, are_own_memory, count};
use runs::in_turn;
pub use runs::{Run, in_chunks};

use crate::call_site::OwnCode;
#[cfg(target_arch = "x86_64")]
use crate::inject::Stopped;
use crate::page_use::{Born, Name};
use crate::places::Places;
use crate::seat::NodeSet;
use crate::symbols::static_arrays;
use tandem_ab::say::say_line;

mod heap;
mod mappings;
mod runs;

/// Allocations of fewer bytes are not bound: they stay in caches.
pub const LEAST_BYTES: u64 = 256 << 10;

/// Whether it can be done here.
pub const POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// The site of static arrays: they are asked for by the program's file, in its order.
const STATIC: &str = "static";

/// From linux/mempolicy.h.
const MPOL_DEFAULT: u64 = 0;
const MPOL_PREFERRED: u64 = 1;

/// What is known of a process.
#[derive(Clone, Debug, Default)]
struct Process {
    heap: Heap,
    /// Begins and ends of what was bound.
    bound: BTreeMap<u64, u64>,
    parts: Parts,
    /// Its own code, once it has asked for memory.
    code: Option<OwnCode>,
    /// How many allocations each site has asked for.
    orders: BTreeMap<String, u32>,
    /// Whether an allocation could be bound, and whether it was said that a later one could not.
    has_bound: bool,
    has_said: bool,
}

/// By what allocations are bound.
#[derive(Clone, Debug)]
enum Rule {
    /// In equal chunks: node by chunk.
    Chunks(Vec<u32>),
    /// By a map: pages and runs by name.
    Map(BTreeMap<Name, (u64, Vec<Run>)>),
    /// Not at all.
    None,
}

/// What became of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapUse {
    /// Pages of allocations that are in the map, and were bound by it.
    pub mapped_pages: u64,
    /// Pages of the map.
    pub map_pages: u64,
    /// The first allocation that is in the map with another size, in words.
    pub other_size: Option<String>,
    /// The first one that nothing in the map is like, in words.
    pub unknown: Option<String>,
}

impl MapUse {
    /// Whether the program allocates as it did when it was profiled, as far as it matters.
    pub fn fits(&self) -> bool {
        self.mapped_pages * 2 >= self.map_pages
    }

    /// What does not fit, in words; `None` if all does.
    pub fn in_words(&self) -> Option<String> {
        if self.mapped_pages >= self.map_pages {
            return None;
        }
        let strange = self.other_size.as_ref().or(self.unknown.as_ref());
        let strange = strange.map_or("some were not asked for", |words| words);
        let (mapped, all) = (self.mapped_pages, self.map_pages);
        Some(format!(
            "its allocations are not those that were profiled: {mapped} of {all} pages are bound by the map, the others are where \
             they are touched first ({strange})"
        ))
    }
}

/// Binds what the processes of a program allocate.
#[derive(Clone, Debug)]
pub struct Births {
    rule: Rule,
    processes: BTreeMap<Pid, Process>,
    /// All allocations, if they are to be told.
    told: Option<Vec<Born>>,
    map_use: Option<MapUse>,
}

impl Births {
    /// All allocations as `places` say; `None` if that is nothing.
    ///
    /// # Errors
    /// The map is none.
    pub fn of(places: &Places) -> Result<Option<Self>> {
        let rule = match &places.page_map {
            Some(map) => Rule::Map(map.by_name().context("the map of pages cannot be used")?),
            None if !places.chunks.is_empty() => Rule::Chunks(places.chunks.clone()),
            None if places.tells_allocations => Rule::None,
            None => return Ok(None),
        };
        let map_use = match &rule {
            Rule::Map(map) => Some(MapUse { map_pages: map.values().map(|one| one.0).sum(), ..MapUse::default() }),
            _ => None,
        };
        let told = places.tells_allocations.then(Vec::new);
        Ok(Some(Self { rule, processes: BTreeMap::new(), told, map_use }))
    }

    /// All allocations, if they were to be told.
    pub fn take_told(&mut self) -> Vec<Born> {
        self.told.take().unwrap_or_default()
    }

    /// What became of the map, if there is one. Where several processes have the same allocations each counts.
    pub fn map_use(&self) -> Option<MapUse> {
        self.map_use.clone()
    }

    /// `process` is gone, or has a new program.
    pub fn forget(&mut self, process: Pid) {
        self.processes.remove(&process);
    }

    /// `copy` is a copy of `process`, memory policies included.
    pub fn copied(&mut self, process: Pid, copy: Pid) {
        if let Some(known) = self.processes.get(&process) {
            self.processes.insert(copy, known.clone());
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Births {
    /// No call stops anybody here.
    ///
    /// # Errors
    /// None.
    pub fn called(&mut self, _: Pid, _: Pid) -> Result<()> {
        Ok(())
    }

    /// Nothing can be bound here.
    ///
    /// # Errors
    /// None.
    pub fn began(&mut self, _: Pid) -> Result<()> {
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Births {
    /// Deals with `thread` of `process`, which is stopped before a call that gets it memory. It may go on then.
    ///
    /// # Errors
    /// Memory cannot be bound here, or the thread cannot be traced any more.
    pub fn called(&mut self, thread: Pid, process: Pid) -> Result<()> {
        let Some(mut stopped) = Stopped::in_call(thread) else { return Ok(()) };
        // With mremap, `third` is how many bytes it wants.
        let [address, bytes, third, flags, ..] = stopped.arguments();
        match stopped.number() {
            libc::SYS_mmap if is_memory(third, flags) => {
                let Some(begin) = stopped.carry_out()?.filter(|&begin| begin > 0) else { return Ok(()) };
                self.bind(&stopped, process, begin as u64, bytes)?;
                stopped.finish(None)
            }
            libc::SYS_brk => {
                let Some(end) = stopped.carry_out()?.filter(|&end| end > 0) else { return Ok(()) };
                match self.processes.entry(process).or_default().heap.ends_at(end as u64) {
                    Growth::Little => {}
                    Growth::Large { begin, bytes } => self.bind(&stopped, process, begin, bytes)?,
                    Growth::Step(step) => self.bind_step(&stopped, process, step)?,
                }
                stopped.finish(None)
            }
            libc::SYS_mremap if self.is_bound(process, address, bytes) => self.remap(&stopped, process),
            // It was too small until now.
            libc::SYS_mremap if third >= LEAST_BYTES && are_own_memory(thread, address, address + bytes) => {
                let Some(begin) = stopped.carry_out()?.filter(|&begin| begin > 0) else { return Ok(()) };
                self.bind(&stopped, process, begin as u64, third)?;
                stopped.finish(None)
            }
            _ => Ok(()),
        }
    }

    /// Binds the static arrays of `process`, whose only thread is stopped where the program proper begins.
    ///
    /// # Errors
    /// Memory cannot be bound here, or the thread cannot be traced any more.
    pub fn began(&mut self, process: Pid) -> Result<()> {
        let arrays = static_arrays(process, LEAST_BYTES);
        if arrays.is_empty() {
            return Ok(());
        }
        let Some(stopped) = Stopped::in_code(process) else { return Ok(()) };
        for (begin, bytes) in arrays {
            self.bind_from(STATIC.to_owned(), &stopped, process, begin, bytes)?;
        }
        stopped.finish(None)
    }

    /// Does what a thread called for with memory that is bound.
    fn remap(&mut self, stopped: &Stopped, process: Pid) -> Result<()> {
        let arguments = stopped.arguments();
        let [address, bytes, new_bytes, ..] = arguments;
        if !stopped.skip()? || stopped.make(libc::SYS_mbind, [address, up(bytes), MPOL_DEFAULT, 0, 0, 0])?.is_none() {
            return Ok(());
        }
        let Some(result) = stopped.make(libc::SYS_mremap, arguments)? else { return Ok(()) };
        self.processes.entry(process).or_default().is_gone(address, address + bytes);
        let (begin, bytes) = if result < 0 { (address, bytes) } else { (result as u64, new_bytes) };
        self.bind(stopped, process, begin, bytes)?;
        stopped.finish(Some(result))
    }

    /// Whether some of this memory was bound.
    fn is_bound(&self, process: Pid, begin: u64, bytes: u64) -> bool {
        let before = |known: &Process| known.bound.range(..begin + bytes).next_back().is_some_and(|one| *one.1 > begin);
        self.processes.get(&process).is_some_and(before)
    }

    /// Binds whole pages of this memory, which the thread that is stopped has asked for.
    fn bind(&mut self, stopped: &Stopped, process: Pid, begin: u64, bytes: u64) -> Result<()> {
        let site = match self.rule {
            // Nobody asks for names.
            Rule::Chunks(_) if self.told.is_none() => String::new(),
            _ => {
                let known = self.processes.entry(process).or_default();
                let code = known.code.get_or_insert_with(|| OwnCode::of(process));
                code.site(stopped.thread(), stopped.stack())
            }
        };
        self.bind_from(site, stopped, process, begin, bytes)
    }

    /// Binds whole pages of this memory, which was asked for there, as far as there may be more parts.
    fn bind_from(&mut self, site: String, stopped: &Stopped, process: Pid, begin: u64, bytes: u64) -> Result<()> {
        let (begin, end) = (up(begin), (begin + bytes) / PAGE_BYTES * PAGE_BYTES);
        let pages = end.saturating_sub(begin) / PAGE_BYTES;
        let known = self.processes.entry(process).or_default();
        let next = known.orders.entry(site.clone()).or_default();
        let name = Name { site, order: *next };
        *next += 1;
        let runs = self.rule.runs(&name, pages, self.map_use.as_mut());
        if let Some(told) = &mut self.told {
            told.push(Born { process: process.as_raw(), name, begin, pages, at_ns: monotonic_ns() });
        }
        known.bind_all(stopped, begin, (begin, end), &runs)
    }

    /// Binds new pages of an allocation that grows with the heap.
    fn bind_step(&mut self, stopped: &Stopped, process: Pid, step: Step) -> Result<()> {
        let name = Name { site: heap::SITE.to_owned(), order: step.order };
        let runs = self.rule.runs_of_step(&name, &step, self.map_use.as_mut());
        if let Some(told) = &mut self.told {
            let is_it = |one: &&mut Born| (one.process, one.begin, &one.name) == (process.as_raw(), step.begin, &name);
            match told.iter_mut().rev().find(is_it) {
                Some(known) => known.pages = known.pages.max(step.end),
                None => {
                    let process = process.as_raw();
                    told.push(Born { process, name, begin: step.begin, pages: step.end, at_ns: monotonic_ns() });
                }
            }
        }
        let new = (step.begin + step.first * PAGE_BYTES, step.begin + step.end * PAGE_BYTES);
        self.processes.entry(process).or_default().bind_all(stopped, step.begin, new, &runs)
    }
}

#[cfg(target_arch = "x86_64")]
impl Process {
    /// Binds these runs of what begins there, all of which are from the one to the other address, as far as there may be more parts.
    fn bind_all(&mut self, stopped: &Stopped, begin: u64, (from, to): (u64, u64), runs: &[Run]) -> Result<()> {
        let bound = &mut self.bound;
        let count = || {
            // Much of it is gone; of what is not the kernel tells when it is asked to change.
            bound.clear();
            count(stopped.thread())
        };
        if !self.parts.take(runs.len(), count) {
            return Ok(());
        }
        // What was here before is gone.
        self.is_gone(from, to);
        if from < to {
            self.bound.insert(from, to);
        }
        let bound = runs.iter().try_for_each(|run| bind_run(stopped, begin, run));
        match bound {
            // It works on, maybe for hours: cpusets change, and other limits than that of parts are met.
            Err(error) if self.has_bound => {
                if !std::mem::replace(&mut self.has_said, true) {
                    say_line(format_args!(
                        "tandem: some memory of the program is where it is touched first: {error:#}"
                    ));
                }
            }
            Err(error) => return Err(error),
            Ok(()) => self.has_bound |= !runs.is_empty(),
        }
        Ok(())
    }

    /// What was bound there is there no more, or not as it was.
    fn is_gone(&mut self, from: u64, to: u64) {
        let there: Vec<u64> =
            self.bound.range(..to).rev().take_while(|(_, end)| **end > from).map(|(begin, _)| *begin).collect();
        there.iter().for_each(|begin| {
            self.bound.remove(begin);
        });
    }
}

#[cfg(target_arch = "x86_64")]
impl Rule {
    /// The runs of an allocation of so many pages.
    fn runs(&self, name: &Name, pages: u64, map_use: Option<&mut MapUse>) -> Vec<Run> {
        let map = match self {
            Self::Chunks(chunks) => return in_chunks(pages, chunks),
            Self::None => return Vec::new(),
            Self::Map(map) => map,
        };
        let misses = map_use.into_iter();
        match map.get(name) {
            Some((then, runs)) if *then == pages => {
                misses.for_each(|map_use| map_use.mapped_pages += pages);
                return runs.clone();
            }
            Some((then, _)) => misses.for_each(|map_use| {
                map_use.other_size.get_or_insert_with(|| format!("{name} has {pages} pages, it had {then}"));
            }),
            // Of those that were not seen to be used there is nothing in the map.
            None if map.keys().any(|known| known.site == name.site) => {}
            None => misses.for_each(|map_use| {
                map_use.unknown.get_or_insert_with(|| format!("{name} is not in the map"));
            }),
        }
        Vec::new()
    }

    /// The runs of new pages of an allocation that grows. It is the one in the map as far as both go.
    fn runs_of_step(&self, name: &Name, step: &Step, map_use: Option<&mut MapUse>) -> Vec<Run> {
        let map = match self {
            Self::Chunks(chunks) => return in_turn(step.first, step.end, chunks),
            Self::None => return Vec::new(),
            Self::Map(map) => map,
        };
        let Some((then, runs)) = map.get(name) else { return Vec::new() };
        if let Some(map_use) = map_use {
            map_use.mapped_pages += step.end.min(*then).saturating_sub(step.had.max(step.first));
        }
        runs.iter().filter_map(|run| run.within(step.first, step.end)).collect()
    }
}

/// Lets the thread bind a run of the memory at `begin`.
#[cfg(target_arch = "x86_64")]
fn bind_run(stopped: &Stopped, begin: u64, run: &Run) -> Result<()> {
    let nodes = NodeSet::of(&[run.node]).words();
    let Some(mask) = stopped.put(&nodes) else { return Ok(()) };
    let (begin, bytes) = (begin + run.first_page * PAGE_BYTES, run.pages * PAGE_BYTES);
    // The kernel takes one bit less than it is told.
    let bits = nodes.len() as u64 * u64::from(u64::BITS) + 1;
    match stopped.make(libc::SYS_mbind, [begin, bytes, MPOL_PREFERRED, mask, bits, 0])? {
        // Another thread may have unmapped it meanwhile.
        None | Some(0) => Ok(()),
        Some(error) if error == -i64::from(libc::EFAULT) => Ok(()),
        Some(error) => Err(std::io::Error::from_raw_os_error(-error as i32))
            .with_context(|| format!("pages of the program cannot be bound to node {}", run.node)),
    }
}

/// Whether mmap is asked for memory that threads will use, and not for a stack, a file, or addresses to use later.
fn is_memory(protection: u64, flags: u64) -> bool {
    let no_memory = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
    protection & libc::PROT_WRITE as u64 != 0
        && flags & libc::MAP_ANONYMOUS as u64 != 0
        && flags & no_memory as u64 == 0
}

/// To whole pages.
fn up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_by_map;
#[cfg(test)]
mod tests_of_growth;
