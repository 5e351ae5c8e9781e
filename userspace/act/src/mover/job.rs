// SPDX-License-Identifier: GPL-2.0-only
//! One group on its way.

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES};

use crate::{Cooldowns, Ended, Generation, Outcome, PageStatus, Purpose};

/// Pages in one call: those of one 2 MiB huge page, whose end a call never straddles.
pub(super) const BATCH_PAGES: u64 = 512;
/// Pages in one call of a retry: the kernel ends a call early at pages that stay busy.
const RETRY_BATCH_PAGES: usize = 16;

/// A group to be moved, and how far that has come.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) outcome: Outcome,
    /// Those with lower numbers go first; 0: before all.
    pub(super) number: u64,
    cooldown_ns: u64,
    /// Whether its pages are in huge pages.
    pub(super) huge: bool,
    next: u64,
    busy: Vec<u64>,
    /// Set once the busy pages wait for their second try.
    retry_at_ns: Option<u64>,
}

impl Job {
    pub(super) fn new(
        group: GroupId,
        start: u64,
        pages: u64,
        to: NodeId,
        generation: Generation,
        purpose: Purpose,
        cooldown_ns: u64,
    ) -> Self {
        let outcome = Outcome::new(group, start, pages, to, generation, purpose);
        Self { outcome, number: 0, cooldown_ns, huge: false, next: start, busy: Vec::new(), retry_at_ns: None }
    }

    /// What it covers: the start as a group's, and the bytes.
    pub(super) fn range(&self) -> (GroupId, u64) {
        (GroupId { start: self.outcome.start, ..self.outcome.group }, self.outcome.bytes)
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.next == self.outcome.start
    }

    /// Whether it may be worked on now.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.retry_at_ns.is_none_or(|at_ns| now_ns >= at_ns)
    }

    /// Whether nothing is left to be tried, once there is no next batch.
    pub(super) fn is_done(&self) -> bool {
        self.retry_at_ns.is_some() || self.busy.is_empty()
    }

    /// Lets busy pages wait for their second try.
    pub(super) fn wait(&mut self, until_ns: u64) {
        self.retry_at_ns = Some(until_ns);
    }

    pub(super) fn is_stopped_by(&self, cooldowns: &Cooldowns, now_ns: u64) -> bool {
        let (range, bytes) = self.range();
        self.outcome.purpose == Purpose::Plan && cooldowns.is_group_cooling(range, bytes, now_ns)
    }

    /// The addresses to be dealt with next; empty when all were.
    pub(super) fn next_batch(&self) -> Vec<u64> {
        if self.retry_at_ns.is_some() {
            return self.busy.iter().take(RETRY_BATCH_PAGES).copied().collect();
        }
        let huge_bytes = BATCH_PAGES * PAGE_BYTES;
        let end = self.outcome.start + self.outcome.bytes;
        let until = (self.next / huge_bytes + 1).saturating_mul(huge_bytes).min(end);
        (self.next..until).step_by(PAGE_BYTES as usize).collect()
    }

    /// So many pages of the next batch have been dealt with.
    pub(super) fn advance(&mut self, pages: usize) {
        if self.retry_at_ns.is_some() {
            self.busy.drain(..pages);
        } else {
            self.next += pages as u64 * PAGE_BYTES;
        }
    }

    /// Counts a page that was not sent by where it was.
    pub(super) fn count_unsent(&mut self, status: PageStatus) {
        match status {
            PageStatus::On(node) if node != self.outcome.to => self.outcome.moved_on_pages += 1,
            status => self.outcome.count_unmoved(status, 1),
        }
    }

    /// A page was busy: it is tried once more.
    pub(super) fn meet_busy(&mut self, address: u64) {
        if self.retry_at_ns.is_none() {
            self.busy.push(address);
        } else {
            self.outcome.busy_pages += 1;
        }
    }

    /// Lets what moved rest, and what did not because memory is in pieces there: that does not change soon.
    pub(super) fn start_cooldown(&self, how: Ended, now_ns: u64, cooldowns: &mut Cooldowns) {
        if self.outcome.moved_pages > 0 || how == Ended::TargetFragmented {
            let (range, bytes) = self.range();
            cooldowns.start_group(range, bytes, now_ns, self.cooldown_ns);
        }
    }

    /// Whether it is a move of this plan, not one on the way back.
    pub(super) fn is_of_plan(&self, generation: Generation) -> bool {
        self.outcome.generation == generation && self.outcome.purpose == Purpose::Plan
    }

    /// Ends before it is done: what was moved of it cools.
    pub(super) fn cancel(self, now_ns: u64, cooldowns: &mut Cooldowns) -> Outcome {
        self.start_cooldown(Ended::Cancelled, now_ns, cooldowns);
        self.finish(Ended::Cancelled)
    }

    pub(super) fn finish(mut self, ended: Ended) -> Outcome {
        self.outcome.ended = ended;
        self.outcome.busy_pages += self.busy.len() as u64;
        self.outcome.not_tried_pages = self.outcome.requested_pages - self.outcome.counted_pages();
        self.outcome
    }
}

/// Whether two ranges have memory in common.
pub(super) fn overlap((one, one_bytes): (GroupId, u64), (other, other_bytes): (GroupId, u64)) -> bool {
    one.process == other.process
        && one.start < other.start.saturating_add(other_bytes)
        && other.start < one.start.saturating_add(one_bytes)
}
