// SPDX-License-Identifier: GPL-2.0-only
//! The dependent walk: every line names the next one, so that each access waits for the one before.
//!
//! The lines of a walk form one cycle: page after page, the lines of a page in leaps of 27, the pages in steps of about
//! 0.618 of their number. A full round visits every line exactly once and costs nothing to build. What a walk did can be
//! told from its end and from the lines' counters, exactly. Pages are visited whole because an emulator pays far more
//! for a new page than for a new line; the leaps keep stride prefetchers of hardware from following.

use crate::frame::memory::Line;
use anyhow::{Result, bail};
use std::ops::Range;

/// The word of a line that names the next line, relative to the cycle's first line.
const NEXT: usize = 0;

/// Lines of a 4 KiB page.
const PAGE_LINES: usize = 64;
/// Lines from one visit to the next within a page; odd, so that a page's lines are all visited.
const LEAP: usize = 27;

/// How the lines of a cycle follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Page after page. Cycles that are no whole pages are visited as [`Pace::Lines`].
    Pages,
    /// Each line on another page than the one before, as accesses at random are.
    Lines,
}

/// The order in which a cycle of `length` lines is visited.
#[derive(Clone, Copy)]
struct Order {
    length: usize,
    page_lines: usize,
    page_step: usize,
}

impl Order {
    fn of(length: usize, pace: Pace) -> Self {
        let page_lines = if pace == Pace::Pages && length.is_multiple_of(PAGE_LINES) { PAGE_LINES } else { 1 };
        let pages = length / page_lines;
        let golden = (pages as f64 * 0.618_033_988_75) as usize;
        let page_step = (1..=golden).rev().find(|step| gcd(*step, pages) == 1).unwrap_or(1);
        Self { length, page_lines, page_step }
    }

    /// The line visited as the `rank`-th; rank 0 is line 0.
    fn line_at(&self, rank: u128) -> usize {
        let rank = (rank % self.length as u128) as usize;
        let (page, line) = (rank / self.page_lines, rank % self.page_lines);
        let page = (page as u128 * self.page_step as u128 % (self.length / self.page_lines) as u128) as usize;
        page * self.page_lines + line * LEAP % self.page_lines
    }

