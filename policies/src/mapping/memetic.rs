// SPDX-License-Identifier: GPL-2.0-only
//! A population of mappings, one thread a place, that are crossed and improved by short tabu searches.
//!
//! Two members of the population have a child: what they agree on stays, every other thread goes to the place of one of its parents
//! if that is free, else to any free place. Tabu search improves it ([`super::exchange`]) until it finds nothing better for as many
//! iterations as there are threads. The child takes the place of the worst member if it costs less and is no twin of another one. When children
//! have not changed the population for long, all but the best mapping are replaced by new ones, some made from the best by random
//! exchanges.
//!
//! After: U. Benlic, J.-K. Hao, "Memetic search for the quadratic assignment problem", Expert Systems with Applications
//! 42 (2015), 584-595. Sizes are ours.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::changes::{Dense, Number, is_exact_in_f32};
use super::exchange::Exchanges;
use super::graph::shuffled;
use super::problem::Problem;
use crate::anneal::below;

/// Mappings in a population.
const MEMBERS: usize = 15;
/// Children in a row that change nothing before a new population begins.
const PATIENCE: usize = 2 * MEMBERS;
/// Part of the threads that a new member made from the best mapping exchanges.
const MUTATION: f64 = 0.5;
/// Mappings that differ in less than this part of their threads are twins.
const TWIN: f64 = 0.01;

/// Memetic search that can be run in chunks.
pub struct Memetic(Precision);

enum Precision {
    Single(Evolution<f32>),
    Double(Evolution<f64>),
}

struct Evolution<F> {
    dense: Dense<F>,
    rounding: f64,
    members: Vec<Member>,
    /// Members of this population that were made without parents.
    born: usize,
    populations: usize,
    /// Children in a row that changed nothing.
    barren: usize,
    work: Exchanges<F>,
    is_ready: bool,
    best: Member,
    /// A mapping that costs no more is good enough.
    goal: f64,
    rng: Pcg64,
}

#[derive(Clone)]
struct Member {
    cost: f64,
    place: Vec<u32>,
}

impl Memetic {
    /// A search that begins with `start`, place by thread, and ends with a mapping that costs `goal` or less.
    pub fn new(problem: &Problem, start: &[u32], goal: f64, seed: u64) -> Self {
        Self(if is_exact_in_f32(problem) {
            Precision::Single(Evolution::new(problem, start, goal, seed))
        } else {
            Precision::Double(Evolution::new(problem, start, goal, seed))
        })
    }

    /// Makes whole iterations until at least `steps` steps were made, and says how many were.
    pub fn run(&mut self, steps: u64) -> u64 {
        match &mut self.0 {
            Precision::Single(evolution) => evolution.run(steps),
            Precision::Double(evolution) => evolution.run(steps),
        }
    }

    /// Whether the goal is reached.
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Precision::Single(evolution) => evolution.is_over(),
            Precision::Double(evolution) => evolution.is_over(),
        }
    }

    /// The best mapping so far: of the threads, then of the free places.
    pub fn best(&self) -> &[u32] {
        match &self.0 {
            Precision::Single(evolution) => evolution.best(),
            Precision::Double(evolution) => evolution.best(),
        }
    }
}

impl<F: Number> Evolution<F> {
    fn new(problem: &Problem, start: &[u32], goal: f64, seed: u64) -> Self {
        let dense = Dense::new(problem);
        let mut place = start.to_vec();
        let mut is_free = vec![true; dense.size];
        for &at in start {
            is_free[at as usize] = false;
        }
        place.extend((0..dense.size as u32).filter(|&at| is_free[at as usize]));
        let best = Member { cost: dense.cost(&place), place };
        Self {
            work: Exchanges::new(&dense, best.place.clone(), problem.rounding),
            is_ready: false,
            dense,
            rounding: problem.rounding,
            members: Vec::new(),
            born: 1,
            populations: 0,
            barren: 0,
            best,
            goal: goal + problem.rounding,
            rng: Pcg64::seed_from_u64(seed),
        }
    }

