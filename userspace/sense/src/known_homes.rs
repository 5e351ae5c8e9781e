// SPDX-License-Identifier: GPL-2.0-only
//! Where the pages of groups were when the kernel was last asked, in 12 bytes a group.
//!
//! Nearly all groups have all their pages on one node: its number and how many they are take four bytes. Those of the others
//! lie beside. Each process has one array of entries, ascending by page, as long as they are many: it is made anew at each
//! change.

use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::model::{GroupId, NodeIndex, PAGE_BYTES, PerNode, ProcessId};

use crate::touches::MOST_PAGES;

/// Instead of a node and its pages: they are on several.
const SEVERAL: u32 = u32::MAX;
/// Nodes above, pages below.
const PAGES_BITS: u32 = 16;
/// Instead of a number of pages: it is one huge page.
const HUGE: u32 = (1 << PAGES_BITS) - 1;
/// Of when a group was asked for, the low bits of a number of 64 ms (18 hours); its first page has the others (5 levels of page
/// tables give a process 44 bits of pages).
const ASKED_BITS: u32 = 20;
const ASKED_MS: u64 = 64;
const NS_PER_MS: u64 = 1_000_000;

/// Where a group's pages are, of those that are resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home<'a> {
    /// So many, all on one node; none at all if the number is 0.
    One(NodeIndex, u16),
    /// One huge page of [`MOST_PAGES`], on this node.
    Huge(NodeIndex),
    /// Pages by node.
    Several(&'a [u16]),
}

impl Home<'_> {
    /// Nothing is resident.
    pub(crate) const NOWHERE: Self = Home::One(NodeIndex(0), 0);

    /// The node that has all of them.
    pub(crate) fn only_node(self) -> Option<NodeIndex> {
        match self {
            Home::One(node, pages) => (pages > 0).then_some(node),
            Home::Huge(node) => Some(node),
            Home::Several(_) => None,
        }
    }

    /// Pages in all.
    pub(crate) fn resident(self) -> u64 {
        match self {
            Home::One(_, pages) => u64::from(pages),
            Home::Huge(_) => MOST_PAGES,
            Home::Several(pages) => pages.iter().map(|&pages| u64::from(pages)).sum(),
        }
    }

    /// Whether it is one huge page.
    pub(crate) fn is_huge(self) -> bool {
        matches!(self, Home::Huge(_))
    }

    /// Pages by node, on a machine of `nodes` nodes.
    pub(crate) fn pages(self, nodes: usize) -> PerNode<u64> {
        PerNode::from_fn(nodes, |at| match self {
            Home::One(node, pages) => u64::from(if at == node { pages } else { 0 }),
            Home::Huge(node) => {
                if at == node {
                    MOST_PAGES
                } else {
                    0
                }
            }
            Home::Several(pages) => pages.get(at.0).copied().map_or(0, u64::from),
        })
    }

    /// Adds an access of `weight` to the nodes where the pages are.
    pub(crate) fn spread(self, weights: &mut PerNode<f64>, weight: f64) {
        match self {
            Home::One(_, 0) => {}
            Home::One(node, _) | Home::Huge(node) => weights[node] += weight,
            Home::Several(pages) => {
                let all: f64 = pages.iter().map(|&pages| f64::from(pages)).sum();
                let here = |(at, &pages): (usize, &u16)| weights[NodeIndex(at)] += weight * f64::from(pages) / all;
                pages.iter().enumerate().for_each(here);
            }
        }
    }
}

/// 12 bytes; the first two words are split so that no padding makes them 16.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of the group's first page above, when it was asked for below.
    page_and_asked: [u32; 2],
    home: u32,
}

