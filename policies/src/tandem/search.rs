// SPDX-License-Identifier: GPL-2.0-only
//! The search for a placement of threads: what a change of one or two threads costs, and which changes are made.
//!
//! From the present placement, moves and exchanges that cost less are made until there are none; every placement is tried
//! where there are at most [`EXACT`]; else annealing at low temperature follows, and the descent again, in which a thread
//! that went for nothing goes back, since leaving has a price. Where nodes are full, a second descent starts from where each
//! thread would go by itself. A change costs O(what the thread takes part in).

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::problem::Problem;
use super::residents::Residents;
use crate::anneal::below;
use crate::knee::{Knee, Load};

mod descent;
mod memory;

use memory::least;

/// Placements up to which all are tried.
const EXACT: u64 = 4096;
/// Nodes up to which a thread is tried on each; on more, on those that something speaks for.
pub const FEW_NODES: usize = 8;
/// Threads whose places are changed at a time, at most.
pub const MOST_CHANGES: usize = 2;
/// Gains below this share of the cost are rounding.
const ROUNDING: f64 = 1e-9;
/// Annealing: steps of a thread, and temperatures in shares of what a thread's place matters.
const STEPS_OF_THREAD: u64 = 200;
const FIRST_TEMPERATURE: f64 = 0.1;
const LAST_TEMPERATURE: f64 = 0.002;

/// A thread goes to a node.
pub type Change = (usize, usize);

/// A placement, with what is needed to tell quickly what a change costs.
#[derive(Clone, Debug)]
pub struct State<'p> {
    problem: &'p Problem,
    /// Node by thread.
    pub place: Vec<usize>,
    residents: Residents,
    /// CPUs wanted by node.
    wanted: Vec<f64>,
    /// By pool: cost of its memory where it is, and by node where it may go.
    stay: Vec<f64>,
    follow: Vec<Vec<f64>>,
    /// The least of each pool's `follow`, and its node.
    least: Vec<(f64, usize)>,
    loads: Vec<Load>,
    /// Changes that were looked at.
    pub steps: u64,
    /// Where among the movable threads a descent goes on that ran out of steps.
    next: usize,
}

/// How much is searched, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seed of random changes.
    pub seed: u64,
    /// Changes looked at, at most (a quarter more where some were random).
    pub steps: u64,
    /// The first movable thread that is looked at.
    pub first: usize,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Node by thread.
    pub place: Vec<usize>,
    /// The first movable thread for the next search: where this one ran out of steps, so that in the end all get their turn.
    pub next: usize,
}

/// The best placement for `problem` that so much effort finds.
pub fn solve(problem: &Problem, effort: Effort) -> Found {
    let Effort { seed, steps, first } = effort;
    let mut state = State::new(problem);
    if problem.movable.is_empty() {
        return Found { place: state.place, next: 0 };
    }
    state.next = first % problem.movable.len();
    let placements = problem.movable.iter().try_fold(1u64, |product, &thread| {
        product.checked_mul(problem.threads[thread].choices.len() as u64).filter(|&product| product <= EXACT.min(steps))
    });
    if placements.is_some() {
        return Found { place: state.try_all(), next: 0 };
    }
    state.search(seed, steps);
    Found { place: state.place, next: state.next }
}

impl<'p> State<'p> {
    /// The present placement.
    pub fn new(problem: &'p Problem) -> Self {
        let place: Vec<usize> = problem.threads.iter().map(|thread| thread.present).collect();
        Self::at(problem, place)
    }

    /// This placement.
    pub fn at(problem: &'p Problem, place: Vec<usize>) -> Self {
        let mut state = Self {
            problem,
            residents: Residents::of(problem, &place),
            wanted: vec![0.0; problem.nodes],
            stay: vec![0.0; problem.pools.len()],
            follow: problem.pools.iter().map(|pool| pool.base.clone()).collect(),
            least: vec![],
            loads: problem.loads.clone(),
            steps: 0,
            next: 0,
            place,
        };
        for (at, thread) in problem.threads.iter().enumerate() {
            let node = state.place[at];
            state.wanted[node] += thread.demand;
            if let Some((pool, number, per_s)) = thread.pool {
                state.stay[pool] += problem.pools[pool].stay[number][node];
                let latency = |to: usize| per_s * problem.latency_ns(node, to);
                state.follow[pool].iter_mut().enumerate().for_each(|(to, cost)| *cost += latency(to));
            }
        }
        state.least = state.follow.iter().map(|follow| least(follow.iter().copied())).collect();
        state.take_loads_along();
        state
    }

