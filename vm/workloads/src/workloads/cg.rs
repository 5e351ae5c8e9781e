// SPDX-License-Identifier: GPL-2.0-only
//! `cg`: conjugate gradients on a sparse matrix, with the sharing pattern of the NAS code CG.
//!
//! Rows are partitioned; a thread streams its rows of the matrix and gathers elements of the direction vector from all
//! other threads' parts; two sums over all threads in each iteration. As in NAS CG, every solve makes 25 iterations.
//! The matrix is symmetric: 20 on the diagonal, -1 at 8 distances (drawn from the seed) to either side, cyclic. Its
//! condition is below 9, so 25 iterations reduce the error by more than 10^7; the right side is made from a known
//! solution, and every solve must arrive there.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Fill, Plan, Program, Region, Request};
use crate::frame::seating::mix;
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::worker::Worker;
use crate::workloads::kernel::{BEST, Layout, WORST, alone, part};
use anyhow::{Result, bail};
use std::ops::Range;

/// Distances at which a row has elements, to either side.
const DISTANCES: usize = 8;
/// Elements of a row: the diagonal and two for each distance.
const ROW: usize = 1 + 2 * DISTANCES;
const DIAGONAL: f64 = 20.0;
const ITERATIONS: usize = 25;
/// Largest error of an element of the solution, which is between 1 and 2.
const ERROR: f64 = 1e-5;
/// Regions.
const MATRIX: usize = 0;
const RIGHT: usize = 1;
const SOLUTION: usize = 2;
const RESIDUAL: usize = 3;
const DIRECTION: usize = 4;
const PRODUCT: usize = 5;
const SUMS: usize = 6;
/// Words of an element of the matrix.
const COLUMN: usize = 0;
const VALUE: usize = 1;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "cg",
    summary: "conjugate gradients on a sparse matrix: private rows, a vector that everybody reads, sums over all",
    sizes: &[
        THREADS,
        size("rows", 65_536, "rows", "rows of the matrix; each takes 17 lines, and 5 for vectors"),
        size("solves", 45, "solves", "solves of 25 iterations each"),
    ],
    metric: Metric::Seconds,
    work_unit: "matrix elements",
    best: BEST,
    worst: WORST,
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let layout = Layout::of_machine(request)?;
    let (rows, solves) = (request.sizes.of("rows") as usize, request.sizes.of("solves"));
    if rows < 64 * layout.places.len() {
        bail!("--rows {rows}: at least 64 for each of {} threads", layout.places.len());
    }
    Ok(alone(program(&layout, rows, solves, request.random(0))))
}

/// A program that solves so many systems of `rows` rows.
pub fn program(layout: &Layout, rows: usize, solves: u64, seed: u64) -> Program {
    let matrix = Matrix { rows, distances: std::array::from_fn(|which| distance(which, rows, seed)), seed };
    let array = |lines: usize, fill: Fill| Region { bytes: lines * LINE_BYTES, home: layout.home.clone(), fill };
    let zeros = || -> Fill { Box::new(|lines, range| range.for_each(|index| lines[index].set_real(0, 0.0))) };
    let regions = vec![
        array(ROW * rows, Box::new(move |lines, range| matrix.fill(lines, range))),
        array(rows, Box::new(move |lines, range| range.for_each(|row| lines[row].set_real(0, matrix.right(row))))),
        array(rows, zeros()),
        array(rows, zeros()),
        array(rows, zeros()),
        array(rows, zeros()),
        array(layout.places.len(), zeros()),
    ];
    let threads = layout.places.len();
    let threads = layout.threads(move |worker| {
        let own = part(rows, worker.number, threads);
        for _ in 0..solves {
            Solver::new(worker, own.clone(), threads).solve(worker);
            matrix.check_solution(worker.lines(SOLUTION), own.clone())?;
        }
        Ok(())
    });
    let check = move |memory: &[Memory]| matrix.check_solution(memory[SOLUTION].lines(), 0..rows);
    Program { start: layout.start, regions, threads, check: Some(Box::new(check)) }
}

/// The `which`-th distance: random, and different from all others and their mirror images.
fn distance(which: usize, rows: usize, seed: u64) -> usize {
    let slice = rows / 2 / (DISTANCES + 1);
    (which + 1) * slice + mix(seed ^ which as u64) as usize % slice.max(1)
}

/// The system of equations.
#[derive(Clone, Copy)]
struct Matrix {
    rows: usize,
    distances: [usize; DISTANCES],
    seed: u64,
}

impl Matrix {
    /// Column and value of element `element` of row `row`.
    fn element(&self, row: usize, element: usize) -> (usize, f64) {
        let distance = |which: usize| self.distances[which % DISTANCES];
        match element {
            0 => (row, DIAGONAL),
            1..=DISTANCES => ((row + distance(element - 1)) % self.rows, -1.0),
            _ => ((row + self.rows - distance(element - 1)) % self.rows, -1.0),
        }
    }

    fn fill(&self, lines: &[Line], range: Range<usize>) {
        for index in range {
            let (column, value) = self.element(index / ROW, index % ROW);
            lines[index].set(COLUMN, column as u64);
            lines[index].set_real(VALUE, value);
        }
    }

    /// The known solution.
    fn solution(&self, row: usize) -> f64 {
        1.0 + (mix(self.seed ^ row as u64) >> 40) as f64 / (1u64 << 24) as f64
    }

