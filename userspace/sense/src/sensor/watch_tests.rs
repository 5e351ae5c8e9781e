// SPDX-License-Identifier: GPL-2.0-only
//! Threads that turn to memory on the other node, as few looks at them show it.

use std::collections::BTreeMap;

use tandem_policies::model::{GroupId, NodeId, NodeIndex, PerNode, ProcessId, Snapshot, ThreadId, Topology};

use super::super::Sensor;
use super::super::tests::{SECOND, account_of, batch_on, process, told_sensor};
use crate::access::Access;
use crate::affinity::GROUP_BYTES;
use crate::testing::topology;

const LOOK_NS: u64 = SECOND / 10;
/// Accesses that a look shows.
const ACCESSES: usize = 8;
const TIDS: [u32; 2] = [5, 6];

/// Two threads of this process, and memory on either node.
struct Program {
    sensor: Sensor,
    machine: Topology,
    groups: [GroupId; 2],
    _memory: Vec<u8>,
    begun_ns: u64,
}

impl Program {
    fn new() -> Self {
        let (machine, memory) = (topology(2), vec![1_u8; 5 << 20]);
        let start = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
        let sensor = told_sensor(&machine);
        let groups = [0, 1].map(|at| GroupId { process: process(), start: start + at * GROUP_BYTES });
        Self { sensor, machine, groups, _memory: memory, begun_ns: 0 }
    }

    /// One look at a thread, which works on memory of this node.
    fn look(&mut self, tid: u32, node: usize, time_ns: u64) {
        let mut seen = batch_on(self.groups[node].start + 4096, Some([NodeId(0), NodeId(2)][node]));
        seen.accesses.truncate(ACCESSES);
        seen.accesses.iter_mut().for_each(|access| (access.tid, access.time_ns) = (tid, time_ns));
        self.sensor.pending.add(&seen);
    }

    /// Looks at both threads at their home, node 0, from here on, and the snapshot then. Returns the time.
    fn at_home(&mut self, looks: u64) -> u64 {
        for at in 0..looks {
            TIDS.iter().for_each(|&tid| self.look(tid, 0, SECOND + at * LOOK_NS));
        }
        let now_ns = SECOND + looks * LOOK_NS;
        self.snapshot(now_ns);
        now_ns
    }

    fn snapshot(&mut self, now_ns: u64) -> Snapshot {
        let homes =
            self.groups.into_iter().zip([[512, 0], [0, 512]]).map(|(group, pages)| (group, pages.to_vec().into()));
        self.sensor.known_homes.put(2, homes.collect(), now_ns);
        let accounts = TIDS.map(account_of).to_vec();
        let start_ns = std::mem::replace(&mut self.begun_ns, now_ns);
        self.sensor.snapshot(&self.machine, accounts, start_ns, now_ns, |_, _| None)
    }
}

/// Shares of node 1 in the accesses of each thread, where they are known.
fn shares_away(snapshot: &Snapshot) -> [Option<f64>; 2] {
    let share = |at: usize| snapshot.threads[at].accesses_per_s.as_ref().map(|row| row[NodeIndex(1)] / row.total());
    [share(0), share(1)]
}

#[test]
fn three_looks_where_a_thread_never_was_tell_that_it_turned_and_where_to() {
    let mut program = Program::new();
    let begin_ns = program.at_home(20);
    for (look, turned) in [false, false, true].into_iter().enumerate() {
        let now_ns = begin_ns + look as u64 * LOOK_NS;
        program.look(TIDS[0], 1, now_ns);
        program.look(TIDS[1], 0, now_ns);
        assert_eq!(program.sensor.sees_turn(now_ns), turned, "look {look}");
    }
    let snapshot = program.snapshot(begin_ns + 3 * LOOK_NS);
    assert_eq!(shares_away(&snapshot), [Some(1.0), Some(0.0)]);
    assert_eq!(snapshot.threads.iter().map(|thread| thread.turned_ns.is_some()).collect::<Vec<_>>(), [true, false]);
    let later = program.snapshot(begin_ns + 20 * LOOK_NS);
    assert_eq!(shares_away(&later)[0], Some(1.0), "it is still known");
    let much_later = program.snapshot(begin_ns + 50 * LOOK_NS);
    let per_s = |snapshot: &Snapshot| snapshot.threads[0].accesses_per_s.as_ref().map(PerNode::total).expect("watched");
    let (soon, late) = (per_s(&later), per_s(&much_later));
    assert!(late < 0.5 * soon, "hardware that watched it for four seconds saw nothing new: {soon}, {late}");
}