    /// Cost of everything.
    pub fn cost(&self) -> f64 {
        let problem = self.problem;
        let own: f64 = problem.movable.iter().map(|&thread| problem.row(thread)[self.place[thread]]).sum();
        let shared: f64 = problem.shared.iter().map(|part| problem.place_shared(part, |user| self.place[user]).0).sum();
        let pools: f64 = self.least.iter().zip(&self.stay).map(|(least, &stay)| least.0.min(stay)).sum();
        let crowds: f64 = self.wanted.iter().enumerate().map(|(node, &wanted)| problem.crowd(node, wanted)).sum();
        let waits = problem.placing_knee.as_ref().map_or(0.0, |knee| self.waits(knee));
        let mut lines = 0.0;
        for (at, thread) in problem.threads.iter().enumerate() {
            for &(other, per_s) in thread.partners.iter().filter(|partner| partner.0 > at) {
                lines += per_s * problem.between_ns(self.place[at], self.place[other]);
            }
        }
        own + shared + pools + crowds + waits + lines
    }

    /// Waiting at all memories, in ns per second.
    pub fn waits(&self, knee: &Knee) -> f64 {
        self.loads.iter().enumerate().map(|(node, &load)| knee.cost(node, load)).sum()
    }

    /// What changes cost, of one or two threads.
    pub fn change(&mut self, changes: &[Change]) -> f64 {
        self.steps += 1;
        let problem = self.problem;
        let mut shifts = self.no_shifts();
        let mut cost = self.follow_changes(changes, &mut shifts);
        cost += problem.placing_knee.as_ref().map_or(0.0, |knee| shifts.cost(knee));
        for &(thread, to) in changes {
            let [to_ns, from_ns] = [to, self.place[thread]].map(|node| problem.latencies.between(node));
            for &(other, per_s) in &problem.threads[thread].partners {
                let before = self.place[other];
                cost += match changes.iter().find(|change| change.0 == other) {
                    None => per_s * (to_ns[before] - from_ns[before]),
                    // A pair that changes as a whole is met twice.
                    Some(&(_, after)) => per_s * (to_ns[after] - from_ns[before]) / 2.0,
                };
            }
        }
        cost + self.crowd_change(changes)
    }

    /// Waiting at busy memories that changes add, in ns per second; it is part of what they cost.
    pub fn waits_change(&self, changes: &[Change]) -> f64 {
        let mut shifts = self.no_shifts();
        self.follow_changes(changes, &mut shifts);
        self.problem.placing_knee.as_ref().map_or(0.0, |knee| shifts.cost(knee))
    }

    /// CPU time by which nodes are short after changes, less that by which they are now, in ns per second; it is part of what they cost.
    pub fn crowd_change(&self, changes: &[Change]) -> f64 {
        let more = |node: usize| -> f64 {
            let by = |&(thread, to): &Change| {
                let demand = self.problem.threads[thread].demand;
                f64::from(u8::from(to == node)) * demand - f64::from(u8::from(self.place[thread] == node)) * demand
            };
            changes.iter().map(by).sum()
        };
        let cost = |node: usize| {
            let wanted = self.wanted[node];
            self.problem.crowd(node, wanted + more(node)) - self.problem.crowd(node, wanted)
        };
        // Of two threads at most, hence on the stack: this is asked for each change that is looked at.
        let mut nodes = [usize::MAX; 2 * MOST_CHANGES];
        for (pair, &(thread, to)) in nodes.chunks_exact_mut(2).zip(changes) {
            pair.copy_from_slice(&[self.place[thread], to]);
        }
        let is_first = |at: &usize| !nodes[..*at].contains(&nodes[*at]);
        (0..2 * changes.len()).filter(is_first).map(|at| cost(nodes[at])).sum()
    }

    fn follow_change(&self, &(thread, to): &Change, memory: usize) -> f64 {
        let per_s = self.problem.threads[thread].pool.map_or(0.0, |pool| pool.2);
        per_s * (self.problem.latency_ns(to, memory) - self.problem.latency_ns(self.place[thread], memory))
    }

    /// Makes changes.
    pub fn apply(&mut self, changes: &[Change]) {
        if self.problem.placing_knee.is_some() {
            let mut shifts = self.no_shifts();
            self.follow_changes(changes, &mut shifts);
            let then = shifts.into_loads();
            self.take_loads(then);
        }
        for &(thread, to) in changes {
            let (from, unknown) = (self.place[thread], &self.problem.threads[thread]);
            if let Some((pool, number, _)) = unknown.pool {
                let row = &self.problem.pools[pool].stay[number];
                self.stay[pool] += row[to] - row[from];
                for node in 0..self.problem.nodes {
                    self.follow[pool][node] += self.follow_change(&(thread, to), node);
                }
                self.least[pool] = least(self.follow[pool].iter().copied());
            }
            self.wanted[from] -= unknown.demand;
            self.wanted[to] += unknown.demand;
            self.residents.go(self.problem, thread, from, to);
            self.place[thread] = to;
        }
    }

