// SPDX-License-Identifier: GPL-2.0-only
//! The mover and what is seen of the machine's memory.

use std::fs;

use tempfile::TempDir;

use super::tests::{Follower, S, mover, resident, wanted};
use super::*;
use crate::room::SPARE_HUGE_PAGES;
use crate::{MemoryNotice, MemoryWatch};

const LOOK_NS: u64 = S / 10;

/// A /proc with as much pressure as is told, and at first with room on nodes 0 and 1, in large blocks.
struct Proc(TempDir);

impl Proc {
    fn new() -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        fs::create_dir(proc.0.path().join("pressure")).unwrap();
        proc.set_room([1 << 20, 1 << 20]);
        proc.set_huge_blocks([99, 99]);
        proc
    }

    /// Free blocks of 2 MiB beside the few that are left alone; of smaller ones there are many.
    fn set_huge_blocks(&self, blocks: [u64; 2]) {
        let free = blocks.map(|blocks| blocks + SPARE_HUGE_PAGES);
        let zone = |node: usize| format!("Node {node}, zone Normal 9999 9 9 9 9 9 9 9 9 {} 0\n", free[node]);
        fs::write(self.0.path().join("buddyinfo"), zone(0) + &zone(1)).unwrap();
    }

    /// Pages above the watermark of 100.
    fn set_room(&self, pages: [u64; 2]) {
        let zone = |node| {
            let free = pages[node] + 100;
            format!("Node {node}, zone Normal\n  pages free {free}\n high 100\n protection: (0, 0, 0)\n")
        };
        fs::write(self.0.path().join("zoneinfo"), zone(0) + &zone(1)).unwrap();
    }

    fn set_pressure(&self, percent: &str) {
        let text = format!("some avg10={percent} avg60=0.00 avg300=0.00 total=3068794\nfull avg10=0.00 total=1\n");
        fs::write(self.0.path().join("pressure/memory"), text).unwrap();
    }

    fn watch(&self) -> MemoryWatch {
        MemoryWatch::new(self.0.path(), MoverConfig::default())
    }
}

#[test]
fn moves_wait_under_pressure_and_none_is_lost() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(1024, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("12.50");
    for first in [0, 512] {
        mover.enqueue(wanted(first, 512, 1, 1), 0, &cooldowns).unwrap();
    }
    let began = MemoryNotice::PressureBegan { waited_percent: 12.5, end_percent: 5.0 };
    assert_eq!(watch.look(&mut mover, 0), [began]);
    for look in 1..50 {
        assert_eq!(watch.look(&mut mover, look * LOOK_NS), [], "said once");
        assert_eq!(mover.run(look * LOOK_NS, &mut cooldowns), []);
    }
    assert_eq!((mover.queued_groups(), mover.system.lock().unwrap().sent.len()), (2, 0));
    assert!(!mover.is_ready(50 * LOOK_NS), "nobody waits for it without a pause");
    proc.set_pressure("4.00");
    assert_eq!(watch.look(&mut mover, 50 * LOOK_NS), [MemoryNotice::PressureEnded]);
    let outcomes = mover.run(50 * LOOK_NS, &mut cooldowns);
    assert_eq!(outcomes.iter().map(|outcome| outcome.moved_pages).collect::<Vec<_>>(), [512, 512]);
}

#[test]
fn pressure_ends_also_when_the_moves_that_waited_were_cancelled() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(4, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("80.00");
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(watch.look(&mut mover, 0).len(), 1);
    mover.cancel_all(0, &mut cooldowns);
    proc.set_pressure("0.00");
    assert_eq!(watch.look(&mut mover, LOOK_NS), [MemoryNotice::PressureEnded]);
}

