// SPDX-License-Identifier: GPL-2.0-only
//! What answered an access, from the events and the source code of a record.
//!
//! Source codes belong to the implementation; tools/perf/util/arm-spe.c of the kernel lists who uses which. Stores have
//! none on Arm's own cores. Events are architectural and say less.

use crate::source::{DataSource, Level, Snoop};

use super::packet::event;
use super::record::SpeRecord;

/// Whose source codes a core uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCodes {
    /// Arm's own cores, and NVIDIA's.
    Arm,
    /// AmpereOne.
    Ampere,
    /// HiSilicon HIP12.
    HiSilicon,
    /// Not known: events only.
    Unknown,
}

/// Arm's parts that use Arm's codes: Cortex-A715, A720, A720AE, A725, A78C, X1, X1C, X3, X4, X925, Neoverse N1, N2,
/// V1, V2, V3.
const ARM_PARTS: [u64; 15] =
    [0xd4d, 0xd81, 0xd89, 0xd87, 0xd4b, 0xd44, 0xd4c, 0xd4e, 0xd82, 0xd85, 0xd0c, 0xd49, 0xd40, 0xd4f, 0xd84];

impl SourceCodes {
    /// Those of a core by MIDR_EL1.
    pub fn of(midr: u64) -> Self {
        let (implementer, part) = (midr >> 24 & 0xff, midr >> 4 & 0xfff);
        match (implementer, part) {
            (0x41, part) if ARM_PARTS.contains(&part) => Self::Arm,
            (0x4e, 0x010) => Self::Arm,
            (0xc0, 0xac4) => Self::Ampere,
            (0x48, 0xd06) => Self::HiSilicon,
            _ => Self::Unknown,
        }
    }

    /// Level, another node, modified elsewhere; `None`: the code says nothing.
    fn place(self, code: u16) -> Option<(Level, bool, Snoop)> {
        use Level::{L1, L2, L3, Memory, PeerCache, Uncached};
        let (level, remote) = match (self, code) {
            (Self::Arm, 0x0) | (Self::Ampere, 0x8) | (Self::HiSilicon, 18) => (L1, false),
            (Self::Arm, 0x8) | (Self::Ampere, 0x9) | (Self::HiSilicon, 16 | 17) => (L2, false),
            // Another core, this or another cluster of the node.
            (Self::Arm, 0x9 | 0xa | 0xc) | (Self::Ampere, 0x0) | (Self::HiSilicon, 0 | 1 | 4 | 5) => (PeerCache, false),
            (Self::Arm, 0xb) | (Self::Ampere, 0x3) | (Self::HiSilicon, 2 | 3) => (L3, false),
            // Arm's "remote" is cache or memory of another socket.
            (Self::Arm, 0xd) | (Self::Ampere, 0x5) | (Self::HiSilicon, 6 | 7) => (PeerCache, true),
            (Self::Arm, 0xe) | (Self::Ampere, 0x7) | (Self::HiSilicon, 8) => (Memory, false),
            (Self::HiSilicon, 9) => (Memory, true),
            (Self::HiSilicon, 13) => (Uncached, false),
            _ => return None,
        };
        let modified = self == Self::HiSilicon && matches!(code, 1 | 3 | 5 | 7 | 17);
        Some((level, remote, if modified { Snoop::Modified } else { Snoop::Unknown }))
    }
}

/// What answered the operation of `record`.
pub fn decode(record: &SpeRecord, codes: SourceCodes) -> DataSource {
    let has = |event: u64| record.events & event != 0;
    let said = record.source.filter(|_| record.store == Some(false)).and_then(|code| codes.place(code));
    let (level, remote, snoop) = match said {
        Some((level, remote, snoop)) => (level, Some(remote || has(event::REMOTE)), snoop),
        None => {
            let level = level_of_events(record.events);
            let local = matches!(level, Level::L1 | Level::L2 | Level::L3);
            (level, if has(event::REMOTE) { Some(true) } else { local.then_some(false) }, Snoop::Unknown)
        }
    };
    let snoop = match snoop {
        Snoop::Unknown if has(event::SNOOPED) && has(event::MODIFIED) => Snoop::Modified,
        Snoop::Unknown if has(event::SNOOPED) => Snoop::Hit,
        said => said,
    };
    DataSource { level, remote, snoop }
}

