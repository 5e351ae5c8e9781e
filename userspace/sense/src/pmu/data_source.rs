// SPDX-License-Identifier: GPL-2.0-only
//! The `data_src` word of a perf sample, as our [`DataSource`].
//!
//! The word is the kernel's `union perf_mem_data_src` (include/uapi/linux/perf_event.h): several small fields, an
//! older one of level bits (`mem_lvl`) and newer ones (`mem_lvl_num`, `mem_remote`, `mem_hops`) that kernels fill
//! in addition. The newer ones are believed first; the older ones say where a remote line came from.

use crate::source::{DataSource, Level, Snoop};

/// A field of the word: lowest bit and width.
#[derive(Clone, Copy)]
struct Field(u32, u32);

const OPERATION: Field = Field(0, 5);
const LEVEL_BITS: Field = Field(5, 14);
const SNOOP: Field = Field(19, 5);
const LEVEL_NUMBER: Field = Field(33, 4);
const REMOTE: Field = Field(37, 1);
const SNOOP_MORE: Field = Field(38, 2);
const HOPS: Field = Field(43, 3);

mod operation {
    pub(super) const LOAD: u64 = 0x02;
    pub(super) const STORE: u64 = 0x04;
}

mod level_bit {
    pub(super) const NOT_AVAILABLE: u64 = 0x0001;
    pub(super) const MISS: u64 = 0x0004;
    pub(super) const L1: u64 = 0x0008;
    pub(super) const LINE_FILL_BUFFER: u64 = 0x0010;
    pub(super) const L2: u64 = 0x0020;
    pub(super) const L3: u64 = 0x0040;
    pub(super) const LOCAL_MEMORY: u64 = 0x0080;
    pub(super) const REMOTE_MEMORY: u64 = 0x0100 | 0x0200;
    pub(super) const PEER_CACHE: u64 = 0x0400;
    pub(super) const FAR_CACHE: u64 = 0x0800;
    pub(super) const UNCACHED: u64 = 0x1000 | 0x2000;
}

mod snoop_bit {
    pub(super) const NONE: u64 = 0x02;
    pub(super) const HIT: u64 = 0x04;
    pub(super) const MISS: u64 = 0x08;
    pub(super) const MODIFIED: u64 = 0x10;
}

/// Another cache forwarded the line, or it came from a peer.
const SNOOP_FORWARDED_OR_PEER: u64 = 0x01 | 0x02;
/// From here on a hop leaves the node (0: not said; 1: another core of the node).
const HOPS_LEAVE_NODE: u64 = 2;

impl Field {
    fn of(self, word: u64) -> u64 {
        (word >> self.0) & ((1 << self.1) - 1)
    }
}

/// Whether the word says that the sampled operation was a store; `None`: it says neither load nor store.
pub fn is_store(word: u64) -> Option<bool> {
    let operation = OPERATION.of(word);
    // An atomic is both: it needs the line as a store does.
    if operation & operation::STORE != 0 {
        Some(true)
    } else if operation & operation::LOAD != 0 {
        Some(false)
    } else {
        None
    }
}

/// What the word says of the place that answered.
pub fn decode(word: u64) -> DataSource {
    let bits = LEVEL_BITS.of(word);
    let forwarded = SNOOP_MORE.of(word) & SNOOP_FORWARDED_OR_PEER != 0;
    let level = match LEVEL_NUMBER.of(word) {
        0x1 | 0x7 => hit_or_unknown(bits, Level::L1),
        0x2 => hit_or_unknown(bits, Level::L2),
        // Some kernels number everything beyond the core "L3" and name the place by bits.
        0x3 => outside_node_caches(bits).unwrap_or_else(|| hit_or_unknown(bits, Level::L3)),
        // Lines under way to the second- and the first-level cache.
        0x5 | 0xc => Level::LineFillBuffer,
        // A cache on the memory's side (L4 and others), CXL, RAM, persistent memory.
        0x4 | 0x6 | 0x9 | 0xd | 0xe => Level::Memory,
        0x8 | 0xa => Level::Uncached,
        0xb if bits & level_bit::L3 != 0 => Level::L3,
        0xb => Level::PeerCache,
        _ => level_of_bits(bits),
    };
    let modified = SNOOP.of(word) & snoop_bit::MODIFIED != 0;
    let level = if level == Level::Unknown && (forwarded || modified) { Level::PeerCache } else { level };
    DataSource { level, remote: remote(word, level), snoop: snoop(SNOOP.of(word), forwarded) }
}

