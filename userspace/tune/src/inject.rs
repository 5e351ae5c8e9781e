// SPDX-License-Identifier: GPL-2.0-only
//! System calls that a stopped thread is made to make. For 64-bit x86 only.
//!
//! A process's memory policy can be set by itself alone, so who traces it lets it do that: the thread is brought back to the
//! instruction by which it calls the system, with another call in its registers, makes one step, and gets its own
//! registers back.

use anyhow::{Context, Result};
use libc::user_regs_struct;
use nix::sys::ptrace::{self, AddressType};
use nix::unistd::Pid;

/// The instruction that calls the system, as the low bytes of a word.
const CALL: i64 = 0x050f;

/// Its length.
const CALL_BYTES: u64 = 2;

/// Bytes below the stack that belong to the function that runs.
const RED_ZONE: u64 = 128;

/// Bytes below that for what a call reads.
const ROOM: u64 = 256;

/// A thread that is stopped where it can be made to call the system.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    thread: Pid,
    /// What it gets back.
    registers: user_regs_struct,
    /// Where there is an instruction that calls the system.
    instruction: u64,
    /// What was there before, if it was put there.
    word: Option<i64>,
}

impl Stopped {
    /// A thread that is stopped just before the system does what it called for; `None` if it is gone.
    pub fn in_call(thread: Pid) -> Option<Self> {
        let registers = ptrace::getregs(thread).ok()?;
        Some(Self { thread, registers, instruction: registers.rip.wrapping_sub(CALL_BYTES), word: None })
    }

    /// A thread that is stopped where it runs code, the only one of its process; `None` if it is gone.
    pub fn in_code(thread: Pid) -> Option<Self> {
        let registers = ptrace::getregs(thread).ok()?;
        let word = ptrace::read(thread, registers.rip as AddressType).ok()?;
        ptrace::write(thread, registers.rip as AddressType, (word & !0xffff) | CALL).ok()?;
        Some(Self { thread, registers, instruction: registers.rip, word: Some(word) })
    }

    /// The thread.
    pub fn thread(&self) -> Pid {
        self.thread
    }

    /// Where its stack is.
    pub fn stack(&self) -> u64 {
        self.registers.rsp
    }

    /// What it called for.
    pub fn number(&self) -> i64 {
        self.registers.orig_rax as i64
    }

    /// With these arguments.
    pub fn arguments(&self) -> [u64; 6] {
        let registers = &self.registers;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9]
    }

    /// Lets it do what it called for and stops it after that: the result, or the negative error; `None` if it ended.
    ///
    /// # Errors
    /// It cannot be traced any more.
    pub fn carry_out(&mut self) -> Result<Option<i64>> {
        let result = self.step()?;
        self.registers.rax = result.unwrap_or_default() as u64;
        Ok(result)
    }

    /// Stops it behind what it called for, which it does not do; false if it ended.
    ///
    /// # Errors
    /// It cannot be traced any more.
    pub fn skip(&self) -> Result<bool> {
        self.set(user_regs_struct { orig_rax: u64::MAX, ..self.registers })?;
        Ok(self.step()?.is_some())
    }

    /// Makes it call the system: the result, or the negative error; `None` if it ended.
    ///
    /// # Errors
    /// It cannot be traced any more.
    pub fn make(&self, number: i64, arguments: [u64; 6]) -> Result<Option<i64>> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // What the system would begin again after a signal is nothing that it was made to call.
        let registers = user_regs_struct { rax: number as u64, orig_rax: u64::MAX, ..self.registers };
        self.set(user_regs_struct { rip: self.instruction, rdi, rsi, rdx, r10, r8, r9, ..registers })?;
        self.step()
    }

    /// Gives it back what it had; `result` is what its own call returns, if another one than it made.
    ///
    /// # Errors
    /// It cannot be traced any more.
    pub fn finish(self, result: Option<i64>) -> Result<()> {
        if let Some(word) = self.word {
            ptrace::write(self.thread, self.instruction as AddressType, word)
                .context("the program's code cannot be changed")?;
        }
        let rax = result.map_or(self.registers.rax, |result| result as u64);
        self.set(user_regs_struct { rax, orig_rax: u64::MAX, ..self.registers })
    }

    /// Where a call may read these words, which are put there; `None` if there is no room.
    pub fn put(&self, words: &[u64]) -> Option<u64> {
        let address = (self.registers.rsp - RED_ZONE - ROOM) & !15;
        assert!(words.len() * 8 <= ROOM as usize, "as many words as there is room for");
        for (at, &word) in words.iter().enumerate() {
            ptrace::write(self.thread, (address + 8 * at as u64) as AddressType, word as i64).ok()?;
        }
        Some(address)
    }

    fn set(&self, registers: user_regs_struct) -> Result<()> {
        match ptrace::setregs(self.thread, registers) {
            // Its end is told as an event.
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context("the program's registers cannot be written"),
        }
    }

    /// Makes one step; what is then in the register for results, or `None` if it ended.
    fn step(&self) -> Result<Option<i64>> {
        if !crate::wait::step(self.thread)? {
            return Ok(None);
        }
        Ok(ptrace::getregs(self.thread).ok().map(|registers| registers.rax as i64))
    }
}
