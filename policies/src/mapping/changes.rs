// SPDX-License-Identifier: GPL-2.0-only
//! By how much every exchange of two threads would change the cost, kept while exchanges are made, for one thread a place.
//!
//! Problem: tabu search wants the best of all n (n - 1) / 2 exchanges in each iteration. Mechanism: for a cost that is the
//! sum over pairs of A(u, v) B(p(u), p(v)), an exchange of r and s alters the change of every other pair (u, v) by
//! (x(u) - x(v)) (y(u) - y(v)), where x(u) = A(u, r) - A(u, s) and y(u) = B(p(u), p(r)) - B(p(u), p(s)): Taillard's O(1) rule.
//! Pairs with r or s follow from the pulls: what u would cost at the place of v while the others stay, which alter by
//! -x(u) y(v). That is 1.5 n^2 products for an exchange, all along rows and without a branch, so that they are made as vectors.
//!
//! Tables that concern places are kept in the order of the threads there. An antisymmetric A with an antisymmetric B (see
//! [`Problem`]) is a second layer under the same rule.

use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

use super::problem::Problem;

/// Numbers of the tables: `f32` where it is exact, being twice as fast, else `f64`.
pub trait Number:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + AddAssign + SubAssign
{
    const ZERO: Self;
    const INFINITY: Self;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    const INFINITY: Self = f32::INFINITY;
    fn of(value: f64) -> Self {
        value as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    const INFINITY: Self = f64::INFINITY;
    fn of(value: f64) -> Self {
        value
    }
    fn value(self) -> f64 {
        self
    }
}

/// Entries handled together: a row is a whole number of them.
pub const LANES: usize = 8;

/// A square table.
#[derive(Clone)]
pub struct Square<F> {
    stride: usize,
    entries: Vec<F>,
}

/// A problem with one thread a place as whole tables. Threads that are missing share nothing.
pub struct Dense<F> {
    pub size: usize,
    layers: Vec<[Square<F>; 2]>,
    own: Option<Square<F>>,
}

/// The changes of all exchanges of one mapping.
pub struct Changes<F> {
    size: usize,
    layers: Vec<Layer<F>>,
    /// Cost by thread and by whose place it is at.
    pulls: Square<F>,
    /// Change of cost by thread and later thread; infinite elsewhere.
    change: Square<F>,
    /// Rows of pulls that are there.
    ready: usize,
}

struct Layer<F> {
    a: Square<F>,
    /// By thread and thread: between their places.
    b: Square<F>,
    /// B(v, u) is this times B(u, v).
    sign: F,
    x: Vec<F>,
    y: Vec<F>,
}

impl<F: Number> Square<F> {
    pub fn new(size: usize, fill: F) -> Self {
        let stride = size.next_multiple_of(LANES);
        Self { stride, entries: vec![fill; size * stride] }
    }

    fn from_fn(size: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let mut square = Self::new(size, F::ZERO);
        for row in 0..size {
            for column in 0..size {
                square.set(row, column, F::of(value(row, column)));
            }
        }
        square
    }

    pub fn row(&self, row: usize) -> &[F] {
        &self.entries[row * self.stride..][..self.stride]
    }

    fn row_mut(&mut self, row: usize) -> &mut [F] {
        &mut self.entries[row * self.stride..][..self.stride]
    }

    pub fn at(&self, row: usize, column: usize) -> F {
        self.entries[row * self.stride + column]
    }

    pub fn set(&mut self, row: usize, column: usize, value: F) {
        self.entries[row * self.stride + column] = value;
    }

    fn permuted(&self, size: usize, row: impl Fn(usize) -> usize, column: impl Fn(usize) -> usize) -> Self {
        let mut permuted = Self::new(size, F::ZERO);
        for to in 0..size {
            let from = self.row(row(to));
            for (at, entry) in permuted.row_mut(to)[..size].iter_mut().enumerate() {
                *entry = from[column(at)];
            }
        }
        permuted
    }

