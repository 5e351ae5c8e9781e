// SPDX-License-Identifier: GPL-2.0-only
//! Simulated annealing of a mapping by moves and swaps.
//!
//! A step proposes a random thread to go to the place of a thread it shares with, or to any place, to a random slot there: a
//! move if the slot is free, else a swap with who holds it. Its change of cost takes O(degree). The temperature falls
//! geometrically between two multiples of the mean rise of cost that proposals at the start would cause.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::placement::Placement;
use super::problem::Problem;
use crate::anneal::{below, uniform};

/// How long and how hot.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// First and last temperature, in mean rises of cost.
    pub hot: f64,
    pub cold: f64,
    /// Proposals.
    pub steps: u64,
}

/// Annealing that can be run in chunks.
pub struct Annealing {
    now: Placement,
    best: Vec<u32>,
    best_cost: f64,
    /// `now` is better than `best`, which is not copied yet.
    unsaved: bool,
    temperature: f64,
    cooling: f64,
    left: u64,
    rng: Pcg64,
}

enum Step {
    Move { thread: usize, to: usize },
    Swap { first: usize, second: usize },
}

/// Ends of edges that cost as much to look at as the rest of a step.
const ENDS: u64 = 32;
/// Proposals from which the mean rise of cost is taken.
const SAMPLES: u64 = 256;

impl Annealing {
    /// Annealing from `start`. The samples that set the temperatures count as steps of it.
    pub fn new(problem: &Problem, start: Placement, schedule: Schedule, seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let samples = SAMPLES.min(schedule.steps);
        let mut rises = (0.0, 0u64);
        for _ in 0..samples {
            let change = propose(problem, &start, &mut rng).map_or(0.0, |step| change_of(problem, &start, &step));
            if change > problem.rounding {
                rises = (rises.0 + change, rises.1 + 1);
            }
        }
        let mean = if rises.1 == 0 { 0.0 } else { rises.0 / rises.1 as f64 };
        let left = schedule.steps - samples;
        let cooling = libm::pow(schedule.cold / schedule.hot, 1.0 / left.max(1) as f64);
        let (best, best_cost) = (start.place.clone(), start.cost);
        Self { now: start, best, best_cost, unsaved: false, temperature: mean * schedule.hot, cooling, left, rng }
    }

    /// Makes proposals until at least `steps` steps were made, and says how many were.
    pub fn run(&mut self, problem: &Problem, steps: u64) -> u64 {
        let mut made = 0;
        while made < steps && self.left > 0 {
            self.left -= 1;
            made += 1 + self.step(problem) / ENDS;
        }
        made
    }

    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The best mapping so far.
    pub fn best(&self) -> &[u32] {
        if self.unsaved { &self.now.place } else { &self.best }
    }

    /// Makes a proposal and says how many ends of edges it looked at.
    fn step(&mut self, problem: &Problem) -> u64 {
        self.temperature *= self.cooling;
        let Some(step) = propose(problem, &self.now, &mut self.rng) else { return 0 };
        let change = change_of(problem, &self.now, &step);
        if self.accepts(change) {
            if change > 0.0 && self.unsaved {
                self.best.copy_from_slice(&self.now.place);
                self.unsaved = false;
            }
            match step {
                Step::Move { thread, to } => self.now.shift(thread, to, change),
                Step::Swap { first, second } => self.now.swap(first, second, change),
            }
            if self.now.cost < self.best_cost - problem.rounding {
                self.best_cost = self.now.cost;
                self.unsaved = true;
            }
        }
        let degree = |thread: usize| problem.neighbours(thread).len() as u64;
        match step {
            Step::Move { thread, .. } => degree(thread),
            Step::Swap { first, second } => degree(first) + degree(second),
        }
    }

    fn accepts(&mut self, change: f64) -> bool {
        change <= 0.0 || self.temperature != 0.0 && uniform(&mut self.rng) < libm::exp(-change / self.temperature)
    }
}

fn change_of(problem: &Problem, placement: &Placement, step: &Step) -> f64 {
    match *step {
        Step::Move { thread, to } => problem.move_change(&placement.place, thread, to),
        Step::Swap { first, second } => problem.swap_change(&placement.place, first, second),
    }
}

fn propose(problem: &Problem, placement: &Placement, rng: &mut Pcg64) -> Option<Step> {
    let thread = below(rng, problem.threads());
    let from = placement.place[thread] as usize;
    let to = destination(problem, placement, thread, rng);
    if to == from || !problem.allows(thread, to) || problem.capacity[to] == 0 {
        return None;
    }
    let slot = below(rng, problem.capacity[to]);
    let Some(&second) = placement.residents[to].get(slot) else { return Some(Step::Move { thread, to }) };
    let second = second as usize;
    problem.allows(second, from).then_some(Step::Swap { first: thread, second })
}

/// The place of a thread that `thread` shares with, or any place, half of the time each.
fn destination(problem: &Problem, placement: &Placement, thread: usize, rng: &mut Pcg64) -> usize {
    let neighbours = problem.neighbours(thread);
    if !neighbours.is_empty() && rng.next_u64() & 1 == 0 {
        let neighbour = neighbours[below(rng, neighbours.len())].thread;
        let to = placement.place[neighbour as usize];
        if to != placement.place[thread] {
            return to as usize;
        }
    }
    below(rng, problem.places)
}
