// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `tmma`: threshold migration of page groups to the node that accesses them.
//!
//! Problem: pages are on a node other than the threads that access them. Mechanism (Thanos thesis,
//! Alg. 3.9): a group goes to its preferred node (most accesses, by accessor) if it is not there
//! already and r_pref (eq. 3.30) exceeds delta = min(2/3, 2/N) (eq. 3.31), N nodes with memory; up to
//! 8 following contiguous groups go along while theirs is the same or unknown. Parameters: [`PARAMETERS`].
//!
//! Our unit is the page group (2 MiB) where the thesis has a 4 KiB page. Where the source is unclear:
//! Alg. 3.9 appends the list only when the preload breaks off; we append after the loop as well. Unknown
//! is a group without samples: one sample from elsewhere already disagrees. A group that may not move,
//! or is there already, is passed over without ending the preload. Our judgement: `min_samples` (a few
//! samples a second reach a 2 MiB group, and they age), `home_share`, `reserve_percent`; and `min_gain_percent`, which
//! the thesis has not: a group that two nodes use alike is above delta now for one and now for the other, and would
//! go back and forth for nothing.

use crate::cost::{group_gain_ns_per_s, group_stall_ns_per_s};
use crate::model::{Action, Move, Node, NodeIndex, PageGroup, Plan, Snapshot};
use crate::registry::{Inputs, Kind, Parameter, Parameters, Policy, Signal};

/// Page policy `tmma`.
pub static POLICY: Policy = Policy {
    name: "tmma",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.9, eq. 3.30, 3.31",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters)),
};

/// Parameters of `tmma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("preload_groups", 8.0, "page groups", 0.0, 512.0),
    Parameter::real("min_samples", 4.0, "samples, aged", 0.0, 1e6),
    Parameter::real("home_share", 0.95, "share of resident pages", 0.0, 1.0),
    Parameter::real("reserve_percent", 2.0, "% of the node's memory", 0.0, 100.0),
    Parameter::real("min_gain_percent", 10.0, "% of the group's stall", 0.0, 100.0),
];

/// delta (eq. 3.31): the share of accesses above which a group goes to its preferred node.
pub fn threshold(nodes_with_memory: usize) -> f64 {
    (2.0f64 / 3.0).min(2.0 / nodes_with_memory as f64)
}

/// Moves of page groups towards their accessors; empty if nothing pays.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Plan {
    let reserve = |node: &Node| (parameters.get("reserve_percent") / 100.0 * node.memory_pages as f64).ceil() as u64;
    let free = |node: &Node| node.free_pages.saturating_sub(reserve(node));
    let free = snapshot.topology.nodes.values().map(free).collect();
    let mut pass = Pass { snapshot, parameters, free, moves: Vec::new() };
    let mut at = 0;
    while at < snapshot.groups.len() {
        at = pass.examine(at);
    }
    Plan { moves: pass.moves }
}

struct Pass<'a> {
    snapshot: &'a Snapshot,
    parameters: &'a Parameters,
    /// Free pages by node beyond the reserve that this plan has not used yet.
    free: Vec<u64>,
    moves: Vec<Move>,
}

