// SPDX-License-Identifier: GPL-2.0-only
//! Two-way partition of a weighted graph: the part of the recursive bipartition that knows nothing of places.
//!
//! Minimise the weight between the sides plus what each vertex costs on the first side more than on the second (its lean), such that the
//! size of the first side is within bounds. Multilevel: vertices are matched along heavy edges until few are left; these are
//! divided by growing the first side from a random vertex; then each finer graph takes the division over and refines it by
//! moves in order of gain, each vertex at most once in a pass, back to the best prefix of the pass.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rand_core::Rng;
use rand_pcg::Pcg64;

use crate::anneal::below;

/// Vertices with sizes, leans and weighted edges.
#[derive(Default)]
pub struct Graph {
    /// Where the edges of each vertex begin; one more at the end.
    pub first: Vec<usize>,
    /// Neighbour and weight, by vertex.
    pub edges: Vec<(u32, f64)>,
    pub size: Vec<usize>,
    /// Cost on the first side less cost on the second.
    pub lean: Vec<f64>,
    /// The side of vertices that may be on one only.
    pub fixed: Vec<Option<bool>>,
}

/// Least and most size of the first side.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub least: usize,
    pub most: usize,
}

/// Whether each vertex is on the first side, with what that costs.
#[derive(Clone)]
struct Division {
    first: Vec<bool>,
    size: usize,
    cost: f64,
}

/// Below so many vertices a graph is divided as it is.
const COARSEST: usize = 48;
/// Divisions tried on the coarsest graph.
const GROWN: usize = 6;
/// Most passes of moves on one graph.
const PASSES: usize = 8;

impl Bounds {
    fn violation(self, size: usize) -> usize {
        self.least.saturating_sub(size).max(size.saturating_sub(self.most))
    }
}

impl Division {
    fn key(&self, bounds: Bounds) -> (usize, f64) {
        (bounds.violation(self.size), self.cost)
    }

    fn is_better(&self, other: &Division, bounds: Bounds) -> bool {
        let (mine, theirs) = (self.key(bounds), other.key(bounds));
        mine.0.cmp(&theirs.0).then(mine.1.total_cmp(&theirs.1)).is_lt()
    }
}

impl Graph {
    fn len(&self) -> usize {
        self.size.len()
    }

    fn edges(&self, vertex: usize) -> &[(u32, f64)] {
        &self.edges[self.first[vertex]..self.first[vertex + 1]]
    }

    /// The best of `cycles` divisions (true: first side); adds the work to `steps`.
    pub fn bisect(&self, bounds: Bounds, cycles: usize, rng: &mut Pcg64, steps: &mut u64) -> Vec<bool> {
        let mut best: Option<Division> = None;
        for _ in 0..cycles.max(1) {
            let division = self.cycle(bounds, rng, steps);
            if best.as_ref().is_none_or(|best| division.is_better(best, bounds)) {
                best = Some(division);
            }
        }
        best.map(|division| division.first).unwrap_or_default()
    }

    fn cycle(&self, bounds: Bounds, rng: &mut Pcg64, steps: &mut u64) -> Division {
        let coarser = if self.len() > COARSEST { self.coarsen(rng, steps) } else { None };
        let Some((coarse, of)) = coarser else {
            let grown = (0..GROWN).map(|_| {
                let division = self.grow(bounds, rng, steps);
                self.refine(division, bounds, rng, steps)
            });
            let better = |a: Division, b: Division| if b.is_better(&a, bounds) { b } else { a };
            return grown.reduce(better).expect("at least one is grown");
        };
        let division = coarse.cycle(bounds, rng, steps);
        let first: Vec<bool> = of.iter().map(|&vertex| division.first[vertex as usize]).collect();
        self.refine(self.division(first), bounds, rng, steps)
    }

    fn division(&self, first: Vec<bool>) -> Division {
        let (mut size, mut cost) = (0, 0.0);
        for vertex in 0..self.len() {
            if first[vertex] {
                size += self.size[vertex];
                cost += self.lean[vertex];
                cost +=
                    self.edges(vertex).iter().filter(|edge| !first[edge.0 as usize]).map(|edge| edge.1).sum::<f64>();
            }
        }
        Division { first, size, cost }
    }

