// SPDX-License-Identifier: GPL-2.0-only
//! Moves page groups under a budget of pages and of call time.
//!
//! Groups for one node are moved in order, in calls of at most 512 pages, several at the same time: a call copies on one CPU,
//! and programs wait meanwhile for memory that is far, or for that one of their threads whose CPU it takes. Of several
//! each is made by a thread on the node that its pages go to, a single one where the caller is.

mod batch;
mod bucket;
mod job;
mod lane;
mod price;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::programs::Told;
use crate::ranges::Ranges;
use crate::{
    CallError, Cooldowns, Ended, Generation, MovePages, MovedPage, Outcome, PageMove, PageMover, PageStatus, Programs,
    Purpose, Refused, Room, UndoLog,
};
use batch::{Order, Settled};
use bucket::Bucket;
use job::{BATCH_PAGES, Job};
use lane::Lane;
use price::Price;
use tandem_policies::model::{GroupId, NodeId, ProcessId, Topology};

/// Pages that tell what one costs, and full calls of which the price is.
const PRICED_PAGES: u64 = 64;
const PRICED_CALLS: u64 = 8;

/// How often pages are tried again that are busy.
const RETRIES: usize = 3;

/// How many times as long as its calls may take one run may last.
const MOST_OF_RUN: u64 = 2;

/// Seconds for which unused call time is saved.
const SAVED_S: u64 = 30;

/// Budgets and bounds of a [`Mover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverConfig {
    /// Pages moved per second at most; default 65536 (256 MiB/s).
    pub pages_per_s: u64,
    /// Time inside system calls per second at most; default 100 ms. What was not used is saved for 30 s: the first
    /// placement of a program needs much at once and little later.
    pub call_ns_per_s: u64,
    /// CPU time of system calls after which one run ends, so that its caller can do other things; default 20 ms. It ends after
    /// twice as long by the clock, too.
    pub run_ns: u64,
    /// Calls at the same time at most; default 8.
    pub calls: usize,
    /// Of them to one node; default 2.
    pub calls_per_node: usize,
    /// Times until pages that are busy at the first try are tried again, and again; default 50, 200 and 800 ms. Most I/O is over
    /// soon, and what takes longer is not to be asked for all the time. A plan that ends ends their moves as well.
    pub retry_after_ns: [u64; RETRIES],
    /// Groups queued at most; default 65536.
    pub queue_groups: usize,
    /// Entries in the undo log at most; default 131072, which is 256 GiB of memory of which each block was on one node.
    pub undo_entries: usize,
    /// Moves wait while some task waits for memory in this share of the time, in percent; default 10.
    pub pressure_percent: u32,
}

impl Default for MoverConfig {
    fn default() -> Self {
        Self {
            pages_per_s: 65536,
            call_ns_per_s: 100_000_000,
            run_ns: 20_000_000,
            calls: 8,
            calls_per_node: 2,
            retry_after_ns: [50_000_000, 200_000_000, 800_000_000],
            queue_groups: 65536,
            undo_entries: 131_072,
            pressure_percent: 10,
        }
    }
}

/// Executes page-group moves. All times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Mover<S> {
    system: S,
    config: MoverConfig,
    /// Work by the node that it goes to, in order.
    lanes: BTreeMap<NodeId, Lane>,
    /// Jobs queued so far.
    queued: u64,
    /// What has been begun and not ended.
    begun: Ranges<()>,
    pages: Bucket,
    call_ns: Bucket,
    last_run_ns: Option<u64>,
    page_price: Price,
    huge_page_price: Price,
    log: UndoLog,
    programs: Told,
    paused: bool,
    /// Of all nodes, as far as it is known.
    room: Option<Room>,
}

/// What one run has come to so far.
#[derive(Default)]
struct Run {
    ended: Vec<Outcome>,
    full: BTreeSet<NodeId>,
}

/// A job that was taken out of its lane with what is to be done for it now.
struct Taken {
    job: Job,
    order: Order,
}

impl<S: MovePages> PageMover for Mover<S> {
    fn adapt(&mut self, topology: &Topology, config: MoverConfig) {
        self.system.see_machine(topology);
        self.pages.change(config.pages_per_s, most_pages(config));
        self.call_ns.change(config.call_ns_per_s, most_call_ns(config));
        self.config = config;
        (self.paused, self.room) = (false, None);
    }

    fn follow(&mut self, programs: &Programs) -> Vec<Outcome> {
        let Some(gone) = self.programs.replace(programs, &mut self.log) else { return Vec::new() };
        let stopped = self.take(|job| gone.has(job.outcome.group.process));
        gone.end(&self.system, stopped, |job| job.outcome.group.process, Job::finish)
    }

