// SPDX-License-Identifier: GPL-2.0-only
//! Pages that are busy for some time: when they are tried again, and how long.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tandem_machine::ProgramId;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::tests::{S, group, wanted};
use super::*;
use crate::Call;

const MS: u64 = S / 1000;

/// Pages on node 0, of which some are under I/O until a time in ms.
#[derive(Default)]
struct UnderIo(Mutex<State>);

#[derive(Default)]
struct State {
    now_ms: u64,
    ends_ms: BTreeMap<u64, u64>,
    moved: BTreeMap<u64, i32>,
    /// When pages were sent: time in ms and number of the page.
    sent: Vec<(u64, u64)>,
}

impl MovePages for UnderIo {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        let mut state = self.0.lock().unwrap();
        for (address, status) in addresses.iter().zip(status) {
            let (page, now_ms) = (address / PAGE_BYTES, state.now_ms);
            if let Some(to) = to {
                state.sent.push((now_ms, page));
                if state.ends_ms.get(&page).is_some_and(|&ends_ms| now_ms < ends_ms) {
                    *status = -libc::EBUSY;
                    continue;
                }
                state.moved.insert(page, to.0 as i32);
            }
            *status = state.moved.get(&page).copied().unwrap_or(0);
        }
        Call { result: Ok(0), time_ns: 1 }
    }
}

/// A mover of pages that are under I/O until these times in ms; page 0 is the first.
fn mover(ends_ms: &[u64]) -> (Mover<UnderIo>, Cooldowns) {
    let ends_ms = ends_ms.iter().copied().enumerate().map(|(page, ms)| (page as u64, ms)).collect();
    let system = UnderIo(Mutex::new(State { ends_ms, ..State::default() }));
    (Mover::new(system, MoverConfig::default()), Cooldowns::new(64))
}

/// Runs it every 10 ms; what ended, with when.
fn run(mover: &mut Mover<UnderIo>, cooldowns: &mut Cooldowns, from_ms: u64, to_ms: u64) -> Vec<(u64, Outcome)> {
    let mut ended = Vec::new();
    for now_ms in (from_ms..to_ms).step_by(10) {
        mover.system.0.lock().unwrap().now_ms = now_ms;
        ended.extend(mover.run(now_ms * MS, cooldowns).into_iter().map(|outcome| (now_ms, outcome)));
    }
    ended
}

/// When this page was sent, in ms.
fn tries_ms(mover: &Mover<UnderIo>, page: u64) -> Vec<u64> {
    mover.system.0.lock().unwrap().sent.iter().filter(|sent| sent.1 == page).map(|sent| sent.0).collect()
}

