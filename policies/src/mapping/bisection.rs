// SPDX-License-Identifier: GPL-2.0-only
//! Two-way partition of a weighted graph: the part of the recursive bipartition that knows nothing of places.
//!
//! Minimise the weight between the sides plus what each vertex costs on the first side more than on the second (its lean), such that the
//! size of the first side is within bounds. Multilevel: vertices are matched along heavy edges until few are left; these are
//! divided by growing the first side from a random vertex; then each finer graph takes the division over and refines it.
//! All of it is done in pieces no longer than a look at every edge of a graph, so that it can be stopped after any of them.

use rand_pcg::Pcg64;

use super::graph::{Bounds, Division, Graph};
use super::refinement::Refinement;
use crate::anneal::below;

/// Below so many vertices a graph is divided as it is.
const COARSEST: usize = 48;
/// Divisions tried on the coarsest graph.
const GROWN: usize = 6;

/// The best of several divisions of a graph, in pieces.
pub struct Bisection {
    /// The graph, then coarser and coarser ones.
    graphs: Vec<Graph>,
    /// Vertex of the next graph by vertex, by graph.
    of: Vec<Vec<u32>>,
    bounds: Bounds,
    /// Cycles to begin after the present one.
    cycles: usize,
    best: Option<Division>,
    stage: Stage,
}

enum Stage {
    Coarsen,
    Grow { growth: Growth, tried: usize, best: Option<Division> },
    RefineGrown { refinement: Refinement, tried: usize, best: Option<Division> },
    Refine { refinement: Refinement, graph: usize },
    Over,
}

/// A first side that grows from a random vertex, by what costs least, to one of the bounds or between.
struct Growth {
    first: Vec<bool>,
    size: usize,
    target: usize,
    gain: Vec<f64>,
    seed: Option<usize>,
}

impl Bisection {
    /// The best of `cycles` divisions of `graph`.
    pub fn new(graph: Graph, bounds: Bounds, cycles: usize) -> Self {
        let cycles = cycles.max(1) - 1;
        Self { graphs: vec![graph], of: Vec::new(), bounds, cycles, best: None, stage: Stage::Coarsen }
    }

    /// Works until `steps` reaches `until`; whether it is over.
    pub fn run(&mut self, rng: &mut Pcg64, steps: &mut u64, until: u64) -> bool {
        while *steps < until {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            self.stage = match stage {
                Stage::Coarsen => self.coarsen(rng, steps),
                Stage::Grow { growth, tried, best } => self.grow(growth, tried, best, steps),
                Stage::RefineGrown { mut refinement, tried, best } => {
                    let graph = self.graphs.last().expect("there is a graph");
                    if refinement.run(graph, self.bounds, rng, steps, until) {
                        self.grown(refinement.into_division(), tried, best, rng, steps)
                    } else {
                        Stage::RefineGrown { refinement, tried, best }
                    }
                }
                Stage::Refine { mut refinement, graph } => {
                    if refinement.run(&self.graphs[graph], self.bounds, rng, steps, until) {
                        self.finer(refinement.into_division(), graph, steps)
                    } else {
                        Stage::Refine { refinement, graph }
                    }
                }
                Stage::Over => return true,
            };
        }
        false
    }

    /// The best division (true: first side) once it is over.
    pub fn into_sides(self) -> Vec<bool> {
        self.best.map(|division| division.first).unwrap_or_default()
    }

    fn coarsen(&mut self, rng: &mut Pcg64, steps: &mut u64) -> Stage {
        let graph = self.graphs.last().expect("there is a graph");
        *steps += graph.sweep_steps();
        if graph.len() > COARSEST
            && let Some((coarse, of)) = graph.coarsen(rng)
        {
            self.graphs.push(coarse);
            self.of.push(of);
            return Stage::Coarsen;
        }
        Stage::Grow { growth: Growth::new(graph, self.bounds, rng), tried: 0, best: None }
    }

    fn grow(&self, mut growth: Growth, tried: usize, best: Option<Division>, steps: &mut u64) -> Stage {
        let graph = self.graphs.last().expect("there is a graph");
        *steps += 1 + graph.len() as u64 / 16;
        if growth.step(graph) {
            return Stage::Grow { growth, tried, best };
        }
        let refinement = Refinement::new(graph.division(growth.first), self.bounds);
        Stage::RefineGrown { refinement, tried: tried + 1, best }
    }

    /// The next try on the coarsest graph, or back to finer ones.
    fn grown(
        &mut self,
        division: Division,
        tried: usize,
        best: Option<Division>,
        rng: &mut Pcg64,
        steps: &mut u64,
    ) -> Stage {
        let best = match best {
            Some(best) if !division.is_better(&best, self.bounds) => best,
            _ => division,
        };
        if tried < GROWN {
            let graph = self.graphs.last().expect("there is a graph");
            *steps += graph.sweep_steps();
            return Stage::Grow { growth: Growth::new(graph, self.bounds, rng), tried, best: Some(best) };
        }
        self.finer(best, self.graphs.len() - 1, steps)
    }

    /// Takes the division of a graph over to the finer one, or ends the cycle.
    fn finer(&mut self, division: Division, graph: usize, steps: &mut u64) -> Stage {
        if graph > 0 {
            let finer = &self.graphs[graph - 1];
            *steps += finer.sweep_steps();
            let first = self.of[graph - 1].iter().map(|&vertex| division.first[vertex as usize]).collect();
            let refinement = Refinement::new(finer.division(first), self.bounds);
            return Stage::Refine { refinement, graph: graph - 1 };
        }
        if self.best.as_ref().is_none_or(|best| division.is_better(best, self.bounds)) {
            self.best = Some(division);
        }
        if self.cycles == 0 {
            return Stage::Over;
        }
        self.cycles -= 1;
        self.graphs.truncate(1);
        self.of.clear();
        Stage::Coarsen
    }
}

impl Growth {
    fn new(graph: &Graph, bounds: Bounds, rng: &mut Pcg64) -> Self {
        let targets = [bounds.least, bounds.most, bounds.least.midpoint(bounds.most)];
        let target = targets[below(rng, 3)];
        let first: Vec<bool> = graph.fixed.iter().map(|&side| side == Some(true)).collect();
        let size = (0..graph.len()).filter(|&vertex| first[vertex]).map(|vertex| graph.size[vertex]).sum();
        let gain = (0..graph.len()).map(|vertex| graph.gain(&first, vertex)).collect();
        let seed = (graph.len() > 0).then(|| below(rng, graph.len()));
        Self { first, size, target, gain, seed }
    }

    /// Adds a vertex; false if it is large enough.
    fn step(&mut self, graph: &Graph) -> bool {
        if self.size >= self.target {
            return false;
        }
        let seed = self.seed.take();
        let open = |vertex: &usize| !self.first[*vertex] && graph.fixed[*vertex].is_none();
        let best = || (0..graph.len()).filter(open).max_by(|&a, &b| self.gain[a].total_cmp(&self.gain[b]));
        let Some(vertex) = seed.filter(open).or_else(best) else { return false };
        self.first[vertex] = true;
        self.size += graph.size[vertex];
        for &(other, weight) in graph.edges(vertex) {
            self.gain[other as usize] += 2.0 * weight;
        }
        true
    }
}
