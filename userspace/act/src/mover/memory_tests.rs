// SPDX-License-Identifier: GPL-2.0-only
//! The mover and what is seen of the machine's memory.

use std::fs;

use tempfile::TempDir;

use super::tests::{S, mover, resident, wanted};
use super::*;
use crate::{MemoryNotice, MemoryWatch};

const LOOK_NS: u64 = S / 10;

/// A /proc with as much pressure as is told.
struct Proc(TempDir);

impl Proc {
    fn new() -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        fs::create_dir(proc.0.path().join("pressure")).unwrap();
        proc
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
    assert_eq!((mover.queued_groups(), mover.system.sent.len()), (2, 0));
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
fn a_kernel_that_does_not_tell_is_said_once_and_stops_nothing() {
    let (proc, (mut mover, mut cooldowns)) = (Proc::new(), mover(resident(4, 0)));
    let mut watch = proc.watch();
    mover.enqueue(wanted(0, 4, 1, 1), 0, &cooldowns).unwrap();
    let notices = watch.look(&mut mover, 0);
    assert!(matches!(&notices[..], [MemoryNotice::PressureUnknown { why }] if why.contains("pressure/memory")));
    assert_eq!(watch.look(&mut mover, LOOK_NS), []);
    assert_eq!(mover.run(LOOK_NS, &mut cooldowns)[0].moved_pages, 4);
}
