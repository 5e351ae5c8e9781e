// SPDX-License-Identifier: GPL-2.0-only
//! The mover against a scripted kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tandem_machine::ProgramId;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::*;
use crate::programs::tests::program;
use crate::{Call, ZoneRooms};

pub(super) const S: u64 = 1_000_000_000;
pub(super) const PROCESS: ProcessId = ProcessId(42);

/// Pages with their raw status, what stops them, and what a call takes.
#[derive(Default)]
pub(super) struct Script {
    pub(super) pages: BTreeMap<u64, i32>,
    /// Pages that stay busy for this many tries.
    busy: BTreeMap<u64, u32>,
    shared: BTreeSet<u64>,
    /// Pages that move whole with the first of their 512.
    pub(super) huge: Option<Follower>,
    pub(super) room: Option<usize>,
    /// A node without room, whatever others have.
    pub(super) full_node: Option<i32>,
    error: Option<CallError>,
    ns_per_page: u64,
    pub(super) sent: Vec<u64>,
    pub(super) calls: u64,
    /// Number of the program that the process runs, while there is one.
    pub(super) program: Option<u64>,
}

/// What the kernel says of pages of a huge page that follow the first: of the second it is always that it is busy.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Follower {
    IsBusy,
    IsThere,
}

impl MovePages for Mutex<Script> {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        self.lock().unwrap().program.map(program)
    }

    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        self.lock().unwrap().call(process, addresses, to, status)
    }
}

impl Script {
    fn call(&mut self, _: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        self.calls += 1;
        let time_ns = addresses.len() as u64 * self.ns_per_page;
        let Some(to) = to.map(|node| node.0 as i32) else {
            for (address, status) in addresses.iter().zip(status) {
                *status = self.pages.get(address).copied().unwrap_or(-libc::ENOENT);
            }
            return Call { result: Ok(0), time_ns: 0 };
        };
        if let Some(error) = self.error {
            return Call { result: Err(error), time_ns };
        }
        let mut left = 0;
        for (address, status) in addresses.iter().zip(status) {
            self.sent.push(*address);
            if let Some(follower) = self.huge.filter(|_| address % (BATCH_PAGES * PAGE_BYTES) != 0) {
                let is_there = follower == Follower::IsThere && address % (BATCH_PAGES * PAGE_BYTES) > PAGE_BYTES;
                *status = if is_there { to } else { -libc::EBUSY };
                continue;
            }
            if let Some(tries) = self.busy.get_mut(address).filter(|tries| **tries > 0) {
                *tries -= 1;
                left += 1;
                continue;
            }
            if self.shared.contains(address) {
                *status = -libc::EACCES;
                continue;
            }
            if self.room == Some(0) || self.full_node == Some(to) {
                return Call { result: Err(CallError::NoMemory), time_ns };
            }
            self.room = self.room.map(|room| room - 1);
            let moved = if self.huge.is_some() { BATCH_PAGES } else { 1 };
            for page in 0..moved {
                self.pages.insert(address + page * PAGE_BYTES, to);
            }
            *status = to;
        }
        Call { result: Ok(left), time_ns }
    }
}

pub(super) fn group(page: u64) -> GroupId {
    GroupId { process: PROCESS, start: page * PAGE_BYTES }
}

pub(super) fn resident(pages: u64, node: i32) -> Script {
    Script { pages: (0..pages).map(|page| (page * PAGE_BYTES, node)).collect(), ns_per_page: 100, ..Script::default() }
}

pub(super) fn wanted(page: u64, pages: u64, to: u32, generation: u64) -> PageMove {
    PageMove {
        group: group(page),
        bytes: pages * PAGE_BYTES,
        huge: false,
        to: NodeId(to),
        generation: Generation(generation),
        cooldown_ns: 10 * S,
    }
}

/// For tests in which the order of calls matters.
pub(super) fn one_by_one() -> MoverConfig {
    MoverConfig { calls_per_node: 1, ..MoverConfig::default() }
}

pub(super) fn mover(script: Script) -> (Mover<Mutex<Script>>, Cooldowns) {
    within(MoverConfig::default(), script)
}

/// The same within other bounds.
pub(super) fn within(config: MoverConfig, script: Script) -> (Mover<Mutex<Script>>, Cooldowns) {
    (Mover::new(Mutex::new(script), config), Cooldowns::new(64))
}

