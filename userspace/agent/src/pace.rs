// SPDX-License-Identifier: GPL-2.0-only
//! How long an interval is.
//!
//! A program that was just started is placed by chance, and until it is placed well each moment counts. Later little
//! changes, and intervals may be long and cheap. So intervals are short from the moment on at which threads begin to work
//! that were not there before, until nothing more has to be moved ([`Pace::note`]): only for policies that weigh how much
//! they know, because a short interval shows little. When a thread just began, or turned to other memory and others of its process were
//! hardly looked at since, one short interval more shows what they do ([`Pace::waits_for_more`]). What short intervals take of a CPU is bounded: by its share of the
//! time, and because settling ends after a while and does not begin again soon.

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_policies::model::ThreadId;

/// Shortest interval.
const SHORTEST: Duration = Duration::from_millis(100);
/// Share of the time that short intervals may take of one CPU for every eight that there are, while threads settle, as a divisor; and the
/// most that it may be of one CPU.
const COST_DIVISOR: u64 = 20;
const LEAST_COST_DIVISOR: u64 = 4;
/// The same for looking whether new threads work, and whether threads turned to other memory.
const LOOK_DIVISOR: u64 = 100;
/// Time in which samples show where a thread turned to, where samples are many.
const TURN: Duration = Duration::from_millis(200);
/// Intervals in which threads that began are waited for, until there is one in which none does: on some machines there always are.
const MOST_BEGINNINGS: u32 = 4;
/// Intervals in which threads that wander are waited for while they settle.
const MOST_WANDERINGS: u32 = 4;
/// Nothing was moved for this long: all is settled.
const QUIET_NS: u64 = 1_000_000_000;
/// Longest time of short intervals, and the time from their end until they may begin again.
const MOST_NS: u64 = 5_000_000_000;
const REST_NS: u64 = 10_000_000_000;

/// Nothing came, turned or had to be moved for this long: it will hardly do so in the next moment, and less need be looked at.
const CALM_NS: u64 = 10_000_000_000;
/// How many times as long intervals are then, and how many times as rarely it is looked for turns.
const CALM_INTERVALS: u32 = 2;
const CALM_TIMES: u32 = 4;

/// What came of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A plan is carried out or watched, or too little is known to decide.
    Moving,
    /// Nothing had to be moved.
    Quiet,
}

/// Chooses the length of each interval. Times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Pace {
    usual: Duration,
    /// Whether intervals may be shorter than usual.
    quick: bool,
    /// How many times as long as what they cost short intervals last at least.
    cost_divisor: u64,
    known: BTreeSet<ThreadId>,
    /// When settling began, and since when nothing was moved.
    settling: Option<(u64, u64)>,
    rests_until_ns: u64,
    /// Threads were hardly seen since a turn in the last interval.
    hardly_seen: bool,
    /// When something last came, turned or had to be moved; and whether that is long ago.
    stirred_ns: Option<u64>,
    calm: bool,
    /// Intervals that were waited for since there was one in which no thread began.
    beginnings: u32,
    /// Intervals since settling began that were waited for because threads wandered.
    wanderings: u32,
    /// The next interval is waited for.
    waited: bool,
    /// CPU time of the last interval's sensing and deciding.
    cost_ns: u64,
    /// CPU time of a look for threads that turned: of the last one, and less if that was some intervals ago.
    turn_cost_ns: u64,
    /// The last look saw a turn; and the last interval ended by one.
    sees_turn: bool,
    ended_by_turn: bool,
}

impl Pace {
    /// Intervals of `usual` length, and shorter ones if `quick`, on a machine of so many `cpus`.
    pub fn new(usual: Duration, quick: bool, cpus: usize) -> Self {
        let cost_divisor = (COST_DIVISOR * 8 / cpus.max(8) as u64).max(LEAST_COST_DIVISOR);
        let quick = quick && usual > SHORTEST;
        let (known, settling) = (BTreeSet::new(), None);
        Self {
            usual,
            quick,
            cost_divisor,
            known,
            settling,
            rests_until_ns: 0,
            hardly_seen: false,
            stirred_ns: None,
            calm: false,
            beginnings: 0,
            wanderings: 0,
            waited: false,
            cost_ns: 0,
            turn_cost_ns: 0,
            sees_turn: false,
            ended_by_turn: false,
        }
    }

    /// Whether intervals may be shorter than usual: its policy decides as soon as something is known.
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// The length of the next interval.
    pub fn interval(&self) -> Duration {
        match self.settling {
            _ if self.waited => self.short(self.cost_divisor).max(TURN).min(self.usual),
            Some(_) => self.short(self.cost_divisor),
            None if self.calm => CALM_INTERVALS * self.usual,
            None => self.usual,
        }
    }

