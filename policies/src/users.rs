// SPDX-License-Identifier: GPL-2.0-only
//! The threads that use page groups, and the load that their accesses put on nodes.
//!
//! Load of a group: accesses per second by all threads. Load of a node: that of all groups, each by the share of
//! its pages there.

use crate::model::{NodeIndex, PageGroup, PerNode, Snapshot, ThreadId};
use crate::page_moves::PageMoves;

/// Nodes with memory that may serve a group: 0 are those of the threads that use it, n the first n of the machine.
pub const PAGE_NODES: crate::registry::Parameter =
    crate::registry::Parameter::whole("page_nodes", 0.0, "nodes; 0: those of its threads", 0.0, 1024.0);

/// Where the threads of a snapshot are; small, since it is asked for each user of each group.
pub struct Users(Vec<(ThreadId, NodeIndex)>);

impl Users {
    /// Those of `snapshot`.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self(snapshot.threads.iter().map(|thread| (thread.id, thread.node)).collect())
    }

    /// The node of a thread; `None` if it is gone.
    pub fn node(&self, id: ThreadId) -> Option<NodeIndex> {
        self.0.binary_search_by_key(&id, |&(known, _)| known).ok().map(|at| self.0[at].1)
    }

    /// Users of `group` that are still there, with their node and accesses per second.
    pub fn present(&self, group: &PageGroup) -> impl Iterator<Item = (ThreadId, NodeIndex, f64)> {
        let of = |&(id, per_s): &(ThreadId, f64)| self.node(id).filter(|_| per_s > 0.0).map(|node| (id, node, per_s));
        group.users.iter().filter_map(of)
    }

    /// The user that accesses `group` most, the lower id on a tie.
    pub fn top(&self, group: &PageGroup) -> Option<(ThreadId, NodeIndex, f64)> {
        self.present(group).reduce(|best, next| if next.2 > best.2 { next } else { best })
    }

    /// The nodes with memory of the threads that use `group`, ascending.
    pub fn destinations(&self, group: &PageGroup, moves: &PageMoves) -> Vec<NodeIndex> {
        let mut nodes: Vec<NodeIndex> = Vec::new();
        for (_, node, _) in self.present(group) {
            if let Some(to) = moves.destination(node)
                && let Err(at) = nodes.binary_search(&to)
            {
                nodes.insert(at, to);
            }
        }
        nodes
    }
}

/// Load of a group; 0 if it cannot be told.
pub fn load(group: &PageGroup) -> f64 {
    let load = group.accesses_per_s.total();
    if load.is_finite() { load.max(0.0) } else { 0.0 }
}

/// Share of the pages of `group` that are on `node`.
pub fn share(group: &PageGroup, node: NodeIndex) -> f64 {
    let resident: u64 = group.resident_pages.values().sum();
    if resident == 0 { 0.0 } else { group.resident_pages[node] as f64 / resident as f64 }
}

/// A group with its load.
#[derive(Clone, Copy, Debug)]
pub struct Weighed<'a> {
    pub group: &'a PageGroup,
    pub load: f64,
    /// Pages on all nodes.
    resident: u64,
}

impl<'a> Weighed<'a> {
    pub fn of(group: &'a PageGroup) -> Self {
        Self { group, load: load(group), resident: group.resident_pages.values().sum() }
    }

    /// What of the load is on `node`.
    pub fn load_on(&self, node: NodeIndex) -> f64 {
        if self.resident == 0 { 0.0 } else { self.load * self.group.resident_pages[node] as f64 / self.resident as f64 }
    }

    /// The nodes where it is, with its load there.
    pub fn parts(&self) -> impl Iterator<Item = (NodeIndex, f64)> {
        let resident = self.group.resident_pages.iter().filter(|&(_, &pages)| pages > 0);
        resident.map(|(node, _)| (node, self.load_on(node)))
    }

    /// Puts its load on the nodes where it is.
    pub fn add_to(&self, loads: &mut PerNode<f64>) {
        self.parts().for_each(|(node, load)| loads[node] += load);
    }

    /// Takes it from there.
    pub fn take_from(&self, loads: &mut PerNode<f64>) {
        self.parts().for_each(|(node, load)| loads[node] -= load);
    }
}

/// The least loaded of `nodes`; `home` on a tie, else the lower index.
pub fn least_loaded(nodes: &[NodeIndex], loads: &PerNode<f64>, home: Option<NodeIndex>) -> Option<NodeIndex> {
    let key = |node: NodeIndex| (loads[node], Some(node) != home);
    nodes.iter().copied().reduce(|best, next| {
        let ((a, away), (b, next_away)) = (key(best), key(next));
        if b < a || (b == a && away && !next_away) { next } else { best }
    })
}