#[test]
fn an_idle_mover_and_one_that_looked_just_now_read_nothing() {
    let (proc, (mut mover, cooldowns)) = (Proc::new(), mover(resident(4, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("80.00");
    assert_eq!(watch.look(&mut mover, 0), [], "nothing is queued");
    proc.set_pressure("0.00");
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(watch.look(&mut mover, LOOK_NS), []);
    proc.set_pressure("80.00");
    assert_eq!(watch.look(&mut mover, 2 * LOOK_NS - 1), [], "not before its time");
    assert_eq!(watch.look(&mut mover, 2 * LOOK_NS).len(), 1);
}

#[test]
fn pressure_is_seen_before_there_is_anything_to_move() {
    let (proc, (mut mover, _)) = (Proc::new(), mover(resident(4, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("80.00");
    assert_eq!(watch.look_ahead(&mut mover, 0).len(), 1);
    assert!(mover.is_paused());
    proc.set_pressure("0.00");
    assert_eq!(watch.look_ahead(&mut mover, 1), [MemoryNotice::PressureEnded]);
    assert!(!mover.is_paused());
}

#[test]
fn a_kernel_that_does_not_tell_is_said_once_and_stops_nothing() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(4, 0)));
    let mut watch = proc.watch();
    fs::remove_file(proc.0.path().join("zoneinfo")).unwrap();
    fs::write(proc.0.path().join("buddyinfo"), "no zones").unwrap();
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    let notices = watch.look(&mut mover, 0);
    let [
        MemoryNotice::PressureUnknown { why: pressure },
        MemoryNotice::RoomUnknown { why: room },
        MemoryNotice::BlocksUnknown { why: blocks },
    ] = &notices[..]
    else {
        panic!("{notices:?}")
    };
    assert!(pressure.contains("pressure/memory") && room.contains("zoneinfo"), "{notices:?}");
    assert!(blocks.contains("buddyinfo: it does not have what is expected"), "{notices:?}");
    assert_eq!(watch.look(&mut mover, LOOK_NS), []);
    assert_eq!(mover.run(LOOK_NS, &mut cooldowns)[0].moved_pages, 4);
}

#[test]
fn a_node_below_its_watermark_gets_nothing_and_is_not_asked_for() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(1024, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    proc.set_room([1 << 20, BATCH_PAGES - 1]);
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    mover.enqueue(wanted(512, 512, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(watch.look(&mut mover, 0), []);
    let outcomes = mover.run(0, &mut cooldowns);
    let told: Vec<_> = outcomes.iter().map(|one| (one.ended, one.not_tried_pages, one.time_ns)).collect();
    assert_eq!(told, [(Ended::TargetFull, 4, 0), (Ended::TargetFull, 512, 0)]);
    assert_eq!((mover.system.lock().unwrap().calls, mover.queued_groups()), (0, 0));
    // The next plan would meet the same.
    let again = |mover: &mut Mover<_>, now_ns| mover.enqueue(wanted(0, 4, 1, 2), now_ns, &cooldowns);
    assert_eq!((again(&mut mover, 9 * S), again(&mut mover, 10 * S)), (Err(Refused::Cooldown), Ok(())));
}

#[test]
fn moves_stop_at_the_watermark_and_go_on_where_memory_was_freed() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(4096, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    proc.set_room([1 << 20, 1200]);
    mover.enqueue(wanted(0, 2048, 1, 1), 0, &cooldowns).unwrap();
    watch.look(&mut mover, 0);
    let outcome = mover.run(0, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.moved_pages, outcome.not_tried_pages), (Ended::TargetFull, 1024, 1024));
    proc.set_room([1 << 20, 512]);
    mover.enqueue(wanted(2048, 512, 1, 2), S, &cooldowns).unwrap();
    watch.look(&mut mover, S);
    assert_eq!(mover.run(S, &mut cooldowns)[0].moved_pages, 512);
}

#[test]
fn a_full_node_can_still_give_pages_back() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(512, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    mover.enqueue(wanted(0, 512, 1, 7), 0, &cooldowns).unwrap();
    watch.look(&mut mover, 0);
    mover.run(0, &mut cooldowns);
    proc.set_room([1 << 20, 0]);
    mover.undo(Generation(7), S, S);
    watch.look(&mut mover, S);
    assert_eq!(mover.run(S, &mut cooldowns)[0].moved_pages, 512);
}

fn huge(page: u64, pages: u64, to: u32, generation: u64) -> PageMove {
    PageMove { huge: true, ..wanted(page, pages, to, generation) }
}

#[test]
fn a_huge_page_does_not_go_where_memory_is_in_pieces_but_base_pages_do() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(1024, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    proc.set_huge_blocks([99, 0]);
    mover.enqueue(huge(0, 512, 1, 1), 0, &cooldowns).unwrap();
    mover.enqueue(wanted(512, 512, 1, 1), 0, &cooldowns).unwrap();
    assert_eq!(watch.look(&mut mover, 0), []);
    let outcomes = mover.run(0, &mut cooldowns);
    let told: Vec<_> = outcomes.iter().map(|one| (one.ended, one.moved_pages, one.not_tried_pages)).collect();
    assert_eq!(told, [(Ended::TargetFragmented, 0, 512), (Ended::Done, 512, 0)]);
    // The next plan would meet the same.
    assert_eq!(mover.enqueue(huge(0, 512, 1, 2), 59 * S, &cooldowns), Err(Refused::Cooldown));
    proc.set_huge_blocks([99, 1]);
    mover.enqueue(huge(0, 512, 1, 3), 60 * S, &cooldowns).unwrap();
    watch.look(&mut mover, 60 * S);
    assert_eq!(mover.run(60 * S, &mut cooldowns)[0].moved_pages, 512);
}

#[test]
fn huge_pages_that_came_since_the_last_look_have_taken_their_blocks() {
    let mut script = resident(2048, 0);
    script.huge = Some(Follower::IsThere);
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(script));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    proc.set_huge_blocks([99, 2]);
    mover.enqueue(huge(0, 2048, 1, 1), 0, &cooldowns).unwrap();
    watch.look(&mut mover, 0);
    let outcome = mover.run(0, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.moved_pages), (Ended::TargetFragmented, 1024));
}

#[test]
fn a_huge_page_goes_back_once_a_block_is_free() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(512, 0)));
    let mut watch = proc.watch();
    proc.set_pressure("0.00");
    mover.enqueue(huge(0, 512, 1, 7), 0, &cooldowns).unwrap();
    watch.look(&mut mover, 0);
    assert_eq!(mover.run(0, &mut cooldowns)[0].moved_pages, 512);
    proc.set_huge_blocks([0, 99]);
    mover.undo(Generation(7), S, S);
    watch.look(&mut mover, S);
    let calls = mover.system.lock().unwrap().calls;
    assert!(mover.run(S, &mut cooldowns).is_empty() && mover.queued_groups() == 1);
    assert_eq!(mover.system.lock().unwrap().calls, calls, "it is not tried");
    proc.set_huge_blocks([1, 99]);
    watch.look(&mut mover, 2 * S);
    let outcome = mover.run(2 * S, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.moved_pages), (Ended::Done, 512));
}
