// SPDX-License-Identifier: GPL-2.0-only
//! Whose memory a page group is: that of few threads by name, or that of its process.
//!
//! A group has been seen in few samples, and of eight threads that use it alike one always seems to use it most. So a
//! user counts as an owner only if it was sampled so much more often than the next one that chance does not explain it:
//!
//! ```text
//! k_j - k_(j+1) > OWNER_ERRORS sqrt(k_j + k_(j+1))        k: samples, the owners first
//! ```
//!
//! Owners are as few as have [`OWNED_SHARE`] of the accesses, at most [`MOST_OWNERS`]; if there are none such, those with
//! the greatest share of at least [`LEAST_SHARE`], told by [`PART_OWNER_ERRORS`]. A group with too few samples belongs to the owners of the one before it, or
//! behind it, if all users that were seen are among them. Neighbours with the same users, or the same first one, are judged as one ([`super::runs`]). All
//! others belong to their process.
//!
//! Groups with the same owners and the same home are one [`Part`]: their samples add up, and they are placed together.

use std::collections::BTreeMap;

use super::runs::Runs;
use crate::model::{NodeIndex, PageGroup, ProcessId, ThreadId};
use crate::page_moves::follows;
use crate::signals::sound;
use crate::users::{Ledger, Weighed};

/// Standard errors between the last owner's samples and the next user's.
const OWNER_ERRORS: f64 = 2.5;
/// The same if others access it too.
const PART_OWNER_ERRORS: f64 = 4.0;
/// Share of the accesses that owners should have.
pub const OWNED_SHARE: f64 = 0.9;
/// Share that they must have.
pub const LEAST_SHARE: f64 = 0.5;
/// Owners of a group at most.
pub const MOST_OWNERS: usize = 4;

/// Groups whose users are fetched together.
const AHEAD: usize = 64;

/// No owner.
pub const NOBODY: u32 = u32::MAX;

/// Groups with the same owners and the same home.
#[derive(Clone, Debug)]
pub struct Part {
    /// Positions of the owning threads with their accesses per second, ascending by position.
    pub users: Vec<(usize, f64)>,
    /// Accesses per second of all others, by node, which are taken to stay there.
    pub others: Vec<(usize, f64)>,
    /// Pages by node.
    pub pages: Vec<(usize, f64)>,
    /// The same in all.
    pub resident: f64,
    /// Of them in huge pages.
    pub huge: f64,
    /// Samples behind the accesses.
    pub samples: f64,
    /// Whether they may be moved.
    pub movable: bool,
}

/// What of a process belongs to no thread by name.
#[derive(Clone, Debug)]
pub struct Common {
    /// The process.
    pub process: ProcessId,
    /// Accesses per second to pages that may be moved, and to others.
    pub movable_per_s: f64,
    /// See `movable_per_s`.
    pub fixed_per_s: f64,
    /// Samples behind both.
    pub samples: f64,
    /// Movable pages by node.
    pub pages: Vec<f64>,
    /// Of them in huge pages.
    pub huge: f64,
}

impl Common {
    /// Share of the accesses that go to pages which may be moved.
    pub fn movable_share(&self) -> f64 {
        let all = self.movable_per_s + self.fixed_per_s;
        if all > 0.0 { self.movable_per_s / all } else { 0.0 }
    }
}

/// To whom a group belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The owners of this part.
    Part(usize),
    /// This process, by position in [`Owners::common`].
    Common(usize),
}

/// Whose all groups are.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// By group; `None` if nothing is known of it.
    pub of: Vec<Option<Owner>>,
    /// Groups of few threads.
    pub parts: Vec<Part>,
    /// What processes have besides.
    pub common: Vec<Common>,
    /// By process: accesses per second and samples of all its groups.
    pub seen: Vec<(ProcessId, f64, f64)>,
}

/// Up to [`MOST_OWNERS`] positions of threads, ascending, then [`NOBODY`].
pub type Names = [u32; MOST_OWNERS];
/// Owners, home (the number of nodes if in several places), and whether it may move.
type Key = (Names, u32, bool);
/// The greatest rates of a group's users, descending, those of its owners and one more; 0 where there are fewer.
pub type Rates = [f64; MOST_OWNERS + 1];
/// A thread's position and node, if it is still there.
pub type Seat<'s> = &'s dyn Fn(ThreadId) -> Option<(usize, NodeIndex)>;

impl Owners {
    /// Accesses per second that a sample of a process stands for; 0 if it has none.
    pub fn per_sample(&self, process: ProcessId) -> f64 {
        let seen = self.seen.binary_search_by_key(&process, |seen| seen.0).map(|at| self.seen[at]);
        seen.map_or(0.0, |(_, per_s, samples)| if samples > 0.0 { per_s / samples } else { 0.0 })
    }
}

