// SPDX-License-Identifier: GPL-2.0-only
//! Every mapping of a few threads, by branch and bound.
//!
//! Threads are placed one after the other, the one that shares most with those placed first. A branch is left if what its
//! placed threads cost, plus the least each other thread can cost beside them, plus the least of the pairs among the others,
//! is not below the best mapping known. Of places that are alike only the first empty one is tried.

use super::problem::Problem;

/// Most threads whose mappings are enumerated.
pub const MOST_THREADS: usize = 10;
/// Branches looked at before it is given up.
const MOST_STEPS: u64 = 1 << 22;

/// Branch and bound that can be run in chunks.
pub struct Exact {
    order: Vec<usize>,
    /// First place that each place is alike with.
    alike: Vec<usize>,
    /// Least cost of the pairs among the threads from this position of the order on.
    among: Vec<f64>,
    best: Vec<u32>,
    best_cost: f64,
    place: Vec<u32>,
    used: Vec<usize>,
    /// Placements to try, by position in the order.
    frames: Vec<Frame>,
    steps: u64,
}

struct Frame {
    /// Bound and place, the best one last.
    candidates: Vec<(f64, usize)>,
    /// Cost of what is placed before.
    cost: f64,
    /// Cost by thread and place beside what is placed before.
    pulls: Vec<f64>,
}

impl Exact {
    /// Enumeration that looks for something better than `known`.
    pub fn new(problem: &Problem, known: &[u32]) -> Self {
        let order = order(problem);
        let among = (0..=order.len()).map(|at| least_among(problem, &order[at..])).collect();
        let pulls = (0..problem.threads()).flat_map(|thread| problem.pulls(known, thread, |_| false)).collect();
        let mut exact = Self {
            alike: (0..problem.places).map(|place| first_alike(problem, place)).collect(),
            among,
            best: known.to_vec(),
            best_cost: problem.cost(known),
            place: known.to_vec(),
            used: vec![0; problem.places],
            frames: Vec::new(),
            steps: 0,
            order,
        };
        exact.open(problem, 0.0, pulls);
        exact
    }

    /// Looks at up to `steps` branches and says how many.
    pub fn run(&mut self, problem: &Problem, steps: u64) -> u64 {
        let before = self.steps;
        while self.steps - before < steps && !self.is_over() {
            self.step(problem);
        }
        self.steps - before
    }

    /// Whether every mapping was looked at or ruled out.
    pub fn is_proven(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether it is proven or given up.
    pub fn is_over(&self) -> bool {
        self.is_proven() || self.steps >= MOST_STEPS
    }

    /// The best mapping so far.
    pub fn best(&self) -> &[u32] {
        &self.best
    }

    fn step(&mut self, problem: &Problem) {
        self.steps += 1;
        let depth = self.frames.len() - 1;
        let thread = self.order[depth];
        let frame = &mut self.frames[depth];
        let next = frame.candidates.pop().filter(|&(bound, _)| bound < self.best_cost - problem.rounding);
        let Some((_, place)) = next else {
            // Candidates are in order of their bounds: the rest cannot be better either.
            self.frames.pop();
            if depth > 0 {
                self.used[self.place[self.order[depth - 1]] as usize] -= 1;
            }
            return;
        };
        let cost = frame.cost + frame.pulls[thread * problem.places + place];
        let mut pulls = frame.pulls.clone();
        problem.arrive(&mut pulls, thread, place);
        self.place[thread] = place as u32;
        self.used[place] += 1;
        if depth + 1 < self.order.len() {
            return self.open(problem, cost, pulls);
        }
        if cost < self.best_cost - problem.rounding {
            self.best_cost = cost;
            self.best.copy_from_slice(&self.place);
        }
        self.used[place] -= 1;
    }

    /// Lists where the next thread may go, with bounds.
    fn open(&mut self, problem: &Problem, cost: f64, pulls: Vec<f64>) {
        let Some(&thread) = self.order.get(self.frames.len()) else { return };
        let others = &self.order[self.frames.len() + 1..];
        let open = |place: usize| self.used[place] < problem.capacity[place];
        let least = |other: usize| {
            let row = &pulls[other * problem.places..][..problem.places];
            let open = (0..problem.places).filter(|&place| open(place) && problem.allows(other, place));
            open.map(|place| row[place]).fold(f64::INFINITY, f64::min)
        };
        let rest = cost + others.iter().map(|&other| least(other)).sum::<f64>() + self.among[self.frames.len()];
        let mut candidates: Vec<(f64, usize)> = (0..problem.places)
            .filter(|&place| open(place) && problem.allows(thread, place) && !self.has_empty_like(place))
            .map(|place| (rest + pulls[thread * problem.places + place], place))
            .collect();
        // What pairs with `thread` among the others is in `among` at its least already; the true cost comes one level deeper.
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        self.frames.push(Frame { candidates, cost, pulls });
    }

    /// Whether an earlier place that is alike is empty as this one is.
    fn has_empty_like(&self, place: usize) -> bool {
        self.used[place] == 0
            && (self.alike[place]..place).any(|other| self.alike[other] == self.alike[place] && self.used[other] == 0)
    }
}

/// Threads, each the one that shares most with those before it.
fn order(problem: &Problem) -> Vec<usize> {
    let mut left: Vec<usize> = (0..problem.threads()).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let shared = |thread: usize, all: bool| {
            let counted = problem.neighbours(thread).iter().filter(|n| all || order.contains(&(n.thread as usize)));
            counted.map(|neighbour| neighbour.weight).sum::<f64>()
        };
        let key = |thread: usize| (shared(thread, false), shared(thread, true));
        let more = |a: (f64, f64), b: (f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        let at = (0..left.len()).reduce(|a, b| if more(key(left[b]), key(left[a])).is_gt() { b } else { a });
        order.push(left.remove(at.expect("threads are left")));
    }
    order
}

fn least_among(problem: &Problem, threads: &[usize]) -> f64 {
    let floor = problem.floor();
    let of = |&thread: &usize| {
        let pairs =
            problem.neighbours(thread).iter().enumerate().filter(|(_, n)| threads.contains(&(n.thread as usize)));
        pairs.map(|(index, _)| problem.least_pair_cost(thread, index, &floor)).sum::<f64>()
    };
    threads.iter().map(of).sum::<f64>() / 2.0
}

/// The first place for which `place` can stand in every mapping without a change of cost.
fn first_alike(problem: &Problem, place: usize) -> usize {
    let alike = |other: &usize| {
        let other = *other;
        let seen_from = |from: usize, to: usize| (problem.distance(from, to), problem.skew_distance_at(from, to));
        let elsewhere = (0..problem.places).filter(|&at| at != place && at != other);
        problem.capacity[place] == problem.capacity[other]
            && problem.own.is_empty()
            && problem.distance(place, place) == problem.distance(other, other)
            && problem.skew_distance_at(place, other) == 0.0
            && elsewhere.clone().all(|at| seen_from(place, at) == seen_from(other, at))
            && (0..problem.threads()).all(|thread| problem.allows(thread, place) == problem.allows(thread, other))
    };
    (0..place).find(alike).unwrap_or(place)
}
