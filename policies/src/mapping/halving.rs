// SPDX-License-Identifier: GPL-2.0-only
//! Halving of places, so that the halves are far from each other and near among themselves.
//!
//! Each try puts the places nearer to one of two far places on one side, then exchanges places between the sides while that
//! increases the sum of distances between them. It can be stopped and continued after any exchange.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::graph::shuffled;
use super::problem::Problem;

/// Most places whose halving tries other sizes than half.
const UNEVEN: usize = 32;
/// An uneven division must be so much better than the even one.
const UNEVEN_GAIN: f64 = 1.01;
/// Tries for each size.
const TRIES: usize = 2;

/// Two sets of places seen from everywhere.
pub struct Sides {
    /// Mean distance by place.
    to: [Vec<f64>; 2],
    /// Mean distance within each.
    pub within: [f64; 2],
    pub between: f64,
}

/// The search for two halves, in pieces.
pub struct Halving {
    places: Vec<usize>,
    /// Sizes of the first side that are still to be tried, the next one last, each as often as it is tried.
    counts: Vec<usize>,
    /// The size and the order being tried: so many of these places are on the first side.
    now: Option<(usize, Vec<usize>)>,
    best: Option<Halves>,
}

struct Halves {
    far: f64,
    count: usize,
    order: Vec<usize>,
}

impl Sides {
    pub fn new(problem: &Problem, first: &[usize], second: &[usize]) -> Self {
        let mean_to = |side: &[usize]| -> Vec<f64> {
            let mean = |to: usize| side.iter().map(|&from| problem.distance(from, to)).sum::<f64>() / side.len() as f64;
            (0..problem.places).map(mean).collect()
        };
        let to = [mean_to(first), mean_to(second)];
        let within = [mean(&to[0], first), mean(&to[1], second)];
        let between = mean(&to[0], second);
        Self { to, within, between }
    }

    /// How much a pair pays for being on different sides.
    pub fn apart(&self) -> f64 {
        self.between - (self.within[0] + self.within[1]) / 2.0
    }

    /// How much farther the first side is from `places` than the second.
    pub fn lean(&self, places: &[usize]) -> f64 {
        if places.is_empty() { 0.0 } else { mean(&self.to[0], places) - mean(&self.to[1], places) }
    }
}

fn mean(values: &[f64], at: &[usize]) -> f64 {
    at.iter().map(|&at| values[at]).sum::<f64>() / at.len() as f64
}

impl Halving {
    /// A search for halves of `places`, of which there are two or more.
    pub fn new(places: Vec<usize>) -> Self {
        let even = places.len() / 2;
        let least = if places.len() <= UNEVEN { places.len().div_ceil(3).min(even) } else { even };
        let counts = (least..=even).flat_map(|count| [count; TRIES]).collect();
        Self { places, counts, now: None, best: None }
    }

    /// Works until `steps` reaches `until`; whether it is over.
    pub fn run(&mut self, problem: &Problem, rng: &mut Pcg64, steps: &mut u64, until: u64) -> bool {
        while *steps < until {
            let size = self.places.len();
            *steps += 1 + (size * size) as u64 / 16;
            if let Some((count, order)) = &mut self.now {
                if !exchange(problem, order, *count) {
                    self.end_try(problem);
                }
            } else if let Some(count) = self.counts.pop() {
                self.now = Some((count, far_apart(problem, &self.places, rng)));
            } else {
                return true;
            }
        }
        false
    }

    fn end_try(&mut self, problem: &Problem) {
        let Some((count, order)) = self.now.take() else { return };
        let far = Sides::new(problem, &order[..count], &order[count..]).apart();
        let needed = |known: &Halves| far > if known.count == count { known.far } else { known.far * UNEVEN_GAIN };
        if self.best.as_ref().is_none_or(needed) {
            self.best = Some(Halves { far, count, order });
        }
    }

    /// The halves once it is over. Which one is the first is left to chance.
    pub fn into_halves(self, rng: &mut Pcg64) -> (Vec<usize>, Vec<usize>) {
        let Halves { count, order, .. } = self.best.expect("there are two places or more");
        let (first, second) = (order[..count].to_vec(), order[count..].to_vec());
        if rng.next_u64() & 1 == 0 { (first, second) } else { (second, first) }
    }
}

/// A binary tree of places by recursive halving: by place the number of its leaf, 0 if it holds no thread. The root is 1, the
/// halves of node i are 2 i and 2 i + 1.
pub fn tree(problem: &Problem, seed: u64) -> Vec<u64> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut leaf = vec![0; problem.places];
    let all: Vec<usize> = (0..problem.places).filter(|&place| problem.capacity[place] > 0).collect();
    let mut open = vec![(1, all)];
    while let Some((node, places)) = open.pop() {
        if let [place] = places[..] {
            leaf[place] = node;
        } else if !places.is_empty() {
            let mut halving = Halving::new(places);
            halving.run(problem, &mut rng, &mut 0, u64::MAX);
            let (first, second) = halving.into_halves(&mut rng);
            open.extend([(2 * node, first), (2 * node + 1, second)]);
        }
    }
    leaf
}

/// `places` in the order of how much nearer they are to one of two far places than to the other.
fn far_apart(problem: &Problem, places: &[usize], rng: &mut Pcg64) -> Vec<usize> {
    let mut order: Vec<usize> = shuffled(places.len(), rng).into_iter().map(|at| places[at]).collect();
    let farthest = |from: usize, order: &[usize]| {
        let nearer = |a: &usize, b: &usize| problem.distance(from, *a).total_cmp(&problem.distance(from, *b));
        order.iter().copied().max_by(nearer).expect("there are places")
    };
    let one = farthest(order[0], &order);
    let other = farthest(one, &order);
    let lean = |place: usize| problem.distance(one, place) - problem.distance(other, place);
    order.sort_by(|&a, &b| lean(a).total_cmp(&lean(b)));
    order
}

/// Makes the exchange between the first `count` and the rest that increases the sum of distances between them most; false
/// if none does.
fn exchange(problem: &Problem, order: &mut [usize], count: usize) -> bool {
    let size = order.len();
    let to = |side: &[usize], from: usize| side.iter().map(|&at| problem.distance(from, at)).sum::<f64>();
    // What changing sides alone would add to the sum between the sides.
    let alone: Vec<f64> = (0..size)
        .map(|at| {
            let (mine, theirs) = (to(&order[..count], order[at]), to(&order[count..], order[at]));
            (if at < count { mine - theirs } else { theirs - mine }) - problem.distance(order[at], order[at])
        })
        .collect();
    let scale = alone.iter().fold(0.0, |most: f64, gain| most.max(gain.abs()));
    let mut best = (1e-9 * scale, None);
    for a in 0..count {
        for b in count..size {
            let gain = alone[a] + alone[b] + 2.0 * problem.distance(order[a], order[b]);
            if gain > best.0 {
                best = (gain, Some((a, b)));
            }
        }
    }
    let Some((a, b)) = best.1 else { return false };
    order.swap(a, b);
    true
}
