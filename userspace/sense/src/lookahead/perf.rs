// SPDX-License-Identifier: GPL-2.0-only
//! One cpu-clock event and its ring on one CPU.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{bindings, ioctls, perf_event_open};
use tandem_policies::model::{CpuId, PAGE_BYTES, ProcessId};

use super::LookaheadError;
use super::emulator::Registers;

/// Data pages of a ring, a power of two: room for about 1100 samples.
const RING_PAGES: usize = 64;
const RING_BYTES: usize = RING_PAGES * PAGE_BYTES as usize;
const MAP_BYTES: usize = RING_BYTES + PAGE_BYTES as usize;
/// Longest record of the kind asked for, with room to spare.
const MAX_RECORD_BYTES: usize = 512;

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

fn register_mask() -> u64 {
    let others = [bindings::PERF_REG_X86_IP, bindings::PERF_REG_X86_FLAGS];
    GENERAL.iter().chain(&others).fold(0, |mask, register| mask | 1 << register)
}

/// A thread caught by the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) process: ProcessId,
    pub(super) tid: u32,
    pub(super) time_ns: u64,
    pub(super) cpu: CpuId,
    pub(super) registers: UserRegisters,
}

/// What the kernel could tell of a thread's user registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserRegisters {
    /// A kernel thread has none.
    None,
    /// 32-bit code.
    Abi32,
    /// 64-bit code.
    Abi64(Registers),
}

/// One record of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Sample(Sample),
    /// This many records did not fit.
    Lost(u64),
    /// Not asked for (throttling), or not as it should be.
    Other {
        malformed: bool,
    },
}

/// A sampling event bound to a CPU.
pub(super) struct CpuClock {
    event: OwnedFd,
    ring: NonNull<u8>,
}

