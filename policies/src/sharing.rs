// SPDX-License-Identifier: GPL-2.0-only
//! Who shares with whom, how unevenly, and which threads belong on one node for it.
//!
//! | term | value | source |
//! |---|---|---|
//! | M | events by pair of threads: accesses to memory that both use; symmetric | kMAF, characterization |
//! | Mn | M / max(M) * 100 | characterization |
//! | heterogeneity | sum over i, j of `(mean of row i - M[i][j])^2 / T^2` | kMAF |
//! | C_H | heterogeneity of Mn | characterization |
//! | C_A, sharing amount | sum over i, j of `M[i][j] / T^2` | both |
//!
//! T is the number of threads. Sources: Diener et al., "kMAF", PACT 2014; Diener et al., "Characterizing
//! Communication and Page Usage of Parallel Applications for Thread and Data Mapping", Performance Evaluation 2015.
//!
//! Where the sources are unclear: the diagonal. A thread does not share with itself, so its cell is empty, and the
//! formula as printed counts that as a zero. Then one thread's only partner and all threads alike cannot be told
//! apart: both give 10^4 (T - 1) / T^2, 1093.75 for 8 threads, since in either case one cell of T is unlike the
//! others. [`Diagonal`] says which is meant; only with [`Diagonal::LeftOut`] all-to-all is what it should be, 0.
//!
//! The mapping of a matrix onto nodes is in `remapping`.

mod remapping;

use std::collections::BTreeMap;

use crate::model::{Snapshot, Thread, ThreadId};

pub(crate) use remapping::{Effort, Remapping};

/// Events that age has left less of than this are forgotten.
const FAINTEST: f64 = 1e-6;

/// What the cell of a thread with itself counts for in the heterogeneity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagonal {
    /// What it is: the formula as printed. An empty one counts as zero.
    Counted,
    /// Nothing: a row's mean is that over the other threads, and its own cell does not deviate from it.
    LeftOut,
}

/// A sharing matrix: sparse, symmetric, no cell below zero. Rows and columns are threads, counted from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharingMatrix {
    rows: Vec<Vec<(usize, f64)>>,
}

impl SharingMatrix {
    /// A matrix of `threads` threads with these cells. A pair may be given once or both ways round; of several values
    /// the largest counts. Values that are not finite or not above zero are no sharing.
    ///
    /// # Panics
    /// If a pair names a thread that is not below `threads`.
    pub fn new(threads: usize, pairs: impl IntoIterator<Item = (usize, usize, f64)>) -> Self {
        let mut rows: Vec<Vec<(usize, f64)>> = vec![Vec::new(); threads];
        for (one, other, events) in pairs {
            if events.is_finite() && events > 0.0 {
                rows[one].push((other, events));
                if one != other {
                    rows[other].push((one, events));
                }
            }
        }
        for row in &mut rows {
            row.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
            row.dedup_by_key(|cell| cell.0);
        }
        Self { rows }
    }

    /// What `threads` share by a snapshot, in accesses per second. They must ascend by id.
    pub fn seen(threads: &[&Thread]) -> Self {
        Self::between(threads, threads.iter().map(|thread| thread.sharing.as_slice()))
    }

