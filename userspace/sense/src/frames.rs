// SPDX-License-Identifier: GPL-2.0-only
//! Which threads share memory, read from page faults by physical frame (kMAF, PACT 2014).
//!
//! Problem: page faults are few, and processes that share memory see it at different addresses. Mechanism: an entry per
//! physical frame, cut into sub-blocks of 1 KiB that each remember the last two threads that touched them. A fault
//! makes its thread the most recent of its sub-block and the other one the one before; then it is one event for the pair of
//! threads in that entry. The frame is the same for everybody who maps it. Events are aged with a half-life, and handed out
//! per second; ageing between mappings (a quarter each) is the policy's.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::Serialize;
use tandem_policies::model::{PAGE_BYTES, ThreadId};

use crate::thread_numbers::{ThreadNumber, ThreadNumbers};

/// Bytes of a sub-block.
pub const SUB_BLOCK_BYTES: u64 = 1 << 10;
const SUB_BLOCKS: usize = (PAGE_BYTES / SUB_BLOCK_BYTES) as usize;
/// Pairs with fewer aged events are forgotten.
const FAINTEST: f64 = 0.01;

/// The last two threads of each sub-block, the most recent first.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    sub_blocks: [[Option<ThreadNumber>; 2]; SUB_BLOCKS],
    /// Faults that the table had seen when this frame had its last.
    touched: u64,
}

/// Accesses that did not count, and what was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FrameCounters {
    /// Frames dropped for room.
    pub evicted: u64,
    /// Faults of threads for which there was no number left.
    pub too_many_threads: u64,
}

/// The table.
pub struct FrameTable {
    max_frames: usize,
    half_life_ns: u64,
    frames: HashMap<u64, Frame>,
    numbers: ThreadNumbers,
    /// Aged events; the lesser number first.
    pairs: HashMap<(ThreadNumber, ThreadNumber), f64>,
    /// Aged seconds in which they were seen.
    watched_s: f64,
    aged_ns: Option<u64>,
    faults: u64,
    /// What was lost.
    pub counters: FrameCounters,
}

impl FrameTable {
    /// An empty table of `max_frames` frames; an event loses half its weight in `half_life_ns`.
    pub fn new(max_frames: usize, half_life_ns: u64) -> Self {
        Self {
            max_frames,
            half_life_ns,
            frames: HashMap::new(),
            numbers: ThreadNumbers::default(),
            pairs: HashMap::new(),
            watched_s: 0.0,
            aged_ns: None,
            faults: 0,
            counters: FrameCounters::default(),
        }
    }

    /// Bytes of memory that frames and pairs take.
    pub fn bytes(&self) -> usize {
        self.frames.allocation_size() + self.pairs.allocation_size()
    }

    /// Lets events age to `now_ns`.
    pub fn age(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(*self.aged_ns.get_or_insert(now_ns));
        self.aged_ns = Some(now_ns);
        let factor = 0.5_f64.powf(elapsed_ns as f64 / self.half_life_ns as f64);
        self.watched_s = self.watched_s * factor + elapsed_ns as f64 * 1e-9;
        self.pairs.retain(|_, events| {
            *events *= factor;
            *events >= FAINTEST
        });
    }

    /// `thread` faulted at the physical address `physical`. Call in order of time.
    pub fn add(&mut self, thread: ThreadId, physical: u64) {
        let Some(number) = self.numbers.number(thread) else {
            self.counters.too_many_threads += 1;
            return;
        };
        let page = physical / PAGE_BYTES;
        if !self.frames.contains_key(&page) {
            self.make_room();
        }
        self.faults += 1;
        let frame = self.frames.entry(page).or_default();
        frame.touched = self.faults;
        let last = &mut frame.sub_blocks[(physical % PAGE_BYTES / SUB_BLOCK_BYTES) as usize];
        if last[0] != Some(number) {
            *last = [Some(number), last[0]];
        }
        if let [_, Some(before)] = *last {
            *self.pairs.entry((number.min(before), number.max(before))).or_default() += 1.0;
        }
    }

    /// The eighth whose last fault is longest ago gives way.
    fn make_room(&mut self) {
        if self.frames.len() < self.max_frames {
            return;
        }
        let mut touched: Vec<u64> = self.frames.values().map(|frame| frame.touched).collect();
        touched.sort_unstable();
        let newest_gone = touched[(touched.len() / 8).max(1) - 1];
        let before = self.frames.len();
        self.frames.retain(|_, frame| frame.touched > newest_gone);
        self.counters.evicted += (before - self.frames.len()) as u64;
    }

    /// Sharing events per second by pair of threads; both orders are there.
    pub fn sharing(&self) -> BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> {
        let mut rows: BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> = BTreeMap::new();
        if self.watched_s <= 0.0 {
            return rows;
        }
        for (&(first, second), events) in &self.pairs {
            if let (Some(first), Some(second)) = (self.numbers.thread(first), self.numbers.thread(second)) {
                rows.entry(first).or_default().insert(second, events / self.watched_s);
                rows.entry(second).or_default().insert(first, events / self.watched_s);
            }
        }
        rows
    }

