// SPDX-License-Identifier: GPL-2.0-only
//! Records in a perf ring: where one ends and the next begins, across the ring's end, whatever is in it.
//!
//! A ring is a power of two of bytes. `head` (the kernel's) and `tail` (ours) count bytes since the ring was made and
//! never wrap; a record starts with eight bytes {type: u32, misc: u16, size: u16} and is at most 64 KiB long.

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 8;

/// A ring whose bytes can be copied out.
pub trait RingBytes {
    /// Its size, a power of two.
    fn size(&self) -> usize;

    /// Copies bytes from the offset `at` (below [`RingBytes::size`]); the piece does not cross the ring's end.
    fn copy_piece(&self, at: usize, into: &mut [u8]);

    /// Copies bytes from `position` on, across the ring's end. `into` is not longer than the ring.
    fn copy(&self, position: u64, into: &mut [u8]) {
        let start = (position % self.size() as u64) as usize;
        let first = into.len().min(self.size() - start);
        let (before, after) = into.split_at_mut(first);
        self.copy_piece(start, before);
        if !after.is_empty() {
            self.copy_piece(0, after);
        }
    }
}

/// What [`walk`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The new tail: everything before it was handed out or given up.
    pub tail: u64,
    /// The ring made no sense and the rest of it was given up.
    pub broken: bool,
}

/// Hands out every whole record between `tail` and `head`, oldest first, header included. `scratch` is reused from
/// call to call.
pub fn walk(ring: &impl RingBytes, tail: u64, head: u64, scratch: &mut Vec<u8>, mut each: impl FnMut(&[u8])) -> Walked {
    let given_up = Walked { tail: head, broken: true };
    if head < tail || head - tail > ring.size() as u64 {
        return given_up;
    }
    let mut at = tail;
    while at < head {
        let left = head - at;
        if left < HEADER_BYTES as u64 {
            return given_up;
        }
        scratch.resize(HEADER_BYTES, 0);
        ring.copy(at, scratch);
        let bytes = usize::from(u16::from_ne_bytes([scratch[6], scratch[7]]));
        if bytes < HEADER_BYTES || bytes as u64 > left {
            // Nothing after this can be found any more.
            return given_up;
        }
        scratch.resize(bytes, 0);
        ring.copy(at, scratch);
        each(scratch);
        at += bytes as u64;
    }
    Walked { tail: at, broken: false }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::RingBytes;

    /// A ring in ordinary memory.
    pub(crate) struct TestRing(pub(crate) Vec<u8>);

    impl RingBytes for TestRing {
        fn size(&self) -> usize {
            self.0.len()
        }

        fn copy_piece(&self, at: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0[at..at + into.len()]);
        }
    }

    impl TestRing {
        /// Empty, of `size` bytes.
        pub(crate) fn new(size: usize) -> Self {
            Self(vec![0xee; size])
        }

        /// Writes `bytes` at `position` as the kernel does and returns the position after it.
        pub(crate) fn write(&mut self, position: u64, bytes: &[u8]) -> u64 {
            for (offset, byte) in bytes.iter().enumerate() {
                let at = (position + offset as u64) as usize % self.0.len();
                self.0[at] = *byte;
            }
            position + bytes.len() as u64
        }
    }

    /// A record of this type with `payload`.
    pub(crate) fn record(kind: u32, misc: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((8 + payload.len() as u16).to_ne_bytes());
        bytes.extend(payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{TestRing, record};
    use super::*;

    fn records(ring: &TestRing, tail: u64, head: u64) -> (Vec<Vec<u8>>, Walked) {
        let (mut found, mut scratch) = (Vec::new(), Vec::new());
        let walked = walk(ring, tail, head, &mut scratch, |record| found.push(record.to_vec()));
        (found, walked)
    }

    proptest! {
        #[test]
        fn records_are_found_wherever_the_ring_wraps(
            start in 0_u64..1 << 40,
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
        ) {
            let mut ring = TestRing::new(256);
            let written: Vec<_> = payloads.iter().map(|payload| record(9, 2, payload)).collect();
            let head = written.iter().fold(start, |at, bytes| ring.write(at, bytes));
            let (found, walked) = records(&ring, start, head);
            prop_assert_eq!(found, written);
            prop_assert_eq!(walked, Walked { tail: head, broken: false });
        }

        #[test]
        fn garbage_is_given_up_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 64..=64),
            tail in any::<u64>(),
            head in any::<u64>(),
            length in 0_u64..80,
        ) {
            let ring = TestRing(bytes);
            let (_, walked) = records(&ring, tail, head);
            prop_assert_eq!(walked.tail, head);
            let (_, walked) = records(&ring, tail, tail.saturating_add(length));
            prop_assert_eq!(walked.tail, tail.saturating_add(length));
        }
    }

    #[test]
    fn a_record_that_ends_beyond_the_head_is_not_handed_out() {
        let mut ring = TestRing::new(64);
        let whole = ring.write(0, &record(9, 0, &[1; 8]));
        let head = ring.write(whole, &record(9, 0, &[2; 16])) - 8;
        let (found, walked) = records(&ring, 0, head);
        assert_eq!(found, [record(9, 0, &[1; 8])]);
        assert_eq!(walked, Walked { tail: head, broken: true });
    }

    #[test]
    fn a_reader_that_was_overtaken_starts_anew_at_the_head() {
        let ring = TestRing::new(64);
        assert_eq!(records(&ring, 0, 65).1, Walked { tail: 65, broken: true });
        assert_eq!(records(&ring, 9, 8).1, Walked { tail: 8, broken: true });
    }
}