impl Entry {
    fn new(id: GroupId, now_ns: u64, pages: &PerNode<u64>) -> Self {
        let mut on: Vec<(NodeIndex, u64)> =
            pages.iter().filter(|(_, pages)| **pages > 0).map(|(n, p)| (n, *p)).collect();
        let home = match (on.pop(), on.is_empty()) {
            (None, _) => 0,
            (Some((node, pages)), true) => (node.0 as u32) << PAGES_BITS | u32::from(few(pages)),
            (Some(_), false) => SEVERAL,
        };
        let both = (id.start / PAGE_BYTES) << ASKED_BITS | asked(now_ns);
        Self { page_and_asked: [both as u32, (both >> 32) as u32], home }
    }

    fn both(&self) -> u64 {
        u64::from(self.page_and_asked[0]) | u64::from(self.page_and_asked[1]) << 32
    }

    /// First byte of the group.
    fn start(&self) -> u64 {
        (self.both() >> ASKED_BITS) * PAGE_BYTES
    }

    fn age_ms(&self, now_ns: u64) -> u32 {
        let mask = (1 << ASKED_BITS) - 1;
        ((asked(now_ns).wrapping_sub(self.both() & mask) & mask) * ASKED_MS) as u32
    }
}

fn asked(now_ns: u64) -> u64 {
    (now_ns / NS_PER_MS / ASKED_MS) & ((1 << ASKED_BITS) - 1)
}

/// A group has 512 pages at most.
fn few(pages: u64) -> u16 {
    u16::try_from(pages).unwrap_or(u16::MAX).min(HUGE as u16 - 1)
}

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct KnownHomes {
    /// Nodes of the machine of which they are.
    nodes: usize,
    entries: BTreeMap<ProcessId, Vec<Entry>>,
    several: BTreeMap<GroupId, Box<[u16]>>,
}

impl KnownHomes {
    fn find(&self, id: GroupId) -> Option<&Entry> {
        let entries = self.entries.get(&id.process)?;
        entries.binary_search_by_key(&id.start, Entry::start).ok().map(|at| &entries[at])
    }