impl Pass<'_> {
    /// Examines the group at `at` and its preload; the next group to examine.
    fn examine(&mut self, at: usize) -> usize {
        let groups = &self.snapshot.groups;
        let group = &groups[at];
        let Some(accessor) = group.accesses_per_s.argmax() else { return at + 1 };
        let Some(to) = self.nearest_memory(accessor) else { return at + 1 };
        let share = group.accesses_per_s[accessor] / group.accesses_per_s.total();
        let nodes = self.snapshot.topology.nodes.values().filter(|node| node.memory_pages > 0).count();
        let enough = group.samples >= self.parameters.get("min_samples") && share > threshold(nodes);
        if !enough || !self.is_away(group, to) || !self.pays(group, to) || !self.has_room(group, to) {
            return at + 1;
        }
        self.push(group, to, self.reason(group, accessor, share));
        self.preload(at, to)
    }

    /// Takes along what follows the group at `at`; the next group to examine.
    fn preload(&mut self, at: usize, to: NodeIndex) -> usize {
        let groups = &self.snapshot.groups;
        let last = at + self.parameters.get("preload_groups") as usize;
        let mut next = at + 1;
        while next <= last && next < groups.len() && follows(&groups[next - 1], &groups[next]) {
            let follower = &groups[next];
            if self.seen_destination(follower).is_some_and(|seen| seen != to) {
                break;
            }
            if self.is_away(follower, to) && self.pays(follower, to) {
                if !self.has_room(follower, to) {
                    break;
                }
                let node = self.snapshot.topology.nodes[to].id;
                self.push(follower, to, format!("follows {:#x}, which goes to node {node}", groups[at].id.start));
            }
            next += 1;
        }
        next
    }

    /// Where `group` should be by the samples there are, however few; `None` without any.
    fn seen_destination(&self, group: &PageGroup) -> Option<NodeIndex> {
        if group.samples > 0.0 { self.nearest_memory(group.accesses_per_s.argmax()?) } else { None }
    }

    /// `node` itself if it has memory, else the nearest one that has, the lower index on a tie.
    fn nearest_memory(&self, node: NodeIndex) -> Option<NodeIndex> {
        let topology = &self.snapshot.topology;
        let with_memory = topology.nodes.iter().filter(|(_, known)| known.memory_pages > 0).map(|(index, _)| index);
        with_memory.min_by_key(|&memory| (memory != node, topology.distance(node, memory)))
    }

    /// Whether `group` may move and enough of its pages are elsewhere.
    fn is_away(&self, group: &PageGroup, to: NodeIndex) -> bool {
        let resident: u64 = group.resident_pages.values().sum();
        let home_share = self.parameters.get("home_share");
        group.unmovable.is_none()
            && group.resident_pages[to] < resident
            && group.resident_pages[to] as f64 <= home_share * resident as f64
    }

    /// Whether the samples there are let expect enough from the move; nothing speaks against a group without any.
    fn pays(&self, group: &PageGroup, to: NodeIndex) -> bool {
        let topology = &self.snapshot.topology;
        match (group_gain_ns_per_s(topology, group, to), group_stall_ns_per_s(topology, group)) {
            (Some(gain), Some(stall)) if stall > 0.0 => gain >= self.parameters.get("min_gain_percent") / 100.0 * stall,
            _ => true,
        }
    }

    fn has_room(&self, group: &PageGroup, to: NodeIndex) -> bool {
        pages_elsewhere(group, to) <= self.free[to.0]
    }

    fn push(&mut self, group: &PageGroup, to: NodeIndex, reason: String) {
        self.free[to.0] -= pages_elsewhere(group, to);
        let known = self.seen_destination(group).is_some();
        self.moves.push(Move {
            action: Action::MovePages { group: group.id, bytes: group.bytes, to },
            gain_ns_per_s: known.then(|| group_gain_ns_per_s(&self.snapshot.topology, group, to)).flatten(),
            reason,
        });
    }

    fn reason(&self, group: &PageGroup, accessor: NodeIndex, share: f64) -> String {
        let id = |node: NodeIndex| self.snapshot.topology.nodes[node].id;
        let resident: u64 = group.resident_pages.values().sum();
        let home = group.home().map_or(String::new(), |home| {
            let there = 100.0 * group.resident_pages[home] as f64 / resident as f64;
            format!("; {there:.0} % of its pages are on node {}", id(home))
        });
        format!("{:.0} % of its accesses come from node {}{home}", 100.0 * share, id(accessor))
    }
}

fn pages_elsewhere(group: &PageGroup, to: NodeIndex) -> u64 {
    group.resident_pages.values().sum::<u64>() - group.resident_pages[to]
}

fn follows(previous: &PageGroup, next: &PageGroup) -> bool {
    previous.id.process == next.id.process && previous.id.start + previous.bytes == next.id.start
}

#[cfg(test)]
mod tests;
