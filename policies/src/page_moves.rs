// SPDX-License-Identifier: GPL-2.0-only
//! What all page policies share: which groups may go, where there is room for them, and what goes along.
//!
//! - Destination: the node of the accessors, or the nearest one with memory if it has none.
//! - Away: a group may go, and no more than `home_share` of its resident pages are at its destination.
//! - Room: pages never fill a node's free memory beyond its reserve. Room is counted within one plan; pages
//!   that leave a node make none on it.
//! - Preload (Thanos thesis, Alg. 3.9 and 3.10): groups that follow without a gap go along while they want to
//!   go to the same node or are unknown.

use crate::cost::{group_gain_ns_per_s, group_stall_at_ns_per_s, group_stall_ns_per_s};
use crate::model::{Action, Move, Node, NodeIndex, PageGroup, Plan, Snapshot, Topology};
use crate::registry::{MissingSignal, Parameter, Parameters, Signal};

/// Groups taken along at most.
pub const PRELOAD_GROUPS: Parameter = Parameter::whole("preload_groups", 8.0, "page groups", 0.0, 512.0);
/// Samples from which on a group is judged.
pub const MIN_SAMPLES: Parameter = Parameter::real("min_samples", 4.0, "samples, aged", 0.0, 1e6);
/// A group with more of its pages at its destination is there.
pub const HOME_SHARE: Parameter = Parameter::real("home_share", 0.95, "share of resident pages", 0.0, 1.0);
/// Memory that stays free.
pub const RESERVE_PERCENT: Parameter = Parameter::real("reserve_percent", 2.0, "% of the node's memory", 0.0, 100.0);
/// Least stall that a move should save.
pub const MIN_GAIN_PERCENT: Parameter = Parameter::real("min_gain_percent", 10.0, "% of the group's stall", 0.0, 100.0);
/// Time in which counts lose half their weight, as the sampler has it.
pub const HALF_LIFE_S: Parameter = Parameter::real("half_life_s", 3.0, "s; 0: counts do not age", 0.0, 3600.0);

/// A plan in the making.
pub struct PageMoves<'a> {
    pub snapshot: &'a Snapshot,
    parameters: &'a Parameters,
    /// Free pages by node beyond the reserve that this plan has not used yet.
    free: Vec<u64>,
    /// By node, where pages for its threads go.
    destinations: Vec<Option<NodeIndex>>,
    moves: Vec<Move>,
}

impl<'a> PageMoves<'a> {
    /// Nothing planned yet. `parameters` must have `home_share` and `reserve_percent`.
    pub fn new(snapshot: &'a Snapshot, parameters: &'a Parameters) -> Self {
        let topology = &snapshot.topology;
        let reserve =
            |node: &Node| (parameters.get("reserve_percent") / 100.0 * node.memory_pages as f64).ceil() as u64;
        let free = |node: &Node| node.free_pages.saturating_sub(reserve(node));
        Self {
            snapshot,
            parameters,
            free: topology.nodes.values().map(free).collect(),
            destinations: topology.nodes.iter().map(|(node, _)| nearest_memory(topology, node)).collect(),
            moves: Vec::new(),
        }
    }

    /// What is planned.
    pub fn plan(self) -> Plan {
        Plan { moves: self.moves }
    }

    /// `node` itself if it has memory, else the nearest one that has, the lower index on a tie.
    pub fn destination(&self, node: NodeIndex) -> Option<NodeIndex> {
        self.destinations[node.0]
    }

    /// Where `group` should be by the samples there are, however few; `None` without any.
    pub fn seen_destination(&self, group: &PageGroup) -> Option<NodeIndex> {
        if group.samples > 0.0 { self.destination(group.accesses_per_s.argmax()?) } else { None }
    }

    /// Whether `group` may move and enough of its pages are elsewhere.
    pub fn is_away(&self, group: &PageGroup, to: NodeIndex) -> bool {
        let resident: u64 = group.resident_pages.values().sum();
        let home_share = self.parameters.get("home_share");
        group.unmovable.is_none()
            && group.resident_pages[to] < resident
            && group.resident_pages[to] as f64 <= home_share * resident as f64
    }

    /// Whether there is room on `to` for what of `group` is elsewhere.
    pub fn has_room(&self, group: &PageGroup, to: NodeIndex) -> bool {
        pages_elsewhere(group, to) <= self.free[to.0]
    }

    /// Whether the samples there are let expect `min_gain_percent` of the move; nothing speaks against a group
    /// without any.
    pub fn pays(&self, group: &PageGroup, to: NodeIndex) -> bool {
        let topology = &self.snapshot.topology;
        match group_stall_ns_per_s(topology, group) {
            Some(stall) if stall > 0.0 => {
                let gain = stall - group_stall_at_ns_per_s(topology, group, to);
                gain >= self.parameters.get("min_gain_percent") / 100.0 * stall
            }
            _ => true,
        }
    }

    /// Stall that the move saves as far as the samples tell.
    pub fn gain_ns_per_s(&self, group: &PageGroup, to: NodeIndex) -> Option<f64> {
        self.seen_destination(group)?;
        group_gain_ns_per_s(&self.snapshot.topology, group, to)
    }

