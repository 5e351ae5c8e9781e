// SPDX-License-Identifier: GPL-2.0-only
//! Has a thread turned to memory on other nodes?
//!
//! Problem: signals are aged over seconds, because most intervals show little. When a program goes on to its next phase,
//! the last one is then remembered for longer than it takes to see the new one, and threads are held at memory that they
//! no longer use. Mechanism: a thread's latest accesses, as many as it takes to tell, are compared with the older ones, by
//! node of the memory. If a good part of them went elsewhere, the older ones are forgotten.
//!
//! By node and not by page: a thread that walks through much memory on one node is always at other pages, and has not
//! turned to anything.

use std::collections::BTreeMap;

use tandem_policies::model::{NodeIndex, PerNode, ThreadId};

use crate::known_homes::Home;
use crate::snapshot::{MIN_ACCESSES, MIN_LOOKS};

/// Share of a thread's accesses that must have gone to other nodes. Chance alone moves a share seen in the least number
/// of accesses that counts by .1 (one standard deviation, at most).
const LEAST_SHARE: f64 = 0.35;

/// Where the memory of an access is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory<'a> {
    /// As hardware measured, or the kernel told of its page.
    Node(NodeIndex),
    /// In a group.
    Group(Home<'a>),
}

/// Weights of accesses by thread and node of the memory.
pub(crate) type Weights = BTreeMap<ThreadId, PerNode<f64>>;

/// Accesses of one thread by node of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) weights: PerNode<f64>,
    looks: f64,
    last_look_ns: Option<u64>,
}

impl Row {
    /// No access, on a machine of `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { weights: PerNode::filled(nodes, 0.0), looks: 0.0, last_look_ns: None }
    }

    /// An access that counts `weight`, seen by a look at the thread at `time_ns`.
    pub(crate) fn add(&mut self, time_ns: u64, weight: f64, memory: Memory) {
        if self.last_look_ns != Some(time_ns) {
            (self.looks, self.last_look_ns) = (self.looks + 1.0, Some(time_ns));
        }
        match memory {
            Memory::Node(node) => self.weights[node] += weight,
            Memory::Group(home) => home.spread(&mut self.weights, weight),
        }
    }

    /// Whether so many accesses tell where a thread's memory is.
    pub(crate) fn tells(&self) -> bool {
        self.weights.total() >= MIN_ACCESSES && self.looks >= MIN_LOOKS
    }

    /// Whether the thread turned to memory on other nodes, given the aged weights of its accesses before these.
    pub(crate) fn turned_from(&self, older: &PerNode<f64>) -> bool {
        if !self.tells() || older.total() < MIN_ACCESSES {
            return false;
        }
        let share = |row: &PerNode<f64>, node: NodeIndex| row[node] / row.total();
        let elsewhere: f64 = (0..older.len())
            .map(NodeIndex)
            .map(|node| (share(&self.weights, node) - share(older, node)).max(0.0))
            .sum();
        elsewhere >= LEAST_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` accesses, each of a look of its own, to pages at `home`.
    fn add(row: &mut Row, count: u64, home: Home) {
        let first = row.last_look_ns.map_or(0, |last| last + 1);
        (0..count).for_each(|look| row.add(first + look, 1.0, Memory::Group(home)));
    }

    /// What `fresh` accesses to node 0 and to node 1 say of a thread that did `older` before.
    fn turns(fresh: [u64; 2], older: [f64; 2]) -> bool {
        let mut row = Row::new(2);
        for (node, count) in fresh.into_iter().enumerate() {
            add(&mut row, count, Home::One(NodeIndex(node), 512));
        }
        row.turned_from(&older.to_vec().into())
    }

    #[test]
    fn a_thread_whose_accesses_go_elsewhere_has_turned() {
        assert!(turns([2, 38], [90.0, 10.0]));
        assert!(turns([20, 20], [90.0, 10.0]), "half of the time was before it turned");
        assert!(!turns([38, 2], [90.0, 10.0]));
        assert!(!turns([28, 12], [90.0, 10.0]), "chance");
    }

    #[test]
    fn too_little_is_no_turn() {
        assert!(!turns([0, 23], [90.0, 10.0]), "too few accesses now");
        assert!(!turns([0, 40], [20.0, 3.0]), "or before");
        let mut row = Row::new(2);
        (0..40).for_each(|_| row.add(7, 1.0, Memory::Node(NodeIndex(1))));
        assert!(!row.turned_from(&vec![90.0, 0.0].into()), "one look is of one stretch of code");
        assert!(!row.tells());
    }

    #[test]
    fn memory_on_several_nodes_counts_for_each_by_its_pages() {
        let mut row = Row::new(2);
        add(&mut row, 40, Home::Several(&[256, 256]));
        assert!(row.turned_from(&vec![90.0, 10.0].into()));
        assert!(!row.turned_from(&vec![60.0, 40.0].into()));
        assert_eq!(row.weights, vec![20.0, 20.0].into());
    }
}
