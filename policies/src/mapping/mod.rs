// SPDX-License-Identifier: GPL-2.0-only
//! Mappers: which place each of T threads gets, when threads share data and places are unlike far apart.
//!
//! Problem: minimise the sum over pairs of threads of weight x distance between their places, such that no place holds
//! more threads than its capacity. Weights are sharing per pair (any unit), distances have any unit too; the cost has
//! the product of both. Capacity 1 everywhere with as many places as threads is the quadratic assignment problem
//! ([`qap`]).
//!
//! | threads | method |
//! |---|---|
//! | up to 10 | every mapping, by branch and bound ([`Method::Exact`]) |
//! | one a place | a population of mappings, improved by tabu search and crossed ([`Method::Memetic`]) |
//! | up to 256 | annealing of moves and swaps with O(degree) changes, and robust tabu search up to 128 threads |
//! | more | recursive bipartition of places and threads at once, multilevel, from several seeds, then annealing at low temperature |
//!
//! There is no clock: work is counted in steps. A [`Search`] can be run in chunks, and its result depends only on the
//! request, the seed and the sum of the steps asked for, so that a caller with a deadline can calibrate between chunks and name
//! the number of steps that repeats the result.
//!
//! Sources: robust tabu search: E. Taillard, Parallel Computing 17 (1991), 443-455. Dual recursive bipartition: F. Pellegrini,
//! J. Roman, HPCN 1996. Refinement of bipartitions: C. Fiduccia, R. Mattheyses, DAC 1982. Multilevel heavy-edge matching:
//! G. Karypis, V. Kumar, SIAM J. Sci. Comput. 20 (1998). Memetic search: U. Benlic, J.-K. Hao, Expert Systems with
//! Applications 42 (2015). Schedules and step counts are ours.

mod annealing;
mod bisection;
mod changes;
mod division;
mod exact;
mod exchange;
mod graph;
mod halving;
mod memetic;
mod placement;
pub mod planted;
mod problem;
pub mod qap;
mod refinement;
mod request;
mod search;
mod tabu;

#[cfg(test)]
mod tests;

pub use request::{Request, RequestError};
pub use search::Search;

use std::fmt;

use serde::Serialize;

/// How much work a mapping may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Steps: a proposed change of a mapping, or as much of other work as costs about the same. The last piece of work may go
    /// beyond by at most a look at everything that is shared.
    pub steps: u64,
}

/// What found a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The mapping that the request came with; nothing better was found.
    Present,
    /// Threads put one after the other where they cost least.
    Greedy,
    /// Enumeration, with branches left out that cannot be better.
    Exact,
    /// Annealing of moves and swaps.
    Annealing,
    /// Robust tabu search.
    Tabu,
    /// Memetic search.
    Memetic,
    /// Recursive bipartition, then annealing at low temperature.
    Multilevel,
}

/// A place for every thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mapping {
    /// Place by thread.
    pub places: Vec<usize>,
    /// Sum over pairs of threads of weight x distance.
    pub cost: f64,
    /// No mapping costs less than this.
    pub bound: f64,
    /// Whether it is proven that no mapping costs less.
    pub optimal: bool,
    /// What found it.
    pub method: Method,
    /// Steps made.
    pub steps: u64,
}

/// Maps threads to places: one [`Search`] run to the end of the budget.
///
/// # Errors
/// [`RequestError`] says what is wrong with the request.
pub fn map(request: &Request, budget: Budget, seed: u64) -> Result<Mapping, RequestError> {
    let mut search = Search::new(request, seed)?;
    search.run(budget.steps);
    Ok(search.best())
}

/// The places of a request as leaves of a binary tree that halves them so that halves are far apart, as mappers of others want
/// them: by place the number of its leaf, 0 if it holds no thread. The root is 1, the halves of node i are 2 i and 2 i + 1.
///
/// # Errors
/// [`RequestError`] says what is wrong with the request.
pub fn place_tree(request: &Request, seed: u64) -> Result<Vec<u64>, RequestError> {
    Ok(halving::tree(&request.problem()?.0, seed))
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Present => "present",
            Method::Greedy => "greedy",
            Method::Exact => "exact",
            Method::Annealing => "annealing",
            Method::Tabu => "tabu",
            Method::Memetic => "memetic",
            Method::Multilevel => "multilevel",
        })
    }
}
