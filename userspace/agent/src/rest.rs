// SPDX-License-Identifier: GPL-2.0-only
//! How long what was moved stays where it is.
//!
//! Problem: what is moved to and fro must rest long, or nothing is won but the cost of moving; but a program that goes on to
//! its next phase after two seconds is lost for as long as its threads rest. Mechanism: a rest is short at first, and twice
//! as long as the last one when most of a plan moves again what had hardly rested; it becomes shorter by half when nothing
//! in a plan was moved lately. A thread that turned to other memory since it was moved does not go to and fro: it follows its
//! program, and rests as long as before. One rest for all: plans are of one kind at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_act::Cooldowns;
use tandem_policies::model::{Action, Plan, ProcessId, ThreadId};

/// The first rest is this part of the longest.
const FIRST_DIVISOR: u64 = 10;

/// Chooses how long the movers of each plan rest. Times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Rest {
    first_ns: u64,
    longest_ns: u64,
    rest_ns: u64,
    /// What was moved no longer ago than one and a half rests: it had hardly rested if it moves again.
    lately: Cooldowns,
    /// When the threads among it moved.
    moved_ns: BTreeMap<ThreadId, u64>,
}

impl Rest {
    /// Rests of at most `longest`, and shorter ones if `quick`. Remembers `capacity` threads and as many groups.
    pub fn new(longest: Duration, quick: bool, capacity: usize) -> Self {
        let longest_ns = longest.as_nanos() as u64;
        let first_ns = if quick { longest_ns / FIRST_DIVISOR } else { longest_ns };
        Self { first_ns, longest_ns, rest_ns: first_ns, lately: Cooldowns::new(capacity), moved_ns: BTreeMap::new() }
    }

    /// How long what `plan`, carried out at `now_ns`, moves is to rest, given when threads turned last.
    pub fn of(&mut self, plan: &Plan, turned_ns: impl Fn(ThreadId) -> Option<u64>, now_ns: u64) -> u64 {
        let is_lately = |thread: ThreadId| self.lately.is_thread_cooling(thread, now_ns);
        let follows = |thread: ThreadId| turned_ns(thread) > self.moved_ns.get(&thread).copied();
        let (mut moves, mut lately, mut again) = (0, 0, 0);
        for planned in &plan.moves {
            let (is_lately, comes_again) = match planned.action {
                Action::MoveThread { thread, .. } => (is_lately(thread), is_lately(thread) && !follows(thread)),
                Action::Interchange { first, second, .. } => {
                    let comes_again = |thread| is_lately(thread) && !follows(thread);
                    (is_lately(first) || is_lately(second), comes_again(first) || comes_again(second))
                }
                Action::MovePages { group, bytes, .. } => {
                    let is_lately = self.lately.is_group_cooling(group, bytes, now_ns);
                    (is_lately, is_lately)
                }
            };
            moves += 1;
            lately += usize::from(is_lately);
            again += usize::from(comes_again);
        }
        if again > 0 && 2 * again >= moves {
            self.rest_ns = (2 * self.rest_ns).min(self.longest_ns);
        } else if lately == 0 && moves > 0 {
            self.rest_ns = (self.rest_ns / 2).max(self.first_ns);
        }
        self.remember(plan, now_ns);
        self.rest_ns
    }

