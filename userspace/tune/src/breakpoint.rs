// SPDX-License-Identifier: GPL-2.0-only
//! Breakpoints in traced programs. For 64-bit x86 only: elsewhere none can be set.

use anyhow::{Context, Result};
#[cfg(target_arch = "x86_64")]
use nix::errno::Errno;
use nix::sys::ptrace::{self, AddressType};
use nix::unistd::Pid;

/// The instruction that stops a traced thread.
#[cfg(target_arch = "x86_64")]
const BREAKPOINT: i64 = 0xcc;

/// Entry of the auxiliary vector (linux/auxvec.h): the program's entry point.
#[cfg(target_arch = "x86_64")]
const AT_ENTRY: u64 = 9;

/// The same: where the dynamic linker is.
#[cfg(target_arch = "x86_64")]
const AT_BASE: u64 = 7;

/// A breakpoint at an address of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// Where it is.
    pub address: u64,
    /// What was there.
    word: i64,
}

impl Breakpoint {
    /// Sets it in the process of `thread`, which is stopped; `None` where that cannot be done.
    #[cfg(target_arch = "x86_64")]
    pub fn set(thread: Pid, address: u64) -> Option<Self> {
        let word = ptrace::read(thread, address as AddressType).ok()?;
        let breakpoint = Self { address, word };
        breakpoint.write(thread, (word & !0xff) | BREAKPOINT).ok()?;
        Some(breakpoint)
    }

    /// Sets it in the process of `thread`, which is stopped; `None` where that cannot be done.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn set(_: Pid, _: u64) -> Option<Self> {
        None
    }

    /// The same at a function that begins with `word` in its file; `None` too where memory has something else: another file's code,
    /// or a breakpoint that was there before.
    pub fn set_over(thread: Pid, address: u64, word: i64) -> Option<Self> {
        let there = ptrace::read(thread, address as AddressType).ok()?;
        if there == word { Self::set(thread, address) } else { None }
    }

    /// Takes it out of the process of `thread`, which is stopped anywhere. Where it is not any more, nothing is changed: that
    /// code was unloaded.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    #[cfg(target_arch = "x86_64")]
    pub fn take_out(&self, thread: Pid) -> Result<()> {
        match ptrace::read(thread, self.address as AddressType) {
            Ok(word) if word & 0xff == BREAKPOINT => self.write(thread, (word & !0xff) | (self.word & 0xff)),
            Ok(_) | Err(Errno::EIO | Errno::EFAULT) => Ok(()),
            Err(error) => Err(error).context("the program cannot be read"),
        }
    }

    /// Nothing is to be taken out where none can be set.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn take_out(&self, _: Pid) -> Result<()> {
        Ok(())
    }

    /// Takes it out of the process of `thread`, which stands at it and goes on from there.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn remove(&self, thread: Pid) -> Result<()> {
        self.take_out(thread)?;
        go_on_at(thread, self.address)
    }

    /// Brings `thread`, which stands at it, behind the instruction in its place; false if the thread ended by that.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn step_over(&self, thread: Pid) -> Result<bool> {
        self.remove(thread)?;
        if !crate::wait::step(thread)? {
            return Ok(false);
        }
        let word = ptrace::read(thread, self.address as AddressType).context("the program cannot be read")?;
        #[cfg(target_arch = "x86_64")]
        self.write(thread, (word & !0xff) | BREAKPOINT)?;
        #[cfg(not(target_arch = "x86_64"))]
        self.write(thread, word)?;
        Ok(true)
    }

    fn write(&self, thread: Pid, word: i64) -> Result<()> {
        ptrace::write(thread, self.address as AddressType, word).context("the program's code cannot be changed")
    }
}

/// Lets `thread` go on at this address.
#[cfg(target_arch = "x86_64")]
fn go_on_at(thread: Pid, address: u64) -> Result<()> {
    let mut registers = ptrace::getregs(thread).context("the program's registers cannot be read")?;
    registers.rip = address;
    ptrace::setregs(thread, registers).context("the program's registers cannot be written")
}

#[cfg(not(target_arch = "x86_64"))]
fn go_on_at(_: Pid, _: u64) -> Result<()> {
    Ok(())
}

/// What a stopped thread has in the registers that matter here.
#[derive(Clone, Copy, Debug)]
pub struct Stand {
    /// The address of the breakpoint that it may stand at.
    pub at: u64,
    /// Its stack.
    pub stack: u64,
    /// First argument of the function that it is about to enter.
    pub first: u64,
    /// Third argument of that.
    pub third: u64,
}

impl Stand {
    /// The same with another third argument.
    pub fn with_third(self, third: u64) -> Self {
        Self { third, ..self }
    }

    /// Has `thread`, which stands so, do what is there now in place of a breakpoint.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    pub fn goes_on_there(&self, thread: Pid) -> Result<()> {
        go_on_at(thread, self.at)
    }

    /// Gives `thread`, which stands so, these arguments.
    ///
    /// # Errors
    /// The process cannot be changed any more.
    #[cfg(target_arch = "x86_64")]
    pub fn write(&self, thread: Pid) -> Result<()> {
        let registers = ptrace::getregs(thread).context("the program's registers cannot be read")?;
        let registers = libc::user_regs_struct { rdi: self.first, rdx: self.third, ..registers };
        ptrace::setregs(thread, registers).context("the program's registers cannot be written")
    }

    /// Gives `thread`, which stands so, these arguments.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn write(&self, _: Pid) -> Result<()> {
        anyhow::bail!("the program's registers are not known here")
    }

    /// Where `thread`, which is stopped, stands; `None` if it is gone.
    #[cfg(target_arch = "x86_64")]
    pub fn of(thread: Pid) -> Option<Self> {
        let registers = ptrace::getregs(thread).ok()?;
        let (first, third) = (registers.rdi, registers.rdx);
        Some(Self { at: registers.rip.wrapping_sub(1), stack: registers.rsp, first, third })
    }

    /// Where `thread`, which is stopped, stands; `None` if it is gone.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn of(_: Pid) -> Option<Self> {
        None
    }
}

/// Where the program of a process that is stopped at its exec begins, which its libraries' initialisation comes before.
#[cfg(target_arch = "x86_64")]
pub fn entry_point(process: Pid) -> Option<u64> {
    told_at_exec(process, AT_ENTRY)
}

/// Where the dynamic linker of a process is mapped; `None` of a static program.
#[cfg(target_arch = "x86_64")]
pub fn linker(process: Pid) -> Option<u64> {
    told_at_exec(process, AT_BASE).filter(|&base| base != 0)
}

/// What the kernel told the program in its auxiliary vector.
#[cfg(target_arch = "x86_64")]
fn told_at_exec(process: Pid, what: u64) -> Option<u64> {
    let vector = std::fs::read(format!("/proc/{process}/auxv")).ok()?;
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let entry = vector.chunks_exact(16).find(|pair| number(&pair[..8]) == Some(what))?;
    number(&entry[8..])
}

/// Where the dynamic linker of a process is mapped; `None` of a static program.
#[cfg(not(target_arch = "x86_64"))]
pub fn linker(_: Pid) -> Option<u64> {
    None
}

/// Where the program of a process that is stopped at its exec begins, which its libraries' initialisation comes before.
#[cfg(not(target_arch = "x86_64"))]
pub fn entry_point(_: Pid) -> Option<u64> {
    None
}
