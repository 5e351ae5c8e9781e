// SPDX-License-Identifier: GPL-2.0-only
//! One walk over the fields of an interval serves both directions, so that what is written is what is read.
//!
//! The walk hands each value to a [`Coder`] together with what it should be by all that was passed before. Writing, the
//! coder takes down how far the value is from that and leaves it alone; reading, it replaces the value, whatever it was,
//! by what was taken down. So a walk may look only at values that it has passed already.
//!
//! Predictions are the same on every machine: they are made of `+`, `-`, `*` and `/` of IEEE 754. One that is not finite
//! counts as 0, since the bits of a NaN that was computed are not the same everywhere.

use thiserror::Error;

use tandem_policies::model::{CpuId, NodeId, NodeIndex, ProcessId};

use crate::columns::Column;

/// Why a frame with a right checksum is no interval.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The outer shape.
    #[error("holds columns that cannot be unpacked")]
    Streams,
    /// The outer shape of a later version.
    #[error("holds columns that this version does not know: a later tandem reads it")]
    LaterColumns,
    /// A column has values that no interval has, too few or too many.
    #[error("holds bad values in column {0:?}")]
    Column(Column),
    /// More values than any machine gives.
    #[error("holds more values than fit into memory")]
    TooLarge,
    /// Parts that do not fit each other.
    #[error("holds no snapshot: {0}")]
    Snapshot(String),
    /// Settings that are not JSON or lack something.
    #[error("holds no settings: {0}")]
    Settings(String),
}

/// Where numbers go to or come from.
pub(crate) trait Coder {
    /// Takes `number` down and returns it, or returns the one that was.
    fn pass(&mut self, column: Column, number: u64) -> Result<u64, Malformed>;

    /// The same for `length` bytes.
    fn pass_bytes(&mut self, column: Column, length: usize, bytes: &mut Vec<u8>) -> Result<(), Malformed>;

    /// Bytes that the values of this interval may still take in memory.
    fn room(&mut self) -> &mut usize;

    /// A whole number that should be `predicted`.
    fn number<N: Whole>(&mut self, column: Column, value: &mut N, predicted: N) -> Result<(), Malformed> {
        let predicted = predicted.to_u64();
        let passed = self.pass(column, zigzag(value.to_u64().wrapping_sub(predicted) as i64))?;
        let number = predicted.wrapping_add(unzigzag(passed) as u64);
        *value = N::from_u64(number).ok_or(Malformed::Column(column))?;
        Ok(())
    }

    /// A number that should be `predicted`: by how many of all floating-point numbers it is off. Keeps every bit.
    fn float(&mut self, column: Column, value: &mut f64, predicted: f64) -> Result<(), Malformed> {
        let predicted = place_of_finite(predicted);
        let passed = self.pass(column, zigzag(place_of(*value).wrapping_sub(predicted) as i64))?;
        *value = at_place(predicted.wrapping_add(unzigzag(passed) as u64));
        Ok(())
    }

    /// A number that is `after(new)`, where `new` should be `expected`. While it is, one column is enough: it holds twice
    /// how far the number is off. Else it holds twice how far `new` is off, plus one, and `rest` how far the number is.
    fn aged(
        &mut self,
        (column, rest): (Column, Column),
        value: &mut f64,
        new: &mut i64,
        expected: i64,
        after: impl Fn(i64) -> f64,
    ) -> Result<(), Malformed> {
        let predicted = place_of_finite(after(expected));
        let off = zigzag(place_of(*value).wrapping_sub(predicted) as i64);
        let as_expected = *new == expected && off < 1 << 62;
        let number = if as_expected { off << 1 } else { zigzag(new.wrapping_sub(expected)) << 1 | 1 };
        let passed = self.pass(column, number)?;
        if passed & 1 == 0 {
            *new = expected;
            *value = at_place(predicted.wrapping_add(unzigzag(passed >> 1) as u64));
            return Ok(());
        }
        *new = expected.wrapping_add(unzigzag(passed >> 1));
        self.float(rest, value, after(*new))
    }

    /// A flag that should be `predicted`.
    fn flag(&mut self, column: Column, value: &mut bool, predicted: bool) -> Result<(), Malformed> {
        match self.pass(column, u64::from(*value != predicted))? {
            passed @ (0 | 1) => *value = (passed == 1) != predicted,
            _ => return Err(Malformed::Column(column)),
        }
        Ok(())
    }

