// SPDX-License-Identifier: GPL-2.0-only
//! The accesses to each memory while a plan gives page groups new places, and what that does to the waits.
//!
//! Measured waits ([`Problem::knee`]) count for every move. Assumed ones may be wrong by a lot, and only spread memory that several
//! nodes use alike: from a memory to one that is as near to its users. Those of the group itself must have been seen to be so: what
//! belongs to its process for want of samples may be one thread's.

use super::plan::Source;
use super::problem::Problem;
use crate::knee::{Knee, Load};
use crate::model::NodeIndex;
use crate::users::Weighed;

/// How much farther a memory may be for memory that is spread by assumption: as all samples of its owner say, and as the few of the
/// group do.
const AS_NEAR: f64 = 1.05;
const ALONE_AS_NEAR: f64 = 1.15;
/// Standard errors of the group's samples by which it may be farther still.
const ALONE_ERRORS: f64 = 2.0;

/// The accesses to each memory while pages are given new places.
pub struct Loads<'p> {
    problem: &'p Problem,
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
            problem,
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

    /// The one of `memories` with the least latency and wait.
    pub fn best_for(&self, source: &Source, memories: impl Iterator<Item = usize>) -> Option<usize> {
        let price = |node: usize| source.latency_ns[node] + self.marginal_ns[node];
        memories.min_by(|&a, &b| price(a).total_cmp(&price(b)).then(a.cmp(&b)))
    }

    /// Waiting that is saved when a group whose accesses have so long a latency now goes to a memory, in ns per second; `None` if
    /// waits are assumed, and it goes for less waiting but would be farther from its users.
    pub fn relief(&self, weighed: &Weighed, source: &Source, stay_ns: f64, to: usize, for_relief: bool) -> Option<f64> {
        if !self.is_measured && !for_relief {
            return Some(0.0);
        }
        let is_near = || source.latency_ns[to] <= AS_NEAR * stay_ns && self.is_near_alone(weighed, to);
        (self.is_measured || is_near()).then(|| self.saved(weighed, source.scale, to))
    }

    /// Whether a memory is as near to those that were seen to use a group as where it is, as far as its few samples can tell. One that a
    /// single node was seen to use may be that one's.
    fn is_near_alone(&self, weighed: &Weighed, to: usize) -> bool {
        let (mut users, mut all, mut here, mut farther, mut squares) = (0, 0.0, 0.0, 0.0, 0.0);
        for &(from, per_s) in weighed.accesses.iter().filter(|access| access.1 > 0.0) {
            let here_ns = self.latency_here_ns(weighed, from.0);
            let farther_ns = self.problem.latency_ns(from.0, to) - here_ns;
            (users, all, here) = (users + 1, all + per_s, here + per_s * here_ns);
            (farther, squares) = (farther + per_s * farther_ns, squares + per_s * farther_ns * farther_ns);
        }
        // Standard error of the mean, as everything here x accesses per second.
        let error = libm::sqrt((all * squares - farther * farther).max(0.0) / weighed.samples.max(1.0));
        users > 1 && farther - ALONE_ERRORS * error <= (ALONE_AS_NEAR - 1.0) * here
    }

    /// Latency from a node to a group where it is.
    fn latency_here_ns(&self, weighed: &Weighed, from: usize) -> f64 {
        let here = |(memory, pages): (NodeIndex, u64)| pages as f64 * self.problem.latency_ns(from, memory.0);
        weighed.pages().map(here).sum::<f64>() / weighed.resident as f64
    }

    /// How much farther a memory is from those that were seen to use a group, as a ratio to where it is.
    pub fn farther_alone(&self, weighed: &Weighed, to: usize) -> f64 {
        let latency_ns = |memory: usize| -> f64 {
            weighed.accesses.iter().map(|&(from, per_s)| per_s * self.problem.latency_ns(from.0, memory)).sum()
        };
        let here = |(node, pages): (NodeIndex, u64)| pages as f64 * latency_ns(node.0);
        let stay_ns = weighed.pages().map(here).sum::<f64>() / weighed.resident as f64;
        latency_ns(to) / stay_ns
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
