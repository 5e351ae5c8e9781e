// SPDX-License-Identifier: GPL-2.0-only
//! Moves page groups in order, under a budget of pages and of call time.

use std::collections::{BTreeSet, VecDeque};

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES};
use thiserror::Error;

use crate::move_pages::UNWRITTEN;
use crate::{CallError, Cooldowns, Ended, Generation, MovePages, Outcome, PageStatus, Purpose, Room, UndoLog};

/// Pages in one call: those of one 2 MiB huge page, whose end a call never straddles.
const BATCH_PAGES: u64 = 512;
/// Pages in one call of a retry: the kernel ends a call early at pages that stay busy.
const RETRY_BATCH_PAGES: usize = 16;
/// Seconds for which unused call time is saved.
const SAVED_S: u64 = 30;
const NS_PER_S: u128 = 1_000_000_000;

/// Budgets and bounds of a [`Mover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverConfig {
    /// Pages moved per second at most; default 65536 (256 MiB/s).
    pub pages_per_s: u64,
    /// Time inside system calls per second at most; default 100 ms. What was not used is saved for [`SAVED_S`]: the first
    /// placement of a program needs much at once and little later.
    pub call_ns_per_s: u64,
    /// Time inside system calls after which one run ends, so that its caller can do other things; default 20 ms.
    pub run_ns: u64,
    /// Time until busy pages are tried again; default 50 ms.
    pub retry_after_ns: u64,
    /// Groups queued at most; default 65536.
    pub queue_groups: usize,
    /// Runs in the undo log at most; default 262144.
    pub undo_runs: usize,
    /// Moves wait while some task waits for memory in this share of the time, in percent; default 10.
    pub pressure_percent: u32,
}

impl Default for MoverConfig {
    fn default() -> Self {
        Self {
            pages_per_s: 65536,
            call_ns_per_s: 100_000_000,
            run_ns: 20_000_000,
            retry_after_ns: 50_000_000,
            queue_groups: 65536,
            undo_runs: 262_144,
            pressure_percent: 10,
        }
    }
}

/// A group to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The group; its start is a multiple of the page size.
    pub group: GroupId,
    /// Its bytes from the first page on that go; rounded up to pages.
    pub bytes: u64,
    /// Where to.
    pub to: NodeId,
    /// The plan it belongs to.
    pub generation: Generation,
    /// How long its pages rest once they have moved.
    pub cooldown_ns: u64,
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
    /// The queue is full.
    #[error("the queue of page moves is full")]
    QueueFull,
}

#[derive(Debug)]
struct Job {
    outcome: Outcome,
    cooldown_ns: u64,
    next: u64,
    busy: Vec<u64>,
    /// Set once the busy pages wait for their second try.
    retry_at_ns: Option<u64>,
}

/// Tokens that come at a rate; may be overdrawn, then the debt is paid first.
#[derive(Debug)]
struct Bucket {
    per_s: u64,
    capacity: i64,
    tokens: i64,
    remainder: u128,
}

impl Bucket {
    fn new(per_s: u64, capacity: u64) -> Self {
        let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
        Self { per_s, capacity, tokens: capacity, remainder: 0 }
    }

    fn refill(&mut self, elapsed_ns: u64) {
        let due = u128::from(self.per_s) * u128::from(elapsed_ns) + self.remainder;
        self.remainder = due % NS_PER_S;
        let tokens = i64::try_from(due / NS_PER_S).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(tokens).min(self.capacity);
    }

    fn spend(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(tokens).unwrap_or(i64::MAX));
    }
}

/// Executes page-group moves. All times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Mover<S> {
    system: S,
    config: MoverConfig,
    queue: VecDeque<Job>,
    pages: Bucket,
    call_ns: Bucket,
    /// Call time of the present run.
    run_call_ns: u64,
    last_run_ns: Option<u64>,
    cost_ns_per_page: Option<f64>,
    log: UndoLog,
    paused: bool,
    /// Of all nodes, as far as it is known.
    room: Option<Room>,
}

impl<S: MovePages> Mover<S> {
    /// An idle mover with full budgets.
    pub fn new(system: S, config: MoverConfig) -> Self {
        Self {
            system,
            config,
            queue: VecDeque::new(),
            pages: Bucket::new(config.pages_per_s, config.pages_per_s.max(BATCH_PAGES)),
            call_ns: Bucket::new(config.call_ns_per_s, config.call_ns_per_s.saturating_mul(SAVED_S).max(1)),
            run_call_ns: 0,
            last_run_ns: None,
            cost_ns_per_page: None,
            log: UndoLog::new(config.undo_runs),
            paused: false,
            room: None,
        }
    }