    /// A graph of pairs of vertices, and the pair of each vertex; none if hardly any can be paired.
    fn coarsen(&self, rng: &mut Pcg64, steps: &mut u64) -> Option<(Graph, Vec<u32>)> {
        const UNPAIRED: u32 = u32::MAX;
        *steps += self.len() as u64;
        let most = (self.size.iter().sum::<usize>() / 24).max(2);
        let mut of = vec![UNPAIRED; self.len()];
        let mut pairs = Vec::with_capacity(self.len() / 2 + 1);
        for vertex in shuffled(self.len(), rng) {
            if of[vertex] != UNPAIRED {
                continue;
            }
            let fits = |other: usize| {
                let sides = (self.fixed[vertex], self.fixed[other]);
                of[other] == UNPAIRED && self.size[vertex] + self.size[other] <= most && sides.0 == sides.1
            };
            let open = self.edges(vertex).iter().filter(|&&(other, weight)| weight > 0.0 && fits(other as usize));
            // Small partners first among the equally heavy: sizes stay even.
            let density = |&(other, weight): &(u32, f64)| weight / self.size[other as usize] as f64;
            let partner = open.max_by(|a, b| density(a).total_cmp(&density(b))).map_or(vertex, |edge| edge.0 as usize);
            of[vertex] = pairs.len() as u32;
            of[partner] = pairs.len() as u32;
            pairs.push((vertex, partner));
        }
        (pairs.len() * 20 <= self.len() * 19).then(|| (self.contracted(&pairs, &of), of))
    }

    fn contracted(&self, pairs: &[(usize, usize)], of: &[u32]) -> Graph {
        let mut coarse = Graph { first: vec![0], ..Graph::default() };
        // Where the edge to a coarse vertex is, if it was made since the edges of the present one began.
        let mut at = vec![usize::MAX; pairs.len()];
        for (vertex, &(a, b)) in pairs.iter().enumerate() {
            let begin = coarse.edges.len();
            let members = if a == b { &[a][..] } else { &[a, b][..] };
            for &member in members {
                for &(other, weight) in self.edges(member) {
                    let other = of[other as usize] as usize;
                    if other == vertex {
                        continue;
                    }
                    if at[other] == usize::MAX || at[other] < begin {
                        at[other] = coarse.edges.len();
                        coarse.edges.push((other as u32, 0.0));
                    }
                    coarse.edges[at[other]].1 += weight;
                }
            }
            coarse.first.push(coarse.edges.len());
            coarse.size.push(members.iter().map(|&member| self.size[member]).sum());
            coarse.lean.push(members.iter().map(|&member| self.lean[member]).sum());
            coarse.fixed.push(self.fixed[a]);
        }
        coarse
    }

    /// The first side grown from a random vertex, by what costs least, to one of the bounds or between.
    fn grow(&self, bounds: Bounds, rng: &mut Pcg64, steps: &mut u64) -> Division {
        let targets = [bounds.least, bounds.most, bounds.least.midpoint(bounds.most)];
        let target = targets[below(rng, 3)];
        let mut first: Vec<bool> = self.fixed.iter().map(|&side| side == Some(true)).collect();
        let mut size: usize = (0..self.len()).filter(|&vertex| first[vertex]).map(|vertex| self.size[vertex]).sum();
        let mut gain: Vec<f64> = (0..self.len()).map(|vertex| self.gain(&first, vertex)).collect();
        let mut next = (self.len() > 0).then(|| below(rng, self.len()));
        while size < target {
            let open = |vertex: &usize| !first[*vertex] && self.fixed[*vertex].is_none();
            let best = || (0..self.len()).filter(open).max_by(|&a, &b| gain[a].total_cmp(&gain[b]));
            *steps += 1 + self.len() as u64 / 16;
            let Some(vertex) = next.take().filter(open).or_else(best) else { break };
            first[vertex] = true;
            size += self.size[vertex];
            for &(other, weight) in self.edges(vertex) {
                gain[other as usize] += 2.0 * weight;
            }
        }
        self.division(first)
    }

    /// How much less it costs when `vertex` changes sides.
    fn gain(&self, first: &[bool], vertex: usize) -> f64 {
        let side = first[vertex];
        let cut = |&(other, weight): &(u32, f64)| if first[other as usize] == side { -weight } else { weight };
        let lean = self.lean[vertex];
        self.edges(vertex).iter().map(cut).sum::<f64>() + if side { lean } else { -lean }
    }

    fn refine(&self, mut division: Division, bounds: Bounds, rng: &mut Pcg64, steps: &mut u64) -> Division {
        for _ in 0..PASSES {
            let before = division.key(bounds);
            division = self.pass(division, bounds, rng, steps);
            let after = division.key(bounds);
            if after.0 >= before.0 && after.1 >= before.1 - 1e-9 * before.1.abs() {
                break;
            }
        }
        division
    }

