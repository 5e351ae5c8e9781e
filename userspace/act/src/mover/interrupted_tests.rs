// SPDX-License-Identifier: GPL-2.0-only
//! What has been begun and is undone, stopped or cancelled, and in which order work is done.

use std::sync::Mutex;
use std::thread::{self, ThreadId};

use tandem_machine::ProgramId;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::tests::{S, Script, group, one_by_one, resident, wanted, within};
use super::*;
use crate::Call;

/// A mover that has moved the first 512 of 2048 pages from node 0 to node 1 for plan 7, and may move as many a second.
fn begun() -> (Mover<Mutex<Script>>, Cooldowns) {
    let (mut mover, mut cooldowns) = within(MoverConfig { pages_per_s: 512, ..one_by_one() }, resident(2048, 0));
    mover.enqueue(wanted(0, 2048, 1, 7), 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty());
    assert_eq!(pages_on(&mover, 1), 512);
    (mover, cooldowns)
}

fn pages_on(mover: &Mover<Mutex<Script>>, node: i32) -> usize {
    mover.system.lock().unwrap().pages.values().filter(|on| **on == node).count()
}

/// Whether the range is free: what is wanted of it now moves.
fn moves_again(mover: &mut Mover<Mutex<Script>>, at_ns: u64, cooldowns: &mut Cooldowns) -> bool {
    mover.enqueue(wanted(0, 512, 2, 8), at_ns, cooldowns).unwrap();
    mover.run(at_ns, cooldowns).iter().any(|outcome| outcome.moved_pages == 512) && pages_on(mover, 2) == 512
}

#[test]
fn what_a_plan_has_moved_of_a_group_goes_back_by_undo_and_the_rest_stays() {
    let (mut mover, mut cooldowns) = begun();
    let stopped = mover.undo(Generation(7), 1, S);
    assert_eq!((stopped.len(), stopped[0].moved_pages, stopped[0].not_tried_pages), (1, 512, 1536));
    let back = mover.run(S, &mut cooldowns);
    assert_eq!((back.len(), back[0].moved_pages, pages_on(&mover, 0)), (1, 512, 2048));
    assert!(moves_again(&mut mover, 3 * S, &mut cooldowns));
}

#[test]
fn what_a_stopped_plan_has_moved_of_a_group_stays_and_rests() {
    let (mut mover, mut cooldowns) = begun();
    let stopped = mover.stop(Generation(7), 1, &mut cooldowns);
    assert_eq!((stopped.len(), stopped[0].moved_pages, stopped[0].not_tried_pages), (1, 512, 1536));
    assert_eq!(mover.enqueue(wanted(0, 512, 0, 8), S, &cooldowns), Err(Refused::Cooldown));
    assert!(mover.run(2 * S, &mut cooldowns).is_empty());
    assert_eq!(pages_on(&mover, 1), 512);
    assert!(moves_again(&mut mover, 11 * S, &mut cooldowns));
}

#[test]
fn what_cancelled_moves_have_moved_stays_and_rests() {
    let (mut mover, mut cooldowns) = begun();
    let stopped = mover.cancel_all(1, &mut cooldowns);
    assert_eq!((stopped.len(), stopped[0].moved_pages, stopped[0].not_tried_pages), (1, 512, 1536));
    assert_eq!(mover.enqueue(wanted(0, 512, 0, 8), S, &cooldowns), Err(Refused::Cooldown));
    assert!(moves_again(&mut mover, 11 * S, &mut cooldowns));
}

#[test]
fn what_is_on_its_way_back_goes_on_when_plans_are_stopped() {
    let (mut mover, mut cooldowns) = begun();
    mover.undo(Generation(7), 1, S);
    mover.enqueue(wanted(4096, 4, 1, 8), 1, &cooldowns).unwrap();
    assert!(mover.is_returning());
    let stopped = mover.stop_plans(1, &mut cooldowns);
    let stopped: Vec<_> = stopped.iter().map(|outcome| (outcome.group, outcome.ended)).collect();
    assert_eq!((stopped, mover.is_returning()), (vec![(group(4096), Ended::Cancelled)], true));
    assert_eq!((mover.run(S, &mut cooldowns)[0].moved_pages, pages_on(&mover, 0)), (512, 2048));
    assert!(!mover.is_returning());
}

