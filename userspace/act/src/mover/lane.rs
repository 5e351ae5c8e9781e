// SPDX-License-Identifier: GPL-2.0-only
//! The work for one node.

use std::collections::VecDeque;

use super::RETRIES;
use super::job::{Job, ROOM_RETRIES};

/// Jobs in order, and apart from them those that wait until busy pages are tried again, or for room on the node.
#[derive(Debug, Default)]
pub(super) struct Lane {
    ready: VecDeque<Job>,
    /// By how often they have waited before, for busy pages and behind them for room: those of one kind wait equally long, so that the
    /// first is due first.
    waiting: [VecDeque<Job>; RETRIES + ROOM_RETRIES],
}

impl Lane {
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.iter().map(VecDeque::len).sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All jobs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.waiting.iter().rev().flatten().chain(&self.ready)
    }

    /// The same, taken.
    pub(super) fn into_jobs(self) -> impl Iterator<Item = Job> {
        self.waiting.into_iter().rev().flatten().chain(self.ready)
    }

    /// Takes those out that a rule names.
    pub(super) fn take(&mut self, is_meant: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for jobs in self.waiting.iter_mut().rev().chain([&mut self.ready]) {
            let (meant, others): (Vec<Job>, Vec<Job>) = std::mem::take(jobs).into_iter().partition(&is_meant);
            *jobs = others.into();
            taken.extend(meant);
        }
        taken
    }

    /// Adds one behind all others.
    pub(super) fn push_back(&mut self, job: Job) {
        self.ready.push_back(job);
    }

    /// Adds one before all others, or puts one back that was taken.
    pub(super) fn push_front(&mut self, job: Job) {
        self.ready.push_front(job);
    }

    /// Lets the next one wait from now on, as long as is due after the times that it has waited before.
    pub(super) fn put_off(&mut self, now_ns: u64, after_ns: [u64; RETRIES]) {
        if let Some(mut job) = self.ready.pop_front() {
            let before = job.wait(now_ns, after_ns);
            self.waiting[before].push_back(job);
        }
    }

    /// Adds one that waits for room from now on, and has so often before.
    pub(super) fn wait_for_room(&mut self, job: Job, before: usize) {
        self.waiting[RETRIES + before].push_back(job);
    }

    /// The next one that may be worked on: those that waited long enough were there first, and of these who waited most often.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<&mut Job> {
        for waiting in &mut self.waiting {
            let due = waiting.iter().take_while(|job| job.is_due(now_ns)).count();
            waiting.drain(..due).rev().for_each(|job| self.ready.push_front(job));
        }
        self.ready.front_mut()
    }

    /// The same, to look at only.
    pub(super) fn peek(&self, now_ns: u64) -> Option<&Job> {
        let is_due = |job: &&Job| job.is_due(now_ns);
        self.waiting.iter().rev().filter_map(VecDeque::front).find(is_due).or(self.ready.front())
    }

    /// Takes the one that [`Self::next`] found.
    pub(super) fn pop(&mut self) -> Option<Job> {
        self.ready.pop_front()
    }

    /// The number of the first job, however long it waits.
    pub(super) fn first_number(&self) -> Option<u64> {
        self.iter().next().map(|job| job.number)
    }
}
