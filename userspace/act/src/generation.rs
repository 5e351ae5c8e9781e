// SPDX-License-Identifier: GPL-2.0-only
//! One generation and one cooldown for threads and pages.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tandem_policies::model::{GroupId, ProcessId, ThreadId};

use crate::ranges::Ranges;

/// Number of a plan that was acted on; later plans have higher numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Goes on to the next generation and returns it.
    pub fn advance(&mut self) -> Generation {
        self.0 += 1;
        *self
    }
}

/// Who was moved recently. Times are CLOCK_MONOTONIC in ns, given by the caller.
///
/// A group cools with all its bytes: a group that overlaps a cooling one is cooling too, so that cutting
/// address space anew does not free its pages. Holds at most `capacity` threads and as many groups; beyond that
/// the entry that would expire first is dropped and counted.
#[derive(Debug)]
pub struct Cooldowns {
    threads: BTreeMap<ThreadId, u64>,
    groups: Ranges<u64>,
    /// Both by when they expire, so that nobody looks at all of them to find the first.
    thread_expiries: BTreeSet<(u64, ThreadId)>,
    group_expiries: BTreeSet<(u64, GroupId)>,
    capacity: usize,
    dropped: u64,
}

impl Cooldowns {
    /// No one is cooling; room for `capacity` (at least 1) threads and as many groups.
    pub fn new(capacity: usize) -> Self {
        Self {
            threads: BTreeMap::new(),
            groups: Ranges::default(),
            thread_expiries: BTreeSet::new(),
            group_expiries: BTreeSet::new(),
            capacity: capacity.max(1),
            dropped: 0,
        }
    }

    /// The thread was moved at `now_ns` and rests for `cooldown_ns`. Never shortens a running cooldown.
    pub fn start_thread(&mut self, thread: ThreadId, now_ns: u64, cooldown_ns: u64) {
        self.clean(now_ns);
        let mut expiry_ns = now_ns.saturating_add(cooldown_ns);
        if let Some(before_ns) = self.threads.remove(&thread) {
            self.thread_expiries.remove(&(before_ns, thread));
            expiry_ns = expiry_ns.max(before_ns);
        }
        if self.threads.len() >= self.capacity
            && let Some((_, first)) = self.thread_expiries.pop_first()
        {
            self.threads.remove(&first);
            self.dropped += 1;
        }
        self.threads.insert(thread, expiry_ns);
        self.thread_expiries.insert((expiry_ns, thread));
    }

    /// Pages of the group's `bytes` were moved at `now_ns` and rest for `cooldown_ns`. Never shortens a running cooldown.
    pub fn start_group(&mut self, group: GroupId, bytes: u64, now_ns: u64, cooldown_ns: u64) {
        self.clean(now_ns);
        let (mut start, mut end) = (group.start, group.start.saturating_add(bytes));
        let mut expiry_ns = now_ns.saturating_add(cooldown_ns);
        while let Some((other, its_end, its_expiry_ns)) = self.groups.last_overlapping(GroupId { start, ..group }, end)
        {
            self.groups.remove(other);
            self.group_expiries.remove(&(its_expiry_ns, other));
            start = start.min(other.start);
            end = end.max(its_end);
            expiry_ns = expiry_ns.max(its_expiry_ns);
        }
        if self.groups.len() >= self.capacity
            && let Some((_, first)) = self.group_expiries.pop_first()
        {
            self.groups.remove(first);
            self.dropped += 1;
        }
        let merged = GroupId { start, ..group };
        self.groups.insert(merged, end, expiry_ns);
        self.group_expiries.insert((expiry_ns, merged));
    }