#[test]
fn ways_back_go_before_all_else_for_their_node_the_newest_first() {
    let (mut mover, mut cooldowns) = within(one_by_one(), resident(12, 0));
    (0..2).for_each(|at| mover.enqueue(wanted(4 * at, 4, 1, 7), 0, &cooldowns).unwrap());
    mover.run(0, &mut cooldowns);
    mover.system.lock().unwrap().pages.extend((8..12).map(|page| (page * PAGE_BYTES, 1)));
    mover.enqueue(wanted(8, 4, 0, 8), 1, &cooldowns).unwrap();
    mover.undo(Generation(7), 1, S);
    let order: Vec<_> = mover.run(1, &mut cooldowns).iter().map(|outcome| outcome.group).collect();
    assert_eq!(order, [4, 0, 8].map(group));
}

#[test]
fn more_groups_than_fit_the_queue_are_refused() {
    let (mut mover, cooldowns) = within(MoverConfig { queue_groups: 2, ..MoverConfig::default() }, resident(12, 0));
    let said: Vec<_> = (0..3).map(|at| mover.enqueue(wanted(4 * at, 4, 1, 1), 0, &cooldowns)).collect();
    assert_eq!(said, [Ok(()), Ok(()), Err(Refused::QueueFull)]);
}

/// Which thread went where, and which moved pages where.
#[derive(Default)]
struct Places {
    went: Mutex<Vec<(ThreadId, NodeId)>>,
    moved: Mutex<Vec<(ThreadId, NodeId)>>,
}

impl MovePages for Places {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn go_near(&self, node: NodeId) {
        self.went.lock().unwrap().push((thread::current().id(), node));
    }

    fn call(&self, _: ProcessId, _: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        status.fill(to.map_or(0, |to| to.0 as i32));
        self.moved.lock().unwrap().extend(to.map(|to| (thread::current().id(), to)));
        Call { result: Ok(0), time_ns: 1 }
    }
}

/// Takes no time of a CPU, but waits for something.
struct WaitsForLong(Duration);

impl MovePages for WaitsForLong {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _: ProcessId, _: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        thread::sleep(self.0);
        status.fill(to.map_or(0, |to| to.0 as i32));
        Call { result: Ok(0), time_ns: 1 }
    }
}

#[test]
fn a_run_whose_calls_wait_for_long_ends_all_the_same() {
    let config = MoverConfig { calls: 1, ..MoverConfig::default() };
    let system = WaitsForLong(Duration::from_nanos(config.run_ns));
    let (mut mover, mut cooldowns) = (Mover::new(system, config), Cooldowns::new(64));
    for at in 0..20 {
        mover.enqueue(wanted(4 * at, 4, 1, 1), 0, &cooldowns).unwrap();
    }
    let mut left = || {
        mover.run(0, &mut cooldowns);
        mover.queued_groups()
    };
    assert!(left() >= 17);
    let runs = (1..100).find(|_| left() == 0);
    assert!(runs.is_some_and(|runs| runs >= 5), "{runs:?}");
}

#[test]
fn of_several_calls_each_is_made_near_its_node_and_a_single_one_where_the_caller_is() {
    let near = |nodes: &[u32]| {
        let (mut mover, mut cooldowns) = (Mover::new(Places::default(), MoverConfig::default()), Cooldowns::new(64));
        for (at, to) in nodes.iter().enumerate() {
            mover.enqueue(wanted(4 * at as u64, 4, *to, 1), 0, &cooldowns).unwrap();
        }
        assert_eq!(mover.run(0, &mut cooldowns).len(), nodes.len());
        let Places { went, moved } = mover.system;
        (went.into_inner().unwrap(), moved.into_inner().unwrap())
    };
    let (went, moved) = near(&[1]);
    assert_eq!((went, moved), (vec![], vec![(thread::current().id(), NodeId(1))]));
    let (mut went, mut moved) = near(&[1, 2]);
    went.sort_by_key(|one| one.1);
    moved.sort_by_key(|one| one.1);
    assert_eq!((went.len(), &went), (2, &moved));
    assert!(went.iter().all(|one| one.0 != thread::current().id()));
}

#[test]
fn a_budget_that_comes_slowly_comes_all_the_same() {
    let mut bucket = Bucket::new(1, 2);
    bucket.spend(3);
    for tenth in 1..=30 {
        bucket.refill(S / 10);
        assert_eq!((bucket.has(1), bucket.has(2)), (tenth >= 20, tenth >= 30), "{tenth}");
    }
    bucket.refill(1000 * S);
    assert!(bucket.has(2) && !bucket.has(3), "no more than it holds");
}
