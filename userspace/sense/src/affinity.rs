// SPDX-License-Identifier: GPL-2.0-only
//! Who touches which page groups, aged and bounded.
//!
//! A group is a 2 MiB-aligned range, clipped to its region. Weights are counts of sampled accesses that halve
//! every [`AffinityConfig::half_life_ns`]. What was seen at one look at a thread is of one stretch of its code and likely of
//! one place, so it counts as one sample, however many accesses it shows. Sharing is looked for at 4 KiB pages: samples
//! are too sparse for two threads to be caught on one 64-byte line, so pages overstate false sharing a little, and 2 MiB would greatly.

use std::collections::BTreeMap;

use tandem_policies::model::{GroupId, PAGE_BYTES, ProcessId, ThreadId};

use crate::regions::{Region, RegionKind};

/// Alignment and largest size of a page group.
pub const GROUP_BYTES: u64 = 2 << 20;
/// Threads remembered per group; the lightest gives way.
const USERS: usize = 32;
/// Threads remembered per page of the sharing table.
const SHARERS: usize = 8;
/// Weights below this are forgotten.
const FAINTEST: f64 = 0.01;

/// Bounds and ageing of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffinityConfig {
    /// Time in which a past access loses half its weight.
    pub half_life_ns: u64,
    /// Groups kept; beyond that the coldest eighth is dropped.
    pub max_groups: usize,
    /// Pages in the table of recent touches that sharing is read from; beyond that the coldest eighth is dropped.
    pub max_pages: usize,
}

impl Default for AffinityConfig {
    /// Half-life 3 s, 65536 groups (128 GiB), 65536 pages.
    fn default() -> Self {
        Self { half_life_ns: 3_000_000_000, max_groups: 1 << 16, max_pages: 1 << 16 }
    }
}

/// Accesses that did not reach the table, and what it forgot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityCounters {
    /// Accesses outside any region (it came or went since it was read).
    pub outside: u64,
    /// Accesses to text, stacks and the kernel's pages.
    pub skipped: u64,
    /// Groups dropped for room.
    pub evicted_groups: u64,
    /// Pages of the sharing table dropped for room.
    pub evicted_pages: u64,
}

/// What was seen of one thread, aged.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    accesses: f64,
    /// Looks at the thread in which there was one.
    looks: f32,
    /// The last of them: the low half of its time.
    last_look: u32,
}

impl Weight {
    fn add(&mut self, time_ns: u64) {
        let look = time_ns as u32;
        if self.looks == 0.0 || look != self.last_look {
            (self.looks, self.last_look) = (self.looks + 1.0, look);
        }
        self.accesses += 1.0;
    }

    /// Whether anything is left.
    fn age(&mut self, factor: f64) -> bool {
        self.accesses *= factor;
        self.looks *= factor as f32;
        self.accesses >= FAINTEST
    }
}

/// Aged weights by thread, few.
#[derive(Clone, Debug, Default)]
struct Users(Vec<(ThreadId, Weight)>);

impl Users {
    fn add(&mut self, thread: ThreadId, time_ns: u64, most: usize) {
        if let Some((_, weight)) = self.0.iter_mut().find(|(user, _)| *user == thread) {
            weight.add(time_ns);
            return;
        }
        let mut weight = Weight::default();
        weight.add(time_ns);
        if self.0.len() < most {
            self.0.push((thread, weight));
        } else if let Some(lightest) = self.0.iter_mut().min_by(|a, b| a.1.accesses.total_cmp(&b.1.accesses))
            && lightest.1.accesses < 1.0
        {
            *lightest = (thread, weight);
        }
    }

    fn age(&mut self, factor: f64) {
        self.0.retain_mut(|(_, weight)| weight.age(factor));
    }

    fn accesses(&self) -> f64 {
        self.0.iter().map(|(_, weight)| weight.accesses).sum()
    }
}

/// One group of the table.
#[derive(Clone, Debug)]
pub struct Group {
    /// Bytes, up to the end of its region.
    pub bytes: u64,
    /// The region it was last seen in.
    pub region: Region,
    users: Users,
}

impl Group {
    /// Its users with their aged access counts, in no order.
    pub fn users(&self) -> impl Iterator<Item = (ThreadId, f64)> {
        self.users.0.iter().map(|(user, weight)| (*user, weight.accesses))
    }

    /// Aged count of accesses to it.
    pub fn accesses(&self) -> f64 {
        self.users.accesses()
    }

    /// Aged count of looks at its users that showed it.
    pub fn samples(&self) -> f64 {
        self.users.0.iter().map(|(_, weight)| f64::from(weight.looks)).sum()
    }
}

/// The table.
pub struct AffinityTable {
    config: AffinityConfig,
    groups: BTreeMap<GroupId, Group>,
    pages: BTreeMap<(ProcessId, u64), Users>,
    /// Of each thread, accesses to all groups.
    totals: BTreeMap<ThreadId, Weight>,
    aged_ns: Option<u64>,
    /// What was lost.
    pub counters: AffinityCounters,
}

