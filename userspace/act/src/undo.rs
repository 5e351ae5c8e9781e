// SPDX-License-Identifier: GPL-2.0-only
//! Where moved pages came from, so that a plan that did not pay can be rolled back.

use std::collections::VecDeque;

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES};

use crate::{Cooldowns, Generation};

/// Contiguous pages that were on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRun {
    /// Address of the first page.
    pub start: u64,
    /// Base pages.
    pub pages: u64,
    /// Their node before the move.
    pub from: NodeId,
    /// Whether they are in huge pages.
    pub huge: bool,
}

/// One run that a generation moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndoEntry {
    /// The plan that moved it.
    pub generation: Generation,
    /// The group it belongs to.
    pub group: GroupId,
    /// The pages and where they were.
    pub run: NodeRun,
    /// Where the plan put them.
    pub to: NodeId,
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
    /// Room for `capacity` (at least 1) runs and as many held groups.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { entries: VecDeque::new(), capacity, dropped: 0, holds: Cooldowns::new(capacity) }
    }

    /// Remembers pages that moved; those that follow each other in address and are alike in all else become one run.
    /// At capacity the oldest run is dropped and counted.
    pub fn record(&mut self, generation: Generation, group: GroupId, run: NodeRun, to: NodeId) {
        if let Some(last) = self.entries.back_mut() {
            let alike = NodeRun { start: last.run.start + last.run.pages * PAGE_BYTES, pages: run.pages, ..last.run };
            if (last.generation, last.group, alike, last.to) == (generation, group, run, to) {
                last.run.pages += run.pages;
                return;
            }
        }
        if self.entries.len() >= self.capacity {
            self.entries.pop_front();
            self.dropped += 1;
        }
        self.entries.push_back(UndoEntry { generation, group, run, to });
    }

    /// Takes the runs of a generation out of the log, last moved first.
    pub fn take(&mut self, generation: Generation) -> Vec<UndoEntry> {
        let mut taken: Vec<_> = self.entries.iter().filter(|entry| entry.generation == generation).copied().collect();
        self.entries.retain(|entry| entry.generation != generation);
        taken.reverse();
        taken
    }

    /// Forgets every generation before `generation`: these plans paid.
    pub fn forget_before(&mut self, generation: Generation) {
        self.entries.retain(|entry| entry.generation >= generation);
    }

    /// Remembers that the pages of a group went back and are not to be tried again for `hold_ns`.
    pub fn hold(&mut self, group: GroupId, bytes: u64, now_ns: u64, hold_ns: u64) {
        self.holds.start_group(group, bytes, now_ns, hold_ns);
    }

    /// Whether a move of this group was undone so recently that it is not to be tried again.
    pub fn is_held(&self, group: GroupId, now_ns: u64) -> bool {
        self.holds.is_group_cooling(group, PAGE_BYTES, now_ns)
    }

    /// Whether any of the group's `bytes` went back so recently.
    pub fn is_range_held(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool {
        self.holds.is_group_cooling(group, bytes, now_ns)
    }

    /// Runs held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Runs dropped for lack of room since the start: these can no longer be undone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::ProcessId;

    use super::*;

    const GROUP: GroupId = GroupId { process: ProcessId(9), start: 0 };

    fn page(page: u64, from: u32, huge: bool) -> NodeRun {
        NodeRun { start: page * PAGE_BYTES, pages: 1, from: NodeId(from), huge }
    }

    #[test]
    fn contiguous_pages_of_one_kind_from_one_node_are_one_run() {
        let mut log = UndoLog::new(8);
        for (at, from, huge) in [(0, 0, false), (1, 0, false), (2, 2, false), (4, 2, false), (5, 2, true), (6, 2, true)]
        {
            log.record(Generation(1), GROUP, page(at, from, huge), NodeId(1));
        }
        let runs: Vec<_> = log.take(Generation(1)).iter().map(|e| (e.run.start / PAGE_BYTES, e.run.pages)).collect();
        assert_eq!(runs, [(5, 2), (4, 1), (2, 1), (0, 2)], "last moved first");
        assert!(log.is_empty());
    }

    #[test]
    fn the_oldest_run_makes_room_and_is_counted() {
        let mut log = UndoLog::new(2);
        for generation in 1..=3 {
            log.record(Generation(generation), GROUP, page(0, 0, false), NodeId(1));
        }
        assert_eq!((log.len(), log.dropped()), (2, 1));
        assert!(log.take(Generation(1)).is_empty());
        log.forget_before(Generation(3));
        assert_eq!(log.len(), 1);
    }

    #[test]
    fn an_undone_group_is_held_until_its_time() {
        let mut log = UndoLog::new(2);
        log.hold(GROUP, PAGE_BYTES, 100, 50);
        assert!(log.is_held(GROUP, 149));
        assert!(!log.is_held(GROUP, 150));
        assert!(!log.is_held(GroupId { start: PAGE_BYTES, ..GROUP }, 120));
    }
}
