// SPDX-License-Identifier: GPL-2.0-only
//! Who touches which page groups, aged and bounded.
//!
//! A group is a run of pages of one region within 2 MiB-aligned memory: all of that at first, and less once its parts turn out to
//! have different users (`split.rs`). Weights are counts of sampled accesses, each [`page_weight`] of its age when it comes, that halve every
//! [`AffinityConfig::half_life_ns`] from then on. What was seen at one look at a thread is of one stretch of its code and likely of
//! one place, so it counts as one sample, however many accesses it shows. Sharing is looked for at 4 KiB pages (`sharing.rs`): samples
//! are too sparse for two threads to be caught on one 64-byte line, so pages overstate false sharing a little, and 2 MiB would greatly.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;
use serde::Serialize;
use tandem_policies::model::{GroupId, PAGE_BYTES, ProcessId, ThreadId, Unmovable};

use crate::regions::{Region, RegionKind};
use crate::sharing::{self, SeenGroup, Use};
use crate::split::{self, Part};
use crate::thread_numbers::{ThreadNumber, ThreadNumbers};
use crate::touches::{MOST_PAGES, Record, Seen, TouchTable, User};

/// Alignment and largest size of a page group.
pub const GROUP_BYTES: u64 = MOST_PAGES * PAGE_BYTES;
/// Threads remembered per group; the lightest gives way.
const USERS: usize = 33;
/// Threads remembered per page of the sharing table.
const SHARERS: usize = 9;
/// Groups of which the parts are compared at one time at most: each takes about 40 us.
const EXAMINED: usize = 64;
/// Weights below this are forgotten.
const FAINTEST: f64 = 0.01;
/// What regions have against being moved, as a number: its place here, plus one.
const MARKS: [Unmovable; 3] = [Unmovable::Shared, Unmovable::Bound, Unmovable::HugeTlb];

/// Bounds and ageing of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffinityConfig {
    /// Time in which a past access loses half its weight.
    pub half_life_ns: u64,
    /// Page groups kept, of two users each, at 52 bytes; one with more users takes the place of a further one for every two.
    /// Beyond that the coldest eighth is dropped.
    pub max_groups: usize,
    /// The same for the 4 KiB pages in the table of recent touches that sharing is read from, and the halves of groups.
    pub max_pages: usize,
}

impl AffinityConfig {
    /// Half-life by default: 3 s.
    pub const DEFAULT_HALF_LIFE_NS: u64 = 3_000_000_000;
}

impl Default for AffinityConfig {
    /// Half-life 3 s, 131072 groups (256 GiB, 8 MiB of table) and as many pages.
    fn default() -> Self {
        Self { half_life_ns: Self::DEFAULT_HALF_LIFE_NS, max_groups: 1 << 17, max_pages: 1 << 17 }
    }
}

/// Accesses that did not reach the table, and what it forgot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AffinityCounters {
    /// Accesses outside any region (it came or went since it was read).
    pub outside: u64,
    /// Accesses to text, stacks and the kernel's pages.
    pub skipped: u64,
    /// Groups dropped for room.
    pub evicted_groups: u64,
    /// Pages of the sharing table dropped for room.
    pub evicted_pages: u64,
    /// Accesses of threads for which there was no number left.
    pub too_many_threads: u64,
    /// Groups cut in two.
    pub splits: u64,
    /// Groups joined with the next.
    pub merges: u64,
}

/// How much an access counts that was seen so long before the decision: 1/(1 + t) (Thanos thesis, eq. 3.9).
pub fn page_weight(age_s: f64) -> f64 {
    1.0 / (1.0 + age_s)
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
    fn add(&mut self, Seen { time_ns, weight }: Seen) {
        let look = time_ns as u32;
        if self.looks == 0.0 || look != self.last_look {
            (self.looks, self.last_look) = (self.looks + 1.0, look);
        }
        self.accesses += f64::from(weight);
    }

    /// Whether anything is left.
    fn age(&mut self, factor: f64) -> bool {
        self.accesses *= factor;
        self.looks *= factor as f32;
        self.accesses >= FAINTEST
    }
}

/// One group of the table.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    record: Record<'a>,
    numbers: &'a ThreadNumbers,
}