    /// The time from one look for threads that turned to the next; `None`: never. What is waited for is waited for to its end. Where
    /// threads turn again and again their intervals are as rare as what they cost allows.
    pub fn turn_look(&self) -> Option<Duration> {
        let dear = Duration::from_nanos(self.turn_cost_ns.saturating_mul(LOOK_DIVISOR));
        let least = if self.ended_by_turn { self.short(self.cost_divisor) } else { SHORTEST };
        let look = if self.calm { CALM_TIMES * least.max(dear) } else { least.max(dear) };
        Some(look).filter(|look| self.quick && !self.waited && *look < self.interval())
    }

    /// A look for threads that turned took so much CPU time, and saw one or did not.
    pub fn note_turn_look(&mut self, cost_ns: u64, turned: bool) {
        (self.turn_cost_ns, self.sees_turn) = (cost_ns, turned);
    }

    /// Whether to wait for one interval more, given whether threads were `hardly_seen` since their process turned to other
    /// memory, or `began` in this one. For turns not twice in a row and for beginnings, of which one makes others, not for longer than
    /// [`MOST_BEGINNINGS`] until none begins, so that those that always do one of these do not hold up all others.
    pub fn waits_for_more(&mut self, hardly_seen: bool, began: bool) -> bool {
        let begins = began && self.beginnings < MOST_BEGINNINGS;
        self.waited = self.quick && (begins || (hardly_seen && !self.hardly_seen));
        self.hardly_seen = hardly_seen;
        self.beginnings = if began { self.beginnings + u32::from(begins) } else { 0 };
        self.waited
    }

    /// The time from the start of an interval at which it may end early because new threads came; `None`: never.
    pub fn early_look(&self) -> Option<Duration> {
        (self.quick && self.settling.is_none()).then(|| self.short(LOOK_DIVISOR)).filter(|early| *early < self.usual)
    }

    /// Whether to wait for one interval more as most threads that work `wander`: while threads settle, and some times at most, for those that
    /// go on doing so settle nowhere.
    pub fn waits_for_wanderers(&mut self, wander: bool) -> bool {
        let waits = self.quick && wander && self.settling.is_some() && self.wanderings < MOST_WANDERINGS;
        self.wanderings += u32::from(waits);
        self.waited |= waits;
        waits
    }

    /// Whether nothing came, turned or had to be moved for a while, so that samples may be fewer.
    pub fn is_calm(&self) -> bool {
        self.calm
    }

    fn short(&self, divisor: u64) -> Duration {
        Duration::from_nanos(self.cost_ns.saturating_mul(divisor)).clamp(SHORTEST, self.usual.max(SHORTEST))
    }

    /// Whether this thread has worked before.
    pub fn knows(&self, thread: ThreadId) -> bool {
        self.known.contains(&thread)
    }