    /// The line visited after `line`.
    fn after(&self, line: usize) -> usize {
        let (page, within) = (line / self.page_lines, line % self.page_lines);
        match (within + LEAP) % self.page_lines {
            0 => (page + self.page_step) % (self.length / self.page_lines) * self.page_lines,
            next => page * self.page_lines + next,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Links the lines of `range` to cycles of `length` lines each; the first cycle begins at line 0.
pub fn link(lines: &[Line], range: Range<usize>, length: usize, pace: Pace) {
    let order = Order::of(length, pace);
    for index in range {
        lines[index].set(NEXT, order.after(index % length) as u64);
    }
}

/// A walk along one cycle.
pub struct Walk<'a> {
    lines: &'a [Line],
    order: Order,
    first_rank: u64,
    at: usize,
    visits: u64,
}

impl<'a> Walk<'a> {
    /// A walk over `lines`, which are one cycle, beginning at the page that comes as the `first`-th (modulo their number).
    pub fn new(lines: &'a [Line], first: u64) -> Self {
        Self::paced(lines, first, Pace::Pages)
    }

    /// The same at the pace at which the lines were linked.
    pub fn paced(lines: &'a [Line], first: u64, pace: Pace) -> Self {
        let order = Order::of(lines.len(), pace);
        let page_lines = order.page_lines as u64;
        let first_rank = first % (lines.len() as u64 / page_lines) * page_lines;
        Self { lines, order, first_rank, at: order.line_at(first_rank.into()), visits: 0 }
    }

    /// Visits so many lines and adds 1 to counter `counter` of each.
    #[inline(never)]
    pub fn count(&mut self, counter: usize, visits: u64) {
        let (lines, mut at) = (self.lines, self.at);
        for _ in 0..visits {
            let line = &lines[at];
            at = line.get(NEXT) as usize;
            line.count(1 + counter);
        }
        self.at = at;
        self.visits += visits;
    }

    /// Visits so many lines and only reads them.
    #[inline(never)]
    pub fn read(&mut self, visits: u64) {
        let (lines, mut at) = (self.lines, self.at);
        for _ in 0..visits {
            at = lines[at].get(NEXT) as usize;
        }
        self.at = at;
        self.visits += visits;
    }

    /// Lines visited so far.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Fails unless the walk is where so many visits must have led it.
    pub fn check(&self) -> Result<()> {
        let expected = self.order.line_at(u128::from(self.first_rank) + u128::from(self.visits));
        if self.at != expected {
            bail!("self-check failed: a walk of {} lines ended at line {}, not at {expected}", self.visits, self.at);
        }
        Ok(())
    }
}

/// Fails unless counter `counter` of `lines` is what one walk of `visits` visits leaves: their sum is `visits`, and no
/// line was visited two times more than another.
pub fn check_counts(lines: &[Line], counter: usize, visits: u64) -> Result<()> {
    let least = visits / lines.len() as u64;
    let mut sum = 0u64;
    for (index, line) in lines.iter().enumerate() {
        let count = line.get(1 + counter);
        if count != least && count != least + 1 {
            bail!(
                "self-check failed: line {index} counts {count} visits, not {least} or {} (counter {counter})",
                least + 1
            );
        }
        sum += count;
    }
    if sum != visits {
        bail!("self-check failed: {visits} visits were made, but the lines count {sum} (counter {counter})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::{Memory, PageSize};

    fn cycle(length: usize) -> Memory {
        let memory = Memory::map(length * 64, PageSize::Base).unwrap();
        link(memory.lines(), 0..length, length, Pace::Pages);
        memory
    }

    #[test]
    fn one_round_visits_every_line_once_whatever_the_length() {
        for length in [1, 2, 3, 4, 6, 12, 64, 128, 192, 1000, 4096, 8191] {
            let memory = cycle(length);
            let mut walk = Walk::new(memory.lines(), 5);
            let first = walk.at;
            walk.count(0, length as u64);
            assert!(memory.lines().iter().all(|line| line.get(1) == 1), "{length}");
            assert_eq!(walk.at, first);
            walk.check().unwrap();
            walk.read(length as u64 / 2 + 1);
            walk.check().unwrap();
        }
    }

    #[test]
    fn a_page_is_visited_whole_and_the_next_page_is_not_its_neighbour() {
        let memory = cycle(64 * 100);
        let mut walk = Walk::new(memory.lines(), 0);
        for _ in 0..100 {
            let page = walk.at / 64;
            for _ in 0..64 {
                assert_eq!(walk.at / 64, page);
                walk.read(1);
            }
            assert!((walk.at / 64).abs_diff(page) > 1);
        }
    }

    #[test]
    fn walks_begin_where_they_are_told() {
        let memory = cycle(64 * 100);
        let starts: std::collections::BTreeSet<usize> =
            (0..100).map(|first| Walk::new(memory.lines(), first).at).collect();
        assert_eq!(starts.len(), 100);
        assert_eq!(Walk::new(memory.lines(), 100).at, Walk::new(memory.lines(), 0).at);
    }

    #[test]
    fn at_the_pace_of_lines_every_visit_is_on_another_page_and_all_lines_are_visited() {
        let order = Order::of(64 * 100, Pace::Lines);
        let (mut at, mut seen) = (0, vec![false; 64 * 100]);
        for _ in 0..seen.len() {
            assert!(!std::mem::replace(&mut seen[at], true), "line {at} comes twice");
            let next = order.after(at);
            assert_ne!(next / PAGE_LINES, at / PAGE_LINES);
            at = next;
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn several_cycles_in_one_array_stay_apart() {
        let memory = Memory::map(300 * 64, PageSize::Base).unwrap();
        link(memory.lines(), 0..150, 100, Pace::Pages);
        link(memory.lines(), 150..300, 100, Pace::Pages);
        for part in 0..3 {
            let mut walk = Walk::new(&memory.lines()[part * 100..][..100], 7);
            walk.count(part, 250);
            walk.check().unwrap();
            check_counts(&memory.lines()[part * 100..][..100], part, 250).unwrap();
        }
        check_counts(&memory.lines()[..100], 1, 0).unwrap();
    }

    #[test]
    fn a_visit_that_was_lost_or_added_fails_the_check() {
        let memory = cycle(100);
        let mut walk = Walk::new(memory.lines(), 0);
        walk.count(2, 250);
        check_counts(memory.lines(), 2, 250).unwrap();
        assert!(check_counts(memory.lines(), 2, 251).is_err());
        memory.lines()[9].set(3, memory.lines()[9].get(3) - 1);
        assert!(check_counts(memory.lines(), 2, 250).is_err());
        memory.lines()[9].set(3, 77);
        assert!(check_counts(memory.lines(), 2, 250).unwrap_err().to_string().contains("line 9 counts 77"));
    }

    #[test]
    fn a_broken_link_fails_the_walk() {
        let memory = cycle(100);
        memory.lines()[50].set(NEXT, 3);
        let mut walk = Walk::new(memory.lines(), 0);
        walk.read(130);
        assert!(walk.check().is_err());
    }
}