impl Group<'_> {
    /// Bytes, up to the next group or the end of its region.
    pub fn bytes(&self) -> u64 {
        let pages = self.record.pages();
        (pages.end - pages.start) * PAGE_BYTES
    }

    /// Why it must stay where it is, as far as its region tells.
    pub fn unmovable(&self) -> Option<Unmovable> {
        MARKS.get(usize::from(self.record.mark().checked_sub(1)?)).copied()
    }

    /// Its users with their aged access counts, in no order.
    pub fn users(&self) -> impl Iterator<Item = (ThreadId, f64)> {
        self.record.users().filter_map(|(number, user)| Some((self.numbers.thread(number)?, f64::from(user.accesses))))
    }

    /// Aged count of accesses to it.
    pub fn accesses(&self) -> f64 {
        self.users().map(|(_, accesses)| accesses).sum()
    }

    /// Aged count of looks at its users that showed it.
    pub fn samples(&self) -> f64 {
        self.record.users().map(|(_, user)| f64::from(user.looks)).sum()
    }
}

/// A group that could be cut: its process and pages, and those of them that were seen, ascending, each with its record.
type Candidate = (u32, Range<u64>, Vec<(u64, u32)>);

/// The table.
pub struct AffinityTable {
    config: AffinityConfig,
    groups: TouchTable,
    pages: TouchTable,
    numbers: ThreadNumbers,
    /// Of each thread, accesses to all groups.
    totals: BTreeMap<ThreadId, Weight>,
    aged_ns: Option<u64>,
    /// Process and first page of the group that was examined last.
    examined_to: (u32, u64),
    counters: AffinityCounters,
}

impl AffinityTable {
    /// An empty table.
    pub fn new(config: AffinityConfig) -> Self {
        Self {
            config,
            groups: TouchTable::new(MOST_PAGES, config.max_groups, USERS),
            pages: TouchTable::new(1, config.max_pages, SHARERS),
            numbers: ThreadNumbers::default(),
            totals: BTreeMap::new(),
            aged_ns: None,
            examined_to: (0, 0),
            counters: AffinityCounters::default(),
        }
    }

    /// What was lost, split and merged.
    pub fn counters(&self) -> AffinityCounters {
        AffinityCounters { evicted_groups: self.groups.evicted, evicted_pages: self.pages.evicted, ..self.counters }
    }

    /// Bytes of memory that groups and the sharing table take.
    pub fn bytes(&self) -> usize {
        self.groups.bytes() + self.pages.bytes()
    }

    /// Lets all weights age to `now_ns`.
    pub fn age(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(*self.aged_ns.get_or_insert(now_ns));
        self.aged_ns = Some(now_ns);
        let factor = 0.5_f64.powf(elapsed_ns as f64 / self.config.half_life_ns as f64);
        for table in [&mut self.groups, &mut self.pages] {
            table.retain(factor as f32, |_| true, |_| true);
        }
        self.totals.retain(|_, total| total.age(factor));
    }

    /// `thread` accessed the page of `address`, which lies in `region` (`None`: in no known one), as was `seen` by a look at
    /// it, so many times as that weighs. Returns the group that it is in, if it counts.
    pub(crate) fn add(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        seen: impl Into<Seen>,
        address: u64,
        region: Option<&Region>,
    ) -> Option<GroupId> {
        let Seen { time_ns, weight } = seen.into();
        let times = weight as u64;
        let Some(region) = region else {
            self.counters.outside += times;
            return None;
        };
        if region.kind == RegionKind::Skipped {
            self.counters.skipped += times;
            return None;
        }
        let Some(number) = self.numbers.number(thread) else {
            self.counters.too_many_threads += times;
            return None;
        };
        let (page, around) = (address / PAGE_BYTES, region.start / PAGE_BYTES..region.end.div_ceil(PAGE_BYTES));
        let place = region.unmovable().and_then(|why| MARKS.iter().position(|mark| *mark == why));
        let mark = place.map_or(0, |place| place as u8 + 1);
        let age_ns = self.aged_ns.map_or(0, |now_ns| now_ns.saturating_sub(time_ns));
        let seen = Seen { time_ns, weight: weight * page_weight(age_ns as f64 * 1e-9) as f32 };
        let start = self.groups.add(process.0, page, around, number, seen, mark);
        self.pages.add(process.0, page, page..page + 1, number, seen, 0);
        self.totals.entry(thread).or_default().add(seen);
        Some(GroupId { process, start: start * PAGE_BYTES })
    }

