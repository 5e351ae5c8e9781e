// SPDX-License-Identifier: GPL-2.0-only
//! The calling thread's CPU affinity: read, set, restore.

use crate::topology::CpuId;
use anyhow::{Context, Result};
use std::io::Error;

/// CPU numbers the kernel may use; CONFIG_NR_CPUS is at most 8192 on x86-64.
const MAX_CPUS: usize = 8192;
const WORD_BITS: usize = u64::BITS as usize;

/// A CPU affinity mask, kept as the kernel gave it so that restoring it is exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity([u64; MAX_CPUS / WORD_BITS]);

impl Affinity {
    /// The calling thread's mask.
    pub fn of_this_thread() -> Result<Self> {
        let mut mask = Self([0; MAX_CPUS / WORD_BITS]);
        // SAFETY: the kernel writes at most the stated size into an array of that size.
        let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask.0), mask.0.as_mut_ptr()) };
        if bytes < 0 {
            return Err(Error::last_os_error()).context("cannot read the CPU affinity");
        }
        Ok(mask)
    }

    /// The mask of exactly `cpus`.
    pub fn to(cpus: &[CpuId]) -> Self {
        let mut mask = [0; MAX_CPUS / WORD_BITS];
        for CpuId(cpu) in cpus {
            mask[*cpu as usize / WORD_BITS] |= 1 << (*cpu as usize % WORD_BITS);
        }
        Self(mask)
    }

    /// Gives the calling thread this mask; on return it runs on one of its CPUs.
    pub fn apply(&self) -> Result<()> {
        // SAFETY: the kernel reads the stated size from an array of that size.
        let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&self.0), self.0.as_ptr()) };
        if result < 0 {
            return Err(Error::last_os_error())
                .with_context(|| format!("cannot set the affinity to {:?}", self.cpus()));
        }
        Ok(())
    }

    /// The CPUs in the mask, ascending.
    pub fn cpus(&self) -> Vec<CpuId> {
        (0..MAX_CPUS as u32).filter(|cpu| self.0[*cpu as usize / WORD_BITS] >> (cpu % 64) & 1 == 1).map(CpuId).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_exactly_its_cpus() {
        let cpus = [CpuId(0), CpuId(63), CpuId(64), CpuId(8191)];
        assert_eq!(Affinity::to(&cpus).cpus(), cpus);
    }

    #[test]
    fn affinity_after_bind_and_restore_is_what_it_was() {
        let before = Affinity::of_this_thread().unwrap();
        Affinity::to(&before.cpus()[..1]).apply().unwrap();
        assert_eq!(Affinity::of_this_thread().unwrap().cpus().len(), 1);
        before.apply().unwrap();
        assert_eq!(Affinity::of_this_thread().unwrap(), before);
    }
}
