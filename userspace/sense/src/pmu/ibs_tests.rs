// SPDX-License-Identifier: GPL-2.0-only
use proptest::prelude::*;

use super::*;

/// Zen 3 without a note in OP_DATA2 whether a line was modified; Zen 4 with fine codes; Zen 5 telling sockets apart.
const COARSE: u32 = 0x3ff;
const FINE: u32 = COARSE | FINE_SOURCES;
const SOCKETS: u32 = FINE | REMOTE_SOCKET;
const VALID: u64 = data3::LINEAR_VALID | data3::PHYSICAL_VALID;
const BEYOND_L2: u64 = VALID | data3::LOAD | data3::L1_MISS | data3::L2_MISS;

/// Raw data as the kernel lays it out: capabilities, then seven registers.
fn raw(capabilities: u32, data2: u64, data3: u64) -> Vec<u8> {
    let mut bytes = capabilities.to_le_bytes().to_vec();
    for register in [1 << 18, 0x40_1000, 0, data2, data3, 0x7f00_1238, 0x8_1234_5678] {
        bytes.extend(u64::to_le_bytes(register));
    }
    bytes
}

fn access(capabilities: u32, data2: u64, data3: u64, quirks: IbsQuirks) -> IbsAccess {
    match decode(&raw(capabilities, data2, data3), quirks) {
        Operation::Access(access) => access,
        other => panic!("{other:?}"),
    }
}

fn place(capabilities: u32, data2: u64, data3: u64) -> (Level, Option<bool>, Snoop) {
    let source = access(capabilities, data2, data3, IbsQuirks::default()).source;
    (source.level, source.remote, source.snoop)
}

/// Source code of OP_DATA2 as it lies in the register: three bits, and two more at 6.
fn code(code: u64) -> u64 {
    code & 7 | (code & 0x18) << 3 | data2::CACHE_HIT_NOT_MODIFIED
}

#[test]
fn a_load_from_memory_has_address_width_latency_and_place() {
    let data3 = BEYOND_L2 | 4 << 22 | 417 << 32;
    let expected = IbsAccess {
        address: 0x7f00_1238,
        physical: Some(0x8_1234_5678),
        bytes: 8,
        store: false,
        latency_cycles: Some(417),
        source: DataSource { level: Level::Memory, remote: Some(true), snoop: Snoop::Unknown },
    };
    assert_eq!(access(FINE, code(3) | data2::REMOTE_NODE, data3, IbsQuirks::default()), expected);
    let unknown = access(FINE, code(3), data3 & !data3::PHYSICAL_VALID, IbsQuirks::default());
    assert_eq!((unknown.physical, unknown.source.remote), (None, Some(false)));
}

#[test]
fn codes_name_places_in_the_fine_and_the_coarse_table() {
    use Level::{L3, Memory, PeerCache, Uncached};
    let unknown = Snoop::Unknown;
    for (fine, level, remote) in
        [(1, L3, false), (2, PeerCache, false), (3, Memory, false), (5, PeerCache, true), (6, Memory, false)]
    {
        assert_eq!(place(FINE, code(fine), BEYOND_L2), (level, Some(remote), unknown), "fine {fine}");
    }
    for (fine, level) in [(7, Uncached), (8, Memory), (12, Memory)] {
        assert_eq!(place(FINE, code(fine), BEYOND_L2), (level, Some(false), unknown), "fine {fine}");
    }
    for (coarse, level, remote) in [(2, L3, false), (3, Memory, false), (4, PeerCache, true), (7, Uncached, false)] {
        assert_eq!(place(COARSE, code(coarse), BEYOND_L2), (level, Some(remote), unknown), "coarse {coarse}");
    }
    assert_eq!(place(SOCKETS, code(3) | data2::REMOTE_SOCKET, BEYOND_L2), (Memory, Some(true), unknown));
    assert_eq!(place(FINE, code(3) | data2::REMOTE_SOCKET, BEYOND_L2), (Memory, Some(false), unknown));
    assert_eq!(place(COARSE, code(1), BEYOND_L2), (Level::Unknown, None, unknown), "reserved");
}

#[test]
fn a_line_that_was_modified_elsewhere_is_told() {
    let modified = code(5) & !data2::CACHE_HIT_NOT_MODIFIED;
    assert_eq!(place(FINE, modified, BEYOND_L2), (Level::PeerCache, Some(true), Snoop::Modified));
    let zen3 = IbsQuirks::of(&CpuModel::X86 { vendor: "AuthenticAMD".into(), family: 0x19, model: 1, stepping: 1 });
    assert!(zen3.hit_state_void && zen3.void_after_prefetch);
    let modified = code(2) & !data2::CACHE_HIT_NOT_MODIFIED;
    assert_eq!(access(COARSE, modified, BEYOND_L2, zen3).source.snoop, Snoop::Unknown);
    assert_eq!(place(COARSE, modified, BEYOND_L2).2, Snoop::Modified);
}

#[test]
fn caches_of_the_core_are_known_without_the_source_code() {
    assert_eq!(place(FINE, code(3), VALID | data3::LOAD).0, Level::L1);
    assert_eq!(place(FINE, code(3), VALID | data3::LOAD | data3::L1_MISS).0, Level::L2);
    assert_eq!(place(FINE, code(0), BEYOND_L2 | data3::NO_MISS_BUFFER).0, Level::LineFillBuffer);
    assert_eq!(place(FINE, code(3), BEYOND_L2 | data3::UNCACHED).0, Level::Uncached);
}

#[test]
fn stores_have_neither_latency_nor_a_place_beyond_the_second_level() {
    let store = BEYOND_L2 & !data3::LOAD | data3::STORE | 99 << 32;
    let seen = access(FINE, code(3), store, IbsQuirks::default());
    assert!(seen.store);
    assert_eq!((seen.latency_cycles, seen.source), (None, DataSource::UNKNOWN));
    assert!(access(FINE, code(3), store | data3::LOAD, IbsQuirks::default()).store, "an atomic");
}

#[test]
fn after_a_prefetch_zen3_says_nothing_of_the_place() {
    let quirks = IbsQuirks { void_after_prefetch: true, hit_state_void: true };
    let data3 = VALID | data3::LOAD | data3::L1_MISS | data3::SOFTWARE_PREFETCH;
    assert_eq!(access(COARSE, code(3), data3, quirks).source, DataSource::UNKNOWN);
    assert_eq!(access(COARSE, code(3), data3, IbsQuirks::default()).source.level, Level::L2);
}

#[test]
fn what_accesses_nothing_is_no_access_and_short_data_is_malformed() {
    assert_eq!(decode(&raw(FINE, 0, VALID), IbsQuirks::default()), Operation::NoAccess);
    assert_eq!(decode(&raw(FINE, 0, data3::LOAD), IbsQuirks::default()), Operation::NoAccess);
    let whole = raw(FINE, 0, BEYOND_L2);
    assert_eq!(decode(&whole[..whole.len() - 1], IbsQuirks::default()), Operation::Malformed);
    assert_eq!(decode(&[], IbsQuirks::default()), Operation::Malformed);
}

proptest! {
    #[test]
    fn any_registers_are_decoded(
        bytes in prop::collection::vec(any::<u8>(), 0..80), registers in any::<(u32, u64, u64)>(), quirk in any::<bool>()
    ) {
        let quirks = IbsQuirks { void_after_prefetch: quirk, hit_state_void: !quirk };
        decode(&bytes, quirks);
        decode(&raw(registers.0, registers.1, registers.2), quirks);
    }
}