/// An access that is marked with a level and "miss" missed that level; where it went is not said.
fn hit_or_unknown(bits: u64, level: Level) -> Level {
    if bits & level_bit::MISS != 0 { Level::Unknown } else { level }
}

fn outside_node_caches(bits: u64) -> Option<Level> {
    let farthest_first = [
        (level_bit::UNCACHED, Level::Uncached),
        (level_bit::REMOTE_MEMORY | level_bit::LOCAL_MEMORY, Level::Memory),
        (level_bit::FAR_CACHE | level_bit::PEER_CACHE, Level::PeerCache),
    ];
    farthest_first.iter().find(|(mask, _)| bits & mask != 0).map(|&(_, level)| level)
}

fn level_of_bits(bits: u64) -> Level {
    if bits & level_bit::NOT_AVAILABLE != 0 {
        return Level::Unknown;
    }
    let inside = [
        (level_bit::L3, Level::L3),
        (level_bit::L2, Level::L2),
        (level_bit::LINE_FILL_BUFFER, Level::LineFillBuffer),
        (level_bit::L1, Level::L1),
    ];
    outside_node_caches(bits).unwrap_or_else(|| {
        let level = inside.iter().find(|(mask, _)| bits & mask != 0).map_or(Level::Unknown, |&(_, level)| level);
        hit_or_unknown(bits, level)
    })
}

/// Only the hop count and the level bits tell nodes from cores; the `remote` bit alone is set for another core's
/// cache as well.
fn remote(word: u64, level: Level) -> Option<bool> {
    let (bits, hops) = (LEVEL_BITS.of(word), HOPS.of(word));
    let said_remote = REMOTE.of(word) != 0;
    match level {
        Level::Unknown | Level::PeerCache if hops != 0 => Some(hops >= HOPS_LEAVE_NODE),
        Level::Unknown => said_remote.then_some(true),
        Level::PeerCache if bits & level_bit::FAR_CACHE != 0 => Some(true),
        // "One hop" is the other socket on Intel, another cluster of the socket elsewhere; the remote bit decides.
        Level::PeerCache => said_remote.then_some(true).or((bits & level_bit::PEER_CACHE == 0).then_some(false)),
        Level::Memory if bits & level_bit::REMOTE_MEMORY != 0 || said_remote => Some(true),
        Level::Memory => Some(false),
        _ => Some(false),
    }
}