    /// Queues a move behind the others.
    pub fn enqueue(&mut self, wanted: PageMove, now_ns: u64, cooldowns: &Cooldowns) -> Result<(), Refused> {
        let PageMove { group, bytes, to, generation, cooldown_ns } = wanted;
        let pages = bytes.div_ceil(PAGE_BYTES);
        let end = pages.checked_mul(PAGE_BYTES).and_then(|bytes| group.start.checked_add(bytes));
        if pages == 0 || end.is_none() || !group.start.is_multiple_of(PAGE_BYTES) {
            return Err(Refused::BadRange);
        }
        if self.queue.len() >= self.config.queue_groups {
            return Err(Refused::QueueFull);
        }
        if cooldowns.is_group_cooling(group, bytes, now_ns) {
            return Err(Refused::Cooldown);
        }
        if self.log.is_range_held(group, bytes, now_ns) {
            return Err(Refused::Held);
        }
        self.queue.push_back(Job::new(group, group.start, pages, to, generation, Purpose::Plan, cooldown_ns));
        Ok(())
    }

    /// Queues the way back of every page that `generation` moved, before all other work and newest first, and drops
    /// what is still queued of it (returned). Its groups are held for `hold_ns`. A cooldown does not stop it.
    pub fn undo(&mut self, generation: Generation, now_ns: u64, hold_ns: u64) -> Vec<Outcome> {
        let (stop, keep): (VecDeque<_>, _) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|job| job.outcome.generation == generation && job.outcome.purpose == Purpose::Plan);
        self.queue = keep;
        let entries = self.log.take(generation);
        for entry in entries.iter().rev() {
            let run = entry.run;
            let bytes = (run.start + run.pages * PAGE_BYTES).saturating_sub(entry.group.start);
            self.log.hold(entry.group, bytes, now_ns, hold_ns);
            let purpose = Purpose::Undo { from: entry.to };
            self.queue.push_front(Job::new(entry.group, run.start, run.pages, run.from, generation, purpose, hold_ns));
        }
        stop.into_iter().map(|job| job.finish(Ended::Cancelled)).collect()
    }

    /// Works in order until the queue is done, a budget is spent or the run took its time; what is left continues at the
    /// next run. Returns the groups that ended.
    pub fn run(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        self.run_call_ns = 0;
        let elapsed_ns = now_ns.saturating_sub(self.last_run_ns.unwrap_or(now_ns));
        self.last_run_ns = Some(now_ns);
        self.pages.refill(elapsed_ns);
        self.call_ns.refill(elapsed_ns);
        if self.paused {
            return Vec::new();
        }
        let mut ended = Vec::new();
        let mut waiting = VecDeque::new();
        let mut full = BTreeSet::new();
        while let Some(mut job) = self.queue.pop_front() {
            if job.retry_at_ns.is_some_and(|at_ns| now_ns < at_ns) {
                waiting.push_back(job);
                continue;
            }
            let result = if full.contains(&job.outcome.to) {
                Some(Ended::TargetFull)
            } else if job.is_fresh() && job.is_stopped_by(cooldowns, now_ns) {
                Some(Ended::Cooldown)
            } else {
                self.work(&mut job, now_ns)
            };
            match result {
                Some(how) => {
                    if how == Ended::TargetFull {
                        full.insert(job.outcome.to);
                    }
                    job.start_cooldown(now_ns, cooldowns);
                    ended.push(job.finish(how));
                }
                None if job.retry_at_ns.is_some_and(|at_ns| now_ns < at_ns) => waiting.push_back(job),
                None => {
                    self.queue.push_front(job);
                    break;
                }
            }
        }
        waiting.append(&mut self.queue);
        self.queue = waiting;
        ended
    }

    /// Empties the queue; groups begun are cooling as far as they were moved.
    pub fn cancel_all(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        let jobs = std::mem::take(&mut self.queue);
        jobs.into_iter()
            .map(|job| {
                job.start_cooldown(now_ns, cooldowns);
                job.finish(Ended::Cancelled)
            })
            .collect()
    }

    /// Whether another run at `now_ns` would find work and budget.
    pub fn is_ready(&self, now_ns: u64) -> bool {
        let due = |job: &&Job| job.retry_at_ns.is_none_or(|at_ns| now_ns >= at_ns);
        !self.paused && self.queue.iter().find(due).is_some_and(|job| self.has_budget(job.next_batch().len()))
    }

    fn has_budget(&self, pages: usize) -> bool {
        self.pages.tokens >= i64::try_from(pages).unwrap_or(i64::MAX) && self.call_ns.tokens > 0
    }

    /// Whether runs leave everything queued as it is, undo too, until told otherwise.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Says how much the nodes can take now; without it moves go to full nodes too.
    pub fn set_room(&mut self, room: Option<Room>) {
        self.room = room;
    }

    /// Groups queued.
    pub fn queued_groups(&self) -> usize {
        self.queue.len()
    }

    /// Call time per page moved, aged over past calls; `None` until a page was moved.
    pub fn cost_ns_per_page(&self) -> Option<f64> {
        self.cost_ns_per_page
    }

    /// What can be undone and what is held.
    pub fn undo_log(&self) -> &UndoLog {
        &self.log
    }

    /// Forgets how to undo every generation before `generation`: these plans paid.
    pub fn forget_before(&mut self, generation: Generation) {
        self.log.forget_before(generation);
    }

    /// Works on one job; `None` if it is to go on later (budget spent, or busy pages to be tried again).
    fn work(&mut self, job: &mut Job, now_ns: u64) -> Option<Ended> {
        loop {
            let batch = job.next_batch();
            if batch.is_empty() {
                if job.retry_at_ns.is_some() || job.busy.is_empty() {
                    return Some(Ended::Done);
                }
                job.retry_at_ns = Some(now_ns.saturating_add(self.config.retry_after_ns.max(1)));
                return None;
            }
            if !self.has_budget(batch.len()) || self.run_call_ns >= self.config.run_ns {
                return None;
            }
            if let Err(ended) = self.batch(job, &batch) {
                return Some(ended);
            }
        }
    }

    /// Asks where the pages of a batch are, sends those that are elsewhere, and counts every page.
    fn batch(&mut self, job: &mut Job, batch: &[u64]) -> Result<(), Ended> {
        let began_ns = job.outcome.time_ns;
        // A page of the batch may be one of a huge page, which moves whole, but never of two.
        if self.room.as_ref().is_some_and(|room| !room.fits(job.outcome.to, BATCH_PAGES)) {
            return Err(Ended::TargetFull);
        }
        let before = self.ask(job, batch)?;
        job.advance(batch.len());
        let target = job.outcome.to;
        let mut send = Vec::new();
        for (&address, &status) in batch.iter().zip(&before) {
            match (status, job.outcome.purpose) {
                (PageStatus::On(node), _) if node == target => job.outcome.count_unmoved(status, 1),
                (PageStatus::On(node), Purpose::Undo { from }) if node != from => job.outcome.moved_on_pages += 1,
                (PageStatus::On(node), _) => send.push((address, node)),
                (status, _) => job.outcome.count_unmoved(status, 1),
            }
        }
        if send.is_empty() {
            return Ok(());
        }
        self.pages.spend(send.len() as u64);
        let addresses: Vec<u64> = send.iter().map(|(address, _)| *address).collect();
        let (result, after) = self.send(job, &addresses);
        let moved_before = job.outcome.moved_pages;
        let mut full = result == Err(CallError::NoMemory);
        for (&(address, from), status) in send.iter().zip(after) {
            full |= status == PageStatus::NoMemory;
            self.settle(job, address, from, status, result.err());
        }
        let moved = job.outcome.moved_pages - moved_before;
        if let Some(room) = &mut self.room {
            room.take(target, moved);
        }
        if moved > 0 {
            let cost = (job.outcome.time_ns - began_ns) as f64 / moved as f64;
            self.cost_ns_per_page = Some(self.cost_ns_per_page.map_or(cost, |old| old + (cost - old) / 8.0));
        }
        match result {
            _ if full => Err(Ended::TargetFull),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    fn settle(&mut self, job: &mut Job, address: u64, from: NodeId, status: PageStatus, error: Option<CallError>) {
        let to = job.outcome.to;
        match status {
            PageStatus::On(node) if node == to => {
                job.outcome.moved_pages += 1;
                if job.outcome.purpose == Purpose::Plan {
                    self.log.record(job.outcome.generation, job.outcome.group, address, from, to);
                }
            }
            PageStatus::On(_) | PageStatus::Busy => match error {
                Some(CallError::NoMemory) => job.outcome.no_memory_pages += 1,
                // The call failed as a whole: what did not move was not tried.
                Some(_) => {}
                None if job.retry_at_ns.is_none() => job.busy.push(address),
                None => job.outcome.busy_pages += 1,
            },
            status => job.outcome.count_unmoved(status, 1),
        }
    }

    fn ask(&mut self, job: &mut Job, addresses: &[u64]) -> Result<Vec<PageStatus>, Ended> {
        let mut raw = vec![UNWRITTEN; addresses.len()];
        let call = self.system.call(job.outcome.group.process, addresses, None, &mut raw);
        self.charge(job, call.time_ns);
        call.result?;
        Ok(raw.into_iter().map(PageStatus::from_raw).collect())
    }

    /// Sends pages and asks again for those whose status is not final: all but the first page of a huge page are
    /// reported busy or not at all although they moved with it.
    fn send(&mut self, job: &mut Job, addresses: &[u64]) -> (Result<u64, CallError>, Vec<PageStatus>) {
        let mut raw = vec![UNWRITTEN; addresses.len()];
        let call = self.system.call(job.outcome.group.process, addresses, Some(job.outcome.to), &mut raw);
        self.charge(job, call.time_ns);
        let mut statuses: Vec<_> = raw.into_iter().map(PageStatus::from_raw).collect();
        let open: Vec<usize> = (0..statuses.len()).filter(|&at| statuses[at] == PageStatus::Busy).collect();
        if !open.is_empty() {
            let asked: Vec<u64> = open.iter().map(|&at| addresses[at]).collect();
            if let Ok(found) = self.ask(job, &asked) {
                for (at, status) in open.into_iter().zip(found) {
                    statuses[at] = status;
                }
            }
        }
        (call.result, statuses)
    }

    fn charge(&mut self, job: &mut Job, time_ns: u64) {
        job.outcome.time_ns += time_ns;
        self.call_ns.spend(time_ns);
        self.run_call_ns += time_ns;
    }
}

impl Job {
    fn new(
        group: GroupId,
        start: u64,
        pages: u64,
        to: NodeId,
        generation: Generation,
        purpose: Purpose,
        cooldown_ns: u64,
    ) -> Self {
        let outcome = Outcome::new(group, start, pages, to, generation, purpose);
        Self { outcome, cooldown_ns, next: start, busy: Vec::new(), retry_at_ns: None }
    }

    fn is_fresh(&self) -> bool {
        self.next == self.outcome.start
    }

    fn is_stopped_by(&self, cooldowns: &Cooldowns, now_ns: u64) -> bool {
        let range = GroupId { start: self.outcome.start, ..self.outcome.group };
        self.outcome.purpose == Purpose::Plan && cooldowns.is_group_cooling(range, self.outcome.bytes, now_ns)
    }

    /// The addresses to be dealt with next; empty when all were.
    fn next_batch(&self) -> Vec<u64> {
        if self.retry_at_ns.is_some() {
            return self.busy.iter().take(RETRY_BATCH_PAGES).copied().collect();
        }
        let huge_bytes = BATCH_PAGES * PAGE_BYTES;
        let end = self.outcome.start + self.outcome.bytes;
        let until = (self.next / huge_bytes + 1).saturating_mul(huge_bytes).min(end);
        (self.next..until).step_by(PAGE_BYTES as usize).collect()
    }

    fn advance(&mut self, pages: usize) {
        if self.retry_at_ns.is_some() {
            self.busy.drain(..pages);
        } else {
            self.next += pages as u64 * PAGE_BYTES;
        }
    }

    fn start_cooldown(&self, now_ns: u64, cooldowns: &mut Cooldowns) {
        if self.outcome.moved_pages > 0 {
            let range = GroupId { start: self.outcome.start, ..self.outcome.group };
            cooldowns.start_group(range, self.outcome.bytes, now_ns, self.cooldown_ns);
        }
    }

    fn finish(mut self, ended: Ended) -> Outcome {
        self.outcome.ended = ended;
        self.outcome.busy_pages += self.busy.len() as u64;
        self.outcome.not_tried_pages = self.outcome.requested_pages - self.outcome.counted_pages();
        self.outcome
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod tests;
