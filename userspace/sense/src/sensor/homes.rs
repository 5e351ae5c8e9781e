// SPDX-License-Identifier: GPL-2.0-only
//! Of which groups it is asked where their pages are.
//!
//! Problem: the kernel finds each page through four levels of page tables, about a microsecond in an emulated guest; asked for at
//! every look, pages that stay where they are take as much of a CPU as the samples do. Mechanism: an answer holds for
//! [`HOLDS_MS`], longer than most looks are apart. It does not where pages were just moved, by us or perhaps by others, or where some
//! were not there yet: memory that a program begins to use comes a page at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::model::{GroupId, PAGE_BYTES, PerNode, ProcessId, Topology};

use super::Sensor;
use crate::folios;
use crate::touches::MOST_PAGES;

/// For how long an answer holds, a little less than four looks of a second: pages are also freed, and touched anew from elsewhere.
const HOLDS_MS: u32 = 3900;

impl Sensor {
    /// Pages of this group were moved: where they are is asked before that of others.
    pub fn note_moved(&mut self, group: GroupId) {
        self.moved.insert(group);
    }

    /// Others moved pages, of whatever groups: where all are is asked at the next look.
    pub fn doubt_homes(&mut self) {
        self.homes_doubted = true;
    }

    /// Whether the snapshot made at `now_ns` tells where this group's pages were at or after `since_ns`.
    pub fn knows_home_since(&self, group: GroupId, since_ns: u64, now_ns: u64) -> bool {
        self.known_homes.is_asked_since(group, since_ns, now_ns)
    }

    /// Asks where the pages of groups are, those that moved and then those with the oldest answer first, as many as may be asked.
    pub(super) fn read_homes(&mut self, topology: &Topology, now_ns: u64) {
        let known: Vec<_> = self.table.groups().into_iter().map(|(id, group)| (id, group.bytes())).collect();
        let is_known = |id: GroupId| known.binary_search_by_key(&id, |group| group.0).is_ok();
        self.known_homes.retain(topology.len(), is_known);
        self.moved.retain(|&id| is_known(id));
        let age = |id: &GroupId| Reverse((self.moved.contains(id), self.known_homes.age_ms(*id, now_ns)));
        let due = known.iter().filter(|(id, bytes)| self.is_home_due(*id, *bytes, now_ns));
        let mut by_age: Vec<_> = due.map(|(id, bytes)| (age(id), *id, *bytes)).collect();
        by_age.sort_unstable();
        self.homes_doubted = false;
        let mut left = self.config.home_pages;
        let mut chosen: BTreeMap<ProcessId, Vec<(GroupId, u64)>> = BTreeMap::new();
        for (_, id, bytes) in by_age {
            let Some(after) = left.checked_sub(self.homes.cost_pages(bytes)) else { break };
            left = after;
            self.moved.remove(&id);
            chosen.entry(id.process).or_default().push((id, bytes));
        }
        let nodes = topology.node_ids();
        let (mut told, mut huge) = (Vec::new(), BTreeSet::new());
        for (process, groups) in chosen {
            let homes = self.homes.resident(process, &groups, &nodes);
            let homes: Vec<_> =
                groups.into_iter().zip(homes).filter_map(|((id, _), resident)| Some((id, resident?))).collect();
            huge.append(&mut self.huge_of(process, &homes));
            told.extend(homes);
        }
        self.known_homes.put(topology.len(), told, now_ns);
        huge.into_iter().for_each(|id| self.known_homes.mark_huge(id));
    }

    /// Whether it is to be asked where the pages of a group are.
    fn is_home_due(&self, id: GroupId, bytes: u64, now_ns: u64) -> bool {
        let is_whole = self.known_homes.get(id).is_some_and(|home| home.resident() >= bytes.div_ceil(PAGE_BYTES));
        !is_whole || self.homes_doubted || self.moved.contains(&id) || self.known_homes.age_ms(id, now_ns) >= HOLDS_MS
    }

    /// Those of these groups of a process that are one huge page each.
    fn huge_of(&mut self, process: ProcessId, homes: &[(GroupId, PerNode<u64>)]) -> BTreeSet<GroupId> {
        let may_be = |id: GroupId, pages: &PerNode<u64>| {
            id.start.is_multiple_of(MOST_PAGES * PAGE_BYTES) && pages.values().any(|&pages| pages == MOST_PAGES)
        };
        let candidates: Vec<_> = homes.iter().filter(|(id, pages)| may_be(*id, pages)).map(|(id, _)| *id).collect();
        folios::huge_groups(process, &candidates).unwrap_or_else(|error| {
            self.counters.unknown_units += 1;
            tracing::debug!(%error, process = process.0, "huge pages are not told from others");
            BTreeSet::new()
        })
    }
}
