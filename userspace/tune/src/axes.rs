// SPDX-License-Identifier: GPL-2.0-only
//! Which axes of the space mattered: the best that each value of an axis can do, whatever the others are.

use std::collections::BTreeMap;

use crate::session::Outcome;
use crate::space::Configuration;

/// An axis: the best median for each of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name.
    pub name: &'static str,
    /// (value, median in s of the best configuration with it), in the order of the axis.
    pub best_s: Vec<(String, f64)>,
}

impl Axis {
    /// How many times slower the best configuration is with the worst value: 1 if the axis does not matter.
    pub fn weight(&self) -> f64 {
        let seconds = || self.best_s.iter().map(|value| value.1);
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
    axes.retain(|axis| axis.best_s.len() > 1);
    axes.sort_by(|one, other| other.weight().total_cmp(&one.weight()));
    axes
}

fn axis<Value: Ord>(outcome: &Outcome, name: &'static str, of: impl Fn(&Configuration) -> (Value, String)) -> Axis {
    let mut best: BTreeMap<Value, (String, f64)> = BTreeMap::new();
    for (one, runs) in outcome.candidates.iter().zip(&outcome.found.runs) {
        if let (Some(one), Some(median)) = (one, runs.median()) {
            let (value, words) = of(one);
            let known = best.entry(value).or_insert((words, median));
            known.1 = known.1.min(median);
        }
    }
    Axis { name, best_s: best.into_values().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{End, Found, Runs};
    use crate::session::AT_BIRTH;
    use crate::space::Space;
    use crate::testing::machine;

    #[test]
    fn the_axis_that_decides_comes_first_and_those_with_one_value_are_left_out() {
        let topology = machine(2, 2);
        let space = Space { threads: vec![2], page_placements: AT_BIRTH.to_vec() };
        let all = space.configurations(&topology);
        let seconds = |one: &Configuration| 1.0 + one.page_nodes as f64 + 0.1 * one.thread_nodes as f64;
        let runs = all.iter().map(|one| Runs { seconds: vec![seconds(one)], ..Runs::default() });
        let outcome = Outcome {
            candidates: std::iter::once(None).chain(all.iter().copied().map(Some)).collect(),
            found: Found {
                best: Some(1),
                runs: std::iter::once(Runs::default()).chain(runs).collect(),
                end: End::Decided,
            },
            pages_alike: vec![],
            regions: vec![],
            notes: vec![],
            one_by_one: None,
            bimodal: None,
            page_map: None,
        };
        let axes = axes(&outcome);
        assert_eq!(axes[0].name, "nodes of pages");
        assert_eq!(axes[0].best_s, [("1 node".to_owned(), 2.1), ("2 nodes".to_owned(), 3.1)]);
        assert!((axes[0].weight() - 3.1 / 2.1).abs() < 1e-12);
        assert!(
            axes.iter().all(|axis| axis.name != "number of threads" && axis.name != "placement of threads"),
            "{axes:?}"
        );
    }
}
