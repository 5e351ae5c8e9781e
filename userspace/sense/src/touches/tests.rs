// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use proptest::prelude::*;
use tandem_policies::model::ThreadId;

use super::*;
use crate::thread_numbers::ThreadNumbers;

const PROCESS: u32 = 9;
/// As much as a process may have.
const ALL: Range<u64> = 0..1 << 40;

fn numbers(count: u32) -> Vec<ThreadNumber> {
    let mut numbers = ThreadNumbers::default();
    (0..count).map(|tid| numbers.number(ThreadId { tid, start_boottime_ns: 1 }).unwrap()).collect()
}

/// Pages and users (number, accesses) of each record, in order.
fn contents(table: &TouchTable) -> Vec<(Range<u64>, BTreeMap<ThreadNumber, f32>)> {
    let of =
        |record: Record<'_>| (record.pages(), record.users().map(|(number, user)| (number, user.accesses)).collect());
    let mut contents: Vec<_> = table.records().map(of).collect();
    contents.sort_by_key(|(pages, _)| pages.start);
    contents
}

/// What must hold whatever was done: slots are used once, records do not overlap and are found, nothing is lost.
fn check(table: &TouchTable) {
    let records = contents(table);
    assert!(records.windows(2).all(|two| two[0].0.end <= two[1].0.start), "{records:?}");
    let in_chains: usize = table
        .index
        .iter()
        .map(|&head| table.records_of(head).map(|record| table.slots_of(record).count()).sum::<usize>())
        .sum();
    let free = std::iter::successors(Some(table.free).filter(|&slot| slot != NONE), |&slot| {
        Some(table.slots[slot as usize].next).filter(|&next| next != NONE)
    });
    assert_eq!((in_chains, in_chains + free.count()), (table.used, table.slots.len()));
    for (pages, users) in &records {
        let found = table.at(PROCESS, pages.end - 1).expect("a record");
        assert_eq!((found.pages(), found.users().count()), (pages.clone(), users.len()));
    }
}

#[test]
fn a_slot_takes_at_most_64_bytes_with_its_part_of_the_index() {
    let thread = numbers(1)[0];
    for groups in [1000, 1793, 7169, 20_000] {
        let mut table = TouchTable::new(512, 1 << 17, 33);
        (0..groups).for_each(|group| {
            table.add(PROCESS, group * 512, ALL, thread, 1, 0);
        });
        assert!(table.bytes() <= 64 * groups as usize, "{} for {groups}", table.bytes());
    }
}

#[test]
fn a_new_record_has_what_its_region_and_its_neighbours_leave_it() {
    let (mut table, thread) = (TouchTable::new(512, 64, 33), numbers(1)[0]);
    let mut add = |page, around: Range<u64>| table.add(PROCESS, page, around, thread, 1, 0);
    assert_eq!(add(520, 515..600), 515);
    assert_eq!(add(700, 600..2000), 600, "another region in the same block");
    assert_eq!(add(590, 515..650), 515, "it cannot grow into the next");
    assert_eq!(add(800, 600..2000), 600);
    assert_eq!(add(1030, 600..2000), 1024, "the next block");
    assert_eq!(add(1000, 600..900), 600, "a region that shrank");
    let pages: Vec<_> = contents(&table).into_iter().map(|(pages, _)| pages).collect();
    assert_eq!(pages, [515..600, 600..900, 1024..1536]);
    check(&table);
}

#[test]
fn what_faded_leaves_its_pages_to_its_neighbour() {
    let (mut table, threads) = (TouchTable::new(512, 64, 33), numbers(2));
    (0..8).for_each(|_| {
        table.add(PROCESS, 0, ALL, threads[0], 1, 0);
        table.add(PROCESS, 400, ALL, threads[1], 1, 0);
    });
    table.split(PROCESS, 256, |number| if number == threads[0] { 1.0 } else { 0.0 });
    let halves: Vec<_> =
        contents(&table).into_iter().map(|(pages, users)| (pages, users.into_keys().collect())).collect();
    assert_eq!(halves, [(0..256, vec![threads[0]]), (256..512, vec![threads[1]])]);
    check(&table);
    table.retain(1.0, |_| true, |number| number == threads[1]);
    assert_eq!(table.add(PROCESS, 3, ALL, threads[1], 1, 0), 0);
    assert_eq!(contents(&table).len(), 1);
    check(&table);
}