#[test]
fn only_pages_that_are_elsewhere_are_sent_and_every_page_is_counted() {
    let mut script = resident(8, 0);
    script.pages.insert(0, 1);
    script.pages.remove(&PAGE_BYTES);
    script.pages.insert(2 * PAGE_BYTES, -libc::EFAULT);
    script.shared.insert(3 * PAGE_BYTES);
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 8, 1, 1), 0, &cooldowns).unwrap();
    let outcome = mover.run(0, &mut cooldowns).remove(0);
    assert_eq!((outcome.already_there_pages, outcome.absent_pages, outcome.invalid_pages), (1, 1, 1));
    assert_eq!((outcome.shared_pages, outcome.moved_pages, outcome.ended), (1, 4, Ended::Done));
    assert_eq!(outcome.counted_pages(), outcome.requested_pages);
    assert_eq!(mover.system.lock().unwrap().sent.len(), 5);
}

#[test]
fn the_page_budget_holds_and_the_rest_continues() {
    let (mut mover, mut cooldowns) =
        within(MoverConfig { pages_per_s: 512, ..MoverConfig::default() }, resident(2048, 0));
    mover.enqueue(wanted(0, 2048, 1, 1), 0, &cooldowns).unwrap();
    for second in 0..3 {
        assert!(mover.run(second * S, &mut cooldowns).is_empty());
        assert!(mover.run(second * S + S / 2, &mut cooldowns).is_empty());
        assert_eq!(mover.system.lock().unwrap().sent.len() as u64, (second + 1) * 512);
    }
    assert_eq!(mover.run(3 * S, &mut cooldowns)[0].moved_pages, 2048);
}

#[test]
fn call_time_overdrawn_is_paid_back_first() {
    let mut script = resident(1024, 0);
    script.ns_per_page = 10_000_000;
    let config = MoverConfig { call_ns_per_s: 100_000_000, ..MoverConfig::default() };
    let (mut mover, mut cooldowns) = within(config, script);
    mover.enqueue(wanted(0, 1024, 1, 1), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    assert_eq!(mover.system.lock().unwrap().sent.len(), 512, "5.12 s taken of 3 s");
    mover.run(21 * S, &mut cooldowns);
    assert_eq!(mover.system.lock().unwrap().sent.len(), 512);
    mover.run(22 * S, &mut cooldowns);
    assert_eq!(mover.system.lock().unwrap().sent.len(), 1024);
}

#[test]
fn saved_call_time_is_spent_at_once_but_no_run_takes_long() {
    let mut script = resident(64 * 512, 0);
    script.ns_per_page = 100_000;
    let config = MoverConfig { call_ns_per_s: 100_000_000, ..MoverConfig::default() };
    let (mut mover, mut cooldowns) = within(config, script);
    mover.enqueue(wanted(0, 64 * 512, 1, 1), 0, &cooldowns).unwrap();
    for batch in 1..=59 {
        assert!(mover.is_ready(0));
        mover.run(0, &mut cooldowns);
        assert_eq!(mover.system.lock().unwrap().sent.len(), batch * 512, "51 ms a run");
    }
    assert!(!mover.is_ready(0), "what is saved in 30 s, 3 s of calls, is spent");
    mover.run(0, &mut cooldowns);
    assert_eq!(mover.system.lock().unwrap().sent.len(), 59 * 512);
}

/// A kernel in which no call ends before a second one has begun.
#[derive(Default)]
struct Pairs(Mutex<u32>, Condvar);

impl MovePages for Pairs {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        if to.is_none() {
            status.fill(0);
            return Call { result: Ok(0), time_ns: 0 };
        }
        let mut calls = self.0.lock().unwrap();
        *calls += 1;
        self.1.notify_all();
        let (_calls, timeout) = self.1.wait_timeout_while(calls, Duration::from_secs(10), |calls| *calls < 2).unwrap();
        assert!(!timeout.timed_out(), "the other group's pages wait for these");
        status.fill(to.map_or(0, |to| to.0 as i32));
        Call { result: Ok(0), time_ns: addresses.len() as u64 }
    }
}

#[test]
fn two_groups_go_at_the_same_time_to_two_nodes_and_to_one() {
    for second in [2, 1] {
        let (mut mover, mut cooldowns) = (Mover::new(Pairs::default(), MoverConfig::default()), Cooldowns::new(64));
        mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
        mover.enqueue(wanted(4, 4, second, 1), 0, &cooldowns).unwrap();
        let outcomes = mover.run(0, &mut cooldowns);
        assert_eq!(outcomes.iter().map(|outcome| outcome.moved_pages).collect::<Vec<_>>(), [4, 4], "node {second}");
    }
}

/// A kernel in which calls wait for none, and the most that were under way at the same time.
#[derive(Default)]
struct Together(Mutex<(u32, u32)>);

