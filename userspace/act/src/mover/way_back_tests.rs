// SPDX-License-Identifier: GPL-2.0-only
//! Pages that go back to a node without room: they wait for it, within bounds.

use std::sync::Mutex;

use tandem_policies::example::crossed;
use tandem_policies::model::PAGE_BYTES;

use super::tests::{S, Script, group, mover, resident, wanted};
use super::*;

const MS: u64 = S / 1000;

/// A mover that has moved so many pages to node 1 and is about to move them back, from 0 on, to node 0, which has room for a few.
fn back_to_full_node(pages: u64, room: usize) -> (Mover<Mutex<Script>>, Cooldowns) {
    let (mut mover, mut cooldowns) = mover(resident(pages, 0));
    mover.enqueue(wanted(0, pages, 1, 7), 0, &cooldowns).unwrap();
    assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, pages);
    mover.system.lock().unwrap().room = Some(room);
    mover.system.lock().unwrap().sent.clear();
    assert!(mover.undo(Generation(7), 0, S).is_empty());
    (mover, cooldowns)
}

/// Runs it every 10 ms for 20 s: when pages were sent and what ended, both with the time in ms.
fn run(mover: &mut Mover<Mutex<Script>>, cooldowns: &mut Cooldowns) -> (Vec<u64>, Vec<(u64, Outcome)>) {
    let (mut tries_ms, mut ended) = (Vec::new(), Vec::new());
    for now_ms in (0..20_000).step_by(10) {
        let sent = mover.system.lock().unwrap().sent.len();
        ended.extend(mover.run(now_ms * MS, cooldowns).into_iter().map(|outcome| (now_ms, outcome)));
        tries_ms.extend((sent..mover.system.lock().unwrap().sent.len()).map(|_| now_ms));
    }
    (tries_ms, ended)
}

#[test]
fn pages_that_find_no_room_on_their_way_back_go_once_there_is_some() {
    let (mut mover, mut cooldowns) = back_to_full_node(8, 3);
    assert!(mover.is_returning() && mover.run(0, &mut cooldowns).is_empty());
    assert_eq!(
        (mover.is_returning(), mover.queued_groups()),
        (false, 1),
        "nobody is to wait for room that may never come"
    );
    assert!(!mover.is_ready(499 * MS), "nobody waits for it without a pause");
    mover.system.lock().unwrap().room = None;
    assert!(mover.is_ready(500 * MS));
    let outcome = mover.run(500 * MS, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.moved_pages, outcome.no_memory_pages), (Ended::Done, 8, 0));
    assert_eq!((outcome.counted_pages(), outcome.already_there_pages), (outcome.requested_pages, 0), "each page once");
    assert!(mover.system.lock().unwrap().pages.values().all(|&node| node == 0));
    assert_eq!((mover.is_returning(), mover.system.lock().unwrap().sent.len()), (false, 9), "one was refused");
}

