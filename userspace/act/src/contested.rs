// SPDX-License-Identifier: GPL-2.0-only
//! Pages that somebody else moves back where plans did not put them.
//!
//! Problem: where numad, a scheme of DAMON or an administrator moves pages as well, a plan moves them once more when they have
//! rested, and so on for ever: both burn CPUs, and nothing is won. Mechanism: what a plan moved is watched. If most of it is on
//! other nodes later and no move of ours put it there, it is contested and rests: twice as long each time, within bounds.
//!
//! Pages that a program freed and touched anew from elsewhere look the same: so many are gone from one node, so many are on
//! another. What tells them apart is that nobody migrated them, as the kernel counts all pages that are migrated, those of
//! ours too. It does not say whose they are: where others are migrated at the same time, such memory rests as well, as long as
//! contested memory does and no longer.

use std::collections::BTreeMap;

use tandem_policies::model::{GroupId, NodeId, ProcessId};

use crate::ranges::Ranges;
use crate::{Cooldowns, Outcome, Purpose};

/// Lengths of rests, each twice as long as the one before.
const RESTS: usize = 5;
/// For so many times its rest it is remembered how long a group rested last, from the rest's begin on.
const REMEMBERED_RESTS: u64 = 3;
/// One in so many pages that are elsewhere may be chance: homes of groups are known from some of their pages.
const CHANCE_PART: u64 = 8;

/// What a plan put somewhere.
#[derive(Clone, Copy, Debug)]
struct Placed {
    to: NodeId,
    /// Pages that were there then, and others that may have been elsewhere: as short as will do, there may be very many groups.
    pages: u32,
    elsewhere: u32,
    since_ns: u64,
    /// Pages that others had migrated when nearly all of it was there.
    migrated_pages: u64,
}

/// A group that is watched, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The group.
    pub group: GroupId,
    /// Its bytes.
    pub bytes: u64,
    /// Its resident pages on the node where a plan put it, and on all others; `None` if that was not asked since it did.
    pub places: Option<(u64, u64)>,
    /// Whether it was asked since the last look: of much memory a part is asked about at a time.
    pub is_new: bool,
}

/// A group that somebody else moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The group.
    pub group: GroupId,
    /// Where a plan had put it.
    pub to: NodeId,
    /// Pages of it that are elsewhere now.
    pub pages: u64,
    /// How long it rests.
    pub rest_ns: u64,
}

/// The groups that are watched, and those that rest. All times are CLOCK_MONOTONIC in ns, given by the caller.
#[derive(Debug)]
pub struct Contested {
    placed: Ranges<Placed>,
    capacity: usize,
    resting: Cooldowns,
    /// Those that rested lately, by the length of the last rest.
    rested: [Cooldowns; RESTS],
    first_rest_ns: u64,
    /// Pages that others had migrated at the last look, and when that was.
    migrated_pages: u64,
    looked_ns: u64,
}

impl Contested {
    /// Nothing is watched; room for `capacity` groups of each kind. The first rest takes `first_rest_ns`.
    pub fn new(capacity: usize, first_rest_ns: u64) -> Self {
        Self {
            placed: Ranges::default(),
            capacity,
            resting: Cooldowns::new(capacity),
            rested: [(); RESTS].map(|()| Cooldowns::new(capacity)),
            first_rest_ns,
            migrated_pages: 0,
            looked_ns: 0,
        }
    }

    /// When it looked last.
    pub fn looked_ns(&self) -> u64 {
        self.looked_ns
    }

    /// Takes in what became of a move that ended at `now_ns`: what a plan moved is watched, what goes back is not any more.
    pub fn note(&mut self, outcome: &Outcome, now_ns: u64) {
        let is_of_plan = outcome.purpose == Purpose::Plan;
        if is_of_plan && outcome.moved_pages == 0 {
            return;
        }
        let (group, end) = (GroupId { start: outcome.start, ..outcome.group }, outcome.start + outcome.bytes);
        while let Some((other, ..)) = self.placed.last_overlapping(group, end) {
            self.placed.remove(other);
        }
        if !is_of_plan || self.placed.len() >= self.capacity {
            return;
        }
        let there = outcome.moved_pages + outcome.already_there_pages;
        let others = outcome.requested_pages.saturating_sub(there + outcome.absent_pages);
        let [pages, elsewhere] = [there, others].map(|pages| u32::try_from(pages).unwrap_or(u32::MAX));
        let (to, since_ns, migrated_pages) = (outcome.to, now_ns, self.migrated_pages);
        self.placed.insert(group, end, Placed { to, pages, elsewhere, since_ns, migrated_pages });
    }