impl MovePages for Together {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        status.fill(to.map_or(0, |to| to.0 as i32));
        if to.is_some() {
            {
                let mut calls = self.0.lock().unwrap();
                calls.0 += 1;
                calls.1 = calls.1.max(calls.0);
            }
            std::thread::sleep(Duration::from_millis(1));
            self.0.lock().unwrap().0 -= 1;
        }
        Call { result: Ok(0), time_ns: addresses.len() as u64 }
    }
}

#[test]
fn a_round_has_two_calls_for_each_node_and_eight_in_all() {
    let calls_to = |nodes: u32| {
        let (mut mover, mut cooldowns) = mover(Script::default());
        for at in 0..60 {
            mover.enqueue(wanted(u64::from(at) * 4, 4, at % nodes, 1), 0, &cooldowns).unwrap();
        }
        let round = mover.next_round(0, &mut cooldowns, &mut Run::default());
        (0..nodes)
            .map(|node| round.iter().filter(|taken| taken.job.outcome.to == NodeId(node)).count())
            .collect::<Vec<_>>()
    };
    assert_eq!((calls_to(1), calls_to(4), calls_to(6)), (vec![2], vec![2; 4], vec![2, 2, 1, 1, 1, 1]));
}

#[test]
fn groups_for_which_there_is_room_one_after_the_other_go_one_after_the_other() {
    let (mut mover, mut cooldowns) = (Mover::new(Together::default(), MoverConfig::default()), Cooldowns::new(64));
    let zoneinfo = "Node 1, zone Normal\n pages free 800\n high 64\n protection: (0, 0)\n";
    let room = ZoneRooms::parse(zoneinfo).map(|rooms| Room::new(&rooms, None)).expect("a zone");
    assert!(room.fits(NodeId(1), BATCH_PAGES) && !room.fits(NodeId(1), 2 * BATCH_PAGES));
    mover.set_room(Some(room));
    for group in 0..3 {
        mover.enqueue(wanted(512 * group, 100, 1, 1), 0, &cooldowns).unwrap();
    }
    let outcomes = mover.run(0, &mut cooldowns);
    let ended: Vec<_> =
        outcomes.iter().map(|outcome| (outcome.group.start, outcome.moved_pages, outcome.ended)).collect();
    assert_eq!(ended, [0, 512, 1024].map(|page| (page * PAGE_BYTES, 100, Ended::Done)));
    assert_eq!(mover.system.0.lock().unwrap().1, 1, "calls at the same time");
}

#[test]
fn nothing_is_ready_without_work_or_before_busy_pages_are_due() {
    let mut script = resident(4, 0);
    script.busy = [(0, 1)].into();
    let (mut mover, mut cooldowns) = mover(script);
    assert!(!mover.is_ready(0));
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    assert!(mover.is_ready(0));
    mover.run(0, &mut cooldowns);
    assert!(!mover.is_ready(1) && mover.is_ready(S));
}

#[test]
fn nothing_is_ready_that_must_wait_for_another_one_with_pages_in_common() {
    let mut script = resident(8, 0);
    script.busy = [(0, 1)].into();
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 6, 1, 1), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    mover.enqueue(wanted(4, 4, 2, 1), 0, &cooldowns).unwrap();
    assert!(!mover.is_ready(1), "its first pages are on their way elsewhere");
    assert!(mover.run(1, &mut cooldowns).is_empty());
    assert!(mover.is_ready(S), "busy pages are due");
}

#[test]
fn nothing_that_is_busy_is_asked_for_between_its_tries() {
    let mut script = resident(4, 0);
    script.busy = [(0, 1)].into();
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    let due_ns = MoverConfig::default().retry_after_ns[0];
    assert!(mover.run(due_ns - 1, &mut cooldowns).is_empty());
    assert_eq!(mover.system.lock().unwrap().sent.len(), 4);
    assert_eq!(mover.run(due_ns, &mut cooldowns)[0].moved_pages, 4);
}

#[test]
fn groups_that_waited_go_before_later_ones_in_their_order() {
    let mut script = resident(4, 0);
    script.busy = [(0, 1), (PAGE_BYTES, 1)].into();
    let (mut mover, mut cooldowns) = within(one_by_one(), script);
    (0..3).for_each(|page| mover.enqueue(wanted(page, 1, 1, 1), 0, &cooldowns).unwrap());
    assert_eq!(mover.run(0, &mut cooldowns)[0].group, group(2), "the first two wait");
    mover.enqueue(wanted(3, 1, 1, 1), 0, &cooldowns).unwrap();
    let outcomes = mover.run(S, &mut cooldowns);
    assert_eq!(outcomes.iter().map(|one| one.group).collect::<Vec<_>>(), [0, 1, 3].map(group));
}

