// SPDX-License-Identifier: GPL-2.0-only
//! What placement is worth, computed from where threads and pages are. No I/O, no clock.

use crate::topology::NodeId;
use std::collections::BTreeMap;

/// Pages of one range in memory, by node.
pub type PagesByNode = BTreeMap<NodeId, u64>;

/// A thread and the ranges it uses.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadUse {
    /// Thread id.
    pub tid: i32,
    /// Index of the range, and the share of the thread's accesses that go there.
    pub ranges: Vec<(usize, f64)>,
}

/// Where everything is at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Node of each thread, in the order of the uses.
    pub thread_nodes: Vec<NodeId>,
    /// Pages of each range.
    pub range_pages: Vec<PagesByNode>,
}

/// Fraction of the pages that are on `node`; `None` without pages.
fn fraction_on(pages: &PagesByNode, node: NodeId) -> Option<f64> {
    let all: u64 = pages.values().sum();
    (all > 0).then(|| pages.get(&node).copied().unwrap_or(0) as f64 / all as f64)
}

impl Picture {
    /// Share of all accesses that go to another node than the accessing thread's, 0 to 1: the sum over
    /// threads and ranges of weight x fraction of the range's pages elsewhere, over the sum of the
    /// weights. Every thread counts the same; ranges not in memory count nothing.
    pub fn remote_share(&self, uses: &[ThreadUse]) -> Option<f64> {
        let (mut remote, mut all) = (0.0, 0.0);
        for (thread, node) in uses.iter().zip(&self.thread_nodes) {
            for (range, weight) in &thread.ranges {
                if let Some(local) = fraction_on(&self.range_pages[*range], *node) {
                    remote += weight * (1.0 - local);
                    all += weight;
                }
            }
        }
        (all > 0.0).then(|| remote / all)
    }

    /// Share of pages on the node of the thread that uses them, 0 to 1; a page with several users
    /// counts for the part of them that are on its node. With `private_only`, of pages with one user.
    pub fn local_pages_share(&self, uses: &[ThreadUse], private_only: bool) -> Option<f64> {
        let (mut local, mut all) = (0.0, 0u64);
        for (range, pages) in self.range_pages.iter().enumerate() {
            let users: Vec<NodeId> = (uses.iter().zip(&self.thread_nodes))
                .filter(|(thread, _)| thread.ranges.iter().any(|(used, _)| *used == range))
                .map(|(_, node)| *node)
                .collect();
            if users.is_empty() || (private_only && users.len() > 1) {
                continue;
            }
            let on_user_nodes: u64 = users.iter().map(|node| pages.get(node).copied().unwrap_or(0)).sum();
            local += on_user_nodes as f64 / users.len() as f64;
            all += pages.values().sum::<u64>();
        }
        (all > 0).then(|| local / all as f64)
    }

    /// Per thread: whether it is on a node that no other node exceeds in (weighted) pages of the thread's.
    pub fn right_place(&self, uses: &[ThreadUse]) -> Vec<bool> {
        let is_right = |(thread, node): (&ThreadUse, &NodeId)| {
            let mut by_node: BTreeMap<NodeId, f64> = BTreeMap::new();
            for (range, weight) in &thread.ranges {
                for memory_node in self.range_pages[*range].keys() {
                    let fraction = fraction_on(&self.range_pages[*range], *memory_node).unwrap_or(0.0);
                    *by_node.entry(*memory_node).or_default() += weight * fraction;
                }
            }
            let most = by_node.values().copied().fold(0.0, f64::max);
            most > 0.0 && by_node.get(node).is_some_and(|here| *here >= most)
        };
        uses.iter().zip(&self.thread_nodes).map(is_right).collect()
    }

    /// Threads on each node.
    pub fn threads_per_node(&self) -> PagesByNode {
        let mut threads = PagesByNode::new();
        for node in &self.thread_nodes {
            *threads.entry(*node).or_default() += 1;
        }
        threads
    }

    /// Pages of all ranges on each node.
    pub fn pages_per_node(&self) -> PagesByNode {
        let mut all = PagesByNode::new();
        for (node, pages) in self.range_pages.iter().flatten() {
            *all.entry(*node).or_default() += pages;
        }
        all
    }

    /// How many of `pairs` (indices into the threads) have both threads on one node.
    pub fn pairs_together(&self, pairs: &[[usize; 2]]) -> usize {
        pairs.iter().filter(|[one, other]| self.thread_nodes[*one] == self.thread_nodes[*other]).count()
    }
}

/// Index of the first sample from which `series` stays at or below `limit` for `samples` samples in a row.
pub fn first_settled(series: &[Option<f64>], limit: f64, samples: usize) -> Option<usize> {
    series.windows(samples).position(|window| window.iter().all(|value| value.is_some_and(|value| value <= limit)))
}

/// Node changes of one thread over successive samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// Samples in which it was on another node than in the sample before.
    pub seen: usize,
    /// Samples that were the first of at least two in a row on a new node; the other changes are excursions.
    pub moves: Vec<usize>,
}

