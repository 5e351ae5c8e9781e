// SPDX-License-Identifier: GPL-2.0-only
//! From where pages are used.
//!
//! N: number of nodes. MemAcc[p][n]: accesses to page p by the threads of node n, which depends on the mapping of threads.
//! Home: the node that holds a page. Exclusivity is a property of a program and a mapping of its threads; accuracy one of
//! a placement of its pages besides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Size of the pages for which a metric is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB.
    #[serde(rename = "4 KiB")]
    Base,
    /// 2 MiB.
    #[serde(rename = "2 MiB")]
    Huge,
    /// 64 MiB.
    #[serde(rename = "64 MiB")]
    Giant,
}

impl PageSize {
    /// Those of the source, ascending.
    pub const ALL: [Self; 3] = [Self::Base, Self::Huge, Self::Giant];

    /// Base pages in one of this size.
    pub fn base_pages(self) -> u64 {
        match self {
            Self::Base => 1,
            Self::Huge => 512,
            Self::Giant => 16384,
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "4 KiB",
            Self::Huge => "2 MiB",
            Self::Giant => "64 MiB",
        }
    }
}

/// Who used one base page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageUse {
    /// The address space it belongs to, from 0.
    pub process: usize,
    /// Number of the page: address / 4096.
    pub page: u64,
    /// The thread that touched it first, if that is known.
    pub first: Option<usize>,
    /// (thread, accesses), ascending by thread.
    pub accesses: Vec<(usize, u64)>,
}

/// Accesses by page and node, for one page size and one mapping of threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pages {
    nodes: usize,
    rows: Vec<Vec<u64>>,
}

impl Pages {
    /// MemAcc of `pages` in pages of `size`, when thread t runs on node `node_of[t]` of `nodes`. Rows ascend by process and
    /// page; pages that nobody accessed have none.
    ///
    /// # Panics
    /// If a thread has no entry in `node_of`, or one that is not below `nodes`.
    pub fn by_node(pages: &[PageUse], size: PageSize, node_of: &[usize], nodes: usize) -> Self {
        let mut rows: BTreeMap<(usize, u64), Vec<u64>> = BTreeMap::new();
        for page in pages.iter().filter(|page| page.accesses.iter().any(|&(_, count)| count > 0)) {
            let key = (page.process, page.page / size.base_pages());
            let row = rows.entry(key).or_insert_with(|| vec![0; nodes]);
            for &(thread, count) in &page.accesses {
                row[node_of[thread]] += count;
            }
        }
        Self { nodes, rows: rows.into_values().collect() }
    }

    /// Accesses by page, then by node.
    pub fn rows(&self) -> &[Vec<u64>] {
        &self.rows
    }

    /// Equation 9 (Characterizing's E_app, kMAF's AvgExclusivity): the mean of [`exclusivity`] over all pages, by their
    /// accesses; from 1/N to 1, `None` without accesses. High: pages have one node each where they belong, and moving
    /// them there makes most accesses local. Near 1/N: whoever gets a page, the others stay remote.
    pub fn exclusivity(&self) -> Option<f64> {
        self.share(|row| row.iter().max().copied().unwrap_or(0))
    }

    /// Equation 11 (Characterizing's Acc_app): the mean of [`accuracy`] over all pages, by their accesses, when page p is on
    /// node `home[p]`; `None` without accesses. The part of the accesses that goes to pages which lie where they are used
    /// most: 1 leaves nothing to move.
    ///
    /// # Panics
    /// If `home` has not one entry a row.
    pub fn accuracy(&self, home: &[usize]) -> Option<f64> {
        let pages = self.rows.iter().zip(home).filter(|(row, home)| accuracy(row, **home) == Some(true));
        assert_eq!(home.len(), self.rows.len(), "a home for every page");
        ratio(pages.map(|(row, _)| row.iter().sum::<u64>()).sum(), self.total())
    }

    /// Equation 12 (ours): which part of the accesses is local when page p is on node `home[p]`; `None` without accesses. It
    /// is at most [`Pages::exclusivity`], and equal to it when every page is on its best node.
    ///
    /// # Panics
    /// If `home` has not one entry a row.
    pub fn local_share(&self, home: &[usize]) -> Option<f64> {
        assert_eq!(home.len(), self.rows.len(), "a home for every page");
        ratio(self.rows.iter().zip(home).map(|(row, &home)| row[home]).sum(), self.total())
    }

    /// The node of each page that uses it most, the lower one on a tie.
    pub fn best_homes(&self) -> Vec<usize> {
        self.rows.iter().map(|row| best(row).unwrap_or(0)).collect()
    }

    /// Which part of the pages, and which part of the accesses, belongs to pages that are not on a best node (Characterizing,
    /// pages that need moving); `None` without accesses. Few pages with many accesses: moving is cheap and pays.
    ///
    /// # Panics
    /// If `home` has not one entry a row.
    pub fn misplaced(&self, home: &[usize]) -> Option<(f64, f64)> {
        let right = self.rows.iter().zip(home).filter(|(row, home)| accuracy(row, **home) == Some(true)).count();
        Some((1.0 - right as f64 / self.rows.len() as f64, 1.0 - self.accuracy(home)?))
    }

    /// Accesses that each node's memory serves when page p is on node `home[p]`.
    ///
    /// # Panics
    /// If `home` has not one entry a row.
    pub fn served(&self, home: &[usize]) -> Vec<u64> {
        assert_eq!(home.len(), self.rows.len(), "a home for every page");
        let mut served = vec![0; self.nodes];
        for (row, &home) in self.rows.iter().zip(home) {
            served[home] += row.iter().sum::<u64>();
        }
        served
    }

    fn total(&self) -> u64 {
        self.rows.iter().flatten().sum()
    }

    /// The sum over pages of `part`, as a part of all accesses.
    fn share(&self, part: impl Fn(&[u64]) -> u64) -> Option<f64> {
        ratio(self.rows.iter().map(|row| part(row)).sum(), self.total())
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn best(row: &[u64]) -> Option<usize> {
    let most = row.iter().max().copied().filter(|&most| most > 0)?;
    row.iter().position(|&count| count == most)
}

/// Equation 8 (E_page, PageExclusivity): max over n of MemAcc[p][n] / sum over n; from 1/N to 1, `None` without accesses.
/// 1: one node alone uses the page.
pub fn exclusivity(row: &[u64]) -> Option<f64> {
    ratio(row.iter().max().copied().unwrap_or(0), row.iter().sum())
}

/// Equation 10 (Acc_page): whether a page is on a node that uses it as much as any other does; `None` without accesses.
pub fn accuracy(row: &[u64], home: usize) -> Option<bool> {
    best(row).map(|best| row[home] == row[best])
}

/// Equation 13 (ours): mean over nodes of what they serve / the most that one serves; from 1/N to 1, `None` if nothing is
/// served. 1: all memories work alike. 1/N: one node's memory serves everything, and its bandwidth is the program's.
pub fn balance(served: &[u64]) -> Option<f64> {
    let most = served.iter().max().copied().filter(|&most| most > 0)?;
    Some(served.iter().sum::<u64>() as f64 / served.len() as f64 / most as f64)
}

#[cfg(test)]
mod tests;
