// SPDX-License-Identifier: GPL-2.0-only
//! Packets of Arm's Statistical Profiling Extension (Arm ARM, "Statistical Profiling Extension sample record").
//!
//! A packet is a header of one byte, or two when the first is an extension, and a payload of 1, 2, 4 or 8 bytes,
//! little-endian, whose size two bits of the last header byte give. Zero bytes pad.

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A record ends without a time.
    End,
    /// A record ends; counter ticks.
    Timestamp(u64),
    /// An address, by what it is of.
    Address(AddressKind, u64),
    /// Cycles, by what was counted.
    Cycles(CycleKind, u16),
    /// Context of an exception level.
    Context(u64),
    /// Class of the operation and its bits.
    Operation(Class, u64),
    /// What happened to it: bits of [`event`].
    Events(u64),
    /// What answered it, by the code of the implementation.
    Source(u16),
}

/// What an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// The instruction.
    Instruction,
    /// The data, virtual.
    Data,
    /// The data, physical.
    Physical,
    /// Branches and what is not known here.
    Other,
}

/// What cycles were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleKind {
    /// From dispatch to completion.
    Total,
    /// Others.
    Other,
}

/// Class of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Loads, stores and atomics.
    Memory,
    /// Others.
    Other,
}

/// Bits of [`Packet::Events`].
pub mod event {
    /// Refilled the first-level cache.
    pub const L1_REFILL: u64 = 1 << 3;
    /// Accessed the last-level cache.
    pub const LAST_LEVEL_ACCESS: u64 = 1 << 8;
    /// Missed the last-level cache.
    pub const LAST_LEVEL_MISS: u64 = 1 << 9;
    /// Went to another socket.
    pub const REMOTE: u64 = 1 << 10;
    /// Accessed the second-level cache.
    pub const L2_ACCESS: u64 = 1 << 19;
    /// Missed the second-level cache.
    pub const L2_MISS: u64 = 1 << 20;
    /// The line was modified in another cache.
    pub const MODIFIED: u64 = 1 << 21;
    /// Another cache was asked.
    pub const SNOOPED: u64 = 1 << 23;
}

/// Bit of an [`Packet::Operation`] of class [`Class::Memory`]: a store.
pub const STORE: u64 = 1;

/// What lies at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet and its length.
    Packet(Packet, usize),
    /// This many bytes of padding.
    Padding(usize),
    /// No packet starts here.
    Bad,
    /// The packet goes on after the bytes.
    Short,
}

/// The packet at the start of `bytes`, which begin `offset` bytes into the trace (for alignment).
pub fn next(bytes: &[u8], offset: u64) -> Step {
    let Some(&header) = bytes.first() else { return Step::Short };
    match header {
        0x00 => return Step::Padding(bytes.iter().take_while(|byte| **byte == 0).count()),
        0x01 => return Step::Packet(Packet::End, 1),
        0x71 => return with_payload(bytes, 1, Packet::Timestamp),
        _ => {}
    }
    if header & 0xfc == 0x20 {
        return extended(bytes, header, offset);
    }
    match (header & 0xcf, header & 0xfc, header & 0xf8) {
        (0x42, ..) => with_payload(bytes, 1, Packet::Events),
        (0x43, ..) => with_payload(bytes, 1, |payload| Packet::Source(payload as u16)),
        (_, 0x64, _) => with_payload(bytes, 1, Packet::Context),
        (_, 0x48, _) => {
            let class = if header & 3 == 1 { Class::Memory } else { Class::Other };
            with_payload(bytes, 1, |payload| Packet::Operation(class, payload))
        }
        (_, _, kind) => address_or_cycles(bytes, 1, kind, header & 7),
    }
}

fn extended(bytes: &[u8], header: u8, offset: u64) -> Step {
    let Some(&second) = bytes.get(1) else { return Step::Short };
    if second == 0 {
        // Padding up to a multiple of a power of two of the trace.
        let alignment = 2_u64 << (header & 0xf);
        let padding = (alignment - offset % alignment) as usize;
        return if padding <= bytes.len() { Step::Padding(padding) } else { Step::Short };
    }
    address_or_cycles(bytes, 2, second & 0xf8, (header & 3) << 3 | second & 7)
}