    /// The right side that belongs to it.
    fn right(&self, row: usize) -> f64 {
        let products = (0..ROW).map(|element| {
            let (column, value) = self.element(row, element);
            value * self.solution(column)
        });
        products.sum()
    }

    fn check_solution(&self, solution: &[Line], rows: Range<usize>) -> Result<()> {
        for row in rows {
            let (found, known) = (solution[row].real(0), self.solution(row));
            if (found - known).abs() > ERROR || found.is_nan() {
                bail!("self-check failed: element {row} of the solution is {found}, not {known}");
            }
        }
        Ok(())
    }
}

/// A thread's part of a solve.
struct Solver<'a> {
    own: Range<usize>,
    threads: usize,
    matrix: &'a [Line],
    right: &'a [Line],
    solution: &'a [Line],
    residual: &'a [Line],
    direction: &'a [Line],
    product: &'a [Line],
    sums: &'a [Line],
}

impl<'a> Solver<'a> {
    fn new(worker: &Worker<'a>, own: Range<usize>, threads: usize) -> Self {
        let of = |region: usize| &worker.lines(region)[own.clone()];
        let matrix = &worker.lines(MATRIX)[ROW * own.start..ROW * own.end];
        let (right, solution, residual, product) = (of(RIGHT), of(SOLUTION), of(RESIDUAL), of(PRODUCT));
        let (direction, sums) = (worker.lines(DIRECTION), worker.lines(SUMS));
        Self { own, threads, matrix, right, solution, residual, direction, product, sums }
    }

    fn solve(&self, worker: &mut Worker) {
        let direction = &self.direction[self.own.clone()];
        let mut squares = 0.0;
        for (row, direction) in direction.iter().enumerate() {
            let right = self.right[row].real(0);
            self.solution[row].set_real(0, 0.0);
            self.residual[row].set_real(0, right);
            direction.set_real(0, right);
            squares += right * right;
        }
        let mut rho = self.sum_over_all(worker, 0, squares);
        for _ in 0..ITERATIONS {
            let alpha = rho / self.sum_over_all(worker, 1, self.multiply());
            let mut squares = 0.0;
            for (row, direction) in direction.iter().enumerate() {
                self.solution[row].set_real(0, self.solution[row].real(0) + alpha * direction.real(0));
                let residual = self.residual[row].real(0) - alpha * self.product[row].real(0);
                self.residual[row].set_real(0, residual);
                squares += residual * residual;
            }
            let before = rho;
            rho = self.sum_over_all(worker, 0, squares);
            for (residual, direction) in self.residual.iter().zip(direction) {
                direction.set_real(0, residual.real(0) + rho / before * direction.real(0));
            }
            worker.meet();
            worker.notes.work += self.matrix.len() as u64;
        }
    }

    /// product = matrix x direction, own rows; gives the own part of direction . product.
    #[inline(never)]
    fn multiply(&self) -> f64 {
        let mut dot = 0.0;
        for ((row, elements), product) in self.own.clone().zip(self.matrix.chunks_exact(ROW)).zip(self.product) {
            let products = elements
                .iter()
                .map(|element| element.real(VALUE) * self.direction[element.get(COLUMN) as usize].real(0));
            let sum: f64 = products.sum();
            product.set_real(0, sum);
            dot += sum * self.direction[row].real(0);
        }
        dot
    }

    /// The sum of all threads' `value`s. `word` must differ from that of the sum before.
    fn sum_over_all(&self, worker: &mut Worker, word: usize, value: f64) -> f64 {
        self.sums[worker.number].set_real(word, value);
        worker.meet();
        self.sums[..self.threads].iter().map(|sum| sum.real(word)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::kernel::tests::{anywhere, run};

    #[test]
    fn solves_arrive_at_the_known_solution_with_any_number_of_threads() {
        for threads in [1, 2, 3] {
            run(&program(&anywhere(threads), 500, 2, 7), |_| {}).unwrap();
        }
    }

    #[test]
    fn a_wrong_element_of_the_solution_fails_the_check() {
        let damage = |memory: &[Memory]| memory[SOLUTION].lines()[77].set_real(0, 1.0001);
        assert!(run(&program(&anywhere(2), 500, 1, 7), damage).unwrap_err().to_string().contains("element 77"));
    }

    #[test]
    fn a_thread_that_does_not_work_fails_the_solve() {
        let mut broken = program(&anywhere(2), 500, 1, 7);
        let fill: Fill = Box::new(|lines, range| range.for_each(|index| lines[index].set_real(VALUE, 0.5)));
        broken.regions[MATRIX].fill = fill;
        assert!(run(&broken, |_| {}).unwrap_err().to_string().contains("of the solution is"));
    }

    #[test]
    fn the_matrix_is_symmetric() {
        let matrix = Matrix { rows: 500, distances: std::array::from_fn(|which| distance(which, 500, 3)), seed: 3 };
        let columns = |row: usize| -> Vec<usize> { (0..ROW).map(|element| matrix.element(row, element).0).collect() };
        for row in 0..500 {
            let mut distinct = columns(row);
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), ROW);
            assert!(columns(row).iter().all(|column| columns(*column).contains(&row)));
        }
    }

    #[test]
    fn a_thread_that_fails_alone_does_not_leave_the_others_waiting() {
        let mut broken = program(&anywhere(3), 600, 2, 7);
        broken.threads[1].body = Box::new(|_| bail!("this one gives up"));
        assert!(run(&broken, |_| {}).is_err());
    }
}
