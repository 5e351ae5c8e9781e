// SPDX-License-Identifier: GPL-2.0-only
//! Tabu search by exchanges of two threads, for one thread a place: short runs that [`super::memetic`] starts.
//!
//! An iteration makes the best exchange that is not tabu. One is tabu if it takes both threads back to places that they left less than a
//! random number of iterations ago, unless it beats the best mapping. When a pair stops being tabu is kept by pair, so that a look at all
//! pairs goes along two tables.

use rand_pcg::Pcg64;

use super::changes::{Changes, Dense, LANES, Number, Square};
use crate::anneal::below;

/// An exchange stays tabu for so many iterations by thread, at least and at most.
const TENURE: [f64; 2] = [0.2, 0.8];
/// More than any change of cost, and little enough that a tenure times this is finite.
const TABU: f64 = 1e30;

/// Tabu search from one mapping.
pub struct Exchanges<F> {
    changes: Changes<F>,
    place: Vec<u32>,
    cost: f64,
    pub best: Vec<u32>,
    pub best_cost: f64,
    /// Iteration until which a thread may not go back to a place.
    until: Vec<i32>,
    /// The same by pair of threads, both on their way back.
    expiry: Square<F>,
    iteration: i32,
    /// The best exchange of all, and of those that are not tabu.
    any: Option<Exchange>,
    free: Option<Exchange>,
    rounding: f64,
    /// Iterations since the last best one.
    pub stale: usize,
}

#[derive(Clone, Copy)]
struct Exchange {
    change: f64,
    threads: [usize; 2],
}

/// The least entry of a table and the row it is in.
struct Least<F> {
    value: F,
    row: usize,
}

impl<F: Number> Exchanges<F> {
    /// Search from `place`; changes of cost below `rounding` are none.
    pub fn new(dense: &Dense<F>, place: Vec<u32>, rounding: f64) -> Self {
        let (size, cost) = (dense.size, dense.cost(&place));
        Self {
            changes: Changes::new(dense, &place),
            best: place.clone(),
            place,
            cost,
            best_cost: cost,
            until: vec![0; size * size],
            expiry: Square::new(size, F::ZERO),
            iteration: 0,
            any: None,
            free: None,
            rounding,
            stale: 0,
        }
    }

    /// Fills a row of the tables; whether that is done.
    pub fn prepare(&mut self) -> bool {
        let ready = self.changes.prepare();
        if ready {
            let (mut any, mut free) = (Least::none(), Least::none());
            for u in 0..self.place.len() {
                let (from, row) = self.changes.row(u);
                see(u, row, &self.expiry.row(u)[from..], F::ZERO, &mut any, &mut free);
            }
            self.choose(&any, &free);
        }
        ready
    }

    /// Makes an exchange; false if there are no two threads.
    pub fn step(&mut self, rng: &mut Pcg64) -> bool {
        let aspired = self.any.filter(|any| self.cost + any.change < self.best_cost - self.rounding);
        let Some(Exchange { change, threads: [u, v] }) = aspired.or(self.free).or(self.any) else { return false };
        self.iteration += 1;
        self.cost += change;
        let size = self.place.len();
        for thread in [u, v] {
            let [least, most] = TENURE.map(|tenure| (tenure * size as f64) as usize);
            let tenure = least + below(rng, most - least + 1);
            self.until[thread * size + self.place[thread] as usize] = self.iteration + tenure as i32;
        }
        self.place.swap(u, v);
        self.forbid(u, v);
        let now = F::of(f64::from(self.iteration));
        let (mut any, mut free) = (Least::none(), Least::none());
        let expiry = &self.expiry;
        self.changes.exchange(u, v, |row, from, changes| {
            see(row, changes, &expiry.row(row)[from..], now, &mut any, &mut free);
        });
        self.choose(&any, &free);
        self.stale += 1;
        if self.cost < self.best_cost - self.rounding {
            self.best_cost = self.cost;
            self.best.copy_from_slice(&self.place);
            self.stale = 0;
        }
        true
    }

    /// Pairs of which one thread is at another place now.
    fn forbid(&mut self, u: usize, v: usize) {
        let size = self.place.len();
        for other in 0..size {
            for moved in [u, v] {
                let back = |thread: usize, to: usize| self.until[thread * size + self.place[to] as usize];
                let until = back(moved, other).min(back(other, moved));
                self.expiry.set(moved.min(other), moved.max(other), F::of(f64::from(until)));
            }
        }
    }

    fn choose(&mut self, any: &Least<F>, free: &Least<F>) {
        let now = F::of(f64::from(self.iteration));
        let find = |least: &Least<F>, any: bool| {
            let (from, row) = self.changes.row(least.row);
            let expiry = &self.expiry.row(least.row)[from..];
            let fits = |&at: &usize| row[at] == least.value && (any || expiry[at] <= now);
            let at = (0..row.len()).find(fits)?;
            Some(Exchange { change: least.value.value(), threads: [least.row, from + at] })
        };
        let some = |least: &Least<F>| least.value < F::of(TABU);
        let (any, free) =
            (some(any).then(|| find(any, true)).flatten(), some(free).then(|| find(free, false)).flatten());
        (self.any, self.free) = (any, free);
    }
}

impl<F: Number> Least<F> {
    fn none() -> Self {
        Self { value: F::INFINITY, row: 0 }
    }

    fn offer(&mut self, value: F, row: usize) {
        if value < self.value {
            (self.value, self.row) = (value, row);
        }
    }
}

/// Looks at a row of changes and of when they stop being tabu. Sums instead of choices make it vectors.
fn see<F: Number>(row: usize, changes: &[F], expiry: &[F], now: F, any: &mut Least<F>, free: &mut Least<F>) {
    let smaller = |a: F, b: F| if a < b { a } else { b };
    let (mut least, mut least_free) = ([F::INFINITY; LANES], [F::INFINITY; LANES]);
    let (changes, expiry) = (changes.as_chunks::<LANES>().0, expiry.as_chunks::<LANES>().0);
    for (changes, expiry) in changes.iter().zip(expiry) {
        for lane in 0..LANES {
            let left = expiry[lane] - now;
            let left = if left > F::ZERO { left } else { F::ZERO };
            least[lane] = smaller(changes[lane], least[lane]);
            least_free[lane] = smaller(changes[lane] + left * F::of(TABU), least_free[lane]);
        }
    }
    any.offer(least.into_iter().fold(F::INFINITY, smaller), row);
    free.offer(least_free.into_iter().fold(F::INFINITY, smaller), row);
}
