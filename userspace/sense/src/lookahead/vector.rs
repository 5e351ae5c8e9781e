// SPDX-License-Identifier: GPL-2.0-only
//! Instructions on the lower halves of xmm registers: moves, and scalar floating point, which loops end by.

use iced_x86::{Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::arithmetic;
use super::execute::{Halt, Thread};
use super::values::{Value, mask};

/// What cvttsd2si and its like make of what does not fit.
fn indefinite(bytes: usize) -> u64 {
    1 << (bytes * 8 - 1)
}

/// A floating-point number of 4 or 8 bytes.
fn number(value: u64, bytes: usize) -> f64 {
    if bytes == 4 { f64::from(f32::from_bits(value as u32)) } else { f64::from_bits(value) }
}

impl Thread {
    /// Does it if it is one of these; whether it was.
    pub(super) fn compute_vector(&mut self, i: &Instruction) -> Result<bool, Halt> {
        use Mnemonic as M;
        match i.mnemonic() {
            M::Movd | M::Movq => self.move_low(i)?,
            M::Movss => self.move_scalar(i, 4)?,
            M::Movsd => self.move_scalar(i, 8)?,
            M::Movaps | M::Movapd | M::Movups | M::Movupd | M::Movdqa | M::Movdqu | M::Lddqu => self.move_whole(i)?,
            M::Movntps | M::Movntpd | M::Movntdq => self.move_whole(i)?,
            M::Pxor | M::Xorps | M::Xorpd => return self.bitwise(i, |a, b| a ^ b),
            M::Pand | M::Andps | M::Andpd => return self.bitwise(i, |a, b| a & b),
            M::Por | M::Orps | M::Orpd => return self.bitwise(i, |a, b| a | b),
            M::Addss => self.single(i, |a, b| a + b)?,
            M::Subss => self.single(i, |a, b| a - b)?,
            M::Mulss => self.single(i, |a, b| a * b)?,
            M::Divss => self.single(i, |a, b| a / b)?,
            M::Addsd => self.double(i, |a, b| a + b)?,
            M::Subsd => self.double(i, |a, b| a - b)?,
            M::Mulsd => self.double(i, |a, b| a * b)?,
            M::Divsd => self.double(i, |a, b| a / b)?,
            M::Sqrtsd => self.double(i, |_, b| b.sqrt())?,
            M::Ucomiss | M::Comiss => self.compare(i, 4)?,
            M::Ucomisd | M::Comisd => self.compare(i, 8)?,
            M::Cvtsi2sd => self.convert_integer(i, 8, |integer| (integer as f64).to_bits())?,
            M::Cvtsi2ss => self.convert_integer(i, 4, |integer| u64::from((integer as f32).to_bits()))?,
            M::Cvttsd2si => self.truncate(i, 8)?,
            M::Cvttss2si => self.truncate(i, 4)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn halves(&self, register: Register) -> [Value; 2] {
        if register.is_xmm() && register.number() < 16 {
            self.state.vector[register.number()]
        } else {
            [Value::NEVER; 2]
        }
    }

    fn set_halves(&mut self, register: Register, halves: [Value; 2]) {
        if register.is_xmm() && register.number() < 16 {
            self.state.vector[register.number()] = halves;
        }
    }

    /// The lowest `bytes` of an operand, a vector or not.
    fn read_low(&mut self, i: &Instruction, operand: u32, bytes: usize) -> Result<Value, Halt> {
        let register = i.op_register(operand);
        match i.op_kind(operand) {
            OpKind::Register if register.is_xmm() => Ok(self.halves(register)[0].low(bytes)),
            OpKind::Register if !register.is_gpr() => Ok(Value::NEVER),
            _ => Ok(self.read(i, operand)?.low(bytes)),
        }
    }

    /// Sets the lowest `bytes` of operand 0 and leaves the rest.
    fn set_low(&mut self, i: &Instruction, bytes: usize, value: Value) {
        let [old, upper] = self.halves(i.op0_register());
        let low = if bytes == 8 {
            value
        } else {
            match old.and(value) {
                Ok((old, value)) => Value::Known(old & !mask(bytes) | value & mask(bytes)),
                Err(cause) => cause.into(),
            }
        };
        self.set_halves(i.op0_register(), [low, upper]);
    }

    fn move_low(&mut self, i: &Instruction) -> Result<(), Halt> {
        let bytes = if i.mnemonic() == Mnemonic::Movq { 8 } else { 4 };
        let value = self.read_low(i, 1, bytes)?;
        if i.op0_kind() == OpKind::Register && !i.op0_register().is_gpr() {
            self.set_halves(i.op0_register(), [value, Value::Known(0)]);
            Ok(())
        } else {
            self.write(i, 0, value)
        }
    }

    fn move_scalar(&mut self, i: &Instruction, bytes: usize) -> Result<(), Halt> {
        let value = self.read_low(i, 1, bytes)?;
        match (i.op0_kind(), i.op1_kind()) {
            (OpKind::Register, OpKind::Register) => self.set_low(i, bytes, value),
            (OpKind::Register, _) => self.set_halves(i.op0_register(), [value, Value::Known(0)]),
            _ => self.write(i, 0, value)?,
        }
        Ok(())
    }

    /// Both halves of an operand.
    fn read_whole(&mut self, i: &Instruction, operand: u32) -> Result<[Value; 2], Halt> {
        if i.op_kind(operand) == OpKind::Register {
            return Ok(self.halves(i.op_register(operand)));
        }
        let Some(address) = self.address(i)? else { return Ok([Value::NEVER; 2]) };
        self.touch(address, 16, false);
        Ok([self.value_at(i, address, 8)?, self.value_at(i, address.wrapping_add(8), 8)?])
    }

    fn move_whole(&mut self, i: &Instruction) -> Result<(), Halt> {
        let halves = self.read_whole(i, 1)?;
        if i.op0_kind() == OpKind::Register {
            self.set_halves(i.op0_register(), halves);
        } else if let Some(address) = self.address(i)? {
            self.touch(address, 16, true);
            self.memory.store(address, 8, halves[0]);
            self.memory.store(address.wrapping_add(8), 8, halves[1]);
        }
        Ok(())
    }

    fn bitwise(&mut self, i: &Instruction, how: impl Fn(u64, u64) -> u64) -> Result<bool, Halt> {
        if !i.op0_register().is_xmm() {
            return Ok(false);
        }
        let clears = i.op1_kind() == OpKind::Register
            && i.op0_register() == i.op1_register()
            && matches!(i.mnemonic(), Mnemonic::Pxor | Mnemonic::Xorps | Mnemonic::Xorpd);
        let (a, b) = (self.halves(i.op0_register()), self.read_whole(i, 1)?);
        let half = |at: usize| match a[at].and(b[at]) {
            _ if clears => Value::Known(0),
            Ok((a, b)) => Value::Known(how(a, b)),
            Err(cause) => cause.into(),
        };
        self.set_halves(i.op0_register(), [half(0), half(1)]);
        Ok(true)
    }

    fn scalar(&mut self, i: &Instruction, bytes: usize, how: impl Fn(u64, u64) -> u64) -> Result<(), Halt> {
        let (a, b) = (self.halves(i.op0_register())[0].low(bytes), self.read_low(i, 1, bytes)?);
        let value = match a.and(b) {
            Ok((a, b)) => Value::Known(how(a, b)),
            Err(cause) => cause.into(),
        };
        self.set_low(i, bytes, value);
        Ok(())
    }

    fn single(&mut self, i: &Instruction, how: impl Fn(f32, f32) -> f32) -> Result<(), Halt> {
        let float = |value: u64| f32::from_bits(value as u32);
        self.scalar(i, 4, |a, b| u64::from(how(float(a), float(b)).to_bits()))
    }

    fn double(&mut self, i: &Instruction, how: impl Fn(f64, f64) -> f64) -> Result<(), Halt> {
        self.scalar(i, 8, |a, b| how(f64::from_bits(a), f64::from_bits(b)).to_bits())
    }

    fn compare(&mut self, i: &Instruction, bytes: usize) -> Result<(), Halt> {
        let (a, b) = (self.read_low(i, 0, bytes)?, self.read_low(i, 1, bytes)?);
        match a.and(b) {
            Ok((a, b)) => {
                let flags = match number(a, bytes).partial_cmp(&number(b, bytes)) {
                    None => RflagsBits::ZF | RflagsBits::PF | RflagsBits::CF,
                    Some(std::cmp::Ordering::Less) => RflagsBits::CF,
                    Some(std::cmp::Ordering::Equal) => RflagsBits::ZF,
                    Some(std::cmp::Ordering::Greater) => 0,
                };
                self.set_flags(i, flags);
            }
            Err(cause) => {
                self.unknown(i, cause);
            }
        }
        Ok(())
    }

    fn convert_integer(&mut self, i: &Instruction, bytes: usize, how: impl Fn(i64) -> u64) -> Result<(), Halt> {
        let width = Self::bytes(i, 1);
        let value = self.read(i, 1)?.map(|value| how(arithmetic::signed(value, width)));
        self.set_low(i, bytes, value);
        Ok(())
    }

    fn truncate(&mut self, i: &Instruction, bytes: usize) -> Result<(), Halt> {
        let width = Self::bytes(i, 0);
        let value = self.read_low(i, 1, bytes)?.map(|value| {
            let number = number(value, bytes).trunc();
            // The bounds are powers of two, and so exact.
            let bound = (indefinite(width) as f64).abs();
            if (-bound..bound).contains(&number) { number as i64 as u64 } else { indefinite(width) }
        });
        self.write(i, 0, value)
    }
}
