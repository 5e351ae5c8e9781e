// SPDX-License-Identifier: GPL-2.0-only
//! Refinement of a division of a graph: passes of moves in order of gain, each vertex at most once in a pass, back to the
//! best prefix of the pass (Fiduccia and Mattheyses). It can be stopped and continued after any move.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rand_core::Rng;
use rand_pcg::Pcg64;

use super::graph::{Bounds, Division, Graph};

/// Most passes of moves on one graph.
const PASSES: usize = 8;

/// Passes over one graph.
pub struct Refinement {
    now: Division,
    /// The key of `now` when the pass began.
    before: (usize, f64),
    pass: Option<Pass>,
    passes: usize,
}

/// One pass: the vertices that can still move, by side, best gain first. Entries out of date are left in and skipped.
struct Pass {
    gain: Vec<f64>,
    /// Random order of equal gains.
    chance: Vec<u32>,
    locked: Vec<bool>,
    open: [BinaryHeap<Entry>; 2],
    /// The greatest size of a vertex: how far the bounds may be overstepped on the way.
    slack: usize,
    moved: Vec<usize>,
    /// Moves of the best prefix, and its key.
    best: usize,
    best_key: (usize, f64),
}

struct Entry {
    gain: f64,
    chance: u32,
    vertex: u32,
}

impl Refinement {
    /// Refinement of `start`.
    pub fn new(start: Division, bounds: Bounds) -> Self {
        Self { before: start.key(bounds), now: start, pass: None, passes: 0 }
    }

    /// Moves vertices until `steps` reaches `until`; whether it is over.
    pub fn run(&mut self, graph: &Graph, bounds: Bounds, rng: &mut Pcg64, steps: &mut u64, until: u64) -> bool {
        while *steps < until {
            let Some(pass) = &mut self.pass else {
                if self.passes == PASSES {
                    return true;
                }
                *steps += graph.sweep_steps();
                self.passes += 1;
                self.before = self.now.key(bounds);
                self.pass = Some(Pass::new(graph, &self.now, bounds, rng));
                continue;
            };
            if pass.step(graph, &mut self.now, bounds, steps) {
                continue;
            }
            *steps += graph.sweep_steps();
            for &vertex in &pass.moved[pass.best..] {
                self.now.first[vertex] = !self.now.first[vertex];
            }
            self.now = graph.division(std::mem::take(&mut self.now.first));
            self.pass = None;
            let (before, after) = (self.before, self.now.key(bounds));
            if after.0 >= before.0 && after.1 >= before.1 - 1e-9 * before.1.abs() {
                self.passes = PASSES;
            }
        }
        false
    }

    /// The division once it is over.
    pub fn into_division(self) -> Division {
        self.now
    }
}

impl Pass {
    fn new(graph: &Graph, division: &Division, bounds: Bounds, rng: &mut Pcg64) -> Self {
        let mut pass = Self {
            gain: (0..graph.len()).map(|vertex| graph.gain(&division.first, vertex)).collect(),
            chance: (0..graph.len()).map(|_| (rng.next_u64() >> 32) as u32).collect(),
            locked: graph.fixed.iter().map(Option::is_some).collect(),
            open: [BinaryHeap::new(), BinaryHeap::new()],
            slack: graph.size.iter().copied().max().unwrap_or(0),
            moved: Vec::new(),
            best: 0,
            best_key: division.key(bounds),
        };
        for vertex in 0..graph.len() {
            pass.offer(vertex, division.first[vertex]);
        }
        pass
    }

    /// Moves the next vertex; false at the end of the pass.
    fn step(&mut self, graph: &Graph, now: &mut Division, bounds: Bounds, steps: &mut u64) -> bool {
        let patience = 64 + graph.len() / 16;
        let Some(vertex) = self.next(graph, now, bounds) else { return false };
        now.cost -= self.gain[vertex];
        now.size = if now.first[vertex] { now.size - graph.size[vertex] } else { now.size + graph.size[vertex] };
        now.first[vertex] = !now.first[vertex];
        self.carry(graph, &now.first, vertex);
        self.moved.push(vertex);
        *steps += 1 + graph.edges(vertex).len() as u64 / 2;
        let key = now.key(bounds);
        if key.0.cmp(&self.best_key.0).then(key.1.total_cmp(&self.best_key.1)).is_lt() {
            (self.best, self.best_key) = (self.moved.len(), key);
        }
        self.moved.len() - self.best <= patience
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

    fn carry(&mut self, graph: &Graph, first: &[bool], vertex: usize) {
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
