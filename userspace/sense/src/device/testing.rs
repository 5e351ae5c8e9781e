// SPDX-License-Identifier: GPL-2.0-only
//! Rings for tests, as the timing plugin writes them.

use std::path::Path;

use tempfile::NamedTempFile;

use super::ring::{COUNTERS, COUNTERS_BYTES, HEAD_AT, MAGIC, SAMPLE_BYTES, VERSION};

const COUNTERS_AT: usize = 4096;
const SAMPLES_AT: usize = 8192;
const PERIOD: u64 = 64;

/// A sample as it is in the ring, without its sequence.
#[derive(Clone, Copy)]
pub(super) struct Miss {
    pub(super) cpu: u16,
    pub(super) ticks: u64,
    pub(super) address: u64,
    pub(super) source: u8,
}

/// A store on `cpu` that took a line from the memory of another node, node 3.
pub(super) fn miss(cpu: u16, ticks: u64) -> Miss {
    Miss { cpu, ticks, address: 0x7000_0040, source: 6 }
}

/// A ring in a file.
pub(super) struct RingFile {
    file: NamedTempFile,
    bytes: Vec<u8>,
    slots: usize,
    written: usize,
}

impl RingFile {
    /// A ring without samples, for `cpus` CPUs.
    pub(super) fn new(cpus: usize, slots: usize) -> Self {
        let file = NamedTempFile::new().expect("a file");
        let bytes = vec![0; SAMPLES_AT + slots * SAMPLE_BYTES];
        let pair = |low: usize, high: usize| (high << 32 | low) as u64;
        Self { file, bytes, slots, written: 0 }
            .word(0, MAGIC)
            .word(8, pair(VERSION as usize, cpus))
            .word(16, pair(COUNTERS_AT, COUNTERS_BYTES))
            .word(24, pair(SAMPLES_AT, SAMPLE_BYTES))
            .word(32, pair(slots, PERIOD as usize))
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Puts a word where it does not belong, or belongs.
    pub(super) fn word(mut self, at: usize, word: u64) -> Self {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        self.save();
        self
    }

    /// The counters of a CPU.
    pub(super) fn counted(self, cpu: usize, counted: [u64; COUNTERS]) -> Self {
        let at = COUNTERS_AT + cpu * COUNTERS_BYTES;
        counted.into_iter().enumerate().fold(self, |ring, (counter, count)| ring.word(at + counter * 8, count))
    }

    /// Writes these samples after those that it has.
    pub(super) fn sampled(self, misses: &[Miss]) -> Self {
        misses.iter().fold(self, |mut ring, miss| {
            let at = SAMPLES_AT + ring.written % ring.slots * SAMPLE_BYTES;
            ring.written += 1;
            let head = ring.written as u64;
            let places = u64::from(miss.cpu) << 32 | 3 << 48 | 180;
            ring.word(at, head)
                .word(at + 8, miss.address)
                .word(at + 16, miss.ticks)
                .word(at + 24, places)
                .word(at + 32, 1 << 8 | u64::from(miss.source))
                .word(HEAD_AT, head)
        })
    }

    /// Cuts the file off.
    pub(super) fn cut(mut self, bytes: usize) -> Self {
        self.bytes.truncate(bytes);
        self.save();
        self
    }

    /// In place: a mapping of the file shows what is written.
    fn save(&self) {
        std::fs::write(self.file.path(), &self.bytes).expect("a file");
    }
}
