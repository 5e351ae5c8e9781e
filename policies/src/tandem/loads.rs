// SPDX-License-Identifier: GPL-2.0-only
//! The accesses to each memory while a plan gives page groups new places, and what that does to the waits.
//!
//! Measured waits ([`Problem::knee`]) count for every move. Assumed ones may be wrong by a lot, and only spread memory that several
//! nodes use alike: from a memory to one that is as near to its users.

use super::plan::Source;
use super::problem::Problem;
use crate::knee::{Knee, Load};
use crate::users::Weighed;

/// How much farther a memory may be for memory that is spread by assumption.
const AS_NEAR: f64 = 1.05;

/// The accesses to each memory while pages are given new places.
pub struct Loads<'p> {
    /// What accesses wait; `None`: nobody does.
    knee: Option<&'p Knee>,
    /// Whether that was measured.
    is_measured: bool,
    now: Vec<Load>,
    /// What one more access that is waited for costs, waits of the others included.
    marginal_ns: Vec<f64>,
    /// Groups that went.
    gone: usize,
    /// By owner, the memory with the least latency and wait when so many had gone.
    best: Vec<(usize, Option<usize>)>,
}

impl<'p> Loads<'p> {
    /// As they are.
    pub fn of(problem: &'p Problem) -> Self {
        let mut loads = Self {
            knee: problem.knee.as_ref().or(problem.assumed_knee.as_ref()),
            is_measured: problem.knee.is_some(),
            now: problem.loads.clone(),
            marginal_ns: vec![0.0; problem.nodes],
            gone: 0,
            best: vec![],
        };
        (0..problem.nodes).for_each(|node| loads.weigh(node));
        loads
    }

    /// Whether some accesses wait, so that it can pay to spread memory.
    pub fn is_felt(&self) -> bool {
        self.knee.is_some()
    }

    /// Works out what one more access to a memory costs.
    fn weigh(&mut self, node: usize) {
        let Some(knee) = self.knee else { return };
        let load = self.now[node];
        let more = Load { per_s: 1e-3 * load.per_s + 1.0, waited_per_s: 1e-3 * load.waited_per_s + 1.0 };
        self.marginal_ns[node] = (knee.cost(node, load.plus(more, 1.0)) - knee.cost(node, load)) / more.waited_per_s;
    }

    /// The `best` memory of an owner; as told before if nothing went since.
    pub fn best_of(&mut self, owner: usize, best: impl FnOnce(&Self) -> Option<usize>) -> Option<usize> {
        match self.best.get(owner) {
            Some(&(told_at, known)) if told_at == self.gone => known,
            _ => {
                let told = best(self);
                if self.best.len() <= owner {
                    self.best.resize(owner + 1, (usize::MAX, None));
                }
                self.best[owner] = (self.gone, told);
                told
            }
        }
    }

    /// The memory with the least latency and wait.
    pub fn best_for(&self, source: &Source, memory_of: &[Option<usize>]) -> Option<usize> {
        let price = |node: usize| source.latency_ns[node] + self.marginal_ns[node];
        memory_of.iter().flatten().copied().min_by(|&a, &b| price(a).total_cmp(&price(b)).then(a.cmp(&b)))
    }

    /// Waiting that is saved when a group whose accesses have so long a latency now goes to a memory, in ns per second; `None` if
    /// waits are assumed, and it goes for less waiting but would be farther from its users.
    pub fn relief(&self, weighed: &Weighed, source: &Source, stay_ns: f64, to: usize, for_relief: bool) -> Option<f64> {
        if !self.is_measured && !for_relief {
            return Some(0.0);
        }
        let is_near = self.is_measured || source.latency_ns[to] <= AS_NEAR * stay_ns;
        is_near.then(|| self.saved(weighed, source.scale, to))
    }

    fn saved(&self, weighed: &Weighed, scale: f64, to: usize) -> f64 {
        let Some(knee) = self.knee else { return 0.0 };
        let cost = |node: usize, load: Load, sign: f64| {
            knee.cost(node, self.now[node]) - knee.cost(node, self.now[node].plus(load, sign))
        };
        let (mut saved, mut arriving) = (0.0, Load::default());
        for (node, load) in weighed.parts().filter(|(node, _)| node.0 != to) {
            let load = Load { per_s: load, waited_per_s: load * scale };
            saved += cost(node.0, load, -1.0);
            arriving = arriving.plus(load, 1.0);
        }
        saved + cost(to, arriving, 1.0)
    }

    /// A group goes to a memory.
    pub fn go(&mut self, weighed: &Weighed, scale: f64, to: usize) {
        for (node, load) in weighed.parts().filter(|(node, _)| node.0 != to) {
            let load = Load { per_s: load, waited_per_s: load * scale };
            self.now[node.0] = self.now[node.0].plus(load, -1.0);
            self.now[to] = self.now[to].plus(load, 1.0);
            self.weigh(node.0);
        }
        self.weigh(to);
        self.gone += 1;
    }
}

#[cfg(test)]
mod tests;
