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

use super::owners::{MOST_OWNERS, NOBODY, Names, OWNED_SHARE, Seat, greatest};
use super::sound;
use crate::model::{PageGroup, ThreadId};
use crate::users::{Ledger, Weighed};

/// Standard errors between the rarest owner's samples and those of all others; nine samples of one thread alone.
const RUN_ERRORS: f64 = 3.0;
/// Memory between neighbours in which nobody was seen yet, at most.
const RUN_GAP_BYTES: u64 = 8 << 20;

/// Gives the groups of each run that tells its owners, and that have none yet, to them.
pub fn join(ledger: &Ledger, names: &mut [Option<Names>], seat: Seat) {
    let mut run: Option<(usize, Likely)> = None;
    let mut previous: Option<&PageGroup> = None;
    for (at, weighed) in ledger.iter().enumerate() {
        let likely = Likely::of(&weighed);
        let is_near = previous.is_some_and(|previous| are_near(previous, weighed.group));
        match (&mut run, likely) {
            (Some((_, sum)), Some(likely)) if is_near && sum.are_the_users_of(&likely) => sum.add(&likely),
            (_, likely) => {
                if let Some((start, sum)) = run.take() {
                    give(&mut names[start..at], &sum, seat);
                }
                run = likely.map(|likely| (at, likely));
            }
        }
        previous = Some(weighed.group);
    }
    if let Some((start, sum)) = run {
        give(&mut names[start..], &sum, seat);
    }
}

fn are_near(previous: &PageGroup, next: &PageGroup) -> bool {
    let end = previous.id.start.saturating_add(previous.bytes);
    previous.id.process == next.id.process && next.id.start.saturating_sub(end) <= RUN_GAP_BYTES
}

fn give(names: &mut [Option<Names>], likely: &Likely, seat: Seat) {
    if let Some(owners) = likely.owners(seat) {
        names.iter_mut().filter(|names| names.is_none()).for_each(|names| *names = Some(owners));
    }
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
    fn of(weighed: &Weighed) -> Option<Self> {
        let all_users = &weighed.group.users;
        if weighed.load <= 0.0 || all_users.is_empty() {
            return None;
        }
        // Most groups of many users have none: told by the rates alone, in the same order of sums as below.
        let mut left = 1.0;
        for rate in greatest::<MOST_OWNERS>(weighed.group) {
            left -= if left > 1.0 - OWNED_SHARE { rate / weighed.load } else { 0.0 };
        }
        if left > 1.0 - OWNED_SHARE {
            return None;
        }
        let nobody = ThreadId { tid: 0, start_boottime_ns: 0 };
        let (mut users, mut count, mut left) = ([(nobody, 0.0); MOST_OWNERS], 0, 1.0);
        while left > 1.0 - OWNED_SHARE {
            let taken = |id: ThreadId| users[..count].iter().any(|user: &(ThreadId, f64)| user.0 == id);
            let free = all_users.iter().filter(|user| !taken(user.0));
            let next = free.max_by(|a, b| sound(a.1).total_cmp(&sound(b.1)).then(b.0.cmp(&a.0)))?;
            let share = sound(next.1) / weighed.load;
            if count == MOST_OWNERS || share <= 0.0 {
                return None;
            }
            users[count] = (next.0, share);
            count += 1;
            left -= share;
        }
        let samples = sound(weighed.group.samples);
        users[..count].iter_mut().for_each(|user| user.1 *= samples);
        users[..count].sort_by_key(|user| user.0);
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
