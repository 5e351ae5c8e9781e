// SPDX-License-Identifier: GPL-2.0-only
//! Neighbouring page groups that the same threads use, judged as one.
//!
//! Problem: of much memory, each group is sampled once here and once there, too rarely to tell whose it is. Taken for what
//! its process has in common, it draws all threads of the process to one node. Mechanism: the *likely users* of a group
//! are the fewest threads that have [`OWNED_SHARE`] of its accesses. Neighbours with the same likely users are a run, and
//! their samples add up; the likely users own the run if the rarest of them was sampled so much more often than all
//! others together that chance does not explain it:
//!
//! ```text
//! k_least - k_others >= RUN_ERRORS sqrt(k_least + k_others)
//! ```
//!
//! Memory of one thread that all others go to as well has no such few users. Neighbours that the same thread uses most are a run
//! of its own, and that thread owns it, if it has [`LEAST_SHARE`] of its samples, [`LEAST_SAMPLES`] of them, and so many
//! more than if all used it alike that chance does not explain it:
//!
//! ```text
//! k_first - n / u >= FIRST_ERRORS sqrt(n / u (1 - 1 / u))
//! ```
//!
//! with `n` the samples of the run and `u` the number of its users: as many as would have the samples of all but the first, were they
//! alike, `1 + (sum k)^2 / sum k^2`, and two at least. What few users own goes before what one uses most.

use super::owners::{LEAST_SHARE, MOST_OWNERS, NOBODY, Names, OWNED_SHARE, Rates, Seat};
use crate::model::{PageGroup, ThreadId};
use crate::signals::sound;
use crate::users::{Ledger, Weighed};

/// Standard errors between the rarest owner's samples and those of all others; nine samples of one thread alone.
const RUN_ERRORS: f64 = 3.0;
/// Standard errors between the first user's samples and its part if all used a run alike. Of all users one always has the most, and of
/// many runs some have one that stands out.
const FIRST_ERRORS: f64 = 4.5;
/// Samples that the first user must have: as many as where it is the only one.
const LEAST_SAMPLES: f64 = RUN_ERRORS * RUN_ERRORS;
/// Users of a run that are told apart, besides the one that uses it most. What others use counts all the same.
const MOST_USERS: usize = 64;
/// Memory between neighbours in which nobody was seen yet, at most.
const RUN_GAP_BYTES: u64 = 8 << 20;

/// The run that groups which are gone through one after the other are in.
pub struct Runs<'a> {
    ledger: &'a Ledger<'a>,
    /// Where it began, and what of its groups adds up.
    run: Option<(usize, Likely)>,
    /// The run of groups that the same thread uses most, and what such runs before it gave: first group, the one after the last, owner.
    first: Option<First>,
    firsts: Vec<(usize, usize, Names)>,
    previous: Option<&'a PageGroup>,
}

impl<'a> Runs<'a> {
    /// Before the first group of a ledger.
    pub fn of(ledger: &'a Ledger<'a>) -> Self {
        Self { ledger, run: None, first: None, firsts: Vec::new(), previous: None }
    }

    /// Takes the next group, with the greatest rates of its users; `names` are the owners of those before it. If it is not of
    /// their run, that run's groups are given to its owners as far as they have none.
    pub fn next(&mut self, weighed: &Weighed<'a>, rates: &Rates, names: &mut [Option<Names>], seat: Seat) {
        let likely = Likely::of(weighed, rates);
        let is_near = self.previous.is_some_and(|previous| are_near(previous, weighed.group));
        self.previous = Some(weighed.group);
        match (&mut self.run, likely) {
            (Some((_, sum)), Some(likely)) if is_near && sum.are_the_users_of(&likely) => sum.add(&likely),
            (_, likely) => {
                self.end_run(names, seat);
                self.run = likely.map(|likely| (names.len(), likely));
            }
        }
        let first = if weighed.load > 0.0 && rates[0] > 0.0 { user_with(weighed.group, rates[0]) } else { None };
        if !self.first.as_ref().is_some_and(|known| is_near && first == Some(known.thread)) {
            self.end_first(names.len(), seat);
            self.first = first.map(|thread| First { start: names.len(), thread, samples: 0.0, seen: 0.0 });
        }
        if let Some(first) = &mut self.first {
            first.add(weighed, rates[0]);
        }
    }

    /// The same after the last group.
    pub fn end(&mut self, names: &mut [Option<Names>], seat: Seat) {
        self.end_run(names, seat);
        self.end_first(names.len(), seat);
        for (start, end, owner) in self.firsts.drain(..) {
            give(&mut names[start..end], Some(owner));
        }
    }

    fn end_run(&mut self, names: &mut [Option<Names>], seat: Seat) {
        if let Some((start, sum)) = self.run.take() {
            give(&mut names[start..], sum.owners(seat));
        }
    }

    fn end_first(&mut self, end: usize, seat: Seat) {
        let Some(first) = self.first.take() else { return };
        let groups = || (first.start..end).map(|at| self.ledger.weighed(at));
        if first.may_own() && first.stands_out(groups()) {
            let owner = seat(first.thread).map(|(at, _)| [at as u32, NOBODY, NOBODY, NOBODY]);
            self.firsts.extend(owner.map(|owner| (first.start, end, owner)));
        }
    }
}