impl AffinityTable {
    /// An empty table.
    pub fn new(config: AffinityConfig) -> Self {
        Self {
            config,
            groups: BTreeMap::new(),
            pages: BTreeMap::new(),
            totals: BTreeMap::new(),
            aged_ns: None,
            counters: AffinityCounters::default(),
        }
    }

    /// Lets all weights age to `now_ns`.
    pub fn age(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(*self.aged_ns.get_or_insert(now_ns));
        self.aged_ns = Some(now_ns);
        let factor = 0.5_f64.powf(elapsed_ns as f64 / self.config.half_life_ns as f64);
        self.groups.retain(|_, group| {
            group.users.age(factor);
            !group.users.0.is_empty()
        });
        self.pages.retain(|_, users| {
            users.age(factor);
            !users.0.is_empty()
        });
        self.totals.retain(|_, total| total.age(factor));
    }

    /// `thread` accessed `address`, which lies in `region` (`None`: in no known one), as was seen by looking at it at
    /// `time_ns`. Returns the group that it is in, if it counts.
    pub fn add(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        time_ns: u64,
        address: u64,
        region: Option<&Region>,
    ) -> Option<GroupId> {
        let Some(region) = region else {
            self.counters.outside += 1;
            return None;
        };
        if region.kind == RegionKind::Skipped {
            self.counters.skipped += 1;
            return None;
        }
        let id = group_of(process, address, region);
        let bytes = (id.start / GROUP_BYTES * GROUP_BYTES + GROUP_BYTES).min(region.end) - id.start;
        self.make_room();
        let users = Users::default();
        let group = self.groups.entry(id).or_insert(Group { bytes, region: *region, users });
        (group.bytes, group.region) = (bytes, *region);
        group.users.add(thread, time_ns, USERS);
        self.pages.entry((process, address / PAGE_BYTES)).or_default().add(thread, time_ns, SHARERS);
        self.totals.entry(thread).or_default().add(time_ns);
        Some(id)
    }

    fn make_room(&mut self) {
        if self.groups.len() >= self.config.max_groups {
            self.counters.evicted_groups += drop_coldest(&mut self.groups, Group::accesses);
        }
        if self.pages.len() >= self.config.max_pages {
            self.counters.evicted_pages += drop_coldest(&mut self.pages, Users::accesses);
        }
    }

    /// The groups, ascending by id.
    pub fn groups(&self) -> impl Iterator<Item = (&GroupId, &Group)> {
        self.groups.iter()
    }

    /// Aged accesses of `thread` to all groups.
    pub fn total(&self, thread: ThreadId) -> f64 {
        self.totals.get(&thread).map_or(0.0, |total| total.accesses)
    }

    /// Aged count of looks at `thread` that showed one.
    pub fn looks(&self, thread: ThreadId) -> f64 {
        self.totals.get(&thread).map_or(0.0, |total| f64::from(total.looks))
    }

    /// Pairs of threads that touched the same pages. A page adds the lesser of the two threads' rates on it,
    /// a rate being the weight times `scale` (accesses per second behind a weight of 1). Both orders are there.
    pub fn sharing(&self, scale: impl Fn(ThreadId) -> f64) -> BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> {
        let mut rows: BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> = BTreeMap::new();
        for users in self.pages.values().filter(|users| users.0.len() > 1) {
            for (at, &(first, first_weight)) in users.0.iter().enumerate() {
                for &(second, second_weight) in &users.0[at + 1..] {
                    let shared = (first_weight.accesses * scale(first)).min(second_weight.accesses * scale(second));
                    *rows.entry(first).or_default().entry(second).or_default() += shared;
                    *rows.entry(second).or_default().entry(first).or_default() += shared;
                }
            }
        }
        rows
    }

    /// Forgets processes and threads that are gone.
    pub fn retain(&mut self, process: impl Fn(ProcessId) -> bool, thread: impl Fn(ThreadId) -> bool) {
        self.groups.retain(|id, group| {
            group.users.0.retain(|(user, _)| thread(*user));
            process(id.process) && !group.users.0.is_empty()
        });
        self.pages.retain(|(of, _), users| {
            users.0.retain(|(user, _)| thread(*user));
            process(*of) && !users.0.is_empty()
        });
        self.totals.retain(|user, _| thread(*user));
    }
}

/// The group that holds `address`, which lies in `region`.
pub(crate) fn group_of(process: ProcessId, address: u64, region: &Region) -> GroupId {
    GroupId { process, start: (address & !(GROUP_BYTES - 1)).max(region.start) }
}

/// Drops the coldest eighth, at least one; returns how many.
fn drop_coldest<K: Copy + Ord, V>(map: &mut BTreeMap<K, V>, heat: impl Fn(&V) -> f64) -> u64 {
    let mut by_heat: Vec<_> = map.iter().map(|(key, value)| (heat(value), *key)).collect();
    by_heat.sort_by(|a, b| a.0.total_cmp(&b.0));
    let gone = (by_heat.len() / 8).max(1);
    for (_, key) in by_heat.into_iter().take(gone) {
        map.remove(&key);
    }
    gone as u64
}

#[cfg(test)]
#[path = "affinity_tests.rs"]
mod tests;
