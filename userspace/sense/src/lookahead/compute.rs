// SPDX-License-Identifier: GPL-2.0-only
//! Instructions on general registers: moves, arithmetic, the stack, strings.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::arithmetic::{self, Computed, Shift};
use super::counters::StopReason;
use super::execute::{Halt, Thread};
use super::values::{Cause, STACK_POINTER, Value, mask};

const FRAME_POINTER: usize = 5;
const CF: u32 = RflagsBits::CF;
const ZF: u32 = RflagsBits::ZF;

/// rax and rdx of so many bytes.
fn accumulators(bytes: usize) -> Option<(Register, Register)> {
    match bytes {
        2 => Some((Register::AX, Register::DX)),
        4 => Some((Register::EAX, Register::EDX)),
        8 => Some((Register::RAX, Register::RDX)),
        _ => None,
    }
}

impl Thread {
    /// Does it if it is one of these; whether it was.
    pub(super) fn compute(&mut self, instruction: &Instruction) -> Result<bool, Halt> {
        use Mnemonic as M;
        let i = instruction;
        match i.mnemonic() {
            M::Nop | M::Endbr64 | M::Pause | M::Lfence | M::Mfence | M::Sfence => {}
            M::Prefetchnta | M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchw => {}
            M::Mov if i.op0_kind() != OpKind::Register || i.op0_register().is_gpr() => {
                self.copy(i, |value, _| value)?
            }
            M::Movzx => self.copy(i, |value, _| value)?,
            M::Movsx | M::Movsxd => self.copy(i, |value, bytes| arithmetic::signed(value, bytes) as u64)?,
            M::Movbe => return Ok(false),
            M::Lea => {
                let offset = self.offset(i);
                self.write(i, 0, offset)?;
            }
            M::Add => self.combine(i, |bytes, a, b, _| arithmetic::add(bytes, a, b, false))?,
            M::Adc => self.combine(i, arithmetic::add)?,
            M::Sub | M::Cmp => self.combine(i, |bytes, a, b, _| arithmetic::subtract(bytes, a, b, false))?,
            M::Sbb => self.combine(i, arithmetic::subtract)?,
            M::And | M::Test => self.combine(i, |bytes, a, b, _| arithmetic::logic(bytes, a & b))?,
            M::Or => self.combine(i, |bytes, a, b, _| arithmetic::logic(bytes, a | b))?,
            M::Xor => self.combine(i, |bytes, a, b, _| arithmetic::logic(bytes, a ^ b))?,
            M::Inc => self.change(i, 0, |bytes, a| arithmetic::add(bytes, a, 1, false))?,
            M::Dec => self.change(i, 0, |bytes, a| arithmetic::subtract(bytes, a, 1, false))?,
            M::Neg => self.change(i, 0, |bytes, a| arithmetic::subtract(bytes, 0, a, false))?,
            M::Not => self.change(i, 0, |bytes, a| (!a & mask(bytes), 0))?,
            M::Imul if i.op_count() == 2 => self.join(i, 0, 1, arithmetic::multiply)?,
            M::Imul if i.op_count() == 3 => self.join(i, 1, 2, arithmetic::multiply)?,
            M::Imul | M::Mul => return self.multiply_wide(i),
            M::Div | M::Idiv => return self.divide(i),
            M::Cbw => self.extend(Register::AL, Register::AX),
            M::Cwde => self.extend(Register::AX, Register::EAX),
            M::Cdqe => self.extend(Register::EAX, Register::RAX),
            M::Cwd => self.spread_sign(Register::AX, Register::DX),
            M::Cdq => self.spread_sign(Register::EAX, Register::EDX),
            M::Cqo => self.spread_sign(Register::RAX, Register::RDX),
            _ => return self.handle_bits(i),
        }
        Ok(true)
    }