#[test]
fn a_full_target_stops_all_moves_to_it_and_only_those() {
    let mut script = resident(12, 0);
    script.room = Some(2);
    let (mut mover, mut cooldowns) = within(one_by_one(), script);
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    mover.enqueue(wanted(4, 4, 1, 1), 0, &cooldowns).unwrap();
    let outcomes = mover.run(0, &mut cooldowns);
    assert_eq!((outcomes[0].moved_pages, outcomes[0].no_memory_pages), (2, 2));
    assert_eq!((outcomes[1].ended, outcomes[1].not_tried_pages), (Ended::TargetFull, 4));
    assert_eq!(mover.system.lock().unwrap().sent.len(), 3);
}

#[test]
fn a_failed_call_is_an_outcome() {
    for (error, ended) in [
        (CallError::ProcessGone, Ended::ProcessGone),
        (CallError::NotPermitted, Ended::NotPermitted),
        (CallError::NoSuchNode, Ended::NoSuchNode),
        (CallError::NodeNotAllowed, Ended::NodeNotAllowed),
        (CallError::Other(libc::EIO), Ended::Failed(libc::EIO)),
    ] {
        let mut script = resident(4, 0);
        script.error = Some(error);
        let (mut mover, mut cooldowns) = mover(script);
        mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
        let outcome = mover.run(0, &mut cooldowns).remove(0);
        assert_eq!((outcome.ended, outcome.not_tried_pages), (ended, 4));
    }
}

#[test]
fn a_page_does_not_move_twice_within_its_cooldown() {
    let (mut mover, mut cooldowns) = mover(resident(8, 0));
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    mover.enqueue(wanted(2, 4, 0, 1), 0, &cooldowns).unwrap();
    let outcomes = mover.run(0, &mut cooldowns);
    assert_eq!(outcomes[1].ended, Ended::Cooldown);
    assert_eq!(mover.enqueue(wanted(0, 4, 0, 2), 9 * S, &cooldowns), Err(Refused::Cooldown));
    assert_eq!(mover.enqueue(wanted(0, 4, 0, 2), 10 * S, &cooldowns), Ok(()));
}

#[test]
fn a_huge_page_counts_as_moved_whole() {
    let mut script = resident(512, 0);
    script.huge = Some(Follower::IsBusy);
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 512, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, 512);
}

#[test]
fn a_huge_page_that_was_busy_counts_as_moved_whole_and_goes_back_whole() {
    let mut script = resident(512, 0);
    (script.huge, script.busy) = (Some(Follower::IsBusy), [(0, 1)].into());
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(PageMove { huge: true, ..wanted(0, 512, 1, 1) }, 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty(), "it is busy");
    assert_eq!(mover.run(S, &mut cooldowns)[0].moved_pages, 512);
    mover.undo(Generation(1), S, S);
    assert_eq!(mover.run(2 * S, &mut cooldowns)[0].moved_pages, 512);
}

#[test]
fn huge_pages_and_others_have_their_own_prices() {
    let price = |huge| {
        let (mut mover, mut cooldowns) = mover(Script { huge, ..resident(512, 0) });
        mover.enqueue(wanted(0, 512, 1, 1), 0, &cooldowns).unwrap();
        assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, 512);
        (mover.cost_ns_per_page(), mover.cost_ns_per_huge_page())
    };
    assert_eq!(price(None), (Some(100.0), None));
    assert_eq!(
        [Follower::IsBusy, Follower::IsThere].map(|follower| price(Some(follower))),
        [(None, Some(51_200.0)); 2]
    );
    // Part of a huge page is none: what it costs tells nothing of either.
    let (mut part, mut cooldowns) = mover(Script { huge: Some(Follower::IsThere), ..resident(256, 0) });
    part.enqueue(wanted(0, 256, 1, 1), 0, &cooldowns).unwrap();
    part.run(0, &mut cooldowns);
    assert_eq!(part.cost_ns_per_huge_page(), None);
}

#[test]
fn undo_restores_every_page_and_holds_the_group() {
    let mut script = resident(8, 0);
    script.pages.insert(3 * PAGE_BYTES, 2);
    let before = script.pages.clone();
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 8, 1, 7), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    assert!(mover.undo(Generation(7), 1, 20 * S).is_empty());
    let outcomes = mover.run(1, &mut cooldowns);
    assert_eq!(mover.system.lock().unwrap().pages, before);
    assert_eq!(outcomes.iter().map(|outcome| outcome.moved_pages).sum::<u64>(), 8);
    let is_held = |at_ns| mover.is_held(group(0), PAGE_BYTES, at_ns);
    assert!(is_held(19 * S) && !is_held(21 * S));
    assert!(mover.undo_log().is_empty());
    let fresh = Cooldowns::new(1);
    assert_eq!(mover.enqueue(wanted(4, 4, 1, 8), S, &fresh), Err(Refused::Held));
}

