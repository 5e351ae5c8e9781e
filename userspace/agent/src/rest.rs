// SPDX-License-Identifier: GPL-2.0-only
//! How long what was moved stays where it is.
//!
//! Problem: what is moved to and fro must rest long, or nothing is won but the cost of moving; but a program that goes on to
//! its next phase after two seconds is lost for as long as its threads rest. Mechanism: a rest is short at first, and twice
//! as long as the last one when most of a plan moves again what had hardly rested; it becomes shorter by half when nothing
//! in a plan was moved lately. A thread that turned to other memory since the last plan does not go to and fro: it follows its
//! program. One rest for all: plans are of one kind at a time.

use std::time::Duration;

use tandem_act::Cooldowns;
use tandem_policies::model::{Action, Plan, ThreadId};

/// The first rest is this part of the longest.
const FIRST_DIVISOR: u64 = 10;

/// Chooses how long the movers of each plan rest. Times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Rest {
    first_ns: u64,
    longest_ns: u64,
    rest_ns: u64,
    /// When the last plan was carried out.
    planned_ns: u64,
    /// What was moved no longer ago than one and a half rests: it had hardly rested if it moves again.
    lately: Cooldowns,
}

impl Rest {
    /// Rests of at most `longest`, and shorter ones if `quick`. Remembers `capacity` threads and as many groups.
    pub fn new(longest: Duration, quick: bool, capacity: usize) -> Self {
        let longest_ns = longest.as_nanos() as u64;
        let first_ns = if quick { longest_ns / FIRST_DIVISOR } else { longest_ns };
        Self { first_ns, longest_ns, rest_ns: first_ns, planned_ns: 0, lately: Cooldowns::new(capacity) }
    }

    /// How long what `plan`, carried out at `now_ns`, moves is to rest, given when threads turned last.
    pub fn of(&mut self, plan: &Plan, turned_ns: impl Fn(ThreadId) -> Option<u64>, now_ns: u64) -> u64 {
        let comes_again = |thread: ThreadId| {
            self.lately.is_thread_cooling(thread, now_ns) && turned_ns(thread).is_none_or(|ns| ns <= self.planned_ns)
        };
        let (mut moves, mut again) = (0, 0);
        for planned in &plan.moves {
            let known = match planned.action {
                Action::MoveThread { thread, .. } => comes_again(thread),
                Action::Interchange { first, second, .. } => comes_again(first) || comes_again(second),
                Action::MovePages { group, bytes, .. } => self.lately.is_group_cooling(group, bytes, now_ns),
            };
            moves += 1;
            again += usize::from(known);
        }
        if again > 0 && 2 * again >= moves {
            self.rest_ns = (2 * self.rest_ns).min(self.longest_ns);
        } else if again == 0 && moves > 0 {
            self.rest_ns = (self.rest_ns / 2).max(self.first_ns);
        }
        self.remember(plan, now_ns);
        self.planned_ns = now_ns;
        self.rest_ns
    }

    fn remember(&mut self, plan: &Plan, now_ns: u64) {
        let lately_ns = self.rest_ns + self.rest_ns / 2;
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { thread, .. } => self.lately.start_thread(thread, now_ns, lately_ns),
                Action::Interchange { first, second, .. } => {
                    self.lately.start_thread(first, now_ns, lately_ns);
                    self.lately.start_thread(second, now_ns, lately_ns);
                }
                Action::MovePages { group, bytes, .. } => self.lately.start_group(group, bytes, now_ns, lately_ns),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, Move, NodeIndex, ProcessId};

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
    fn a_thread_that_turned_since_the_last_plan_does_not_go_to_and_fro() {
        let mut rest = rest();
        let follows = |turned_ns: u64| move |thread: ThreadId| Some(turned_ns).filter(|_| thread == id(1));
        assert_eq!(rest.of(&thread(1), nobody_turned, 2 * S), S);
        assert_eq!(rest.of(&thread(1), follows(3 * S), 3 * S + S / 4), S);
        assert_eq!(rest.of(&thread(1), follows(3 * S), 4 * S), 2 * S, "that turn was before the last plan");
        let both =
            Action::Interchange { first: id(1), second: id(2), first_node: NodeIndex(0), second_node: NodeIndex(1) };
        assert_eq!(rest.of(&plan([both.clone()]), follows(5 * S), 5 * S), S, "the other one was not moved lately");
        assert_eq!(rest.of(&plan([both]), follows(6 * S), 6 * S), 2 * S, "now it was, and did not turn");
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
    fn policies_that_need_whole_intervals_have_whole_rests() {
        let mut rest = Rest::new(Duration::from_secs(10), false, 16);
        assert_eq!(rest.of(&thread(1), nobody_turned, 0), 10 * S);
        assert_eq!(rest.of(&thread(1), nobody_turned, 100 * S), 10 * S);
    }
}
