// SPDX-License-Identifier: GPL-2.0-only
//! What is asked of whoever moves page groups: [`crate::Mover`], or the kernel by [`crate::KernelMover`].

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId, Topology};
use thiserror::Error;

use crate::{Cooldowns, Generation, MoverConfig, Outcome, Programs, Room};

/// A group to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The group; its start is a multiple of the page size.
    pub group: GroupId,
    /// Its bytes from the first page on that go; rounded up to pages.
    pub bytes: u64,
    /// Whether its pages are in huge pages, which need a free block of their size each.
    pub huge: bool,
    /// Where to.
    pub to: NodeId,
    /// The plan it belongs to.
    pub generation: Generation,
    /// How long its pages rest once they have moved.
    pub cooldown_ns: u64,
}

impl PageMove {
    /// Its base pages.
    ///
    /// # Errors
    /// It is empty, not page-aligned, or beyond the address space.
    pub(crate) fn pages(&self) -> Result<u64, Refused> {
        let pages = self.bytes.div_ceil(PAGE_BYTES);
        let end = pages.checked_mul(PAGE_BYTES).and_then(|bytes| self.group.start.checked_add(bytes));
        let is_range = pages > 0 && end.is_some() && self.group.start.is_multiple_of(PAGE_BYTES);
        if is_range { Ok(pages) } else { Err(Refused::BadRange) }
    }
}

/// Why a move was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Empty, not page-aligned, or beyond the address space.
    #[error("the group is empty, not page-aligned or ends beyond the address space")]
    BadRange,
    /// Some of its pages were moved recently.
    #[error("some of its pages were moved recently")]
    Cooldown,
    /// A move of it was undone recently.
    #[error("a move of it was undone recently")]
    Held,
    /// Its process has ended since it was looked at.
    #[error("its process has ended")]
    ProcessGone,
    /// The queue is full.
    #[error("the queue of page moves is full")]
    QueueFull,
}

/// Has page-group moves executed. All times are CLOCK_MONOTONIC in ns, given by the caller.
pub trait PageMover {
    /// Goes on with other budgets on a machine that may have changed, with all that is queued, held and known of prices. Whether
    /// there is pressure or room is to be said anew.
    fn adapt(&mut self, topology: &Topology, config: MoverConfig);

    /// Says which programs the processes run whose pages may move: no others from now on. Of those that are gone from there, or
    /// run another program than before, all moves that are queued end (returned), and nothing can be undone or is held any more.
    fn follow(&mut self, programs: &Programs) -> Vec<Outcome>;

    /// Queues a move behind the others.
    ///
    /// # Errors
    /// Why it was not.
    fn enqueue(&mut self, wanted: PageMove, now_ns: u64, cooldowns: &Cooldowns) -> Result<(), Refused>;

    /// Queues the way back of every page that `generation` moved, before all other work for the same node and newest first,
    /// and drops what is still queued of it (returned). Its groups are held for `hold_ns`, those that had not moved yet too. A
    /// cooldown does not stop it.
    fn undo(&mut self, generation: Generation, now_ns: u64, hold_ns: u64) -> Vec<Outcome> {
        self.undo_of(generation, &|_| true, now_ns, hold_ns)
    }

    /// The same for the pages of the processes that are meant.
    fn undo_of(
        &mut self,
        generation: Generation,
        is_meant: &dyn Fn(ProcessId) -> bool,
        now_ns: u64,
        hold_ns: u64,
    ) -> Vec<Outcome>;

    /// Drops what is still queued of the plan `generation`: what it moved stays, and cools as it would.
    fn stop(&mut self, generation: Generation, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        self.stop_of(generation, &|_| true, now_ns, cooldowns)
    }

    /// The same for the pages of the processes that are meant.
    fn stop_of(
        &mut self,
        generation: Generation,
        is_meant: &dyn Fn(ProcessId) -> bool,
        now_ns: u64,
        cooldowns: &mut Cooldowns,
    ) -> Vec<Outcome>;

    /// The same for all plans. What is on its way back, of plans that were undone, goes on.
    fn stop_plans(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome>;

    /// Works until the queue is done, a budget is spent or the run took its time; what is left continues at the next run.
    /// Returns the groups that ended.
    fn run(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome>;

    /// Empties the queue, of ways back too; groups begun are cooling as far as they were moved.
    fn cancel_all(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome>;

    /// Whether another run at `now_ns` would find work and budget.
    fn is_ready(&self, now_ns: u64) -> bool;

    /// Whether runs leave everything queued as it is, undo too, until told otherwise.
    fn set_paused(&mut self, paused: bool);

    /// Whether they do.
    fn is_paused(&self) -> bool;

    /// Says how much the nodes can take now; without it moves go to full nodes too.
    fn set_room(&mut self, room: Option<Room>);

    /// Groups queued.
    fn queued_groups(&self) -> usize;

    /// Whether anything is still on its way back, of plans that were undone; what waits for room on its node is not.
    fn is_returning(&self) -> bool;

    /// The groups of the plan `generation` that have not ended, with where they go, but for those of which only busy pages are left.
    fn queued_of(&self, generation: Generation) -> Vec<(GroupId, NodeId)>;

    /// Call time per page that moved by itself, over those that moved lately; `None` until some did.
    fn cost_ns_per_page(&self) -> Option<f64>;

    /// The same of huge pages of 2 MiB that moved whole.
    fn cost_ns_per_huge_page(&self) -> Option<f64>;

    /// Forgets how to undo every generation before `generation`: these plans paid.
    fn forget_before(&mut self, generation: Generation);

    /// Entries of moved pages that were forgotten for lack of room: they stay where they are if their plan is undone.
    fn lost_undo_entries(&self) -> u64;

    /// Whether any of the group's `bytes` went back so recently that a move of it would be refused.
    fn is_held(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool;
}