    /// Forgets what moved of processes that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.lately.forget(is_gone);
    }

    fn remember(&mut self, plan: &Plan, now_ns: u64) {
        let lately_ns = self.rest_ns + self.rest_ns / 2;
        let mut moved = Vec::new();
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { thread, .. } => moved.push(thread),
                Action::Interchange { first, second, .. } => moved.extend([first, second]),
                Action::MovePages { group, bytes, .. } => self.lately.start_group(group, bytes, now_ns, lately_ns),
            }
        }
        for thread in moved {
            self.lately.start_thread(thread, now_ns, lately_ns);
            self.moved_ns.insert(thread, now_ns);
        }
        self.moved_ns.retain(|&thread, _| self.lately.is_thread_cooling(thread, now_ns));
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, Move, NodeIndex};

    use super::*;
    use crate::testing::id;

    const S: u64 = 1_000_000_000;

    fn plan(actions: impl IntoIterator<Item = Action>) -> Plan {
        let planned = |action| Move { action, reason: String::new(), gain_ns_per_s: None };
        Plan { moves: actions.into_iter().map(planned).collect() }
    }

    fn thread(tid: u32) -> Plan {
        plan([Action::MoveThread { thread: id(tid), from: NodeIndex(0), to: NodeIndex(1), cpu: None }])
    }

    fn pages(starts: &[u64]) -> Plan {
        let group = |start| GroupId { process: ProcessId(1), start };
        plan(starts.iter().map(|&start| Action::MovePages { group: group(start), bytes: 4096, to: NodeIndex(1) }))
    }

    fn nobody_turned(_: ThreadId) -> Option<u64> {
        None
    }

    fn rest() -> Rest {
        Rest::new(Duration::from_secs(10), true, 16)
    }

    #[test]
    fn what_goes_to_and_fro_rests_ever_longer() {
        let mut rest = rest();
        let (mut now_ns, mut rests) = (0, Vec::new());
        for _ in 0..6 {
            let rest_ns = rest.of(&thread(1), nobody_turned, now_ns);
            rests.push(rest_ns / S);
            now_ns += rest_ns + S / 10;
        }
        assert_eq!(rests, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn what_lasted_may_move_again_soon() {
        let mut rest = rest();
        let rests: Vec<u64> = (0..4).map(|phase| rest.of(&thread(1), nobody_turned, phase * 2 * S)).collect();
        assert_eq!(rests, [S; 4], "phases of two seconds");
        assert_eq!(rest.of(&thread(1), nobody_turned, 7 * S), 2 * S);
        assert_eq!(rest.of(&thread(2), nobody_turned, 8 * S), S, "another thread: what went before says nothing of it");
    }

    #[test]
    fn a_thread_that_turned_since_it_was_moved_does_not_go_to_and_fro() {
        let mut rest = rest();
        let turned = |at_ns: u64| move |thread: ThreadId| Some(at_ns).filter(|_| thread == id(1));
        assert_eq!(rest.of(&thread(1), nobody_turned, 2 * S), S);
        assert_eq!(rest.of(&thread(1), turned(3 * S), 3 * S + S / 4), S);
        assert_eq!(rest.of(&thread(1), turned(3 * S), 4 * S), 2 * S, "that turn was before it moved");
        assert_eq!(rest.of(&thread(1), turned(5 * S), 5 * S), 2 * S, "no longer, and no shorter");
        let both =
            Action::Interchange { first: id(1), second: id(2), first_node: NodeIndex(0), second_node: NodeIndex(1) };
        assert_eq!(rest.of(&plan([both.clone()]), turned(6 * S), 6 * S), 2 * S, "the other one was not moved lately");
        assert_eq!(rest.of(&plan([both]), turned(7 * S), 7 * S), 4 * S, "now it was, and did not turn");
    }

    #[test]
    fn plans_for_others_do_not_make_a_turn_old() {
        let mut rest = rest();
        let turned = |thread: ThreadId| Some(3 * S).filter(|_| thread == id(1));
        rest.of(&thread(1), nobody_turned, 2 * S);
        rest.of(&thread(2), nobody_turned, 3 * S + S / 10);
        assert_eq!(rest.of(&thread(1), turned, 3 * S + S / 4), S);
    }

    #[test]
    fn most_of_a_plan_decides() {
        let mut rest = rest();
        rest.of(&pages(&[0, 1 << 20]), nobody_turned, 0);
        assert_eq!(rest.of(&pages(&[0, 2 << 20, 3 << 20]), nobody_turned, S), S, "one of three moved lately");
        assert_eq!(rest.of(&pages(&[0, 4 << 20]), nobody_turned, 2 * S), 2 * S, "one of two");
        assert_eq!(rest.of(&Plan::default(), nobody_turned, 3 * S), 2 * S);
    }

    #[test]
    fn pages_of_a_program_that_is_gone_did_not_move_lately() {
        let mut rest = rest();
        rest.of(&pages(&[0]), nobody_turned, 0);
        rest.forget(|process| process == ProcessId(1));
        assert_eq!(rest.of(&pages(&[0]), nobody_turned, S), S);
    }

    #[test]
    fn policies_that_need_whole_intervals_have_whole_rests() {
        let mut rest = Rest::new(Duration::from_secs(10), false, 16);
        assert_eq!(rest.of(&thread(1), nobody_turned, 0), 10 * S);
        assert_eq!(rest.of(&thread(1), nobody_turned, 100 * S), 10 * S);
    }
}
