// SPDX-License-Identifier: GPL-2.0-only
//! Has the kernel's own NUMA balancing move pages to the nodes of the threads that use them.
//!
//! The kernel does not look at memory of sched_ext tasks by itself. In partial mode one thread of a process that is of the fair
//! class for a moment makes it mark the next part of the process's memory, and a page goes to the node of a thread that uses
//! it, mostly the second time that it is seen to. So nothing says where a page goes but where its users run: a plan's page
//! moves only tell for which processes it is worth it, and other pages of these that are far from their users go as well.
//! Rounds of a process are [`ROUND_NS`] apart, as often as the kernel looks. A group is done when nearly all of what was to
//! go is there, and given up when the kernel has been through the process twice and more and hardly anything came.
//!
//! The way back is the same: threads go back, and their pages follow, as far as they do.

mod job;

use std::collections::{BTreeMap, VecDeque};
use std::io;

use tandem_bpf::{Lending, Loans};
use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId, Topology};

use crate::programs::Told;
use crate::{
    Cooldowns, Ended, Generation, MovePages, MoverConfig, Outcome, PageMove, PageMover, Programs, Purpose, Refused,
    Room, UndoLog,
};
use job::{Job, Looked};

/// Time between two rounds of a process: the kernel looks no more often by default (`scan_period_min_ms`).
const ROUND_NS: u64 = 1_000_000_000;
/// Pages that are asked for in one run, about: some milliseconds.
const ASKED_PER_RUN: u64 = 65_536;
/// Groups queued at most: all are looked at in every round.
const MOST_GROUPS: usize = 4096;

/// How the kernel is made to look at a process.
pub trait Attention {
    /// Draws it there, for a moment from `now_ns` on, by lending a thread.
    ///
    /// # Errors
    /// Why the process or its threads cannot be dealt with.
    fn draw(&mut self, process: ProcessId, now_ns: u64) -> io::Result<Lending>;

    /// Ends what was begun a moment ago.
    fn end(&mut self, now_ns: u64);

    /// Rounds in which the kernel gets through a process's memory once.
    fn rounds(&self, process: ProcessId) -> u32;
}

impl Attention for Loans {
    fn draw(&mut self, process: ProcessId, now_ns: u64) -> io::Result<Lending> {
        self.lend(process.0, now_ns)
    }

    fn end(&mut self, now_ns: u64) {
        self.take_back(now_ns);
    }

    fn rounds(&self, process: ProcessId) -> u32 {
        tandem_bpf::rounds_of_a_scan(process.0)
    }
}

/// The groups of a process.
#[derive(Debug, Default)]
struct Groups {
    /// Those that are still to be looked at in this round, and those that were and have something left.
    unseen: VecDeque<Job>,
    seen: VecDeque<Job>,
    /// When the present round began.
    begun_ns: Option<u64>,
    /// Whether its thread was lent, or nobody ran in all of it.
    drawn: bool,
}

impl Groups {
    fn len(&self) -> usize {
        self.unseen.len() + self.seen.len()
    }

    fn is_due(&self, now_ns: u64) -> bool {
        !self.drawn || self.begun_ns.is_none_or(|begun_ns| now_ns >= begun_ns + ROUND_NS)
    }

    fn iter(&self) -> impl Iterator<Item = &Job> {
        self.unseen.iter().chain(&self.seen)
    }

    fn all(self) -> impl Iterator<Item = Job> {
        self.unseen.into_iter().chain(self.seen)
    }
}

/// Has the kernel execute page-group moves. All times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct KernelMover<S, A> {
    system: S,
    attention: A,
    most_groups: usize,
    groups: BTreeMap<ProcessId, Groups>,
    log: UndoLog,
    programs: Told,
    paused: bool,
}

impl<S: MovePages, A: Attention> KernelMover<S, A> {
    /// An idle one. Of the configuration bounds count; the kernel has budgets of its own.
    pub fn new(system: S, attention: A, config: MoverConfig) -> Self {
        Self {
            system,
            attention,
            most_groups: most_groups(config),
            groups: BTreeMap::new(),
            log: UndoLog::new(config.undo_entries),
            programs: Told::default(),
            paused: false,
        }
    }

