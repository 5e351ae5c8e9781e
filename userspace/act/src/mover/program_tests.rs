// SPDX-License-Identifier: GPL-2.0-only
//! Processes that end, are left alone or run another program while their pages are queued, can be undone or are held.

use std::sync::Mutex;

use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::tests::{PROCESS, S, Script, group, one_by_one, resident, wanted, within};
use super::*;
use crate::programs::tests::programs;

/// A mover that has moved the first 512 of 1024 pages of a process that runs program 1, and may move as many a second.
fn begun() -> (Mover<Mutex<Script>>, Cooldowns) {
    let mut script = resident(1024, 0);
    script.program = Some(1);
    let (mut mover, mut cooldowns) = within(MoverConfig { pages_per_s: 512, ..one_by_one() }, script);
    assert!(mover.follow(&programs(&[(PROCESS.0, 1)])).is_empty());
    mover.enqueue(wanted(0, 1024, 1, 7), 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty());
    assert_eq!(sent(&mover), 512);
    (mover, cooldowns)
}

fn sent(mover: &Mover<Mutex<Script>>) -> usize {
    mover.system.lock().unwrap().sent.len()
}

fn runs(mover: &Mover<Mutex<Script>>, program: Option<u64>) {
    mover.system.lock().unwrap().program = program;
}

#[test]
fn nothing_goes_of_a_process_that_runs_another_program_since_it_was_looked_at() {
    for program in [Some(2), None] {
        let (mut mover, mut cooldowns) = begun();
        runs(&mover, program);
        let outcome = mover.run(S, &mut cooldowns).remove(0);
        assert_eq!((outcome.ended, outcome.moved_pages, outcome.not_tried_pages), (Ended::ProcessGone, 512, 512));
        assert_eq!((sent(&mover), mover.queued_groups()), (512, 0), "program {program:?}");
    }
}

#[test]
fn nothing_goes_back_in_a_process_that_runs_another_program_since_it_was_looked_at() {
    let (mut mover, mut cooldowns) = begun();
    mover.undo(Generation(7), S, S);
    runs(&mover, Some(2));
    let outcome = mover.run(S, &mut cooldowns).remove(0);
    assert_eq!((outcome.ended, outcome.not_tried_pages), (Ended::ProcessGone, 512));
    assert_eq!(sent(&mover), 512);
}

#[test]
fn all_goes_on_while_a_process_runs_the_same_program() {
    let (mut mover, mut cooldowns) = begun();
    assert!(mover.follow(&programs(&[(PROCESS.0, 1), (PROCESS.0 + 1, 1)])).is_empty(), "another one came");
    assert_eq!(mover.run(S, &mut cooldowns)[0].moved_pages, 1024);
    mover.undo(Generation(7), 2 * S, S);
    mover.run(2 * S, &mut cooldowns);
    mover.run(3 * S, &mut cooldowns);
    assert_eq!(sent(&mover), 2048);
}

#[test]
fn what_is_queued_ends_when_its_process_is_gone_and_when_it_is_left_alone() {
    let (another, none) = (programs(&[(PROCESS.0, 2)]), programs(&[]));
    for (told, runs_now, expected) in [
        (&another, Some(2), Ended::ProcessGone),
        (&none, None, Ended::ProcessGone),
        (&none, Some(2), Ended::ProcessGone),
        (&none, Some(1), Ended::Cancelled),
    ] {
        let (mut mover, _) = begun();
        runs(&mover, runs_now);
        let stopped = mover.follow(told);
        let ended: Vec<_> = stopped.iter().map(|one| (one.ended, one.moved_pages, one.not_tried_pages)).collect();
        assert_eq!(ended, [(expected, 512, 512)], "{told:?}, runs {runs_now:?}");
        assert_eq!(mover.queued_groups(), 0);
    }
}

#[test]
fn the_next_program_has_no_past() {
    let (mut mover, mut cooldowns) = begun();
    mover.undo(Generation(7), 0, 60 * S);
    assert!(mover.is_held(group(0), PAGE_BYTES, S));
    runs(&mover, Some(2));
    let stopped = mover.follow(&programs(&[(PROCESS.0, 2)]));
    assert_eq!(stopped.iter().map(|one| one.purpose).collect::<Vec<_>>(), [Purpose::Undo { from: NodeId(1) }]);
    assert!(!mover.is_held(group(0), PAGE_BYTES, S));
    mover.enqueue(wanted(0, 512, 1, 8), S, &cooldowns).unwrap();
    assert_eq!(
        mover.run(S, &mut cooldowns)[0].already_there_pages,
        512,
        "what was begun of the last one is in nobody's way"
    );
}

#[test]
fn what_moved_before_is_not_undone_in_the_next_program() {
    let (mut mover, _) = begun();
    let (entries, stopped) = (mover.undo_log().len(), mover.follow(&programs(&[(PROCESS.0, 2)])).len());
    assert_eq!((entries, stopped, mover.undo_log().len()), (1, 1, 0));
    mover.undo(Generation(7), S, S);
    assert_eq!(mover.queued_groups(), 0);
}

#[test]
fn only_pages_of_processes_that_are_there_are_queued() {
    let (mut mover, cooldowns) = begun();
    let of_another = GroupId { process: ProcessId(PROCESS.0 + 1), ..group(0) };
    let wanted = PageMove { group: of_another, ..wanted(0, 4, 1, 8) };
    assert_eq!(mover.enqueue(wanted, S, &cooldowns), Err(Refused::ProcessGone));
    mover.follow(&programs(&[(PROCESS.0, 1), (PROCESS.0 + 1, 1)]));
    assert_eq!(mover.enqueue(wanted, S, &cooldowns), Ok(()));
}
