// SPDX-License-Identifier: GPL-2.0-only
//! One group on its way.

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES};

use super::RETRIES;
use crate::undo::BLOCK_PAGES;
use crate::{Cooldowns, Ended, Generation, Outcome, PageSet, PageStatus, Purpose, UndoEntry};

/// Pages in one call: those of one block, whose end a call never straddles.
pub(super) const BATCH_PAGES: u64 = BLOCK_PAGES;
/// Pages in one call of a retry: the kernel ends a call early at pages that stay busy. A huge page is tried whole.
const RETRY_BATCH_PAGES: usize = 16;

/// What cannot move because memory is in pieces where it should go rests for so many cooldowns.
const IN_PIECES_COOLDOWNS: u64 = 6;

/// How often what goes back to a node without room is tried again, and after how long.
pub(super) const ROOM_RETRIES: usize = 4;
const ROOM_RETRY_AFTER_NS: [u64; ROOM_RETRIES] = [500_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000];
/// No later than so long after the undo: what is not back by then is where others plan with it.
const LATEST_RETRY_NS: u64 = 9_000_000_000;

/// What a way back has beside what a move of a plan has: there may be very many of the latter.
#[derive(Debug)]
struct Back {
    /// The pages that are meant.
    only: PageSet,
    /// Those that found no room at the last try, how often they have waited for it, and until when they may.
    refused: Vec<u64>,
    retries: usize,
    latest_retry_ns: u64,
}

/// A group to be moved, and how far that has come.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) outcome: Outcome,
    /// Those with lower numbers go first; 0: before all.
    pub(super) number: u64,
    cooldown_ns: u64,
    /// Whether its pages are in huge pages.
    pub(super) huge: bool,
    /// If it takes back what a plan moved.
    back: Option<Box<Back>>,
    /// Whether any of it was tried.
    begun: bool,
    next: u64,
    /// Pages that were busy at the last try and are still to be tried now.
    busy: Vec<u64>,
    /// Those of which it is known already that they are to be tried once more.
    again: Vec<u64>,
    /// How often busy pages have been put off, and until when they wait.
    retries: usize,
    retry_at_ns: u64,
}

impl Job {
    /// A move of a plan: all of these pages.
    pub(super) fn new(group: GroupId, pages: u64, to: NodeId, generation: Generation, cooldown_ns: u64) -> Self {
        Self::of(Outcome::new(group, group.start, pages, to, generation, Purpose::Plan), cooldown_ns)
    }

    /// The way back, from `now_ns` on, of pages that a plan moved, before all others.
    pub(super) fn back(entry: &UndoEntry, now_ns: u64, cooldown_ns: u64) -> Self {
        let (span, purpose) = (entry.pages.span(), Purpose::Undo { from: entry.to });
        let pages = entry.pages.len();
        let mut outcome = Outcome::new(entry.group, span.start, pages, entry.from, entry.generation, purpose);
        outcome.bytes = span.end - span.start;
        let latest_retry_ns = now_ns.saturating_add(LATEST_RETRY_NS);
        let back = Back { only: entry.pages, refused: Vec::new(), retries: 0, latest_retry_ns };
        Self { huge: entry.huge, back: Some(Box::new(back)), ..Self::of(outcome, cooldown_ns) }
    }

    fn of(outcome: Outcome, cooldown_ns: u64) -> Self {
        let next = outcome.start;
        Self {
            outcome,
            number: 0,
            cooldown_ns,
            huge: false,
            back: None,
            begun: false,
            next,
            busy: Vec::new(),
            again: Vec::new(),
            retries: 0,
            retry_at_ns: 0,
        }
    }

    /// What it covers: the start as a group's, and the end.
    pub(super) fn range(&self) -> (GroupId, u64) {
        (GroupId { start: self.outcome.start, ..self.outcome.group }, self.outcome.start + self.outcome.bytes)
    }

