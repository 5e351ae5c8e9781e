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
use crate::page_moves::{self, Granted, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::{self, Ledger, Users, Weighed};

/// Page policy `mix`.
///
/// Private groups go to their threads:
///
/// ```
/// use tandem_policies::{example, mix};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&mix::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: thread 1 on node 0 accesses it most"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "mix",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Popov, Jimborean, Black-Schaffer, ICS 2019: page placement 'mix'",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
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
    let page_nodes = parameters.get("page_nodes");
    let serving = page_moves::memory_nodes(&snapshot.topology, page_nodes);
    let min_samples = parameters.get("min_samples");
    let loads = PerNode::filled(snapshot.topology.len(), 0.0);
    let serving_nodes = serving.len().max(1) as f64;
    let mut pass = Pass {
        users: Users::of(snapshot),
        serving: (page_nodes > 0.0).then_some(serving),
        moves: PageMoves::new(snapshot, parameters),
        granted: Vec::new(),
        loads,
        most: 0.0,
    };
    let ledger = Ledger::of(&snapshot.groups);
    let mut all = 0.0;
    // By group, its top thread if it may go.
    let mut tops: Vec<Option<(ThreadId, NodeIndex)>> = Vec::with_capacity(snapshot.groups.len());
    for weighed in ledger.iter() {
        let group = weighed.group;
        all += weighed.load;
        let may_go = group.samples >= min_samples && group.unmovable.is_none() && weighed.home.is_some();
        let top = if may_go { pass.users.top(group).map(|(thread, node, _)| (thread, node)) } else { None };
        if top.is_none() {
            weighed.add_to(&mut pass.loads);
        }
        tops.push(top);
    }
    pass.most = (1.0 + parameters.get("overload_percent") / 100.0) * all / serving_nodes;
    let mut nodes = Vec::new();
    for at in ledger.heaviest_first(|at| tops[at].is_some()) {
        if let Some(top) = tops[at] {
            pass.place(at, &ledger.weighed(at), top, &mut nodes);
        }
    }
    let Pass { mut moves, granted, most, .. } = pass;
    moves.write(&ledger, &granted, |moves, weighed, granted| facts(moves, weighed, granted, most));
    Ok(moves.plan())
}

struct Pass<'a> {
    users: Users,
    /// Nodes that serve all groups; `None`: each is served by those of its threads.
    serving: Option<Vec<NodeIndex>>,
    moves: PageMoves<'a>,
    granted: Vec<Granted<Why>>,
    /// Load by node of the groups placed so far.
    loads: PerNode<f64>,
    /// Load above which a node is overloaded.
    most: f64,
}

/// Why a group goes.
enum Why {
    /// This thread, which is on that node, accesses it most.
    Local(ThreadId, NodeIndex),
    /// That node has enough; the one it goes to serves so much.
    Overflow(NodeIndex, f64),
}

/// What a move brings, and why it is made; above `most` a node is overloaded.
fn facts(moves: &PageMoves, weighed: &Weighed, granted: &Granted<Why>, most: f64) -> (Option<f64>, String) {
    let to = granted.to;
    match granted.why {
        Why::Local(thread, node) => {
            let home = moves.home_of(weighed);
            (moves.gain_of(weighed, to), locality::reason(moves, thread.tid, node, home))
        }
        Why::Overflow(local, there) => {
            let [local, to] = [local, to].map(|node| moves.snapshot.topology.nodes[node].id);
            let (most, there) = (most as u64, there as u64);
            (None, format!("node {local} would serve more than {most} accesses/s with it, node {to} serves {there}"))
        }
    }
}

impl Pass<'_> {
    /// Places the group at `at` with its top thread; `nodes` is room to list where it may overflow to.
    fn place(
        &mut self,
        at: usize,
        weighed: &Weighed,
        (thread, node): (ThreadId, NodeIndex),
        nodes: &mut Vec<NodeIndex>,
    ) {
        let (Some(local), Some(home)) = (self.moves.destination(node), weighed.home) else { return };
        let serves = self.serving.as_ref().is_none_or(|serving| serving.contains(&local));
        let way = if serves && self.fits(weighed, local) {
            Some((local, Why::Local(thread, node)))
        } else {
            nodes.clear();
            match &self.serving {
                Some(serving) => nodes.extend(serving),
                None => self.users.destinations(weighed.group, &self.moves, nodes),
            }
            let stays = nodes.contains(&home) && self.fits(weighed, home);
            let least = users::least_loaded(nodes, &self.loads, Some(home)).filter(|_| !stays);
            least.map(|to| (to, Why::Overflow(local, self.loads[to])))
        };
        match way {
            Some((to, why)) if self.moves.grant(weighed, to) => {
                self.granted.push(Granted { at, to, why });
                self.loads[to] += weighed.load;
            }
            _ => weighed.add_to(&mut self.loads),
        }
    }

    fn fits(&self, weighed: &Weighed, node: NodeIndex) -> bool {
        self.loads[node] == 0.0 || self.loads[node] + weighed.load <= self.most
    }
}

#[cfg(test)]
mod tests;