    fn run(&mut self, steps: u64) -> u64 {
        // A look at all pairs costs about as much as so many changes of a sparse mapping.
        let price = 1 + (self.dense.size * self.dense.size) as u64 / 64;
        let mut made = 0;
        while made < steps && !self.is_over() {
            made += price;
            if !self.is_ready {
                self.is_ready = self.work.prepare();
            } else if !self.work.step(&mut self.rng) || self.work.stale > self.dense.size {
                self.end_work();
            }
        }
        made
    }

    fn is_over(&self) -> bool {
        self.best.cost.min(self.work.best_cost) <= self.goal
    }

    fn best(&self) -> &[u32] {
        if self.work.best_cost < self.best.cost { &self.work.best } else { &self.best.place }
    }

    /// Takes in what the tabu search found, and begins the next one.
    fn end_work(&mut self) {
        // From scratch: what was found by sums of changes may be off by rounding.
        let place = std::mem::take(&mut self.work.best);
        let found = Member { cost: self.dense.cost(&place), place };
        if found.cost < self.best.cost - self.rounding {
            self.best = found.clone();
        }
        self.admit(found);
        if self.barren > PATIENCE {
            self.members = vec![self.best.clone()];
            (self.born, self.barren) = (1, 0);
            self.populations += 1;
        }
        let next = if self.born < MEMBERS || self.members.len() < 2 {
            self.born += 1;
            self.newcomer()
        } else {
            self.child()
        };
        self.work = Exchanges::new(&self.dense, next, self.rounding);
        self.is_ready = false;
    }

    fn admit(&mut self, found: Member) {
        let differ = |member: &Member| member.place.iter().zip(&found.place).filter(|(a, b)| a != b).count();
        let twin = |member: &Member| {
            (member.cost - found.cost).abs() <= self.rounding || (differ(member) as f64) < TWIN * self.dense.size as f64
        };
        let worst = |members: &[Member]| {
            (0..members.len()).max_by(|&a, &b| members[a].cost.total_cmp(&members[b].cost)).expect("there are members")
        };
        let at = match self.members.iter().position(twin) {
            Some(at) => at,
            None if self.members.len() < MEMBERS => {
                self.barren = 0;
                return self.members.push(found);
            }
            None => worst(&self.members),
        };
        if found.cost < self.members[at].cost - self.rounding {
            self.members[at] = found;
            self.barren = 0;
        } else {
            self.barren += 1;
        }
    }

    /// Anything in the first population and in every other one after it; else the best mapping with many exchanges.
    fn newcomer(&mut self) -> Vec<u32> {
        let size = self.dense.size;
        if self.populations.is_multiple_of(2) {
            return shuffled(size, &mut self.rng).into_iter().map(|at| at as u32).collect();
        }
        let mut place = self.best.place.clone();
        for _ in 0..(MUTATION * size as f64) as usize {
            let (a, b) = (below(&mut self.rng, size), below(&mut self.rng, size));
            place.swap(a, b);
        }
        place
    }

    /// What two different members make together.
    fn child(&mut self) -> Vec<u32> {
        const NOWHERE: u32 = u32::MAX;
        let size = self.dense.size;
        let first = below(&mut self.rng, self.members.len());
        let second = (first + 1 + below(&mut self.rng, self.members.len() - 1)) % self.members.len();
        let parents = [&self.members[first].place, &self.members[second].place];
        let agreed = |thread: usize| parents[0][thread] == parents[1][thread];
        let mut child: Vec<u32> =
            (0..size).map(|thread| if agreed(thread) { parents[0][thread] } else { NOWHERE }).collect();
        let mut is_free = vec![true; size];
        for &at in child.iter().filter(|&&at| at != NOWHERE) {
            is_free[at as usize] = false;
        }
        let order = shuffled(size, &mut self.rng);
        for &thread in &order {
            if child[thread] != NOWHERE {
                continue;
            }
            let mut wanted = parents.map(|parent| parent[thread]);
            if self.rng.next_u64() & 1 == 0 {
                wanted.reverse();
            }
            if let Some(at) = wanted.into_iter().find(|&at| is_free[at as usize]) {
                child[thread] = at;
                is_free[at as usize] = false;
            }
        }
        let mut left: Vec<u32> = (0..size as u32).filter(|&at| is_free[at as usize]).collect();
        for &thread in &order {
            if child[thread] == NOWHERE {
                child[thread] = left.swap_remove(below(&mut self.rng, left.len()));
            }
        }
        child
    }
}