/// A miss of the last level went to memory or to a cache beyond; which, the events do not tell.
fn level_of_events(events: u64) -> Level {
    if events & (event::LAST_LEVEL_MISS | event::REMOTE) != 0 {
        Level::Unknown
    } else if events & event::LAST_LEVEL_ACCESS != 0 {
        Level::L3
    } else if events & event::L2_MISS != 0 {
        Level::Unknown
    } else if events & event::L2_ACCESS != 0 {
        Level::L2
    } else if events & event::L1_REFILL != 0 {
        Level::Unknown
    } else {
        Level::L1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(events: u64, source: Option<u16>) -> SpeRecord {
        SpeRecord { store: Some(false), events, source, ..SpeRecord::default() }
    }

    fn place(codes: SourceCodes, source: u16) -> (Level, Option<bool>, Snoop) {
        let found = decode(&load(0, Some(source)), codes);
        (found.level, found.remote, found.snoop)
    }

    #[test]
    fn codes_are_chosen_by_the_core() {
        // Neoverse N1 r3p1, Neoverse V2 r0p1, AmpereOne, HIP12, ThunderX2.
        let midrs = [0x413f_d0c1, 0x410f_d4f1, 0xc00f_ac40, 0x480f_d060, 0x431f_0af1];
        let expected =
            [SourceCodes::Arm, SourceCodes::Arm, SourceCodes::Ampere, SourceCodes::HiSilicon, SourceCodes::Unknown];
        assert_eq!(midrs.map(SourceCodes::of), expected);
    }

    #[test]
    fn each_implementation_has_its_own_places() {
        use Level::{L2, L3, Memory, PeerCache};
        let (none, modified) = (Snoop::Unknown, Snoop::Modified);
        assert_eq!(place(SourceCodes::Arm, 0xe), (Memory, Some(false), none));
        assert_eq!(place(SourceCodes::Arm, 0xd), (PeerCache, Some(true), none));
        assert_eq!(place(SourceCodes::Arm, 0xb), (L3, Some(false), none));
        assert_eq!(place(SourceCodes::Ampere, 0x9), (L2, Some(false), none));
        assert_eq!(place(SourceCodes::Ampere, 0x7), (Memory, Some(false), none));
        assert_eq!(place(SourceCodes::HiSilicon, 7), (PeerCache, Some(true), modified));
        assert_eq!(place(SourceCodes::HiSilicon, 9), (Memory, Some(true), none));
    }

    #[test]
    fn events_tell_what_codes_do_not() {
        let remote = decode(&load(event::L1_REFILL | event::REMOTE, None), SourceCodes::Unknown);
        assert_eq!((remote.level, remote.remote), (Level::Unknown, Some(true)));
        assert_eq!(decode(&load(event::REMOTE, Some(0xe)), SourceCodes::Arm).remote, Some(true));
        assert_eq!(decode(&load(0, None), SourceCodes::Arm).level, Level::L1);
        assert_eq!(decode(&load(event::LAST_LEVEL_ACCESS | event::L1_REFILL, None), SourceCodes::Arm).level, Level::L3);
        let modified = decode(&load(event::SNOOPED | event::MODIFIED, Some(0xc)), SourceCodes::Arm);
        assert_eq!(modified.snoop, Snoop::Modified);
    }

    #[test]
    fn the_code_of_a_store_says_nothing() {
        let store = SpeRecord { store: Some(true), events: event::L1_REFILL, source: Some(0), ..SpeRecord::default() };
        assert_eq!(decode(&store, SourceCodes::Arm).level, Level::Unknown);
    }
}