    fn between<'a>(threads: &[&Thread], rows: impl Iterator<Item = &'a [(ThreadId, f64)]>) -> Self {
        let at = |id: &ThreadId| threads.binary_search_by_key(id, |thread| thread.id).ok();
        let cells = rows.enumerate().flat_map(|(one, row)| {
            row.iter().filter_map(move |(id, events)| Some((one, at(id)?, *events))).filter(|cell| cell.0 != cell.1)
        });
        Self::new(threads.len(), cells)
    }

    /// T, the number of threads.
    pub fn threads(&self) -> usize {
        self.rows.len()
    }

    /// The partners of a thread with what it shares with each, ascending.
    pub fn row(&self, thread: usize) -> &[(usize, f64)] {
        &self.rows[thread]
    }

    /// What two threads share.
    pub fn cell(&self, one: usize, other: usize) -> f64 {
        let row = self.row(one);
        row.binary_search_by_key(&other, |cell| cell.0).map_or(0.0, |at| row[at].1)
    }

    /// Whether nobody shares anything.
    pub fn is_zero(&self) -> bool {
        self.rows.iter().all(Vec::is_empty)
    }

    /// Every pair of different threads that share once, the lower first, with what they share.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        self.rows.iter().enumerate().flat_map(|(one, row)| {
            row.iter().filter(move |cell| cell.0 > one).map(move |&(other, events)| (one, other, events))
        })
    }

    /// The matrix with only those cells that are among the `most` largest of their row or their column.
    pub(crate) fn heaviest(&self, most: usize) -> Self {
        let heaviest = |row: &Vec<(usize, f64)>| {
            let mut row = row.clone();
            if row.len() > most {
                row.select_nth_unstable_by(most, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                row.truncate(most);
            }
            row
        };
        let cells = self.rows.iter().map(heaviest).enumerate();
        let cells = cells.flat_map(|(one, row)| row.into_iter().map(move |(other, events)| (one, other, events)));
        Self::new(self.threads(), cells)
    }

    /// Mn: the matrix scaled so that its largest cell is 100; itself if it is zero.
    pub fn normalised(&self) -> Self {
        let most = self.rows.iter().flatten().map(|cell| cell.1).fold(0.0, f64::max);
        let mut normalised = self.clone();
        normalised.rows.iter_mut().flatten().for_each(|cell| cell.1 = cell.1 / most * 100.0);
        normalised
    }

    /// Heterogeneity in events^2: how far the cells of a row are from the row's mean, over all rows. 0 for no thread.
    pub fn heterogeneity(&self, diagonal: Diagonal) -> f64 {
        let threads = self.threads();
        let own = usize::from(diagonal == Diagonal::LeftOut);
        if threads <= own {
            return 0.0;
        }
        let counted = threads - own;
        let deviation = |(thread, row): (usize, &Vec<(usize, f64)>)| -> f64 {
            let cells = || row.iter().filter(|cell| own == 0 || cell.0 != thread).map(|cell| cell.1);
            let mean = cells().sum::<f64>() / counted as f64;
            let empty = (counted - cells().count()) as f64;
            cells().map(|events| (mean - events) * (mean - events)).sum::<f64>() + empty * mean * mean
        };
        self.rows.iter().enumerate().map(deviation).sum::<f64>() / (threads * threads) as f64
    }

    /// C_H: the heterogeneity of the normalised matrix. Its largest value is about 10^4 / T.
    pub fn communication_heterogeneity(&self, diagonal: Diagonal) -> f64 {
        self.normalised().heterogeneity(diagonal)
    }

    /// C_A, the sharing amount: the mean cell, in events. 0 for no thread.
    pub fn sharing_amount(&self) -> f64 {
        let threads = self.threads().max(1);
        self.rows.iter().flatten().map(|cell| cell.1).sum::<f64>() / (threads * threads) as f64
    }
}

/// What threads shared over several snapshots, in events.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharingHistory {
    rows: BTreeMap<ThreadId, Vec<(ThreadId, f64)>>,
    /// Time behind it, aged as the events are.
    observed_s: f64,
}

impl SharingHistory {
    /// Adds one interval and forgets threads that are gone.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let interval_s = snapshot.interval_ns as f64 / 1e9;
        self.observed_s += interval_s;
        self.rows.retain(|&id, row| {
            row.retain(|cell| snapshot.thread(cell.0).is_some());
            snapshot.thread(id).is_some()
        });
        for thread in snapshot.threads.iter().filter(|thread| !thread.sharing.is_empty()) {
            let row = self.rows.entry(thread.id).or_default();
            let sharing = thread.sharing.iter().filter(|cell| cell.1.is_finite() && cell.1 > 0.0);
            row.extend(sharing.map(|&(other, per_s)| (other, per_s * interval_s)));
            row.sort_by_key(|cell| cell.0);
            row.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                kept.1 += if same { next.1 } else { 0.0 };
                same
            });
        }
    }

    /// Multiplies everything by `factor`.
    pub fn age(&mut self, factor: f64) {
        self.observed_s *= factor;
        for row in self.rows.values_mut() {
            row.iter_mut().for_each(|cell| cell.1 *= factor);
            row.retain(|cell| cell.1 >= FAINTEST);
        }
    }

    /// Whether nothing is known of any two threads.
    pub fn is_empty(&self) -> bool {
        self.rows.values().all(Vec::is_empty)
    }

    /// The matrix of `threads`, which must ascend by id.
    pub fn matrix(&self, threads: &[&Thread]) -> SharingMatrix {
        let row = |thread: &&Thread| self.rows.get(&thread.id).map_or(&[][..], Vec::as_slice);
        SharingMatrix::between(threads, threads.iter().map(row))
    }

    /// Time behind it.
    pub fn observed_s(&self) -> f64 {
        self.observed_s
    }
}

#[cfg(test)]
mod tests;
