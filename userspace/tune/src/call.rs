// SPDX-License-Identifier: GPL-2.0-only
//! Calls of the program's own functions in a thread that stands at a breakpoint at the first instruction of another one.
//!
//! The thread is sent into the function with a return address at which it stops again: that of the breakpoint. Others go on
//! meanwhile and are dealt with, so whatever the function waits for comes. Registers that a function may change are of no
//! use to whoever calls the other one, but for the arguments, which are put back. For 64-bit x86 only.

use anyhow::Result;
use nix::unistd::Pid;

use crate::breakpoint::Stand;

/// What the called function must leave alone below the stack of a thread at the beginning of a function: nothing. A
/// distance all the same, should the breakpoint ever be elsewhere.
#[cfg(target_arch = "x86_64")]
const BELOW: u64 = 256;

/// A call on its way.
#[derive(Clone, Debug)]
pub struct Call {
    /// Where the thread stood.
    stand: Stand,
    /// Its stack when it is back.
    stack: u64,
    #[cfg(target_arch = "x86_64")]
    saved: libc::user_regs_struct,
}

impl Call {
    /// Where the thread stood when it began, and stands again after its end.
    pub fn stand(&self) -> Stand {
        self.stand
    }

    /// Whether a thread that stands so has come back from it.
    pub fn has_returned(&self, stand: &Stand) -> bool {
        stand.at == self.stand.at && stand.stack == self.stack
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use anyhow::{Context, bail};
    use nix::sys::ptrace::{self, AddressType};

    use super::*;

    impl Call {
        /// Sends `thread` into `function`. It stops when that returns.
        ///
        /// # Errors
        /// The thread does not stand at a breakpoint, or cannot be changed.
        pub fn begin(thread: Pid, function: u64, arguments: [u64; 3]) -> Result<Self> {
            let saved = ptrace::getregs(thread).context("the program's registers cannot be read")?;
            let Some(stand) = Stand::of(thread) else { bail!("the program is gone") };
            // As after a call: 8 bytes below a multiple of 16, with the return address on top.
            let stack = ((saved.rsp - BELOW) & !15) - 8;
            ptrace::write(thread, stack as AddressType, stand.at as i64)
                .context("the program's stack cannot be used")?;
            let [rdi, rsi, rdx] = arguments;
            let there = libc::user_regs_struct { rip: function, rsp: stack, rax: 0, rdi, rsi, rdx, ..saved };
            ptrace::setregs(thread, there).context("the program's registers cannot be written")?;
            Ok(Self { stand, stack: stack + 8, saved })
        }

        /// Puts `thread`, which has come back, where it was, and returns what the function did.
        ///
        /// # Errors
        /// The thread cannot be changed any more.
        pub fn end(&self, thread: Pid) -> Result<u64> {
            let result = ptrace::getregs(thread).context("the program's registers cannot be read")?.rax;
            ptrace::setregs(thread, self.saved).context("the program's registers cannot be written")?;
            Ok(result)
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Call {
    /// Sends `thread` into `function`. It stops when that returns.
    ///
    /// # Errors
    /// Always.
    pub fn begin(_: Pid, _: u64, _: [u64; 3]) -> Result<Self> {
        anyhow::bail!("functions of the program can be called on 64-bit x86 only")
    }

    /// Puts `thread`, which has come back, where it was, and returns what the function did.
    ///
    /// # Errors
    /// Always.
    pub fn end(&self, _: Pid) -> Result<u64> {
        anyhow::bail!("functions of the program can be called on 64-bit x86 only")
    }
}
