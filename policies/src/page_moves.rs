// SPDX-License-Identifier: GPL-2.0-only
//! What all page policies share: which groups may go, where there is room for them, and what goes along.
//!
//! - Destination: the node of the accessors, or the nearest one with memory if it has none.
//! - Allowed: its process may use the memory of the destination (cpusets).
//! - Away: a group may go, and no more than `home_share` of its resident pages are at its destination.
//! - Room: pages never fill a node's free memory beyond its reserve. Room is counted within one plan; pages
//!   that leave a node make none on it.
//! - Preload (Thanos thesis, Alg. 3.9 and 3.10): groups that follow without a gap go along while they want to
//!   go to the same node or are unknown.

use std::fmt;

use crate::cost::{accesses_stall_ns_per_s, group_gain_ns_per_s, group_stall_at_ns_per_s, group_stall_ns_per_s};
use crate::model::{Action, Move, Node, NodeId, NodeIndex, PageGroup, Plan, Snapshot, Topology};
use crate::registry::{MissingSignal, Parameter, Parameters, Signal};
use crate::users::{Ledger, Weighed};

/// Page groups that one plan moves at most: 32 GiB in groups of 2 MiB, more than a mover moves before what is left is planned anew.
/// Those that the policy names first go; the others come with the next plan.
pub const MOST_MOVES: usize = 16_384;
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
    home_share: f64,
    /// Free pages by node beyond the reserve that this plan has not used yet.
    free: Vec<u64>,
    /// By node, where pages for its threads go.
    destinations: Vec<Option<NodeIndex>>,
    moves: Vec<Move>,
    /// Moves that were granted and are not written yet.
    granted: usize,
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
            home_share: parameters.get("home_share"),
            free: topology.nodes.values().map(free).collect(),
            destinations: topology.nodes.iter().map(|(node, _)| nearest_memory(topology, node)).collect(),
            moves: Vec::new(),
            granted: 0,
        }
    }

    /// Whether the plan is as large as a plan may be.
    pub fn is_full(&self) -> bool {
        self.granted + self.moves.len() >= MOST_MOVES
    }

    /// What is planned.
    pub fn plan(self) -> Plan {
        Plan { moves: self.moves }
    }

    /// `node` itself if it has memory, else the nearest one that has, the lower index on a tie.
    pub fn destination(&self, node: NodeIndex) -> Option<NodeIndex> {
        self.destinations[node.0]
    }

    /// Pages for which there is room on `node`.
    pub fn room(&self, node: NodeIndex) -> u64 {
        self.free[node.0]
    }

    /// Where `group` should be by the samples there are, however few; `None` without any.
    pub fn seen_destination(&self, group: &PageGroup) -> Option<NodeIndex> {
        if group.samples > 0.0 { self.destination(group.accesses_per_s.argmax()?) } else { None }
    }

    /// Whether `group` may move and enough of its pages are elsewhere.
    pub fn is_away(&self, group: &PageGroup, to: NodeIndex) -> bool {
        self.pages_away(group, to).is_some()
    }

    /// Pages of `group` elsewhere, if it may move and these are enough.
    fn pages_away(&self, group: &PageGroup, to: NodeIndex) -> Option<u64> {
        if group.unmovable.is_some() || !self.snapshot.may_use(group.id.process, to) {
            return None;
        }
        self.elsewhere(group.resident_pages.values().sum(), group.resident_pages[to])
    }

    /// Pages elsewhere if `there` of `resident` are there and these are enough.
    fn elsewhere(&self, resident: u64, there: u64) -> Option<u64> {
        let is_away = there < resident && there as f64 <= self.home_share * resident as f64;
        is_away.then(|| resident - there)
    }

    /// Whether a group that may move is away from `to`, and its process may use that.
    pub fn may_follow(&self, weighed: &Weighed, to: NodeIndex) -> bool {
        let is_away = self.elsewhere(weighed.resident, weighed.pages_on(to)).is_some();
        is_away && self.snapshot.may_use(weighed.process, to)
    }

    /// Takes the room on `to` for a group that may move, if it is away from there and there is room; whether it did. The
    /// move is still to be [written](Self::write).
    pub fn grant(&mut self, weighed: &Weighed, to: NodeIndex) -> bool {
        let pages = weighed.resident - weighed.pages_on(to);
        let may_go = !self.is_full() && pages <= self.free[to.0] && self.may_follow(weighed, to);
        let pages = may_go.then_some(pages);
        self.free[to.0] -= pages.unwrap_or(0);
        self.granted += usize::from(pages.is_some());
        pages.is_some()
    }

    /// Plans granted moves in their order. `facts` are gain and reason; they are asked for in the order of addresses, which
    /// is that of memory: in any other, groups come from memory one by one.
    pub fn write<W>(
        &mut self,
        ledger: &Ledger,
        granted: &[Granted<W>],
        facts: impl Fn(&Self, &Weighed, &Granted<W>) -> (Option<f64>, String),
    ) {
        let groups = granted.iter().map(|one| one.at + 1).max().unwrap_or(0);
        let mut by_address = vec![None; groups];
        granted.iter().enumerate().for_each(|(order, one)| by_address[one.at] = Some(order));
        let mut moves: Vec<Option<Move>> = (0..granted.len()).map(|_| None).collect();
        for order in by_address.into_iter().flatten() {
            let one = &granted[order];
            let weighed = ledger.weighed(one.at);
            let action = Action::MovePages { group: weighed.group.id, bytes: weighed.group.bytes, to: one.to };
            let (gain_ns_per_s, reason) = facts(self, &weighed, one);
            let gain_ns_per_s = gain_ns_per_s.filter(|gain| gain.is_finite());
            moves[order] = Some(Move { action, gain_ns_per_s, reason });
        }
        // In the memory that is there: thousands of moves are large.
        let written = moves.into_iter().map(|written| written.expect("a group is granted once"));
        self.granted = self.granted.saturating_sub(granted.len());
        if self.moves.is_empty() {
            self.moves = written.collect();
        } else {
            self.moves.extend(written);
        }
    }

    /// [`Self::gain_ns_per_s`] of a group in a ledger.
    pub fn gain_of(&self, weighed: &Weighed, to: NodeIndex) -> Option<f64> {
        let topology = &self.snapshot.topology;
        // As argmax is of the row: the first of the greatest rates above 0.
        let greatest = |best: (Option<NodeIndex>, f64), &(node, rate): &(NodeIndex, f64)| {
            if rate > best.1 { (Some(node), rate) } else { best }
        };
        let accessor = weighed.accesses.iter().fold((None, 0.0), greatest).0?;
        if weighed.group.samples.is_nan() || weighed.group.samples <= 0.0 || self.destination(accessor).is_none() {
            return None;
        }
        let stall_at = |memory| accesses_stall_ns_per_s(topology, weighed.accesses.iter().copied(), memory);
        let stall = match weighed.home {
            Some(home) if weighed.pages_on(home) == weighed.resident => stall_at(home),
            _ => group_stall_ns_per_s(topology, weighed.group)?,
        };
        Some(stall - stall_at(to))
    }

    /// What the samples tell that the move saves, if they let expect `min_gain_percent` of it; nothing speaks against a
    /// group without any.
    fn worth(&self, group: &PageGroup, to: NodeIndex) -> Option<Option<f64>> {
        let topology = &self.snapshot.topology;
        let Some(stall) = group_stall_ns_per_s(topology, group) else { return Some(None) };
        let gain = stall - group_stall_at_ns_per_s(topology, group, to);
        let pays = if stall > 0.0 { gain >= self.parameters.get("min_gain_percent") / 100.0 * stall } else { true };
        pays.then(|| self.seen_destination(group).map(|_| gain))
    }

    /// Sends `group` to `to` if `min_gain_percent` may be expected of the move, as without samples, it is away
    /// from there and there is room; whether it goes.
    pub fn send_if_it_pays(&mut self, group: &PageGroup, to: NodeIndex, reason: impl FnOnce(&Self) -> String) -> bool {
        self.worth(group, to).is_some_and(|gain_ns_per_s| self.send_for(group, to, gain_ns_per_s, reason))
    }

    /// Stall that the move saves as far as the samples tell.
    pub fn gain_ns_per_s(&self, group: &PageGroup, to: NodeIndex) -> Option<f64> {
        self.seen_destination(group)?;
        group_gain_ns_per_s(&self.snapshot.topology, group, to)
    }

    /// Sends `group` to `to` if it is away from there and there is room; whether it goes.
    pub fn send(&mut self, group: &PageGroup, to: NodeIndex, reason: impl FnOnce(&Self) -> String) -> bool {
        self.send_if_fit(group, to, |moves| moves.gain_ns_per_s(group, to), reason)
    }

    /// The same for a gain that the caller knows better, or knows to be unknown.
    pub fn send_for(
        &mut self,
        group: &PageGroup,
        to: NodeIndex,
        gain_ns_per_s: Option<f64>,
        reason: impl FnOnce(&Self) -> String,
    ) -> bool {
        self.send_if_fit(group, to, |_| gain_ns_per_s, reason)
    }

    fn send_if_fit(
        &mut self,
        group: &PageGroup,
        to: NodeIndex,
        gain_ns_per_s: impl FnOnce(&Self) -> Option<f64>,
        reason: impl FnOnce(&Self) -> String,
    ) -> bool {
        let fits = |pages: &u64| *pages <= self.free[to.0] && !self.is_full();
        let Some(pages) = self.pages_away(group, to).filter(fits) else { return false };
        self.free[to.0] -= pages;
        let action = Action::MovePages { group: group.id, bytes: group.bytes, to };
        let gain_ns_per_s = gain_ns_per_s(self).filter(|gain| gain.is_finite());
        let reason = reason(self);
        self.moves.push(Move { action, gain_ns_per_s, reason });
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
            if self.is_away(follower, to)
                && let Some(gain_ns_per_s) = self.worth(follower, to)
            {
                let node = snapshot.topology.nodes[to].id;
                let reason = |_: &Self| format!("follows {:#x}, which goes to node {node}", groups[at].id.start);
                if !self.send_for(follower, to, gain_ns_per_s, reason) {
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
    pub fn home_in_words(&self, group: &PageGroup) -> Home {
        let resident: u64 = group.resident_pages.values().sum();
        self.home(group.home().map(|home| (home, group.resident_pages[home])), resident)
    }

    /// The same of a group in a ledger.
    pub fn home_of(&self, weighed: &Weighed) -> Home {
        self.home(weighed.home.map(|home| (home, weighed.pages_on(home))), weighed.resident)
    }

    fn home(&self, home: Option<(NodeIndex, u64)>, resident: u64) -> Home {
        let percent = |there: u64| percent(there as f64 / resident as f64);
        Home(home.map(|(home, there)| (percent(there), self.snapshot.topology.nodes[home].id)))
    }
}

/// The node where most of a group is, with the whole percent of its pages there; written as words that go after others.
pub struct Home(Option<(u64, NodeId)>);

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((percent, node)) = self.0 else { return Ok(()) };
        write!(f, "; {percent} % of its pages are on node {node}")
    }
}

/// A group for which there is room on a node.
pub struct Granted<W> {
    /// Its position in the ledger.
    pub at: usize,
    pub to: NodeIndex,
    /// What its reason is made from.
    pub why: W,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Kind;
    use crate::testing::{SnapshotBuilder, two_nodes};

    /// A plan of `locality` for so many groups on node 0 that one thread on node 1 uses.
    fn moves(groups: usize) -> usize {
        let mut builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 1, Some(&[1e6, 0.0]));
        for _ in 0..groups {
            builder = builder.group_used_by(&[1, 0], &[(1, 1000.0)]);
        }
        let mut snapshot = builder.build();
        snapshot.topology.nodes.values_mut().for_each(|node| (node.memory_pages, node.free_pages) = (1 << 40, 1 << 40));
        let choice = crate::decider::PolicyChoice::new(Kind::Page, "locality").unwrap();
        let decision = crate::decider::Decider::new(vec![choice]).decide(&snapshot, 1, u64::MAX);
        decision.plan().expect("all are far from their user").moves.len()
    }

    #[test]
    fn a_plan_moves_a_bounded_number_of_groups() {
        assert_eq!(moves(100), 100);
        assert_eq!(moves(MOST_MOVES + 100), MOST_MOVES);
    }
}
