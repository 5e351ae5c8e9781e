// SPDX-License-Identifier: GPL-2.0-only
//! Runs a sampled thread's own code forward on a private copy of its memory and notes what it touches.
//!
//! Code is decoded once and interpreted. What is not known (vector registers, the time stamp counter, thread-local storage
//! without a known base) is followed as unknown through registers, flags and memory; the run ends when an address or a
//! branch depends on it. The values of loads are put off: most of them are only computed with, and copying memory of
//! another process is what costs most. Where one decides an address or a branch, the run begins anew and that load is
//! carried out, then and in later runs. Memory contents stay here.

use tandem_policies::model::ProcessId;

use super::counters::StopReason;
use super::decode::DecodeCache;
use super::execute::{Halt, Thread, ThreadLocal};
use super::memory::{CopyLimits, Memory};

pub use super::values::STACK_POINTER;

/// Attempts at a run before what it needs is given up.
const MOST_ATTEMPTS: u32 = 8;

/// A thread's user registers at the moment of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub general: [u64; 16],
    /// Instruction pointer.
    pub ip: u64,
    /// rflags.
    pub flags: u64,
}

/// One load or store of an emulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Virtual address.
    pub address: u64,
    /// Bytes.
    pub bytes: u16,
    /// A store.
    pub store: bool,
}

/// How an emulated run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Why it ended.
    pub stop: StopReason,
    /// Instructions run, the stepped-over ones included.
    pub instructions: u32,
    /// Instructions that were stepped over: what they write is unknown.
    pub stepped_over: u32,
}

/// How far a run goes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Instructions.
    pub instructions: u32,
    /// Accesses to pages where it has been, but for those near the stack pointer.
    pub returns: u32,
}

impl Default for Reach {
    /// 256 instructions, 128 accesses to pages where it has been: code that does nothing but fill memory is left after half of them.
    fn default() -> Self {
        Self { instructions: 256, returns: 128 }
    }
}

/// Runs threads ahead.
pub struct Emulator {
    reach: Reach,
    decoded: DecodeCache,
    thread: Thread,
}

impl Emulator {
    /// One that runs no farther than that.
    pub fn new(reach: Reach, limits: CopyLimits) -> Self {
        Self { reach, decoded: DecodeCache::new(), thread: Thread::new(Memory::new(limits)) }
    }

    /// Runs on from `registers` of a thread of `process`; `now_ns` is when.
    ///
    /// `fs_base` is the thread's TLS base if known; it is checked when the code uses it. The touches are in [`Emulator::touches`], in order.
    pub fn run(&mut self, process: ProcessId, registers: &Registers, fs_base: Option<u64>, now_ns: u64) -> Run {
        if self.thread.memory.begin(process, now_ns) {
            self.decoded.clear();
            self.thread.forget_code();
        }
        for _ in 1..MOST_ATTEMPTS {
            let (run, needs) = self.attempt(process, registers, fs_base);
            if !needs.is_some_and(|load| self.thread.need(load)) {
                return run;
            }
        }
        self.attempt(process, registers, fs_base).0
    }

    /// How the run went, and the load that would have to be carried out for it to go on.
    fn attempt(&mut self, process: ProcessId, registers: &Registers, fs_base: Option<u64>) -> (Run, Option<u64>) {
        self.thread.start(process.0, registers, fs_base);
        let (mut ip, mut instructions) = (registers.ip, 0);
        let halt = loop {
            if instructions >= self.reach.instructions {
                break Halt::Stop(StopReason::Limit);
            }
            if self.thread.returns >= self.reach.returns {
                break Halt::Stop(StopReason::Returned);
            }
            let Self { decoded, thread, .. } = self;
            let mut readable = true;
            let next = decoded.get(process.0, ip, |bytes| {
                let copied = thread.memory.code(ip, bytes);
                readable = copied > 0;
                copied
            });
            if !readable {
                decoded.forget(process.0, ip);
                break Halt::Stop(StopReason::UnreadableCode);
            }
            match thread.step(next) {
                Ok(next_ip) => (ip, instructions) = (next_ip, instructions + 1),
                Err(halt) => break halt,
            }
        };
        let (stop, needs) = match halt {
            Halt::Stop(stop) => (stop, None),
            Halt::Needs(load, otherwise) => (otherwise, Some(load)),
        };
        (Run { stop, instructions, stepped_over: self.thread.stepped_over }, needs)
    }

    /// What the last run touched, in order.
    pub fn touches(&self) -> &[Touch] {
        &self.thread.touches
    }

    /// Whether the last run met something else than a thread's descriptor at the TLS base that it was given.
    pub fn thread_local_was_wrong(&self) -> bool {
        self.thread.thread_local == ThreadLocal::Wrong
    }

    /// Pieces of data and pages of code copied from processes so far.
    pub fn copies(&self) -> u64 {
        self.thread.memory.copies
    }
}

#[cfg(test)]
#[path = "emulator_tests.rs"]
mod tests;
