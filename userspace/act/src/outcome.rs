// SPDX-License-Identifier: GPL-2.0-only
//! What became of a page-group move.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES};

use crate::{CallError, Generation, PageStatus};

/// Why pages are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A plan says so.
    Plan,
    /// A plan did not pay; pages that are still on `from`, where it put them, go back.
    Undo {
        /// Where the undone plan put the pages.
        from: NodeId,
    },
}

/// How the move of a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Every page was tried.
    Done,
    /// The target node has no free memory.
    TargetFull,
    /// The target node's free memory is in pieces smaller than the huge page.
    TargetFragmented,
    /// The process has ended, or runs another program than the one whose pages were to move.
    ProcessGone,
    /// Not allowed to move this process's pages.
    NotPermitted,
    /// The target node does not exist or has no memory.
    NoSuchNode,
    /// The target node is outside the process's cpuset.
    NodeNotAllowed,
    /// The call failed with this errno.
    Failed(i32),
    /// The kernel was to bring its pages, and hardly any was used from the node that they are to go to.
    NotUsed,
    /// No thread of the process is of class SCHED_EXT, so that none can be lent to have the kernel look at it.
    NoThreadToLend,
    /// Its pages were moved by another move while it was queued.
    Cooldown,
    /// Cancelled before its end.
    Cancelled,
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        match error {
            CallError::ProcessGone => Self::ProcessGone,
            CallError::NotPermitted => Self::NotPermitted,
            CallError::NoSuchNode => Self::NoSuchNode,
            CallError::NodeNotAllowed => Self::NodeNotAllowed,
            CallError::NoMemory => Self::TargetFull,
            CallError::Other(errno) => Self::Failed(errno),
        }
    }
}

/// What became of one group. `requested_pages` is the sum of all other page counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The group; for an undo, the group that the undone plan moved.
    pub group: GroupId,
    /// First address of the pages; differs from the group's for an undo of some of its pages.
    pub start: u64,
    /// Bytes from `start` to the end of the last page; of an undo, other pages may lie between.
    pub bytes: u64,
    /// Target node.
    pub to: NodeId,
    /// The plan it belongs to; for an undo, the plan undone.
    pub generation: Generation,
    /// Plan or undo.
    pub purpose: Purpose,
    /// How it ended.
    pub ended: Ended,
    /// Base pages asked for.
    pub requested_pages: u64,
    /// On the target now, elsewhere before.
    pub moved_pages: u64,
    /// On the target before.
    pub already_there_pages: u64,
    /// Busy at the first try and whenever they were tried again.
    pub busy_pages: u64,
    /// Not resident.
    pub absent_pages: u64,
    /// Mapped by other processes too.
    pub shared_pages: u64,
    /// No room on the target.
    pub no_memory_pages: u64,
    /// The zero page, or no mapping.
    pub invalid_pages: u64,
    /// Undo only: moved on since to a third node, so left there.
    pub moved_on_pages: u64,
    /// Never tried, because of how it ended.
    pub not_tried_pages: u64,
    /// By any other errno.
    pub other_pages: BTreeMap<i32, u64>,
    /// Time inside the system calls.
    pub time_ns: u64,
}

impl Outcome {
    pub(crate) fn new(
        group: GroupId,
        start: u64,
        pages: u64,
        to: NodeId,
        generation: Generation,
        purpose: Purpose,
    ) -> Self {
        Self {
            group,
            start,
            bytes: pages * PAGE_BYTES,
            to,
            generation,
            purpose,
            ended: Ended::Done,
            requested_pages: pages,
            moved_pages: 0,
            already_there_pages: 0,
            busy_pages: 0,
            absent_pages: 0,
            shared_pages: 0,
            no_memory_pages: 0,
            invalid_pages: 0,
            moved_on_pages: 0,
            not_tried_pages: 0,
            other_pages: BTreeMap::new(),
            time_ns: 0,
        }
    }

    /// Counts pages that were not moved, by their status.
    pub(crate) fn count_unmoved(&mut self, status: PageStatus, pages: u64) {
        *match status {
            PageStatus::On(node) if node == self.to => &mut self.already_there_pages,
            PageStatus::On(_) | PageStatus::Busy => &mut self.busy_pages,
            PageStatus::Absent => &mut self.absent_pages,
            PageStatus::Shared => &mut self.shared_pages,
            PageStatus::NoMemory => &mut self.no_memory_pages,
            PageStatus::Invalid => &mut self.invalid_pages,
            PageStatus::Other(errno) => self.other_pages.entry(errno).or_default(),
        } += pages;
    }

    /// Pages that have been given a count.
    pub(crate) fn counted_pages(&self) -> u64 {
        self.moved_pages
            + self.already_there_pages
            + self.busy_pages
            + self.absent_pages
            + self.shared_pages
            + self.no_memory_pages
            + self.invalid_pages
            + self.moved_on_pages
            + self.other_pages.values().sum::<u64>()
    }
}
