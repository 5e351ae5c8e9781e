// SPDX-License-Identifier: GPL-2.0-only
//! The quadratic assignment problem in QAPLIB's text format.
//!
//! The text is n, then two n x n matrices A and B row by row, all numbers between white space. A permutation p costs the sum over
//! all i and j of `A[i][j] x B[p(i)][p(j)]`. Rows of A are the threads here, rows of B the places, each of capacity 1.
//! Format: R. Burkard, S. Karisch, F. Rendl, QAPLIB, J. Global Optimization 10 (1997), 391-403.

use thiserror::Error;

use super::placement::Placement;
use super::problem::{Edge, Problem};
use super::search::Search;
use crate::foreign::quoted;

/// Two square matrices of the same size.
#[derive(Clone, Debug, PartialEq)]
pub struct Qap {
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
}

/// Why a text is no quadratic assignment problem.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QapError {
    /// The text does not begin with a size.
    #[error("the size {} is not a whole number from 1 to {MOST}", quoted(.0))]
    Size(String),
    /// Something is not a number.
    #[error("entry {entry} of the matrices is {}, which is not a finite number", quoted(text))]
    Number {
        /// Which one, from 1.
        entry: usize,
        /// What stands there.
        text: String,
    },
    /// Too few or too many numbers.
    #[error("the matrices have {found} entries, but two of size {size} have {}", 2 * .size * .size)]
    Count {
        /// Size of the matrices.
        size: usize,
        /// Numbers found.
        found: usize,
    },
    /// Sums would be infinite.
    #[error("the numbers are too large: the cost of a permutation may be beyond {:e}", f64::MAX)]
    Large,
}

/// Largest size that is read.
const MOST: usize = 1 << 10;