    fn pass(&self, start: Division, bounds: Bounds, rng: &mut Pcg64, steps: &mut u64) -> Division {
        let mut pass = Pass::new(self, &start, rng);
        let mut moved = Vec::new();
        let (mut best, mut best_key) = (0, start.key(bounds));
        let mut now = start;
        let patience = 64 + self.len() / 16;
        while let Some(vertex) = pass.next(self, &now, bounds) {
            let gain = pass.gain[vertex];
            now.cost -= gain;
            now.size = if now.first[vertex] { now.size - self.size[vertex] } else { now.size + self.size[vertex] };
            now.first[vertex] = !now.first[vertex];
            pass.moved(self, &now.first, vertex);
            moved.push(vertex);
            *steps += 1 + self.edges(vertex).len() as u64 / 2;
            let key = now.key(bounds);
            if key.0.cmp(&best_key.0).then(key.1.total_cmp(&best_key.1)).is_lt() {
                (best, best_key) = (moved.len(), key);
            } else if moved.len() - best > patience {
                break;
            }
        }
        for &vertex in &moved[best..] {
            now.first[vertex] = !now.first[vertex];
        }
        self.division(now.first)
    }
}

/// Vertices that can still move in a pass, by side, best gain first. Entries out of date are left in and skipped.
struct Pass {
    gain: Vec<f64>,
    /// Random order of equal gains.
    chance: Vec<u32>,
    locked: Vec<bool>,
    open: [BinaryHeap<Entry>; 2],
    /// The greatest size of a vertex: how far the bounds may be overstepped on the way.
    slack: usize,
}

struct Entry {
    gain: f64,
    chance: u32,
    vertex: u32,
}

impl Pass {
    fn new(graph: &Graph, division: &Division, rng: &mut Pcg64) -> Self {
        let mut pass = Self {
            gain: (0..graph.len()).map(|vertex| graph.gain(&division.first, vertex)).collect(),
            chance: (0..graph.len()).map(|_| (rng.next_u64() >> 32) as u32).collect(),
            locked: graph.fixed.iter().map(Option::is_some).collect(),
            open: [BinaryHeap::new(), BinaryHeap::new()],
            slack: graph.size.iter().copied().max().unwrap_or(0),
        };
        for vertex in 0..graph.len() {
            pass.offer(vertex, division.first[vertex]);
        }
        pass
    }

    fn offer(&mut self, vertex: usize, first: bool) {
        if !self.locked[vertex] {
            let entry = Entry { gain: self.gain[vertex], chance: self.chance[vertex], vertex: vertex as u32 };
            self.open[usize::from(first)].push(entry);
        }
    }

    /// The best vertex of a side whose move keeps the bounds or comes nearer to them.
    fn next(&mut self, graph: &Graph, now: &Division, bounds: Bounds) -> Option<usize> {
        let must = bounds.violation(now.size) > 0;
        let may_leave = now.size > bounds.most || !must;
        let may_join = now.size < bounds.least || !must;
        let mut best: Option<(usize, usize)> = None;
        for (side, may) in [(1, may_leave), (0, may_join)] {
            if !may {
                continue;
            }
            let Some(vertex) = self.top(now, side) else { continue };
            let size =
                if side == 1 { now.size.checked_sub(graph.size[vertex])? } else { now.size + graph.size[vertex] };
            if !must && bounds.violation(size) > self.slack {
                continue;
            }
            // With equal gains the side that is nearer to its bound stays.
            let room = |side: usize| if side == 1 { now.size - bounds.least } else { bounds.most - now.size };
            let better = |&(other, other_side): &(usize, usize)| match self.gain[vertex].total_cmp(&self.gain[other]) {
                Ordering::Equal => !must && room(side) > room(other_side),
                order => order.is_gt(),
            };
            if best.as_ref().is_none_or(better) {
                best = Some((vertex, side));
            }
        }
        best.map(|(vertex, _)| vertex)
    }

    /// The vertex of a side with the best gain.
    fn top(&mut self, now: &Division, side: usize) -> Option<usize> {
        while let Some(entry) = self.open[side].peek() {
            let vertex = entry.vertex as usize;
            let current = !self.locked[vertex]
                && usize::from(now.first[vertex]) == side
                && entry.gain.to_bits() == self.gain[vertex].to_bits();
            if current {
                return Some(vertex);
            }
            self.open[side].pop();
        }
        None
    }

    fn moved(&mut self, graph: &Graph, first: &[bool], vertex: usize) {
        self.locked[vertex] = true;
        for &(other, weight) in graph.edges(vertex) {
            let other = other as usize;
            if !self.locked[other] {
                self.gain[other] += if first[other] == first[vertex] { -2.0 * weight } else { 2.0 * weight };
                self.offer(other, first[other]);
            }
        }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gain = self.gain.total_cmp(&other.gain);
        by_gain.then(self.chance.cmp(&other.chance)).then(self.vertex.cmp(&other.vertex))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// 0, 1, ... in random order.
pub fn shuffled(count: usize, rng: &mut Pcg64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, below(rng, at + 1));
    }
    order
}
