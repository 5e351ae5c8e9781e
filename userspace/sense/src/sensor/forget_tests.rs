// SPDX-License-Identifier: GPL-2.0-only
//! Threads whose process runs another program.

use tandem_policies::model::{GroupId, NodeId, NodeIndex, ProcessId, Snapshot, ThreadId};

use super::super::Sensor;
use super::super::tests::{SECOND, account_of, batch_on, process, told_sensor};
use crate::access::{Batch, Window};
use crate::affinity::GROUP_BYTES;
use crate::testing::topology;

const THREAD: ThreadId = ThreadId { tid: 5, start_boottime_ns: 1 };

/// What `lookahead` sees in so many looks at the thread: in each one access to `address`, if any.
fn looks(count: u64, address: Option<u64>) -> Batch {
    let window = |look| Window { process: process(), tid: THREAD.tid, time_ns: 2 * SECOND + look, instructions: 256 };
    let access = |(look, address)| {
        let mut access = batch_on(address, None).accesses[0];
        (access.tid, access.time_ns, access.measured) = (THREAD.tid, 2 * SECOND + look, None);
        access
    };
    let accesses = (0..count).filter_map(|look| Some((look, address?))).map(access).collect();
    Batch { accesses, windows: (0..count).map(window).collect(), counts: Vec::new() }
}

/// The snapshot after a second in which all this was seen, with all memory on the first node.
fn snapshot(sensor: &mut Sensor, seen: &Batch) -> Snapshot {
    if let Some(access) = seen.accesses.first() {
        let group = GroupId { process: process(), start: access.address / GROUP_BYTES * GROUP_BYTES };
        sensor.known_homes.put(2, vec![(group, vec![512, 0].into())], SECOND);
    }
    sensor.pending.add(seen);
    sensor.snapshot(&topology(2), vec![account_of(THREAD.tid)], SECOND, 2 * SECOND, |_, _| None)
}

#[test]
fn a_thread_is_not_known_by_what_it_did_in_another_program() {
    let memory = vec![1_u8; 5 << 20];
    let address = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    for seen in [Some(address), None] {
        let mut sensor = told_sensor(&topology(2));
        let before = snapshot(&mut sensor, &looks(40, seen)).threads.remove(0);
        assert!(before.accesses_per_s.is_some() && sensor.knows_well([THREAD], 1.0));
        assert_eq!(before.performance[NodeIndex(0)].is_some(), seen.is_some());
        sensor.pending.add(&looks(40, seen));
        sensor.forget(&[ProcessId(process().0 + 1)].into());
        assert!(sensor.knows_well([THREAD], 1.0), "another one is gone");
        sensor.forget(&[process()].into());
        assert!(!sensor.knows_well([THREAD], 1.0));
        let after = snapshot(&mut sensor, &looks(1, Some(address))).threads.remove(0);
        assert_eq!((after.accesses_per_s, after.performance[NodeIndex(0)]), (None, None));
    }
}

#[test]
fn what_a_thread_did_in_another_program_makes_its_rate_no_smaller() {
    let memory = vec![1_u8; 5 << 20];
    let address = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    let rate = |before: u64| {
        let mut sensor = told_sensor(&topology(2));
        snapshot(&mut sensor, &looks(before, Some(address)));
        sensor.forget(&[process()].into());
        snapshot(&mut sensor, &looks(40, Some(address))).groups[0].accesses_per_s[NodeIndex(0)]
    };
    assert_eq!((rate(400), rate(40)), (rate(0), rate(0)));
}

#[test]
fn memory_where_the_last_program_never_was_is_no_turn() {
    let memory = vec![1_u8; 5 << 20];
    let near = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    for (runs, turns) in [(ProcessId(process().0 + 1), true), (process(), false)] {
        let mut sensor = told_sensor(&topology(2));
        snapshot(&mut sensor, &looks(40, Some(near)));
        sensor.forget(&[runs].into());
        sensor.pending.add(&batch_on(near + GROUP_BYTES, Some(NodeId(2))));
        // Of the regions of a program that is forgotten nothing is known before its next snapshot.
        sensor.regions.refresh(process(), 2 * SECOND);
        assert_eq!(sensor.sees_turn(2 * SECOND), turns);
    }
}