    fn swap_columns(&mut self, a: usize, b: usize) {
        for row in self.entries.chunks_exact_mut(self.stride) {
            row.swap(a, b);
        }
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        let (low, high) = (a.min(b), a.max(b));
        let (front, back) = self.entries.split_at_mut(high * self.stride);
        front[low * self.stride..][..self.stride].swap_with_slice(&mut back[..self.stride]);
    }
}

/// Whether all sums that the tables of `problem` can hold are numbers that `f32` has: whole ones and halves.
pub fn is_exact_in_f32(problem: &Problem) -> bool {
    let tables = [&problem.distance, &problem.skew_distance, &problem.own];
    // Means of two whole distances may be halves, which take one more digit.
    let is_multiple = |unit: f64| tables.iter().all(|table| table.iter().all(|value| (value / unit).fract() == 0.0));
    let most = |values: &[f64]| values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    let (mut weight, mut skew, mut is_whole) = (0.0f64, 0.0f64, true);
    for thread in 0..problem.threads() {
        let ends =
            |skewed: bool| problem.ends_of(thread).map(move |(_, weight, skew)| if skewed { skew } else { weight });
        is_whole &= ends(false).chain(ends(true)).all(|value| value.fract() == 0.0);
        weight = weight.max(ends(false).map(f64::abs).sum());
        skew = skew.max(ends(true).map(f64::abs).sum());
    }
    // A change is the sum of four pulls and what two threads share.
    let most_change =
        5.0 * (weight * most(&problem.distance) + skew * most(&problem.skew_distance) + most(&problem.own));
    let exact_below = f64::from(1 << f32::MANTISSA_DIGITS);
    is_whole && (is_multiple(1.0) && most_change < exact_below || is_multiple(0.5) && 2.0 * most_change < exact_below)
}

impl<F: Number> Dense<F> {
    /// The tables of a problem whose places hold one thread each, anyone.
    pub fn new(problem: &Problem) -> Self {
        let size = problem.places;
        let table = |skewed: bool| {
            let mut square = Square::new(size, F::ZERO);
            for thread in 0..problem.threads() {
                for (other, weight, skew) in problem.ends_of(thread) {
                    square.set(thread, other, F::of(if skewed { skew } else { weight }));
                }
            }
            square
        };
        // Nobody shares a place, so what sharing one would cost does not matter.
        let apart = |p: usize, q: usize| if p == q { 0.0 } else { problem.distance(p, q) };
        let mut layers = vec![[table(false), Square::from_fn(size, apart)]];
        if !problem.skew_distance.is_empty() {
            layers.push([table(true), Square::from_fn(size, |p, q| problem.skew_distance_at(p, q))]);
        }
        let of = |thread: usize, place: usize| {
            if thread < problem.threads() { problem.own[thread * size + place] } else { 0.0 }
        };
        let own = (!problem.own.is_empty()).then(|| Square::from_fn(size, of));
        Self { size, layers, own }
    }

    /// The cost of a mapping.
    pub fn cost(&self, place: &[u32]) -> f64 {
        let mut cost = 0.0;
        for thread in 0..self.size {
            let at = place[thread] as usize;
            for [a, b] in &self.layers {
                let (a, b) = (&a.row(thread)[..thread], b.row(at));
                cost += a.iter().zip(place).map(|(a, &other)| a.value() * b[other as usize].value()).sum::<f64>();
            }
            cost += self.own.as_ref().map_or(0.0, |own| own.at(thread, at).value());
        }
        cost
    }
}

impl<F: Number> Changes<F> {
    /// The tables of a mapping, still to be filled by [`Changes::prepare`].
    pub fn new(dense: &Dense<F>, place: &[u32]) -> Self {
        let size = dense.size;
        let at = |thread: usize| place[thread] as usize;
        let layer = |(number, [a, b]): (usize, &[Square<F>; 2])| Layer {
            a: a.clone(),
            b: b.permuted(size, at, at),
            sign: F::of(if number == 0 { 1.0 } else { -1.0 }),
            x: vec![F::ZERO; a.stride],
            y: vec![F::ZERO; a.stride],
        };
        let own = dense.own.as_ref().map(|own| own.permuted(size, |thread| thread, at));
        Self {
            size,
            layers: dense.layers.iter().enumerate().map(layer).collect(),
            pulls: own.unwrap_or_else(|| Square::new(size, F::ZERO)),
            change: Square::new(size, F::INFINITY),
            ready: 0,
        }
    }

    /// Fills a row of pulls, and the changes after the last one; whether that is done.
    pub fn prepare(&mut self) -> bool {
        if self.ready == self.size {
            return true;
        }
        let pulls = self.pulls.row_mut(self.ready);
        for layer in &self.layers {
            for (other, &a) in layer.a.row(self.ready)[..self.size].iter().enumerate() {
                if a != F::ZERO {
                    let a = a * layer.sign;
                    for (pull, &b) in pulls.iter_mut().zip(layer.b.row(other)) {
                        *pull += a * b;
                    }
                }
            }
        }
        self.ready += 1;
        if self.ready == self.size {
            for u in 0..self.size {
                self.set_from_pulls(u, u + 1..self.size);
            }
        }
        self.ready == self.size
    }

    /// Changes by exchanging `u` with later threads, from the block of lanes with the first of them; where that is.
    pub fn row(&self, u: usize) -> (usize, &[F]) {
        let from = (u + 1) / LANES * LANES;
        (from, &self.change.row(u)[from..])
    }

