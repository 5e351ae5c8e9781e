// SPDX-License-Identifier: GPL-2.0-only
//! The ring of samples and the counters that the timing plugin shows in the guest (vm/timing/ring.h).
//!
//! Only the plugin writes. Sample number n is in slot n modulo the number of slots and carries the sequence n + 1; a
//! slot whose sequence differs before or after it was copied was overwritten meanwhile.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use tandem_policies::model::{CpuId, NodeId};

use super::DeviceError;
use crate::mapping::{Access, Mapping};
use crate::source::{DataSource, Level, Snoop};

/// "TNDMSRNG" in memory.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TNDMSRNG");
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 48;
pub(super) const COUNTERS_BYTES: usize = 64;
pub(super) const SAMPLE_BYTES: usize = 40;
/// Where in the header the number of samples written so far is.
pub(super) const HEAD_AT: usize = 40;

/// A sampled miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingSample {
    /// Guest-virtual.
    pub(super) address: u64,
    /// TSC of the CPU.
    pub(super) ticks: u64,
    /// From load to use.
    pub(super) latency_ns: u32,
    pub(super) cpu: CpuId,
    /// Whose memory the line belongs to.
    pub(super) node: NodeId,
    pub(super) source: DataSource,
    pub(super) store: bool,
}

/// Counters of a CPU.
pub(super) const COUNTERS: usize = 7;

/// What a CPU did since boot, in the order of `struct ring_counters`: instructions; nanoseconds in which it was not
/// halted, which are cycles of its clock of 1 GHz; lines as [`LineCounts`](crate::LineCounts) has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuCounters(pub(super) [u64; COUNTERS]);

impl CpuCounters {
    /// What was counted since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(before.0[at])))
    }

    /// Nanoseconds in which it was not halted.
    pub(super) fn cycles(self) -> u64 {
        self.0[1]
    }
}

/// The mapped ring.
pub(super) struct Ring {
    mapping: Mapping,
    cpus: usize,
    counters_at: usize,
    samples_at: usize,
    slots: u64,
    period: u64,
}

impl Ring {
    /// Maps the file `path` and checks its layout.
    pub(super) fn open(path: &Path) -> Result<Self, DeviceError> {
        let unreadable = |source| DeviceError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len() as usize;
        let not_a_ring = |why: String| DeviceError::NotARing { path: path.to_owned(), why };
        if bytes < HEADER_BYTES {
            return Err(not_a_ring(format!("it ends after {bytes} bytes, within the header")));
        }
        let mapping = Mapping::new(file.as_fd(), bytes, 0, Access::Read).map_err(unreadable)?;
        Self::check(mapping).map_err(not_a_ring)
    }

    fn check(mapping: Mapping) -> Result<Self, String> {
        let [magic, version_cpus, counters, samples, slots_period] = [0, 8, 16, 24, 32].map(|at| mapping.word(at));
        if magic != MAGIC {
            return Err("it does not begin with TNDMSRNG".to_owned());
        }
        let (version, cpus) = halves(version_cpus);
        if version != VERSION {
            return Err(format!("its layout has version {version}, this program knows version {VERSION}"));
        }
        let ((counters_at, counters_bytes), (samples_at, sample_bytes)) = (halves(counters), halves(samples));
        let (slots, period) = halves(slots_period);
        if (counters_bytes as usize, sample_bytes as usize) != (COUNTERS_BYTES, SAMPLE_BYTES) {
            return Err(format!(
                "counters of {counters_bytes} and samples of {sample_bytes} bytes are not of version 1"
            ));
        }
        if slots == 0 || period == 0 || !counters_at.is_multiple_of(8) || !samples_at.is_multiple_of(8) {
            return Err("its header contradicts itself".to_owned());
        }
        let ends = [(counters_at, cpus, COUNTERS_BYTES), (samples_at, slots, SAMPLE_BYTES)]
            .map(|(at, count, size)| at as usize + count as usize * size);
        if ends.iter().any(|&end| end > mapping.bytes()) {
            return Err(format!("it ends after {} bytes, before what its header promises", mapping.bytes()));
        }
        Ok(Self {
            cpus: cpus as usize,
            counters_at: counters_at as usize,
            samples_at: samples_at as usize,
            slots: u64::from(slots),
            period: u64::from(period),
            mapping,
        })
    }

    /// Samples written so far.
    pub(super) fn head(&self) -> u64 {
        let head = self.mapping.word(HEAD_AT);
        // What the plugin wrote before it moved the head is read after it.
        fence(Ordering::Acquire);
        head
    }

    /// Samples that it keeps.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    /// Misses that a sample stands for, on average.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// Sample number `number`; `None` if a later one has its slot.
    pub(super) fn sample(&self, number: u64) -> Option<RingSample> {
        let at = self.samples_at + (number % self.slots) as usize * SAMPLE_BYTES;
        let is_whole = || self.mapping.word(at) == number + 1;
        if !is_whole() {
            return None;
        }
        fence(Ordering::Acquire);
        let [address, ticks, measures, kind] = [8, 16, 24, 32].map(|offset| self.mapping.word(at + offset));
        fence(Ordering::Acquire);
        let (latency_ns, places) = halves(measures);
        is_whole().then(|| RingSample {
            address,
            ticks,
            latency_ns,
            cpu: CpuId(places & 0xffff),
            node: NodeId(places >> 16),
            source: source(kind as u8),
            store: kind >> 8 & 0xff != 0,
        })
    }