    /// Sends `group` to `to` if it is away from there and there is room; whether it goes.
    pub fn send(&mut self, group: &PageGroup, to: NodeIndex, reason: impl FnOnce() -> String) -> bool {
        let gain_ns_per_s = self.gain_ns_per_s(group, to);
        self.send_for(group, to, gain_ns_per_s, reason)
    }

    /// The same for a gain that the caller knows better, or knows to be unknown.
    pub fn send_for(
        &mut self,
        group: &PageGroup,
        to: NodeIndex,
        gain_ns_per_s: Option<f64>,
        reason: impl FnOnce() -> String,
    ) -> bool {
        if !self.is_away(group, to) || !self.has_room(group, to) {
            return false;
        }
        self.free[to.0] -= pages_elsewhere(group, to);
        self.moves.push(Move {
            action: Action::MovePages { group: group.id, bytes: group.bytes, to },
            gain_ns_per_s: gain_ns_per_s.filter(|gain| gain.is_finite()),
            reason: reason(),
        });
        true
    }

    /// Takes along what follows the group at `at`, which goes to `to`; the next group to examine.
    pub fn preload(&mut self, at: usize, to: NodeIndex) -> usize {
        let snapshot = self.snapshot;
        let groups = &snapshot.groups;
        let last = at + self.parameters.get("preload_groups") as usize;
        let mut next = at + 1;
        while next <= last && next < groups.len() && follows(&groups[next - 1], &groups[next]) {
            let follower = &groups[next];
            if self.seen_destination(follower).is_some_and(|seen| seen != to) {
                break;
            }
            if self.is_away(follower, to) && self.pays(follower, to) {
                let node = snapshot.topology.nodes[to].id;
                let reason = || format!("follows {:#x}, which goes to node {node}", groups[at].id.start);
                if !self.send(follower, to, reason) {
                    break;
                }
            }
            next += 1;
        }
        next
    }

    /// Why `group` goes to its accessors on `node`, in words.
    pub fn reason(&self, group: &PageGroup, node: NodeIndex) -> String {
        let share = group.accesses_per_s[node] / group.accesses_per_s.total();
        let id = self.snapshot.topology.nodes[node].id;
        format!("{} % of its accesses come from node {id}{}", percent(share), self.home_in_words(group))
    }

    /// Where most of `group` is, in words that go after others.
    pub fn home_in_words(&self, group: &PageGroup) -> String {
        let resident: u64 = group.resident_pages.values().sum();
        group.home().map_or(String::new(), |home| {
            let there = percent(group.resident_pages[home] as f64 / resident as f64);
            format!("; {there} % of its pages are on node {}", self.snapshot.topology.nodes[home].id)
        })
    }
}

/// `needed` is missing if there are groups with samples and none of them `has` it.
///
/// # Errors
/// [`MissingSignal`] in that case.
pub fn require(
    snapshot: &Snapshot,
    policy: &'static str,
    signal: Signal,
    has: impl Fn(&PageGroup) -> bool,
) -> Result<(), MissingSignal> {
    let mut seen = snapshot.groups.iter().filter(|group| group.samples > 0.0).peekable();
    if seen.peek().is_some() && !seen.any(has) { Err(MissingSignal { policy, signal }) } else { Ok(()) }
}

/// Nodes with memory, in order: the first `most` of them, or all if that is 0.
pub fn memory_nodes(topology: &Topology, most: f64) -> Vec<NodeIndex> {
    let most = if most > 0.0 { most as usize } else { usize::MAX };
    let with_memory = topology.nodes.iter().filter(|(_, node)| node.memory_pages > 0);
    with_memory.map(|(index, _)| index).take(most).collect()
}

/// Whether `next` begins where `previous` ends.
pub fn follows(previous: &PageGroup, next: &PageGroup) -> bool {
    previous.id.process == next.id.process && previous.id.start + previous.bytes == next.id.start
}

/// The weight that a count of `elapsed_ns` ago has now.
pub fn aged(parameters: &Parameters, elapsed_ns: u64) -> f64 {
    let half_life_s = parameters.get("half_life_s");
    if half_life_s > 0.0 { libm::exp2(-(elapsed_ns as f64) / 1e9 / half_life_s) } else { 1.0 }
}

/// A share in whole percent: thousands of reasons are written in a decision, and whole numbers are quick to write.
fn percent(share: f64) -> u64 {
    (100.0 * share).round() as u64
}

fn nearest_memory(topology: &Topology, node: NodeIndex) -> Option<NodeIndex> {
    let with_memory = topology.nodes.iter().filter(|(_, known)| known.memory_pages > 0).map(|(index, _)| index);
    with_memory.min_by_key(|&memory| (memory != node, topology.distance(node, memory)))
}

fn pages_elsewhere(group: &PageGroup, to: NodeIndex) -> u64 {
    group.resident_pages.values().sum::<u64>() - group.resident_pages[to]
}