    /// Where the pages of a group are, if that was asked.
    pub(crate) fn get(&self, id: GroupId) -> Option<Home<'_>> {
        self.find(id).map(|entry| match entry.home {
            SEVERAL => Home::Several(self.several.get(&id).map_or(&[], |pages| pages)),
            home => {
                let node = NodeIndex((home >> PAGES_BITS) as usize);
                if home & HUGE == HUGE { Home::Huge(node) } else { Home::One(node, home as u16) }
            }
        })
    }

    /// How long ago a group was asked for, in ms, to 64; the longest time of all for one that never was.
    pub(crate) fn age_ms(&self, id: GroupId, now_ns: u64) -> u32 {
        self.find(id).map_or(u32::MAX, |entry| entry.age_ms(now_ns))
    }

    /// Whether a group was certainly asked for at or after `since_ns`.
    pub(crate) fn is_asked_since(&self, id: GroupId, since_ns: u64, now_ns: u64) -> bool {
        let longest_ago_ms = u64::from(self.age_ms(id, now_ns)) + ASKED_MS;
        longest_ago_ms <= now_ns.saturating_sub(since_ns) / NS_PER_MS
    }

    /// Takes down where groups are that were asked for at `now_ns`, on a machine of `nodes` nodes.
    pub(crate) fn put(&mut self, nodes: usize, homes: Vec<(GroupId, PerNode<u64>)>, now_ns: u64) {
        if self.nodes != nodes {
            *self = Self { nodes, ..Self::default() };
        }
        let mut new: BTreeMap<ProcessId, BTreeMap<u64, Entry>> = BTreeMap::new();
        for (id, pages) in homes {
            let entry = Entry::new(id, now_ns, &pages);
            if entry.home == SEVERAL {
                self.several.insert(id, pages.values().map(|&pages| few(pages)).collect());
            } else {
                self.several.remove(&id);
            }
            new.entry(id.process).or_default().insert(id.start, entry);
        }
        for (process, new) in new {
            let old = self.entries.remove(&process).unwrap_or_default();
            let kept = || old.iter().filter(|entry| !new.contains_key(&entry.start()));
            let mut entries = Vec::with_capacity(kept().count() + new.len());
            entries.extend(kept());
            entries.extend(new.values());
            entries.sort_unstable_by_key(Entry::start);
            self.entries.insert(process, entries);
        }
    }

    /// Takes down that a group with all its pages on one node is one huge page, until it is asked for again.
    pub(crate) fn mark_huge(&mut self, id: GroupId) {
        let Some(entries) = self.entries.get_mut(&id.process) else { return };
        if let Ok(at) = entries.binary_search_by_key(&id.start, Entry::start) {
            // Pages on several nodes stay so: all bits of that are set.
            entries[at].home |= HUGE;
        }
    }

    /// Forgets all other groups, and all of them if the machine has another number of nodes.
    pub(crate) fn retain(&mut self, nodes: usize, kept: impl Fn(GroupId) -> bool) {
        let kept = |id: &GroupId| nodes == self.nodes && kept(*id);
        self.entries.retain(|&process, entries| {
            entries.retain(|entry| kept(&GroupId { process, start: entry.start() }));
            !entries.is_empty()
        });
        self.several.retain(|id, _| kept(id));
    }

    /// Forgets these groups.
    pub(crate) fn forget(&mut self, gone: &BTreeSet<GroupId>) {
        self.retain(self.nodes, |id| !gone.contains(&id));
    }

    /// Forgets all groups of other processes than those that stay.
    pub(crate) fn retain_processes(&mut self, stays: impl Fn(ProcessId) -> bool) {
        self.retain(self.nodes, |id| stays(id.process));
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        // Of a B-tree two thirds of the room are used, or more.
        let beside = size_of::<(GroupId, Box<[u16]>)>() * 3 / 2 + self.nodes * size_of::<u16>();
        let entries = self.entries.values().map(|entries| entries.capacity() * size_of::<Entry>());
        entries.sum::<usize>() + self.several.len() * beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = NS_PER_MS;

    fn id(process: u32, page: u64) -> GroupId {
        GroupId { process: ProcessId(process), start: page * PAGE_BYTES }
    }

    fn pages<const N: usize>(pages: [u64; N]) -> PerNode<u64> {
        pages.to_vec().into()
    }

    fn known<const N: usize>(homes: &[(GroupId, [u64; N])]) -> KnownHomes {
        let mut known = KnownHomes::default();
        known.put(N, homes.iter().map(|(id, row)| (*id, pages(*row))).collect(), 0);
        known
    }

    fn count(known: &KnownHomes) -> usize {
        known.entries.values().map(Vec::len).sum()
    }

    #[test]
    fn what_was_told_is_given_back() {
        let rows = [[0, 512, 0], [0, 0, 0], [100, 0, 412], [1, 0, 0], [0, 0, 3]];
        let far = (1 << 44) - 1024;
        let ids = [id(9, far + 512), id(9, far), id(1, 1), id(u32::MAX, 0), id(1, 0)];
        let known = known(&ids.into_iter().zip(rows).collect::<Vec<_>>());
        for (id, row) in ids.into_iter().zip(rows) {
            assert_eq!(known.get(id).map(|home| home.pages(3)), Some(pages(row)), "{id:?}");
        }
        assert_eq!(known.get(id(9, 1)), None);
        let only = ids.map(|id| known.get(id).unwrap().only_node());
        assert_eq!(only, [Some(NodeIndex(1)), None, None, Some(NodeIndex(0)), Some(NodeIndex(2))]);
    }

    #[test]
    fn one_huge_page_is_known_until_it_is_told_to_be_none() {
        let mut known = KnownHomes::default();
        let (huge, small, moved) = (id(1, 0), id(1, 512), id(1, 1024));
        known.put(2, vec![(id(7, 0), pages([1, 511]))], 0);
        known.mark_huge(id(7, 0));
        assert_eq!(known.get(id(7, 0)).unwrap().pages(2), pages([1, 511]), "on two nodes it is none");
        let told = |ids: &[GroupId]| ids.iter().map(|&id| (id, pages([0, 512]))).collect::<Vec<_>>();
        known.put(2, told(&[huge, small, moved]), 0);
        [huge, moved, id(1, 1), id(2, 0)].into_iter().for_each(|id| known.mark_huge(id));
        let is_huge = |known: &KnownHomes| [huge, small, moved].map(|id| known.get(id).unwrap().is_huge());
        assert_eq!(is_huge(&known), [true, false, true]);
        for id in [huge, small] {
            let home = known.get(id).unwrap();
            assert_eq!((home.pages(2), home.only_node()), (pages([0, 512]), Some(NodeIndex(1))));
            let mut weights = PerNode::filled(2, 0.0);
            home.spread(&mut weights, 4.0);
            assert_eq!(weights, vec![0.0, 4.0].into());
        }
        known.put(2, told(&[moved]), 0);
        assert_eq!(is_huge(&known), [true, false, false]);
    }

    #[test]
    fn an_access_counts_where_the_pages_are() {
        let known = known(&[(id(1, 0), [0, 9]), (id(1, 1), [3, 1]), (id(1, 2), [0, 0])]);
        let mut weights = PerNode::filled(2, 0.0);
        (0..3).for_each(|page| known.get(id(1, page)).unwrap().spread(&mut weights, 4.0));
        assert_eq!(weights, vec![3.0, 5.0].into());
    }

    #[test]
    fn a_later_answer_takes_the_place_of_the_one_before() {
        let mut known = known(&[(id(1, 0), [3, 5]), (id(1, 1), [8, 0])]);
        assert_eq!(known.age_ms(id(1, 7), 5 * MS), u32::MAX, "never asked");
        known.put(2, vec![(id(1, 0), pages([0, 8])), (id(1, 1), pages([4, 4])), (id(0, 0), pages([1, 0]))], 5 * MS);
        let row = |page| known.get(id(1, page)).unwrap().pages(2);
        assert_eq!((row(0), row(1), count(&known), known.several.len()), (pages([0, 8]), pages([4, 4]), 3, 1));
        assert_eq!(known.age_ms(id(1, 0), 5 * MS + 640 * MS), 640);
        let day_ns = 24 * 3_600_000 * MS;
        known.put(2, vec![(id(1, 0), pages([0, 8]))], day_ns);
        assert_eq!(known.age_ms(id(1, 0), day_ns + 128 * MS), 128, "a clock that went round");
    }

    #[test]
    fn what_was_asked_before_a_time_or_just_after_it_is_not_known_to_be_asked_since() {
        let mut known = KnownHomes::default();
        assert!(!known.is_asked_since(id(1, 0), 0, 3_600_000 * MS), "never asked");
        known.put(2, vec![(id(1, 0), pages([8, 0]))], 640 * MS);
        let since = |since_ms: u64, now_ms: u64| known.is_asked_since(id(1, 0), since_ms * MS, now_ms * MS);
        assert_eq!([since(640, 640), since(700, 6400), since(576, 640), since(570, 6400)], [false, false, true, true]);
    }

    #[test]
    fn groups_that_are_gone_and_other_machines_are_forgotten() {
        let mut known = known(&[(id(1, 0), [3, 5]), (id(2, 0), [3, 5]), (id(2, 1), [8, 0])]);
        known.retain(2, |id| id.process == ProcessId(2));
        assert_eq!((count(&known), known.several.len()), (2, 1));
        known.put(3, vec![(id(5, 0), pages([1, 0, 0]))], 0);
        assert_eq!(known.get(id(2, 1)), None, "of two nodes");
        known.retain(2, |_| true);
        assert!(known.entries.is_empty() && known.several.is_empty());
    }

    #[test]
    fn a_group_on_one_node_takes_12_bytes() {
        let homes: Vec<_> = (0..1000).map(|page| (id(1, page * 512), pages([0, 512]))).collect();
        let mut known = KnownHomes::default();
        homes.chunks(300).for_each(|homes| known.put(2, homes.to_vec(), 0));
        assert_eq!(known.bytes(), 12 * 1000);
    }
}