    /// Exchanges `r` and `s`, and shows each row of changes that follow (as [`Changes::row`]) to `see`.
    pub fn exchange(&mut self, r: usize, s: usize, mut see: impl FnMut(usize, usize, &[F])) {
        for layer in &mut self.layers {
            layer.differences(r, s);
            for (u, &x) in layer.x[..self.size].iter().enumerate() {
                if x != F::ZERO {
                    for (pull, &y) in self.pulls.row_mut(u).iter_mut().zip(&layer.y) {
                        *pull -= x * y;
                    }
                }
            }
            layer.b.swap_columns(r, s);
            layer.b.swap_rows(r, s);
        }
        self.pulls.swap_columns(r, s);
        for u in 0..self.size {
            let from = (u + 1) / LANES * LANES;
            for layer in &self.layers {
                let (x, y) = (layer.x[u], layer.y[u]);
                let row = self.change.row_mut(u)[from..].iter_mut();
                for ((change, &other_x), &other_y) in row.zip(&layer.x[from..]).zip(&layer.y[from..]) {
                    *change += (x - other_x) * (y - other_y);
                }
            }
            if u == r || u == s {
                self.set_from_pulls(u, u + 1..self.size);
            } else {
                self.set_from_pulls(u, [r, s].into_iter().filter(|&v| v > u));
            }
            see(u, from, &self.change.row(u)[from..]);
        }
    }

    fn set_from_pulls(&mut self, u: usize, others: impl Iterator<Item = usize>) {
        let (pulls, symmetric) = (&self.pulls, &self.layers[0]);
        for v in others {
            // Two single moves see the other thread where it was.
            let shared = symmetric.a.at(u, v) * symmetric.b.at(u, v);
            let change = pulls.at(u, v) + pulls.at(v, u) - pulls.at(u, u) - pulls.at(v, v) + shared + shared;
            self.change.set(u, v, change);
        }
    }
}

impl<F: Number> Layer<F> {
    /// Columns are rows with the sign of the layer. As x and y would both have it, their products do not.
    fn differences(&mut self, r: usize, s: usize) {
        let fill = |to: &mut [F], one: &[F], other: &[F]| {
            for ((to, &one), &other) in to.iter_mut().zip(one).zip(other) {
                *to = one - other;
            }
        };
        fill(&mut self.x, self.a.row(r), self.a.row(s));
        fill(&mut self.y, self.b.row(r), self.b.row(s));
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;
    use rand_pcg::Pcg64;

    use super::super::qap::Qap;
    use super::super::qap::tests::random_text;
    use super::*;
    use crate::anneal::below;

    const SIZE: usize = 11;

    fn problem(seed: u64, asymmetric: bool) -> Problem {
        Qap::parse(&random_text(seed, SIZE, asymmetric)).unwrap().problem()
    }

    /// Makes exchanges at random, and compares every change after each of them with the difference of two costs.
    fn check<F: Number>(seed: u64, asymmetric: bool) {
        let problem = problem(seed, asymmetric);
        let mut place: Vec<u32> = (0..SIZE as u32).rev().collect();
        let dense = Dense::<F>::new(&problem);
        let mut changes = Changes::new(&dense, &place);
        while !changes.prepare() {}
        let mut rng = Pcg64::seed_from_u64(seed);
        for _ in 0..10 {
            let r = below(&mut rng, SIZE);
            let s = (r + 1 + below(&mut rng, SIZE - 1)) % SIZE;
            place.swap(r, s);
            changes.exchange(r, s, |u, from, row| {
                for (at, change) in row.iter().enumerate() {
                    let (change, other) = (change.value(), from + at);
                    if other <= u || other >= SIZE {
                        assert_eq!(change, f64::INFINITY, "{u} {other}");
                        continue;
                    }
                    let mut exchanged = place.clone();
                    exchanged.swap(u, other);
                    let expected = problem.cost(&exchanged) - problem.cost(&place);
                    assert!((change - expected).abs() < 1e-6, "{u} {other}: {change}, {expected}");
                }
            });
            assert!((dense.cost(&place) - problem.cost(&place)).abs() < 1e-6);
        }
    }

    #[test]
    fn changes_are_those_of_the_costs_after_every_exchange() {
        for seed in 0..4 {
            for asymmetric in [false, true] {
                check::<f32>(seed, asymmetric);
                check::<f64>(seed, asymmetric);
            }
        }
    }

    #[test]
    fn small_whole_numbers_are_exact_in_f32_and_others_are_not() {
        assert!(is_exact_in_f32(&problem(1, true)));
        let of = |a: &str| is_exact_in_f32(&Qap::parse(&format!("2 0 {a} {a} 0 0 3 3 0")).unwrap().problem());
        assert!(of("1000") && !of("0.25") && !of("1e6"));
    }
}
