// SPDX-License-Identifier: GPL-2.0-only
//! How long what was moved stays where it is.
//!
//! Problem: what is moved to and fro must rest long, or nothing is won but the cost of moving; but a program that goes on to
//! its next phase after two seconds is lost for as long as its threads rest. Mechanism: a rest is short at first, and twice
//! as long as the last one when most of a plan moves again what had hardly rested; it becomes shorter by half when nothing
//! in a plan was moved lately. One rest for all: plans are of one kind at a time.

use std::time::Duration;

use tandem_act::Cooldowns;
use tandem_policies::model::{Action, Plan};

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
}

impl Rest {
    /// Rests of at most `longest`, and shorter ones if `quick`. Remembers `capacity` threads and as many groups.
    pub fn new(longest: Duration, quick: bool, capacity: usize) -> Self {
        let longest_ns = longest.as_nanos() as u64;
        let first_ns = if quick { longest_ns / FIRST_DIVISOR } else { longest_ns };
        Self { first_ns, longest_ns, rest_ns: first_ns, lately: Cooldowns::new(capacity) }
    }

    /// How long what `plan`, carried out at `now_ns`, moves is to rest.
    pub fn of(&mut self, plan: &Plan, now_ns: u64) -> u64 {
        let (mut moves, mut again) = (0, 0);
        for planned in &plan.moves {
            let known = match planned.action {
                Action::MoveThread { thread, .. } => self.lately.is_thread_cooling(thread, now_ns),
                Action::Interchange { first, second, .. } => {
                    self.lately.is_thread_cooling(first, now_ns) || self.lately.is_thread_cooling(second, now_ns)
                }
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

    fn rest() -> Rest {
        Rest::new(Duration::from_secs(10), true, 16)
    }

    #[test]
    fn what_goes_to_and_fro_rests_ever_longer() {
        let mut rest = rest();
        let (mut now_ns, mut rests) = (0, Vec::new());
        for _ in 0..6 {
            let rest_ns = rest.of(&thread(1), now_ns);
            rests.push(rest_ns / S);
            now_ns += rest_ns + S / 10;
        }
        assert_eq!(rests, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn what_lasted_may_move_again_soon() {
        let mut rest = rest();
        let rests: Vec<u64> = (0..4).map(|phase| rest.of(&thread(1), phase * 2 * S)).collect();
        assert_eq!(rests, [S; 4], "phases of two seconds");
        assert_eq!(rest.of(&thread(1), 7 * S), 2 * S);
        assert_eq!(rest.of(&thread(2), 8 * S), S, "another thread: what went before says nothing of it");
    }

    #[test]
    fn most_of_a_plan_decides() {
        let mut rest = rest();
        rest.of(&pages(&[0, 1 << 20]), 0);
        assert_eq!(rest.of(&pages(&[0, 2 << 20, 3 << 20]), S), S, "one of three moved lately");
        assert_eq!(rest.of(&pages(&[0, 4 << 20]), 2 * S), 2 * S, "one of two");
        assert_eq!(rest.of(&Plan::default(), 3 * S), 2 * S);
    }

    #[test]
    fn policies_that_need_whole_intervals_have_whole_rests() {
        let mut rest = Rest::new(Duration::from_secs(10), false, 16);
        assert_eq!(rest.of(&thread(1), 0), 10 * S);
        assert_eq!(rest.of(&thread(1), 100 * S), 10 * S);
    }
}