/// Sorts the groups of a ledger.
pub fn sort(ledger: &Ledger, groups: &[PageGroup], nodes: usize, home_share: f64, seat: Seat) -> Owners {
    let (mut names, mut runs) = (Vec::with_capacity(groups.len()), Runs::of(ledger));
    let mut rates = Vec::with_capacity(AHEAD);
    for ahead in groups.chunks(AHEAD) {
        rates.clear();
        fetch_users(ahead);
        rates.extend(ahead.iter().map(greatest));
        for rates in &rates {
            let weighed = ledger.weighed(names.len());
            runs.next(&weighed, rates, &mut names, seat);
            names.push(self::names(&weighed, rates, seat));
        }
    }
    runs.end(&mut names, seat);
    inherit(groups, &mut names, seat);
    let mut sorter = Sorter { nodes, home_share, seat, owners: Owners::default(), parts: BTreeMap::new(), last: None };
    sorter.owners.of.reserve(groups.len());
    for (weighed, names) in ledger.iter().zip(names) {
        sorter.count(&weighed);
        let owner = match names {
            _ if weighed.load <= 0.0 || weighed.resident == 0 => None,
            Some(names) => Some(Owner::Part(sorter.add_to_part(&weighed, names))),
            None => Some(Owner::Common(sorter.add_to_common(&weighed))),
        };
        sorter.owners.of.push(owner);
    }
    sorter.owners
}

/// Positions of users of a group, the most frequent first, with their accesses per second.
fn by_rate(group: &PageGroup) -> Vec<(ThreadId, f64)> {
    let mut users: Vec<(ThreadId, f64)> = group.users.iter().map(|&(id, per_s)| (id, sound(per_s))).collect();
    users.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    users
}

/// The owners that samples tell; `None` without any.
fn names(weighed: &Weighed, rates: &Rates, seat: Seat) -> Option<Names> {
    if weighed.load <= 0.0 || weighed.group.users.is_empty() {
        return None;
    }
    let count = count_owners(weighed, rates)?;
    let users = by_rate(weighed.group);
    name(users[..count].iter().map(|user| user.0), seat)
}

/// Reads the users of groups, so that they are near when they are looked at: the processor waits for many reads at a time if none of
/// them waits for another, and nothing comes between.
fn fetch_users(groups: &[PageGroup]) {
    // Every second one is in every line.
    let greatest = |group: &PageGroup| group.users.iter().step_by(2).map(|user| user.1).fold(0.0, f64::max);
    std::hint::black_box(groups.iter().map(greatest).fold(0.0, f64::max));
}

/// The greatest rates of a group's users, descending; 0 where there are fewer.
fn greatest(group: &PageGroup) -> Rates {
    let mut rates = [0.0f64; MOST_OWNERS + 1];
    for &(_, per_s) in &group.users {
        let mut rate = sound(per_s);
        // Without branches, which nothing could foretell.
        for slot in &mut rates {
            (*slot, rate) = (slot.max(rate), slot.min(rate));
        }
    }
    rates
}

/// How many of the users, the most frequent first, own a group.
fn count_owners(weighed: &Weighed, rates: &Rates) -> Option<usize> {
    let samples = weighed.samples.min(1e9);
    let mut best = None;
    let mut owned = 0.0;
    for owners in 1..=MOST_OWNERS.min(weighed.group.users.len()) {
        owned += rates[owners - 1] / weighed.load;
        if owned < LEAST_SHARE {
            continue;
        }
        let [k, next] = [rates[owners - 1], rates[owners]].map(|rate| rate / weighed.load * samples);
        let errors = (k - next) / libm::sqrt((k + next).max(1.0));
        if errors > OWNER_ERRORS && owned >= OWNED_SHARE {
            return Some(owners);
        }
        if errors > PART_OWNER_ERRORS && owned >= LEAST_SHARE {
            best = Some(owners);
        }
    }
    best
}

fn name(users: impl Iterator<Item = ThreadId>, seat: Seat) -> Option<Names> {
    let mut names = [NOBODY; MOST_OWNERS];
    for (slot, user) in names.iter_mut().zip(users) {
        *slot = seat(user)?.0 as u32;
    }
    names.sort_unstable();
    Some(names)
}

