// SPDX-License-Identifier: GPL-2.0-only
//! Which axes of the space mattered: the best that each value of an axis can do, whatever the others are. Where all with a value
//! were stopped, it is known how long they take at least.

use std::collections::BTreeMap;

use crate::session::Outcome;
use crate::space::Configuration;

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

/// The axes with at least two values that were measured, the weightiest first.
pub fn axes(outcome: &Outcome) -> Vec<Axis> {
    let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
    let threads = |count: usize| if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
    let mut axes = vec![
        axis(outcome, "number of threads", |one| (one.threads, threads(one.threads))),
        axis(outcome, "nodes of threads", |one| (one.thread_nodes, nodes(one.thread_nodes))),
        axis(outcome, "placement of threads", |one| (one.thread_placement, one.thread_placement.name().to_owned())),
        axis(outcome, "nodes of pages", |one| (one.page_nodes, nodes(one.page_nodes))),
        axis(outcome, "placement of pages", |one| (one.page_placement, one.page_placement.name().to_owned())),
    ];
    axes.retain(|axis| axis.values.len() > 1);
    axes.sort_by(|one, other| other.weight().total_cmp(&one.weight()));
    axes
}

fn axis<Key: Ord>(outcome: &Outcome, name: &'static str, of: impl Fn(&Configuration) -> (Key, String)) -> Axis {
    let mut best: BTreeMap<Key, Value> = BTreeMap::new();
    for (one, runs) in outcome.candidates.iter().zip(&outcome.found.runs) {
        let stopped = runs.slower_than.filter(|_| runs.failure.is_none());
        let (Some(one), Some(seconds)) = (one, runs.median().or(stopped)) else { continue };
        let (key, words) = of(one);
        let value = Value { words, seconds, at_least: runs.median().is_none() };
        let known = best.entry(key).or_insert(value.clone());
        if (value.at_least, value.seconds) < (known.at_least, known.seconds) {
            *known = value;
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
        assert_eq!(axes[0].name, "placement of pages");
        assert!(axes[0].values.contains(&value("dataset", 9.0, true)), "all of them were stopped: {axes:?}");
        assert_eq!(of("nodes of pages").values, [value("1 node", 2.1, false), value("2 nodes", 3.1, false)]);
        assert!((of("nodes of pages").weight() - 3.1 / 2.1).abs() < 1e-12);
        assert!(
            axes.iter().all(|axis| axis.name != "number of threads" && axis.name != "placement of threads"),
            "{axes:?}"
        );
    }
}
