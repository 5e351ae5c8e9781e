// SPDX-License-Identifier: GPL-2.0-only
//! The search for a mapping, in rounds without end, that can be stopped and continued after any number of steps.
//!
//! | problem | rounds |
//! |---|---|
//! | up to 10 threads | branch and bound from a greedy mapping; once given up as below |
//! | one thread a place | memetic search, one round without end |
//! | up to 256 threads, fewer than two a place | annealing from hot, then tabu search from its result (up to 128 threads); each round longer than the one before |
//! | up to 256 threads | first four recursive bipartitions, each annealed at low temperature; then as above |
//! | more | recursive bipartitions, each annealed at low temperature; every third round anneals the best mapping for longer instead |
//!
//! The first round also looks at the present mapping. What a round does depends only on its number, on the seed and on
//! the best mapping at its start, so the result after N steps does not depend on how they were cut into chunks.

use super::annealing::{Annealing, Schedule};
use super::division::Division;
use super::exact::{self, Exact};
use super::memetic::Memetic;
use super::placement::Placement;
use super::problem::Problem;
use super::request::{Request, RequestError};
use super::tabu::{self, Tabu};
use super::{Mapping, Method};

/// Most threads that are annealed from hot.
const MIDDLE: usize = 256;
/// Most threads for which tabu search finds more in the same time than annealing.
const TABU: usize = 48;
/// Rounds of bipartition in the middle.
const DIVIDED_ROUNDS: u32 = 4;
/// Temperatures that forget the start.
const HOT: [f64; 2] = [0.3, 0.005];
/// Temperatures that keep the start but for its defects.
const LOW: [f64; 2] = [0.1, 0.01];

/// A search for a mapping.
pub struct Search {
    problem: Problem,
    present: Option<Vec<u32>>,
    bound: f64,
    seed: u64,
    round: u32,
    phase: Phase,
    best: Placement,
    method: Method,
    optimal: bool,
    steps: u64,
    asked: u64,
}

enum Phase {
    Exact(Exact),
    Divide(Division),
    Anneal(Annealing, Method),
    Tabu(Tabu),
    Memetic(Box<Memetic>),
    /// Nothing better can be found.
    Over,
}

impl Search {
    /// A search that has made no step yet; its best mapping is the present one, else one that keeps all rules.
    ///
    /// # Errors
    /// [`RequestError`] says what is wrong with the request.
    pub fn new(request: &Request, seed: u64) -> Result<Self, RequestError> {
        let (problem, start) = request.problem()?;
        let present: Option<Vec<u32>> =
            request.present.as_ref().map(|present| present.iter().map(|&place| place as u32).collect());
        Ok(Self::of(problem, start, present, seed))
    }

    pub(super) fn of(problem: Problem, start: Placement, present: Option<Vec<u32>>, seed: u64) -> Self {
        let method = if present.as_ref() == Some(&start.place) { Method::Present } else { Method::Greedy };
        let bound = problem.lower_bound();
        let mut search = Self {
            present,
            bound,
            seed,
            round: 0,
            phase: Phase::Over,
            best: start,
            method,
            optimal: false,
            steps: 0,
            asked: 0,
            problem,
        };
        search.phase = search.first_phase();
        search
    }

    /// Makes `steps` more steps, or somewhat more where a piece of work cannot be cut (at most a look at everything that is
    /// shared): what is made too much is made less in the next chunk. A step costs about as much in all methods.
    pub fn run(&mut self, steps: u64) {
        self.asked = self.asked.saturating_add(steps);
        while self.steps < self.asked && !self.is_over() {
            let left = self.asked - self.steps;
            let problem = &self.problem;
            let (made, over) = match &mut self.phase {
                Phase::Exact(exact) => (exact.run(problem, left), exact.is_over()),
                Phase::Divide(division) => (division.run(problem, left), division.is_over()),
                Phase::Anneal(annealing, _) => (annealing.run(problem, left), annealing.is_over()),
                Phase::Tabu(tabu) => (tabu.run(problem, left), tabu.is_over()),
                Phase::Memetic(memetic) => (memetic.run(left), memetic.is_over()),
                Phase::Over => (0, false),
            };
            self.steps += made;
            if over {
                self.next_phase();
            }
        }
    }

    /// Whether more steps cannot find anything better.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Steps made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The best mapping so far.
    pub fn best(&self) -> Mapping {
        let (mut best, mut method) = (self.best.clone(), self.method);
        if let Some((found, by)) = self.found() {
            let cost = self.problem.cost(found);
            if cost < best.cost - self.problem.rounding {
                (best, method) = (Placement::new(&self.problem, found), by);
            }
        }
        if let (Some(present), false) = (&self.present, method == Method::Present) {
            best.go_home(&self.problem, present);
        }
        let proven = self.optimal || best.cost <= self.bound + self.problem.rounding;
        Mapping {
            places: best.place.iter().map(|&place| place as usize).collect(),
            cost: best.cost,
            bound: if proven { best.cost } else { self.bound },
            optimal: proven,
            method,
            steps: self.steps,
        }
    }