#[test]
fn an_entry_weighs_as_much_as_all_that_it_stands_for() {
    let mut program = Program::new();
    let now_ns = program.at_home(1);
    let mut seen = batch_on(program.groups[0].start, None);
    seen.accesses.truncate(ACCESSES);
    let one = |access: &mut Access| (access.tid, access.time_ns, access.measured) = (TIDS[0], now_ns, None);
    seen.accesses.iter_mut().for_each(one);
    let weight = |program: &Program| -> f64 {
        program
            .sensor
            .watch
            .windows
            .iter()
            .filter(|(thread, _)| thread.tid == TIDS[0])
            .map(|of| of.1.row.weights.total())
            .sum()
    };
    let before = weight(&program);
    program.sensor.pending.add(&seen);
    assert_eq!(program.sensor.pending.accesses.len(), 1);
    program.sensor.sees_turn(now_ns);
    assert!((weight(&program) - before - ACCESSES as f64).abs() < 1e-9, "{before}, {}", weight(&program));
}

#[test]
fn what_is_dropped_after_it_was_looked_at_is_not_looked_for_and_the_rest_is() {
    let mut program = Program::new();
    let now_ns = program.at_home(1);
    program.look(TIDS[0], 0, now_ns);
    program.sensor.sees_turn(now_ns);
    program.look(TIDS[1], 0, now_ns);
    let pending = |program: &Program| program.sensor.pending.accesses.len();
    let (all, looked_at) = (pending(&program), program.sensor.watch.from);
    program.sensor.forget(&[ProcessId(1)].into());
    assert_eq!((pending(&program), program.sensor.watch.from), (all, looked_at), "another one is gone");
    program.sensor.forget(&[process()].into());
    assert_eq!((pending(&program), program.sensor.watch.from), (0, 0));
    program.sensor.sees_turn(now_ns);
}

#[test]
fn others_that_turn_with_it_are_told_by_one_look() {
    for (delay_looks, turns) in [(1, true), (9, true), (15, false)] {
        let mut program = Program::new();
        let begin_ns = program.at_home(32);
        (0..3).for_each(|look| program.look(TIDS[0], 1, begin_ns + look * LOOK_NS));
        program.snapshot(begin_ns + 3 * LOOK_NS);
        let now_ns = begin_ns + (3 + delay_looks) * LOOK_NS;
        program.snapshot(now_ns - LOOK_NS);
        program.look(TIDS[1], 1, now_ns);
        assert_eq!(program.sensor.sees_turn(now_ns), turns, "after {delay_looks} looks");
        let share = shares_away(&program.snapshot(now_ns))[1].expect("a thread that is known");
        assert_eq!(share == 1.0, turns, "after {delay_looks} looks: {share}");
    }
}

