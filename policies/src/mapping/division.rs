// SPDX-License-Identifier: GPL-2.0-only
//! Dual recursive bipartition: places are halved so that the halves are far apart, and the threads with them so that little
//! sharing crosses, until every part is one place.
//!
//! Distances between parts are means over their places. What threads of other parts pull at counts, so that neighbouring
//! parts come to lie beside each other.

use std::collections::VecDeque;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::bisection::{Bounds, Graph, shuffled};
use super::placement::Placement;
use super::problem::Problem;

/// A recursive bipartition that can be run part by part.
pub struct Division {
    parts: Vec<Part>,
    /// Part by thread.
    part_of: Vec<u32>,
    /// Parts with more than one place, in order of division.
    open: VecDeque<usize>,
    /// Position of a thread among the threads of the part being divided.
    position: Vec<u32>,
    cycles: usize,
    rng: Pcg64,
}

struct Part {
    places: Vec<usize>,
    threads: Vec<u32>,
}

/// Two sets of places seen from everywhere.
struct Sides {
    /// Mean distance by place.
    to: [Vec<f64>; 2],
    /// Mean distance within each.
    within: [f64; 2],
    between: f64,
}

impl Division {
    /// A bipartition that divides each part `cycles` times and keeps the best.
    pub fn new(problem: &Problem, cycles: usize, seed: u64) -> Self {
        let places: Vec<usize> = (0..problem.places).filter(|&place| problem.capacity[place] > 0).collect();
        let threads = problem.threads();
        let open = if places.len() > 1 { VecDeque::from([0]) } else { VecDeque::new() };
        Self {
            parts: vec![Part { places, threads: (0..threads as u32).collect() }],
            part_of: vec![0; threads],
            open,
            position: vec![0; threads],
            cycles,
            rng: Pcg64::seed_from_u64(seed),
        }
    }

    /// Divides parts until at least `steps` steps were made, and says how many were.
    pub fn run(&mut self, problem: &Problem, steps: u64) -> u64 {
        let mut made = 0;
        while made < steps && !self.is_over() {
            made += self.divide(problem);
        }
        made
    }

    pub fn is_over(&self) -> bool {
        self.open.is_empty()
    }

    /// The mapping once it is over; none if too many threads ended up where they may not be.
    pub fn placement(&self, problem: &Problem) -> Option<Placement> {
        let place = |&part: &u32| self.parts[part as usize].places.first().map(|&place| place as u32);
        let wanted: Vec<Option<u32>> = self.part_of.iter().map(place).collect();
        Placement::complete(problem, &wanted).ok()
    }

    fn divide(&mut self, problem: &Problem) -> u64 {
        let Some(at) = self.open.pop_front() else { return 0 };
        let mut steps = 1;
        let places = std::mem::take(&mut self.parts[at].places);
        let (first, second) = halves(problem, &places, &mut self.rng, &mut steps);
        let threads = std::mem::take(&mut self.parts[at].threads);
        let room = |places: &[usize]| places.iter().map(|&place| problem.capacity[place]).sum::<usize>();
        let bounds = Bounds {
            least: threads.len().saturating_sub(room(&second)).min(threads.len()),
            most: threads.len().min(room(&first)),
        };
        let graph = self.graph(problem, at, &threads, &first, &second);
        steps += threads.len() as u64;
        let on_first = graph.bisect(bounds, self.cycles, &mut self.rng, &mut steps);
        let new = self.parts.len();
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for (&thread, &first) in threads.iter().zip(&on_first) {
            if first {
                stay.push(thread);
            } else {
                self.part_of[thread as usize] = new as u32;
                go.push(thread);
            }
        }
        for (part, places) in [(at, &first), (new, &second)] {
            if places.len() > 1 {
                self.open.push_back(part);
            }
        }
        self.parts[at] = Part { places: first, threads: stay };
        self.parts.push(Part { places: second, threads: go });
        steps
    }

    /// The threads of part `at` as a graph whose first side is the places `first`.
    fn graph(&mut self, problem: &Problem, at: usize, threads: &[u32], first: &[usize], second: &[usize]) -> Graph {
        let sides = Sides::new(problem, first, second);
        let pair = sides.between - (sides.within[0] + sides.within[1]) / 2.0;
        let lean_of_part: Vec<f64> = self.parts.iter().map(|part| sides.lean(&part.places)).collect();
        let lean_within = (sides.within[0] - sides.within[1]) / 2.0;
        for (position, &thread) in threads.iter().enumerate() {
            self.position[thread as usize] = position as u32;
        }
        let mut graph = Graph { first: vec![0], size: vec![1; threads.len()], ..Graph::default() };
        for &thread in threads {
            let mut lean = problem.own_mean(thread as usize, first) - problem.own_mean(thread as usize, second);
            for neighbour in problem.neighbours(thread as usize) {
                let part = self.part_of[neighbour.thread as usize] as usize;
                if part == at {
                    lean += neighbour.weight * lean_within;
                    graph.edges.push((self.position[neighbour.thread as usize], neighbour.weight * pair));
                } else {
                    lean += neighbour.weight * lean_of_part[part];
                }
            }
            graph.first.push(graph.edges.len());
            graph.lean.push(lean);
            let may = |places: &[usize]| places.iter().any(|&place| problem.allows(thread as usize, place));
            graph.fixed.push(match (may(first), may(second)) {
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ => None,
            });
        }
        graph
    }
}