impl CpuClock {
    /// An event that does not sample yet.
    pub(super) fn open(cpu: CpuId, period_ns: u64) -> Result<Self, LookaheadError> {
        let mut attributes = bindings::perf_event_attr {
            size: size_of::<bindings::perf_event_attr>() as u32,
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: u64::from(bindings::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(
                bindings::PERF_SAMPLE_TID
                    | bindings::PERF_SAMPLE_TIME
                    | bindings::PERF_SAMPLE_CPU
                    | bindings::PERF_SAMPLE_REGS_USER,
            ),
            sample_regs_user: register_mask(),
            clockid: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        attributes.__bindgen_anon_1.sample_period = period_ns;
        attributes.set_disabled(1);
        attributes.set_exclude_kernel(1);
        attributes.set_exclude_hv(1);
        attributes.set_use_clockid(1);
        let refused = |source| LookaheadError::Open { cpu, source };
        let flags = u64::from(bindings::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the attributes are initialized and ask only for samples in the event's own ring.
        let event = unsafe { perf_event_open(&mut attributes, -1, cpu.0 as libc::c_int, -1, flags as libc::c_ulong) };
        if event < 0 {
            return Err(refused(std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of the event's ring.
        let ring = unsafe { libc::mmap(std::ptr::null_mut(), MAP_BYTES, protection, sharing, event.as_raw_fd(), 0) };
        if ring == libc::MAP_FAILED {
            return Err(refused(std::io::Error::last_os_error()));
        }
        let ring = NonNull::new(ring.cast()).expect("a mapping is not at address zero");
        Ok(Self { event, ring })
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn enable(&self) -> std::io::Result<()> {
        // SAFETY: the argument is flags: none.
        let enabled = unsafe { ioctls::ENABLE(self.event.as_raw_fd(), 0) };
        if enabled < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn set_period(&self, period_ns: u64) -> std::io::Result<()> {
        // The kernel reads the period through a pointer; the binding's argument is a plain word.
        let address = (&raw const period_ns) as u64;
        // SAFETY: the kernel reads one u64 at the address.
        let set = unsafe { ioctls::PERIOD(self.event.as_raw_fd(), address) };
        if set < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    fn header(&self) -> *mut bindings::perf_event_mmap_page {
        self.ring.as_ptr().cast()
    }

    /// Takes every record out of the ring, oldest first.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Record)) {
        // SAFETY: the first page of the mapping is the control page; head and tail are shared with the
        // kernel as aligned 64-bit words.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*self.header()).data_head),
                AtomicU64::from_ptr(&raw mut (*self.header()).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        let mut record = [0; MAX_RECORD_BYTES];
        while at < end {
            self.copy(at, &mut record[..8]);
            let bytes = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if bytes < 8 {
                // Nothing after this can be found any more.
                each(Record::Other { malformed: true });
                at = end;
                break;
            }
            let taken = bytes.min(MAX_RECORD_BYTES);
            self.copy(at, &mut record[..taken]);
            each(parse(&record[..taken]));
            at += bytes as u64;
        }
        tail.store(at, Ordering::Release);
    }

    fn copy(&self, at: u64, into: &mut [u8]) {
        let data = PAGE_BYTES as usize;
        let start = at as usize % RING_BYTES;
        let first = into.len().min(RING_BYTES - start);
        // SAFETY: both parts are inside the ring's data pages; the kernel does not write between tail and head.
        unsafe {
            let ring = self.ring.as_ptr().add(data);
            std::ptr::copy_nonoverlapping(ring.add(start), into.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(ring, into.as_mut_ptr().add(first), into.len() - first);
        }
    }
}

impl Drop for CpuClock {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, used through `self` only.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), MAP_BYTES) };
    }
}

fn parse(record: &[u8]) -> Record {
    let kind = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
    let words: Vec<u64> = record[8..].as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let parsed = match kind {
        bindings::PERF_RECORD_SAMPLE => parse_sample(&words).map(Record::Sample),
        bindings::PERF_RECORD_LOST => words.get(1).map(|&lost| Record::Lost(lost)),
        _ => return Record::Other { malformed: false },
    };
    parsed.unwrap_or(Record::Other { malformed: true })
}

/// Words of a sample: pid and tid, time, CPU, ABI, then the registers in ascending order of their numbers.
fn parse_sample(words: &[u64]) -> Option<Sample> {
    let &[ids, time_ns, cpu, abi, ref registers @ ..] = words else { return None };
    let registers = match abi as u32 {
        bindings::PERF_SAMPLE_REGS_ABI_NONE => UserRegisters::None,
        bindings::PERF_SAMPLE_REGS_ABI_32 => UserRegisters::Abi32,
        bindings::PERF_SAMPLE_REGS_ABI_64 => {
            let mask = register_mask();
            let value = |register: u32| registers.get((mask & ((1 << register) - 1)).count_ones() as usize).copied();
            let mut general = [0; 16];
            for (into, register) in general.iter_mut().zip(GENERAL) {
                *into = value(register)?;
            }
            let (ip, flags) = (value(bindings::PERF_REG_X86_IP)?, value(bindings::PERF_REG_X86_FLAGS)?);
            UserRegisters::Abi64(Registers { general, ip, flags })
        }
        _ => return None,
    };
    Some(Sample { process: ProcessId(ids as u32), tid: (ids >> 32) as u32, time_ns, cpu: CpuId(cpu as u32), registers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_by_their_numbers() {
        let mut words = vec![(7 << 32) | 5, 99, 3, 2];
        // AX BX CX DX SI DI BP SP IP FLAGS R8..R15
        words.extend(100..118);
        let sample = parse_sample(&words).unwrap();
        let UserRegisters::Abi64(registers) = sample.registers else { panic!("64-bit") };
        assert_eq!((sample.process, sample.tid, sample.cpu), (ProcessId(5), 7, CpuId(3)));
        assert_eq!(registers.general[..8], [100, 102, 103, 101, 107, 106, 104, 105]);
        assert_eq!((registers.ip, registers.flags, registers.general[15]), (108, 109, 117));
        assert_eq!(parse_sample(&words[..10]), None);
    }
}
