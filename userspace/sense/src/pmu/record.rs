// SPDX-License-Identifier: GPL-2.0-only
//! Perf records, from their bytes.
//!
//! What a sample has depends on the fields that its event asked for; they come in a fixed order, each a 64-bit word
//! except raw data (include/uapi/linux/perf_event.h, PERF_RECORD_SAMPLE). Other records end with a trailer of the
//! same fields where the event asked for `sample_id_all`.

use perf_event_open_sys::bindings;
use tandem_policies::model::{CpuId, ProcessId};

use super::ring::HEADER_BYTES;

/// Flag of an AUX record: some of the trace was lost.
pub const AUX_TRUNCATED: u64 = bindings::PERF_AUX_FLAG_TRUNCATED as u64;
/// Flag of an AUX record: there are gaps in the trace.
pub const AUX_PARTIAL: u64 = bindings::PERF_AUX_FLAG_PARTIAL as u64;
/// Flag of an AUX record: samples collided in the hardware.
pub const AUX_COLLISION: u64 = bindings::PERF_AUX_FLAG_COLLISION as u64;

/// General registers, instruction pointer and flags of x86-64, as the kernel numbers them.
pub const USER_REGISTERS: u64 = {
    let (low, high) = (1 << (bindings::PERF_REG_X86_FLAGS + 1), 1 << bindings::PERF_REG_X86_R8);
    (low - 1) | ((1 << (bindings::PERF_REG_X86_R15 + 1)) - high)
};

/// The fields that an event asks for (`sample_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields(u64);

impl Fields {
    /// For events whose address, latency and source the kernel decodes (Intel).
    pub const DECODED: Self = Self(
        Self::COMMON.0
            | bindings::PERF_SAMPLE_IP as u64
            | bindings::PERF_SAMPLE_ADDR as u64
            | bindings::PERF_SAMPLE_PERIOD as u64
            | bindings::PERF_SAMPLE_WEIGHT_STRUCT as u64
            | bindings::PERF_SAMPLE_DATA_SRC as u64,
    );
    /// The same with physical addresses, for which one must be allowed to watch the kernel.
    pub const DECODED_PHYSICAL: Self = Self(Self::DECODED.0 | bindings::PERF_SAMPLE_PHYS_ADDR as u64);
    /// For events whose registers come as they are (AMD).
    pub const RAW: Self = Self(
        Self::COMMON.0
            | bindings::PERF_SAMPLE_IP as u64
            | bindings::PERF_SAMPLE_PERIOD as u64
            | bindings::PERF_SAMPLE_RAW as u64,
    );
    /// For events whose samples are in a buffer of their own (Arm).
    pub const COMMON: Self =
        Self(bindings::PERF_SAMPLE_TID as u64 | bindings::PERF_SAMPLE_TIME as u64 | bindings::PERF_SAMPLE_CPU as u64);
    /// For page faults: where in memory.
    pub const FAULT: Self =
        Self(Self::COMMON.0 | bindings::PERF_SAMPLE_ADDR as u64 | bindings::PERF_SAMPLE_PHYS_ADDR as u64);
    /// For samples of code: the user registers [`USER_REGISTERS`].
    pub const REGISTERS: Self = Self(Self::COMMON.0 | bindings::PERF_SAMPLE_REGS_USER as u64);
    const KNOWN: u64 = Self::DECODED_PHYSICAL.0 | Self::RAW.0 | Self::REGISTERS.0;

    /// The registers that an event asks for (`sample_regs_user`).
    pub fn user_registers(self) -> u64 {
        if self.has(bindings::PERF_SAMPLE_REGS_USER) { USER_REGISTERS } else { 0 }
    }

    /// As the kernel has them.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Fields by the kernel's bits; `None` if [`parse`] does not know one of them.
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits & !Self::KNOWN == 0).then_some(Self(bits))
    }

    fn has(self, field: bindings::perf_event_sample_format) -> bool {
        self.0 & u64::from(field) != 0
    }
}