    /// Descends, anneals and descends again, from elsewhere too where nodes are full, in so many steps and a quarter more.
    pub fn search(&mut self, seed: u64, steps: u64) {
        self.descend_together(steps);
        self.anneal(seed, steps);
        self.descend_together(steps.saturating_add(steps / 4));
        self.start_again(steps.saturating_add(steps / 4));
    }

    /// The problem.
    pub fn problem(&self) -> &'p Problem {
        self.problem
    }

    /// Whether a node would have too few CPUs with one more thread.
    pub fn would_crowd(&self, thread: usize, node: usize) -> bool {
        self.problem.crowd(node, self.wanted[node] + self.problem.threads[thread].demand) > 0.0
    }

    /// Threads of `on` that lose least when they go to `to`, in this order.
    pub fn losers(&mut self, on: usize, to: usize) -> impl Iterator<Item = usize> {
        self.residents.losers(self.problem, on, to)
    }

    /// Tries every placement; returns the best, that of now on a tie.
    fn try_all(&mut self) -> Vec<usize> {
        let movable = &self.problem.movable;
        let slack = ROUNDING * self.cost().abs();
        let mut digits: Vec<usize> = movable
            .iter()
            .map(|&thread| {
                let choices = &self.problem.threads[thread].choices;
                choices.iter().position(|&node| node == self.place[thread]).unwrap_or(0)
            })
            .collect();
        let first = digits.clone();
        let (mut cost, mut least, mut best) = (0.0, -slack, self.place.clone());
        loop {
            // An odometer that starts and ends at the present placement.
            let mut turned = false;
            for (at, &thread) in movable.iter().enumerate() {
                let choices = &self.problem.threads[thread].choices;
                digits[at] = (digits[at] + 1) % choices.len();
                let change = [(thread, choices[digits[at]])];
                cost += self.change(&change);
                self.apply(&change);
                if digits[at] != first[at] {
                    turned = true;
                    break;
                }
            }
            if !turned {
                return best;
            }
            if cost < least {
                (least, best) = (cost, self.place.clone());
            }
        }
    }

    /// Random changes, fewer and fewer of them for the worse; ends at the best placement met.
    fn anneal(&mut self, seed: u64, steps: u64) {
        let mut rng = Pcg64::seed_from_u64(seed);
        let rounds = (STEPS_OF_THREAD * self.problem.movable.len() as u64).min(steps.saturating_sub(self.steps));
        if rounds == 0 {
            return;
        }
        self.residents.forget_losers();
        let matter = self.matter();
        let cooling = libm::pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, 1.0 / rounds as f64);
        let mut temperature = FIRST_TEMPERATURE * matter;
        let (mut cost, mut least, mut best) = (0.0, 0.0, self.place.clone());
        for _ in 0..rounds {
            temperature *= cooling;
            let thread = self.problem.movable[below(&mut rng, self.problem.movable.len())];
            let choices = &self.problem.threads[thread].choices;
            let (from, to) = (self.place[thread], choices[below(&mut rng, choices.len())]);
            let accept = libm::log((rng.next_u64() >> 11).max(1) as f64 / (1u64 << 53) as f64);
            if from == to {
                continue;
            }
            let there = self.residents.on(to);
            // A node without room is entered by an exchange.
            let crowded = self.would_crowd(thread, to);
            let other = if crowded && !there.is_empty() { Some(there[below(&mut rng, there.len())]) } else { None };
            let other = other.filter(|&other| self.problem.threads[other].choices.contains(&from));
            let both = [(thread, to), (other.unwrap_or(thread), from)];
            let changes = if other.is_some() { &both[..] } else { &both[..1] };
            let change = self.change(changes);
            if change <= 0.0 || -change / temperature > accept {
                self.apply(changes);
                cost += change;
                if cost < least {
                    least = cost;
                    best.clone_from(&self.place);
                }
            }
        }
        *self = Self { steps: self.steps, next: self.next, ..Self::at(self.problem, best) };
    }

    /// How much the place of a thread matters in the mean.
    fn matter(&self) -> f64 {
        let of = |&thread: &usize| {
            let row = self.problem.row(thread);
            let choices = self.problem.threads[thread].choices.iter().map(|&node| row[node]);
            let (least, most) = choices.fold((f64::INFINITY, 0.0f64), |all, cost| (all.0.min(cost), all.1.max(cost)));
            let lines: f64 = self.problem.threads[thread].partners.iter().map(|partner| partner.1).sum();
            let (near, far) = self.problem.latencies.range();
            (most - least).max(0.0) + lines * (far - near)
        };
        self.problem.movable.iter().map(of).sum::<f64>() / self.problem.movable.len() as f64
    }
}
