// SPDX-License-Identifier: GPL-2.0-only
//! Which registers, flags and memory words hold values that the emulation does not know.

use hashbrown::HashSet;

use super::decode::{Decoded, OTHER_REGISTERS, RegisterMask, XMM_REGISTERS};

/// Memory is tracked in words of this many bytes.
const WORD_BYTES: u64 = 8;

/// The unknown part of a thread's state.
pub(super) struct Taint {
    registers: RegisterMask,
    words: HashSet<u64>,
}

impl Taint {
    pub(super) fn new() -> Self {
        Self { registers: XMM_REGISTERS | OTHER_REGISTERS, words: HashSet::new() }
    }

    /// The state when a sample starts: vector registers are not part of a sample.
    pub(super) fn reset(&mut self) {
        self.registers = XMM_REGISTERS | OTHER_REGISTERS;
        self.words.clear();
    }

    /// Whether any of these registers or flags is unknown.
    pub(super) fn any(&self, registers: RegisterMask) -> bool {
        self.registers & registers != 0
    }

    /// What an instruction leaves behind when its result is known or unknown.
    pub(super) fn commit(&mut self, decoded: &Decoded, unknown: bool) {
        if unknown {
            self.registers |= decoded.replaced | decoded.merged;
        } else {
            self.registers = self.registers & !decoded.replaced | OTHER_REGISTERS;
        }
    }

    /// Whether any byte of these words is unknown.
    pub(super) fn memory(&self, address: u64, bytes: u64) -> bool {
        !self.words.is_empty() && words(address, bytes).any(|word| self.words.contains(&word))
    }

    /// A store: words become unknown, or known again when they are written as a whole.
    pub(super) fn store(&mut self, address: u64, bytes: u64, unknown: bool) {
        if unknown {
            self.words.extend(words(address, bytes));
        } else if !self.words.is_empty() {
            let end = address.wrapping_add(bytes);
            for word in words(address, bytes) {
                if word * WORD_BYTES >= address && (word + 1) * WORD_BYTES <= end {
                    self.words.remove(&word);
                }
            }
        }
    }
}

fn words(address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
    address / WORD_BYTES..=address.saturating_add(bytes.max(1) - 1) / WORD_BYTES
}
