// SPDX-License-Identifier: GPL-2.0-only
//! Robust tabu search (Taillard 1991), with moves besides swaps where places have room.
//!
//! An iteration makes the best change of all that are not tabu. A change is tabu if it takes every thread it moves back to a
//! place that this thread left less than a random number of iterations ago; a tabu change that beats the best mapping is made
//! all the same, and so is one whose threads have not been at these places for very long. A table of what each thread would
//! cost at each place makes the change of a swap O(1).

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::placement::Placement;
use super::problem::Problem;
use crate::anneal::below;

/// Most threads for which an iteration, which looks at all pairs, pays.
pub const MOST_THREADS: usize = 128;
/// Changes looked at that cost as much as a step of annealing.
const LOOKS: u64 = 16;

/// Tabu search that can be run in chunks.
pub struct Tabu {
    now: Placement,
    best: Vec<u32>,
    best_cost: f64,
    /// Cost by thread and place while the others stay.
    pulls: Vec<f64>,
    /// Weight by thread and thread.
    weight: Vec<f64>,
    /// Iteration until which a thread may not go back to a place.
    until: Vec<i64>,
    iteration: i64,
    left: u64,
    rng: Pcg64,
}

#[derive(Clone, Copy)]
struct Change {
    cost: f64,
    thread: usize,
    to: usize,
    partner: Option<usize>,
}

impl Tabu {
    /// Search from `start` for `steps` steps.
    pub fn new(problem: &Problem, start: Placement, steps: u64, seed: u64) -> Self {
        let threads = problem.threads();
        let mut weight = vec![0.0; threads * threads];
        let mut pulls = Vec::with_capacity(threads * problem.places);
        for thread in 0..threads {
            pulls.extend(problem.pulls(&start.place, thread, |_| true));
            for neighbour in problem.neighbours(thread) {
                weight[thread * threads + neighbour.thread as usize] = neighbour.weight;
            }
        }
        // Places never left count as left long ago, each at another time, so that age cannot make all change at once.
        let mut rng = Pcg64::seed_from_u64(seed);
        let span = threads * problem.places;
        let until = (0..span).map(|_| -(below(&mut rng, span.max(1)) as i64)).collect();
        let (best, best_cost) = (start.place.clone(), start.cost);
        Self { now: start, best, best_cost, pulls, weight, until, iteration: 0, left: steps, rng }
    }

    /// Makes whole iterations until at least `steps` steps were made, and says how many were.
    pub fn run(&mut self, problem: &Problem, steps: u64) -> u64 {
        let mut made = 0;
        while made < steps && self.left > 0 {
            let price = 1 + self.iterate(problem) / LOOKS;
            self.left = self.left.saturating_sub(price);
            made += price;
        }
        made
    }

    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The best mapping so far.
    pub fn best(&self) -> &[u32] {
        &self.best
    }

    fn iterate(&mut self, problem: &Problem) -> u64 {
        self.iteration += 1;
        let mut looked_at = 0;
        let mut best: Option<Change> = None;
        let mut overdue: Option<Change> = None;
        for thread in 0..problem.threads() {
            self.swaps(problem, thread, &mut looked_at, &mut best, &mut overdue);
            self.moves(problem, thread, &mut looked_at, &mut best, &mut overdue);
        }
        if let Some(change) = overdue.or(best) {
            self.make(problem, change);
        }
        looked_at
    }

    fn swaps(
        &self,
        problem: &Problem,
        thread: usize,
        looked_at: &mut u64,
        best: &mut Option<Change>,
        overdue: &mut Option<Change>,
    ) {
        let places = problem.places;
        let here = self.now.place[thread] as usize;
        let pulls = &self.pulls[thread * places..][..places];
        let weight = &self.weight[thread * problem.threads()..][..problem.threads()];
        for (other, &weight) in weight.iter().enumerate().skip(thread + 1) {
            let there = self.now.place[other] as usize;
            if there == here || !problem.allows(thread, there) || !problem.allows(other, here) {
                continue;
            }
            *looked_at += 1;
            let back = &self.pulls[other * places..][..places];
            let cost =
                pulls[there] - pulls[here] + back[here] - back[there] + weight * problem.swap_correction(here, there);
            let until = [self.until[thread * places + there], self.until[other * places + here]];
            self.consider(Change { cost, thread, to: there, partner: Some(other) }, until, best, overdue);
        }
    }

    fn moves(
        &self,
        problem: &Problem,
        thread: usize,
        looked_at: &mut u64,
        best: &mut Option<Change>,
        overdue: &mut Option<Change>,
    ) {
        let here = self.now.place[thread] as usize;
        for to in 0..problem.places {
            if to == here || !self.now.has_room(problem, to) || !problem.allows(thread, to) {
                continue;
            }
            *looked_at += 1;
            let at = thread * problem.places;
            let cost = self.pulls[at + to] - self.pulls[at + here];
            self.consider(Change { cost, thread, to, partner: None }, [self.until[at + to]; 2], best, overdue);
        }
    }

    fn consider(&self, change: Change, until: [i64; 2], best: &mut Option<Change>, overdue: &mut Option<Change>) {
        let patience = (self.until.len() as i64).saturating_mul(3);
        let better = |kept: &Option<Change>| kept.is_none_or(|kept| change.cost < kept.cost);
        if until.iter().all(|&until| until < self.iteration - patience) && better(overdue) {
            *overdue = Some(change);
        }
        let tabu = until.iter().all(|&until| until > self.iteration);
        if (!tabu || self.now.cost + change.cost < self.best_cost) && better(best) {
            *best = Some(change);
        }
    }

    fn make(&mut self, problem: &Problem, change: Change) {
        let Change { cost, thread, to, partner } = change;
        let from = self.now.place[thread] as usize;
        problem.carry(&mut self.pulls, thread, from, to);
        self.forbid(problem, thread, from);
        match partner {
            Some(partner) => {
                problem.carry(&mut self.pulls, partner, to, from);
                self.forbid(problem, partner, to);
                self.now.swap(thread, partner, cost);
            }
            None => self.now.shift(thread, to, cost),
        }
        if self.now.cost < self.best_cost - problem.rounding {
            self.best_cost = self.now.cost;
            self.best.copy_from_slice(&self.now.place);
        }
    }

    /// Keeps `thread` away from `place` for 0.9 to 1.1 times as many iterations as there are threads.
    fn forbid(&mut self, problem: &Problem, thread: usize, place: usize) {
        let threads = problem.threads();
        let tenure = threads * 9 / 10 + below(&mut self.rng, threads / 5 + 2);
        self.until[thread * problem.places + place] = self.iteration + tenure as i64;
    }
}
