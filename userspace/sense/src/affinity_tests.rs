// SPDX-License-Identifier: GPL-2.0-only

use super::*;

const PROCESS: ProcessId = ProcessId(9);
const MIB: u64 = 1 << 20;
/// When a thread was looked at.
const NOW: u64 = 10_000_000_000;

fn thread(tid: u32) -> ThreadId {
    ThreadId { tid, start_boottime_ns: 1 }
}

fn data() -> Region {
    Region::of(3 * MIB, 9 * MIB + 4096, RegionKind::Data)
}

#[test]
fn groups_are_aligned_and_clipped_to_their_region() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    for address in [3 * MIB, 4 * MIB + 5, 9 * MIB] {
        table.add(PROCESS, thread(1), NOW, address, Some(&data()));
    }
    let groups: Vec<_> = table.groups().iter().map(|(id, group)| (id.start, group.bytes())).collect();
    assert_eq!(groups, [(3 * MIB, MIB), (4 * MIB, 2 * MIB), (8 * MIB, MIB + 4096)]);
}

/// The example of the Thanos thesis, which cuts groups from the start of a region: three of 2 MiB there. Ours begin at
/// multiples of 2 MiB, so that no large page belongs to two.
#[test]
fn groups_begin_at_multiples_of_2_mib_and_not_where_their_region_begins() {
    let region = Region::of(0x10_0000, 0x70_0000, RegionKind::Data);
    let mut table = AffinityTable::new(AffinityConfig::default());
    for page in 0..0x600 {
        table.add(PROCESS, thread(1), NOW, 0x10_0000 + page * 4096, Some(&region));
    }
    let groups: Vec<_> = table.groups().iter().map(|(id, group)| (id.start, group.bytes())).collect();
    assert_eq!(groups, [(MIB, MIB), (2 * MIB, 2 * MIB), (4 * MIB, 2 * MIB), (6 * MIB, MIB)]);
    let small = Region::of(8 * MIB, 8 * MIB + 200 * 4096, RegionKind::Data);
    table.add(PROCESS, thread(1), NOW, 8 * MIB, Some(&small));
    assert_eq!(table.groups().last().map(|(_, group)| group.bytes()), Some(200 * 4096));
}

#[test]
fn text_and_unknown_addresses_are_counted_not_grouped() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    table.add(PROCESS, thread(1), NOW, 4096, None);
    table.add(PROCESS, thread(1), NOW, 4096, Some(&Region::of(0, MIB, RegionKind::Skipped)));
    assert_eq!((table.counters().outside, table.counters().skipped, table.groups().len()), (1, 1, 0));
}

#[test]
fn weights_halve_in_a_half_life_and_vanish() {
    let config = AffinityConfig::default();
    let mut table = AffinityTable::new(config);
    table.age(0);
    for look in 0..4 {
        table.add(PROCESS, thread(1), look, 4 * MIB, Some(&data()));
    }
    table.age(config.half_life_ns);
    assert!((table.groups()[0].1.samples() - 2.0).abs() < 1e-9);
    assert!((table.total(thread(1)) - 2.0).abs() < 1e-9);
    table.age(config.half_life_ns * 12);
    assert_eq!((table.groups().len(), table.total(thread(1))), (0, 0.0));
}

#[test]
fn what_one_look_at_a_thread_shows_is_one_sample_of_each_group() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    for (look, lines) in [(1, 25), (2, 5)] {
        for line in 0..lines {
            table.add(PROCESS, thread(1), look, 4 * MIB + line * 64, Some(&data()));
            table.add(PROCESS, thread(2), look, 4 * MIB + line * 64, Some(&data()));
        }
    }
    table.add(PROCESS, thread(1), 2, 6 * MIB, Some(&data()));
    let groups: Vec<_> = table.groups().iter().map(|(_, group)| (group.accesses(), group.samples())).collect();
    assert_eq!(groups, [(60.0, 4.0), (1.0, 1.0)]);
    assert_eq!((table.total(thread(1)), table.looks(thread(1))), (31.0, 2.0));
}

#[test]
fn sharing_is_the_lesser_use_of_each_page_and_not_of_the_group() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    let mut touch = |tid, address, times| {
        for look in 0..times {
            table.add(PROCESS, thread(tid), NOW + look, address, Some(&data()));
        }
    };
    touch(1, 4 * MIB, 50);
    touch(2, 4 * MIB + 64, 30);
    touch(3, 4 * MIB + 8192, 90);
    let rows = table.sharing(|_| 2.0);
    assert_eq!((rows[&thread(1)][&thread(2)], rows[&thread(2)][&thread(1)]), (60.0, 60.0));
    assert!(rows[&thread(3)].values().all(|shared| *shared < 0.1), "{rows:?}");
}

/// Known answer of kMAF (PACT 2014): the cell of two threads that alternate grows by one an alternation, and that of a thread
/// which was there long ago by nothing.
#[test]
fn a_pair_that_alternates_shares_one_more_each_time_and_whoever_left_long_ago_nothing() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    table.age(NOW);
    table.add(PROCESS, thread(3), NOW, 4 * MIB, Some(&data()));
    let now_ns = NOW + 12 * AffinityConfig::default().half_life_ns;
    table.age(now_ns);
    for alternations in 1..=8u32 {
        for tid in [1, 2] {
            table.add(PROCESS, thread(tid), now_ns + u64::from(alternations), 4 * MIB, Some(&data()));
        }
        let rows = table.sharing(|_| 1.0);
        assert_eq!(rows[&thread(1)], BTreeMap::from([(thread(2), f64::from(alternations))]));
        assert_eq!(rows.get(&thread(3)), None);
    }
}