    /// A number that may be absent: whether it is there, and it, both as they should be by `before`.
    fn optional(&mut self, column: Column, value: &mut Option<f64>, before: Option<f64>) -> Result<(), Malformed> {
        let mut present = value.is_some();
        self.flag(column, &mut present, before.is_some())?;
        if present {
            let number = value.get_or_insert(0.0);
            self.float(column, number, before.unwrap_or(0.0))?;
        } else {
            *value = None;
        }
        Ok(())
    }

    /// The number of elements of a list, each of `T`.
    fn count<T>(&mut self, column: Column, length: usize, predicted: usize) -> Result<usize, Malformed> {
        let mut count = length;
        self.number(column, &mut count, predicted)?;
        let bytes = count.checked_mul(size_of::<T>().max(8)).ok_or(Malformed::TooLarge)?;
        *self.room() = self.room().checked_sub(bytes).ok_or(Malformed::TooLarge)?;
        Ok(count)
    }

    /// A text that should be `predicted`.
    fn text(&mut self, column: Column, value: &mut String, predicted: &str) -> Result<(), Malformed> {
        let mut same = value == predicted;
        self.flag(column, &mut same, true)?;
        if same {
            predicted.clone_into(value);
            return Ok(());
        }
        let length = self.count::<u8>(column, value.len(), 0)?;
        let mut bytes = std::mem::take(value).into_bytes();
        self.pass_bytes(column, length, &mut bytes)?;
        *value = String::from_utf8(bytes).map_err(|_| Malformed::Column(column))?;
        Ok(())
    }

    /// Which of `rows` earlier rows this one goes on from, if any: `expected` by all that is known.
    fn row(
        &mut self,
        column: Column,
        found: Option<usize>,
        expected: usize,
        rows: usize,
    ) -> Result<Option<usize>, Malformed> {
        let number = match found {
            Some(row) if row == expected => 0,
            Some(row) => zigzag(row.wrapping_sub(expected) as i64) + 1,
            None => 1,
        };
        let row = match self.pass(column, number)? {
            0 => expected,
            1 => return Ok(None),
            number => expected.wrapping_add(unzigzag(number - 1) as usize),
        };
        if row < rows { Ok(Some(row)) } else { Err(Malformed::Column(column)) }
    }
}

/// Whole numbers that columns hold.
pub(crate) trait Whole: Copy {
    fn to_u64(self) -> u64;
    /// `None` if the number is too large for this type.
    fn from_u64(number: u64) -> Option<Self>;
}

macro_rules! whole {
    ($($name:ty: $to:expr, $from:expr;)*) => {
        $(impl Whole for $name {
            fn to_u64(self) -> u64 {
                let to: fn($name) -> u64 = $to;
                to(self)
            }

            fn from_u64(number: u64) -> Option<Self> {
                let from: fn(u64) -> Option<$name> = $from;
                from(number)
            }
        })*
    };
}

whole! {
    u64: |number| number, Some;
    u32: u64::from, |number| u32::try_from(number).ok();
    usize: |number| number as u64, |number| usize::try_from(number).ok();
    NodeIndex: |node| node.0 as u64, |number| usize::try_from(number).ok().map(NodeIndex);
    NodeId: |node| u64::from(node.0), |number| u32::try_from(number).ok().map(NodeId);
    CpuId: |cpu| u64::from(cpu.0), |number| u32::try_from(number).ok().map(CpuId);
    ProcessId: |process| u64::from(process.0), |number| u32::try_from(number).ok().map(ProcessId);
}

/// Small for numbers near 0 on both sides: 0, -1, 1, -2, ...
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Place of a number among all floating-point numbers in ascending order.
fn place_of(number: f64) -> u64 {
    let bits = number.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// The same for a prediction.
fn place_of_finite(predicted: f64) -> u64 {
    place_of(if predicted.is_finite() { predicted } else { 0.0 })
}

fn at_place(place: u64) -> f64 {
    f64::from_bits(if place >> 63 == 1 { place & !(1 << 63) } else { !place })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_has_a_place_and_comes_back(bits: u64, number: i64) {
            prop_assert_eq!(at_place(place_of(f64::from_bits(bits))).to_bits(), bits);
            prop_assert_eq!(unzigzag(zigzag(number)), number);
        }
    }

    #[test]
    fn neighbours_have_neighbouring_places() {
        for pair in
            [(0.0, f64::from_bits(1)), (-0.0, 0.0), (1.0, 1.0 + f64::EPSILON), (-1.0, -1.0 + f64::EPSILON / 2.0)]
        {
            assert_eq!(place_of(pair.1) - place_of(pair.0), 1, "{pair:?}");
        }
    }
}