    /// Goes on with a process's round: sees how far its groups have come, and then has the kernel look at it again if there is
    /// something left.
    fn advance(&mut self, process: ProcessId, now_ns: u64, asked: &mut u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        let Some(mut groups) = self.groups.remove(&process) else { return Vec::new() };
        if self.programs.get(process).is_some_and(|program| self.system.program(process) != Some(program)) {
            return groups.all().map(|job| self.end(job, Ended::ProcessGone, now_ns, cooldowns)).collect();
        }
        if groups.begun_ns.is_none_or(|begun_ns| groups.drawn && now_ns >= begun_ns + ROUND_NS) {
            groups = Groups { unseen: groups.all().collect(), begun_ns: Some(now_ns), ..Groups::default() };
        }
        let (mut ended, scan) = (Vec::new(), self.attention.rounds(process));
        while *asked < ASKED_PER_RUN
            && let Some(mut job) = groups.unseen.pop_front()
        {
            match job.look(&self.system, scan, asked) {
                Ok(Looked::Left) => groups.seen.push_back(job),
                Ok(Looked::Over(how)) => ended.push(self.end(job, how, now_ns, cooldowns)),
                Err(error) => ended.push(self.end(job, error.into(), now_ns, cooldowns)),
            }
        }
        if groups.unseen.is_empty() && !groups.seen.is_empty() && !groups.drawn {
            let is_late = groups.begun_ns.is_none_or(|begun_ns| now_ns >= begun_ns + ROUND_NS);
            match self.attention.draw(process, now_ns) {
                Ok(Lending::Lent) => groups.drawn = true,
                Ok(Lending::NoneRuns) => groups.drawn = is_late,
                failed => {
                    let how = why(failed);
                    ended.extend(groups.all().map(|job| self.end(job, how, now_ns, cooldowns)));
                    return ended;
                }
            }
        }
        if groups.len() > 0 {
            self.groups.insert(process, groups);
        }
        ended
    }

    /// Counts what became of a group, and remembers where the pages came from that went.
    fn end(&mut self, job: Job, how: Ended, now_ns: u64, cooldowns: &mut Cooldowns) -> Outcome {
        let (cooldown_ns, (outcome, moved)) = (job.cooldown_ns, job.finish(how, &self.system));
        if outcome.purpose == Purpose::Plan {
            moved.into_iter().for_each(|run| self.log.record(outcome.generation, outcome.group, run, outcome.to));
        }
        if outcome.moved_pages > 0 || how == Ended::NotUsed {
            let start = GroupId { start: outcome.start, ..outcome.group };
            cooldowns.start_group(start, outcome.bytes, now_ns, cooldown_ns);
        }
        outcome
    }

    /// Takes out the groups that a rule names.
    fn take(&mut self, is_meant: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for groups in self.groups.values_mut() {
            for jobs in [&mut groups.unseen, &mut groups.seen] {
                let (meant, others) = std::mem::take(jobs).into_iter().partition(&is_meant);
                *jobs = others;
                taken.extend::<VecDeque<Job>>(meant);
            }
        }
        self.groups.retain(|_, groups| groups.len() > 0);
        taken
    }
}

/// Groups that may be queued.
fn most_groups(config: MoverConfig) -> usize {
    config.queue_groups.min(MOST_GROUPS)
}

/// Why a process is not drawn attention to.
fn why(failed: io::Result<Lending>) -> Ended {
    match failed.map_err(|error| error.raw_os_error()) {
        Ok(_) => Ended::NoThreadToLend,
        Err(Some(libc::ESRCH | libc::ENOENT)) => Ended::ProcessGone,
        Err(Some(libc::EPERM | libc::EACCES)) => Ended::NotPermitted,
        Err(errno) => Ended::Failed(errno.unwrap_or(0)),
    }
}

impl<S: MovePages, A: Attention> PageMover for KernelMover<S, A> {
    fn adapt(&mut self, topology: &Topology, config: MoverConfig) {
        self.system.see_machine(topology);
        self.most_groups = most_groups(config);
        self.paused = false;
    }

    fn follow(&mut self, programs: &Programs) -> Vec<Outcome> {
        let Some(gone) = self.programs.replace(programs, &mut self.log) else { return Vec::new() };
        let stopped = self.take(|job| gone.has(job.outcome.group.process));
        gone.end(&self.system, stopped, |job| job.outcome.group.process, |job, how| job.finish(how, &self.system).0)
    }