/// Thanos thesis, eq. 3.9: 1/(1 + t).
#[test]
fn an_access_of_a_second_before_counts_half() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    table.age(NOW);
    for age_s in [0, 1, 3] {
        table.add(PROCESS, thread(1), NOW - age_s * 1_000_000_000, 4 * MIB, Some(&data()));
    }
    assert!((table.total(thread(1)) - (1.0 + 0.5 + 0.25)).abs() < 1e-6);
    let groups = table.groups();
    assert!((groups[0].1.accesses() - 1.75).abs() < 1e-6 && (groups[0].1.samples() - 3.0).abs() < 1e-6);
}

#[test]
fn the_table_is_bounded_and_drops_its_coldest() {
    let config = AffinityConfig { max_groups: 16, max_pages: 16, ..Default::default() };
    let mut table = AffinityTable::new(config);
    let region = Region::of(0, 1 << 40, RegionKind::Data);
    for _ in 0..3 {
        table.add(PROCESS, thread(1), NOW, 0, Some(&region));
    }
    for group in 1..100 {
        table.add(PROCESS, thread(1), NOW, group * 2 * MIB, Some(&region));
    }
    assert!(table.groups().len() <= 16);
    assert!(table.counters().evicted_groups >= 84 && table.counters().evicted_pages >= 84);
    assert_eq!(table.groups()[0].0.start, 0, "the hottest is still there");
}

/// A table in which the first thread uses the lower MiB of a group and the second the upper one.
fn halved() -> AffinityTable {
    let mut table = AffinityTable::new(AffinityConfig::default());
    table.age(0);
    for look in 0..40 {
        table.add(PROCESS, thread(1), look, 4 * MIB + look * 4096, Some(&data()));
        table.add(PROCESS, thread(2), look, 5 * MIB + look * 4096, Some(&data()));
    }
    table
}

/// Start, bytes and users with their accesses.
type Known = (u64, u64, Vec<(u32, f64)>);

fn all(table: &AffinityTable) -> Vec<Known> {
    let users = |group: &Group<'_>| group.users().map(|(user, accesses)| (user.tid, accesses)).collect();
    table.groups().iter().map(|(id, group)| (id.start, group.bytes(), users(group))).collect()
}

#[test]
fn a_group_is_cut_where_its_halves_have_different_users() {
    let mut table = halved();
    let changed = table.adapt(|_, _| Some(1), |_, _| true);
    assert_eq!(changed.iter().map(|id| id.start).collect::<Vec<_>>(), [4 * MIB, 5 * MIB]);
    assert_eq!(all(&table), [(4 * MIB, MIB, vec![(1, 40.0)]), (5 * MIB, MIB, vec![(2, 40.0)])]);
    assert_eq!(table.group_at(PROCESS, 6 * MIB - 1).map(|id| id.start), Some(5 * MIB));
    assert!(table.adapt(|_, _| Some(1), |_, _| true).is_empty(), "and stays as it is");
    assert_eq!((table.counters().splits, table.counters().merges), (1, 0));
}

#[test]
fn groups_side_by_side_become_one_again_when_their_users_are_the_same() {
    let mut table = halved();
    table.adapt(|_, _| Some(1), |_, _| true);
    for look in 100..500 {
        for tid in [1, 2] {
            table.add(PROCESS, thread(tid), look, 4 * MIB + look * 4096, Some(&data()));
        }
    }
    assert!(table.adapt(|_, _| Some(1), |_, _| false).is_empty(), "two regions are never one group");
    table.adapt(|_, _| Some(1), |_, _| true);
    assert_eq!(all(&table), [(4 * MIB, 2 * MIB, vec![(1, 440.0), (2, 440.0)])]);
}

#[test]
fn large_pages_are_never_cut_and_neither_is_what_nobody_can_tell_of() {
    let (mut table, mut asked) = (halved(), Vec::new());
    for whole in [Some(512), None] {
        table.adapt(
            |_, bytes| {
                asked.push(bytes);
                whole
            },
            |_, _| true,
        );
    }
    assert_eq!((table.groups().len(), asked), (1, vec![4 * MIB..6 * MIB; 2]));
    table.adapt(|_, _| Some(256), |_, _| true);
    assert_eq!(table.groups().len(), 2, "the cut lies between two units of 1 MiB");
}

#[test]
fn however_many_groups_could_be_cut_all_are_in_their_turn() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    let region = Region::of(0, 1 << 40, RegionKind::Data);
    let groups = EXAMINED as u64 + 10;
    for group in 0..groups {
        for look in 0..20 {
            table.add(PROCESS, thread(1), look, group * 2 * MIB, Some(&region));
            table.add(PROCESS, thread(2), look, group * 2 * MIB + MIB, Some(&region));
        }
    }
    for expected in [EXAMINED as u64, groups, groups] {
        table.adapt(|_, _| Some(1), |_, _| true);
        assert_eq!(table.counters().splits, expected);
    }
    assert_eq!(table.counters().merges, 0);
}

#[test]
fn the_table_tells_its_size_and_leaves_room_for_homes_in_64_bytes_a_group() {
    let config = AffinityConfig { max_groups: 4096, max_pages: 4096, ..Default::default() };
    let mut table = AffinityTable::new(config);
    let region = Region::of(0, 1 << 40, RegionKind::Data);
    for group in 0..10_000 {
        table.add(PROCESS, thread(group % 7), NOW, u64::from(group) * 2 * MIB, Some(&region));
    }
    // As many groups as pages: each has a slot of 40 bytes and its part of the index; 12 are left for where its pages are.
    assert!((40 * 8192..=52 * 8192).contains(&table.bytes()), "{}", table.bytes());
}