/// Whether too little is known of a thread that was looked at so often `before` another one turned, and `beside` that.
fn is_hardly_seen(before: u64, beside: u64) -> bool {
    let mut program = Program::new();
    let home_ns = program.at_home(20);
    for look in 0..before {
        TIDS.iter().for_each(|&tid| program.look(tid, 0, home_ns + look * LOOK_NS));
    }
    let begin_ns = home_ns + before * LOOK_NS;
    for look in 0..3 {
        let now_ns = begin_ns + look * LOOK_NS;
        program.look(TIDS[0], 1, now_ns);
        if look < beside {
            program.look(TIDS[1], 0, now_ns);
        }
        assert_eq!(program.sensor.sees_turn(now_ns), look == 2, "look {look}");
    }
    let now_ns = begin_ns + 3 * LOOK_NS;
    let snapshot = program.snapshot(now_ns);
    assert!(!program.sensor.is_hardly_seen_since_turn(snapshot.threads[0].id), "three looks told that it turned");
    let is_hardly_seen = program.sensor.is_hardly_seen_since_turn(snapshot.threads[1].id);
    let later = program.snapshot(now_ns + LOOK_NS);
    assert!(later.threads.iter().all(|thread| !program.sensor.is_hardly_seen_since_turn(thread.id)), "no turn since");
    is_hardly_seen
}

#[test]
fn one_look_since_another_one_turned_does_not_tell_whether_a_thread_did_too() {
    assert!(is_hardly_seen(0, 0) && is_hardly_seen(0, 1), "the one look may have been before it did");
    assert!(is_hardly_seen(20, 1), "what it did before the turn says nothing");
    assert!(!is_hardly_seen(0, 2));
    assert!(!is_hardly_seen(20, 2), "what tells that it stayed is kept until the snapshot");
}

#[test]
fn a_thread_that_turned_is_judged_by_its_own_turn_and_not_by_one_after_it() {
    let mut program = Program::new();
    let begin_ns = program.at_home(20);
    for look in 0..3 {
        program.look(TIDS[0], 1, begin_ns + look * LOOK_NS);
        program.look(TIDS[1], usize::from(look == 2), begin_ns + look * LOOK_NS);
    }
    let snapshot = program.snapshot(begin_ns + 3 * LOOK_NS);
    assert!(snapshot.threads.iter().all(|thread| thread.turned_ns == Some(snapshot.time_ns)));
    let hardly_seen: Vec<bool> =
        snapshot.threads.iter().map(|thread| program.sensor.is_hardly_seen_since_turn(thread.id)).collect();
    assert_eq!(hardly_seen, [false, true], "one look told of the second one");
}

#[test]
fn without_a_turn_nobody_is_hardly_seen_since_one() {
    let mut program = Program::new();
    let now_ns = program.at_home(20);
    let snapshot = program.snapshot(now_ns + LOOK_NS);
    assert!(snapshot.threads.iter().all(|thread| !program.sensor.is_hardly_seen_since_turn(thread.id)));
}

#[test]
fn a_thread_that_just_began_is_not_known_by_its_turn() {
    for (looks, is_known) in [(5, false), (12, true)] {
        let mut program = Program::new();
        let begin_ns = program.at_home(looks);
        (0..5).for_each(|look| program.look(TIDS[0], 1, begin_ns + look * LOOK_NS));
        let snapshot = program.snapshot(begin_ns + 5 * LOOK_NS);
        let have_turned: Vec<bool> = snapshot.threads.iter().map(|thread| thread.turned_ns.is_some()).collect();
        assert_eq!((have_turned, shares_away(&snapshot)[0].is_some()), (vec![true, false], is_known), "{looks}");
    }
}

#[test]
fn a_surprise_that_has_begun_is_not_lost_when_enough_was_seen_to_tell() {
    let mut program = Program::new();
    let begin_ns = program.at_home(20);
    let by_look: BTreeMap<u64, usize> = (0..15).map(|look| (look, 0)).chain([(15, 1), (16, 1), (17, 1)]).collect();
    let mut turned = Vec::new();
    for (look, node) in by_look {
        program.look(TIDS[0], node, begin_ns + look * LOOK_NS);
        if program.sensor.sees_turn(begin_ns + look * LOOK_NS) {
            turned.push(look);
        }
    }
    assert_eq!(turned, [17]);
    let snapshot = program.snapshot(begin_ns + 18 * LOOK_NS);
    assert_eq!(snapshot.threads[0].id, ThreadId { tid: TIDS[0], start_boottime_ns: 1 });
    assert_eq!(shares_away(&snapshot)[0], Some(1.0));
}