#[test]
fn a_page_that_stays_busy_is_tried_ever_later_and_given_up_at_last() {
    let (mut mover, mut cooldowns) = mover(&[u64::MAX, 0]);
    mover.enqueue(wanted(0, 2, 1, 1), 0, &cooldowns).unwrap();
    let ended = run(&mut mover, &mut cooldowns, 0, 5000);
    assert_eq!((tries_ms(&mover, 0), tries_ms(&mover, 1)), (vec![0, 50, 250, 1050], vec![0]));
    let [(1050, outcome)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!((outcome.ended, outcome.moved_pages, outcome.busy_pages), (Ended::Done, 1, 1));
}

#[test]
fn io_that_ends_after_300_ms_costs_its_pages_no_more_than_time() {
    let (mut mover, mut cooldowns) = mover(&[40, 100, 300, 0]);
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    let ended = run(&mut mover, &mut cooldowns, 0, 5000);
    let tries = [0, 1, 2].map(|page| tries_ms(&mover, page));
    assert_eq!(tries, [vec![0, 50], vec![0, 50, 250], vec![0, 50, 250, 1050]], "no longer than they are busy");
    let [(1050, outcome)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!((outcome.moved_pages, outcome.busy_pages), (4, 0));
}

#[test]
fn many_busy_pages_are_all_tried_again() {
    let (mut mover, mut cooldowns) = mover(&[300; 100]);
    mover.enqueue(wanted(0, 100, 1, 1), 0, &cooldowns).unwrap();
    let ended = run(&mut mover, &mut cooldowns, 0, 5000);
    assert_eq!(ended[0].1.moved_pages, 100);
    assert!((0..100).all(|page| tries_ms(&mover, page) == [0, 50, 250, 1050]));
}

#[test]
fn nobody_waits_for_those_who_wait_longer() {
    let (mut mover, mut cooldowns) = mover(&[300, 260]);
    mover.enqueue(wanted(0, 1, 1, 1), 0, &cooldowns).unwrap();
    run(&mut mover, &mut cooldowns, 0, 260);
    mover.enqueue(wanted(1, 1, 1, 1), 250 * MS, &cooldowns).unwrap();
    mover.system.0.lock().unwrap().now_ms = 255;
    assert!(mover.run(255 * MS, &mut cooldowns).is_empty());
    let ended = run(&mut mover, &mut cooldowns, 260, 5000);
    let when: Vec<_> = ended.iter().map(|(ms, outcome)| (*ms, outcome.group)).collect();
    assert_eq!(when, [(310, group(1)), (1050, group(0))]);
}

#[test]
fn a_plan_that_ends_does_not_wait_for_busy_pages() {
    type End = fn(&mut Mover<UnderIo>, &mut Cooldowns) -> Vec<Outcome>;
    let ends: [End; 3] = [
        |mover, _| mover.undo(Generation(1), 260 * MS, S),
        |mover, cooldowns| mover.stop(Generation(1), 260 * MS, cooldowns),
        |mover, cooldowns| mover.cancel_all(260 * MS, cooldowns),
    ];
    for end in ends {
        let (mut mover, mut cooldowns) = mover(&[u64::MAX, 0]);
        mover.enqueue(wanted(0, 2, 1, 1), 0, &cooldowns).unwrap();
        run(&mut mover, &mut cooldowns, 0, 260);
        assert_eq!((mover.queued_groups(), mover.queued_of(Generation(1))), (1, vec![]), "no verdict waits for it");
        let stopped = end(&mut mover, &mut cooldowns);
        let counts: Vec<_> = stopped.iter().map(|one| (one.ended, one.moved_pages, one.busy_pages)).collect();
        assert_eq!(counts, [(Ended::Cancelled, 1, 1)]);
        run(&mut mover, &mut cooldowns, 260, 5000);
        assert_eq!((tries_ms(&mover, 0), mover.queued_groups()), (vec![0, 50, 250], 0));
    }
}

#[test]
fn pages_that_were_busy_are_counted_so_when_their_group_ends_before_all_were_tried() {
    let (mut mover, mut cooldowns) = mover(&[u64::MAX, 0]);
    (mover.pages, mover.config.run_ns) = (Bucket::new(1, BATCH_PAGES), 1);
    mover.enqueue(wanted(0, 1024, 1, 1), 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty());
    let stopped = mover.stop(Generation(1), 0, &mut cooldowns).remove(0);
    assert_eq!((stopped.moved_pages, stopped.busy_pages, stopped.not_tried_pages), (511, 1, 512));
}

/// Nobody may know that they are one huge page, of which each try names a few and the kernel moves all.
#[test]
fn what_a_retry_takes_is_no_price_of_pages() {
    let price_of_what_is_busy_until = |ends_ms: u64| {
        let (mut mover, mut cooldowns) = mover(&[ends_ms; 128]);
        mover.enqueue(wanted(0, 128, 1, 1), 0, &cooldowns).unwrap();
        let ended = run(&mut mover, &mut cooldowns, 0, 5000);
        assert_eq!(ended[0].1.moved_pages, 128);
        mover.cost_ns_per_page()
    };
    assert!(price_of_what_is_busy_until(0).is_some());
    assert_eq!(price_of_what_is_busy_until(40), None);
}
