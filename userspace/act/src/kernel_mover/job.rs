// SPDX-License-Identifier: GPL-2.0-only
//! One group that the kernel is to bring, and how far that has come.

use tandem_policies::model::PAGE_BYTES;

use crate::move_pages::UNWRITTEN;
use crate::{CallError, Ended, Generation, MovePages, MovedPage, Outcome, PageStatus, Purpose};

/// Rounds in which hardly anything came after which a group is given up, besides those of two scans: the first only arms.
const IDLE_ROUNDS: u32 = 4;
/// A group has so many times as many rounds in all.
const MOST_OF_IDLE: u32 = 4;
/// One in so many pages may be left elsewhere, and as many at least must come in a round that counts.
const PART: u64 = 20;
/// Pages of a group that tell how far it has come.
const LOOKED_PAGES: u64 = 32;
/// Pages that are asked for in one call.
const ASKED_PAGES: usize = 512;

/// Pages that follow each other and are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    status: PageStatus,
    pages: u64,
}

/// What a look at a group says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Some of it is not there yet.
    Left,
    /// It is over.
    Over(Ended),
}

/// A group that is to be where a plan wants it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) outcome: Outcome,
    pub(super) cooldown_ns: u64,
    huge: bool,
    /// Its pages: address of the first, and how many.
    parts: Vec<(u64, u64)>,
    /// Where they were at first, in order; empty until that was asked.
    before: Vec<Run>,
    /// Of the pages that are looked at, those that were to go at first, and the fewest that were left.
    to_go: u64,
    left: u64,
    rounds: u32,
    idle_rounds: u32,
}

impl Job {
    pub(super) fn new(outcome: Outcome, parts: Vec<(u64, u64)>, huge: bool, cooldown_ns: u64) -> Self {
        Self { outcome, cooldown_ns, huge, parts, before: Vec::new(), to_go: 0, left: 0, rounds: 0, idle_rounds: 0 }
    }

    /// Whether it takes back what a plan moved.
    pub(super) fn is_way_back(&self) -> bool {
        self.outcome.purpose != Purpose::Plan
    }

    /// Whether it is a move of this plan, not one on the way back.
    pub(super) fn is_of_plan(&self, generation: Generation) -> bool {
        self.outcome.generation == generation && !self.is_way_back()
    }

    /// Whether a page there is to go.
    fn goes(&self, status: PageStatus) -> bool {
        match (status, self.outcome.purpose) {
            (PageStatus::On(node), Purpose::Plan) => node != self.outcome.to,
            (PageStatus::On(node), Purpose::Undo { from }) => node == from,
            _ => false,
        }
    }

    /// Sees how far it has come, where the kernel takes `scan` rounds to get through its process. Adds what it `asked`.
    pub(super) fn look(&mut self, system: &impl MovePages, scan: u32, asked: &mut u64) -> Result<Looked, CallError> {
        let is_first = self.before.is_empty();
        if is_first {
            self.before = self.ask(system, 1)?;
            *asked += self.outcome.requested_pages;
        }
        // Of a page in so many is asked from now on.
        let step = self.outcome.requested_pages.div_ceil(LOOKED_PAGES);
        let now = self.ask(system, step)?;
        *asked += LOOKED_PAGES.min(self.outcome.requested_pages);
        let left: u64 = now.iter().filter(|run| self.goes(run.status)).map(|run| run.pages).sum();
        if is_first {
            (self.to_go, self.left) = (left, left);
            let goes = self.before.iter().any(|run| self.goes(run.status));
            return Ok(if goes { Looked::Left } else { Looked::Over(Ended::Done) });
        }
        if left <= self.to_go / PART {
            return Ok(Looked::Over(Ended::Done));
        }
        let came = left + (self.to_go / PART).max(1) <= self.left;
        (self.left, self.idle_rounds) = if came { (left, 0) } else { (self.left, self.idle_rounds + 1) };
        self.rounds += 1;
        let most = IDLE_ROUNDS.saturating_add(scan.saturating_mul(2));
        let is_over = self.idle_rounds >= most || self.rounds >= most.saturating_mul(MOST_OF_IDLE);
        Ok(if is_over { Looked::Over(Ended::NotUsed) } else { Looked::Left })
    }

    /// Where one page in `step` is.
    fn ask(&mut self, system: &impl MovePages, step: u64) -> Result<Vec<Run>, CallError> {
        let of_part = |&(start, pages): &(u64, u64)| (0..pages).map(move |page| start + page * PAGE_BYTES);
        let addresses: Vec<u64> = self.parts.iter().flat_map(of_part).step_by(step as usize).collect();
        let mut runs: Vec<Run> = Vec::new();
        for part in addresses.chunks(ASKED_PAGES) {
            let mut raw = vec![UNWRITTEN; part.len()];
            let call = system.call(self.outcome.group.process, part, None, &mut raw);
            self.outcome.time_ns += call.time_ns;
            call.result?;
            for status in raw.into_iter().map(PageStatus::from_raw) {
                match runs.last_mut() {
                    Some(last) if last.status == status => last.pages += 1,
                    _ => runs.push(Run { status, pages: 1 }),
                }
            }
        }
        Ok(runs)
    }

    /// What became of it, and the pages that went with where they were.
    pub(super) fn finish(mut self, how: Ended, system: &impl MovePages) -> (Outcome, Vec<MovedPage>) {
        let mut moved = Vec::new();
        if !self.before.is_empty() && how != Ended::ProcessGone {
            match self.ask(system, 1) {
                Ok(after) => moved = self.count(&after),
                Err(error) => tracing::debug!(%error, group = ?self.outcome.group, "what came is not known"),
            }
        }
        self.outcome.ended = how;
        self.outcome.not_tried_pages = self.outcome.requested_pages - self.outcome.counted_pages();
        (self.outcome, moved)
    }

    /// Counts each page by where it was and is now; returns those that went.
    fn count(&mut self, after: &[Run]) -> Vec<MovedPage> {
        let each = |runs: &[Run]| -> Vec<PageStatus> {
            runs.iter().flat_map(|run| std::iter::repeat_n(run.status, run.pages as usize)).collect()
        };
        let (before, after) = (each(&self.before), each(after));
        let of_part = |&(start, pages): &(u64, u64)| (0..pages).map(move |page| start + page * PAGE_BYTES);
        let addresses: Vec<u64> = self.parts.iter().flat_map(of_part).collect();
        let mut moved = Vec::new();
        for ((&address, before), after) in addresses.iter().zip(before).zip(after) {
            match before {
                PageStatus::On(from) if self.goes(before) && after == PageStatus::On(self.outcome.to) => {
                    self.outcome.moved_pages += 1;
                    moved.push(MovedPage { address, from, huge: self.huge });
                }
                PageStatus::On(_) if self.goes(before) => self.outcome.count_unmoved(after, 1),
                PageStatus::On(node) if node != self.outcome.to => self.outcome.moved_on_pages += 1,
                status => self.outcome.count_unmoved(status, 1),
            }
        }
        moved
    }
}
