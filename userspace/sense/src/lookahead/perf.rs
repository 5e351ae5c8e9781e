// SPDX-License-Identifier: GPL-2.0-only
//! One cpu-clock event and its ring on one CPU, and the registers in its samples.

use std::io;
use std::os::fd::BorrowedFd;

use perf_event_open_sys::bindings;
use tandem_policies::model::CpuId;

use super::emulator::Registers;
use crate::pmu::event::{Attributes, Event, Sampled, Sampling};
use crate::pmu::record::{Fields, Record, SampledRegisters, parse};
use crate::pmu::sysfs::Encoding;

/// Perf's numbers of the general registers, in the order of [`Registers::general`].
const GENERAL: [u32; 16] = [
    bindings::PERF_REG_X86_AX,
    bindings::PERF_REG_X86_CX,
    bindings::PERF_REG_X86_DX,
    bindings::PERF_REG_X86_BX,
    bindings::PERF_REG_X86_SP,
    bindings::PERF_REG_X86_BP,
    bindings::PERF_REG_X86_SI,
    bindings::PERF_REG_X86_DI,
    bindings::PERF_REG_X86_R8,
    bindings::PERF_REG_X86_R9,
    bindings::PERF_REG_X86_R10,
    bindings::PERF_REG_X86_R11,
    bindings::PERF_REG_X86_R12,
    bindings::PERF_REG_X86_R13,
    bindings::PERF_REG_X86_R14,
    bindings::PERF_REG_X86_R15,
];

/// What the kernel could tell of a thread's user registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserRegisters {
    /// A kernel thread has none.
    None,
    /// 32-bit code.
    Abi32,
    /// 64-bit code.
    Abi64(Registers),
}

/// The user registers of a sample; `None` if they are not as they should be.
pub fn user_registers(sampled: &SampledRegisters<'_>) -> Option<UserRegisters> {
    Some(match sampled.abi {
        bindings::PERF_SAMPLE_REGS_ABI_NONE => UserRegisters::None,
        bindings::PERF_SAMPLE_REGS_ABI_32 => UserRegisters::Abi32,
        bindings::PERF_SAMPLE_REGS_ABI_64 => {
            let mut general = [0; 16];
            for (into, register) in general.iter_mut().zip(GENERAL) {
                *into = sampled.get(register)?;
            }
            let (ip, flags) = (sampled.get(bindings::PERF_REG_X86_IP)?, sampled.get(bindings::PERF_REG_X86_FLAGS)?);
            UserRegisters::Abi64(Registers { general, ip, flags })
        }
        _ => return None,
    })
}

/// A sampling event bound to a CPU.
pub(super) struct CpuClock(Sampled);

impl CpuClock {
    /// An event that does not sample yet.
    pub(super) fn open(cpu: CpuId, period_ns: u64) -> io::Result<Self> {
        let config = [u64::from(bindings::PERF_COUNT_SW_CPU_CLOCK), 0, 0, 0, 0];
        let attributes = Attributes {
            encoding: Encoding { kind: bindings::PERF_TYPE_SOFTWARE, config },
            fields: Fields::REGISTERS,
            sampling: Sampling::Period(period_ns),
            precise: 0,
            user_only: true,
            monotonic: true,
            switches: false,
            disabled: true,
        };
        Ok(Self(Sampled::new(Event::open(&attributes, cpu, None)?, false)?))
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.0.event().as_fd()
    }

    pub(super) fn enable(&self) -> io::Result<()> {
        self.0.event().enable()
    }

    pub(super) fn set_period(&self, period_ns: u64) -> io::Result<()> {
        self.0.event().set_rate(period_ns)
    }

    /// Takes every record out of the ring, oldest first; returns whether the ring made no sense.
    pub(super) fn drain(&mut self, scratch: &mut Vec<u8>, mut each: impl FnMut(Record<'_>)) -> bool {
        self.0.drain(scratch, |bytes| each(parse(bytes, Fields::REGISTERS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::ring::testing::record;

    /// The record of a sample of thread 7 of process 5 with these words of registers.
    fn sampled(abi: u32, words: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let head = [(7 << 32) | 5, 99, 3, u64::from(abi)];
        let body: Vec<u8> = head.into_iter().chain(words).flat_map(u64::to_ne_bytes).collect();
        record(bindings::PERF_RECORD_SAMPLE, 2, &body)
    }

    fn registers(bytes: &[u8]) -> Option<UserRegisters> {
        match parse(bytes, Fields::REGISTERS) {
            Record::Sample(sample) => user_registers(&sample.registers?),
            Record::Malformed => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn registers_are_found_by_their_numbers() {
        // AX BX CX DX SI DI BP SP IP FLAGS R8..R15
        let bytes = sampled(bindings::PERF_SAMPLE_REGS_ABI_64, 100..118);
        let Some(UserRegisters::Abi64(registers)) = registers(&bytes) else { panic!("64-bit") };
        assert_eq!(registers.general[..8], [100, 102, 103, 101, 107, 106, 104, 105]);
        assert_eq!((registers.ip, registers.flags, registers.general[15]), (108, 109, 117));
        let Record::Sample(sample) = parse(&bytes, Fields::REGISTERS) else { panic!("a sample") };
        let moment = sample.moment;
        assert_eq!((moment.process.0, moment.tid, moment.time_ns, moment.cpu), (5, 7, 99, CpuId(3)));
    }

    #[test]
    fn other_code_is_told_apart_and_what_is_cut_off_is_malformed() {
        use bindings::{PERF_SAMPLE_REGS_ABI_32, PERF_SAMPLE_REGS_ABI_64, PERF_SAMPLE_REGS_ABI_NONE};
        assert_eq!(registers(&sampled(PERF_SAMPLE_REGS_ABI_NONE, [])), Some(UserRegisters::None));
        assert_eq!(registers(&sampled(PERF_SAMPLE_REGS_ABI_32, 100..118)), Some(UserRegisters::Abi32));
        assert_eq!(registers(&sampled(PERF_SAMPLE_REGS_ABI_64, 100..117)), None, "a register is missing");
        assert_eq!(registers(&sampled(3, 100..118)), None, "no such ABI");
        let bytes = sampled(PERF_SAMPLE_REGS_ABI_NONE, []);
        assert_eq!(registers(&bytes[..bytes.len() - 8]), None);
    }
}
