// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `lmma`: latency-driven migration of slow page groups, away from busy nodes.
//!
//! Problem: pages are slow to reach, because they are far or because the memory that serves them is congested.
//! Mechanism (Thanos thesis, Alg. 3.10): a group is slow if its latency exceeds 1.3 times the mean of all (eq. 3.34),
//! a node is busy if its latency does (eq. 3.32). A slow group goes to its preferred node (most accesses, by
//! accessor) unless that is busy, else to the node with the lowest ratio (eq. 3.33). Preload as in `tmma`, compared
//! with the destination. Parameters: [`PARAMETERS`].
//!
//! Where the source is unclear or wrong: eq. 3.32 takes the latency *issued from* a node, while congestion is of the
//! memory that *serves*; both are here, `busy_by_issuing` chooses, serving is the default. Serving latency is
//! [`crate::model::NodeLoad::served_latency_ns`] where it is known, else the mean of the groups there, by accesses.
//! Each ratio is to a mean of the same source. A node that served nothing seen counts as ratio 0, the one nearest to
//! the accessors first. If the lowest ratio is itself above the threshold, the group stays. `min_samples`,
//! `home_share`, `reserve_percent` and `min_gain_percent` (for moves to the preferred node) are ours, as in `tmma`.

use std::fmt;

use crate::model::{NodeIndex, PageGroup, PerNode, Plan, Snapshot};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::load;

/// Page policy `lmma`.
///
/// A group that is slow goes to the node that accesses it, and takes its neighbour along:
///
/// ```
/// use tandem_policies::{example, lmma};
///
/// let mut snapshot = example::crossed();
/// snapshot.groups[0].latency_ns = Some(900.0);
/// let moves = example::decided(&lmma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: its accesses take 900 ns, the mean is 375"));
/// assert!(moves[1].starts_with("pages at 0x400000 of process 1 (2048 KiB) -> node 0: follows 0x200000"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "lmma",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency, Signal::GroupLatency],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.10, eq. 3.32 to 3.34",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
};

/// Parameters of `lmma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("busy_ratio", 1.3, "latency of the node / mean", 1.0, 100.0),
    Parameter::real("slow_ratio", 1.3, "latency of the group / mean", 1.0, 100.0),
    Parameter::whole("busy_by_issuing", 0.0, "0: by latency served, 1: by latency issued", 0.0, 1.0),
    page_moves::PRELOAD_GROUPS,
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
    page_moves::MIN_GAIN_PERCENT,
];

/// Moves of slow groups; empty if none is slow.
///
/// # Errors
/// [`MissingSignal`] if no group has a latency, or with `busy_by_issuing` no thread has one.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    page_moves::require(snapshot, POLICY.name, Signal::GroupLatency, |group| latency(group).is_some())?;
    let by_issuing = parameters.get("busy_by_issuing") > 0.0;
    if by_issuing && !snapshot.threads.is_empty() && snapshot.threads.iter().all(|thread| thread.latency_ns.is_none()) {
        return Err(MissingSignal { policy: POLICY.name, signal: Signal::ThreadLatency });
    }
    let mut pass = Pass {
        moves: PageMoves::new(snapshot, parameters),
        busy_ratio: parameters.get("busy_ratio"),
        slow_ratio: parameters.get("slow_ratio"),
        min_samples: parameters.get("min_samples"),
        mean_ns: mean(snapshot.groups.iter().filter_map(|group| Some((load(group), latency(group)?)))),
        nodes: if by_issuing { issued(snapshot) } else { served(snapshot) },
    };
    let mut at = 0;
    while at < snapshot.groups.len() {
        at = pass.examine(at);
    }
    Ok(pass.moves.plan())
}

/// Latencies of nodes and their mean.
struct Nodes {
    latency_ns: PerNode<Option<f64>>,
    mean_ns: Option<f64>,
}

impl Nodes {
    /// L(node) / L (eq. 3.32); `None` if nothing was seen.
    fn ratio(&self, node: NodeIndex) -> Option<f64> {
        Some(self.latency_ns[node]? / self.mean_ns?)
    }
}

struct Pass<'a> {
    moves: PageMoves<'a>,
    busy_ratio: f64,
    slow_ratio: f64,
    min_samples: f64,
    mean_ns: Option<f64>,
    nodes: Nodes,
}

