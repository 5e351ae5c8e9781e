// SPDX-License-Identifier: GPL-2.0-only
//! Which axes of the space mattered: the best that each value of an axis can do, whatever the others are. Where all with a value
//! were stopped, it is known how long they take at least. Before all of them: what threads alone reach, with pages where they are
//! touched first; pages alone, with as many threads as there can be, in turn over all nodes; and both together.

use std::collections::BTreeMap;

use crate::session::Outcome;
use crate::space::{Configuration, PagePlacement, ThreadPlacement};

/// The axis of the rules by which pages are placed.
const PAGES: &str = "placement of pages";

/// A value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// In words.
    pub words: String,
    /// Median of the best configuration with it.
    pub seconds: f64,
    /// No run of any configuration with it ended: they take longer than that.
    pub at_least: bool,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name.
    pub name: &'static str,
    /// In the order of the axis.
    pub values: Vec<Value>,
}

impl Axis {
    /// How many times slower the best configuration is with the worst value, at least: 1 if the axis does not matter.
    pub fn weight(&self) -> f64 {
        let seconds = || self.values.iter().map(|value| value.seconds);
        seconds().fold(0.0, f64::max) / seconds().fold(f64::INFINITY, f64::min)
    }
}

/// What was placed, and the axes with at least two values that were measured, the weightiest first.
pub fn axes(outcome: &Outcome) -> Vec<Axis> {
    let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
    let threads = |count: usize| if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
    let mut axes = vec![
        axis(outcome, "number of threads", |one| vec![(one.threads, threads(one.threads))]),
        axis(outcome, "nodes of threads", |one| vec![(one.thread_nodes, nodes(one.thread_nodes))]),
        axis(outcome, "placement of threads", |one| {
            vec![(one.thread_placement, one.thread_placement.name().to_owned())]
        }),
        axis(outcome, "nodes of pages", |one| vec![(one.page_nodes, nodes(one.page_nodes))]),
        axis(outcome, PAGES, |one| vec![(one.page_placement, one.page_placement.name().to_owned())]),
    ];
    axes.sort_by(|one, other| other.weight().total_cmp(&one.weight()));
    // Where pages are not placed, or on one node, there is nothing to tell apart.
    if axes.iter().any(|axis| axis.name == PAGES && axis.values.len() > 1) {
        axes.insert(0, placed(outcome));
    }
    axes.retain(|axis| axis.values.len() > 1);
    axes
}

/// What threads alone reach, pages alone, and both (Popov et al., ICS 2019).
fn placed(outcome: &Outcome) -> Axis {
    let all = || outcome.candidates.iter().flatten();
    let usual = all().map(|one| (one.threads, one.thread_nodes)).max_by_key(|&(threads, nodes)| (threads, nodes));
    axis(outcome, "what is placed", |one| {
        let has_usual_threads =
            Some((one.threads, one.thread_nodes)) == usual && one.thread_placement == ThreadPlacement::Scatter;
        let mut values = vec![(2, "threads and pages".to_owned())];
        values.extend((one.page_placement == PagePlacement::FirstTouch).then(|| (0, "threads only".to_owned())));
        values.extend(has_usual_threads.then(|| (1, "pages only".to_owned())));
        values
    })
}

/// An axis of which each configuration has these values.
fn axis<Key: Ord>(outcome: &Outcome, name: &'static str, of: impl Fn(&Configuration) -> Vec<(Key, String)>) -> Axis {
    let mut best: BTreeMap<Key, Value> = BTreeMap::new();
    for (one, runs) in outcome.candidates.iter().zip(&outcome.found.runs) {
        let stopped = runs.slower_than.filter(|_| runs.failure.is_none());
        let (Some(one), Some(seconds)) = (one, runs.median().or(stopped)) else { continue };
        for (key, words) in of(one) {
            let value = Value { words, seconds, at_least: runs.median().is_none() };
            let known = best.entry(key).or_insert(value.clone());
            if (value.at_least, value.seconds) < (known.at_least, known.seconds) {
                *known = value;
            }
        }
    }
    Axis { name, values: best.into_values().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Runs;
    use crate::session::AT_BIRTH;
    use crate::space::{PagePlacement, Space};
    use crate::testing::{self, machine};

    /// Of eight CPUs on two nodes: two threads on a node take a second less, pages of one node another one, and both together one more; such pages
    /// take half a second less with threads in blocks.
    #[test]
    fn what_threads_alone_and_pages_alone_reach_is_told_from_what_both_do() {
        let topology = machine(2, 4);
        let all = Space::of(&topology, 8, AT_BIRTH).configurations(&topology);
        let seconds = |one: &Configuration| {
            let threads = f64::from(u8::from(one.threads == 2 && one.thread_nodes == 2));
            let pages = f64::from(u8::from(one.page_placement == PagePlacement::Interleave && one.page_nodes == 1));
            let blocks = f64::from(u8::from(one.thread_placement == ThreadPlacement::Contiguous));
            9.0 - threads - pages - threads * pages - 0.5 * blocks * pages
        };
        let runs = std::iter::once(Runs::default()).chain(all.iter().map(|one| testing::runs(&[seconds(one)])));
        let axes = axes(&testing::outcome(&all, 1, runs.collect()));
        let values: Vec<(&str, f64)> =
            axes[0].values.iter().map(|value| (value.words.as_str(), value.seconds)).collect();
        assert_eq!(values, [("threads only", 8.0), ("pages only", 8.0), ("threads and pages", 6.0)]);
    }

    #[test]
    fn where_pages_are_not_placed_nothing_is_said_of_threads_alone() {
        let topology = machine(2, 4);
        let all = Space::of(&topology, 8, &[PagePlacement::FirstTouch]).configurations(&topology);
        let runs = std::iter::once(Runs::default()).chain(all.iter().map(|_| testing::runs(&[1.0])));
        let axes = axes(&testing::outcome(&all, 1, runs.collect()));
        assert!(axes.iter().all(|axis| axis.name != "what is placed"), "{axes:?}");
    }

    #[test]
    fn the_axis_that_decides_comes_first_and_those_with_one_value_are_left_out() {
        let topology = machine(2, 2);
        let space = Space { threads: vec![2], page_placements: AT_BIRTH.to_vec() };
        let all = space.configurations(&topology);
        let seconds = |one: &Configuration| 1.0 + one.page_nodes as f64 + 0.1 * one.thread_nodes as f64;
        let runs = all.iter().map(|one| match one.page_placement {
            PagePlacement::Dataset => Runs { slower_than: Some(9.0), ..Runs::default() },
            _ => testing::runs(&[seconds(one)]),
        });
        let outcome = testing::outcome(&all, 1, std::iter::once(Runs::default()).chain(runs).collect());
        let axes = axes(&outcome);
        let value = |words: &str, seconds, at_least| Value { words: words.into(), seconds, at_least };
        let of = |name| axes.iter().find(|axis| axis.name == name).unwrap();
        assert_eq!((axes[0].name, axes[1].name), ("what is placed", "placement of pages"));
        assert!(axes[1].values.contains(&value("dataset", 9.0, true)), "all of them were stopped: {axes:?}");
        assert_eq!(of("nodes of pages").values, [value("1 node", 2.1, false), value("2 nodes", 3.1, false)]);
        assert!((of("nodes of pages").weight() - 3.1 / 2.1).abs() < 1e-12);
        assert!(
            axes.iter().all(|axis| axis.name != "number of threads" && axis.name != "placement of threads"),
            "{axes:?}"
        );
    }
}