/// Finds one thread's node changes.
pub fn node_changes(nodes: &[NodeId]) -> NodeChanges {
    let mut changes = NodeChanges::default();
    let Some(mut home) = nodes.first().copied() else { return changes };
    for (sample, pair) in nodes.windows(2).enumerate() {
        changes.seen += (pair[0] != pair[1]) as usize;
        if pair[0] == pair[1] && pair[0] != home {
            changes.moves.push(sample);
            home = pair[0];
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(counts: &[(u32, u64)]) -> PagesByNode {
        counts.iter().map(|(node, pages)| (NodeId(*node), *pages)).collect()
    }

    fn nodes(ids: &[u32]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    /// Two threads with a private range each (0, 1) and one shared range (2).
    fn uses() -> Vec<ThreadUse> {
        vec![
            ThreadUse { tid: 1, ranges: vec![(0, 0.8), (2, 0.2)] },
            ThreadUse { tid: 2, ranges: vec![(1, 0.8), (2, 0.2)] },
        ]
    }

    fn picture() -> Picture {
        Picture {
            thread_nodes: nodes(&[0, 3]),
            range_pages: vec![pages(&[(0, 75), (1, 25)]), pages(&[(2, 100)]), pages(&[(0, 10), (3, 10)])],
        }
    }

    #[test]
    fn remote_share_weighs_ranges_by_accesses_not_by_pages() {
        // Thread 1: 0.8 x 0.25 + 0.2 x 0.5 = 0.3; thread 2: 0.8 x 1 + 0.2 x 0.5 = 0.9; mean of both 0.6.
        assert!((picture().remote_share(&uses()).unwrap() - 0.6).abs() < 1e-12);
    }

    #[test]
    fn ranges_not_in_memory_count_nothing() {
        let mut picture = picture();
        picture.range_pages[1].clear();
        // Thread 1 as before 0.3 of 1.0; thread 2 only 0.2 x 0.5 = 0.1 of 0.2; (0.3 + 0.1) / 1.2.
        assert!((picture.remote_share(&uses()).unwrap() - 0.4 / 1.2).abs() < 1e-12);
        picture.range_pages.iter_mut().for_each(PagesByNode::clear);
        assert_eq!(picture.remote_share(&uses()), None);
        assert_eq!(picture.local_pages_share(&uses(), false), None);
    }

    #[test]
    fn a_page_is_local_for_the_part_of_its_users_on_its_node() {
        // Private: 75 of 100 and 0 of 100. Shared: 10 pages on node 0 and 10 on node 3, each local to one user of two.
        assert_eq!(picture().local_pages_share(&uses(), true), Some(75.0 / 200.0));
        assert_eq!(picture().local_pages_share(&uses(), false), Some((75.0 + 10.0) / 220.0));
    }

    #[test]
    fn the_right_place_is_the_node_of_most_weighted_pages_ties_included() {
        // Thread 1: node 0 has 0.8 x 0.75 + 0.2 x 0.5 = 0.7. Thread 2: node 2 has 0.8, its own node 3 only 0.1.
        assert_eq!(picture().right_place(&uses()), [true, false]);
        let tied = Picture {
            thread_nodes: nodes(&[1, 3]),
            range_pages: vec![pages(&[(0, 5), (1, 5)]), pages(&[]), pages(&[])],
        };
        assert_eq!(tied.right_place(&uses()), [true, false]);
    }

    #[test]
    fn totals_per_node_add_up() {
        assert_eq!(picture().pages_per_node(), pages(&[(0, 85), (1, 25), (2, 100), (3, 10)]));
        assert_eq!(picture().threads_per_node(), pages(&[(0, 1), (3, 1)]));
    }

    #[test]
    fn a_pair_is_together_on_one_node_only() {
        assert_eq!(picture().pairs_together(&[[0, 1]]), 0);
        assert_eq!(Picture { thread_nodes: nodes(&[2, 2]), range_pages: vec![] }.pairs_together(&[[0, 1]]), 1);
    }

    #[test]
    fn settled_is_the_first_sample_of_three_in_a_row() {
        let series = [Some(0.5), Some(0.1), Some(0.2), Some(0.1), Some(0.05), None, Some(0.0), Some(0.1), Some(0.0)];
        assert_eq!(first_settled(&series, 0.10, 3), Some(6));
        assert_eq!(first_settled(&series[..8], 0.10, 3), None);
        assert_eq!(first_settled(&[], 0.10, 3), None);
    }

    #[test]
    fn an_excursion_is_seen_but_is_no_move() {
        assert_eq!(node_changes(&nodes(&[0, 1, 0, 0])), NodeChanges { seen: 2, moves: vec![] });
        assert_eq!(node_changes(&nodes(&[0, 1, 1, 1])), NodeChanges { seen: 1, moves: vec![1] });
        assert_eq!(node_changes(&nodes(&[0, 1, 2, 2, 0, 0])), NodeChanges { seen: 3, moves: vec![2, 4] });
        assert_eq!(node_changes(&[]), NodeChanges::default());
    }
}