    fn enqueue(&mut self, wanted: PageMove, now_ns: u64, cooldowns: &Cooldowns) -> Result<(), Refused> {
        let PageMove { group, bytes, huge, to, generation, cooldown_ns } = wanted;
        let pages = wanted.pages()?;
        if self.queued_groups() >= self.most_groups {
            return Err(Refused::QueueFull);
        }
        if !self.programs.may_move(group.process) {
            return Err(Refused::ProcessGone);
        }
        if cooldowns.is_group_cooling(group, bytes, now_ns) {
            return Err(Refused::Cooldown);
        }
        if self.is_held(group, bytes, now_ns) {
            return Err(Refused::Held);
        }
        let outcome = Outcome::new(group, group.start, pages, to, generation, Purpose::Plan);
        let job = Job::new(outcome, vec![(group.start, pages)], huge, cooldown_ns);
        self.groups.entry(group.process).or_default().seen.push_back(job);
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
        // What came of it has to go back as well. Its groups are held instead of resting.
        let mut unused = Cooldowns::new(1);
        let stopped = stopped.into_iter().map(|job| self.end(job, Ended::Cancelled, now_ns, &mut unused)).collect();
        // All pages of a group that came from one node are one group on their way back.
        let mut back: BTreeMap<_, (bool, Vec<(u64, u64)>)> = BTreeMap::new();
        for entry in self.log.take_and_hold(generation, is_meant, now_ns, hold_ns) {
            let of_node = back.entry((entry.group, entry.from, entry.to)).or_default();
            of_node.0 = entry.huge;
            of_node.1.extend(entry.pages.runs());
        }
        for ((group, home, from), (huge, runs)) in back {
            let pages = runs.iter().map(|run| run.1).sum();
            let start = runs.iter().map(|run| run.0).min().unwrap_or(group.start);
            let end = runs.iter().map(|run| run.0 + run.1 * PAGE_BYTES).max().unwrap_or(start);
            let mut outcome = Outcome::new(group, start, pages, home, generation, Purpose::Undo { from });
            outcome.bytes = end - start;
            let its = self.groups.entry(group.process).or_default();
            its.seen.push_front(Job::new(outcome, runs, huge, hold_ns));
        }
        stopped
    }

    fn stop_of(
        &mut self,
        generation: Generation,
        is_meant: &dyn Fn(ProcessId) -> bool,
        now_ns: u64,
        cooldowns: &mut Cooldowns,
    ) -> Vec<Outcome> {
        let jobs = self.take(|job| job.is_of_plan(generation) && is_meant(job.outcome.group.process));
        jobs.into_iter().map(|job| self.end(job, Ended::Cancelled, now_ns, cooldowns)).collect()
    }

    fn stop_plans(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        // Who goes on with the rest may not come soon.
        self.attention.end(u64::MAX);
        let jobs = self.take(|job| !job.is_way_back());
        jobs.into_iter().map(|job| self.end(job, Ended::Cancelled, now_ns, cooldowns)).collect()
    }

    fn run(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        self.attention.end(now_ns);
        let (mut ended, mut asked) = (Vec::new(), 0);
        let due: Vec<ProcessId> = self.groups.iter().filter(|one| one.1.is_due(now_ns)).map(|one| *one.0).collect();
        for process in due {
            if self.paused || asked >= ASKED_PER_RUN {
                break;
            }
            ended.extend(self.advance(process, now_ns, &mut asked, cooldowns));
        }
        ended
    }

    fn cancel_all(&mut self, now_ns: u64, cooldowns: &mut Cooldowns) -> Vec<Outcome> {
        self.attention.end(u64::MAX);
        let jobs = self.take(|_| true);
        jobs.into_iter().map(|job| self.end(job, Ended::Cancelled, now_ns, cooldowns)).collect()
    }

    /// Where nobody runs another look is not urgent.
    fn is_ready(&self, now_ns: u64) -> bool {
        let has_unseen = |groups: &Groups| groups.begun_ns.is_none() || groups.drawn || !groups.unseen.is_empty();
        !self.paused && self.groups.values().any(|groups| groups.is_due(now_ns) && has_unseen(groups))
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn is_paused(&self) -> bool {
        self.paused
    }

    /// The kernel looks itself whether a node has room.
    fn set_room(&mut self, _: Option<Room>) {}

    fn queued_groups(&self) -> usize {
        self.groups.values().map(Groups::len).sum()
    }

    fn is_returning(&self) -> bool {
        self.groups.values().flat_map(Groups::iter).any(Job::is_way_back)
    }

    fn queued_of(&self, generation: Generation) -> Vec<(GroupId, NodeId)> {
        let its = self.groups.values().flat_map(Groups::iter).filter(|job| job.is_of_plan(generation));
        its.map(|job| (job.outcome.group, job.outcome.to)).collect()
    }

    /// The threads that fault pay, and nobody tells how much.
    fn cost_ns_per_page(&self) -> Option<f64> {
        None
    }

    fn cost_ns_per_huge_page(&self) -> Option<f64> {
        None
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

#[cfg(test)]
mod tests;