    fn enqueue(&mut self, wanted: PageMove, now_ns: u64, cooldowns: &Cooldowns) -> Result<(), Refused> {
        let PageMove { group, bytes, huge, to, generation, cooldown_ns } = wanted;
        let pages = wanted.pages()?;
        if self.queued_groups() >= self.config.queue_groups {
            return Err(Refused::QueueFull);
        }
        if !self.programs.may_move(group.process) {
            return Err(Refused::ProcessGone);
        }
        if cooldowns.is_group_cooling(group, bytes, now_ns) {
            return Err(Refused::Cooldown);
        }
        if self.log.is_held(group, bytes, now_ns) {
            return Err(Refused::Held);
        }
        let mut job = Job::new(group, pages, to, generation, cooldown_ns);
        self.queued += 1;
        job.number = self.queued;
        job.huge = huge;
        self.lanes.entry(to).or_default().push_back(job);
        Ok(())
    }

    fn undo_of(
        &mut self,
        generation: Generation,
        is_meant: &dyn Fn(ProcessId) -> bool,
        now_ns: u64,
        hold_ns: u64,
    ) -> Vec<Outcome> {
        let stopped = self.take(|job| job.is_of_plan(generation) && is_meant(job.outcome.group.process));
        for job in &stopped {
            self.log.hold(job.outcome.group, job.outcome.bytes, now_ns, hold_ns);
        }
        for entry in self.log.take_and_hold(generation, is_meant, now_ns, hold_ns).iter().rev() {
            self.lanes.entry(entry.from).or_default().push_front(Job::back(entry, now_ns, hold_ns));
        }
        stopped.into_iter().map(|job| job.finish(Ended::Cancelled)).collect()
    }

    fn stop_of(
        &mut self,
        generation: Generation,
        is_meant: &dyn Fn(ProcessId) -> bool,
        now_ns: u64,
        cooldowns: &mut Cooldowns,
    ) -> Vec<Outcome> {
        let stopped = self.take(|job| job.is_of_plan(generation) && is_meant(job.outcome.group.process)).into_iter();
        stopped.map(|job| job.cancel(now_ns, cooldowns)).collect()
    }

    fn stop_plans(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        let stopped = self.take(|job| !job.is_way_back()).into_iter();
        stopped.map(|job| job.cancel(now_ns, cooldowns)).collect()
    }

    fn run(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        let elapsed_ns = now_ns.saturating_sub(self.last_run_ns.unwrap_or(now_ns));
        self.last_run_ns = Some(now_ns);
        self.pages.refill(elapsed_ns);
        self.call_ns.refill(elapsed_ns);
        let mut run = Run::default();
        let (begun, mut took_ns) = (Instant::now(), 0);
        // Calls may wait for much longer than they take: for locks of the process, for CPUs near the node.
        let most = Duration::from_nanos(self.config.run_ns.saturating_mul(MOST_OF_RUN));
        while !self.paused && took_ns < self.config.run_ns && (took_ns == 0 || begun.elapsed() < most) {
            let round = self.next_round(now_ns, cooldowns, &mut run);
            if round.is_empty() {
                break;
            }
            let orders: Vec<&Order> = round.iter().map(|taken| &taken.order).collect();
            let settled = batch::carry_out(&self.system, &orders);
            took_ns += settled.iter().map(|one| one.time_ns).max().unwrap_or(0).max(1);
            let mut left = Vec::new();
            for (Taken { mut job, .. }, settled) in round.into_iter().zip(settled) {
                match self.settle(&mut job, settled) {
                    Err(how) => self.end(job, how, now_ns, cooldowns, &mut run),
                    Ok(()) => left.push(job),
                }
            }
            // The last one first, so that each is where it was.
            left.into_iter().rev().for_each(|job| self.lanes.entry(job.outcome.to).or_default().push_front(job));
        }
        self.lanes.retain(|_, lane| !lane.is_empty());
        run.ended
    }

    fn cancel_all(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        self.begun.clear();
        let jobs = std::mem::take(&mut self.lanes).into_values().flat_map(Lane::into_jobs);
        jobs.map(|job| job.cancel(now_ns, cooldowns)).collect()
    }

