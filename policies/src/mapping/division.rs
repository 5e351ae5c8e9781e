// SPDX-License-Identifier: GPL-2.0-only
//! Dual recursive bipartition: places are halved so that the halves are far apart, and the threads with them so that little
//! sharing crosses, until every part is one place.
//!
//! Distances between parts are means over their places. What threads of other parts pull at counts, so that neighbouring
//! parts come to lie beside each other.

use std::collections::VecDeque;

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::bisection::Bisection;
use super::graph::{Bounds, Graph};
use super::halving::{Halving, Sides};
use super::placement::Placement;
use super::problem::Problem;

/// A recursive bipartition that can be stopped and continued at any step.
pub struct Division {
    parts: Vec<Part>,
    /// Part by thread.
    part_of: Vec<u32>,
    /// Parts with more than one place, in order of division.
    open: VecDeque<usize>,
    work: Option<Work>,
    /// Position of a thread among the threads of the part being divided.
    position: Vec<u32>,
    cycles: usize,
    rng: Pcg64,
}

struct Part {
    places: Vec<usize>,
    threads: Vec<u32>,
}

/// The division of a part: first its places, then its threads.
enum Work {
    Places { part: usize, halving: Halving },
    Threads { part: usize, first: Vec<usize>, second: Vec<usize>, bisection: Box<Bisection> },
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
            work: None,
            position: vec![0; threads],
            cycles,
            rng: Pcg64::seed_from_u64(seed),
        }
    }

    /// Works until at least `steps` steps were made, and says how many were.
    pub fn run(&mut self, problem: &Problem, steps: u64) -> u64 {
        let mut made = 0;
        while made < steps && !self.is_over() {
            self.work = match self.work.take() {
                None => self.open.pop_front().map(|part| {
                    let places = std::mem::take(&mut self.parts[part].places);
                    Work::Places { part, halving: Halving::new(places) }
                }),
                Some(Work::Places { part, mut halving }) => {
                    if halving.run(problem, &mut self.rng, &mut made, steps) {
                        Some(self.divide_threads(problem, part, halving, &mut made))
                    } else {
                        Some(Work::Places { part, halving })
                    }
                }
                Some(Work::Threads { part, first, second, mut bisection }) => {
                    if bisection.run(&mut self.rng, &mut made, steps) {
                        self.split(part, [first, second], &bisection.into_sides());
                        None
                    } else {
                        Some(Work::Threads { part, first, second, bisection })
                    }
                }
            };
        }
        made
    }

    pub fn is_over(&self) -> bool {
        self.open.is_empty() && self.work.is_none()
    }

    /// The mapping once it is over; none if too many threads ended up where they may not be.
    pub fn placement(&self, problem: &Problem) -> Option<Placement> {
        let place = |&part: &u32| self.parts[part as usize].places.first().map(|&place| place as u32);
        let wanted: Vec<Option<u32>> = self.part_of.iter().map(place).collect();
        Placement::complete(problem, &wanted).ok()
    }

    fn divide_threads(&mut self, problem: &Problem, part: usize, halving: Halving, made: &mut u64) -> Work {
        let (first, second) = halving.into_halves(&mut self.rng);
        let threads = std::mem::take(&mut self.parts[part].threads);
        let room = |places: &[usize]| places.iter().map(|&place| problem.capacity[place]).sum::<usize>();
        let bounds = Bounds {
            least: threads.len().saturating_sub(room(&second)).min(threads.len()),
            most: threads.len().min(room(&first)),
        };
        let graph = self.graph(problem, part, &threads, &first, &second);
        *made += graph.sweep_steps();
        self.parts[part].threads = threads;
        Work::Threads { part, first, second, bisection: Box::new(Bisection::new(graph, bounds, self.cycles)) }
    }

    /// Makes two parts of one.
    fn split(&mut self, part: usize, [first, second]: [Vec<usize>; 2], on_first: &[bool]) {
        let new = self.parts.len();
        let threads = std::mem::take(&mut self.parts[part].threads);
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for (&thread, &first) in threads.iter().zip(on_first) {
            if first {
                stay.push(thread);
            } else {
                self.part_of[thread as usize] = new as u32;
                go.push(thread);
            }
        }
        for (part, places) in [(part, &first), (new, &second)] {
            if places.len() > 1 {
                self.open.push_back(part);
            }
        }
        self.parts[part] = Part { places: first, threads: stay };
        self.parts.push(Part { places: second, threads: go });
    }

    /// The threads of part `at` as a graph whose first side is the places `first`.
    fn graph(&mut self, problem: &Problem, at: usize, threads: &[u32], first: &[usize], second: &[usize]) -> Graph {
        let sides = Sides::new(problem, first, second);
        let pair = sides.apart();
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
