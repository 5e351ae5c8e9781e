// SPDX-License-Identifier: GPL-2.0-only
//! What one run of a program is under: a configuration, and seats of their own for some of its parallel regions.
//!
//! Problem: one region may be fastest with all threads, another with half of them on one node; their pages they share, and
//! moving these between regions never paid (Popov et al., ICS 2019). Mechanism: pages are those of a configuration of the
//! whole program, the *base*; a region may have another number of threads and other places for them. To measure many of
//! these in one run, a region may take them in turns.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_policies::model::{NodeIndex, Topology};

use crate::space::{Configuration, ThreadPlacement, nodes_of_threads};

/// Entries at the beginning of each turn that are not measured: threads are born and come to their CPUs, caches fill.
pub const WARM_UP: usize = 1;

/// Entries of a turn that are measured. Two at least, so that a program whose entries alternate is seen in both kinds.
pub const MEASURED: usize = 2;

/// Measured entries after which a choice has had enough turns.
pub const ENOUGH: usize = 10;

/// Number and places of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionSeats {
    /// Number of threads.
    pub threads: usize,
    /// Number of nodes that run them.
    pub thread_nodes: usize,
    /// How they are dealt to these.
    pub thread_placement: ThreadPlacement,
}

impl From<Configuration> for RegionSeats {
    fn from(one: Configuration) -> Self {
        let Configuration { threads, thread_nodes, thread_placement, .. } = one;
        Self { threads, thread_nodes, thread_placement }
    }
}

impl fmt::Display for RegionSeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.thread_nodes == 1 { "node" } else { "nodes" };
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        write!(f, "{} {threads} {} on {} {nodes}", self.threads, self.thread_placement.name(), self.thread_nodes)
    }
}

impl RegionSeats {
    /// The node of each thread, by their order; fewer than there are threads if there is no room.
    pub fn nodes(&self, topology: &Topology) -> Vec<NodeIndex> {
        let nodes = nodes_of_threads(topology, self.thread_nodes);
        let cpus = |node: NodeIndex| topology.nodes[node].cpus.len();
        match self.thread_placement {
            ThreadPlacement::Scatter => {
                let most = nodes.iter().map(|&node| cpus(node)).max().unwrap_or(0);
                let round = |round: usize| nodes.iter().copied().filter(move |&node| cpus(node) > round);
                (0..most).flat_map(round).take(self.threads).collect()
            }
            ThreadPlacement::Contiguous => {
                let room: usize = nodes.iter().map(|&node| cpus(node)).sum();
                let in_order = nodes.iter().flat_map(|&node| std::iter::repeat_n(node, cpus(node)));
                let in_order: Vec<NodeIndex> = in_order.collect();
                let last = self.threads.min(room);
                (0..last).map(|thread| in_order[thread * room / last]).collect()
            }
        }
    }

    /// All that these numbers of threads allow, each effect once: the most threads first.
    pub fn all(threads: &[usize], topology: &Topology) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut known: Vec<Vec<NodeIndex>> = Vec::new();
        for &threads in threads.iter().rev() {
            for thread_nodes in 1..=topology.nodes_with_cpus().count() {
                for thread_placement in [ThreadPlacement::Scatter, ThreadPlacement::Contiguous] {
                    let one = Self { threads, thread_nodes, thread_placement };
                    let nodes = one.nodes(topology);
                    let used: std::collections::BTreeSet<NodeIndex> = nodes.iter().copied().collect();
                    if nodes.len() == threads && used.len() == thread_nodes && !known.contains(&nodes) {
                        known.push(nodes);
                        all.push(one);
                    }
                }
            }
        }
        all
    }
}

/// A region that takes several seats in turns while a program runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    /// Its function.
    pub region: String,
    /// What it takes in turns.
    pub choices: Vec<RegionSeats>,
    /// The turn that the run begins with, where an earlier run ended.
    pub first: usize,
}

/// What one entry of a region in turns is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which of the choices it has.
    pub choice: usize,
    /// Whether it is measured.
    pub is_measured: bool,
}

