// SPDX-License-Identifier: GPL-2.0-only
//! Has a thread turned to memory on other nodes?
//!
//! Problem: signals are aged over seconds, because most intervals show little. When a program goes on to its next phase,
//! the last one is then remembered for longer than it takes to see the new one, and threads are held at memory that they
//! no longer use. Mechanism: a thread's latest accesses are compared with the older ones, by node of the memory, in three ways.
//!
//! - *Share*: of as many accesses as it takes to tell, a good part went elsewhere.
//! - *Surprise*: a few looks were at memory where the thread hardly ever was. Each stretch of [`STRETCH_NS`] adds the
//!   logarithm of how much likelier what it shows is if the thread may be anywhere now than if it is where it was; the sum never falls
//!   below zero (Page's cumulative sum test, Biometrika 1954). Three looks tell of a thread that was at one node only, none of one
//!   that is at all nodes alike. From where the sum began to rise is what belongs to the new phase.
//! - *Company*: when a thread of its process has just turned, one such look is enough.
//!
//! By node and not by page: a thread that walks through much memory on one node is always at other pages, and has not
//! turned to anything.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use tandem_policies::model::{NodeIndex, PerNode, ThreadId};

use crate::known_homes::Home;
use crate::snapshot::{MIN_ACCESSES, MIN_LOOKS};

/// Accesses longer ago are no longer compared with what was before: a thread that is looked at more seldom turns unseen.
pub(crate) const WINDOW_NS: u64 = 4_000_000_000;
/// Share of a thread's accesses that must have gone to other nodes. Chance alone moves a share seen in the least number
/// of accesses that counts by .1 (one standard deviation, at most).
const LEAST_SHARE: f64 = 0.35;
/// What a thread does within this time is often one thing, and counts as one look.
const STRETCH_NS: u64 = 50_000_000;
/// Surprise at which a thread has turned: that of three looks at a node where none of [`MIN_LOOKS`] were; its natural logarithm is of
/// one in 4 500.
const LEAST_SURPRISE: f64 = 8.4;
/// The same while others of its process turn: that of one such look.
const LEAST_SURPRISE_IN_COMPANY: f64 = LEAST_SURPRISE / 3.0;
/// Looks at the past that count at most: that something did not happen in more of them does not make it less likely.
const MOST_PAST_LOOKS: f64 = 32.0;

/// The number of the stretch that a time is in.
pub(crate) fn stretch_of(time_ns: u64) -> u64 {
    time_ns / STRETCH_NS
}

/// Where the memory of an access is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory<'a> {
    /// As hardware measured, or the kernel told of its page.
    Node(NodeIndex),
    /// In a group.
    Group(Home<'a>),
}

/// What is remembered of a thread, aged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Past {
    /// Accesses by node of the memory.
    pub(crate) weights: PerNode<f64>,
    /// Looks that showed them.
    pub(crate) looks: f64,
}

/// That by thread.
pub(crate) type Pasts = BTreeMap<ThreadId, Past>;

impl Past {
    /// What was seen after it belongs to the past, too.
    pub(crate) fn add(&mut self, row: &Row) {
        row.weights.iter().for_each(|(node, weight)| self.weights[node] += weight);
        self.looks += row.looks;
    }

    /// Stretches become the past: each as one look.
    fn add_stretches(&mut self, stretches: &BTreeMap<u64, PerNode<f64>>, which: impl RangeBounds<u64>) {
        for weights in stretches.range(which).map(|(_, weights)| weights) {
            weights.iter().for_each(|(node, weight)| self.weights[node] += weight);
            self.looks += 1.0;
        }
    }

    /// How likely a look at the thread is to find it at each node: one look more is taken to have been everywhere alike.
    fn likelihoods(&self) -> PerNode<f64> {
        let all = self.weights.total();
        let looks = if all > 0.0 { self.looks.min(MOST_PAST_LOOKS) } else { 0.0 };
        let all = if all > 0.0 { all } else { 1.0 };
        let everywhere = 1.0 / self.weights.len() as f64;
        PerNode::from_fn(self.weights.len(), |node| (looks * self.weights[node] / all + everywhere) / (looks + 1.0))
    }
}

/// A thread's turn to memory on other nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    /// What was seen from here on is of the new phase; `None`: nobody knows, all of the row.
    pub(crate) since_ns: Option<u64>,
    /// Looks that had shown the phase before.
    pub(crate) past_looks: f64,
}

/// Accesses of one thread by node of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) weights: PerNode<f64>,
    pub(crate) looks: f64,
    last_look_ns: Option<u64>,
    /// The same weights by number of the stretch.
    stretches: BTreeMap<u64, PerNode<f64>>,
}

