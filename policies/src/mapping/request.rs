// SPDX-License-Identifier: GPL-2.0-only
//! What a mapping is asked for, and what makes it impossible to give.

use thiserror::Error;

use super::placement::Placement;
use super::problem::{Edge, Problem};

/// Threads, what they share, and the places there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// How many threads.
    pub threads: usize,
    /// (thread, thread, sharing), each pair once; what is given for a pair more than once adds up.
    pub weights: Vec<(usize, usize, f64)>,
    /// Most threads by place.
    pub capacities: Vec<usize>,
    /// Distance from place to place; of a pair, the mean of both directions counts. The distance from a place to itself
    /// is that between two threads there.
    pub distances: Vec<Vec<f64>>,
    /// Whether a thread may go to a place, by thread, then by place; everywhere if absent.
    pub allowed: Option<Vec<Vec<bool>>>,
    /// Place by thread now. A search starts from it too, and leaves a thread there if that costs nothing.
    pub present: Option<Vec<usize>>,
}

/// Why a request cannot be answered.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RequestError {
    /// A thread number that is too large, or a pair of a thread with itself.
    #[error("pair {pair} ({first}, {second}) is not one of two different threads; threads are 0 to {last}")]
    Pair {
        /// Position in `weights`.
        pair: usize,
        /// One thread.
        first: usize,
        /// The other.
        second: usize,
        /// The greatest thread number, as text: `none` without threads.
        last: String,
    },
    /// A weight that is not a number, infinite or negative.
    #[error("the weight between threads {first} and {second} is {value}; give a number of at least 0")]
    Weight {
        /// One thread.
        first: usize,
        /// The other.
        second: usize,
        /// The weight.
        value: f64,
    },
    /// A distance that is not a number or infinite.
    #[error("the distance from place {from} to place {to} is {value}; give a finite number")]
    Distance {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// The distance.
        value: f64,
    },
    /// Sums would be infinite.
    #[error("the weights times the distances are too large: the cost may be beyond {:e}", f64::MAX)]
    Large,
    /// A table has the wrong number of rows or columns.
    #[error("{what} has {found} entries, but {expected} are needed: one for each {of}")]
    Shape {
        /// Which table or row.
        what: String,
        /// Entries found.
        found: usize,
        /// Entries needed.
        expected: usize,
        /// `thread` or `place`.
        of: &'static str,
    },
    /// More threads than room.
    #[error("{threads} threads do not fit: the capacities of {places} places add up to {room}")]
    Room {
        /// Threads.
        threads: usize,
        /// Places.
        places: usize,
        /// Capacity in all.
        room: usize,
    },
    /// A thread may go nowhere, or only where others that may go nowhere else fill everything.
    #[error(
        "thread {thread} finds no place: those it may use are full of threads that may go nowhere else, or it may use none"
    )]
    NoPlace {
        /// The thread.
        thread: usize,
    },
    /// A present place that does not exist.
    #[error("thread {thread} is said to be at place {place}, but there are only {places} places (0 is the first)")]
    Present {
        /// The thread.
        thread: usize,
        /// Its place.
        place: usize,
        /// Places.
        places: usize,
    },
    /// More threads or places than the mappers can number.
    #[error("{count} {what} are too many; {most} is the most")]
    TooMany {
        /// How many.
        count: usize,
        /// `threads` or `places`.
        what: &'static str,
        /// The most there may be.
        most: usize,
    },
}

/// Most threads, and most places, of a request.
const MOST_THREADS: usize = 1 << 20;
const MOST_PLACES: usize = 1 << 12;

fn shape(what: impl Into<String>, found: usize, expected: usize, of: &'static str) -> Result<(), RequestError> {
    if found == expected { Ok(()) } else { Err(RequestError::Shape { what: what.into(), found, expected, of }) }
}

impl Request {
    /// The request in the form that the mappers work on, and a mapping that keeps every rule: the present one if there is one.
    pub(super) fn problem(&self) -> Result<(Problem, Placement), RequestError> {
        let places = self.capacities.len();
        self.check_tables(places)?;
        self.check_weights()?;
        let room = self.capacities.iter().fold(0usize, |sum, &more| sum.saturating_add(more));
        if room < self.threads {
            return Err(RequestError::Room { threads: self.threads, places, room });
        }
        let sharing: f64 = self.weights.iter().map(|&(.., weight)| weight).sum();
        let farthest = self.distances.iter().flatten().fold(0.0, |most: f64, distance| most.max(distance.abs()));
        if !(sharing.max(1.0) * farthest.max(1.0) * 64.0).is_finite() {
            return Err(RequestError::Large);
        }
        let edges = self.weights.iter().map(|&(first, second, weight)| Edge { first, second, weight, skew: 0.0 });
        let mut distance = Vec::with_capacity(places * places);
        for from in 0..places {
            distance.extend((0..places).map(|to| self.distances[from][to] / 2.0 + self.distances[to][from] / 2.0));
        }
        let mut problem = Problem::new(self.threads, places, edges, distance);
        problem.capacity = self.capacities.iter().map(|&room| room.min(self.threads)).collect();
        problem.allowed = self.allowed.as_ref().map(|rows| rows.concat()).unwrap_or_default();
        let wanted = match &self.present {
            Some(present) => present.iter().map(|&place| Some(place as u32)).collect(),
            None => vec![None; self.threads],
        };
        let start = Placement::complete(&problem, &wanted).map_err(|thread| RequestError::NoPlace { thread })?;
        Ok((problem, start))
    }

    fn check_tables(&self, places: usize) -> Result<(), RequestError> {
        for (count, what, most) in [(self.threads, "threads", MOST_THREADS), (places, "places", MOST_PLACES)] {
            if count > most {
                return Err(RequestError::TooMany { count, what, most });
            }
        }
        shape("the table of distances", self.distances.len(), places, "place")?;
        for (from, row) in self.distances.iter().enumerate() {
            shape(format!("row {from} of the distances"), row.len(), places, "place")?;
            if let Some((to, &value)) = row.iter().enumerate().find(|(_, value)| !value.is_finite()) {
                return Err(RequestError::Distance { from, to, value });
            }
        }
        if let Some(rows) = &self.allowed {
            shape("the table of allowed places", rows.len(), self.threads, "thread")?;
            for (thread, row) in rows.iter().enumerate() {
                shape(format!("row {thread} of the allowed places"), row.len(), places, "place")?;
            }
        }
        let Some(present) = &self.present else { return Ok(()) };
        shape("the present mapping", present.len(), self.threads, "thread")?;
        match present.iter().enumerate().find(|&(_, &place)| place >= places) {
            Some((thread, &place)) => Err(RequestError::Present { thread, place, places }),
            None => Ok(()),
        }
    }

    fn check_weights(&self) -> Result<(), RequestError> {
        for (pair, &(first, second, value)) in self.weights.iter().enumerate() {
            if first >= self.threads || second >= self.threads || first == second {
                let last = self.threads.checked_sub(1).map_or("none".to_owned(), |last| last.to_string());
                return Err(RequestError::Pair { pair, first, second, last });
            }
            if !(value >= 0.0 && value.is_finite()) {
                return Err(RequestError::Weight { first, second, value });
            }
        }
        Ok(())
    }
}