/// A thread at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its process.
    pub process: ProcessId,
    /// The thread.
    pub tid: u32,
    /// On the clock of the event.
    pub time_ns: u64,
    /// Where.
    pub cpu: CpuId,
}

/// A sample; fields that were not asked for are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Who, when and where.
    pub moment: Moment,
    /// The thread was in user space.
    pub user: bool,
    /// Address of the instruction.
    pub instruction: u64,
    /// Address of the data.
    pub address: u64,
    /// Events since the last sample.
    pub period: u64,
    /// Latency in cycles of the core; 0: not measured.
    pub latency_cycles: u32,
    /// See [`super::data_source`].
    pub data_source: u64,
    /// Physical address of the data; 0: not known.
    pub physical: u64,
    /// Registers as the hardware has them.
    pub raw: &'a [u8],
    /// User registers; `None` if they were not asked for.
    pub registers: Option<SampledRegisters<'a>>,
}

/// A thread's user registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRegisters<'a> {
    /// Of which code: PERF_SAMPLE_REGS_ABI_NONE (there are none), _32 or _64.
    pub abi: u32,
    words: &'a [u8],
}

impl SampledRegisters<'_> {
    /// The register with the kernel's number `register`, if it is one of [`USER_REGISTERS`].
    pub fn get(&self, register: u32) -> Option<u64> {
        let bit = 1_u64.checked_shl(register).filter(|bit| USER_REGISTERS & bit != 0)?;
        let at = (USER_REGISTERS & (bit - 1)).count_ones() as usize;
        Words(self.words).nth(at)
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// This many records did not fit into the ring.
    Lost(u64),
    /// This many samples were dropped by the hardware.
    LostSamples(u64),
    /// The kernel stopped the event: it took too much time.
    Throttled,
    /// The kernel lets it go on.
    Unthrottled,
    /// Trace in the buffer of its own.
    Aux {
        /// Where it starts, in bytes since the buffer was made.
        offset: u64,
        /// Its bytes.
        size: u64,
        /// AUX_TRUNCATED and so on.
        flags: u64,
    },
    /// A thread starts to run on the CPU.
    SwitchIn(Moment),
    /// A thread stops running on the CPU.
    SwitchOut(Moment),
    /// Not asked for.
    Other,
    /// Not as it should be.
    Malformed,
}

/// The record in `bytes`, header included, of an event that asked for `fields`.
pub fn parse(bytes: &[u8], fields: Fields) -> Record<'_> {
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else { return Record::Malformed };
    let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let misc = u32::from(u16::from_ne_bytes([header[4], header[5]]));
    let mut words = Words(body);
    let parsed = match kind {
        bindings::PERF_RECORD_SAMPLE => sample(words, misc, fields).map(Record::Sample),
        // The event's id comes first.
        bindings::PERF_RECORD_LOST => words.nth(1).map(Record::Lost),
        bindings::PERF_RECORD_LOST_SAMPLES => words.next().map(Record::LostSamples),
        bindings::PERF_RECORD_THROTTLE => Some(Record::Throttled),
        bindings::PERF_RECORD_UNTHROTTLE => Some(Record::Unthrottled),
        bindings::PERF_RECORD_AUX => aux(words),
        bindings::PERF_RECORD_SWITCH_CPU_WIDE => switch(words, misc, fields),
        _ => Some(Record::Other),
    };
    parsed.unwrap_or(Record::Malformed)
}

/// 64-bit words of a record's body.
struct Words<'a>(&'a [u8]);

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }
}

fn halves(word: u64) -> (u32, u32) {
    let bytes = word.to_ne_bytes();
    let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (half(0), half(4))
}