    fn is_ready(&self, now_ns: u64) -> bool {
        let next = |lane: &Lane| lane.peek(now_ns).filter(|job| !must_wait(job, &self.begun)).map(Job::next_batch);
        !self.paused && self.lanes.values().filter_map(next).any(|batch| self.has_budget(batch.len()))
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn is_paused(&self) -> bool {
        self.paused
    }

    fn set_room(&mut self, room: Option<Room>) {
        self.room = room;
    }

    fn queued_groups(&self) -> usize {
        self.lanes.values().map(Lane::len).sum()
    }

    fn is_returning(&self) -> bool {
        self.lanes.values().flat_map(Lane::iter).any(|job| job.is_way_back() && !job.lacked_room())
    }

    fn queued_of(&self, generation: Generation) -> Vec<(GroupId, NodeId)> {
        let its =
            self.lanes.values().flat_map(Lane::iter).filter(|job| job.is_of_plan(generation) && !job.has_waited());
        its.map(|job| (job.outcome.group, job.outcome.to)).collect()
    }

    fn cost_ns_per_page(&self) -> Option<f64> {
        self.page_price.known()
    }

    fn cost_ns_per_huge_page(&self) -> Option<f64> {
        self.huge_page_price.known()
    }

    fn forget_before(&mut self, generation: Generation) {
        self.log.forget_before(generation);
    }

    fn lost_undo_entries(&self) -> u64 {
        self.log.dropped()
    }

    fn is_held(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool {
        self.log.is_held(group, bytes, now_ns)
    }
}

/// How many pages may move at once when none did for a while.
fn most_pages(config: MoverConfig) -> u64 {
    config.pages_per_s.max(BATCH_PAGES)
}

/// How much call time may be saved.
fn most_call_ns(config: MoverConfig) -> u64 {
    config.call_ns_per_s.saturating_mul(SAVED_S).max(1)
}

/// Whether a job cannot begin before another one with pages in common, which has `begun`, has ended.
fn must_wait(job: &Job, begun: &Ranges<()>) -> bool {
    let (start, end) = job.range();
    job.is_fresh() && begun.last_overlapping(start, end).is_some()
}

/// Whether there is room on a job's node for a batch of it beside those of `round`.
fn fits_beside(job: &Job, round: &[Taken], room: &Room) -> bool {
    let to = job.outcome.to;
    let beside: Vec<&Job> = round.iter().map(|taken| &taken.job).filter(|other| other.outcome.to == to).collect();
    let huge = beside.iter().filter(|other| other.huge).count() as u64;
    room.fits(to, (beside.len() as u64 + 1) * BATCH_PAGES) && (!job.huge || room.fits_huge(to, huge + 1))
}

impl<S: MovePages> Mover<S> {
    /// An idle mover with full budgets.
    pub fn new(system: S, config: MoverConfig) -> Self {
        Self {
            system,
            config,
            lanes: BTreeMap::new(),
            queued: 0,
            begun: Ranges::default(),
            pages: Bucket::new(config.pages_per_s, most_pages(config)),
            call_ns: Bucket::new(config.call_ns_per_s, most_call_ns(config)),
            last_run_ns: None,
            page_price: Price::new(PRICED_PAGES, PRICED_CALLS * BATCH_PAGES),
            huge_page_price: Price::new(1, PRICED_CALLS),
            log: UndoLog::new(config.undo_entries),
            programs: Told::default(),
            paused: false,
            room: None,
        }
    }

    /// Takes what is meant of what is queued out of the lanes.
    fn take(&mut self, is_meant: impl Fn(&Job) -> bool) -> Vec<Job> {
        let taken: Vec<Job> = self.lanes.values_mut().flat_map(|lane| lane.take(&is_meant)).collect();
        for job in taken.iter().filter(|job| !job.is_fresh()) {
            self.begun.remove(job.range().0);
        }
        taken
    }

    /// The next batches, for each node one and then another, as far as the budget goes. Jobs that have nothing left to do end.
    fn next_round(&mut self, now_ns: u64, cooldowns: &mut Cooldowns, run: &mut Run) -> Vec<Taken> {
        // Where two jobs have pages in common the first is the one that was queued first.
        let mut targets: Vec<_> = self.lanes.iter().map(|(to, lane)| (lane.first_number(), *to)).collect();
        targets.sort_unstable();
        let mut round: Vec<Taken> = Vec::new();
        for (_, to) in (0..self.config.calls_per_node).flat_map(|_| &targets) {
            if round.len() >= self.config.calls {
                break;
            }
            round.extend(self.next_of_lane(*to, &round, now_ns, cooldowns, run));
        }
        round
    }

    /// The next batch for a node, beside those of the `round` so far.
    fn next_of_lane(
        &mut self,
        to: NodeId,
        round: &[Taken],
        now_ns: u64,
        cooldowns: &mut Cooldowns,
        run: &mut Run,
    ) -> Option<Taken> {
        let pages: usize = round.iter().map(|taken| taken.order.addresses.len()).sum();
        loop {
            let lane = self.lanes.get_mut(&to)?;
            let job = lane.next(now_ns)?;
            let is_full = run.full.contains(&to);
            let addresses = if is_full { Vec::new() } else { job.next_batch() };
            // A page of the batch may be one of a huge page, which moves whole, but never of two.
            let room = self.room.as_ref();
            let over = if is_full {
                Some(Ended::TargetFull)
            } else if job.is_fresh() && job.is_stopped_by(cooldowns, now_ns) {
                Some(Ended::Cooldown)
            } else if addresses.is_empty() {
                job.is_done().then_some(Ended::Done)
            } else if room.is_some_and(|room| !room.fits(to, BATCH_PAGES)) {
                Some(Ended::TargetFull)
            } else {
                room.is_some_and(|room| job.huge && !room.fits_huge(to, 1)).then_some(Ended::TargetFragmented)
            };
            if let Some(how) = over {
                let job = lane.pop()?;
                self.end(job, how, now_ns, cooldowns, run);
                continue;
            }
            if addresses.is_empty() {
                lane.put_off(now_ns, self.config.retry_after_ns);
                continue;
            }
            let fits = self.room.as_ref().is_none_or(|room| fits_beside(job, round, room));
            if must_wait(job, &self.begun) || !fits || !self.has_budget(pages + addresses.len()) {
                return None;
            }
            let mut job = self.lanes.get_mut(&to)?.pop()?;
            let (start, end) = job.range();
            if job.begin() {
                self.begun.insert(start, end, ());
            }
            let order = Order::of(&job, addresses, self.programs.get(job.outcome.group.process));
            return Some(Taken { job, order });
        }
    }

    /// Ends a job, unless it waits for room.
    fn end(&mut self, mut job: Job, how: Ended, now_ns: u64, cooldowns: &mut Cooldowns, run: &mut Run) {
        if how == Ended::TargetFull {
            run.full.insert(job.outcome.to);
        }
        if !job.is_fresh() {
            self.begun.remove(job.range().0);
        }
        if let Some(before) = job.wait_for_room(how, now_ns) {
            self.lanes.entry(job.outcome.to).or_default().wait_for_room(job, before);
            return;
        }
        job.start_cooldown(how, now_ns, cooldowns);
        run.ended.push(job.finish(how));
    }

    fn has_budget(&self, pages: usize) -> bool {
        self.pages.has(pages as u64) && self.call_ns.has(1)
    }

    /// What can be undone and what is held.
    pub fn undo_log(&self) -> &UndoLog {
        &self.log
    }

    /// Counts what became of a batch; an error if the job ends with it.
    fn settle(&mut self, job: &mut Job, settled: Settled) -> Result<(), Ended> {
        job.outcome.time_ns += settled.time_ns;
        self.call_ns.spend(settled.time_ns);
        settled.asked?;
        job.advance();
        settled.unsent.iter().for_each(|&status| job.count_unsent(status));
        self.pages.spend(settled.sent.len() as u64);
        let moved_before = job.outcome.moved_pages;
        let mut full = settled.result == Err(CallError::NoMemory);
        for (address, from, status) in settled.sent {
            full |= status == PageStatus::NoMemory;
            self.settle_page(job, address, from, status, settled.result.err());
        }
        let moved = job.outcome.moved_pages - moved_before;
        if let Some(room) = &mut self.room {
            room.take(job.outcome.to, moved, settled.huge);
        }
        match (settled.huge, job.is_first_try()) {
            (true, _) => self.huge_page_price.learn(1, settled.time_ns),
            (false, true) => self.page_price.learn(moved, settled.time_ns),
            // Of a huge page that nobody knew of a retry names a few pages, and the kernel moves all.
            (false, false) => {}
        }
        match settled.result {
            _ if full => Err(Ended::TargetFull),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    fn settle_page(&mut self, job: &mut Job, address: u64, from: NodeId, status: PageStatus, error: Option<CallError>) {
        let to = job.outcome.to;
        match status {
            PageStatus::On(node) if node == to => {
                job.outcome.moved_pages += 1;
                if job.outcome.purpose == Purpose::Plan {
                    let page = MovedPage { address, from, huge: job.huge };
                    self.log.record(job.outcome.generation, job.outcome.group, page, to);
                }
            }
            PageStatus::On(_) | PageStatus::Busy => match error {
                Some(CallError::NoMemory) => job.meet_full(address),
                // The call failed as a whole: what did not move was not tried.
                Some(_) => {}
                None => job.meet_busy(address),
            },
            PageStatus::NoMemory => job.meet_full(address),
            status => job.outcome.count_unmoved(status, 1),
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod interrupted_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod program_tests;
#[cfg(test)]
mod retry_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod way_back_tests;
