// SPDX-License-Identifier: GPL-2.0-only
//! Integer arithmetic as x86 does it, on known operands: the result, and the flags as iced numbers them. Which flags an
//! instruction writes or leaves undefined is iced's to say; here undefined ones may have any value.

use iced_x86::RflagsBits;

use super::values::mask;

const OF: u32 = RflagsBits::OF;
const CF: u32 = RflagsBits::CF;

/// A result and its flags.
pub(super) type Computed = (u64, u32);

fn sign(bytes: usize) -> u64 {
    1 << (bytes * 8 - 1)
}

fn when(condition: bool, flag: u32) -> u32 {
    if condition { flag } else { 0 }
}

/// `value` of `bytes` as a signed number.
pub(super) fn signed(value: u64, bytes: usize) -> i64 {
    let shift = 64 - bytes as u32 * 8;
    (value << shift) as i64 >> shift
}

/// Flags that tell of a result alone.
fn status(bytes: usize, value: u64) -> u32 {
    when(value & mask(bytes) == 0, RflagsBits::ZF)
        | when(value & sign(bytes) != 0, RflagsBits::SF)
        | when((value as u8).count_ones().is_multiple_of(2), RflagsBits::PF)
}

/// a + b + carry.
pub(super) fn add(bytes: usize, a: u64, b: u64, carry: bool) -> Computed {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    let value = sum as u64 & mask(bytes);
    let flags = when(sum > u128::from(mask(bytes)), CF)
        | when((a ^ value) & (b ^ value) & sign(bytes) != 0, OF)
        | when((a ^ b ^ value) & 0x10 != 0, RflagsBits::AF);
    (value, flags | status(bytes, value))
}

/// a - b - borrow.
pub(super) fn subtract(bytes: usize, a: u64, b: u64, borrow: bool) -> Computed {
    let value = a.wrapping_sub(b).wrapping_sub(u64::from(borrow)) & mask(bytes);
    let flags = when(u128::from(a) < u128::from(b) + u128::from(borrow), CF)
        | when((a ^ b) & (a ^ value) & sign(bytes) != 0, OF)
        | when((a ^ b ^ value) & 0x10 != 0, RflagsBits::AF);
    (value, flags | status(bytes, value))
}

/// The flags of a bitwise operation.
pub(super) fn logic(bytes: usize, value: u64) -> Computed {
    (value & mask(bytes), status(bytes, value))
}

/// A shift or rotation to either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    Left,
    Right,
    Arithmetic,
    RotateLeft,
    RotateRight,
}

/// a shifted by `count`; `None` if it is shifted by nothing, which changes no flag, or by more than what it has.
pub(super) fn shift(bytes: usize, kind: Shift, a: u64, count: u64) -> Option<Computed> {
    let bits = bytes as u32 * 8;
    let count = count as u32 & if bytes == 8 { 63 } else { 31 };
    if count == 0 || count >= bits {
        return None;
    }
    let (value, carry) = match kind {
        Shift::Left => (a << count & mask(bytes), a >> (bits - count) & 1 == 1),
        Shift::Right => (a >> count, a >> (count - 1) & 1 == 1),
        Shift::Arithmetic => {
            ((signed(a, bytes) >> count) as u64 & mask(bytes), signed(a, bytes) >> (count - 1) & 1 == 1)
        }
        Shift::RotateLeft => {
            let value = (a << count | a >> (bits - count)) & mask(bytes);
            (value, value & 1 == 1)
        }
        Shift::RotateRight => {
            let value = (a >> count | a << (bits - count)) & mask(bytes);
            (value, value & sign(bytes) != 0)
        }
    };
    let overflow = match kind {
        Shift::Left | Shift::RotateLeft => (value & sign(bytes) != 0) != carry,
        Shift::Right => a & sign(bytes) != 0,
        Shift::Arithmetic => false,
        Shift::RotateRight => (value ^ value << 1) & sign(bytes) != 0,
    };
    Some((value, status(bytes, value) | when(carry, CF) | when(overflow, OF)))
}

/// The lower half of a signed product; carry and overflow tell whether that is all of it.
pub(super) fn multiply(bytes: usize, a: u64, b: u64) -> Computed {
    let product = i128::from(signed(a, bytes)) * i128::from(signed(b, bytes));
    let value = product as u64 & mask(bytes);
    (value, when(i128::from(signed(value, bytes)) != product, CF | OF))
}

/// Lower and upper half of a product, and its flags.
pub(super) fn multiply_wide(bytes: usize, is_signed: bool, a: u64, b: u64) -> (u64, u64, u32) {
    let product = if is_signed {
        (i128::from(signed(a, bytes)) * i128::from(signed(b, bytes))) as u128
    } else {
        u128::from(a) * u128::from(b)
    };
    let (low, high) = (product as u64 & mask(bytes), (product >> (bytes * 8)) as u64 & mask(bytes));
    let extension = if is_signed && low & sign(bytes) != 0 { mask(bytes) } else { 0 };
    (low, high, when(high != extension, CF | OF))
}

/// Quotient and remainder of high:low / by; `None` where the CPU raises an exception.
pub(super) fn divide(bytes: usize, is_signed: bool, high: u64, low: u64, by: u64) -> Option<(u64, u64)> {
    let bits = bytes as u32 * 8;
    let dividend = u128::from(high) << bits | u128::from(low);
    let (quotient, remainder, fits) = if is_signed {
        let unused = 128 - 2 * bits;
        let (dividend, by) = ((dividend << unused) as i128 >> unused, i128::from(signed(by, bytes)));
        let (quotient, remainder) = (dividend.checked_div(by)?, dividend.checked_rem(by)?);
        let fits = i128::from(signed(quotient as u64, bytes)) == quotient;
        (quotient as u64, remainder as u64, fits)
    } else {
        let (quotient, remainder) = (dividend.checked_div(by.into())?, dividend.checked_rem(by.into())?);
        (quotient as u64, remainder as u64, quotient <= u128::from(mask(bytes)))
    };
    fits.then_some((quotient & mask(bytes), remainder & mask(bytes)))
}