    /// The same for instructions that move, find and count bits.
    fn handle_bits(&mut self, i: &Instruction) -> Result<bool, Halt> {
        use Mnemonic as M;
        match i.mnemonic() {
            // Of 16 bits it is undefined.
            M::Bswap if Self::bytes(i, 0) == 2 => return Ok(false),
            M::Bswap => self.change(i, 0, |bytes, a| (a.swap_bytes() >> (64 - bytes * 8), 0))?,
            M::Blsr => self.change(i, 1, |bytes, a| {
                let (value, flags) = arithmetic::logic(bytes, a & a.wrapping_sub(1));
                (value, flags | if a == 0 { CF } else { 0 })
            })?,
            M::Popcnt => self.change(i, 1, |_, a| (u64::from(a.count_ones()), if a == 0 { ZF } else { 0 }))?,
            M::Tzcnt => self.change(i, 1, |bytes, a| count_zeros(bytes, a, a.trailing_zeros()))?,
            M::Lzcnt => {
                self.change(i, 1, |bytes, a| count_zeros(bytes, a, a.leading_zeros() + bytes as u32 * 8 - 64))?
            }
            M::Bsf => self.find_bit(i, u64::trailing_zeros)?,
            M::Bsr => self.find_bit(i, |a| 63 - a.leading_zeros())?,
            M::Shl | M::Sal => self.shift(i, Shift::Left)?,
            M::Shr => self.shift(i, Shift::Right)?,
            M::Sar => self.shift(i, Shift::Arithmetic)?,
            M::Rol => self.shift(i, Shift::RotateLeft)?,
            M::Ror => self.shift(i, Shift::RotateRight)?,
            M::Shlx => self.shift_apart(i, Shift::Left)?,
            M::Shrx => self.shift_apart(i, Shift::Right)?,
            M::Sarx => self.shift_apart(i, Shift::Arithmetic)?,
            M::Rorx => self.shift_apart(i, Shift::RotateRight)?,
            M::Andn => self.join(i, 1, 2, |bytes, a, b| arithmetic::logic(bytes, !a & b))?,
            M::Bt | M::Bts | M::Btr | M::Btc => return self.bit(i),
            _ => return self.exchange_or_stack(i),
        }
        Ok(true)
    }

    /// The same for exchanges, the stack and flags.
    fn exchange_or_stack(&mut self, i: &Instruction) -> Result<bool, Halt> {
        use Mnemonic as M;
        match i.mnemonic() {
            M::Xchg => self.exchange(i)?,
            M::Xadd => self.exchange_add(i)?,
            M::Cmpxchg => self.compare_exchange(i)?,
            M::Push => {
                let value = self.read(i, 0)?;
                self.push(i.stack_pointer_increment().unsigned_abs() as usize, value)?;
            }
            M::Pop => {
                let value = self.pop(i, i.stack_pointer_increment() as usize)?;
                self.write(i, 0, value)?;
            }
            M::Leave => {
                self.state.general[STACK_POINTER] = self.state.general[FRAME_POINTER];
                self.state.general[FRAME_POINTER] = self.pop(i, 8)?;
            }
            M::Clc => self.state.set_flags(CF, 0),
            M::Stc => self.state.set_flags(CF, CF),
            M::Cld => self.state.set_flags(RflagsBits::DF, 0),
            M::Std => self.state.set_flags(RflagsBits::DF, RflagsBits::DF),
            _ => return self.conditional(i),
        }
        Ok(true)
    }

    /// Operand 1 to operand 0, changed as `change` says of a value of so many bytes.
    fn copy(&mut self, instruction: &Instruction, change: impl Fn(u64, usize) -> u64) -> Result<(), Halt> {
        let bytes = Self::bytes(instruction, 1);
        let value = self.read(instruction, 1)?.map(|value| change(value, bytes));
        self.write(instruction, 0, value)
    }

