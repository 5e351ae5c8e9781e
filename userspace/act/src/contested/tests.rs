// SPDX-License-Identifier: GPL-2.0-only
//! What counts as contested, and how long it rests.

use tandem_policies::model::PAGE_BYTES;

use super::*;
use crate::Generation;

const REST_NS: u64 = 100;
const PAGES: u64 = 512;
const BYTES: u64 = PAGES * PAGE_BYTES;
const TO: NodeId = NodeId(1);

fn group(number: u64) -> GroupId {
    GroupId { process: ProcessId(9), start: number * BYTES }
}

/// A move of all pages of a group that a plan made.
fn moved(number: u64) -> Outcome {
    let outcome = Outcome::new(group(number), group(number).start, PAGES, TO, Generation(1), Purpose::Plan);
    Outcome { moved_pages: PAGES, ..outcome }
}

fn found(number: u64, there: u64, elsewhere: u64) -> Found {
    Found { group: group(number), bytes: BYTES, places: Some((there, elsewhere)), is_new: true }
}

/// What is contested of group 0, which a plan moved, once it is found like this and others migrated so many pages.
fn contests_of(found: Found, migrated_pages: u64) -> Vec<Contest> {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    contested.look(&[found], migrated_pages, 10)
}

#[test]
fn what_others_moved_from_where_a_plan_put_it_is_contested_and_rests() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    assert_eq!(contested.watched(group(0), BYTES), Some((TO, 0)));
    assert_eq!(contested.look(&[found(0, PAGES, 0)], 0, 5), []);
    let contest = Contest { group: group(0), to: TO, pages: 500, rest_ns: REST_NS };
    assert_eq!(contested.look(&[found(0, 12, 500)], 500, 10), [contest]);
    let rests = |now_ns| contested.is_resting(GroupId { start: BYTES / 2, ..group(0) }, PAGE_BYTES, now_ns);
    assert_eq!([109, 110].map(rests), [true, false]);
    assert_eq!(contested.watched(group(0), BYTES), None, "once for each move of ours");
}

#[test]
fn most_of_a_group_decides() {
    assert_eq!(contests_of(found(0, 256, 256), PAGES), []);
    assert_eq!(contests_of(found(0, 255, 257), PAGES).len(), 1);
}

#[test]
fn memory_that_nobody_migrated_was_touched_anew_from_elsewhere() {
    assert_eq!(contests_of(found(0, 0, PAGES), PAGES / 2 - 1), []);
    assert_eq!(contests_of(found(0, 0, PAGES), PAGES / 2).len(), 1);
}

#[test]
fn migrations_of_before_a_group_was_last_seen_in_place_do_not_count() {
    let mut contested = Contested::new(8, REST_NS);
    contested.look(&[], PAGES, 0);
    contested.note(&moved(0), 0);
    for now_ns in [1, 2] {
        assert_eq!(contested.look(&[found(0, PAGES, 0)], 2 * PAGES, now_ns), []);
    }
    assert_eq!(contested.look(&[found(0, 0, PAGES)], 2 * PAGES, 3), []);
}

#[test]
fn what_was_asked_before_the_last_look_does_not_tell_that_a_group_is_in_place_still() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    for migrated_pages in [0, PAGES, PAGES] {
        let old = Found { is_new: false, ..found(0, PAGES, 0) };
        assert_eq!(contested.look(&[old], migrated_pages, 1), []);
    }
    assert_eq!(contested.look(&[found(0, 0, PAGES)], PAGES, 2).len(), 1);
}

#[test]
fn what_others_migrated_between_the_question_and_the_count_is_not_lost() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    assert_eq!(contested.look(&[found(0, PAGES, 0)], PAGES, 1), []);
    assert_eq!(contested.look(&[found(0, 0, PAGES)], PAGES, 2).len(), 1);
}

#[test]
fn migrations_while_a_group_goes_bit_by_bit_do() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    for away in [100, 200] {
        assert_eq!(contested.look(&[found(0, PAGES - away, away)], away, 1), []);
    }
    assert_eq!(contested.look(&[found(0, 200, 312)], 312, 2).len(), 1);
}

#[test]
fn migrations_that_explain_one_group_do_not_explain_many() {
    let mut contested = Contested::new(8, REST_NS);
    (0..4).for_each(|number| contested.note(&moved(number), 0));
    let all: Vec<Found> = (0..4).map(|number| found(number, 0, PAGES)).collect();
    assert_eq!(contested.look(&all, PAGES, 1), []);
}

#[test]
fn what_one_process_touched_anew_does_not_hide_what_is_moved_of_another() {
    let mut contested = Contested::new(8, REST_NS);
    let of_other = |one: GroupId| GroupId { process: ProcessId(5), ..one };
    (0..4).for_each(|number| contested.note(&moved(number), 0));
    contested.note(&Outcome { group: of_other(group(0)), ..moved(0) }, 0);
    let other = Found { group: of_other(group(0)), ..found(0, 0, PAGES) };
    let all: Vec<Found> = std::iter::once(other).chain((0..4).map(|number| found(number, 0, PAGES))).collect();
    let contests = contested.look(&all, PAGES, 1);
    assert_eq!(contests.iter().map(|one| one.group).collect::<Vec<_>>(), [of_other(group(0))]);
}