    /// Forgets the groups of processes that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.groups.retain(|group| !is_gone(group.process));
        self.group_expiries.retain(|(_, group)| !is_gone(group.process));
    }

    /// Whether the thread was moved so recently that it must stay.
    pub fn is_thread_cooling(&self, thread: ThreadId, now_ns: u64) -> bool {
        self.threads.get(&thread).is_some_and(|&expiry_ns| now_ns < expiry_ns)
    }

    /// Whether any of the group's `bytes` were moved so recently that they must stay.
    pub fn is_group_cooling(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool {
        let mut end = group.start.saturating_add(bytes);
        while let Some((other, _, expiry_ns)) = self.groups.last_overlapping(group, end) {
            if now_ns < expiry_ns {
                return true;
            }
            end = other.start;
        }
        false
    }

    /// Entries held, threads and groups together.
    pub fn len(&self) -> usize {
        self.threads.len() + self.groups.len()
    }

    /// Whether no entry is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries dropped early for lack of room, since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn clean(&mut self, now_ns: u64) {
        while let Some(&(expiry_ns, thread)) = self.thread_expiries.first()
            && expiry_ns <= now_ns
        {
            self.thread_expiries.pop_first();
            self.threads.remove(&thread);
        }
        while let Some(&(expiry_ns, group)) = self.group_expiries.first()
            && expiry_ns <= now_ns
        {
            self.group_expiries.pop_first();
            self.groups.remove(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32) -> ThreadId {
        ThreadId { tid, start_boottime_ns: 7 }
    }

    fn group(start: u64) -> GroupId {
        GroupId { process: ProcessId(1), start }
    }

    #[test]
    fn a_thread_cools_until_its_expiry_and_a_reused_tid_does_not() {
        let mut cooldowns = Cooldowns::new(8);
        cooldowns.start_thread(thread(5), 100, 50);
        assert!(cooldowns.is_thread_cooling(thread(5), 149));
        assert!(!cooldowns.is_thread_cooling(thread(5), 150));
        assert!(!cooldowns.is_thread_cooling(ThreadId { tid: 5, start_boottime_ns: 8 }, 120));
    }

    #[test]
    fn a_group_cut_anew_is_still_cooling() {
        let mut cooldowns = Cooldowns::new(8);
        cooldowns.start_group(group(0x10000), 0x4000, 0, 100);
        assert!(cooldowns.is_group_cooling(group(0x12000), 0x1000, 50));
        assert!(cooldowns.is_group_cooling(group(0xf000), 0x2000, 50));
        assert!(!cooldowns.is_group_cooling(group(0x14000), 0x1000, 50));
        assert!(!cooldowns.is_group_cooling(GroupId { process: ProcessId(2), start: 0x10000 }, 0x1000, 50));
        cooldowns.start_group(group(0x13000), 0x4000, 50, 10);
        assert!(cooldowns.is_group_cooling(group(0x10000), 0x1000, 99), "a later start must not shorten");
    }

    #[test]
    fn expired_entries_leave_and_room_is_bounded() {
        let mut cooldowns = Cooldowns::new(2);
        for tid in 0..3 {
            cooldowns.start_thread(thread(tid), u64::from(tid), 100);
        }
        assert_eq!((cooldowns.len(), cooldowns.dropped()), (2, 1));
        assert!(!cooldowns.is_thread_cooling(thread(0), 3), "the first to expire is the one dropped");
        cooldowns.start_group(group(0), 4096, 500, 1);
        assert_eq!((cooldowns.len(), cooldowns.dropped()), (1, 1));
    }

    #[test]
    fn groups_of_processes_that_are_gone_are_forgotten_and_others_are_not() {
        let mut cooldowns = Cooldowns::new(8);
        let other = GroupId { process: ProcessId(2), ..group(0x1000) };
        cooldowns.start_group(group(0x1000), 0x1000, 0, 100);
        cooldowns.start_group(other, 0x1000, 0, 200);
        cooldowns.start_thread(thread(5), 0, 100);
        cooldowns.forget(|process| process == ProcessId(1));
        let cooling = [group(0x1000), other].map(|group| cooldowns.is_group_cooling(group, 0x1000, 50));
        assert_eq!((cooling, cooldowns.len()), ([false, true], 2));
        cooldowns.start_group(group(0x1000), 0x1000, 60, 100);
        cooldowns.start_group(other, 0x1000, 150, 10);
        assert!(cooldowns.is_group_cooling(group(0x1000), 0x1000, 159), "it does not end when the forgotten one would");
    }

    #[test]
    fn generations_only_rise() {
        let mut generation = Generation::default();
        let first = generation.advance();
        assert!(first < generation.advance());
    }
}
