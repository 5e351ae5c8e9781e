// SPDX-License-Identifier: GPL-2.0-only
//! Where moved pages came from, so that a plan that did not pay can be rolled back.
//!
//! What a plan moved of a block of 2 MiB from one node to another is one entry, however its pages lay: memory that was interleaved
//! over n nodes takes n entries a block, not one a page.

use std::collections::VecDeque;

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

use crate::{Cooldowns, Generation};

/// Pages of a block: those of one huge page, and of one call.
pub(crate) const BLOCK_PAGES: u64 = 512;
const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES;

/// Pages of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSet {
    /// Address of the block.
    block: u64,
    /// A bit for each page.
    pages: [u64; (BLOCK_PAGES / 64) as usize],
}

impl PageSet {
    /// One page.
    pub fn of(address: u64) -> Self {
        let mut set = Self { block: address / BLOCK_BYTES * BLOCK_BYTES, pages: [0; _] };
        set.insert(address);
        set
    }

    /// Whether the page at this address is in the same block.
    fn has_block_of(&self, address: u64) -> bool {
        address / BLOCK_BYTES * BLOCK_BYTES == self.block
    }

    /// Adds a page of the same block.
    pub(crate) fn insert(&mut self, address: u64) {
        let page = (address - self.block) / PAGE_BYTES;
        self.pages[(page / 64) as usize] |= 1 << (page % 64);
    }

    /// Addresses of the pages, in order.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let is_some = |word: u64| Some(word).filter(|word| *word != 0);
        self.pages.iter().enumerate().flat_map(move |(at, &word)| {
            let without_first = move |word: &u64| is_some(word & (word - 1));
            let pages = std::iter::successors(is_some(word), without_first);
            pages.map(move |rest| self.page(at, rest.trailing_zeros()))
        })
    }

    /// Address of the page of a bit of a word.
    fn page(&self, word: usize, bit: u32) -> u64 {
        self.block + (64 * word as u64 + u64::from(bit)) * PAGE_BYTES
    }

    /// Runs of pages that follow each other: address of the first, and how many.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for address in self.addresses() {
            match runs.last_mut() {
                Some((start, pages)) if *start + *pages * PAGE_BYTES == address => *pages += 1,
                _ => runs.push((address, 1)),
            }
        }
        runs
    }

    /// How many pages there are.
    pub fn len(&self) -> u64 {
        self.pages.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From the first page to the end of the last one.
    pub fn span(&self) -> std::ops::Range<u64> {
        let filled = |at: &usize| self.pages[*at] != 0;
        let first = (0..self.pages.len()).find(filled).map(|at| self.page(at, self.pages[at].trailing_zeros()));
        let last = (0..self.pages.len()).rfind(filled).map(|at| self.page(at, 63 - self.pages[at].leading_zeros()));
        first.unwrap_or(self.block)..last.map_or(self.block, |last| last + PAGE_BYTES)
    }
}

/// A page that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedPage {
    /// Its address.
    pub address: u64,
    /// Its node before the move.
    pub from: NodeId,
    /// Whether it is in a huge page.
    pub huge: bool,
}

/// Pages of one block that a generation moved from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndoEntry {
    /// The plan that moved them.
    pub generation: Generation,
    /// The group they belong to.
    pub group: GroupId,
    /// The pages.
    pub pages: PageSet,
    /// Where they were.
    pub from: NodeId,
    /// Where the plan put them.
    pub to: NodeId,
    /// Whether they are in a huge page.
    pub huge: bool,
}

/// The moves of past generations, newest last, and the groups whose moves were undone.
#[derive(Debug)]
pub struct UndoLog {
    entries: VecDeque<UndoEntry>,
    capacity: usize,
    dropped: u64,
    holds: Cooldowns,
}