#[test]
fn pages_that_were_freed_are_nobodys_doing() {
    assert_eq!(contests_of(found(0, 0, 0), 9 * PAGES), []);
    assert_eq!(contests_of(found(0, 0, PAGES / 2), 9 * PAGES), []);
}

#[test]
fn pages_that_could_not_go_when_the_others_did_were_not_moved_away() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&Outcome { moved_pages: 200, already_there_pages: 12, shared_pages: 300, ..moved(0) }, 0);
    assert_eq!(contested.look(&[found(0, 0, 350)], PAGES, 1), [], "50 pages of 212");
}

#[test]
fn what_was_not_looked_at_since_it_moved_is_looked_at_later() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    assert_eq!(contested.look(&[Found { places: None, ..found(0, 0, 0) }], PAGES, 1), []);
    assert_eq!(contested.look(&[found(0, 0, PAGES)], PAGES, 2).len(), 1, "it counts what was migrated meanwhile");
}

#[test]
fn what_we_moved_on_or_back_ourselves_is_not_contested() {
    let to_other = Outcome { to: NodeId(2), ..moved(0) };
    let back = Outcome { purpose: Purpose::Undo { from: TO }, to: NodeId(0), ..moved(0) };
    let some_of_it = Outcome { start: 5 * PAGE_BYTES, bytes: PAGE_BYTES, moved_pages: 0, ..back.clone() };
    for (later, watched) in [(to_other, Some(NodeId(2))), (back, None), (some_of_it, None)] {
        let mut contested = Contested::new(8, REST_NS);
        contested.note(&moved(0), 0);
        contested.note(&later, 1);
        assert_eq!(contested.watched(group(0), BYTES).map(|watched| watched.0), watched);
    }
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    contested.note(&Outcome { moved_pages: 0, ..moved(0) }, 1);
    assert_eq!(contested.watched(group(0), BYTES), Some((TO, 0)), "a move that moved nothing");
}

#[test]
fn a_group_that_is_contested_again_and_again_rests_ever_longer_within_bounds() {
    let (mut contested, mut now_ns, mut rests) = (Contested::new(8, REST_NS), 0, Vec::new());
    for round in 1..=7 {
        contested.note(&moved(0), now_ns);
        let contest = contested.look(&[found(0, 0, PAGES)], round * PAGES, now_ns)[0];
        rests.push(contest.rest_ns);
        now_ns += 2 * contest.rest_ns;
    }
    assert_eq!(rests, [1, 2, 4, 8, 16, 16, 16].map(|times| times * REST_NS));
    now_ns += 2 * rests[6];
    contested.note(&moved(0), now_ns);
    assert_eq!(contested.look(&[found(0, 0, PAGES)], 8 * PAGES, now_ns)[0].rest_ns, REST_NS, "that is long ago");
}

#[test]
fn a_group_cut_anew_is_not_the_one_that_moved() {
    let mut contested = Contested::new(8, REST_NS);
    contested.note(&moved(0), 0);
    assert_eq!(contested.watched(group(0), 2 * BYTES), None);
    let longer = Found { bytes: 2 * BYTES, ..found(0, 0, PAGES) };
    assert_eq!(contested.look(&[longer], PAGES, 1), []);
}

#[test]
fn of_a_process_that_is_gone_nothing_is_watched_and_nothing_rests() {
    let mut contested = Contested::new(8, REST_NS);
    (0..2).for_each(|number| contested.note(&moved(number), 0));
    contested.look(&[found(0, 0, PAGES), found(1, PAGES, 0)], PAGES, 1);
    let known = |contested: &Contested| {
        (contested.is_resting(group(0), BYTES, 2), contested.watched(group(1), BYTES).is_some())
    };
    contested.forget(|process| process != ProcessId(9));
    assert_eq!(known(&contested), (true, true), "another one");
    contested.forget(|process| process == ProcessId(9));
    assert_eq!(known(&contested), (false, false));
    contested.note(&moved(0), 3);
    assert_eq!(contested.look(&[found(0, 0, PAGES)], 2 * PAGES, 4)[0].rest_ns, REST_NS, "its first rest");
}

#[test]
fn no_more_is_watched_than_there_is_room_for() {
    let mut contested = Contested::new(2, REST_NS);
    (0..3).for_each(|number| contested.note(&moved(number), 0));
    assert_eq!([0, 1, 2].map(|number| contested.watched(group(number), BYTES).is_some()), [true, true, false]);
    contested.look(&[found(1, PAGES, 0)], 0, 1);
    contested.note(&moved(2), 2);
    assert!(contested.watched(group(2), BYTES).is_some(), "the first is not known any more");
}