impl Row {
    /// No access, on a machine of `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { weights: PerNode::filled(nodes, 0.0), looks: 0.0, last_look_ns: None, stretches: BTreeMap::new() }
    }

    /// An access that counts `weight`, seen by a look at the thread at `time_ns`.
    pub(crate) fn add(&mut self, time_ns: u64, weight: f64, memory: Memory) {
        if self.last_look_ns != Some(time_ns) {
            (self.looks, self.last_look_ns) = (self.looks + 1.0, Some(time_ns));
        }
        let nodes = self.weights.len();
        let stretch = self.stretches.entry(stretch_of(time_ns)).or_insert_with(|| PerNode::filled(nodes, 0.0));
        for row in [&mut self.weights, stretch] {
            match memory {
                Memory::Node(node) => row[node] += weight,
                Memory::Group(home) => home.spread(row, weight),
            }
        }
    }

    /// Whether so many accesses tell where a thread's memory is.
    pub(crate) fn tells(&self) -> bool {
        self.weights.total() >= MIN_ACCESSES && self.looks >= MIN_LOOKS
    }

    /// The thread's turn to memory on other nodes, if it has turned, given its past before this row.
    pub(crate) fn turned_from(&self, past: &Past) -> Option<Turn> {
        let all = Turn { since_ns: None, past_looks: past.looks };
        let latest = || self.surprise(past, 0.0).unwrap_or(all);
        self.surprise(past, LEAST_SURPRISE).or_else(|| self.is_elsewhere(past).then(latest))
    }

    /// The same where another thread of its process has just turned.
    pub(crate) fn turned_in_company(&self, past: &Past) -> Option<Turn> {
        self.surprise(past, LEAST_SURPRISE_IN_COMPANY)
    }

    /// Whether a good part of as many accesses as it takes to tell went elsewhere.
    fn is_elsewhere(&self, past: &Past) -> bool {
        if !self.tells() || past.weights.total() < MIN_ACCESSES {
            return false;
        }
        let share = |row: &PerNode<f64>, node: NodeIndex| row[node] / row.total();
        let more = |node| (share(&self.weights, node) - share(&past.weights, node)).max(0.0);
        (0..past.weights.len()).map(NodeIndex).map(more).sum::<f64>() >= LEAST_SHARE
    }

    /// The turn that a surprise of `least` tells of.
    fn surprise(&self, past: &Past, least: f64) -> Option<Turn> {
        let everywhere = 1.0 / self.weights.len() as f64;
        // Stretches before the surprise began belong to the past.
        let mut past = past.clone();
        let mut likelihoods = past.likelihoods();
        let (mut surprise, mut since) = (0.0, None);
        for (stretch, weights) in self.stretches.iter().filter(|(_, weights)| weights.total() > 0.0) {
            let ratio = |(node, weight): (NodeIndex, &f64)| weight * (everywhere / likelihoods[node]).ln();
            surprise += weights.iter().map(ratio).sum::<f64>() / weights.total();
            if surprise > 0.0 {
                since = since.or(Some(*stretch));
                continue;
            }
            past.add_stretches(&self.stretches, since.unwrap_or(*stretch)..=*stretch);
            likelihoods = past.likelihoods();
            (surprise, since) = (0.0, None);
        }
        let since_ns = since.filter(|_| surprise >= least)? * STRETCH_NS;
        Some(Turn { since_ns: Some(since_ns), past_looks: past.looks })
    }

    /// What was seen from `since_ns` on, as a past: each stretch counts as one look.
    pub(crate) fn since(&self, since_ns: u64) -> Past {
        let mut past = Past { weights: PerNode::filled(self.weights.len(), 0.0), looks: 0.0 };
        past.add_stretches(&self.stretches, stretch_of(since_ns)..);
        past
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

    /// A thread's past of so many accesses to each node, each of a look of its own.
    fn past(weights: &[f64]) -> Past {
        Past { weights: weights.to_vec().into(), looks: weights.iter().sum() }
    }

    /// What `fresh` accesses to node 0 and to node 1 say of a thread that did `older` before.
    fn turns(fresh: [u64; 2], older: [f64; 2]) -> bool {
        let mut row = Row::new(2);
        for (node, count) in fresh.into_iter().enumerate() {
            add(&mut row, count, Home::One(NodeIndex(node), 512));
        }
        row.turned_from(&past(&older)).is_some()
    }

    /// Since which of these looks, one in each second and each at one node, a thread with this past has turned.
    fn surprised(looks: &[usize], past: &Past) -> Option<u64> {
        let mut row = Row::new(past.weights.len());
        for (at, &node) in looks.iter().enumerate() {
            (0..20).for_each(|_| row.add(at as u64 * 1_000_000_000, 1.0, Memory::Node(NodeIndex(node))));
        }
        row.turned_from(past).map(|turn| turn.since_ns.expect("a surprise") / 1_000_000_000)
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
        assert_eq!(row.turned_from(&past(&[90.0, 0.0])), None, "one look is of one stretch of code");
        assert!(!row.tells());
    }

    #[test]
    fn a_few_looks_where_a_thread_never_was_tell_that_it_turned() {
        let at_home = past(&[40.0, 0.0]);
        assert_eq!(surprised(&[1, 1, 1], &at_home), Some(0));
        assert_eq!(surprised(&[0, 0, 0, 1, 1, 1], &at_home), Some(3), "what was before is not of the new phase");
        assert_eq!(surprised(&[0, 1, 1, 0, 1, 1, 1], &at_home), Some(1), "one look back is no end of it");
        assert_eq!(surprised(&[1, 1], &at_home), None);
        assert_eq!(surprised(&[1, 1, 1, 0, 0, 0, 0], &at_home), None, "it came back");
        assert_eq!(
            surprised(&[3, 2, 1], &past(&[0.0, 0.0, 0.0, 0.0, 40.0])),
            Some(0),
            "elsewhere need not be one node"
        );
    }

    #[test]
    fn the_less_is_known_of_the_past_the_more_looks_it_takes() {
        let least = |past: &Past| (1..).find(|&looks| surprised(&vec![1; looks], past).is_some()).unwrap();
        assert_eq!([40.0, 24.0, 6.0].map(|looks| least(&Past { looks, ..past(&[40.0, 0.0]) })), [3, 3, 5]);
        assert_eq!(least(&past(&[36.0, 4.0])), 6, "it was there before");
        assert_eq!(least(&past(&[28.0, 12.0])), 16, "by the share of them");
    }

    #[test]
    fn in_company_one_look_is_enough_where_the_past_is_known_well() {
        let turns = |looks: u64, past: &Past| {
            let mut row = Row::new(2);
            (0..looks).for_each(|look| row.add(look * STRETCH_NS, 20.0, Memory::Node(NodeIndex(1))));
            row.turned_in_company(past).is_some()
        };
        assert!(turns(1, &past(&[40.0, 0.0])) && !turns(1, &past(&[36.0, 4.0])) && turns(3, &past(&[36.0, 4.0])));
        assert!(!turns(1, &past(&[15.0, 0.0])) && turns(1, &past(&[16.0, 0.0])) && turns(2, &past(&[9.0, 0.0])));
        assert!(!turns(9, &past(&[20.0, 20.0])));
    }

    #[test]
    fn what_was_seen_before_the_surprise_is_of_the_past_too() {
        let hardly_known = past(&[2.0, 0.0]);
        assert_eq!(surprised(&[1, 1, 1, 1], &hardly_known), None);
        assert_eq!(surprised(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], &hardly_known), Some(8));
        assert_eq!(surprised(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], &past(&[0.0, 0.0])), Some(8));
        let mut row = Row::new(2);
        (0..10).for_each(|at| row.add(at * STRETCH_NS, 1.0, Memory::Node(NodeIndex(usize::from(at > 5)))));
        assert_eq!(
            row.turned_in_company(&hardly_known),
            Some(Turn { since_ns: Some(6 * STRETCH_NS), past_looks: 8.0 })
        );
        assert_eq!(surprised(&[0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1], &hardly_known), None, "it goes there often");
    }

    /// Of both nodes alike each look is as likely as before, however many are of one.
    #[test]
    fn a_thread_that_is_everywhere_never_surprises() {
        assert_eq!(surprised(&[1; 15], &past(&[20.0, 20.0])), None);
        assert_eq!(surprised(&[0; 15], &past(&[20.0, 20.0])), None);
    }

    #[test]
    fn many_accesses_in_one_stretch_of_time_are_one_look() {
        let mut row = Row::new(2);
        (0..15).for_each(|look| row.add(look * 3_000_000, 9.0, Memory::Node(NodeIndex(1))));
        assert_eq!(row.turned_from(&past(&[40.0, 0.0])), None, "all within 50 ms");
        row.add(STRETCH_NS, 9.0, Memory::Node(NodeIndex(1)));
        row.add(2 * STRETCH_NS, 9.0, Memory::Node(NodeIndex(1)));
        assert!(row.turned_from(&past(&[40.0, 0.0])).is_some());
        assert_eq!(row.since(STRETCH_NS), Past { weights: vec![0.0, 18.0].into(), looks: 2.0 });
    }

    #[test]
    fn memory_on_several_nodes_counts_for_each_by_its_pages() {
        let mut row = Row::new(2);
        add(&mut row, 40, Home::Several(&[256, 256]));
        assert!(row.turned_from(&past(&[90.0, 10.0])).is_some());
        assert!(row.turned_from(&past(&[60.0, 40.0])).is_none());
        assert_eq!(row.weights, vec![20.0, 20.0].into());
    }
}
