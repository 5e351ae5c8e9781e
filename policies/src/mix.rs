// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `mix`: locality until a node overloads.
//!
//! Problem: `locality` may put most of the load on one node's memory, `balance` makes accesses remote where nothing is
//! overloaded. Mechanism (Popov et al., ICS 2019, page placement *mix*): groups, the most accessed first, go to the node
//! of the thread that accesses them most, unless that node is overloaded with it; then to the least loaded of the
//! nodes of their threads. Parameters: [`PARAMETERS`].
//!
//! Where the source is unclear: overloaded is a node whose load (accesses per second) exceeds the mean of the nodes
//! with memory by `overload_percent`; a node that serves nothing yet takes any group. A group that its top thread's
//! node cannot take stays where it is if that is a node of its threads and not overloaded: fewer moves, and the
//! same answer when asked again. Groups that may not move or were not seen enough count where they are.
//! The gain of a move that avoids overload is unknown: the latency matrix does not tell what contention costs.

use crate::locality;
use crate::model::{NodeIndex, PerNode, Plan, Snapshot, ThreadId};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::{self, Users, Weighed};

/// Page policy `mix`.
pub static POLICY: Policy = Policy {
    name: "mix",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Popov, Jimborean, Black-Schaffer, ICS 2019: page placement 'mix'",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
};

/// Parameters of `mix`.
pub const PARAMETERS: &[Parameter] = &[
    users::PAGE_NODES,
    Parameter::real("overload_percent", 25.0, "% above the mean load", 0.0, 10_000.0),
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Moves of groups to their top threads as far as no node overloads.
///
/// # Errors
/// [`MissingSignal`] if no group knows its users.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    page_moves::require(snapshot, POLICY.name, Signal::GroupUsers, |group| !group.users.is_empty())?;
    let users = Users::of(snapshot);
    let serving = page_moves::memory_nodes(&snapshot.topology, parameters.get("page_nodes"));
    let min_samples = parameters.get("min_samples");
    let groups: Vec<Weighed> = snapshot.groups.iter().map(Weighed::of).collect();
    let all: f64 = groups.iter().map(|weighed| weighed.load).sum();
    let most = (1.0 + parameters.get("overload_percent") / 100.0) * all / serving.len().max(1) as f64;
    let loads = PerNode::filled(snapshot.topology.len(), 0.0);
    let mut pass = Pass { moves: PageMoves::new(snapshot, parameters), loads, most };
    let mut judged: Vec<(Weighed, (ThreadId, NodeIndex))> = Vec::new();
    for weighed in groups {
        let may_go = weighed.group.samples >= min_samples && weighed.group.unmovable.is_none();
        match users.top(weighed.group).filter(|_| may_go && weighed.group.home().is_some()) {
            Some((thread, node, _)) => judged.push((weighed, (thread, node))),
            None => weighed.add_to(&mut pass.loads),
        }
    }
    judged.sort_by(|(a, _), (b, _)| b.load.total_cmp(&a.load));
    let by_users = parameters.get("page_nodes") == 0.0;
    for (weighed, top) in &judged {
        // Asked for only where needed: all users of a group are looked up for it.
        let nodes =
            |moves: &PageMoves| if by_users { users.destinations(weighed.group, moves) } else { serving.clone() };
        pass.place(weighed, *top, nodes);
    }
    Ok(pass.moves.plan())
}

struct Pass<'a> {
    moves: PageMoves<'a>,
    /// Load by node of the groups placed so far.
    loads: PerNode<f64>,
    /// Load above which a node is overloaded.
    most: f64,
}

impl Pass<'_> {
    /// Places a group with its top thread, which overflows to one of `nodes`.
    fn place(
        &mut self,
        weighed: &Weighed,
        (thread, node): (ThreadId, NodeIndex),
        nodes: impl FnOnce(&PageMoves) -> Vec<NodeIndex>,
    ) {
        let group = weighed.group;
        let (Some(local), Some(home)) = (self.moves.destination(node), group.home()) else { return };
        let arrived = if self.fits(weighed, local) {
            let reason = locality::reason(&self.moves, group, thread.tid, node);
            self.moves.send(group, local, reason).then_some(local)
        } else {
            let nodes = nodes(&self.moves);
            let stays = nodes.contains(&home) && self.fits(weighed, home);
            if stays { None } else { self.overflow(weighed, local, &nodes) }
        };
        match arrived {
            Some(to) => self.loads[to] += weighed.load,
            None => weighed.add_to(&mut self.loads),
        }
    }

    /// Sends a group to the least loaded of `nodes` since `local` has enough; where it goes.
    fn overflow(&mut self, weighed: &Weighed, local: NodeIndex, nodes: &[NodeIndex]) -> Option<NodeIndex> {
        let to = users::least_loaded(nodes, &self.loads, weighed.group.home())?;
        let id = |node: NodeIndex| self.moves.snapshot.topology.nodes[node].id;
        let (local, most, there) = (id(local), self.most as u64, self.loads[to] as u64);
        let reason =
            format!("node {local} would serve more than {most} accesses/s with it, node {} serves {there}", id(to));
        self.moves.send_for(weighed.group, to, None, || reason).then_some(to)
    }

    fn fits(&self, weighed: &Weighed, node: NodeIndex) -> bool {
        self.loads[node] == 0.0 || self.loads[node] + weighed.load <= self.most
    }
}

#[cfg(test)]
mod tests;