impl Qap {
    /// Reads QAPLIB's format.
    ///
    /// # Errors
    /// [`QapError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, QapError> {
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or_default();
        let size: usize = word.parse().map_err(|_| QapError::Size(word.to_owned()))?;
        if !(1..=MOST).contains(&size) {
            return Err(QapError::Size(word.to_owned()));
        }
        let number = |(at, text): (usize, &str)| {
            let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
            value.ok_or_else(|| QapError::Number { entry: at + 1, text: text.to_owned() })
        };
        let numbers = words.enumerate().map(number).collect::<Result<Vec<f64>, _>>()?;
        if numbers.len() != 2 * size * size {
            return Err(QapError::Count { size, found: numbers.len() });
        }
        let sum = |half: &[f64]| half.iter().map(|value| value.abs()).sum::<f64>();
        let (a, b) = numbers.split_at(size * size);
        if !(sum(a) * sum(b) * 4.0).is_finite() {
            return Err(QapError::Large);
        }
        let rows = |half: &[f64]| half.chunks(size).map(<[f64]>::to_vec).collect();
        Ok(Self { a: rows(a), b: rows(b) })
    }

    /// Rows of each matrix.
    pub fn size(&self) -> usize {
        self.a.len()
    }

    /// Cost of a permutation: `permutation[i]` is p(i), from 0.
    ///
    /// # Panics
    /// If it has an entry that is no row, or too few entries.
    pub fn cost(&self, permutation: &[usize]) -> f64 {
        let row = |i: usize| (0..self.size()).map(move |j| self.a[i][j] * self.b[permutation[i]][permutation[j]]);
        (0..self.size()).flat_map(row).sum()
    }

    /// A search for the permutation that costs least: the places of its mappings are p(0), p(1), ...
    pub fn search(&self, seed: u64) -> Search {
        let size = self.size();
        let problem = self.problem();
        let any: Vec<u32> = (0..size as u32).collect();
        let start = Placement::new(&problem, &any);
        Search::of(problem, start, None, seed)
    }

    /// Of an edge and a pair of places only the products of both symmetric parts and of both antisymmetric parts matter.
    pub(super) fn problem(&self) -> Problem {
        let size = self.size();
        let pairs = (0..size).flat_map(|i| (i + 1..size).map(move |j| (i, j)));
        let asymmetric = |m: &[Vec<f64>]| pairs.clone().any(|(i, j)| m[i][j] != m[j][i]);
        let skewed = asymmetric(&self.a) && asymmetric(&self.b);
        let (a, b) = (&self.a, &self.b);
        let edges = pairs.clone().map(|(first, second)| Edge {
            first,
            second,
            weight: a[first][second] + a[second][first],
            skew: if skewed { a[first][second] - a[second][first] } else { 0.0 },
        });
        let table = |sign: f64| -> Vec<f64> {
            (0..size).flat_map(|p| (0..size).map(move |q| (b[p][q] + sign * b[q][p]) / 2.0)).collect()
        };
        let own = (0..size).flat_map(|i| (0..size).map(move |p| a[i][i] * b[p][p]));
        let has_own = (0..size).any(|i| a[i][i] != 0.0) && (0..size).any(|p| b[p][p] != 0.0);
        let mut problem = Problem::new(size, size, edges, table(1.0));
        problem.capacity = vec![1; size];
        if skewed {
            problem.skew_distance = table(-1.0);
        }
        if has_own {
            problem.own = own.collect();
        }
        problem
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rand_core::SeedableRng;
    use rand_pcg::Pcg64;

    use super::super::planted::manhattan;
    use super::*;
    use crate::anneal::below;

    /// A problem drawn from `seed`; with `asymmetric` both matrices are, and have something on their diagonals.
    pub fn random_text(seed: u64, size: usize, asymmetric: bool) -> String {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut text = format!("{size}\n");
        for _ in 0..2 {
            let mut rows = vec![vec![0; size]; size];
            for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
                if asymmetric || j < i {
                    rows[i][j] = below(&mut rng, 20);
                    rows[j][i] = if asymmetric { rows[j][i] } else { rows[i][j] };
                }
            }
            for row in rows {
                text += &(row.iter().map(usize::to_string).collect::<Vec<_>>().join(" ") + "\n");
            }
        }
        text
    }

    /// The least cost of all permutations that begin with `begun`.
    fn brute_force(qap: &Qap, begun: &mut Vec<usize>) -> f64 {
        if begun.len() == qap.size() {
            return qap.cost(begun);
        }
        let mut least = f64::INFINITY;
        for next in 0..qap.size() {
            if !begun.contains(&next) {
                begun.push(next);
                least = least.min(brute_force(qap, begun));
                begun.pop();
            }
        }
        least
    }

    fn refusal(text: &str) -> String {
        Qap::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_optimum_of_all_permutations_is_found_and_proven() {
        for seed in 0..20 {
            for asymmetric in [false, true] {
                let qap = Qap::parse(&random_text(seed, 6, asymmetric)).unwrap();
                let mut search = qap.search(seed);
                search.run(1 << 20);
                let mapping = search.best();
                let least = brute_force(&qap, &mut Vec::new());
                assert!(mapping.optimal && (mapping.cost - least).abs() < 1e-6, "seed {seed}: {mapping:?}, {least}");
            }
        }
    }

    #[test]
    fn a_permutation_costs_what_the_search_says() {
        for asymmetric in [false, true] {
            let qap = Qap::parse(&random_text(5, 15, asymmetric)).unwrap();
            let mut search = qap.search(1);
            search.run(50_000);
            let mapping = search.best();
            let mut sorted = mapping.places.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..15).collect::<Vec<_>>());
            assert!((mapping.cost - qap.cost(&mapping.places)).abs() < 1e-6);
        }
    }

    /// Neighbours in a grid that share 1, on the same grid: no pair can be nearer than 1.
    #[test]
    fn a_grid_is_laid_onto_itself() {
        let distance = manhattan(5, 5);
        let text = |value: &dyn Fn(f64) -> f64| {
            distance.iter().flatten().map(|&distance| value(distance).to_string()).collect::<Vec<_>>().join(" ")
        };
        let near = |distance: f64| f64::from(u8::from(distance == 1.0));
        let qap = Qap::parse(&format!("25 {} {}", text(&near), text(&|distance| distance))).unwrap();
        let mut search = qap.search(1);
        search.run(3_000_000);
        assert_eq!((search.best().cost, search.best().optimal), (80.0, true));
    }

    #[test]
    fn a_text_that_is_no_problem_is_refused_in_words() {
        assert_eq!(refusal(""), "the size \"\" is not a whole number from 1 to 1024");
        assert_eq!(refusal("0"), "the size \"0\" is not a whole number from 1 to 1024");
        assert_eq!(refusal("1 2"), "the matrices have 1 entries, but two of size 1 have 2");
        assert_eq!(refusal("1 2 x"), "entry 2 of the matrices is \"x\", which is not a finite number");
        assert_eq!(refusal("1 2 NaN"), "entry 2 of the matrices is \"NaN\", which is not a finite number");
        let nuls = refusal(&"\0".repeat(1_000_000));
        assert!(nuls.contains("\\0\\0") && nuls.contains("and 999940 bytes more") && nuls.len() < 250, "{nuls}");
        assert!(refusal(&format!("1 2 \u{1b}{}", "x".repeat(200_000))).len() < 250);
        assert!(refusal("1 1e200 1e200").starts_with("the numbers are too large"));
    }
}
