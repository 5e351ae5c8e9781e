// SPDX-License-Identifier: GPL-2.0-only
//! Cold memory of nodes that are short of room, for memory-only nodes: only where that is asked for (`cold_to_memory_only`).
//!
//! Problem: nobody runs near a memory-only node, so no placement by accesses ever uses it, while the memory that is near fills up
//! with pages that nobody touches. Mechanism: a group is cold once nearly nothing was seen of it for [`COLD_NS`]. Where a node with
//! CPUs has little room left, its cold groups go to the nearest memory-only node, the coldest first, until there is room again. That
//! is done when there is nothing else to move: a plan for accesses never waits for it.

use std::collections::BTreeMap;

use crate::model::{GroupId, NodeIndex, PageGroup, Plan, Snapshot};
use crate::page_moves::PageMoves;
use crate::registry::Parameters;
use crate::users::load;

/// For how long a group must have been cold. Rates are aged over seconds, and memory that is used in turns rests for some.
pub const COLD_NS: u64 = 10_000_000_000;
/// Accesses to a page per second below which it counts as untouched.
const COLD_PER_PAGE_S: f64 = 1.0;
/// Share of a node's memory: with less room than that it is short of it.
const SHORT: f64 = 0.05;

/// Since when groups have been cold.
#[derive(Debug, Default)]
pub struct Cold {
    since_ns: BTreeMap<GroupId, u64>,
}

impl Cold {
    /// Takes in what is cold now.
    pub fn watch(&mut self, snapshot: &Snapshot) {
        let before = std::mem::take(&mut self.since_ns);
        let cold = snapshot.groups.iter().filter(|group| is_cold(group));
        let since = |id: GroupId| before.get(&id).copied().unwrap_or(snapshot.time_ns);
        self.since_ns = cold.map(|group| (group.id, since(group.id))).collect();
    }

    /// What should make room on nodes that are short of it.
    pub fn plan(&self, snapshot: &Snapshot, parameters: &Parameters) -> Plan {
        let mut moves = PageMoves::new(snapshot, parameters);
        let mut wanted = wanted(snapshot, &moves);
        if wanted.iter().all(|&pages| pages == 0) {
            return moves.plan();
        }
        let lasts = |group: &&PageGroup| {
            let since_ns = self.since_ns.get(&group.id);
            since_ns.is_some_and(|&since_ns| snapshot.time_ns.saturating_sub(since_ns) >= COLD_NS)
        };
        let mut cold: Vec<&PageGroup> = snapshot.groups.iter().filter(lasts).collect();
        cold.sort_by(|a, b| load(a).total_cmp(&load(b)).then(a.id.cmp(&b.id)));
        for group in cold {
            let Some(home) = group.home().filter(|home| wanted[home.0] > 0) else { continue };
            let Some(to) = nearest_memory_only(snapshot, home) else { continue };
            let pages = group.resident_pages[home];
            let id = snapshot.topology.nodes[home].id;
            let reason = |_: &PageMoves| format!("nobody has used it for some time, and node {id} is short of room");
            if moves.send_for(group, to, None, reason) {
                wanted[home.0] = wanted[home.0].saturating_sub(pages);
            }
        }
        moves.plan()
    }
}

fn is_cold(group: &PageGroup) -> bool {
    let pages: u64 = group.resident_pages.values().sum();
    pages > 0 && group.unmovable.is_none() && load(group) < COLD_PER_PAGE_S * pages as f64
}

/// By node, pages that must go until it is not short of room any more.
fn wanted(snapshot: &Snapshot, moves: &PageMoves) -> Vec<u64> {
    let of = |(at, node): (NodeIndex, &crate::model::Node)| {
        let short = (SHORT * node.memory_pages as f64) as u64;
        if node.cpus.is_empty() { 0 } else { short.saturating_sub(moves.room(at)) }
    };
    snapshot.topology.nodes.iter().map(of).collect()
}

fn nearest_memory_only(snapshot: &Snapshot, from: NodeIndex) -> Option<NodeIndex> {
    let topology = &snapshot.topology;
    let memory_only = topology.nodes.iter().filter(|(_, node)| node.cpus.is_empty() && node.memory_pages > 0);
    memory_only.map(|(at, _)| at).min_by_key(|&at| (topology.distance(from, at), at))
}
