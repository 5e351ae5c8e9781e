// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `balance`: evens the load of the nodes' memory.
//!
//! Problem: data that many threads share lies on few nodes, whose memory becomes the bottleneck. Mechanism (Popov et
//! al., ICS 2019, page placement *balance*): the load of the pages is spread over the nodes of all threads that access
//! them. A group that is on none of these nodes goes to the least loaded of them. Then, the most accessed first, a
//! group leaves its node for the least loaded of its nodes if that one stays below its own by `tolerance_percent` even
//! with it. Parameters: [`PARAMETERS`].
//!
//! The source says what is evened, not how. Ours starts from the present placement and moves few groups. Each move
//! lowers the sum of the squared loads of the nodes, so that it comes to rest. Load is accesses per second; that of
//! groups that may not move counts too. The source's page NUMA degree is `page_nodes`: with n the first n
//! nodes with memory serve all groups, whoever uses them (threads on 2 nodes and pages on 4 may be best). The gain of a
//! move that evens is unknown: the latency matrix does not tell what contention costs.

use std::ops::Range;

use crate::model::{NodeIndex, PerNode, Plan, Snapshot};
use crate::page_moves::{self, Granted, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::{self, Ledger, Users, Weighed};

/// Page policy `balance`.
///
/// Each group goes to the node that serves least:
///
/// ```
/// use tandem_policies::{balance, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&balance::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: node 0 serves least of the nodes for it"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "balance",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Popov, Jimborean, Black-Schaffer, ICS 2019: page placement 'balance'",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
};

/// Parameters of `balance`.
pub const PARAMETERS: &[Parameter] = &[
    users::PAGE_NODES,
    Parameter::real("tolerance_percent", 10.0, "% of the lesser load", 0.0, 1000.0),
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Moves that even the load of the nodes.
///
/// # Errors
/// [`MissingSignal`] if no group knows its users and they are asked for.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    let page_nodes = parameters.get("page_nodes");
    if page_nodes == 0.0 {
        page_moves::require(snapshot, POLICY.name, Signal::GroupUsers, |group| !group.users.is_empty())?;
    }
    let users = Users::of(snapshot);
    let serving = page_moves::memory_nodes(&snapshot.topology, page_nodes);
    let mut loads = PerNode::filled(snapshot.topology.len(), 0.0);
    let mut moves = PageMoves::new(snapshot, parameters);
    let tolerance = 1.0 + parameters.get("tolerance_percent") / 100.0;
    let min_samples = parameters.get("min_samples");
    let ledger = Ledger::of(&snapshot.groups);
    // By group, the nodes that may serve it by its users; none if it may not go.
    let mut nodes_of_users = Vec::new();
    let mut judged: Vec<Option<Range<usize>>> = Vec::with_capacity(snapshot.groups.len());
    for weighed in ledger.iter() {
        weighed.add_to(&mut loads);
        let first = nodes_of_users.len();
        let may_go = weighed.group.samples >= min_samples && weighed.movable;
        if may_go && page_nodes == 0.0 {
            users.destinations(weighed.group, &moves, &mut nodes_of_users);
        }
        judged.push(may_go.then_some(first..nodes_of_users.len()));
    }
    let mut granted = Vec::new();
    for at in ledger.heaviest_first(|at| judged[at].is_some()) {
        let weighed = ledger.weighed(at);
        let of_users = judged[at].clone().unwrap_or_default();
        let nodes = if page_nodes == 0.0 { &nodes_of_users[of_users] } else { &serving };
        let Some((to, evens)) = destination(&weighed, nodes, &loads, tolerance) else { continue };
        if moves.grant(&weighed, to) {
            let home = weighed.home.unwrap_or(to);
            let why = evens.then(|| Evening { home, from: loads[home], to: loads[to] });
            granted.push(Granted { at, to, why });
            weighed.take_from(&mut loads);
            loads[to] += weighed.load;
        }
    }
    moves.write(&ledger, &granted, facts);
    Ok(moves.plan())
}

/// Loads before a move that evens them.
struct Evening {
    home: NodeIndex,
    from: f64,
    to: f64,
}

/// What a move brings, and why it is made.
fn facts(moves: &PageMoves, weighed: &Weighed, granted: &Granted<Option<Evening>>) -> (Option<f64>, String) {
    let id = |node: NodeIndex| moves.snapshot.topology.nodes[node].id;
    let there = id(granted.to);
    match &granted.why {
        Some(loads) => {
            let (here, from, to, own) = (id(loads.home), loads.from as u64, loads.to as u64, weighed.load as u64);
            (None, format!("node {here} serves {from} accesses/s, node {there} {to}; it takes {own} there"))
        }
        None => {
            let reason = format!("node {there} serves least of the nodes for it{}", moves.home_of(weighed));
            (moves.gain_of(weighed, granted.to), reason)
        }
    }
}

/// Where a group should go among `nodes`, and whether to even loads; `None` if it should stay.
fn destination(
    weighed: &Weighed,
    nodes: &[NodeIndex],
    loads: &PerNode<f64>,
    tolerance: f64,
) -> Option<(NodeIndex, bool)> {
    let home = weighed.home?;
    let to = users::least_loaded(nodes, loads, Some(home))?;
    if nodes.binary_search(&home).is_err() {
        return Some((to, false));
    }
    let arriving = weighed.load - weighed.load_on(to);
    let evens = to != home && loads[home] > tolerance * (loads[to] + arriving) && falls(weighed, to, loads);
    evens.then_some((to, true))
}

/// Whether the sum of the squared loads falls when a group goes to `to`. It may be on several nodes.
fn falls(weighed: &Weighed, to: NodeIndex, loads: &PerNode<f64>) -> bool {
    let leaves = |(node, leaving): (NodeIndex, f64)| leaving * (leaving - 2.0 * loads[node]);
    let change: f64 = weighed.parts().filter(|&(node, _)| node != to).map(leaves).sum();
    let arriving = weighed.load - weighed.load_on(to);
    change + arriving * (arriving + 2.0 * loads[to]) < 0.0
}

#[cfg(test)]
mod tests;
