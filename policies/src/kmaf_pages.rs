// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `kmaf`: the NUMA-vector rule.
//!
//! Problem: pages are on a node other than the one that uses them most, and moving them before the threads are
//! placed moves them twice. Mechanism (kMAF, PACT 2014): each page counts accesses by node, NV. It goes to the
//! arg-max node iff max(NV) > 2 max2(NV) + 1 and it is not already there; then all its counters are halved. No page
//! moves before the first thread mapping has been applied. Parameters: [`PARAMETERS`].
//!
//! Our unit is the page group (2 MiB); its counts are the samples of the group, by the shares of the nodes in its
//! accesses. The sampler lets them age, which the source does only by halving. The half that a migration takes is
//! remembered and ages as the counts do, with `half_life_s`. A migration counts when the group is seen to have arrived.
//!
//! The first thread mapping of a process counts as applied when one of its threads was seen to change node, or, as a
//! mapping may be right from the start, when the process was seen for `wait_decisions` decisions without.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{GroupId, NodeIndex, PageGroup, PerNode, Plan, ProcessId, Snapshot, ThreadId};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Memory, Parameter, Parameters, Policy, Signal};

/// Page policy `kmaf`.
pub static POLICY: Policy = Policy {
    name: "kmaf",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Diener, Cruz, Navaux, Busse, Heiss, kMAF, PACT 2014: data affinity",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters, inputs.memory)),
};

/// Parameters of `kmaf`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("wait_decisions", 5.0, "decisions without a thread move", 0.0, 1e6),
    page_moves::HALF_LIFE_S,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Differences of counts below this are rounding.
const ROUNDING: f64 = 1e-9;
/// A remembered count below this is forgotten.
const FAINTEST: f64 = 0.01;

/// What `kmaf` remembers.
#[derive(Debug, Default)]
struct Remembered {
    time_ns: u64,
    threads: BTreeMap<ThreadId, NodeIndex>,
    /// Decisions by process since it was first seen.
    waited: BTreeMap<ProcessId, u64>,
    /// Processes whose first thread mapping was applied.
    mapped: BTreeSet<ProcessId>,
    /// Where groups were sent in the last decision.
    sent: BTreeMap<GroupId, NodeIndex>,
    /// What halving took from the counts.
    taken: BTreeMap<GroupId, PerNode<f64>>,
}

/// The node that the counts `vector` send a page to, wherever it is.
pub fn destination(vector: &PerNode<f64>) -> Option<NodeIndex> {
    let node = vector.argmax()?;
    let others = vector.iter().filter(|&(other, _)| other != node).map(|(_, &count)| count);
    let second = others.fold(0.0, f64::max);
    (vector[node] > 2.0 * second + 1.0 + ROUNDING).then_some(node)
}

/// Moves of groups that one node uses more than twice as much as any other.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, memory: &mut Memory) -> Plan {
    let memory = memory.of::<Remembered>();
    memory.age(snapshot, parameters);
    memory.note_thread_moves(snapshot);
    let mut moves = PageMoves::new(snapshot, parameters);
    let mut sent = BTreeMap::new();
    for group in &snapshot.groups {
        let Some(vector) = memory.vector(group) else { continue };
        let Some(accessor) = destination(&vector) else { continue };
        if !memory.may_follow(group.id.process, parameters) {
            continue;
        }
        let Some(to) = moves.destination(accessor) else { continue };
        let reason = format!(
            "node {} accessed it {:.1} times, no other more than half as often{}",
            snapshot.topology.nodes[accessor].id,
            vector[accessor],
            moves.home_in_words(group)
        );
        if moves.send(group, to, || reason) {
            sent.insert(group.id, to);
        }
    }
    memory.sent = sent;
    for group in &snapshot.groups {
        memory.waited.entry(group.id.process).or_insert(0);
    }
    memory.waited.values_mut().for_each(|waited| *waited += 1);
    moves.plan()
}

impl Remembered {
    /// Lets what halving took age to the time of `snapshot`.
    fn age(&mut self, snapshot: &Snapshot, parameters: &Parameters) {
        let factor = page_moves::aged(parameters, snapshot.time_ns.saturating_sub(self.time_ns));
        self.time_ns = snapshot.time_ns;
        let is_known = |id: &GroupId| snapshot.groups.binary_search_by_key(id, |group| group.id).is_ok();
        self.taken.retain(|id, taken| {
            *taken = PerNode::from_fn(taken.len(), |node| taken[node] * factor);
            taken.values().any(|&count| count >= FAINTEST) && is_known(id)
        });
    }

    /// Looks for threads that changed node, and forgets processes that are gone.
    fn note_thread_moves(&mut self, snapshot: &Snapshot) {
        let here: BTreeSet<ProcessId> = snapshot.groups.iter().map(|group| group.id.process).collect();
        self.waited.retain(|process, _| here.contains(process));
        self.mapped.retain(|process| here.contains(process));
        for thread in &snapshot.threads {
            if self.threads.get(&thread.id).is_some_and(|&node| node != thread.node) {
                self.mapped.insert(thread.process);
            }
        }
        self.threads = snapshot.threads.iter().map(|thread| (thread.id, thread.node)).collect();
    }

    fn may_follow(&self, process: ProcessId, parameters: &Parameters) -> bool {
        let waited = self.waited.get(&process).copied().unwrap_or(0);
        self.mapped.contains(&process) || waited as f64 >= parameters.get("wait_decisions")
    }

    /// NV of `group`, halved if it arrived since the last decision; `None` without samples.
    fn vector(&mut self, group: &PageGroup) -> Option<PerNode<f64>> {
        let total = group.accesses_per_s.total();
        if !(group.samples > 0.0 && total > 0.0 && total.is_finite()) {
            return None;
        }
        let count = |node| group.samples * group.accesses_per_s[node] / total;
        let nodes = group.accesses_per_s.len();
        let taken = self.taken.get(&group.id);
        let left = |node| (count(node) - taken.map_or(0.0, |taken| taken[node])).max(0.0);
        let mut vector = PerNode::from_fn(nodes, left);
        if self.sent.get(&group.id).is_some_and(|&to| group.home() == Some(to)) {
            vector = PerNode::from_fn(nodes, |node| vector[node] / 2.0);
            self.taken.insert(group.id, PerNode::from_fn(nodes, |node| count(node) - vector[node]));
        }
        Some(vector)
    }
}

#[cfg(test)]
mod tests;
