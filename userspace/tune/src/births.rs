// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is bound to nodes when it is born, before anybody touches it.
//!
//! Problem: pages whose place is known beforehand should never be elsewhere: moving them later costs, and needs somebody who
//! is allowed to. Mechanism: the traced program stops at the calls that get it memory (mmap, brk, mremap), for the filter
//! of [`crate::call_filter`]; it is let do what it called for, and then made to call mbind for each run of pages
//! ([`crate::inject`]). Its static arrays are bound when the program proper begins. What it does with less than
//! [`LEAST_BYTES`] at a time, its stacks and its files stay where they are touched first.
//!
//! mremap refuses memory whose parts have policies of their own. So what it is asked to change is first given back the
//! policy of the process, as a whole; what comes out of it is bound as if it were new.
//!
//! Why a filter and ptrace, and not BPF: a BPF program can see an allocation but can neither set another process's memory policy nor
//! hold the thread until somebody has; and a filter needs no root and sees static programs too.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use nix::unistd::Pid;

#[cfg(target_arch = "x86_64")]
use crate::inject::Stopped;
use crate::seat::NodeSet;
use crate::symbols::static_arrays;

/// Allocations of fewer bytes are not bound: they stay in caches.
pub const LEAST_BYTES: u64 = 256 << 10;

/// Whether it can be done here.
pub const POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// Parts with policies of their own that a process gets at most. The kernel allows 65,530 mappings (vm.max_map_count), after which
/// the program itself would get no memory.
const MOST_PARTS: usize = 32_768;

const PAGE_BYTES: u64 = 4096;

/// From linux/mempolicy.h.
const MPOL_DEFAULT: u64 = 0;
const MPOL_PREFERRED: u64 = 1;

/// Neighbouring pages on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one, counted from the allocation's begin.
    pub first_page: u64,
    /// How many.
    pub pages: u64,
    /// The kernel's id of their node.
    pub node: u32,
}

/// An allocation of `pages` pages in equal chunks, chunk i on the i-th of these nodes.
pub fn in_chunks(pages: u64, chunks: &[u32]) -> Vec<Run> {
    let many = chunks.len() as u64;
    let mut runs: Vec<Run> = Vec::new();
    for (chunk, &node) in (0..).zip(chunks) {
        let (begin, end) = (pages * chunk / many, pages * (chunk + 1) / many);
        match runs.last_mut() {
            Some(last) if last.node == node => last.pages += end - begin,
            _ if begin < end => runs.push(Run { first_page: begin, pages: end - begin, node }),
            _ => {}
        }
    }
    runs
}

/// What is known of a process.
#[derive(Clone, Debug, Default)]
struct Process {
    /// Where its heap ends, once it has asked for that.
    heap_end: Option<u64>,
    /// Begins and ends of what was bound.
    bound: BTreeMap<u64, u64>,
    /// Parts so far.
    parts: usize,
}

/// Binds what the processes of a program allocate.
#[derive(Clone, Debug)]
pub struct Births {
    /// Node by chunk.
    chunks: Vec<u32>,
    processes: BTreeMap<Pid, Process>,
}

impl Births {
    /// All allocations in equal chunks, one on each of these nodes (the kernel's ids); `None` if there are none.
    pub fn of(chunks: &[u32]) -> Option<Self> {
        (!chunks.is_empty()).then(|| Self { chunks: chunks.to_vec(), processes: BTreeMap::new() })
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
        let [address, bytes, protection, flags, ..] = stopped.arguments();
        match stopped.number() {
            libc::SYS_mmap if is_memory(protection, flags) => {
                let Some(begin) = stopped.carry_out()?.filter(|&begin| begin > 0) else { return Ok(()) };
                self.bind(&stopped, process, begin as u64, bytes)?;
                stopped.finish(None)
            }
            libc::SYS_brk => {
                let Some(end) = stopped.carry_out()?.filter(|&end| end > 0) else { return Ok(()) };
                let before = self.processes.entry(process).or_default().heap_end.replace(end as u64);
                if let Some(before) = before.filter(|&before| before + LEAST_BYTES <= end as u64) {
                    self.bind(&stopped, process, before, end as u64 - before)?;
                }
                stopped.finish(None)
            }
            libc::SYS_mremap if self.is_bound(process, address, bytes) => self.remap(&stopped, process),
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
            self.bind(&stopped, process, begin, bytes)?;
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
        let (begin, bytes) = if result < 0 { (address, bytes) } else { (result as u64, new_bytes) };
        self.bind(stopped, process, begin, bytes)?;
        stopped.finish(Some(result))
    }

    /// Whether some of this memory was bound.
    fn is_bound(&self, process: Pid, begin: u64, bytes: u64) -> bool {
        let before = |known: &Process| known.bound.range(..begin + bytes).next_back().is_some_and(|one| *one.1 > begin);
        self.processes.get(&process).is_some_and(before)
    }

    /// Binds whole pages of this memory, as far as there may be more parts.
    fn bind(&mut self, stopped: &Stopped, process: Pid, begin: u64, bytes: u64) -> Result<()> {
        let (begin, end) = (up(begin), (begin + bytes) / PAGE_BYTES * PAGE_BYTES);
        let known = self.processes.entry(process).or_default();
        let runs = in_chunks(end.saturating_sub(begin) / PAGE_BYTES, &self.chunks);
        if known.parts + runs.len() > MOST_PARTS {
            return Ok(());
        }
        known.parts += runs.len();
        // What was here before is gone.
        known.bound.retain(|&old, old_end| *old_end <= begin || old >= end);
        if !runs.is_empty() {
            known.bound.insert(begin, end);
        }
        runs.iter().try_for_each(|run| bind_run(stopped, begin, run))
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