impl Pass<'_> {
    /// Examines the group at `at` and its preload; the next group to examine.
    fn examine(&mut self, at: usize) -> usize {
        let group = &self.moves.snapshot.groups[at];
        let (Some(latency_ns), Some(mean_ns)) = (latency(group), self.mean_ns) else { return at + 1 };
        let Some(accessor) = group.accesses_per_s.argmax() else { return at + 1 };
        let Some(preferred) = self.moves.destination(accessor) else { return at + 1 };
        let enough = group.samples >= self.min_samples;
        if !enough || latency_ns / mean_ns <= self.slow_ratio {
            return at + 1;
        }
        let slow = Slow { latency_ns, mean_ns };
        let went = if self.is_busy(preferred) {
            self.send_to_alternative(group, preferred, slow)
        } else {
            let reason = |moves: &PageMoves| format!("{slow}; {}", moves.reason(group, accessor));
            self.moves.send_if_it_pays(group, preferred, reason).then_some(preferred)
        };
        went.map_or(at + 1, |to| self.moves.preload(at, to))
    }

    fn is_busy(&self, node: NodeIndex) -> bool {
        self.nodes.ratio(node).is_some_and(|ratio| ratio > self.busy_ratio)
    }

    /// Sends a group whose preferred node is busy to the least busy one.
    fn send_to_alternative(&mut self, group: &PageGroup, preferred: NodeIndex, slow: Slow) -> Option<NodeIndex> {
        let topology = &self.moves.snapshot.topology;
        let nodes = page_moves::memory_nodes(topology, 0.0);
        let key = |node: NodeIndex| (self.nodes.ratio(node).unwrap_or(0.0), topology.distance(preferred, node));
        let to = nodes.into_iter().reduce(|best, next| if key(next) < key(best) { next } else { best })?;
        if self.is_busy(to) {
            return None;
        }
        // What the latency matrix says leaves out that the preferred node is congested.
        let saved = self.nodes.latency_ns[to].map(|there_ns| load(group) * (slow.latency_ns - there_ns));
        let busy_ratio = self.nodes.ratio(preferred).unwrap_or(0.0);
        let reason = |moves: &PageMoves| {
            let [busy, least] = [preferred, to].map(|node| moves.snapshot.topology.nodes[node].id);
            format!("{slow}; its node {busy} is busy ({busy_ratio:.2} of the mean), node {least} least")
        };
        self.moves.send_for(group, to, saved, reason).then_some(to)
    }
}

/// A group whose accesses take longer than the mean; written as words that come before others.
#[derive(Clone, Copy)]
struct Slow {
    latency_ns: f64,
    mean_ns: f64,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its accesses take {:.0} ns, the mean is {:.0}", self.latency_ns, self.mean_ns)
    }
}

/// Latency of a group that was seen.
fn latency(group: &PageGroup) -> Option<f64> {
    group.latency_ns.filter(|&ns| group.samples > 0.0 && ns.is_finite() && ns > 0.0)
}

/// Mean of values by weight; `None` without any weight.
fn mean(weighted: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (weights, sum) =
        weighted.fold((0.0, 0.0), |(weights, sum), (weight, value)| (weights + weight, sum + weight * value));
    (weights > 0.0).then(|| sum / weights)
}

/// Latency of accesses by the node of the memory that serves them.
fn served(snapshot: &Snapshot) -> Nodes {
    let nodes = snapshot.topology.len();
    let mut seen = PerNode::filled(nodes, (0.0, 0.0));
    for (group, ns) in snapshot.groups.iter().filter_map(|group| Some((group, latency(group)?))) {
        let (load, resident) = (load(group), group.resident_pages.values().sum::<u64>());
        for (node, &pages) in group.resident_pages.iter().filter(|&(_, &pages)| pages > 0) {
            let weight = load * (pages as f64 / resident as f64);
            seen[node] = (seen[node].0 + weight, seen[node].1 + weight * ns);
        }
    }
    let of_groups = |node: NodeIndex| (seen[node].0 > 0.0).then(|| seen[node].1 / seen[node].0);
    let given = |node: NodeIndex| snapshot.nodes[node].served_latency_ns.filter(|ns| ns.is_finite() && *ns > 0.0);
    let latency_ns = PerNode::from_fn(nodes, |node| given(node).or_else(|| of_groups(node)));
    let weighted = latency_ns.iter().filter_map(|(node, ns)| Some((seen[node].0, (*ns)?)));
    let mean_ns = mean(weighted);
    Nodes { mean_ns, latency_ns }
}

/// Latency of accesses by the node of the thread that issues them.
fn issued(snapshot: &Snapshot) -> Nodes {
    let of = |thread: &crate::model::Thread| {
        let accesses = thread.accesses_per_s.as_ref()?.total();
        let ns = thread.latency_ns?;
        (ns.is_finite() && ns > 0.0 && accesses.is_finite()).then_some((thread.node, accesses, ns))
    };
    let all: Vec<(NodeIndex, f64, f64)> = snapshot.threads.iter().filter_map(of).collect();
    let on = |node: NodeIndex| all.iter().filter(move |seen| seen.0 == node).map(|seen| (seen.1, seen.2));
    let latency_ns = PerNode::from_fn(snapshot.topology.len(), |node| mean(on(node)));
    Nodes { latency_ns, mean_ns: mean(all.iter().map(|seen| (seen.1, seen.2))) }
}

#[cfg(test)]
mod tests;