fn are_near(previous: &PageGroup, next: &PageGroup) -> bool {
    let end = previous.id.start.saturating_add(previous.bytes);
    previous.id.process == next.id.process && next.id.start.saturating_sub(end) <= RUN_GAP_BYTES
}

fn give(names: &mut [Option<Names>], owners: Option<Names>) {
    if owners.is_some() {
        names.iter_mut().filter(|names| names.is_none()).for_each(|names| *names = owners);
    }
}

/// Stands where there is no user.
const NO_THREAD: ThreadId = ThreadId { tid: 0, start_boottime_ns: 0 };

/// The user of a group that has this rate; of several, the one with the lowest id, which comes first.
fn user_with(group: &PageGroup, rate: f64) -> Option<ThreadId> {
    group.users.iter().find(|user| sound(user.1) == rate).map(|user| user.0)
}

/// The users of a group with the greatest rates, of which `least` is the least, with them, descending; the lower id first on a tie.
fn most_frequent(group: &PageGroup, least: f64) -> [(ThreadId, f64); MOST_OWNERS] {
    let mut users = [(NO_THREAD, 0.0); MOST_OWNERS];
    for &(id, per_s) in &group.users {
        let mut next = (id, sound(per_s));
        if next.1 < least {
            continue;
        }
        for user in &mut users {
            if next.1 > user.1 || (next.1 == user.1 && next.0 < user.0) {
                std::mem::swap(user, &mut next);
            }
        }
    }
    users
}

/// The likely users of some groups with their samples, ascending by id, and the samples of all others.
#[derive(Clone, Copy, Debug)]
struct Likely {
    users: [(ThreadId, f64); MOST_OWNERS],
    count: usize,
    others: f64,
}

impl Likely {
    /// Those of a group; `None` if nobody uses it, or too many do.
    fn of(weighed: &Weighed, rates: &Rates) -> Option<Self> {
        if weighed.load <= 0.0 {
            return None;
        }
        let (mut count, mut left) = (0, 1.0);
        while left > 1.0 - OWNED_SHARE {
            if count == MOST_OWNERS || rates[count] <= 0.0 {
                return None;
            }
            left -= rates[count] / weighed.load;
            count += 1;
        }
        let samples = weighed.samples;
        let mut users = most_frequent(weighed.group, rates[count - 1]);
        users[count..].fill((NO_THREAD, 0.0));
        users[..count].iter_mut().for_each(|user| user.1 = user.1 / weighed.load * samples);
        users[..count].sort_unstable_by_key(|user| user.0);
        Some(Self { users, count, others: left.max(0.0) * samples })
    }

    fn are_the_users_of(&self, other: &Self) -> bool {
        let ids = |likely: &Self| likely.users.map(|user| user.0);
        self.count == other.count && ids(self) == ids(other)
    }

    fn add(&mut self, other: &Self) {
        self.users.iter_mut().zip(other.users).for_each(|(user, more)| user.1 += more.1);
        self.others += other.others;
    }

    fn owners(&self, seat: Seat) -> Option<Names> {
        let users = &self.users[..self.count];
        let least = users.iter().map(|user| user.1).fold(f64::INFINITY, f64::min);
        // Samples are sums of shares of them: one of nine may be a hair less.
        if least - self.others < RUN_ERRORS * libm::sqrt(least + self.others) * (1.0 - 1e-9) {
            return None;
        }
        let mut names = [NOBODY; MOST_OWNERS];
        for (slot, user) in names.iter_mut().zip(users) {
            *slot = seat(user.0)?.0 as u32;
        }
        names.sort_unstable();
        Some(names)
    }
}

/// Who uses the groups from `start` on most, their samples, and those of that thread.
#[derive(Debug)]
struct First {
    start: usize,
    thread: ThreadId,
    samples: f64,
    seen: f64,
}

impl First {
    /// Adds a group that somebody uses, this thread so often.
    fn add(&mut self, weighed: &Weighed, per_s: f64) {
        self.samples += weighed.samples;
        self.seen += per_s / weighed.load * weighed.samples;
    }

    /// Whether it was seen often enough, whoever the others are.
    fn may_own(&self) -> bool {
        self.seen >= LEAST_SAMPLES && self.seen >= LEAST_SHARE * self.samples
    }

    /// Whether it was seen more often in its groups than if all their users were alike, beyond chance.
    fn stands_out<'g>(&self, groups: impl Iterator<Item = Weighed<'g>>) -> bool {
        let mut others: Vec<(ThreadId, f64)> = Vec::new();
        for weighed in groups {
            for &(user, per_s) in weighed.group.users.iter().filter(|user| user.0 != self.thread) {
                let seen = sound(per_s) / weighed.load * weighed.samples;
                match others.binary_search_by_key(&user, |known| known.0) {
                    Ok(at) => others[at].1 += seen,
                    Err(at) if others.len() < MOST_USERS => others.insert(at, (user, seen)),
                    Err(_) => {}
                }
            }
        }
        let seen = || others.iter().map(|user| user.1);
        let (sum, squares): (f64, f64) = (seen().sum(), seen().map(|seen| seen * seen).sum());
        let alike = if squares > 0.0 { 1.0 / (1.0 + sum * sum / squares) } else { 0.5 };
        let by_chance = self.samples * alike;
        self.seen - by_chance >= FIRST_ERRORS * libm::sqrt(by_chance * (1.0 - alike))
    }
}