/// Gives groups with too few samples the owners of a neighbour, from the front and then from behind.
fn inherit(groups: &[PageGroup], names: &mut [Option<Names>], seat: Seat) {
    // Names are near, and groups are not.
    let of_neighbour = |names: &mut [Option<Names>], at: usize, neighbour: usize| {
        let (None, Some(owners)) = (names[at], names[neighbour]) else { return };
        let (first, second) = (at.min(neighbour), at.max(neighbour));
        let is_known = !groups[at].users.is_empty() && groups[at].users.len() <= MOST_OWNERS;
        if !is_known || !follows(&groups[first], &groups[second]) {
            return;
        }
        let is_owner = |id: ThreadId| seat(id).is_some_and(|(position, _)| owners.contains(&(position as u32)));
        if groups[at].users.iter().all(|user| is_owner(user.0)) {
            names[at] = Some(owners);
        }
    };
    for at in 1..groups.len() {
        of_neighbour(names, at, at - 1);
    }
    for at in (1..groups.len()).rev() {
        of_neighbour(names, at - 1, at);
    }
}

/// Takes groups one after the other.
struct Sorter<'s> {
    nodes: usize,
    home_share: f64,
    seat: Seat<'s>,
    owners: Owners,
    parts: BTreeMap<Key, usize>,
    /// Most groups have the key of the one before.
    last: Option<(Key, usize)>,
}

impl Sorter<'_> {
    fn count(&mut self, weighed: &Weighed) {
        let Weighed { process, load, samples, .. } = *weighed;
        match self.owners.seen.last_mut() {
            Some(last) if last.0 == process => (last.1, last.2) = (last.1 + load, last.2 + samples),
            _ => self.owners.seen.push((process, load, samples)),
        }
    }

    fn add_to_part(&mut self, weighed: &Weighed, names: Names) -> usize {
        let at_home = |home: &NodeIndex| weighed.pages_on(*home) as f64 >= self.home_share * weighed.resident as f64;
        let home = weighed.home.filter(at_home).map_or(self.nodes as u32, |home| home.0 as u32);
        let at = self.part((names, home, weighed.movable));
        let part = &mut self.owners.parts[at];
        let mut others = std::mem::take(&mut part.others);
        weighed.accesses.iter().for_each(|&(node, per_s)| add(&mut others, node.0, sound(per_s)));
        for &(id, per_s) in &weighed.group.users {
            let Some((position, node)) = (self.seat)(id) else { continue };
            if let Some(user) = part.users.iter_mut().find(|user| user.0 == position) {
                user.1 += sound(per_s);
                others.iter_mut().filter(|other| other.0 == node.0).for_each(|other| other.1 -= sound(per_s));
            }
        }
        others.iter_mut().for_each(|other| other.1 = other.1.max(0.0));
        part.others = others;
        part.resident += weighed.resident as f64;
        part.huge += weighed.huge_share() * weighed.resident as f64;
        part.samples += weighed.samples;
        weighed.pages().for_each(|(node, pages)| add(&mut part.pages, node.0, pages as f64));
        at
    }

    fn part(&mut self, key: Key) -> usize {
        if let Some((last, at)) = self.last
            && last == key
        {
            return at;
        }
        let parts = &mut self.owners.parts;
        let at = *self.parts.entry(key).or_insert_with(|| {
            let users = key.0.iter().filter(|&&name| name != NOBODY).map(|&name| (name as usize, 0.0)).collect();
            let (others, pages, movable) = (vec![], vec![], key.2);
            parts.push(Part { users, others, pages, resident: 0.0, huge: 0.0, samples: 0.0, movable });
            parts.len() - 1
        });
        self.last = Some((key, at));
        at
    }

    fn add_to_common(&mut self, weighed: &Weighed) -> usize {
        let (process, nodes) = (weighed.process, self.nodes);
        let all = &mut self.owners.common;
        // Groups come in the order of processes.
        if all.last().is_none_or(|last| last.process != process) {
            let row = || vec![0.0; nodes];
            all.push(Common { process, movable_per_s: 0.0, fixed_per_s: 0.0, samples: 0.0, pages: row(), huge: 0.0 });
        }
        let at = all.len() - 1;
        let common = &mut all[at];
        if weighed.movable {
            common.movable_per_s += weighed.load;
            weighed.pages().for_each(|(node, pages)| common.pages[node.0] += pages as f64);
            common.huge += weighed.huge_share() * weighed.resident as f64;
        } else {
            common.fixed_per_s += weighed.load;
        }
        common.samples += weighed.samples;
        at
    }
}

/// Adds to the entry of a node.
fn add(row: &mut Vec<(usize, f64)>, node: usize, value: f64) {
    match row.iter_mut().find(|entry| entry.0 == node) {
        Some(entry) => entry.1 += value,
        None => row.push((node, value)),
    }
}
