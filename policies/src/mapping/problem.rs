// SPDX-License-Identifier: GPL-2.0-only
//! The mapping problem in the form that the mappers work on, and the cost of mappings and of their changes.
//!
//! A pair of threads at places p and q costs weight x D(p, q) + skew x K(p, q), where D is the symmetric and K the
//! antisymmetric part of the distances. Only a quadratic assignment problem with two asymmetric matrices has skews.

use std::ops::Range;

/// What two threads have in common.
pub struct Edge {
    pub first: usize,
    pub second: usize,
    /// Both directions together.
    pub weight: f64,
    /// Direction first to second less the other one.
    pub skew: f64,
}

/// One end of an edge, as the thread at the other end sees it.
#[derive(Clone, Copy)]
pub struct Neighbour {
    pub thread: u32,
    pub weight: f64,
}

/// The extreme distances between the places of two threads, and the greatest antisymmetric one.
pub struct Floor {
    least: f64,
    greatest: f64,
    skew: f64,
}

/// Threads with their neighbours, places with their distances. Tables are flat, by row.
#[derive(Default)]
pub struct Problem {
    pub places: usize,
    first: Vec<usize>,
    neighbours: Vec<Neighbour>,
    /// Skew by neighbour; empty if all are 0.
    skew: Vec<f64>,
    /// Most threads by place.
    pub capacity: Vec<usize>,
    /// Symmetric distance by place and place.
    pub distance: Vec<f64>,
    /// Antisymmetric distance by place and place; empty if there is no skew.
    pub skew_distance: Vec<f64>,
    /// Cost of a thread at a place whatever the others do, by thread and place; empty if 0.
    pub own: Vec<f64>,
    /// By thread and place; empty if every place is allowed.
    pub allowed: Vec<bool>,
    /// Differences of cost below this are rounding.
    pub rounding: f64,
}