#[test]
fn what_is_undone_or_stopped_of_one_process_leaves_what_the_plan_moved_and_moves_of_others() {
    let (mut mover, mut cooldowns) = mover(resident(8, 0));
    mover.enqueue(wanted(0, 2, 1, 7), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    let other = GroupId { process: ProcessId(99), ..wanted(4, 2, 1, 7).group };
    mover.enqueue(PageMove { group: other, ..wanted(4, 2, 1, 7) }, 0, &cooldowns).unwrap();
    assert_eq!(mover.undo_of(Generation(7), &|process| process == ProcessId(98), 1, S), []);
    assert!(!mover.is_returning() && !mover.is_held(other, PAGE_BYTES, 1), "nothing is meant");
    assert_eq!(mover.stop_of(Generation(7), &|process| process != other.process, 1, &mut cooldowns), []);
    let stopped = mover.undo_of(Generation(7), &|process| process == other.process, 1, S);
    assert_eq!(stopped.iter().map(|one| (one.group, one.ended)).collect::<Vec<_>>(), [(other, Ended::Cancelled)]);
    assert!(mover.is_held(other, PAGE_BYTES, 1) && !mover.is_returning());
    mover.undo_of(Generation(7), &|process| process != other.process, 1, S);
    assert_eq!(mover.run(1, &mut cooldowns)[0].moved_pages, 2);
}

#[test]
fn what_waits_for_room_on_one_node_keeps_nothing_from_going_back_to_others() {
    let (mut script, pages) = (resident(8, 0), (0..8).map(|page| page * PAGE_BYTES));
    pages.skip(1).step_by(2).for_each(|address| script.pages.extend([(address, 2)]));
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 8, 1, 7), 0, &cooldowns).unwrap();
    assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, 8);
    mover.system.lock().unwrap().full_node = Some(0);
    mover.undo(Generation(7), 0, S);
    let ended = mover.run(0, &mut cooldowns);
    assert_eq!(ended.iter().map(|one| (one.to, one.moved_pages)).collect::<Vec<_>>(), [(NodeId(2), 4)]);
    mover.system.lock().unwrap().full_node = None;
    assert_eq!(mover.run(500 * MS, &mut cooldowns)[0].moved_pages, 4);
}

#[test]
fn a_node_that_stays_full_is_tried_ever_later_once_for_all_and_given_up() {
    let (mut mover, mut cooldowns) = back_to_full_node(3 * BATCH_PAGES, 0);
    mover.config.calls_per_node = 1;
    let (tries_ms, ended) = run(&mut mover, &mut cooldowns);
    assert_eq!(tries_ms, [0, 500, 1500, 3500, 7500], "one page each time");
    let ended: Vec<_> =
        ended.iter().map(|(ms, one)| (*ms, one.ended, one.no_memory_pages, one.not_tried_pages)).collect();
    let not_even_tried = (7500, Ended::TargetFull, 0, BATCH_PAGES);
    assert_eq!(ended, [(7500, Ended::TargetFull, BATCH_PAGES, 0), not_even_tried, not_even_tried]);
    assert!(!mover.is_returning());
}

#[test]
fn what_goes_back_late_is_not_tried_again_when_others_plan_already() {
    let (mut mover, mut cooldowns) = back_to_full_node(8, 0);
    assert!(mover.run(8000 * MS, &mut cooldowns).is_empty());
    let outcome = mover.run(8500 * MS, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.no_memory_pages), (Ended::TargetFull, 8));
}

#[test]
fn what_waits_for_room_when_all_is_cancelled_is_counted() {
    let (mut mover, mut cooldowns) = back_to_full_node(8, 3);
    mover.run(0, &mut cooldowns);
    let outcome = mover.cancel_all(MS, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.moved_pages, outcome.not_tried_pages), (Ended::Cancelled, 3, 5));
    assert_eq!(outcome.counted_pages() + outcome.not_tried_pages, outcome.requested_pages);
}

#[test]
fn what_is_on_its_way_back_goes_on_with_other_budgets_and_so_does_what_is_known() {
    let (mut mover, mut cooldowns) = back_to_full_node(3 * BATCH_PAGES, usize::MAX);
    let price = mover.cost_ns_per_page();
    assert_eq!(mover.stop_plans(0, &mut cooldowns), []);
    mover.set_paused(true);
    mover.adapt(&crossed().topology, MoverConfig { pages_per_s: BATCH_PAGES, ..MoverConfig::default() });
    assert!(mover.is_returning() && !mover.is_paused());
    assert!(price.is_some() && mover.cost_ns_per_page() == price);
    assert!(mover.is_held(group(0), PAGE_BYTES, 0));
    let moved = |outcomes: Vec<Outcome>| outcomes.iter().map(|one| one.moved_pages).sum::<u64>();
    let back: Vec<u64> = (0..4).map(|s| moved(mover.run(s * S, &mut cooldowns))).collect();
    assert_eq!(back, [BATCH_PAGES, BATCH_PAGES, BATCH_PAGES, 0], "a second's worth is saved at most");
}
