// SPDX-License-Identifier: GPL-2.0-only
//! The space of configurations, and how it is enumerated.
//!
//! Problem: threads, pages and parallelism help or hurt each other, so they are varied together (Popov et al., ICS 2019),
//! and different words for one and the same placement must not be measured twice. Mechanism: all combinations of the
//! axes below that make sense, one for each effect.
//!
//! | axis | values | rules |
//! |---|---|---|
//! | threads | 2, 4, 8, ..., all cores, all CPUs | at least one for each thread node, at most one a CPU of these |
//! | thread nodes (the source's TND) | 1 to all nodes with CPUs | the first one and always the nearest to those taken |
//! | thread placement (TPP) | scatter, contiguous | the same on one node, and when each thread has a node of its own |
//! | page nodes (PND) | 1 to all nodes with memory | as many as thread nodes where pages follow threads |
//! | page placement (PPP) | see [`PagePlacement`] | all the same on one page node |

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_policies::model::{NodeIndex, Topology};

use crate::births;
use crate::plan::RegionSeats;

/// How threads are dealt to their nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPlacement {
    /// Round robin.
    Scatter,
    /// In equal consecutive blocks.
    Contiguous,
}

/// Where pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagePlacement {
    /// On the node of the thread that touched it first: what the kernel does by itself.
    FirstTouch,
    /// On the node of the thread that accesses it most.
    Locality,
    /// Such that the page nodes serve equally much.
    Balance,
    /// Locality until a node would be overloaded.
    Mix,
    /// Each allocation in equal chunks ([`Configuration::chunks`]).
    Dataset,
    /// Page by page in turn: the source's dataset in blocks of one page.
    Interleave,
}

/// The page placements of the source.
pub const PAPERS: [PagePlacement; 5] = [
    PagePlacement::FirstTouch,
    PagePlacement::Locality,
    PagePlacement::Balance,
    PagePlacement::Mix,
    PagePlacement::Dataset,
];

/// All page placements. Where several are the same the first one stands for them, so what needs no moving comes first.
pub const ALL: [PagePlacement; 6] = [
    PagePlacement::FirstTouch,
    PagePlacement::Interleave,
    PagePlacement::Dataset,
    PagePlacement::Locality,
    PagePlacement::Balance,
    PagePlacement::Mix,
];

impl PagePlacement {
    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|placement| placement.name() == name)
    }

    /// Whether somebody has to see who uses which pages, and move them, while the program runs.
    pub fn needs_moving(self) -> bool {
        matches!(self, Self::Locality | Self::Balance | Self::Mix) || (self == Self::Dataset && !births::POSSIBLE)
    }

    /// Whether pages can only be where the threads are.
    pub fn follows_threads(self) -> bool {
        matches!(self, Self::FirstTouch | Self::Locality)
    }

    /// Its name, as files and tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::Locality => "locality",
            Self::Balance => "balance",
            Self::Mix => "mix",
            Self::Dataset => "dataset",
            Self::Interleave => "interleave",
        }
    }
}

impl ThreadPlacement {
    /// Its name, as files and tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scatter => "scatter",
            Self::Contiguous => "contiguous",
        }
    }
}

/// One point of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Number of threads.
    pub threads: usize,
    /// Number of nodes that run them.
    pub thread_nodes: usize,
    /// How they are dealt to these.
    pub thread_placement: ThreadPlacement,
    /// Number of nodes that hold pages.
    pub page_nodes: usize,
    /// How pages are dealt to these.
    pub page_placement: PagePlacement,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.page_nodes == 1 { "node" } else { "nodes" };
        let (seats, pages) = (RegionSeats::from(*self), self.page_placement.name());
        write!(f, "{seats}, pages {pages} on {} {nodes}", self.page_nodes)
    }
}

impl Configuration {
    /// The node of each of its threads, by their order.
    pub fn seats(&self, topology: &Topology) -> Vec<NodeIndex> {
        RegionSeats::from(*self).nodes(topology)
    }

    /// The nodes that hold its pages: whoever moves pages takes the first ones with memory, all else [those near its
    /// threads](Self::nodes_near_threads).
    pub fn nodes_of_pages(&self, topology: &Topology) -> Vec<NodeIndex> {
        if self.needs_moving() {
            return memory_nodes(topology).take(self.page_nodes).collect();
        }
        self.nodes_near_threads(topology)
    }

    /// The nodes of its threads, then always the one nearest to those taken, as many as hold pages.
    pub fn nodes_near_threads(&self, topology: &Topology) -> Vec<NodeIndex> {
        let of_threads = nodes_of_threads(topology, self.thread_nodes);
        let with_memory = of_threads.into_iter().filter(|&node| topology.nodes[node].memory_pages > 0);
        nearest(topology, with_memory.take(self.page_nodes).collect(), memory_nodes(topology), self.page_nodes)
    }