    /// Operand 0 becomes what `how` makes of it, operand 1 and the carry; comparisons only set flags.
    fn combine(&mut self, i: &Instruction, how: impl Fn(usize, u64, u64, bool) -> Computed) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let is_same =
            i.op0_kind() == OpKind::Register && i.op0_kind() == i.op1_kind() && i.op0_register() == i.op1_register();
        let (a, b) = if is_same && matches!(i.mnemonic(), Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Cmp) {
            (Value::Known(0), Value::Known(0))
        } else {
            (self.read(i, 0)?, self.read(i, 1)?.low(bytes))
        };
        let carry = if i.rflags_read() & CF != 0 { self.state.flags(CF) } else { Value::Known(0) };
        let result = match a.and(b).and_then(|pair| Value::Known(0).and(carry).map(|(_, carry)| (pair, carry != 0))) {
            Ok(((a, b), carry)) => {
                let (value, flags) = how(bytes, a, b, carry);
                self.set_flags(i, flags);
                Value::Known(value)
            }
            Err(cause) => self.unknown(i, cause),
        };
        if matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) { Ok(()) } else { self.write(i, 0, result) }
    }

    /// Operand 0 becomes what `how` makes of operand `from`.
    fn change(&mut self, i: &Instruction, from: u32, how: impl Fn(usize, u64) -> Computed) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let result = match self.read(i, from)? {
            Value::Known(value) => {
                let (value, flags) = how(bytes, value);
                self.set_flags(i, flags);
                Value::Known(value)
            }
            Value::Unknown(cause) => self.unknown(i, cause),
        };
        self.write(i, 0, result)
    }

    /// Operand 0 becomes what `how` makes of two operands.
    fn join(
        &mut self,
        i: &Instruction,
        one: u32,
        other: u32,
        how: impl Fn(usize, u64, u64) -> Computed,
    ) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let (a, b) = (self.read(i, one)?, self.read(i, other)?.low(bytes));
        let result = match a.and(b) {
            Ok((a, b)) => {
                let (value, flags) = how(bytes, a, b);
                self.set_flags(i, flags);
                Value::Known(value)
            }
            Err(cause) => self.unknown(i, cause),
        };
        self.write(i, 0, result)
    }

    fn find_bit(&mut self, i: &Instruction, at: impl Fn(u64) -> u32) -> Result<(), Halt> {
        let result = match self.read(i, 1)? {
            Value::Known(0) => {
                self.set_flags(i, ZF);
                Value::NEVER
            }
            Value::Known(value) => {
                self.set_flags(i, 0);
                Value::Known(u64::from(at(value)))
            }
            Value::Unknown(cause) => self.unknown(i, cause),
        };
        self.write(i, 0, result)
    }

    fn shift(&mut self, i: &Instruction, kind: Shift) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let (a, count) = (self.read(i, 0)?, self.read(i, 1)?);
        let result = match a.and(count) {
            Ok((a, count)) => match arithmetic::shift(bytes, kind, a, count) {
                Some((value, flags)) => {
                    self.set_flags(i, flags);
                    Value::Known(value)
                }
                None if count & if bytes == 8 { 63 } else { 31 } == 0 => Value::Known(a),
                None => self.unknown(i, Cause::Never),
            },
            Err(cause) => self.unknown(i, cause),
        };
        self.write(i, 0, result)
    }

    /// Shifts that leave the flags, from operand 1 by operand 2 to operand 0.
    fn shift_apart(&mut self, i: &Instruction, kind: Shift) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let (a, count) = (self.read(i, 1)?, self.read(i, 2)?);
        let result = match a.and(count) {
            Ok((a, count)) => Value::Known(arithmetic::shift(bytes, kind, a, count).map_or(a, |(value, _)| value)),
            Err(cause) => cause.into(),
        };
        self.write(i, 0, result)
    }

    fn multiply_wide(&mut self, i: &Instruction) -> Result<bool, Halt> {
        let bytes = Self::bytes(i, 0);
        let Some((low, high)) = accumulators(bytes) else { return Ok(false) };
        let (a, b) = (self.state.register(low), self.read(i, 0)?);
        let (low_value, high_value) = match a.and(b) {
            Ok((a, b)) => {
                let (low, high, flags) = arithmetic::multiply_wide(bytes, i.mnemonic() == Mnemonic::Imul, a, b);
                self.set_flags(i, flags);
                (Value::Known(low), Value::Known(high))
            }
            Err(cause) => (self.unknown(i, cause), cause.into()),
        };
        self.state.set_register(low, low_value);
        self.state.set_register(high, high_value);
        Ok(true)
    }

    fn divide(&mut self, i: &Instruction) -> Result<bool, Halt> {
        let bytes = Self::bytes(i, 0);
        let Some((low, high)) = accumulators(bytes) else { return Ok(false) };
        let by = self.read(i, 0)?;
        let pair = self.state.register(high).and(self.state.register(low));
        let (quotient, remainder) = match (pair, by) {
            (Ok((upper, lower)), Value::Known(by)) => {
                let is_signed = i.mnemonic() == Mnemonic::Idiv;
                let Some((quotient, remainder)) = arithmetic::divide(bytes, is_signed, upper, lower, by) else {
                    return Err(Halt::Stop(StopReason::Fault));
                };
                self.set_flags(i, 0);
                (Value::Known(quotient), Value::Known(remainder))
            }
            (Err(cause), _) | (_, Value::Unknown(cause)) => (self.unknown(i, cause), cause.into()),
        };
        self.state.set_register(low, quotient);
        self.state.set_register(high, remainder);
        Ok(true)
    }

    fn extend(&mut self, from: Register, to: Register) {
        let value = self.state.register(from).map(|value| arithmetic::signed(value, from.size()) as u64);
        self.state.set_register(to, value);
    }

    fn spread_sign(&mut self, of: Register, to: Register) {
        let value = self.state.register(of).map(|value| (arithmetic::signed(value, of.size()) >> 63) as u64);
        self.state.set_register(to, value);
    }

    fn bit(&mut self, i: &Instruction) -> Result<bool, Halt> {
        // A register may name any bit from there on.
        if i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register {
            return Ok(false);
        }
        let bytes = Self::bytes(i, 0);
        let (a, index) = (self.read(i, 0)?, self.read(i, 1)?);
        let result = match a.and(index) {
            Ok((a, index)) => {
                let bit = 1 << (index & (bytes as u64 * 8 - 1));
                self.set_flags(i, if a & bit != 0 { CF } else { 0 });
                Value::Known(match i.mnemonic() {
                    Mnemonic::Bts => a | bit,
                    Mnemonic::Btr => a & !bit,
                    Mnemonic::Btc => a ^ bit,
                    _ => a,
                })
            }
            Err(cause) => self.unknown(i, cause),
        };
        if i.mnemonic() != Mnemonic::Bt {
            self.write(i, 0, result)?;
        }
        Ok(true)
    }

    fn exchange(&mut self, i: &Instruction) -> Result<(), Halt> {
        let (a, b) = (self.read(i, 0)?, self.read(i, 1)?);
        // A memory operand first: its address may use the register.
        let (first, second) = if i.op1_kind() == OpKind::Memory { ((1, a), (0, b)) } else { ((0, b), (1, a)) };
        self.write(i, first.0, first.1)?;
        self.write(i, second.0, second.1)
    }

    fn exchange_add(&mut self, i: &Instruction) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let (a, b) = (self.read(i, 0)?, self.read(i, 1)?);
        let sum = match a.and(b) {
            Ok((a, b)) => {
                let (value, flags) = arithmetic::add(bytes, a, b, false);
                self.set_flags(i, flags);
                Value::Known(value)
            }
            Err(cause) => self.unknown(i, cause),
        };
        if i.op0_kind() == OpKind::Memory {
            self.write(i, 0, sum)?;
            self.write(i, 1, a)
        } else {
            self.write(i, 1, a)?;
            self.write(i, 0, sum)
        }
    }

    fn compare_exchange(&mut self, i: &Instruction) -> Result<(), Halt> {
        let bytes = Self::bytes(i, 0);
        let accumulator = accumulators(bytes).map_or(Register::AL, |(low, _)| low);
        let (old, new) = (self.read(i, 0)?, self.read(i, 1)?);
        match self.state.register(accumulator).and(old) {
            Ok((expected, found)) => {
                let (_, flags) = arithmetic::subtract(bytes, expected, found, false);
                self.set_flags(i, flags);
                if expected == found {
                    return self.write(i, 0, new);
                }
                self.state.set_register(accumulator, old);
                // Memory is written in any case; some CPUs write a register too, and so clear the upper half of a long one.
                if i.op0_kind() == OpKind::Memory { self.write(i, 0, old) } else { self.write(i, 0, Value::NEVER) }
            }
            Err(cause) => {
                let unknown = self.unknown(i, cause);
                self.write(i, 0, unknown)?;
                self.state.set_register(accumulator, unknown);
                Ok(())
            }
        }
    }

    /// cmovcc and setcc.
    fn conditional(&mut self, i: &Instruction) -> Result<bool, Halt> {
        let is_general = i.op0_kind() == OpKind::Memory || i.op0_register().is_gpr();
        if i.condition_code() == ConditionCode::None || !is_general {
            return Ok(false);
        }
        let condition = self.condition(i);
        let value = match i.op_count() {
            1 => condition,
            2 => {
                let (old, new) = (self.read(i, 0)?, self.read(i, 1)?);
                match condition {
                    Value::Known(0) => old,
                    Value::Known(_) => new,
                    unknown => unknown,
                }
            }
            _ => return Ok(false),
        };
        self.write(i, 0, value)?;
        Ok(true)
    }

    /// One step of a string instruction. With a prefix it comes again until the counter is used up.
    pub(super) fn string(&mut self, i: &Instruction) -> Result<u64, Halt> {
        let bytes = i.memory_size().size();
        let repeats = i.has_rep_prefix() || i.has_repne_prefix();
        let counter = self.state.register(Register::RCX);
        if repeats && self.must_know(counter, StopReason::UnknownAddress)? == 0 {
            return Ok(i.next_ip());
        }
        let backwards = self.must_know(self.state.flags(RflagsBits::DF), StopReason::UnknownAddress)? != 0;
        let by = if backwards { (bytes as u64).wrapping_neg() } else { bytes as u64 };
        let kinds = [i.op0_kind(), i.op1_kind()];
        let uses = |kind: OpKind| kinds.contains(&kind);
        let (source, destination) = (uses(OpKind::MemorySegRSI), uses(OpKind::MemoryESRDI));
        let is_elsewhere = matches!(i.segment_prefix(), Register::FS | Register::GS);
        if !(source || destination) || is_elsewhere {
            return Err(Halt::Stop(StopReason::Unsupported));
        }
        let from = if source { Some(self.step_along(Register::RSI, by)?) } else { None };
        let to = if destination { Some(self.step_along(Register::RDI, by)?) } else { None };
        let compares = self.move_string(i, bytes, from, to)?;
        if !repeats {
            return Ok(i.next_ip());
        }
        let left = counter.map(|counter| counter.wrapping_sub(1));
        self.state.set_register(Register::RCX, left);
        let mut again = left != Value::Known(0);
        if compares && again {
            let equal = self.must_know(self.state.flags(ZF), StopReason::UnknownBranch)? != 0;
            again = equal != i.has_repne_prefix();
        }
        Ok(if again { i.ip() } else { i.next_ip() })
    }

    /// The address in a register that goes on by `by`.
    fn step_along(&mut self, register: Register, by: u64) -> Result<u64, Halt> {
        let address = self.must_know(self.state.register(register), StopReason::UnknownAddress)?;
        self.state.set_register(register, Value::Known(address.wrapping_add(by)));
        Ok(address)
    }

    /// What one step does with its operands; whether it compares.
    fn move_string(&mut self, i: &Instruction, bytes: usize, from: Option<u64>, to: Option<u64>) -> Result<bool, Halt> {
        let accumulator = accumulators(bytes).map_or(Register::AL, |(low, _)| low);
        let loads = matches!(i.mnemonic(), Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq);
        let scans = matches!(i.mnemonic(), Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq);
        let value = match from {
            Some(from) => self.load(i, from, bytes)?,
            None => self.state.register(accumulator),
        };
        if loads {
            self.state.set_register(accumulator, value);
            return Ok(false);
        }
        let Some(to) = to else { return Err(Halt::Stop(StopReason::Unsupported)) };
        if !scans && i.rflags_modified() == 0 {
            self.store(to, bytes, value);
            return Ok(false);
        }
        let other = self.load(i, to, bytes)?;
        match value.and(other) {
            Ok((a, b)) => {
                let (_, flags) = arithmetic::subtract(bytes, a, b, false);
                self.set_flags(i, flags);
            }
            Err(cause) => {
                self.unknown(i, cause);
            }
        }
        Ok(true)
    }
}

fn count_zeros(bytes: usize, value: u64, zeros: u32) -> Computed {
    let bits = bytes as u32 * 8;
    let zeros = if value == 0 { bits } else { zeros };
    (u64::from(zeros), if value == 0 { CF } else { 0 } | if zeros == 0 { ZF } else { 0 })
}
