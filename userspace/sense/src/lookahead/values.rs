// SPDX-License-Identifier: GPL-2.0-only
//! What is known of a thread's registers while its code is run ahead.
//!
//! A value may be unknown for good (vector registers are not part of a sample, the time stamp counter is the machine's), or
//! only because the load that brings it was not carried out: memory is read when an address or a branch turns out to need
//! it, and not before, for most of what programs load they only compute with.

use iced_x86::{Register, RflagsBits};

use super::decode::{RegisterMask, flag_bits, register_bit};

/// Status flags and the direction flag, as iced numbers them.
pub(super) const ALL_FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::DF;
/// Index of the stack pointer among the general registers.
pub const STACK_POINTER: usize = 4;
const ACCUMULATOR_HIGH: [Register; 4] = [Register::AH, Register::CH, Register::DH, Register::BH];

/// Why a value is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nothing here can tell.
    Never,
    /// The load by the instruction at this address was put off.
    Load(u64),
}

/// A value of up to 64 bits, the upper ones zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Known(u64),
    Unknown(Cause),
}

impl Value {
    pub(super) const NEVER: Value = Value::Unknown(Cause::Never);

    /// Its lowest `bytes`.
    pub(super) fn low(self, bytes: usize) -> Value {
        self.map(|value| value & mask(bytes))
    }

    pub(super) fn map(self, change: impl FnOnce(u64) -> u64) -> Value {
        match self {
            Value::Known(value) => Value::Known(change(value)),
            unknown => unknown,
        }
    }

    /// Both, or why one of them is unknown: a load that was put off rather than what can never be known would not help.
    pub(super) fn and(self, other: Value) -> Result<(u64, u64), Cause> {
        match (self, other) {
            (Value::Known(one), Value::Known(two)) => Ok((one, two)),
            (Value::Unknown(Cause::Never), _) | (_, Value::Unknown(Cause::Never)) => Err(Cause::Never),
            (Value::Unknown(cause), _) | (_, Value::Unknown(cause)) => Err(cause),
        }
    }
}

impl From<Cause> for Value {
    fn from(cause: Cause) -> Self {
        Value::Unknown(cause)
    }
}

/// The lowest `bytes` of a word.
pub(super) fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

/// Registers and flags.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// In the hardware's order.
    pub(super) general: [Value; 16],
    /// xmm0 to xmm15, lower half first. What is above them is never known.
    pub(super) vector: [[Value; 2]; 16],
    flags: u32,
    unknown_flags: u32,
    flags_cause: Cause,
}

impl State {
    /// Registers of a sample; `flags` as rflags has them.
    pub(super) fn new(general: &[u64; 16], flags: u64) -> Self {
        let bit = |at: u32, flag: u32| if flags >> at & 1 == 1 { flag } else { 0 };
        let flags = bit(0, RflagsBits::CF)
            | bit(2, RflagsBits::PF)
            | bit(4, RflagsBits::AF)
            | bit(6, RflagsBits::ZF)
            | bit(7, RflagsBits::SF)
            | bit(10, RflagsBits::DF)
            | bit(11, RflagsBits::OF);
        Self {
            general: general.map(Value::Known),
            vector: [[Value::NEVER; 2]; 16],
            flags,
            unknown_flags: 0,
            flags_cause: Cause::Never,
        }
    }

    /// The value of a general register or a part of one; anything else is unknown.
    pub(super) fn register(&self, register: Register) -> Value {
        if !register.is_gpr() {
            return Value::NEVER;
        }
        let full = self.general[register.full_register().number()];
        if ACCUMULATOR_HIGH.contains(&register) {
            full.map(|value| value >> 8 & 0xff)
        } else {
            full.low(register.size())
        }
    }

    /// Writes a general register: 32 bits clear the upper half, 8 and 16 leave the rest.
    pub(super) fn set_register(&mut self, register: Register, value: Value) {
        let slot = &mut self.general[register.full_register().number()];
        let shift = if ACCUMULATOR_HIGH.contains(&register) { 8 } else { 0 };
        *slot = match register.size() {
            4 | 8 => value.low(register.size()),
            bytes => match slot.and(value) {
                Ok((old, new)) => Value::Known(old & !(mask(bytes) << shift) | (new & mask(bytes)) << shift),
                Err(cause) => cause.into(),
            },
        };
    }

    /// These flags, if all are known.
    pub(super) fn flags(&self, wanted: u32) -> Value {
        if self.unknown_flags & wanted == 0 {
            Value::Known(u64::from(self.flags & wanted))
        } else {
            self.flags_cause.into()
        }
    }

    /// Sets the flags `written` as they are in `flags`.
    pub(super) fn set_flags(&mut self, written: u32, flags: u32) {
        self.flags = self.flags & !written | flags & written;
        self.unknown_flags &= !written;
    }

    /// Nothing is known of these flags any more.
    pub(super) fn forget_flags(&mut self, flags: u32, cause: Cause) {
        if flags & ALL_FLAGS != 0 {
            self.unknown_flags |= flags & ALL_FLAGS;
            self.flags_cause = cause;
        }
    }

    /// Nothing is known of these registers and flags any more.
    pub(super) fn forget(&mut self, registers: RegisterMask) {
        if registers == 0 {
            return;
        }
        for (number, value) in self.general.iter_mut().enumerate() {
            if registers >> number & 1 == 1 {
                *value = Value::NEVER;
            }
        }
        for (number, halves) in self.vector.iter_mut().enumerate() {
            if registers & register_bit(Register::XMM0 + number as u32) != 0 {
                *halves = [Value::NEVER; 2];
            }
        }
        self.forget_flags(flag_bits(registers), Cause::Never);
    }
}