    /// The node of each of the equal chunks into which `dataset` cuts an allocation: chunk i is with thread i, or, with another
    /// number of page nodes than of thread nodes, on the i-th page node.
    pub fn chunks(&self, topology: &Topology) -> Vec<NodeIndex> {
        let seats = self.seats(topology);
        let have_memory = seats.iter().all(|&node| topology.nodes[node].memory_pages > 0);
        if self.page_nodes == self.thread_nodes && have_memory { seats } else { self.nodes_of_pages(topology) }
    }

    /// Whether its pages have to be moved while the program runs: on one node they are from the start.
    pub fn needs_moving(&self) -> bool {
        self.page_nodes > 1 && self.page_placement.needs_moving()
    }

    /// What it amounts to: configurations with the same effect are one.
    fn effect(&self, topology: &Topology) -> Effect {
        let seats = self.seats(topology);
        let nodes: BTreeSet<NodeIndex> = if self.page_placement.follows_threads() {
            seats.iter().copied().collect()
        } else {
            self.nodes_of_pages(topology).into_iter().collect()
        };
        let rule = (nodes.len() > 1).then_some(self.page_placement);
        Effect { seats, nodes, rule }
    }

    /// Whether its parts fit each other and the machine.
    fn makes_sense(&self, topology: &Topology) -> bool {
        let seats = self.seats(topology);
        let nodes: BTreeSet<NodeIndex> = seats.iter().copied().collect();
        let fits = nodes.len() == self.thread_nodes && seats.len() == self.threads;
        fits && (!self.page_placement.follows_threads() || self.page_nodes == self.thread_nodes)
    }
}

/// What a configuration amounts to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Effect {
    /// Node by thread.
    seats: Vec<NodeIndex>,
    /// Nodes of pages.
    nodes: BTreeSet<NodeIndex>,
    /// How pages are dealt to these; one node takes all, by whatever rule.
    rule: Option<PagePlacement>,
}

/// The axes of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Page placements that can be applied.
    pub page_placements: Vec<PagePlacement>,
}

impl Space {
    /// 2, 4, 8, ... threads up to all CPUs, and all `cores`, with these page placements. A machine with one CPU has one thread.
    pub fn of(topology: &Topology, cores: usize, page_placements: &[PagePlacement]) -> Self {
        let cpus: usize = topology.nodes.values().map(|node| node.cpus.len()).sum();
        let powers = std::iter::successors(Some(2), |threads| Some(threads * 2)).take_while(|&threads| threads <= cpus);
        let threads: BTreeSet<usize> = powers.chain([cores.clamp(1, cpus.max(1)), cpus.max(1)]).collect();
        Self { threads: threads.into_iter().collect(), page_placements: page_placements.to_vec() }
    }

    /// How many combinations there are before rules and duplicates are looked at.
    pub fn combinations(&self, topology: &Topology) -> usize {
        let (thread_nodes, page_nodes) = (topology.nodes_with_cpus().count(), memory_nodes(topology).count());
        self.threads.len() * thread_nodes * 2 * page_nodes * self.page_placements.len()
    }

    /// All configurations that make sense, each once: most threads first, then in the order of the axes.
    pub fn configurations(&self, topology: &Topology) -> Vec<Configuration> {
        let (mut all, mut known) = (Vec::new(), BTreeSet::new());
        for &threads in self.threads.iter().rev() {
            for thread_nodes in 1..=topology.nodes_with_cpus().count() {
                for thread_placement in [ThreadPlacement::Scatter, ThreadPlacement::Contiguous] {
                    for page_nodes in 1..=memory_nodes(topology).count() {
                        for &page_placement in &self.page_placements {
                            let one =
                                Configuration { threads, thread_nodes, thread_placement, page_nodes, page_placement };
                            if one.makes_sense(topology) && known.insert(one.effect(topology)) {
                                all.push(one);
                            }
                        }
                    }
                }
            }
        }
        all
    }
}

/// So many nodes with CPUs: the first one, then always the one nearest to those taken, as policies `scatter` and
/// `contiguous` take them.
pub(crate) fn nodes_of_threads(topology: &Topology, count: usize) -> Vec<NodeIndex> {
    nearest(topology, Vec::new(), topology.nodes_with_cpus(), count)
}

/// `count` nodes: those `taken`, then always the one of `among` that is nearest to them; the first one if none is taken.
fn nearest(
    topology: &Topology,
    mut taken: Vec<NodeIndex>,
    among: impl Iterator<Item = NodeIndex>,
    count: usize,
) -> Vec<NodeIndex> {
    let mut left: Vec<NodeIndex> = among.filter(|node| !taken.contains(node)).collect();
    while taken.len() < count && !left.is_empty() {
        let away = |to: NodeIndex| taken.iter().map(|&from| u64::from(topology.distance(from, to))).sum::<u64>();
        let nearest = (0..left.len()).min_by_key(|&at| away(left[at])).expect("not empty");
        taken.push(left.remove(nearest));
    }
    taken
}

/// Nodes that have memory.
pub(crate) fn memory_nodes(topology: &Topology) -> impl Iterator<Item = NodeIndex> + '_ {
    topology.nodes.iter().filter(|(_, node)| node.memory_pages > 0).map(|(index, _)| index)
}

#[cfg(test)]
mod tests;
