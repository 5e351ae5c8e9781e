// SPDX-License-Identifier: GPL-2.0-only
//! `sp`: line solves along the three dimensions of a grid, with the sharing pattern of the NAS code SP.
//!
//! The grid is partitioned into slabs of planes; solves along x and y stay within a slab, solves along z cross all
//! slabs. Each solve is that of a tridiagonal system (1, 4, 1) along every line of the grid, as elimination and back
//! substitution; SP's systems have two more diagonals. The first values are an eigenvector: each solve multiplies every
//! cell by the same known factor, so a line that was left out or solved twice shows. It is the eigenvector of the
//! smallest eigenvalue, sines of alternating sign, because a solve makes all others smaller and rounding errors with them.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Plan, Program, Region, Request};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::worker::Worker;
use crate::workloads::kernel::{BEST, Layout, WORST, alone, part};
use anyhow::{Result, bail};
use std::f64::consts::PI;

/// The right side is multiplied by this, so that values stay near what they were.
const SCALE: f64 = 2.0;
/// Relative error of a cell at the end.
const ERROR: f64 = 1e-8;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "sp",
    summary: "line solves along the three dimensions of a grid cut into slabs: along one of them everything is crossed",
    sizes: &[
        THREADS,
        size("edge", 80, "cells", "edge of the grid, a cubic number of lines"),
        size("steps", 500, "steps", "steps of three solves each"),
    ],
    metric: Metric::Seconds,
    work_unit: "cells",
    best: BEST,
    worst: WORST,
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let layout = Layout::of_machine(request)?;
    let edge = request.sizes.of("edge") as usize;
    if edge < layout.places.len() || edge > 2048 {
        bail!("--edge {edge}: at least one plane for each of {} threads, and at most 2048", layout.places.len());
    }
    Ok(alone(program(&layout, edge, request.sizes.of("steps"))))
}

/// A program that makes so many steps on a grid of `edge` cells along each edge.
pub fn program(layout: &Layout, edge: usize, steps: u64) -> Program {
    let grid = Region {
        bytes: edge.pow(3) * LINE_BYTES,
        home: layout.home.clone(),
        fill: Box::new(move |lines, range| {
            let sines = sines(edge);
            range.for_each(|cell| lines[cell].set_real(0, first_value(&sines, cell)));
        }),
    };
    let threads = layout.places.len();
    let threads = layout.threads(move |worker| {
        work(worker, edge, steps, threads);
        Ok(())
    });
    let check = move |memory: &[Memory]| check(memory[0].lines(), edge, steps);
    Program { start: layout.start, regions: vec![grid], threads, check: Some(Box::new(check)) }
}

/// The last eigenvector's elements along a line, cell 0 being next to the border.
fn sines(edge: usize) -> Vec<f64> {
    let sine = |cell: usize| (PI * cell as f64 / (edge + 1) as f64).sin();
    (1..=edge).map(|cell| if cell % 2 == 1 { sine(cell) } else { -sine(cell) }).collect()
}

fn first_value(sines: &[f64], cell: usize) -> f64 {
    let edge = sines.len();
    sines[cell % edge] * sines[cell / edge % edge] * sines[cell / edge / edge]
}

/// What a solve multiplies every cell by.
fn factor(edge: usize) -> f64 {
    SCALE / (4.0 - 2.0 * (PI / (edge + 1) as f64).cos())
}

fn work(worker: &mut Worker, edge: usize, steps: u64, threads: usize) {
    let grid = worker.lines(0);
    let own = part(edge, worker.number, threads);
    let plane = edge * edge;
    let line = Tridiagonal::new(edge);
    for _ in 0..steps {
        for z in own.clone() {
            for y in 0..edge {
                // Along x: neighbours in memory.
                line.solve(&grid[z * plane + y * edge..][..edge], 1, 1);
            }
        }
        for z in own.clone() {
            // Along y, all lines of a plane at once, so that memory is passed in order.
            line.solve(&grid[z * plane..][..plane], edge, edge);
            worker.look();
        }
        worker.meet();
        for y in own.clone() {
            // Along z, all lines of one y at once.
            line.solve(&grid[y * edge..(edge - 1) * plane + (y + 1) * edge], plane, edge);
            worker.look();
        }
        worker.meet();
        worker.notes.work += (3 * own.len() * plane) as u64;
    }
}

/// The factors of the system (1, 4, 1).
struct Tridiagonal {
    /// 1 / pivot of each row, which is also its element above the diagonal after elimination.
    inverse: Vec<f64>,
}

impl Tridiagonal {
    fn new(edge: usize) -> Self {
        let mut inverse = vec![0.25];
        for row in 1..edge {
            inverse.push(1.0 / (4.0 - inverse[row - 1]));
        }
        Self { inverse }
    }

    /// Solves `count` neighbouring lines whose cells are `stride` apart.
    #[inline(never)]
    fn solve(&self, cells: &[Line], stride: usize, count: usize) {
        let edge = self.inverse.len();
        let at = |row: usize| &cells[row * stride..][..count];
        at(0).iter().for_each(|cell| cell.set_real(0, SCALE * cell.real(0) * self.inverse[0]));
        for row in 1..edge {
            for (cell, before) in at(row).iter().zip(at(row - 1)) {
                cell.set_real(0, (SCALE * cell.real(0) - before.real(0)) * self.inverse[row]);
            }
        }
        for row in (0..edge - 1).rev() {
            for (cell, after) in at(row).iter().zip(at(row + 1)) {
                cell.set_real(0, cell.real(0) - self.inverse[row] * after.real(0));
            }
        }
    }
}

/// Fails unless every cell is what all solves must have made of it.
fn check(grid: &[Line], edge: usize, steps: u64) -> Result<()> {
    let sines = sines(edge);
    let all = factor(edge).powf(3.0 * steps as f64);
    for (cell, line) in grid.iter().enumerate() {
        let (value, expected) = (line.real(0), first_value(&sines, cell) * all);
        if (value - expected).abs() > ERROR * all || value.is_nan() {
            bail!("self-check failed: cell {cell} is {value}, not {expected}: a solve was lost or made twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::kernel::tests::{anywhere, run};

    #[test]
    fn steps_multiply_every_cell_by_the_known_factor_with_any_number_of_threads() {
        for threads in [1, 2, 3] {
            run(&program(&anywhere(threads), 12, 200), |_| {}).unwrap();
        }
    }

    #[test]
    fn a_line_that_was_solved_twice_or_not_at_all_fails_the_check() {
        let twice = |memory: &[Memory]| Tridiagonal::new(12).solve(&memory[0].lines()[12 * 6..][..12], 1, 1);
        assert!(run(&program(&anywhere(2), 12, 5), twice).is_err());
        let expect_a_step_more = |memory: &[Memory]| assert!(check(memory[0].lines(), 12, 6).is_err());
        run(&program(&anywhere(2), 12, 5), expect_a_step_more).unwrap();
    }

    #[test]
    fn a_solve_solves() {
        let values = [3.0, -1.0, 4.0, 1.5];
        let memory = Memory::map(4 * LINE_BYTES, crate::frame::memory::PageSize::Base).unwrap();
        (0..4).for_each(|row| memory.lines()[row].set_real(0, values[row]));
        Tridiagonal::new(4).solve(memory.lines(), 1, 1);
        let solution = |row: i64| if (0..4).contains(&row) { memory.lines()[row as usize].real(0) } else { 0.0 };
        for row in 0..4 {
            let product = solution(row - 1) + 4.0 * solution(row) + solution(row + 1);
            assert!((product - SCALE * values[row as usize]).abs() < 1e-12);
        }
    }
}