fn address_or_cycles(bytes: &[u8], headers: usize, kind: u8, index: u8) -> Step {
    match kind {
        0xb0 => {
            let of = match index {
                0 => AddressKind::Instruction,
                2 => AddressKind::Data,
                3 => AddressKind::Physical,
                _ => AddressKind::Other,
            };
            with_payload(bytes, headers, |payload| Packet::Address(of, payload))
        }
        0x98 => {
            let of = if index == 0 { CycleKind::Total } else { CycleKind::Other };
            with_payload(bytes, headers, |payload| Packet::Cycles(of, payload as u16))
        }
        _ => Step::Bad,
    }
}

fn with_payload(bytes: &[u8], headers: usize, packet: impl FnOnce(u64) -> Packet) -> Step {
    let length = 1_usize << (bytes[headers - 1] >> 4 & 3);
    let Some(payload) = bytes.get(headers..headers + length) else { return Step::Short };
    let value = payload.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Step::Packet(packet(value), headers + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_and_payloads_are_read_as_the_architecture_has_them() {
        let cases: [(&[u8], Packet); 9] = [
            (&[0x01], Packet::End),
            (&[0x71, 1, 2, 3, 4, 5, 6, 7, 0x80], Packet::Timestamp(0x8007_0605_0403_0201)),
            (&[0xb0, 8, 7, 6, 5, 4, 3, 2, 1], Packet::Address(AddressKind::Instruction, 0x0102_0304_0506_0708)),
            (&[0xb2, 8, 7, 6, 5, 4, 3, 2, 1], Packet::Address(AddressKind::Data, 0x0102_0304_0506_0708)),
            (&[0x98, 0x2c, 0x01], Packet::Cycles(CycleKind::Total, 300)),
            (&[0x65, 0xd2, 4, 0, 0], Packet::Context(1234)),
            (&[0x49, 0x01], Packet::Operation(Class::Memory, STORE)),
            (&[0x52, 0x1a, 0x07], Packet::Events(0x71a)),
            (&[0x43, 0x0d], Packet::Source(0x0d)),
        ];
        for (bytes, packet) in cases {
            assert_eq!(next(bytes, 0), Step::Packet(packet, bytes.len()), "{bytes:x?}");
            if bytes.len() > 1 {
                assert_eq!(next(&bytes[..bytes.len() - 1], 0), Step::Short, "{bytes:x?} cut");
            }
        }
        // Extended headers number more kinds; only index 0 of cycles is the total.
        assert_eq!(next(&[0x21, 0x98, 9, 0], 0), Step::Packet(Packet::Cycles(CycleKind::Other, 9), 4));
        assert_eq!(next(&[0x99, 9, 0], 0), Step::Packet(Packet::Cycles(CycleKind::Other, 9), 3));
    }

    #[test]
    fn padding_runs_on_and_aligns_within_the_trace() {
        assert_eq!(next(&[0, 0, 0, 1], 0), Step::Padding(3));
        // To a multiple of 8, from 5 bytes into the trace.
        assert_eq!(next(&[0x22, 0, 0, 0xff], 5), Step::Padding(3));
        assert_eq!(next(&[0x22, 0, 0, 0, 0, 0, 0, 0], 1), Step::Padding(7));
        assert_eq!(next(&[0x22, 0], 5), Step::Short);
        assert_eq!(next(&[0xff], 0), Step::Bad);
        assert_eq!(next(&[], 0), Step::Short);
    }

    proptest! {
        #[test]
        fn a_step_never_leaves_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), offset in any::<u64>()) {
            match next(&bytes, offset) {
                Step::Packet(_, length) | Step::Padding(length) => prop_assert!(1 <= length && length <= bytes.len()),
                Step::Bad | Step::Short => {}
            }
        }
    }
}
