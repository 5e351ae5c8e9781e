// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel is told about places: the CPUs of a thread, the nodes of pages.

use std::io;

use serde::{Deserialize, Serialize};
use tandem_policies::model::{CpuId, NodeIndex, Topology};

/// Bits of a word of the kernel's sets.
const WORD: usize = usize::BITS as usize;

/// CPUs that the kernel's sets have at most (CONFIG_NR_CPUS).
pub const MOST_CPUS: usize = 8192;

/// From linux/mempolicy.h.
const MPOL_INTERLEAVE: i32 = 3;

/// A set of CPUs, as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CpuSet(Vec<usize>);

impl CpuSet {
    /// These CPUs.
    pub fn of(cpus: &[CpuId]) -> Self {
        Self(bits(cpus.iter().map(|cpu| cpu.0)))
    }

    /// The CPUs of a node.
    pub fn of_node(topology: &Topology, node: NodeIndex) -> Self {
        Self::of(&topology.nodes[node].cpus)
    }

    /// Whether this CPU is one of them.
    pub fn has(&self, cpu: CpuId) -> bool {
        let cpu = cpu.0 as usize;
        self.0.get(cpu / WORD).is_some_and(|word| word >> (cpu % WORD) & 1 == 1)
    }

    /// Both sets' CPUs.
    pub fn with(&self, other: &Self) -> Self {
        let words = self.0.len().max(other.0.len());
        let word = |set: &Self, at: usize| set.0.get(at).copied().unwrap_or(0);
        Self((0..words).map(|at| word(self, at) | word(other, at)).collect())
    }

    /// One CPU of them: with other numbers other ones, as long as there are.
    pub fn one(&self, number: usize) -> Self {
        let cpus = || (0..(self.0.len() * WORD) as u32).filter(|&cpu| self.has(CpuId(cpu)));
        Self(bits(number.checked_rem(cpus().count()).and_then(|at| cpus().nth(at))))
    }

    /// The CPUs that a thread may run on; 0 is the calling one.
    ///
    /// # Errors
    /// What the system says: there is no such thread.
    pub fn of_thread(thread: i32) -> io::Result<Self> {
        let mut words = vec![0; MOST_CPUS / WORD];
        // SAFETY: the set lives through the call, which writes no more bytes than it is told.
        let bytes =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size_of_val(&words[..]), words.as_mut_ptr()) };
        if bytes < 0 {
            return Err(io::Error::last_os_error());
        }
        words.truncate(bytes as usize / size_of::<usize>());
        Ok(Self(words))
    }

    /// Lets a thread run on these CPUs only; 0 is the calling one.
    ///
    /// # Errors
    /// What the system says: there is no such thread, or none of the CPUs may be used.
    pub fn allow(&self, thread: i32) -> io::Result<()> {
        // SAFETY: the set lives through the call, which reads as many bytes as it is told.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread, size_of_val(&self.0[..]), self.0.as_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A set of memory nodes (the kernel's ids), as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet(Vec<usize>);

impl NodeSet {
    /// These nodes.
    pub fn of(nodes: &[u32]) -> Self {
        Self(bits(nodes.iter().copied()))
    }

    /// The set as the kernel reads it.
    pub fn words(&self) -> Vec<u64> {
        self.0.iter().map(|&word| word as u64).collect()
    }

    /// From now on pages of the calling thread, and of what it starts, come from these nodes in turn.
    ///
    /// # Errors
    /// What the system says: none of the nodes is there, or may be used.
    pub fn interleave_from_now_on(&self) -> io::Result<()> {
        // The kernel takes one bit less than it is told.
        let bits = self.0.len() * WORD + 1;
        // SAFETY: the set lives through the call, which reads as many bits as it is told.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_INTERLEAVE, self.0.as_ptr(), bits) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn bits(ids: impl IntoIterator<Item = u32>) -> Vec<usize> {
    let mut words = vec![0];
    for id in ids {
        let at = id as usize / WORD;
        words.resize(words.len().max(at + 1), 0);
        words[at] |= 1 << (id as usize % WORD);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bits() {
        assert_eq!(bits([]), [0]);
        assert_eq!(bits([0, 3, 65]), [9, 2]);
        let both = CpuSet::of(&[CpuId(1)]).with(&CpuSet::of(&[CpuId(64)]));
        assert_eq!(both, CpuSet(vec![2, 1]));
        assert_eq!(both.with(&CpuSet::of(&[CpuId(0)])), CpuSet(vec![3, 1]));
        assert_eq!([0, 1, 2].map(|number| both.one(number)), [vec![2], vec![0, 1], vec![2]].map(CpuSet));
    }

    #[test]
    fn what_a_thread_was_allowed_is_read() {
        let all = CpuSet::of_thread(0).unwrap();
        let first = (0..8192).find(|cpu| CpuSet::of(&[CpuId(*cpu)]).with(&all) == all).unwrap();
        let one = CpuSet::of(&[CpuId(first)]);
        // A thread of its own, which may keep what it gets.
        let read =
            std::thread::spawn(move || one.allow(0).and_then(|()| CpuSet::of_thread(0))).join().unwrap().unwrap();
        assert_eq!(read.with(&CpuSet::of(&[CpuId(first)])), read);
        assert_eq!(read.0.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }

    #[test]
    fn a_set_without_a_cpu_of_this_machine_is_refused() {
        assert!(CpuSet::of(&[CpuId(60_000)]).allow(0).is_err());
        assert!(NodeSet::of(&[1000]).interleave_from_now_on().is_err());
    }
}