    /// An interval passed with these threads, each with whether it worked, and it took `cost_ns` of CPU time to deal with
    /// it.
    pub fn note(&mut self, now_ns: u64, threads: impl Iterator<Item = (ThreadId, bool)>, step: Step, cost_ns: u64) {
        self.cost_ns = cost_ns;
        self.ended_by_turn = std::mem::take(&mut self.sees_turn);
        // What was dear once is tried again.
        self.turn_cost_ns -= self.turn_cost_ns / 8;
        let known = std::mem::take(&mut self.known);
        let mut came = false;
        for (thread, works) in threads {
            came |= works && !known.contains(&thread);
            if works || known.contains(&thread) {
                self.known.insert(thread);
            }
        }
        if !self.quick {
            return;
        }
        let stirred_ns =
            self.stirred_ns.filter(|_| !came && !self.ended_by_turn && step == Step::Quiet).unwrap_or(now_ns);
        self.stirred_ns = Some(stirred_ns);
        self.calm = now_ns - stirred_ns >= CALM_NS;
        match &mut self.settling {
            None if came && now_ns >= self.rests_until_ns => {
                self.settling = Some((now_ns, now_ns));
                self.wanderings = 0;
            }
            None => {}
            Some((began_ns, moved_ns)) => {
                if came || step == Step::Moving {
                    *moved_ns = now_ns;
                }
                if now_ns >= *moved_ns + QUIET_NS || now_ns >= *began_ns + MOST_NS {
                    self.settling = None;
                    self.rests_until_ns = now_ns + REST_NS;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::id;

    const MS: u64 = 1_000_000;
    const USUAL: Duration = Duration::from_secs(1);

    fn pace() -> Pace {
        Pace::new(USUAL, true, 8)
    }

    /// Threads that work.
    fn threads(tids: &[u32]) -> impl Iterator<Item = (ThreadId, bool)> {
        tids.iter().map(|&tid| (id(tid), true))
    }

    #[test]
    fn intervals_are_short_from_new_threads_on_until_nothing_moved_for_a_second() {
        let mut pace = pace();
        assert_eq!(pace.interval(), USUAL);
        pace.note(0, threads(&[1, 2]), Step::Quiet, MS);
        assert_eq!(pace.interval(), SHORTEST);
        pace.note(700 * MS, threads(&[1, 2]), Step::Moving, MS);
        pace.note(1600 * MS, threads(&[1, 2]), Step::Quiet, MS);
        assert_eq!(pace.interval(), SHORTEST);
        pace.note(1700 * MS, threads(&[1, 2]), Step::Quiet, MS);
        assert_eq!(pace.interval(), USUAL);
    }

    #[test]
    fn a_thread_that_paused_is_not_new_but_one_that_never_worked_is() {
        let mut pace = pace();
        pace.note(0, [(id(1), true), (id(2), false)].into_iter(), Step::Quiet, MS);
        pace.note(2000 * MS, [(id(1), false), (id(2), false)].into_iter(), Step::Quiet, MS);
        pace.note(9000 * MS, threads(&[1]), Step::Quiet, MS);
        assert_eq!((pace.interval(), pace.knows(id(1))), (USUAL, true));
        pace.note(21_000 * MS, threads(&[1, 2]), Step::Quiet, MS);
        assert_eq!(pace.interval(), SHORTEST);
    }

    #[test]
    fn settling_ends_after_a_while_and_begins_again_only_after_a_rest() {
        let mut pace = pace();
        for now in 0..50 {
            pace.note(now * 100 * MS, threads(&[now as u32]), Step::Moving, MS);
            assert_eq!(pace.interval(), SHORTEST);
        }
        pace.note(5000 * MS, threads(&[50]), Step::Moving, MS);
        assert_eq!(pace.interval(), USUAL);
        pace.note(14_999 * MS, threads(&[60]), Step::Moving, MS);
        assert_eq!(pace.interval(), USUAL);
        pace.note(15_000 * MS, threads(&[61]), Step::Moving, MS);
        assert_eq!(pace.interval(), SHORTEST);
    }

    #[test]
    fn threads_that_were_hardly_seen_since_a_turn_are_waited_for_once() {
        let mut pace = pace();
        let waits = |pace: &mut Pace, hardly_seen| pace.waits_for_more(hardly_seen, false);
        assert!(!waits(&mut pace, false));
        assert!(waits(&mut pace, true));
        assert_eq!(pace.interval(), TURN);
        assert!(!waits(&mut pace, true), "twice in a row");
        assert_eq!(pace.interval(), USUAL);
        assert!(!waits(&mut pace, true) && !waits(&mut pace, false) && waits(&mut pace, true));
        assert!(!Pace::new(USUAL, false, 8).waits_for_more(true, true), "other policies have a whole interval");
    }

    #[test]
    fn threads_that_wander_are_waited_for_four_times_while_they_settle() {
        let mut pace = pace();
        assert!(!pace.waits_for_wanderers(true), "all is settled");
        pace.note(1000 * MS, threads(&[1]), Step::Moving, MS);
        assert!(!pace.waits_for_wanderers(false));
        let waits: Vec<bool> = (0..6).map(|_| pace.waits_for_wanderers(true)).collect();
        assert_eq!(waits, [true, true, true, true, false, false]);
        pace.note(9000 * MS, threads(&[1]), Step::Quiet, MS);
        pace.note(30_000 * MS, threads(&[1, 2]), Step::Moving, MS);
        assert!(pace.waits_for_wanderers(true), "others came");
    }

    #[test]
    fn it_is_calm_when_nothing_stirred_for_ten_seconds() {
        let mut pace = pace();
        let mut calm_after = |at_s: u64, tids: &[u32], step, turned| {
            pace.note_turn_look(MS, turned);
            pace.note(at_s * 1000 * MS, threads(tids), step, MS);
            (pace.is_calm(), pace.turn_look(), pace.interval())
        };
        calm_after(0, &[1], Step::Moving, false);
        calm_after(2, &[1], Step::Quiet, false);
        assert_eq!(calm_after(9, &[1], Step::Quiet, false), (false, Some(SHORTEST), USUAL));
        assert_eq!(calm_after(10, &[1], Step::Quiet, false), (true, Some(4 * SHORTEST), 2 * USUAL));
        assert!(!calm_after(11, &[1], Step::Moving, false).0);
        assert!(!calm_after(20, &[1], Step::Quiet, false).0 && calm_after(21, &[1], Step::Quiet, false).0);
        assert!(!calm_after(22, &[1], Step::Quiet, true).0 && calm_after(32, &[1], Step::Quiet, false).0);
        assert!(!calm_after(33, &[1, 2], Step::Quiet, false).0);
        let mut other = Pace::new(USUAL, false, 8);
        for at_s in [0, 60] {
            other.note(at_s * 1000 * MS, threads(&[]), Step::Quiet, MS);
        }
        assert!(!other.is_calm(), "other policies count samples over a long time");
    }

    #[test]
    fn a_turn_is_waited_for_though_other_threads_always_begin() {
        let mut pace = pace();
        let waits: Vec<bool> = (0..12).map(|_| pace.waits_for_more(false, true)).collect();
        assert_eq!(waits, [[true; 4], [false; 4], [false; 4]].concat(), "they hold up others for a while only");
        assert!(pace.waits_for_more(true, true), "where it would not be waited for them");
        assert!(!pace.waits_for_more(true, false) && pace.waits_for_more(false, true), "until none begins");
    }

    #[test]
    fn what_is_waited_for_is_no_shorter_than_what_it_costs_allows() {
        let mut pace = pace();
        pace.note(1000 * MS, threads(&[1]), Step::Moving, 30 * MS);
        assert!(pace.waits_for_more(true, false));
        assert_eq!(pace.interval(), Duration::from_millis(600));
    }

    #[test]
    fn short_intervals_may_cost_more_where_there_are_more_cpus() {
        let after_30_ms = |cpus: usize| {
            let mut pace = Pace::new(USUAL, true, cpus);
            pace.note(1000 * MS, threads(&[1]), Step::Moving, 30 * MS);
            pace.interval()
        };
        assert_eq!([2, 8, 16, 4096].map(after_30_ms), [600, 600, 300, 120].map(Duration::from_millis));
    }

    #[test]
    fn looks_for_threads_that_turned_are_as_rare_as_they_are_dear() {
        let mut pace = pace();
        assert_eq!(pace.turn_look(), Some(SHORTEST));
        pace.note_turn_look(4 * MS, false);
        assert_eq!(pace.turn_look(), Some(Duration::from_millis(400)));
        pace.note_turn_look(10 * MS, false);
        assert_eq!(pace.turn_look(), None, "an interval's end is early enough");
        (0..20).for_each(|_| pace.note(0, std::iter::empty(), Step::Quiet, MS));
        assert!(pace.turn_look().is_some(), "it may have been dear by chance");
        pace.note_turn_look(MS, false);
        pace.note(0, threads(&[1]), Step::Moving, MS);
        assert_eq!(pace.turn_look(), None, "intervals are short");
        pace.note(MS, threads(&[1]), Step::Moving, 30 * MS);
        assert_eq!(
            (pace.interval(), pace.turn_look()),
            (Duration::from_millis(600), Some(SHORTEST)),
            "or not that short"
        );
        assert_eq!(Pace::new(USUAL, false, 8).turn_look(), None);
    }

    #[test]
    fn what_is_waited_for_is_not_ended_by_a_turn() {
        let mut pace = pace();
        assert!(pace.waits_for_more(true, false) && pace.turn_look().is_none());
        assert!(!pace.waits_for_more(false, false) && pace.turn_look().is_some());
    }

    #[test]
    fn intervals_that_turns_end_one_after_the_other_are_as_rare_as_what_they_cost_allows() {
        let mut pace = pace();
        pace.note_turn_look(MS / 10, true);
        pace.note(0, std::iter::empty(), Step::Quiet, 30 * MS);
        assert_eq!(pace.turn_look(), Some(Duration::from_millis(600)));
        pace.note_turn_look(MS / 10, false);
        pace.note(MS, std::iter::empty(), Step::Quiet, 30 * MS);
        assert_eq!(pace.turn_look(), Some(SHORTEST), "the first one comes at once");
    }

    #[test]
    fn what_short_intervals_and_early_looks_cost_is_bounded() {
        let mut pace = pace();
        assert_eq!(pace.early_look(), Some(SHORTEST));
        pace.note(0, std::iter::empty(), Step::Quiet, 4 * MS);
        assert_eq!(pace.early_look(), Some(Duration::from_millis(400)), "a hundredth of the time");
        pace.note(MS, threads(&[1]), Step::Quiet, 10 * MS);
        assert_eq!((pace.interval(), pace.early_look()), (Duration::from_millis(200), None));
        pace.note(2 * MS, threads(&[1]), Step::Moving, 200 * MS);
        assert_eq!(pace.interval(), USUAL, "never longer than usual");
    }

    #[test]
    fn policies_that_need_whole_intervals_get_them() {
        let mut pace = Pace::new(USUAL, false, 8);
        pace.note(0, threads(&[1]), Step::Moving, MS);
        assert_eq!((pace.interval(), pace.early_look()), (USUAL, None));
        let mut brief = Pace::new(SHORTEST, true, 8);
        brief.note(0, threads(&[1]), Step::Moving, 50 * MS);
        assert_eq!(brief.interval(), SHORTEST, "as was asked for");
    }
}