    /// Where and when a plan put just these bytes, if they are watched.
    pub fn watched(&self, group: GroupId, bytes: u64) -> Option<(NodeId, u64)> {
        self.find(group, bytes).map(|placed| (placed.to, placed.since_ns))
    }

    /// How many pages others had migrated at the last look.
    pub fn migrated_pages(&self) -> u64 {
        self.migrated_pages
    }

    /// Looks at all groups that are watched, when others than the mover have migrated `migrated_pages` so far and no move is under way.
    /// Returns those that somebody else moved, which rest from now on. A group that is not among those `found` is not watched any more.
    pub fn look(&mut self, found: &[Found], migrated_pages: u64, now_ns: u64) -> Vec<Contest> {
        let before = std::mem::take(&mut self.placed);
        // The count is read after the places: what is in place by now was there when others had migrated as many as at the last look.
        let migrated_before = std::mem::replace(&mut self.migrated_pages, migrated_pages);
        self.looked_ns = now_ns;
        let mut away: BTreeMap<ProcessId, Vec<(&Found, Placed, u64)>> = BTreeMap::new();
        for one in found {
            let end = one.group.start + one.bytes;
            let Some(mut placed) = exactly(&before, one.group, end) else { continue };
            let away_pages = one.places.map_or(0, |places| placed.away(places));
            let pages = u64::from(placed.pages);
            if 2 * away_pages > pages {
                away.entry(one.group.process).or_default().push((one, placed, away_pages));
                continue;
            }
            if one.places.is_some() && one.is_new && CHANCE_PART * away_pages <= pages {
                placed.migrated_pages = migrated_before;
            }
            self.placed.insert(one.group, end, placed);
        }
        let moved = away.into_values().filter(|away| is_explained(away, migrated_pages)).flatten();
        let contest = |(one, placed, pages): (&Found, Placed, u64)| {
            let rest_ns = self.rest(one.group, one.bytes, now_ns);
            Contest { group: one.group, to: placed.to, pages, rest_ns }
        };
        moved.map(contest).collect()
    }

    /// Whether any of the group's `bytes` rests because somebody else moved it.
    pub fn is_resting(&self, group: GroupId, bytes: u64, now_ns: u64) -> bool {
        self.resting.is_group_cooling(group, bytes, now_ns)
    }

    /// Forgets the groups of processes that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.placed.retain(|group| !is_gone(group.process));
        self.resting.forget(&is_gone);
        self.rested.iter_mut().for_each(|rested| rested.forget(&is_gone));
    }

    fn find(&self, group: GroupId, bytes: u64) -> Option<Placed> {
        exactly(&self.placed, group, group.start.saturating_add(bytes))
    }

    /// Lets a group rest, longer than the last time if that was lately; returns how long.
    fn rest(&mut self, group: GroupId, bytes: u64, now_ns: u64) -> u64 {
        let last = self.rested.iter().rposition(|rested| rested.is_group_cooling(group, bytes, now_ns));
        let at = last.map_or(0, |last| (last + 1).min(RESTS - 1));
        let rest_ns = self.first_rest_ns.saturating_mul(1 << at);
        self.resting.start_group(group, bytes, now_ns, rest_ns);
        self.rested[at].start_group(group, bytes, now_ns, rest_ns.saturating_mul(REMEMBERED_RESTS));
        rest_ns
    }
}

impl Placed {
    /// Pages that went elsewhere since, by how many are there and elsewhere now: those that were freed came nowhere.
    fn away(&self, (there, elsewhere): (u64, u64)) -> u64 {
        u64::from(self.pages).saturating_sub(there).min(elsewhere.saturating_sub(u64::from(self.elsewhere)))
    }
}

/// Whether others migrated about as many pages as one process has elsewhere: if not, it is other memory, which was touched from there.
fn is_explained(away: &[(&Found, Placed, u64)], migrated_pages: u64) -> bool {
    let away_pages: u64 = away.iter().map(|one| one.2).sum();
    let first = away.iter().map(|one| one.1.migrated_pages).min().unwrap_or(migrated_pages);
    2 * migrated_pages.saturating_sub(first) >= away_pages
}

/// What is known of just this range. One that was cut anew has other pages.
fn exactly(placed: &Ranges<Placed>, group: GroupId, end: u64) -> Option<Placed> {
    let (start, its_end, placed) = placed.last_overlapping(group, end)?;
    (start == group && its_end == end).then_some(placed)
}

#[cfg(test)]
mod tests;