#[test]
fn a_record_remembers_its_heaviest_users() {
    let (mut table, threads) = (TouchTable::new(512, 64, 6), numbers(8));
    for (at, &thread) in threads.iter().enumerate() {
        (0..9 - at).for_each(|_| {
            table.add(PROCESS, 0, ALL, thread, 1, 0);
        });
    }
    let users = contents(&table).remove(0).1;
    assert_eq!(
        users,
        threads[..6].iter().zip([9.0, 8.0, 7.0, 6.0, 5.0, 4.0]).map(|(&number, of)| (number, of)).collect()
    );
    table.retain(0.2, |_| true, |_| true);
    table.add(PROCESS, 0, ALL, threads[7], 1, 0);
    assert!(contents(&table)[0].1.contains_key(&threads[7]), "one below a whole access gives way");
    check(&table);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, usize),
    Split(u64),
    Merge(usize),
    Fade(f32),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..2048_u64;
    prop_oneof![
        8 => (page.clone(), 0..12_usize).prop_map(|(page, thread)| Step::Add(page, thread)),
        3 => page.prop_map(Step::Split),
        2 => (0..64_usize).prop_map(Step::Merge),
        1 => (0.3..1.0_f32).prop_map(Step::Fade),
        1 => (0..12_usize).prop_map(Step::Forget),
    ]
}

proptest! {
    /// Beside a plain count of who did how much: splits and merges lose nothing, whatever the order.
    #[test]
    fn no_access_is_lost_and_no_slot(steps in prop::collection::vec(step(), 1..200)) {
        let (mut table, threads) = (TouchTable::new(512, 1024, 12), numbers(12));
        let mut expected: BTreeMap<ThreadNumber, f32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(page, thread) => {
                    table.add(PROCESS, page, ALL, threads[thread], 1, 0);
                    *expected.entry(threads[thread]).or_default() += 1.0;
                }
                Step::Split(page) => table.split(PROCESS, page, |_| 0.25),
                Step::Merge(at) => {
                    let mut two: Vec<u64> =
                        table.neighbours().iter().flat_map(|(_, starts)| starts[..starts.len() - 1].to_vec()).collect();
                    two.sort_unstable();
                    two.get(at % two.len().max(1)).into_iter().for_each(|&first| table.merge(PROCESS, first));
                }
                Step::Fade(factor) => {
                    table.retain(factor, |_| true, |_| true);
                    expected.values_mut().for_each(|accesses| *accesses *= factor);
                }
                Step::Forget(thread) => {
                    table.retain(1.0, |_| true, |number| number != threads[thread]);
                    expected.remove(&threads[thread]);
                }
            }
            check(&table);
        }
        for (number, accesses) in expected {
            let found: f32 = contents(&table).iter().filter_map(|(_, users)| users.get(&number)).sum();
            // What is too faint is forgotten, in each of a few records.
            prop_assert!((found - accesses).abs() < 0.01 * accesses + 1.0, "{number:?}: {found} of {accesses}");
        }
    }

    /// The bound is never passed, whoever comes.
    #[test]
    fn the_table_stays_within_its_bound(touches in prop::collection::vec((0..200_u64, 0..30_usize), 1..400)) {
        let (mut table, threads) = (TouchTable::new(512, 40, 33), numbers(30));
        for (group, thread) in touches {
            table.add(PROCESS, group * 512, ALL, threads[thread], 1, 0);
            prop_assert!(table.used <= 40 && table.slots.len() <= 40);
            prop_assert!(table.at(PROCESS, group * 512).is_some(), "who was just seen is there");
        }
        check(&table);
    }
}