#[test]
fn interleaved_pages_go_back_in_one_call_a_node_and_block() {
    let mut script = resident(2048, 0);
    script.pages.iter_mut().for_each(|(address, node)| *node = (address / PAGE_BYTES % 4) as i32);
    let before = script.pages.clone();
    let (mut mover, mut cooldowns) = mover(script);
    mover.enqueue(wanted(0, 2048, 1, 7), 0, &cooldowns).unwrap();
    assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, 1536);
    mover.undo(Generation(7), 1, S);
    assert_eq!(mover.queued_groups(), 12, "from three nodes, in four blocks");
    let calls_before = mover.system.lock().unwrap().calls;
    let outcomes = mover.run(1, &mut cooldowns);
    let sum = |count: fn(&Outcome) -> u64| outcomes.iter().map(count).sum::<u64>();
    assert_eq!((sum(|one| one.moved_pages), sum(|one| one.requested_pages)), (1536, 1536));
    let spans = outcomes.iter().map(|one| one.bytes / PAGE_BYTES).collect::<BTreeSet<_>>();
    assert_eq!(spans, [509].into(), "from the first of every fourth page of 512 to the last");
    let script = mover.system.lock().unwrap();
    assert_eq!((&script.pages, script.calls - calls_before), (&before, 24), "one asks, one sends");
}

#[test]
fn undo_leaves_pages_that_have_moved_on_and_stops_what_is_queued() {
    let (mut mover, mut cooldowns) = mover(resident(8, 0));
    mover.enqueue(wanted(0, 4, 1, 7), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    mover.system.lock().unwrap().pages.insert(0, 2);
    mover.enqueue(wanted(4, 4, 1, 7), 0, &cooldowns).unwrap();
    let stopped = mover.undo(Generation(7), 1, S);
    assert_eq!((stopped[0].ended, stopped[0].not_tried_pages), (Ended::Cancelled, 4));
    assert_eq!(mover.enqueue(wanted(4, 4, 1, 8), 2, &cooldowns), Err(Refused::Held), "it did not even move");
    let outcome = mover.run(1, &mut cooldowns).remove(0);
    assert_eq!((outcome.moved_pages, outcome.moved_on_pages), (3, 1));
    assert_eq!(mover.system.lock().unwrap().pages[&0], 2);
}

#[test]
fn a_plan_that_is_stopped_keeps_what_it_moved_and_leaves_the_ways_back_of_others() {
    let (mut mover, mut cooldowns) = mover(resident(4 * 512, 0));
    mover.enqueue(wanted(0, 512, 1, 6), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    mover.undo(Generation(6), 1, S);
    mover.set_paused(true);
    mover.enqueue(wanted(512, 512, 1, 7), 1, &cooldowns).unwrap();
    assert!(mover.is_paused() && mover.run(1, &mut cooldowns).is_empty());
    assert_eq!(mover.queued_of(Generation(7)), [(group(512), NodeId(1))]);
    let stopped = mover.stop(Generation(7), 1, &mut cooldowns);
    assert_eq!((stopped.len(), stopped[0].ended, stopped[0].not_tried_pages), (1, Ended::Cancelled, 512));
    mover.set_paused(false);
    let outcomes = mover.run(2, &mut cooldowns);
    assert_eq!((outcomes.len(), outcomes[0].moved_pages, outcomes[0].to), (1, 512, NodeId(0)), "the way back");
}

#[test]
fn cancelled_moves_send_nothing_more() {
    let (mut mover, mut cooldowns) = mover(resident(8, 0));
    mover.enqueue(wanted(0, 8, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(mover.cancel_all(0, &mut cooldowns)[0].ended, Ended::Cancelled);
    assert!(mover.run(S, &mut cooldowns).is_empty() && mover.system.lock().unwrap().sent.is_empty());
    assert_eq!((mover.queued_of(Generation(1)), cooldowns.len()), (vec![], 0));
    let odd = PageMove { group: GroupId { process: PROCESS, start: 1 }, ..wanted(0, 1, 1, 1) };
    assert_eq!(mover.enqueue(odd, 0, &cooldowns), Err(Refused::BadRange));
}