impl Problem {
    /// A problem whose places hold nobody yet. Edges of the same pair are added up.
    pub fn new(threads: usize, places: usize, edges: impl Iterator<Item = Edge>, distance: Vec<f64>) -> Self {
        let mut ends: Vec<(u32, u32, f64, f64)> = Vec::new();
        for Edge { first, second, weight, skew } in edges {
            ends.push((first as u32, second as u32, weight, skew));
            ends.push((second as u32, first as u32, weight, -skew));
        }
        ends.sort_by_key(|&(thread, other, ..)| (thread, other));
        ends.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same {
                kept.2 += next.2;
                kept.3 += next.3;
            }
            same
        });
        ends.retain(|&(_, _, weight, skew)| weight != 0.0 || skew != 0.0);
        let mut first = vec![0; threads + 1];
        for &(thread, ..) in &ends {
            first[thread as usize + 1] += 1;
        }
        for thread in 0..threads {
            first[thread + 1] += first[thread];
        }
        let skewed = ends.iter().any(|&(.., skew)| skew != 0.0);
        let greatest = distance.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        Self {
            places,
            first,
            rounding: 1e-12 * greatest * ends.iter().map(|&(_, _, weight, _)| weight.abs()).sum::<f64>(),
            neighbours: ends.iter().map(|&(_, thread, weight, _)| Neighbour { thread, weight }).collect(),
            skew: if skewed { ends.iter().map(|&(.., skew)| skew).collect() } else { Vec::new() },
            distance,
            ..Self::default()
        }
    }

    pub fn threads(&self) -> usize {
        self.first.len() - 1
    }

    fn range(&self, thread: usize) -> Range<usize> {
        self.first[thread]..self.first[thread + 1]
    }

    pub fn neighbours(&self, thread: usize) -> &[Neighbour] {
        &self.neighbours[self.range(thread)]
    }

    /// Neighbour, weight and skew by end.
    pub fn ends_of(&self, thread: usize) -> impl Iterator<Item = (usize, f64, f64)> {
        let end = |index: usize| {
            (
                self.neighbours[index].thread as usize,
                self.neighbours[index].weight,
                self.skew.get(index).copied().unwrap_or(0.0),
            )
        };
        self.range(thread).map(end)
    }

    /// Whether every place holds one thread, and anyone.
    pub fn is_one_to_one(&self) -> bool {
        self.capacity.iter().all(|&room| room == 1) && self.allowed.is_empty()
    }

    /// Ends of edges: twice the number of pairs that share.
    pub fn ends(&self) -> usize {
        self.neighbours.len()
    }

    pub fn allows(&self, thread: usize, place: usize) -> bool {
        self.allowed.is_empty() || self.allowed[thread * self.places + place]
    }

    pub fn distance(&self, from: usize, to: usize) -> f64 {
        self.distance[from * self.places + to]
    }

    pub fn skew_distance_at(&self, from: usize, to: usize) -> f64 {
        if self.skew_distance.is_empty() { 0.0 } else { self.skew_distance[from * self.places + to] }
    }

    fn own(&self, thread: usize, place: usize) -> f64 {
        if self.own.is_empty() { 0.0 } else { self.own[thread * self.places + place] }
    }

    /// Mean cost of a thread at some places whatever the others do.
    pub fn own_mean(&self, thread: usize, places: &[usize]) -> f64 {
        if self.own.is_empty() {
            return 0.0;
        }
        places.iter().map(|&place| self.own(thread, place)).sum::<f64>() / places.len() as f64
    }

    /// What each place would cost `thread`, neighbours for which `counts` is false left out.
    pub fn pulls(&self, place: &[u32], thread: usize, counts: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut pulls: Vec<f64> = (0..self.places).map(|at| self.own(thread, at)).collect();
        for index in self.range(thread) {
            let other = self.neighbours[index].thread as usize;
            if counts(other) {
                self.add_pull(&mut pulls, index, place[other] as usize, [1.0, 1.0]);
            }
        }
        pulls
    }

    /// Adds what an end costs at each place while the thread at its other end is at `other`; `signs` of weight and skew.
    fn add_pull(&self, pulls: &mut [f64], index: usize, other: usize, signs: [f64; 2]) {
        let weight = signs[0] * self.neighbours[index].weight;
        let row = &self.distance[other * self.places..][..self.places];
        for (pull, distance) in pulls.iter_mut().zip(row) {
            *pull += weight * distance;
        }
        if !self.skew.is_empty() {
            // K(p, other) = -K(other, p)
            let skew = signs[1] * self.skew[index];
            let row = &self.skew_distance[other * self.places..][..self.places];
            for (pull, distance) in pulls.iter_mut().zip(row) {
                *pull -= skew * distance;
            }
        }
    }

    /// Adds what `thread` costs its neighbours at each place while it is at `at` to the table of pulls (by thread and place).
    pub fn arrive(&self, pulls: &mut [f64], thread: usize, at: usize) {
        for index in self.range(thread) {
            let other = self.neighbours[index].thread as usize;
            // Seen from the other end the skew has the other sign, as K the other way round has.
            self.add_pull(&mut pulls[other * self.places..][..self.places], index, at, [1.0, -1.0]);
        }
    }

    /// Carries a move of `thread` over to the table of pulls (by thread and place) of its neighbours.
    pub fn carry(&self, pulls: &mut [f64], thread: usize, from: usize, to: usize) {
        for index in self.range(thread) {
            let other = self.neighbours[index].thread as usize;
            let row = &mut pulls[other * self.places..][..self.places];
            self.add_pull(row, index, from, [-1.0, 1.0]);
            self.add_pull(row, index, to, [1.0, -1.0]);
        }
    }

    /// Cost of a mapping, from scratch.
    pub fn cost(&self, place: &[u32]) -> f64 {
        let mut twice = 0.0;
        let mut own = 0.0;
        for thread in 0..self.threads() {
            let at = place[thread] as usize;
            own += self.own(thread, at);
            for index in self.range(thread) {
                let Neighbour { thread: other, weight } = self.neighbours[index];
                let pair = at * self.places + place[other as usize] as usize;
                twice += weight * self.distance[pair];
                if !self.skew.is_empty() {
                    twice += self.skew[index] * self.skew_distance[pair];
                }
            }
        }
        twice / 2.0 + own
    }

    /// Change of cost when `thread` goes to `to` and nobody else moves.
    pub fn move_change(&self, place: &[u32], thread: usize, to: usize) -> f64 {
        self.move_and_weight(place, thread, to, u32::MAX).0
    }

    /// The same, and the weight between `thread` and `partner` (0 if they do not share).
    fn move_and_weight(&self, place: &[u32], thread: usize, to: usize, partner: u32) -> (f64, f64) {
        let from = place[thread] as usize;
        let far = &self.distance[from * self.places..][..self.places];
        let near = &self.distance[to * self.places..][..self.places];
        let mut change = self.own(thread, to) - self.own(thread, from);
        let mut shared = 0.0;
        for &Neighbour { thread: other, weight } in self.neighbours(thread) {
            let at = place[other as usize] as usize;
            change += weight * (near[at] - far[at]);
            if other == partner {
                shared = weight;
            }
        }
        if !self.skew.is_empty() {
            for index in self.range(thread) {
                let at = place[self.neighbours[index].thread as usize] as usize;
                let (near, far) = (to * self.places + at, from * self.places + at);
                change += self.skew[index] * (self.skew_distance[near] - self.skew_distance[far]);
            }
        }
        (change, shared)
    }

    /// Change of cost when two threads change places.
    pub fn swap_change(&self, place: &[u32], first: usize, second: usize) -> f64 {
        let (here, there) = (place[first] as usize, place[second] as usize);
        let (change, weight) = self.move_and_weight(place, first, there, second as u32);
        change + self.move_change(place, second, here) + weight * self.swap_correction(here, there)
    }

    /// What two single moves count wrongly, by weight, when both ends of a pair change places: each sees the other where it
    /// was. Of skews nothing is counted wrongly.
    pub fn swap_correction(&self, here: usize, there: usize) -> f64 {
        2.0 * self.distance(here, there) - self.distance(here, here) - self.distance(there, there)
    }

    /// What pairs can cost at the least.
    pub fn floor(&self) -> Floor {
        let pairs = (0..self.places).flat_map(|p| (0..self.places).map(move |q| (p, q)));
        let open = |&(p, q): &(usize, usize)| {
            if p == q { self.capacity[p] > 1 } else { self.capacity[p] > 0 && self.capacity[q] > 0 }
        };
        let open: Vec<f64> = pairs.filter(open).map(|(p, q)| self.distance(p, q)).collect();
        let skew = self.skew_distance.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        if open.is_empty() {
            return Floor { least: 0.0, greatest: 0.0, skew };
        }
        let least = open.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = open.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Floor { least, greatest, skew }
    }

    /// The least that the pair of `thread` and its neighbour number `index` can cost.
    pub fn least_pair_cost(&self, thread: usize, index: usize, floor: &Floor) -> f64 {
        let at = self.first[thread] + index;
        let (weight, skew) = (self.neighbours[at].weight, self.skew.get(at).copied().unwrap_or(0.0));
        (weight * floor.least).min(weight * floor.greatest) - skew.abs() * floor.skew
    }

    /// No mapping costs less than this: every pair at its least, every thread at its cheapest place.
    pub fn lower_bound(&self) -> f64 {
        let floor = self.floor();
        let of = |thread: usize| {
            let ends = self.range(thread).len();
            let pairs: f64 = (0..ends).map(|index| self.least_pair_cost(thread, index, &floor)).sum();
            let own = (0..self.places).filter(|&place| self.allows(thread, place)).map(|place| self.own(thread, place));
            let own = own.fold(f64::INFINITY, f64::min);
            pairs / 2.0 + if own.is_finite() { own } else { 0.0 }
        };
        (0..self.threads()).map(of).sum()
    }
}