impl Turn {
    /// What `entry` (from 0) is for when `choices` take turns from turn number `first` on. Every round begins one choice
    /// later, so that none meets the same phase of the program again and again.
    pub fn of(entry: usize, first: usize, choices: usize) -> Self {
        let turn = first + entry / (WARM_UP + MEASURED);
        let choice = (turn % choices + turn / choices) % choices;
        Self { choice, is_measured: entry % (WARM_UP + MEASURED) >= WARM_UP }
    }
}

/// What one run of a program is under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The whole program's, but for what follows.
    pub base: Configuration,
    /// By region (its function): its own seats.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regions: BTreeMap<String, RegionSeats>,
    /// A region that is measured in turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Turns>,
}

impl From<Configuration> for Plan {
    fn from(base: Configuration) -> Self {
        Self { base, regions: BTreeMap::new(), turns: None }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        for (region, seats) in &self.regions {
            write!(f, "; {region}: {seats}")?;
        }
        if let Some(turns) = &self.turns {
            let choices: Vec<String> = turns.choices.iter().map(RegionSeats::to_string).collect();
            write!(f, "; {} in turns from {}: {}", turns.region, turns.first, choices.join(" | "))?;
        }
        Ok(())
    }
}

impl Plan {
    /// The most threads that any part of it wants: what the program is told.
    pub fn most_threads(&self) -> usize {
        let turns = self.turns.iter().flat_map(|turns| &turns.choices);
        self.regions.values().chain(turns).map(|seats| seats.threads).fold(self.base.threads, usize::max)
    }

    /// Whether a region has seats of its own.
    pub fn is_by_region(&self) -> bool {
        !self.regions.is_empty() || self.turns.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::PagePlacement;
    use crate::testing::{machine, scattered};

    fn plan() -> Plan {
        let base = scattered(4, (2, 2), PagePlacement::FirstTouch);
        let seats = RegionSeats { threads: 8, ..base.into() };
        Plan { regions: [("a".to_owned(), seats)].into(), ..base.into() }
    }

    #[test]
    fn a_plan_says_all_that_it_is_and_without_regions_it_is_its_configuration() {
        let plan = plan();
        assert_eq!(Plan::from(plan.base).to_string(), plan.base.to_string());
        let expected = "4 threads scatter on 2 nodes, pages first-touch on 2 nodes; a: 8 threads scatter on 2 nodes";
        assert_eq!((plan.to_string().as_str(), plan.most_threads()), (expected, 8));
        let choices = vec![RegionSeats { threads: 16, ..plan.base.into() }, plan.base.into()];
        let turns = Plan { turns: Some(Turns { region: "b".into(), choices, first: 6 }), ..plan.clone() };
        let in_turns = "; b in turns from 6: 16 threads scatter on 2 nodes | 4 threads scatter on 2 nodes";
        assert_eq!((turns.to_string(), turns.most_threads()), (expected.to_owned() + in_turns, 16));
        let text = toml::to_string(&turns).unwrap();
        assert_eq!(toml::from_str::<Plan>(&text).unwrap(), turns, "{text}");
    }

    #[test]
    fn every_choice_has_as_many_turns_as_the_others_wherever_runs_begin() {
        for choices in 1..6 {
            let entries = choices * 5 * (WARM_UP + MEASURED);
            let mut measured = vec![0; choices];
            // In two runs, of which the second goes on with the turn after the first one's last.
            for (first, entries) in [(0, entries / 5 * 2), (2 * choices, entries / 5 * 3)] {
                for entry in 0..entries {
                    let turn = Turn::of(entry, first, choices);
                    assert_eq!(turn.is_measured, entry % 3 != 0);
                    measured[turn.choice] += usize::from(turn.is_measured);
                }
            }
            assert_eq!(measured, vec![ENOUGH; choices]);
        }
        let order: Vec<usize> = (0..9).map(|turn| Turn::of(0, turn, 3).choice).collect();
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
    }

    #[test]
    fn seats_are_all_that_differ_on_this_machine() {
        let topology = machine(2, 2);
        let all = RegionSeats::all(&[1, 2, 4], &topology);
        let words: Vec<String> = all.iter().map(RegionSeats::to_string).collect();
        let expected = [
            "4 threads scatter on 2 nodes",
            "4 threads contiguous on 2 nodes",
            "2 threads scatter on 1 node",
            "2 threads scatter on 2 nodes",
            "1 thread scatter on 1 node",
        ];
        assert_eq!(words, expected);
    }
}