fn snoop(bits: u64, forwarded: bool) -> Snoop {
    let strongest_first = [
        (snoop_bit::MODIFIED, Snoop::Modified),
        (snoop_bit::HIT, Snoop::Hit),
        (snoop_bit::MISS, Snoop::Miss),
        (snoop_bit::NONE, Snoop::None),
    ];
    let said = strongest_first.iter().find(|(mask, _)| bits & mask != 0).map_or(Snoop::Unknown, |&(_, snoop)| snoop);
    if forwarded && matches!(said, Snoop::Unknown | Snoop::None) { Snoop::Hit } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(bits: u64) -> u64 {
        bits << LEVEL_BITS.0
    }

    fn number(number: u64) -> u64 {
        number << LEVEL_NUMBER.0
    }

    fn asked(bits: u64) -> u64 {
        bits << SNOOP.0
    }

    const HIT: u64 = 0x0002;
    const REMOTE_BIT: u64 = 1 << REMOTE.0;
    const FORWARD: u64 = 1 << SNOOP_MORE.0;

    fn hops(hops: u64) -> u64 {
        hops << HOPS.0
    }

    /// What Intel kernels write for the codes of load latency, and AMD kernels for theirs.
    #[test]
    fn every_code_that_kernels_write_is_the_place_that_its_manual_names() {
        let some = |level, remote, snoop| DataSource { level, remote, snoop };
        let cases = [
            // Intel: unknown L3 miss, L1, fill buffer, L2, L3 and its snoops.
            (level(0x4) | number(3) | asked(1), some(Level::Unknown, None, Snoop::Unknown)),
            (level(HIT | 0x8) | number(1) | asked(2), some(Level::L1, Some(false), Snoop::None)),
            (level(HIT | 0x10) | number(0xc) | asked(2), some(Level::LineFillBuffer, Some(false), Snoop::None)),
            (level(HIT | 0x20) | number(2) | asked(2), some(Level::L2, Some(false), Snoop::None)),
            (level(HIT | 0x40) | number(3) | asked(8), some(Level::L3, Some(false), Snoop::Miss)),
            (level(HIT | 0x40) | number(3) | asked(0x10), some(Level::L3, Some(false), Snoop::Modified)),
            // Intel: another socket's cache, unmodified and modified; its memory, which older kernels number "L3".
            (level(HIT | 0x400) | REMOTE_BIT | number(3) | asked(4), some(Level::PeerCache, Some(true), Snoop::Hit)),
            (level(HIT) | REMOTE_BIT | number(0xb) | asked(0x10), some(Level::PeerCache, Some(true), Snoop::Modified)),
            (level(HIT) | REMOTE_BIT | number(0xb) | FORWARD, some(Level::PeerCache, Some(true), Snoop::Hit)),
            (level(HIT | 0x100) | REMOTE_BIT | number(3) | asked(4), some(Level::Memory, Some(true), Snoop::Hit)),
            (level(HIT | 0x80) | number(0xd) | asked(2), some(Level::Memory, Some(false), Snoop::None)),
            (level(HIT) | REMOTE_BIT | number(0xd) | asked(2), some(Level::Memory, Some(true), Snoop::None)),
            // Intel: persistent memory far away, a cache on the memory's side, missed L3 and found modified elsewhere.
            (level(HIT) | REMOTE_BIT | number(0xe) | asked(4), some(Level::Memory, Some(true), Snoop::Hit)),
            (level(HIT) | number(6) | asked(2), some(Level::Memory, Some(false), Snoop::None)),
            (level(0x44) | number(3) | asked(0x10), some(Level::PeerCache, Some(false), Snoop::Modified)),
            (level(HIT | 0x1000) | number(0xf) | asked(2), some(Level::Uncached, Some(false), Snoop::None)),
            // Intel: stores that hit and missed the first level.
            (level(HIT | 0x8) | number(0xf) | asked(1), some(Level::L1, Some(false), Snoop::Unknown)),
            (level(0x4 | 0x8) | asked(1), some(Level::Unknown, None, Snoop::Unknown)),
            // AMD: own L3, another CCX of the node, another node's CCX, remote DRAM, CXL.
            (level(HIT | 0x440) | number(0xb) | hops(1), some(Level::L3, Some(false), Snoop::Unknown)),
            (
                level(HIT | 0x400) | number(0xb) | REMOTE_BIT | hops(1),
                some(Level::PeerCache, Some(false), Snoop::Unknown),
            ),
            (
                level(HIT | 0x800) | number(0xb) | REMOTE_BIT | hops(2),
                some(Level::PeerCache, Some(true), Snoop::Unknown),
            ),
            (level(HIT | 0x100) | number(0xd) | REMOTE_BIT | hops(2), some(Level::Memory, Some(true), Snoop::Unknown)),
            (number(9), some(Level::Memory, Some(false), Snoop::Unknown)),
            // Not available at all.
            (level(1) | number(0xf) | asked(1), DataSource::UNKNOWN),
            (0, DataSource::UNKNOWN),
        ];
        for (word, expected) in cases {
            assert_eq!(decode(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn only_what_leaves_the_caches_counts_for_pages() {
        assert!(!decode(level(HIT | 0x40) | number(3)).may_leave_caches());
        assert!(decode(level(HIT | 0x80) | number(0xd)).may_leave_caches());
        assert!(decode(0).may_leave_caches());
    }

    #[test]
    fn an_atomic_is_a_store() {
        assert_eq!([0x2, 0x4, 0x6, 0x1, 0x10].map(is_store), [Some(false), Some(true), Some(true), None, None]);
    }
}
