// SPDX-License-Identifier: GPL-2.0-only
//! Cold memory of nodes that are short of room, for memory-only nodes: only where that is asked for (`cold_to_memory_only`).
//!
//! Problem: nobody runs near a memory-only node, so no placement by accesses ever uses it, while the memory that is near fills up
//! with pages that nobody touches. Mechanism: a group is cold once nearly nothing was seen of it for [`COLD_NS`]. Where a node with
//! CPUs has little room left, its cold groups go to the nearest memory-only node, the coldest first, until there is room again. That
//! is done when there is nothing else to move: a plan for accesses never waits for it.
//!
//! Sampling forgets a group half a minute after it was seen last, often before it counts as cold beside what its threads use now. So groups
//! that are in the snapshot no more are remembered here, as cold from then on, while their process is there and nothing else is known at
//! their addresses.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{GroupId, NodeIndex, PageGroup, PerNode, Plan, ProcessId, Snapshot, Unmovable};
use crate::page_moves::PageMoves;
use crate::registry::Parameters;
use crate::users::load;

/// For how long a group must have been cold. Rates are aged over seconds, and memory that is used in turns rests for some.
pub const COLD_NS: u64 = 10_000_000_000;
/// Accesses to a page per second below which it counts as untouched.
const COLD_PER_PAGE_S: f64 = 1.0;
/// Share of a node's memory: with less room than that it is short of it.
const SHORT: f64 = 0.05;

/// Groups remembered at most, as many as sampling keeps.
const MOST_GROUPS: usize = 1 << 17;

/// What is remembered of a group.
#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: u64,
    huge: bool,
    /// Where most of it is, and how many pages are there.
    home: NodeIndex,
    pages: u64,
    /// Since when it has been cold.
    since_ns: Option<u64>,
    is_seen: bool,
}

/// Since when groups have been cold.
#[derive(Debug, Default)]
pub struct Cold {
    groups: BTreeMap<GroupId, Known>,
}

impl Cold {
    /// Takes in what is cold now.
    pub fn watch(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.groups);
        for group in snapshot.groups.iter().filter(|group| may_move(group)) {
            let Some(home) = group.home() else { continue };
            let since_ns = before.remove(&group.id).and_then(|known| known.since_ns);
            let since_ns = is_cold(group).then_some(since_ns.unwrap_or(snapshot.time_ns));
            let (pages, bytes, huge) = (group.resident_pages[home], group.bytes, group.huge);
            self.groups.insert(group.id, Known { bytes, huge, home, pages, since_ns, is_seen: true });
        }
        let processes: BTreeSet<ProcessId> = snapshot.threads.iter().map(|thread| thread.process).collect();
        let room = MOST_GROUPS.saturating_sub(self.groups.len());
        let unseen = before
            .into_iter()
            .filter(|(id, known)| processes.contains(&id.process) && !overlaps(&snapshot.groups, *id, known.bytes));
        for (id, known) in unseen.take(room) {
            let since_ns = known.since_ns.or(Some(snapshot.time_ns));
            self.groups.insert(id, Known { since_ns, is_seen: false, ..known });
        }
    }

    /// What should make room on nodes that are short of it. What goes and was not seen any more is remembered no longer.
    pub fn plan(&mut self, snapshot: &Snapshot, parameters: &Parameters) -> Plan {
        let mut moves = PageMoves::new(snapshot, parameters);
        let mut wanted = wanted(snapshot, &moves);
        if wanted.iter().all(|&pages| pages == 0) {
            return moves.plan();
        }
        for group in self.coldest_first(snapshot) {
            let Some(home) = group.home().filter(|home| wanted[home.0] > 0) else { continue };
            let Some(to) = nearest_memory_only(snapshot, home) else { continue };
            let pages = group.resident_pages[home];
            let id = snapshot.topology.nodes[home].id;
            let reason = |_: &PageMoves| format!("nobody has used it for some time, and node {id} is short of room");
            if moves.send_for(&group, to, None, reason) {
                wanted[home.0] = wanted[home.0].saturating_sub(pages);
                if self.groups.get(&group.id).is_some_and(|known| !known.is_seen) {
                    self.groups.remove(&group.id);
                }
            }
        }
        moves.plan()
    }

    /// Groups that have been cold for long.
    fn coldest_first(&self, snapshot: &Snapshot) -> Vec<PageGroup> {
        let lasts = |since_ns: u64| snapshot.time_ns.saturating_sub(since_ns) >= COLD_NS;
        let of = |(&id, known): (&GroupId, &Known)| {
            known.since_ns.filter(|&since_ns| lasts(since_ns))?;
            let seen = || snapshot.groups.binary_search_by_key(&id, |group| group.id);
            let group = if known.is_seen { seen().ok().map(|at| snapshot.groups[at].clone()) } else { None };
            Some(group.unwrap_or_else(|| unseen_group(id, known, snapshot.topology.len())))
        };
        let mut cold: Vec<PageGroup> = self.groups.iter().filter_map(of).collect();
        cold.sort_by(|a, b| load(a).total_cmp(&load(b)).then(a.id.cmp(&b.id)));
        cold
    }
}

/// A group of which nothing is seen any more, as far as it is remembered.
fn unseen_group(id: GroupId, known: &Known, nodes: usize) -> PageGroup {
    PageGroup {
        id,
        bytes: known.bytes,
        resident_pages: PerNode::from_fn(nodes, |node| if node == known.home { known.pages } else { 0 }),
        huge: known.huge,
        accesses_per_s: PerNode::filled(nodes, 0.0),
        users: Default::default(),
        samples: 0.0,
        latency_ns: None,
        unmovable: None,
    }
}

/// Whether one of these groups, which are in order, has memory in common with the bytes from `id` on.
fn overlaps(groups: &[PageGroup], id: GroupId, bytes: u64) -> bool {
    let end = GroupId { start: id.start.saturating_add(bytes), ..id };
    let behind = groups.partition_point(|group| group.id < end);
    let last = behind.checked_sub(1).map(|at| &groups[at]);
    last.is_some_and(|group| group.id.process == id.process && group.id.start.saturating_add(group.bytes) > id.start)
}

/// Whether it stays for a while at most.
fn may_move(group: &PageGroup) -> bool {
    matches!(group.unmovable, None | Some(Unmovable::Cooldown | Unmovable::MemoryPressure))
}

fn is_cold(group: &PageGroup) -> bool {
    let pages: u64 = group.resident_pages.values().sum();
    pages > 0 && load(group) < COLD_PER_PAGE_S * pages as f64
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
