// SPDX-License-Identifier: GPL-2.0-only
//! Memory that follows threads: what it costs where they go, and which accesses change memories with it.
//!
//! All that goes along counts for the waits: a thread's own memory, what few threads share, and what a process has in common. Of two
//! threads that take everything to an idle node nobody waits less, whatever each of them would gain with its own memory.

use smallvec::SmallVec;

use super::{Change, MOST_CHANGES, State};
use crate::knee::{Knee, Load};

/// Loads of memories as changes make them.
pub struct Shifts<'s> {
    now: &'s [Load],
    /// Whether anybody waits, so that they matter.
    matter: bool,
    then: Shifted,
}

/// Loads by memory that is concerned: a few, hence on the stack, as they are asked for each change that is looked at.
pub type Shifted = SmallVec<[(usize, Load); 4]>;

impl<'s> Shifts<'s> {
    /// None yet.
    fn of(now: &'s [Load], matter: bool) -> Self {
        Self { now, matter, then: Shifted::new() }
    }

    /// Memory that rests where `rests` says goes from one node to another; `None`: it is where it rests.
    fn go(&mut self, rests: &[(usize, Load)], from: Option<usize>, to: Option<usize>) {
        if from == to || !self.matter {
            return;
        }
        for (at, sign) in [(from, -1.0), (to, 1.0)] {
            match at {
                Some(node) => {
                    let all = rests.iter().fold(Load::default(), |all, rest| all.plus(rest.1, 1.0));
                    self.add(node, all, sign);
                }
                None => rests.iter().for_each(|&(home, load)| self.add(home, load, sign)),
            }
        }
    }

    fn add(&mut self, node: usize, load: Load, sign: f64) {
        let at = self.then.iter().position(|entry| entry.0 == node).unwrap_or_else(|| {
            self.then.push((node, self.now[node]));
            self.then.len() - 1
        });
        self.then[at].1 = self.then[at].1.plus(load, sign);
    }

    /// What all wait more then.
    pub fn cost(&self, knee: &Knee) -> f64 {
        self.then.iter().map(|&(node, load)| knee.cost(node, load) - knee.cost(node, self.now[node])).sum()
    }

    /// The memories that are concerned, with their loads then.
    pub fn into_loads(self) -> Shifted {
        self.then
    }
}

impl State<'_> {
    /// Shifts of none yet.
    pub(super) fn no_shifts(&self) -> Shifts<'_> {
        Shifts::of(&self.loads, self.problem.placing_knee.is_some())
    }

    /// What the memory of threads costs more when they change places, and the accesses that change memories with it.
    pub(super) fn follow_changes<'s>(&'s self, changes: &[Change], shifts: &mut Shifts<'s>) -> f64 {
        let problem = self.problem;
        let now = |thread: usize| self.place[thread];
        let then =
            |thread: usize| changes.iter().find(|change| change.0 == thread).map_or(now(thread), |change| change.1);
        let mut cost = 0.0;
        for (number, &(thread, to)) in changes.iter().enumerate() {
            let (unknown, row) = (&problem.threads[thread], problem.row(thread));
            cost += row[to] - row[now(thread)];
            for follower in &unknown.followers {
                let memory = |node: usize| Some(problem.memory_of_follower(follower, node));
                shifts.go(&[(follower.home, follower.load)], memory(now(thread)), memory(to));
            }
            for &part in &unknown.parts {
                let shared = &problem.shared[part];
                let is_met = changes[..number].iter().any(|earlier| problem.threads[earlier.0].parts.contains(&part));
                if !is_met {
                    let (before, after) = (problem.place_shared(shared, now), problem.place_shared(shared, then));
                    cost += after.0 - before.0;
                    shifts.go(&shared.rests, before.1, after.1);
                }
            }
            cost += self.follow_to_pool(changes, number, shifts);
        }
        cost
    }

    /// The same of the pool of the thread of one change, if none before it had it.
    fn follow_to_pool<'s>(&'s self, changes: &[Change], number: usize, shifts: &mut Shifts<'s>) -> f64 {
        let problem = self.problem;
        let pool_of = |change: &Change| problem.threads[change.0].pool.map(|pool| pool.0);
        let Some(pool) = pool_of(&changes[number]) else { return 0.0 };
        if changes[..number].iter().any(|earlier| pool_of(earlier) == Some(pool)) {
            return 0.0;
        }
        let mut stay = self.stay[pool];
        let mut mine = [(0.0, &[][..], &[][..]); MOST_CHANGES];
        let mut count = 0;
        for &(thread, to) in changes.iter().filter(|change| pool_of(change) == Some(pool)) {
            let Some((_, number, per_s)) = problem.threads[thread].pool else { continue };
            let (row, from) = (&problem.pools[pool].stay[number], self.place[thread]);
            stay += row[to] - row[from];
            mine[count] = (per_s, problem.latencies.from(to), problem.latencies.from(from));
            count += 1;
        }
        let nearer = |of: usize| {
            let (per_s, then, now) = mine[of];
            then.iter().zip(now).map(move |(then, now)| per_s * (then - now))
        };
        let follow = self.follow[pool].iter().zip(nearer(0)).map(|(follow, nearer)| follow + nearer);
        let least =
            if count == 1 { least(follow) } else { least(follow.zip(nearer(1)).map(|(one, other)| one + other)) };
        let (before, after) = (memory_of_pool(self.least[pool], self.stay[pool]), memory_of_pool(least, stay));
        shifts.go(&problem.pools[pool].rests, before, after);
        least.0.min(stay) - self.least[pool].0.min(self.stay[pool])
    }

    /// The loads with all that follows threads where it goes.
    pub(super) fn take_loads_along(&mut self) {
        let problem = self.problem;
        let mut shifts = Shifts::of(&problem.loads, problem.placing_knee.is_some());
        for (unknown, &node) in problem.threads.iter().zip(&self.place) {
            for follower in &unknown.followers {
                let memory = problem.memory_of_follower(follower, node);
                shifts.go(&[(follower.home, follower.load)], None, Some(memory));
            }
        }
        for shared in &problem.shared {
            shifts.go(&shared.rests, None, problem.place_shared(shared, |user| self.place[user]).1);
        }
        for (pool, (&least, &stay)) in problem.pools.iter().zip(self.least.iter().zip(&self.stay)) {
            shifts.go(&pool.rests, None, memory_of_pool(least, stay));
        }
        let then = shifts.then;
        self.take_loads(then);
    }

    /// Takes in the loads of memories that shifts concern.
    pub(super) fn take_loads(&mut self, then: Shifted) {
        then.into_iter().for_each(|(node, load)| self.loads[node] = load);
    }
}

/// Where the memory of a pool goes, given the least cost of following to a node and that of staying; `None`: it stays.
fn memory_of_pool((follow, to): (f64, usize), stay: f64) -> Option<usize> {
    (follow < stay).then_some(to)
}

/// The least of costs by node, and the node.
pub fn least(costs: impl Iterator<Item = f64>) -> (f64, usize) {
    let all = costs.enumerate();
    all.fold((f64::INFINITY, 0), |least, (node, cost)| if cost < least.0 { (cost, node) } else { least })
}
