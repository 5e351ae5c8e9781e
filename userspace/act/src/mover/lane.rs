// SPDX-License-Identifier: GPL-2.0-only
//! The work for one node.

use std::collections::VecDeque;

use super::job::Job;

/// Jobs in order, and apart from them those that wait until busy pages are tried again.
#[derive(Debug, Default)]
pub(super) struct Lane {
    ready: VecDeque<Job>,
    /// Each waits equally long, so that the first is due first.
    waiting: VecDeque<Job>,
}

impl Lane {
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All jobs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.waiting.iter().chain(&self.ready)
    }

    /// The same, taken.
    pub(super) fn into_jobs(self) -> impl Iterator<Item = Job> {
        self.waiting.into_iter().chain(self.ready)
    }

    /// Takes those out that a rule names.
    pub(super) fn take(&mut self, is_meant: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for jobs in [&mut self.waiting, &mut self.ready] {
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

    /// Lets the next one wait until then, which is no earlier than for those that wait already.
    pub(super) fn put_off(&mut self, until_ns: u64) {
        if let Some(mut job) = self.ready.pop_front() {
            job.wait(until_ns);
            self.waiting.push_back(job);
        }
    }

    /// The next one that may be worked on: those that waited long enough were there first.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<&mut Job> {
        let due = self.waiting.iter().take_while(|job| job.is_due(now_ns)).count();
        self.waiting.drain(..due).rev().for_each(|job| self.ready.push_front(job));
        self.ready.front_mut()
    }

    /// The same, to look at only.
    pub(super) fn peek(&self, now_ns: u64) -> Option<&Job> {
        self.waiting.front().filter(|job| job.is_due(now_ns)).or(self.ready.front())
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
