// SPDX-License-Identifier: GPL-2.0-only
//! Where a program proper begins: a breakpoint at its entry point, which its libraries' initialisation comes before.
//!
//! For 64-bit x86 only: elsewhere there is none, and the main thread has its seat from the exec on.

use anyhow::{Context, Result};
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Entry of the auxiliary vector (linux/auxvec.h): the program's entry point.
#[cfg(target_arch = "x86_64")]
const AT_ENTRY: u64 = 9;

/// The instruction that stops a traced thread.
#[cfg(target_arch = "x86_64")]
const BREAKPOINT: i64 = 0xcc;

/// A breakpoint at the entry point of a process's program.
pub struct Entry {
    process: Pid,
    address: u64,
    /// What was there.
    word: i64,
}

impl Entry {
    /// Sets it in a process that is stopped at its exec; `None` where that cannot be done.
    #[cfg(target_arch = "x86_64")]
    pub fn set(process: Pid) -> Option<Self> {
        let vector = std::fs::read(format!("/proc/{process}/auxv")).ok()?;
        let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
        let entry = vector.chunks_exact(16).find(|pair| number(&pair[..8]) == Some(AT_ENTRY))?;
        let address = number(&entry[8..])?;
        let word = ptrace::read(process, address as ptrace::AddressType).ok()?;
        ptrace::write(process, address as ptrace::AddressType, (word & !0xff) | BREAKPOINT).ok()?;
        Some(Self { process, address, word })
    }

    /// Sets it in a process that is stopped at its exec; `None` where that cannot be done.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn set(_: Pid) -> Option<Self> {
        None
    }

    /// Whether `thread`, which is stopped, is at it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_reached_by(&self, thread: Pid) -> bool {
        thread == self.process && ptrace::getregs(thread).is_ok_and(|registers| registers.rip == self.address + 1)
    }

    /// Whether `thread`, which is stopped, is at it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_reached_by(&self, _: Pid) -> bool {
        false
    }

    /// Removes it from the process, which stands at it.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn remove(self) -> Result<()> {
        let at = self.address as ptrace::AddressType;
        ptrace::write(self.process, at, self.word).context("the program's entry cannot be restored")?;
        #[cfg(target_arch = "x86_64")]
        {
            let mut registers = ptrace::getregs(self.process).context("the program's registers cannot be read")?;
            registers.rip = self.address;
            ptrace::setregs(self.process, registers).context("the program's registers cannot be written")?;
        }
        Ok(())
    }
}