/// Fields of a sample, in the kernel's order.
fn sample<'a>(mut words: Words<'a>, misc: u32, fields: Fields) -> Option<Sample<'a>> {
    let take = |field, words: &mut Words<'a>| if fields.has(field) { words.next() } else { Some(0) };
    let instruction = take(bindings::PERF_SAMPLE_IP, &mut words)?;
    let (pid, tid) = halves(take(bindings::PERF_SAMPLE_TID, &mut words)?);
    let time_ns = take(bindings::PERF_SAMPLE_TIME, &mut words)?;
    let address = take(bindings::PERF_SAMPLE_ADDR, &mut words)?;
    let (cpu, _) = halves(take(bindings::PERF_SAMPLE_CPU, &mut words)?);
    let period = take(bindings::PERF_SAMPLE_PERIOD, &mut words)?;
    let raw = if fields.has(bindings::PERF_SAMPLE_RAW) { raw(&mut words)? } else { &[] };
    let registers = fields.has(bindings::PERF_SAMPLE_REGS_USER).then(|| registers(&mut words));
    let registers = if let Some(registers) = registers { Some(registers?) } else { None };
    // Two layouts of one word: its low half is the latency in both, up to four billion cycles.
    let latency_cycles = take(bindings::PERF_SAMPLE_WEIGHT_STRUCT, &mut words)? as u32;
    let data_source = take(bindings::PERF_SAMPLE_DATA_SRC, &mut words)?;
    let physical = take(bindings::PERF_SAMPLE_PHYS_ADDR, &mut words)?;
    Some(Sample {
        moment: Moment { process: ProcessId(pid), tid, time_ns, cpu: CpuId(cpu) },
        user: misc & bindings::PERF_RECORD_MISC_CPUMODE_MASK == bindings::PERF_RECORD_MISC_USER,
        instruction,
        address,
        period,
        latency_cycles,
        data_source,
        physical,
        raw,
        registers,
    })
}

/// A 32-bit size, then so many bytes; together they are a multiple of eight.
fn raw<'a>(words: &mut Words<'a>) -> Option<&'a [u8]> {
    let (size, rest) = words.0.split_first_chunk()?;
    let (raw, rest) = rest.split_at_checked(u32::from_ne_bytes(*size) as usize)?;
    words.0 = rest;
    Some(raw)
}

/// Which code, then all registers that were asked for, unless there are none.
fn registers<'a>(words: &mut Words<'a>) -> Option<SampledRegisters<'a>> {
    let abi = u32::try_from(words.next()?).ok()?;
    let count = match abi {
        bindings::PERF_SAMPLE_REGS_ABI_NONE => 0,
        bindings::PERF_SAMPLE_REGS_ABI_32 | bindings::PERF_SAMPLE_REGS_ABI_64 => USER_REGISTERS.count_ones() as usize,
        _ => return None,
    };
    let (taken, rest) = words.0.split_at_checked(count * size_of::<u64>())?;
    words.0 = rest;
    Some(SampledRegisters { abi, words: taken })
}

fn aux(mut words: Words<'_>) -> Option<Record<'_>> {
    Some(Record::Aux { offset: words.next()?, size: words.next()?, flags: words.next()? })
}

/// The other thread's ids come first, the trailer names the one that the record is about.
fn switch<'a>(mut words: Words<'a>, misc: u32, fields: Fields) -> Option<Record<'a>> {
    words.next()?;
    let take = |field, words: &mut Words<'a>| if fields.has(field) { words.next() } else { Some(0) };
    let (pid, tid) = halves(take(bindings::PERF_SAMPLE_TID, &mut words)?);
    let time_ns = take(bindings::PERF_SAMPLE_TIME, &mut words)?;
    let (cpu, _) = halves(take(bindings::PERF_SAMPLE_CPU, &mut words)?);
    let moment = Moment { process: ProcessId(pid), tid, time_ns, cpu: CpuId(cpu) };
    let out = misc & bindings::PERF_RECORD_MISC_SWITCH_OUT != 0;
    Some(if out { Record::SwitchOut(moment) } else { Record::SwitchIn(moment) })
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