    /// Forgets threads that are gone.
    pub fn retain(&mut self, alive: impl Fn(ThreadId) -> bool) {
        let gone = self.numbers.gone(alive);
        if gone.is_empty() {
            return;
        }
        for frame in self.frames.values_mut() {
            for last in &mut frame.sub_blocks {
                let kept = last.map(|number| number.filter(|number| !gone.contains(number)));
                *last = if kept[0].is_none() { [kept[1], None] } else { kept };
            }
        }
        self.frames.retain(|_, frame| frame.sub_blocks.iter().any(|last| last[0].is_some()));
        self.pairs.retain(|(first, second), _| !gone.contains(first) && !gone.contains(second));
        self.numbers.forget(&gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn thread(tid: u32) -> ThreadId {
        ThreadId { tid, start_boottime_ns: 1 }
    }

    /// A table that has been watching for a second, with these faults: events are then events per second.
    fn seen(faults: &[(u32, u64)]) -> FrameTable {
        let mut table = FrameTable::new(1024, u64::MAX);
        table.age(0);
        for &(tid, physical) in faults {
            table.add(thread(tid), physical);
        }
        table.age(S);
        table
    }

    fn events(table: &FrameTable, first: u32, second: u32) -> f64 {
        let of = |a, b| table.sharing().get(&thread(a)).and_then(|row| row.get(&thread(b)).copied()).unwrap_or(0.0);
        assert!((of(first, second) - of(second, first)).abs() < 1e-9, "both orders are there");
        (of(first, second) * 1e6).round() / 1e6
    }

    /// spec: their cell grows by one per alternation; who was pushed out gains nothing.
    #[test]
    fn two_threads_that_alternate_gain_one_event_each_time() {
        let table = seen(&[(3, 4096), (1, 4096), (2, 4097), (1, 4098), (2, 4099), (1, 4100)]);
        assert_eq!(events(&table, 1, 2), 4.0);
        assert_eq!(events(&table, 1, 3), 1.0, "when the second came");
        assert_eq!(events(&table, 2, 3), 0.0, "pushed out");
    }

    #[test]
    fn other_sub_blocks_of_the_page_are_not_shared() {
        let table = seen(&[(1, 4096), (2, 4096 + 1023), (1, 4096 + 1024), (2, 4096 + 2048), (2, 8192)]);
        assert_eq!(events(&table, 1, 2), 1.0);
    }

    /// The frame is the key: no process and no virtual address comes in.
    #[test]
    fn a_thread_alone_shares_with_nobody() {
        assert!(seen(&[(1, 4096), (1, 4096), (1, 4096)]).sharing().is_empty());
    }

    #[test]
    fn events_fade_and_are_told_per_second() {
        let mut table = FrameTable::new(1024, 2 * S);
        table.age(0);
        table.add(thread(1), 0);
        table.add(thread(2), 0);
        table.age(2 * S);
        // Half an event is left, of two seconds that have just passed.
        assert_eq!(events(&table, 1, 2), 0.25);
        table.age(40 * S);
        assert!(table.sharing().is_empty());
    }

    #[test]
    fn threads_that_are_gone_are_forgotten_and_their_numbers_used_again() {
        let mut table = seen(&[(1, 0), (2, 0), (3, 0)]);
        table.retain(|of| of != thread(3));
        assert_eq!((events(&table, 2, 3), events(&table, 1, 2)), (0.0, 1.0));
        table.add(thread(4), 0);
        assert_eq!(events(&table, 2, 4), 1.0, "2 has become the most recent again");
        assert_eq!(events(&table, 1, 4), 0.0);
        table.retain(|_| false);
        assert!(table.frames.is_empty() && table.sharing().is_empty());
    }

    /// 33 bytes an entry and a spare one for each at worst.
    #[test]
    fn a_frame_takes_66_bytes_at_most() {
        let mut table = FrameTable::new(1 << 14, u64::MAX);
        assert_eq!(table.bytes(), 0);
        (0..1 << 14).for_each(|frame| table.add(thread(1), frame * PAGE_BYTES));
        let each = table.bytes() as f64 / table.frames.len() as f64;
        assert!((33.0..66.1).contains(&each), "{each}");
    }

    #[test]
    fn frames_are_bounded_and_the_longest_untouched_go_first() {
        let mut table = FrameTable::new(16, u64::MAX);
        table.age(0);
        for frame in 0..16 {
            table.add(thread(1), frame * PAGE_BYTES);
        }
        table.add(thread(1), 0);
        table.add(thread(1), 99 * PAGE_BYTES);
        assert_eq!((table.frames.len(), table.counters.evicted), (15, 2));
        let left: Vec<_> = table.frames.keys().copied().collect();
        assert!(left.contains(&0) && !left.contains(&1) && !left.contains(&2) && left.contains(&3), "{left:?}");
    }
}
