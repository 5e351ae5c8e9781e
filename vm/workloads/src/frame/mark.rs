// SPDX-License-Identifier: GPL-2.0-only
//! Marks: an instruction that does nothing on hardware and that the lab's timing plugin sees.
//!
//! `nopl 0x4d554eNN(%rax,%rax,1)`, an 8-byte NOP; NN is the mark's number.

use std::arch::asm;

/// Marks the beginning of the timed part.
pub fn begin() {
    // SAFETY: a NOP: no register, flag or memory changes.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x4e, 0x55, 0x4d", options(nostack, preserves_flags)) }
}

/// Marks the end of the timed part.
pub fn end() {
    // SAFETY: as above.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x4e, 0x55, 0x4d", options(nostack, preserves_flags)) }
}