    /// Takes it for begun; whether it was not before.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    pub(super) fn is_fresh(&self) -> bool {
        !self.begun
    }

    /// Whether no busy page has been put off yet.
    pub(super) fn is_first_try(&self) -> bool {
        self.retries == 0
    }

    /// Whether it may be worked on now.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.retry_at_ns
    }

    /// Whether nothing is left to be tried, once there is no next batch.
    pub(super) fn is_done(&self) -> bool {
        self.again.is_empty()
    }

    /// Lets busy pages wait for their next try; returns how often they have been put off before.
    pub(super) fn wait(&mut self, now_ns: u64, after_ns: [u64; RETRIES]) -> usize {
        let before = self.retries;
        self.busy = std::mem::take(&mut self.again);
        self.retry_at_ns = now_ns.saturating_add(after_ns[before].max(1));
        self.retries += 1;
        before
    }

    pub(super) fn is_stopped_by(&self, cooldowns: &Cooldowns, now_ns: u64) -> bool {
        self.outcome.purpose == Purpose::Plan && cooldowns.is_group_cooling(self.range().0, self.outcome.bytes, now_ns)
    }

    /// The addresses to be dealt with next; empty when all were.
    pub(super) fn next_batch(&self) -> Vec<u64> {
        if self.retries > 0 {
            return self.busy[..self.retry_pages()].to_vec();
        }
        let all = (self.next..self.batch_end()).step_by(PAGE_BYTES as usize);
        match &self.back {
            None => all.collect(),
            Some(back) => back.only.addresses().filter(|address| *address >= self.next).collect(),
        }
    }

    /// How many of the busy pages, of one block, are tried with the next call: all of a huge page, which goes with any of them. Sent in
    /// parts, the others would be found where nobody is known to have moved them.
    fn retry_pages(&self) -> usize {
        let block = |address: &u64| address / (BATCH_PAGES * PAGE_BYTES);
        let of_block = self.busy.iter().take_while(|&address| block(address) == block(&self.busy[0])).count();
        if self.huge { of_block } else { of_block.min(RETRY_BATCH_PAGES) }
    }

    fn batch_end(&self) -> u64 {
        let block_bytes = BATCH_PAGES * PAGE_BYTES;
        (self.next / block_bytes + 1).saturating_mul(block_bytes).min(self.range().1)
    }

    /// The next batch has been dealt with.
    pub(super) fn advance(&mut self) {
        if self.retries > 0 {
            self.busy.drain(..self.retry_pages());
        } else {
            self.next = self.batch_end();
        }
    }

    /// Counts a page that was not sent by where it was.
    pub(super) fn count_unsent(&mut self, status: PageStatus) {
        match status {
            PageStatus::On(node) if node != self.outcome.to => self.outcome.moved_on_pages += 1,
            status => self.outcome.count_unmoved(status, 1),
        }
    }

    /// A page was busy: it is tried once more, unless that was done often enough.
    pub(super) fn meet_busy(&mut self, address: u64) {
        if self.retries < RETRIES {
            self.again.push(address);
        } else {
            self.outcome.busy_pages += 1;
        }
    }

    /// There was no room for a page on the target.
    pub(super) fn meet_full(&mut self, address: u64) {
        match &mut self.back {
            Some(back) => back.refused.push(address),
            None => self.outcome.no_memory_pages += 1,
        }
    }

    /// Lets a way back that ends for lack of room wait, with all that is left of it; returns how often it has before. `None` if it
    /// ends: nothing is left, that is not why, or it has waited often or long enough.
    pub(super) fn wait_for_room(&mut self, how: Ended, now_ns: u64) -> Option<usize> {
        let back = self.back.as_ref()?;
        let before = back.retries;
        let retry_at_ns = now_ns.saturating_add(*ROOM_RETRY_AFTER_NS.get(before)?);
        let lacks_room = matches!(how, Ended::TargetFull | Ended::TargetFragmented);
        if !lacks_room || retry_at_ns > back.latest_retry_ns {
            return None;
        }
        // Of what was not begun all is left. There may be very many.
        let left = if self.is_fresh() { back.only } else { self.left()? };
        let back = self.back.as_mut()?;
        (back.only, back.refused, back.retries) = (left, Vec::new(), before + 1);
        // It keeps nobody else from what it covers: others' pages are not its own.
        self.begun = false;
        (self.busy, self.again) = Default::default();
        (self.next, self.retries, self.retry_at_ns) = (self.outcome.start, 0, retry_at_ns);
        Some(before)
    }

    /// The pages of a way back that have no count yet; `None` if there are none.
    fn left(&self) -> Option<PageSet> {
        let is_untried = |address: &u64| self.retries == 0 && *address >= self.next;
        let back = self.back.as_ref()?;
        let untried = back.only.addresses().filter(is_untried);
        let known = [&back.refused, &self.busy, &self.again].into_iter().flatten().copied();
        untried.chain(known).fold(None, |left, address| {
            let mut left = left.unwrap_or_else(|| PageSet::of(address));
            left.insert(address);
            Some(left)
        })
    }

    /// Lets what moved rest, and what did not because the node is full, which policies may not see; for longer what did not because
    /// memory is in pieces there: that does not change soon.
    pub(super) fn start_cooldown(&self, how: Ended, now_ns: u64, cooldowns: &mut Cooldowns) {
        let times = match how {
            // Where a plan is undone it rests for as long as that is remembered.
            Ended::TargetFragmented if !self.is_way_back() => IN_PIECES_COOLDOWNS,
            Ended::TargetFull if !self.is_way_back() => 1,
            _ if self.outcome.moved_pages > 0 || how == Ended::TargetFragmented => 1,
            _ => return,
        };
        cooldowns.start_group(self.range().0, self.outcome.bytes, now_ns, times * self.cooldown_ns);
    }

    /// Whether nothing but busy pages is left of it, which were tried before.
    pub(super) fn has_waited(&self) -> bool {
        self.retries > 0
    }

    /// Whether it found no room at its first try.
    pub(super) fn lacked_room(&self) -> bool {
        self.back.as_ref().is_some_and(|back| back.retries > 0)
    }

    /// Whether it takes back what a plan moved.
    pub(super) fn is_way_back(&self) -> bool {
        self.outcome.purpose != Purpose::Plan
    }

    /// Whether it is a move of this plan, not one on the way back.
    pub(super) fn is_of_plan(&self, generation: Generation) -> bool {
        self.outcome.generation == generation && !self.is_way_back()
    }

    /// Ends before it is done: what was moved of it cools.
    pub(super) fn cancel(self, now_ns: u64, cooldowns: &mut Cooldowns) -> Outcome {
        self.start_cooldown(Ended::Cancelled, now_ns, cooldowns);
        self.finish(Ended::Cancelled)
    }

    pub(super) fn finish(mut self, ended: Ended) -> Outcome {
        self.outcome.ended = ended;
        self.outcome.busy_pages += (self.busy.len() + self.again.len()) as u64;
        self.outcome.no_memory_pages += self.back.as_ref().map_or(0, |back| back.refused.len() as u64);
        self.outcome.not_tried_pages = self.outcome.requested_pages - self.outcome.counted_pages();
        self.outcome
    }
}