    /// The best mapping of the present phase.
    fn found(&self) -> Option<(&[u32], Method)> {
        match &self.phase {
            Phase::Exact(exact) => Some((exact.best(), Method::Exact)),
            Phase::Anneal(annealing, method) => Some((annealing.best(), *method)),
            Phase::Tabu(tabu) => Some((tabu.best(), Method::Tabu)),
            Phase::Memetic(memetic) => Some((&memetic.best()[..self.problem.threads()], Method::Memetic)),
            Phase::Divide(_) | Phase::Over => None,
        }
    }

    fn first_phase(&mut self) -> Phase {
        let problem = &self.problem;
        let fixed = problem.ends() == 0 && problem.own.is_empty() || problem.places < 2 || problem.threads() == 0;
        if fixed || self.best.cost <= self.bound + problem.rounding {
            self.optimal = true;
            Phase::Over
        } else if problem.threads() <= exact::MOST_THREADS {
            Phase::Exact(Exact::new(problem, &self.best.place))
        } else {
            self.round_phase()
        }
    }

    fn next_phase(&mut self) {
        let found = self.found().map(|(place, method)| (Placement::new(&self.problem, place), method));
        let ended = std::mem::replace(&mut self.phase, Phase::Over);
        self.phase = match (ended, found) {
            (Phase::Divide(division), _) => match division.placement(&self.problem) {
                Some(placement) => self.low(placement, self.short(), Method::Multilevel),
                None => self.next_round(),
            },
            (Phase::Exact(exact), Some((placement, method))) => {
                self.keep(placement, method);
                self.optimal |= exact.is_proven();
                if self.optimal { Phase::Over } else { self.round_phase() }
            }
            (Phase::Anneal(_, method), Some((placement, _))) => {
                self.keep(placement.clone(), method);
                if self.optimal {
                    Phase::Over
                } else if method == Method::Annealing && self.problem.threads() <= tabu::MOST_THREADS {
                    Phase::Tabu(Tabu::new(&self.problem, placement, self.tabu_steps(), self.seed_of(1)))
                } else {
                    self.next_round()
                }
            }
            (Phase::Tabu(_) | Phase::Memetic(_), Some((placement, method))) => {
                self.keep(placement, method);
                if self.optimal { Phase::Over } else { self.next_round() }
            }
            _ => Phase::Over,
        };
    }

    fn keep(&mut self, placement: Placement, method: Method) {
        if placement.cost < self.best.cost - self.problem.rounding {
            (self.best, self.method) = (placement, method);
        }
        self.optimal |= self.best.cost <= self.bound + self.problem.rounding;
    }

    fn next_round(&mut self) -> Phase {
        self.round += 1;
        self.round_phase()
    }

    fn round_phase(&self) -> Phase {
        let threads = self.problem.threads();
        if self.problem.is_one_to_one() {
            let memetic = Memetic::new(&self.problem, &self.best.place, self.bound, self.seed_of(0));
            return Phase::Memetic(Box::new(memetic));
        }
        let large = threads > MIDDLE;
        let divides = large || threads >= 2 * self.problem.places;
        if self.round == 0 && self.present.is_some() && divides {
            return self.low(self.best.clone(), self.short(), Method::Annealing);
        }
        if divides && (if large { self.round % 3 != 2 } else { self.round < DIVIDED_ROUNDS }) {
            // The first answer soon, then better ones.
            let cycles = if self.round == 0 { 2 } else { 8 };
            return Phase::Divide(Division::new(&self.problem, cycles, self.seed_of(0)));
        }
        if large {
            return self.low(self.best.clone(), self.long(), Method::Multilevel);
        }
        let schedule = Schedule { hot: HOT[0], cold: HOT[1], steps: self.long() };
        Phase::Anneal(Annealing::new(&self.problem, self.best.clone(), schedule, self.seed_of(0)), Method::Annealing)
    }

    fn low(&self, start: Placement, steps: u64, method: Method) -> Phase {
        let schedule = Schedule { hot: LOW[0], cold: LOW[1], steps };
        Phase::Anneal(Annealing::new(&self.problem, start, schedule, self.seed_of(2)), method)
    }

    /// Steps that heal the defects of a bipartition.
    fn short(&self) -> u64 {
        128 * self.problem.threads() as u64
    }

    /// Steps of this round's long annealing: twice as many as in the round before where annealing is the better half of a
    /// round, a quarter more where tabu search is.
    fn long(&self) -> u64 {
        let threads = self.problem.threads() as u64;
        let first = if self.problem.threads() > MIDDLE { 512 * threads } else { 40 * threads * threads.max(16) };
        let tabu_is_better = self.problem.threads() <= TABU;
        let longer = |steps: u64, _| if tabu_is_better { steps + steps / 4 } else { steps * 2 };
        (0..self.round.min(20)).fold(first, longer)
    }

    /// Steps of this round's tabu search.
    fn tabu_steps(&self) -> u64 {
        if self.problem.threads() <= TABU { self.long() } else { self.long() / 16 }
    }

    /// A seed for a part of this round.
    fn seed_of(&self, part: u64) -> u64 {
        self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(self.round) * 4 + part)
    }
}
