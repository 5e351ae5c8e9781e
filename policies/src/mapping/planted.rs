// SPDX-License-Identifier: GPL-2.0-only
//! Problems whose optimum is known because it was built in: what the mappers are measured by.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::Request;
use super::graph::shuffled;

/// A request and the cost of its best mapping.
pub struct Planted {
    /// What to map.
    pub request: Request,
    /// Cost of the best mapping.
    pub optimum: f64,
}

/// Distance from place to place of a grid: steps along rows and columns.
pub fn manhattan(rows: usize, columns: usize) -> Vec<Vec<f64>> {
    let between = |a: usize, b: usize| (a / columns).abs_diff(b / columns) + (a % columns).abs_diff(b % columns);
    (0..rows * columns).map(|a| (0..rows * columns).map(|b| between(a, b) as f64).collect()).collect()
}

/// Pairs of neighbours in a grid of threads, whose numbers are shuffled; each shares 1.
pub fn stencil(rows: usize, columns: usize, seed: u64) -> Vec<(usize, usize, f64)> {
    let name = shuffled(rows * columns, &mut Pcg64::seed_from_u64(seed));
    let mut weights = Vec::new();
    for at in 0..rows * columns {
        if (at + 1) % columns != 0 {
            weights.push((name[at], name[at + 1], 1.0));
        }
        if at + columns < rows * columns {
            weights.push((name[at], name[at + columns], 1.0));
        }
    }
    weights
}

/// A stencil of threads on a grid of full nodes that hold square blocks of it. A node holds block^2 threads, which have at least
/// 4 x block edges to others or the rim, and square blocks have no more: the optimum cuts a straight line at each border.
pub fn squares(rows: usize, columns: usize, block: usize, seed: u64) -> Planted {
    let (node_rows, node_columns) = (rows / block, columns / block);
    let request = Request {
        threads: rows * columns,
        weights: stencil(rows, columns, seed),
        capacities: vec![block * block; node_rows * node_columns],
        distances: manhattan(node_rows, node_columns),
        ..Request::default()
    };
    let cut = rows * (node_columns - 1) + columns * (node_rows - 1);
    Planted { request, optimum: cut as f64 }
}

/// Groups of threads in which all share 10, of which each thread shares 1 with its like in the next group of a ring, on as many
/// nodes of a ring. No group can be cut at less than it costs to keep it together.
pub fn ring_of_groups(groups: usize, size: usize, seed: u64) -> Planted {
    let name = shuffled(groups * size, &mut Pcg64::seed_from_u64(seed));
    let mut weights = Vec::new();
    for group in 0..groups {
        for a in 0..size {
            weights.extend((a + 1..size).map(|b| (name[group * size + a], name[group * size + b], 10.0)));
            weights.push((name[group * size + a], name[(group + 1) % groups * size + a], 1.0));
        }
    }
    let around = |a: usize, b: usize| a.abs_diff(b).min(groups - a.abs_diff(b)) as f64;
    let request = Request {
        threads: groups * size,
        weights,
        capacities: vec![size; groups],
        distances: (0..groups).map(|a| (0..groups).map(|b| around(a, b)).collect()).collect(),
        ..Request::default()
    };
    Planted { request, optimum: (groups * size) as f64 }
}