    /// What `cpu` did so far; `None` if there is no such CPU.
    pub(super) fn counters(&self, cpu: CpuId) -> Option<CpuCounters> {
        let at = self.counters_at + cpu.0 as usize * COUNTERS_BYTES;
        ((cpu.0 as usize) < self.cpus)
            .then(|| CpuCounters(std::array::from_fn(|counter| self.mapping.word(at + counter * 8))))
    }
}

/// The low and the high half of a word.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// By `enum ring_source`.
fn source(code: u8) -> DataSource {
    let (level, remote, snoop) = match code {
        1 => (Level::L3, Some(false), Snoop::Unknown),
        2 | 3 => (Level::PeerCache, Some(false), Snoop::Modified),
        4 => (Level::PeerCache, Some(true), Snoop::Modified),
        5 => (Level::Memory, Some(false), Snoop::Unknown),
        6 => (Level::Memory, Some(true), Snoop::Unknown),
        _ => return DataSource::UNKNOWN,
    };
    DataSource { level, remote, snoop }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{RingFile, miss};
    use super::*;

    fn refused(file: &RingFile) -> String {
        Ring::open(file.path()).err().expect("refused").to_string()
    }

    #[test]
    fn samples_and_counters_are_read_as_they_were_written() {
        let file = RingFile::new(2, 4).counted(1, [500, 900, 50, 20, 25, 9, 5]).sampled(&[miss(1, 70), miss(0, 80)]);
        let ring = Ring::open(file.path()).unwrap();
        assert_eq!((ring.head(), ring.slots(), ring.period()), (2, 4, 64));
        let first = ring.sample(0).unwrap();
        assert_eq!((first.address, first.ticks, first.latency_ns), (0x7000_0040, 70, 180));
        assert_eq!((first.cpu, first.node, first.store), (CpuId(1), NodeId(3), true));
        let remote = DataSource { level: Level::Memory, remote: Some(true), snoop: Snoop::Unknown };
        assert_eq!(first.source, remote);
        assert_eq!(ring.sample(1).map(|sample| (sample.cpu, sample.ticks)), Some((CpuId(0), 80)));
        assert_eq!(ring.sample(2), None, "not written yet");
        assert_eq!(ring.counters(CpuId(1)), Some(CpuCounters([500, 900, 50, 20, 25, 9, 5])));
        assert_eq!(ring.counters(CpuId(2)), None);
    }

    #[test]
    fn a_slot_that_was_overwritten_is_told() {
        let file = RingFile::new(1, 4).sampled(&[0, 1, 2, 3, 4, 5].map(|ticks| miss(0, ticks)));
        let ring = Ring::open(file.path()).unwrap();
        let ticks = [0, 1, 2, 5].map(|number| ring.sample(number).map(|sample| sample.ticks));
        assert_eq!(ticks, [None, None, Some(2), Some(5)]);
    }

    #[test]
    fn sources_have_the_meaning_that_the_plugin_gives_them() {
        let said = [0, 1, 2, 3, 4, 5, 6, 7].map(|code| {
            let source = source(code);
            (source.level, source.remote, source.snoop == Snoop::Modified)
        });
        let (near, far) = (Some(false), Some(true));
        assert_eq!(said[0], (Level::Unknown, None, false));
        assert_eq!(said[1], (Level::L3, near, false));
        assert_eq!(said[2..5], [(Level::PeerCache, near, true), said[2], (Level::PeerCache, far, true)]);
        assert_eq!(said[5..7], [(Level::Memory, near, false), (Level::Memory, far, false)]);
        assert_eq!(said[7], said[0]);
    }

    #[test]
    fn what_is_no_ring_is_refused_with_the_reason() {
        let file = || RingFile::new(2, 4);
        assert!(refused(&file().word(0, 7)).contains("does not begin with TNDMSRNG"));
        assert!(refused(&file().word(8, 2 << 32 | 9)).contains("version 9, this program knows version 1"));
        assert!(refused(&file().word(16, 56 << 32 | 4096)).contains("counters of 56"));
        assert!(refused(&file().word(32, 4)).contains("contradicts itself"), "a period of 0");
        assert!(refused(&file().word(24, 40 << 32 | 8196)).contains("contradicts itself"), "samples at no word");
        assert!(refused(&file().word(32, 64 << 32 | 5)).contains("before what its header promises"));
        assert!(refused(&file().cut(8192)).contains("ends after 8192 bytes"));
        assert!(refused(&file().cut(40)).contains("within the header"));
        assert!(refused(&file().cut(0)).contains("ends after 0 bytes"));
    }
}