impl UndoLog {
    /// Room for `capacity` (at least 1) entries and as many held groups.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { entries: VecDeque::new(), capacity, dropped: 0, holds: Cooldowns::new(capacity) }
    }

    /// Remembers a page that moved, with those of its block that moved just before from the same node.
    /// At capacity the oldest entry is dropped and counted.
    pub fn record(&mut self, generation: Generation, group: GroupId, page: MovedPage, to: NodeId) {
        let MovedPage { address, from, huge } = page;
        // Pages of a block move one after the other: its entries, one for each node that they came from, are the last ones.
        let of_block = |entry: &&mut UndoEntry| {
            (entry.generation, entry.group) == (generation, group) && entry.pages.has_block_of(address)
        };
        let mut latest = self.entries.iter_mut().rev().take_while(of_block);
        if let Some(entry) = latest.find(|entry| (entry.from, entry.to, entry.huge) == (from, to, huge)) {
            entry.pages.insert(address);
            return;
        }
        if self.entries.len() >= self.capacity {
            self.entries.pop_front();
            self.dropped += 1;
        }
        self.entries.push_back(UndoEntry { generation, group, pages: PageSet::of(address), from, to, huge });
    }

    /// Holds what a plan that is undone would have moved, too, for `hold_ns`.
    pub fn hold(&mut self, group: GroupId, bytes: u64, now_ns: u64, hold_ns: u64) {
        self.holds.start_group(group, bytes, now_ns, hold_ns);
    }

    /// Takes what a generation moved of the processes that are meant out of the log, last moved first, and holds its groups for
    /// `hold_ns`: they are not to be tried again so soon.
    pub fn take_and_hold(
        &mut self,
        generation: Generation,
        is_meant: impl Fn(ProcessId) -> bool,
        now_ns: u64,
        hold_ns: u64,
    ) -> Vec<UndoEntry> {
        let is_taken = |entry: &UndoEntry| entry.generation == generation && is_meant(entry.group.process);
        let mut taken: Vec<_> = self.entries.iter().filter(|entry| is_taken(entry)).copied().collect();
        self.entries.retain(|entry| !is_taken(entry));
        taken.reverse();
        for entry in &taken {
            let bytes = entry.pages.span().end.saturating_sub(entry.group.start);
            self.holds.start_group(entry.group, bytes, now_ns, hold_ns);
        }
        taken
    }

    /// Forgets every generation before `generation`: these plans paid.
    pub fn forget_before(&mut self, generation: Generation) {
        self.entries.retain(|entry| entry.generation >= generation);
    }

    /// Forgets moves and held groups of processes that are gone: nothing of them is to go back.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.entries.retain(|entry| !is_gone(entry.group.process));
        self.holds.forget(is_gone);
    }

    /// Whether a move of any of the group's `bytes` was undone so recently that it is not to be tried again.
    pub fn is_held(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool {
        self.holds.is_group_cooling(group, bytes, now_ns)
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries dropped for lack of room since the start: these can no longer be undone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { process: ProcessId(9), start: 0 };

    fn page(page: u64, from: u32) -> MovedPage {
        MovedPage { address: page * PAGE_BYTES, from: NodeId(from), huge: false }
    }

    fn pages_of(entry: &UndoEntry) -> (u32, Vec<u64>) {
        (entry.from.0, entry.pages.addresses().map(|address| address / PAGE_BYTES).collect())
    }

    #[test]
    fn pages_of_one_block_from_one_node_are_one_entry_however_they_lie() {
        let mut log = UndoLog::new(8);
        for at in [0, 1, 2, 511, 512, 513, 514] {
            log.record(Generation(1), GROUP, page(at, at as u32 % 3), NodeId(1));
        }
        let taken = log.take_and_hold(Generation(1), |_| true, 0, 1);
        let expected = [(1, vec![514]), (0, vec![513]), (2, vec![512]), (2, vec![2]), (1, vec![1, 511]), (0, vec![0])];
        let found: Vec<_> = taken.iter().map(pages_of).collect();
        assert_eq!(found, expected, "last moved first");
        assert!(log.is_empty());
    }

    #[test]
    fn a_set_tells_its_pages_in_order_and_as_runs() {
        let mut set = PageSet::of(5 << 30);
        [511, 1, 63, 64].into_iter().for_each(|page| set.insert((5 << 30) + page * PAGE_BYTES));
        let at = |page: u64| (5 << 30) + page * PAGE_BYTES;
        assert_eq!(set.addresses().collect::<Vec<_>>(), [0, 1, 63, 64, 511].map(at));
        assert_eq!(set.runs(), [(at(0), 2), (at(63), 2), (at(511), 1)]);
        assert_eq!((set.len(), set.span()), (5, at(0)..at(512)));
    }

    #[test]
    fn pages_that_differ_in_anything_else_are_entries_of_their_own() {
        let mut log = UndoLog::new(8);
        log.record(Generation(1), GROUP, page(0, 0), NodeId(1));
        log.record(Generation(1), GROUP, page(1, 0), NodeId(2));
        log.record(Generation(1), GROUP, MovedPage { huge: true, ..page(2, 0) }, NodeId(2));
        log.record(Generation(2), GROUP, page(3, 0), NodeId(1));
        log.record(Generation(2), GroupId { process: ProcessId(10), ..GROUP }, page(4, 0), NodeId(1));
        assert_eq!(log.len(), 5);
    }

    #[test]
    fn interleaved_memory_takes_an_entry_for_each_node_and_block() {
        let mut log = UndoLog::new(64);
        for at in 0..16 * BLOCK_PAGES {
            let from = at as u32 % 4;
            log.record(Generation(1), GROUP, page(at, if from == 1 { 4 } else { from }), NodeId(1));
        }
        assert_eq!((log.len(), log.dropped()), (64, 0));
    }

    #[test]
    fn the_oldest_entry_makes_room_and_is_counted() {
        let mut log = UndoLog::new(2);
        for generation in 1..=3 {
            log.record(Generation(generation), GROUP, page(0, 0), NodeId(1));
        }
        assert_eq!((log.len(), log.dropped()), (2, 1));
        assert!(log.take_and_hold(Generation(1), |_| true, 0, 1).is_empty());
        log.forget_before(Generation(3));
        assert_eq!(log.len(), 1);
    }

    #[test]
    fn of_a_process_that_is_gone_nothing_goes_back_and_nothing_is_held() {
        let mut log = UndoLog::new(8);
        let other = GroupId { process: ProcessId(10), ..GROUP };
        for generation in [1, 2] {
            log.record(Generation(generation), GROUP, page(0, 0), NodeId(1));
            log.record(Generation(generation), other, page(0, 0), NodeId(1));
        }
        log.take_and_hold(Generation(1), |_| true, 0, 100);
        log.forget(|process| process == GROUP.process);
        assert_eq!([GROUP, other].map(|group| log.is_held(group, PAGE_BYTES, 50)), [false, true]);
        let left: Vec<_> = log.take_and_hold(Generation(2), |_| true, 0, 1).iter().map(|entry| entry.group).collect();
        assert_eq!(left, [other]);
    }

    #[test]
    fn an_undone_group_is_held_until_its_time() {
        let mut log = UndoLog::new(2);
        log.record(Generation(1), GROUP, page(1, 0), NodeId(1));
        log.take_and_hold(Generation(1), |_| true, 100, 50);
        assert!(log.is_held(GROUP, PAGE_BYTES, 149));
        assert!(!log.is_held(GROUP, PAGE_BYTES, 150));
        let behind = GroupId { start: 2 * PAGE_BYTES, ..GROUP };
        assert!(!log.is_held(behind, PAGE_BYTES, 120));
    }
}