impl Sides {
    fn new(problem: &Problem, first: &[usize], second: &[usize]) -> Self {
        let mean_to = |side: &[usize]| -> Vec<f64> {
            let mean = |to: usize| side.iter().map(|&from| problem.distance(from, to)).sum::<f64>() / side.len() as f64;
            (0..problem.places).map(mean).collect()
        };
        let to = [mean_to(first), mean_to(second)];
        let within = [mean(&to[0], first), mean(&to[1], second)];
        let between = mean(&to[0], second);
        Self { to, within, between }
    }

    /// How much farther the first side is from `places` than the second.
    fn lean(&self, places: &[usize]) -> f64 {
        if places.is_empty() { 0.0 } else { mean(&self.to[0], places) - mean(&self.to[1], places) }
    }
}

fn mean(values: &[f64], at: &[usize]) -> f64 {
    at.iter().map(|&at| values[at]).sum::<f64>() / at.len() as f64
}

/// Most places whose halving tries other sizes than half.
const UNEVEN: usize = 32;
/// An uneven division must be so much better than the even one.
const UNEVEN_GAIN: f64 = 1.01;

/// Two sets of places that are far from each other and near among themselves.
fn halves(problem: &Problem, places: &[usize], rng: &mut Pcg64, steps: &mut u64) -> (Vec<usize>, Vec<usize>) {
    let even = places.len() / 2;
    let least = if places.len() <= UNEVEN { places.len().div_ceil(3).min(even) } else { even };
    let mut best: Option<(f64, Vec<usize>, usize)> = None;
    for count in (least..=even).rev() {
        for _ in 0..2 {
            let order = far_apart(problem, places, count, rng, steps);
            let sides = Sides::new(problem, &order[..count], &order[count..]);
            let far = sides.between - (sides.within[0] + sides.within[1]) / 2.0;
            let needed = |&(known, _, size): &(f64, Vec<usize>, usize)| {
                far > if size == count { known } else { known * UNEVEN_GAIN }
            };
            if best.as_ref().is_none_or(needed) {
                best = Some((far, order, count));
            }
        }
    }
    let (_, order, count) = best.expect("there are two places or more");
    let (first, second) = (order[..count].to_vec(), order[count..].to_vec());
    // Which side is the first is left to chance, too.
    if rng.next_u64() & 1 == 0 { (first, second) } else { (second, first) }
}

/// `places` with `count` of them first that are far from the rest: those nearer to one of two far places than to the other,
/// then exchanged while that increases the sum of distances between the sides.
fn far_apart(problem: &Problem, places: &[usize], count: usize, rng: &mut Pcg64, steps: &mut u64) -> Vec<usize> {
    let mut order: Vec<usize> = shuffled(places.len(), rng).into_iter().map(|at| places[at]).collect();
    let farthest = |from: usize, order: &[usize]| {
        let nearer = |a: &usize, b: &usize| problem.distance(from, *a).total_cmp(&problem.distance(from, *b));
        order.iter().copied().max_by(nearer).expect("there are places")
    };
    let one = farthest(order[0], &order);
    let other = farthest(one, &order);
    let lean = |place: usize| problem.distance(one, place) - problem.distance(other, place);
    order.sort_by(|&a, &b| lean(a).total_cmp(&lean(b)));
    let size = order.len();
    let far = problem.distance(one, other);
    for _ in 0..size {
        *steps += (count * (size - count)) as u64 / 8 + 1;
        let to = |side: &[usize], from: usize| side.iter().map(|&at| problem.distance(from, at)).sum::<f64>();
        // What changing sides alone would add to the sum between the sides.
        let alone: Vec<f64> = (0..size)
            .map(|at| {
                let (mine, theirs) = (to(&order[..count], order[at]), to(&order[count..], order[at]));
                (if at < count { mine - theirs } else { theirs - mine }) - problem.distance(order[at], order[at])
            })
            .collect();
        let mut best = (1e-9 * far.abs(), None);
        for a in 0..count {
            for b in count..size {
                let gain = alone[a] + alone[b] + 2.0 * problem.distance(order[a], order[b]);
                if gain > best.0 {
                    best = (gain, Some((a, b)));
                }
            }
        }
        let Some((a, b)) = best.1 else { break };
        order.swap(a, b);
    }
    order
}
