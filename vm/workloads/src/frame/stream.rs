// SPDX-License-Identifier: GPL-2.0-only
//! Strided accesses: line after line, each independent of the one before, so that several can be under way at once.

use crate::frame::memory::Line;

/// The word of a line that is read and written.
const VALUE: usize = 0;

/// Reads every line and gives the sum of their values.
#[inline(never)]
pub fn sum(lines: &[Line]) -> u64 {
    lines.iter().fold(0, |sum, line| sum.wrapping_add(line.get(VALUE)))
}

/// Copies every line's value plus 1 to the line of the same index.
#[inline(never)]
pub fn copy(from: &[Line], to: &[Line]) {
    for (from, to) in from.iter().zip(to) {
        to.set(VALUE, from.get(VALUE).wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::{Memory, PageSize};

    #[test]
    fn a_copy_is_the_original_plus_one_and_sums_tell() {
        let arrays = [(); 2].map(|()| Memory::map(6400, PageSize::Base).unwrap());
        (0..100).for_each(|index| arrays[0].lines()[index].set(VALUE, index as u64));
        copy(arrays[0].lines(), arrays[1].lines());
        assert_eq!((sum(arrays[0].lines()), sum(arrays[1].lines())), (4950, 5050));
    }
}