    /// The groups, ascending by id.
    pub fn groups(&self) -> Vec<(GroupId, Group<'_>)> {
        let group = |record: Record<'_>| GroupId {
            process: ProcessId(record.process()),
            start: record.pages().start * PAGE_BYTES,
        };
        let of = |record| (group(record), Group { record, numbers: &self.numbers });
        let mut groups: Vec<_> = self.groups.records().map(of).collect();
        groups.sort_unstable_by_key(|(id, _)| *id);
        groups
    }

    /// The group that holds `address`, if anybody was seen there.
    pub fn group_at(&self, process: ProcessId, address: u64) -> Option<GroupId> {
        let record = self.groups.at(process.0, address / PAGE_BYTES)?;
        Some(GroupId { process, start: record.pages().start * PAGE_BYTES })
    }

    /// Aged accesses of `thread` to all groups.
    pub fn total(&self, thread: ThreadId) -> f64 {
        self.totals.get(&thread).map_or(0.0, |total| total.accesses)
    }

    /// Aged count of looks at `thread` that showed one.
    pub fn looks(&self, thread: ThreadId) -> f64 {
        self.totals.get(&thread).map_or(0.0, |total| f64::from(total.looks))
    }

    /// Cuts groups whose parts have different users, and joins those that lie side by side and have the same. `whole_pages`
    /// tells of a range of addresses the largest unit, in base pages, that it is made of and that no cut may part; it is asked
    /// only before a cut, and with `None` there is none. `one_region` tells whether a range of addresses belongs to one
    /// region. Returns the groups that are not what they were.
    pub fn adapt(
        &mut self,
        mut whole_pages: impl FnMut(ProcessId, Range<u64>) -> Option<u64>,
        one_region: impl Fn(ProcessId, Range<u64>) -> bool,
    ) -> Vec<GroupId> {
        let mut changed = self.merge_alike(one_region);
        for (process, pages, seen) in self.next_candidates() {
            let part = |of: Range<u64>| self.part(&seen, of);
            let Some(cut) = split::cut(&pages, part) else { continue };
            let id = |page: u64| GroupId { process: ProcessId(process), start: page * PAGE_BYTES };
            let whole = whole_pages(ProcessId(process), id(pages.start).start..id(pages.end).start);
            if !whole.is_some_and(|whole| cut.is_multiple_of(whole)) {
                continue;
            }
            let (low, high) = (part(pages.start..cut), part(cut..pages.end));
            self.groups.split(process, cut, |number| split::low_share(&low, &high, number));
            self.counters.splits += 1;
            changed.extend([id(pages.start), id(cut)]);
        }
        changed
    }

    /// Groups that could be cut, in turn, each with those of its pages that were seen: as many as may be looked at.
    fn next_candidates(&mut self) -> Vec<Candidate> {
        let shared = self.groups.records().filter(|record| split::may_split(*record));
        let mut all: Vec<_> = shared.map(|record| (record.process(), record.pages())).collect();
        all.sort_unstable_by_key(|(process, pages)| (*process, pages.start));
        let next = all.partition_point(|(process, pages)| (*process, pages.start) <= self.examined_to);
        all.rotate_left(next);
        all.truncate(EXAMINED);
        if let Some((process, pages)) = all.last() {
            self.examined_to = (*process, pages.start);
        }
        all.sort_unstable_by_key(|(process, pages)| (*process, pages.start));
        let mut candidates: Vec<Candidate> = all.into_iter().map(|(process, pages)| (process, pages, vec![])).collect();
        if candidates.is_empty() {
            return candidates;
        }
        // Once through what was seen: most of a group's pages never were, and each would be looked up several times.
        for record in self.pages.records() {
            let (process, page) = (record.process(), record.pages().start);
            let behind = candidates.partition_point(|(of, pages, _)| (*of, pages.start) <= (process, page));
            if let Some((of, pages, seen)) = behind.checked_sub(1).map(|at| &mut candidates[at])
                && *of == process
                && pages.contains(&page)
            {
                seen.push((page, record.slot()));
            }
        }
        candidates.iter_mut().for_each(|(_, _, seen)| seen.sort_unstable());
        candidates
    }

    /// Who touched these pages lately, of the pages `seen`.
    fn part(&self, seen: &[(u64, u32)], pages: Range<u64>) -> Part {
        let mut part = Part::default();
        let from = seen.partition_point(|(page, _)| *page < pages.start);
        for &(_, slot) in seen[from..].iter().take_while(|(page, _)| *page < pages.end) {
            self.pages.record(slot).users().for_each(|(number, user)| part.add(number, user.looks));
        }
        part
    }

    fn merge_alike(&mut self, one_region: impl Fn(ProcessId, Range<u64>) -> bool) -> Vec<GroupId> {
        let mut changed = Vec::new();
        for (process, starts) in self.groups.neighbours() {
            let mut first = starts[0];
            for &second in &starts[1..] {
                let [Some(low), Some(high)] = [first, second].map(|page| self.groups.at(process, page)) else {
                    continue;
                };
                let bytes = low.pages().start * PAGE_BYTES..high.pages().end * PAGE_BYTES;
                let adjacent = low.pages().end == second && one_region(ProcessId(process), bytes);
                if adjacent && split::alike(&Part::of(low), &Part::of(high)) {
                    self.groups.merge(process, first);
                    self.counters.merges += 1;
                    changed.extend(
                        [first, second].map(|page| GroupId { process: ProcessId(process), start: page * PAGE_BYTES }),
                    );
                } else {
                    first = second;
                }
            }
        }
        changed
    }

    /// Pairs of threads that use the same pages, in accesses per second (`sharing.rs`): a thread's rate on a page is its weight times
    /// `scale` (accesses per second behind a weight of 1). Both orders are there.
    pub fn sharing(&self, scale: impl Fn(ThreadId) -> f64) -> BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> {
        let mut pages: Vec<_> = self.pages.records().collect();
        pages.sort_unstable_by_key(|page| (page.process(), page.pages().start));
        let scales: HashMap<_, _> = self.numbers.iter().map(|(thread, number)| (number, scale(thread))).collect();
        let use_of = |(thread, user): (ThreadNumber, User)| {
            let accesses_per_s = f64::from(user.accesses) * scales.get(&thread)?;
            Some(Use { thread, accesses_per_s, looks: f64::from(user.looks) })
        };
        let shared = sharing::between_threads(|tell| {
            let mut seen = SeenGroup::default();
            for group in self.groups.records().filter(|group| group.users().nth(1).is_some()) {
                let (process, range) = (group.process(), group.pages());
                let from = pages.partition_point(|page| (page.process(), page.pages().start) < (process, range.start));
                let inside =
                    pages[from..].iter().take_while(|page| page.process() == process && page.pages().start < range.end);
                seen.clear();
                seen.users.extend(group.users().filter_map(use_of));
                inside.for_each(|page| seen.add_page(page.users().filter_map(use_of)));
                tell(&seen);
            }
        });
        let mut rows: BTreeMap<ThreadId, BTreeMap<ThreadId, f64>> = BTreeMap::new();
        for ((first, second), per_s) in shared {
            let (Some(first), Some(second)) = (self.numbers.thread(first), self.numbers.thread(second)) else {
                continue;
            };
            rows.entry(first).or_default().insert(second, per_s);
            rows.entry(second).or_default().insert(first, per_s);
        }
        rows
    }

    /// Forgets processes and threads that are gone.
    pub fn retain(&mut self, process: impl Fn(ProcessId) -> bool, thread: impl Fn(ThreadId) -> bool) {
        let gone = self.numbers.gone(&thread);
        for table in [&mut self.groups, &mut self.pages] {
            table.retain(1.0, |of| process(ProcessId(of)), |number| !gone.contains(&number));
        }
        self.numbers.forget(&gone);
        self.totals.retain(|user, _| thread(*user));
    }
}

#[cfg(test)]
#[path = "affinity_tests.rs"]
mod tests;
