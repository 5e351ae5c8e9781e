// SPDX-License-Identifier: GPL-2.0-only
//! Has a thread turned to memory on other nodes?
//!
//! Problem: signals are aged over seconds, because most intervals show little. When a program goes on to its next phase,
//! the last one is then remembered for longer than it takes to see the new one, and threads are held at memory that they
//! no longer use. Mechanism: the accesses of the interval that just passed are compared with the older ones, by node of
//! the memory. If both are enough to tell, and a good part of the accesses went elsewhere, the older ones are forgotten.
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

/// Accesses of one thread by node of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    weights: PerNode<f64>,
    looks: f64,
    last_look_ns: Option<u64>,
}

impl Row {
    fn new(nodes: usize) -> Self {
        Self { weights: PerNode::filled(nodes, 0.0), looks: 0.0, last_look_ns: None }
    }

    fn add(&mut self, time_ns: u64, weight: f64, memory: Memory) {
        if self.last_look_ns != Some(time_ns) {
            (self.looks, self.last_look_ns) = (self.looks + 1.0, Some(time_ns));
        }
        match memory {
            Memory::Node(node) => self.weights[node] += weight,
            Memory::Group(home) => home.spread(&mut self.weights, weight),
        }
    }

    /// Whether so many accesses tell where a thread's memory is.
    fn tells(&self) -> bool {
        self.weights.total() >= MIN_ACCESSES && self.looks >= MIN_LOOKS
    }
}

/// Weights of accesses by thread and node of the memory.
pub(crate) type Weights = BTreeMap<ThreadId, PerNode<f64>>;

/// The accesses of an interval by thread and node of the memory.
#[derive(Debug)]
pub(crate) struct Rows {
    nodes: usize,
    rows: BTreeMap<ThreadId, Row>,
}

impl Rows {
    /// No access, on a machine of `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { nodes, rows: BTreeMap::new() }
    }

    /// An access of `thread` that counts `weight`, seen by a look at it at `time_ns`.
    pub(crate) fn add(&mut self, thread: ThreadId, time_ns: u64, weight: f64, memory: Memory) {
        let nodes = self.nodes;
        self.rows.entry(thread).or_insert_with(|| Row::new(nodes)).add(time_ns, weight, memory);
    }

    /// Whether there are enough accesses of any thread to tell.
    pub(crate) fn tell(&self) -> bool {
        self.rows.values().any(Row::tells)
    }

    /// The threads that turned to memory on other nodes, given the aged weights of their accesses before these.
    pub(crate) fn turned(&self, older: &Weights) -> Vec<ThreadId> {
        let turned = |(thread, fresh): &(&ThreadId, &Row)| {
            fresh.tells() && older.get(thread).is_some_and(|older| has_turned(&fresh.weights, older))
        };
        self.rows.iter().filter(turned).map(|(thread, _)| *thread).collect()
    }

    /// What `all` accesses, these included, were before these.
    pub(crate) fn before(&self, all: &Weights) -> Weights {
        let less = |(thread, all): (&ThreadId, &PerNode<f64>)| {
            let fresh = |node: NodeIndex| self.rows.get(thread).map_or(0.0, |row| row.weights[node]);
            (*thread, PerNode::from_fn(all.len(), |node| (all[node] - fresh(node)).max(0.0)))
        };
        all.iter().map(less).collect()
    }

    /// The weights of these accesses alone of some threads.
    pub(crate) fn only(self, threads: &[ThreadId]) -> Weights {
        self.rows.into_iter().filter(|(id, _)| threads.contains(id)).map(|(id, row)| (id, row.weights)).collect()
    }
}

fn has_turned(fresh: &PerNode<f64>, older: &PerNode<f64>) -> bool {
    if older.total() < MIN_ACCESSES {
        return false;
    }
    let share = |row: &PerNode<f64>, node: NodeIndex| row[node] / row.total();
    let elsewhere: f64 =
        (0..older.len()).map(NodeIndex).map(|node| (share(fresh, node) - share(older, node)).max(0.0)).sum();
    elsewhere >= LEAST_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: ThreadId = ThreadId { tid: 1, start_boottime_ns: 1 };

    /// What `fresh` accesses (each of a look of its own) to node 0 and to node 1 say of a thread that did `older` before.
    fn turns(fresh: [u64; 2], older: [f64; 2]) -> bool {
        let mut rows = Rows::new(2);
        for (node, count) in fresh.into_iter().enumerate() {
            let there = Home::One(NodeIndex(node), 512);
            (0..count).for_each(|look| rows.add(THREAD, look + 1000 * node as u64, 1.0, Memory::Group(there)));
        }
        let all = PerNode::from_fn(2, |node| fresh[node.0] as f64 + older[node.0]);
        let before = rows.before(&[(THREAD, all)].into());
        assert_eq!(before[&THREAD], older.to_vec().into());
        !rows.turned(&before).is_empty()
    }

    #[test]
    fn a_thread_whose_accesses_go_elsewhere_has_turned() {
        assert!(turns([2, 38], [90.0, 10.0]));
        assert!(turns([20, 20], [90.0, 10.0]), "half of the interval was before it turned");
        assert!(!turns([38, 2], [90.0, 10.0]));
        assert!(!turns([28, 12], [90.0, 10.0]), "chance");
    }

    #[test]
    fn too_little_is_no_turn() {
        assert!(!turns([0, 23], [90.0, 10.0]), "too few accesses now");
        assert!(!turns([0, 40], [20.0, 3.0]), "or before");
        let mut rows = Rows::new(2);
        (0..40).for_each(|_| rows.add(THREAD, 7, 1.0, Memory::Node(NodeIndex(1))));
        assert!(
            rows.turned(&[(THREAD, vec![90.0, 0.0].into())].into()).is_empty(),
            "one look is of one stretch of code"
        );
        assert!(!rows.tell());
    }

    #[test]
    fn memory_on_several_nodes_counts_for_each_by_its_pages() {
        let mut rows = Rows::new(2);
        (0..40).for_each(|look| rows.add(THREAD, look, 1.0, Memory::Group(Home::Several(&[256, 256]))));
        let before = |before: [f64; 2]| [(THREAD, before.to_vec().into())].into();
        assert_eq!(rows.turned(&before([90.0, 10.0])), [THREAD]);
        assert!(rows.turned(&before([60.0, 40.0])).is_empty());
        assert!(rows.turned(&BTreeMap::new()).is_empty(), "nothing is remembered of it");
        assert!(rows.tell());
        assert_eq!(rows.only(&[THREAD])[&THREAD], vec![20.0, 20.0].into());
    }
}
