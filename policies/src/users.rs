// SPDX-License-Identifier: GPL-2.0-only
//! The threads that use page groups, and the load that their accesses put on nodes.
//!
//! Load of a group: accesses per second by all threads. Load of a node: that of all groups, each by the share of
//! its pages there.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::model::{NodeIndex, PageGroup, PerNode, ProcessId, Snapshot, ThreadId};
use crate::page_moves::PageMoves;
use crate::signals::sound;

/// Nodes with memory that may serve a group: 0 are those of the threads that use it, n the first n of the machine.
pub const PAGE_NODES: crate::registry::Parameter =
    crate::registry::Parameter::whole("page_nodes", 0.0, "nodes; 0: those of its threads", 0.0, 1024.0);

/// Where the threads of a snapshot are. It is asked for each user of each group, hence by hash; never iterated over.
pub struct Users(HashMap<ThreadId, NodeIndex, BuildHasherDefault<Multiply>>);

/// The same with their positions in the snapshot.
pub struct Positions<'a> {
    snapshot: &'a Snapshot,
    at: HashMap<ThreadId, usize, BuildHasherDefault<Multiply>>,
}

impl Positions<'_> {
    /// Position and node of a thread; `None` if it is gone.
    pub fn seat(&self, id: ThreadId) -> Option<(usize, NodeIndex)> {
        self.at.get(&id).map(|&at| (at, self.snapshot.threads[at].node))
    }
}

/// Hashes the few numbers of an id in a few cycles.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 / golden ratio: spreads consecutive numbers.
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Users {
    /// Those of `snapshot`.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self(snapshot.threads.iter().map(|thread| (thread.id, thread.node)).collect())
    }

    /// The same with positions.
    pub fn positions(snapshot: &Snapshot) -> Positions<'_> {
        Positions { snapshot, at: snapshot.threads.iter().enumerate().map(|(at, thread)| (thread.id, at)).collect() }
    }

    /// The node of a thread; `None` if it is gone.
    pub fn node(&self, id: ThreadId) -> Option<NodeIndex> {
        self.0.get(&id).copied()
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

    /// Adds the nodes with memory of the threads that use `group` to `nodes`, ascending.
    pub fn destinations(&self, group: &PageGroup, moves: &PageMoves, nodes: &mut Vec<NodeIndex>) {
        let first = nodes.len();
        for (_, node, _) in self.present(group) {
            if let Some(to) = moves.destination(node)
                && let Err(at) = nodes[first..].binary_search(&to)
            {
                nodes.insert(first + at, to);
            }
        }
    }
}

/// Load of a group; 0 if it cannot be told.
pub fn load(group: &PageGroup) -> f64 {
    sound(group.accesses_per_s.total())
}

/// Groups with their loads, and what of them is asked for again and again, close together: a row has an entry for each node,
/// most of them 0, and a group and its rows are far from the processor.
pub struct Ledger<'a> {
    entries: Vec<Entry<'a>>,
    parts: Vec<(NodeIndex, u64)>,
    accesses: Vec<(NodeIndex, f64)>,
}

struct Entry<'a> {
    group: &'a PageGroup,
    load: f64,
    resident: u64,
    samples: f64,
    parts: Range<u32>,
    accesses: Range<u32>,
    /// [`NOWHERE`] if it is on no node.
    home: u32,
    process: ProcessId,
    huge: bool,
    movable: bool,
}

const NOWHERE: u32 = u32::MAX;

/// Positions as a ledger keeps them: entries are gone through in any order, and the smaller they are the more of them are near.
fn short(range: Range<usize>) -> Range<u32> {
    range.start as u32..range.end as u32
}

fn long(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Adds what is filled of a row, which is little of one of many nodes: several entries at a time are looked at.
fn keep_filled<T: Copy>(row: &PerNode<T>, kept: &mut Vec<(NodeIndex, T)>, is_filled: impl Fn(&T) -> bool) {
    const AT_A_TIME: usize = 8;
    for (number, entries) in row.values().as_slice().chunks(AT_A_TIME).enumerate() {
        if entries.iter().fold(false, |any, entry| any | is_filled(entry)) {
            let nodes = (number * AT_A_TIME..).map(NodeIndex);
            kept.extend(nodes.zip(entries.iter().copied()).filter(|entry| is_filled(&entry.1)));
        }
    }
}

/// One group of a [`Ledger`].
#[derive(Clone, Copy, Debug)]
pub struct Weighed<'a> {
    pub group: &'a PageGroup,
    pub process: ProcessId,
    pub load: f64,
    /// Samples behind the load.
    pub samples: f64,
    /// Whether it may be moved.
    pub movable: bool,
    /// The node with most of its pages.
    pub home: Option<NodeIndex>,
    /// Pages on all nodes.
    pub resident: u64,
    huge: bool,
    /// Pages by node where there are any.
    pages: &'a [(NodeIndex, u64)],
    /// Accesses per second by node of the accessor where they are not 0.
    pub accesses: &'a [(NodeIndex, f64)],
}

impl Weighed<'_> {
    /// Share of its pages that are in huge pages: all or none, as it is no larger than one.
    pub fn huge_share(&self) -> f64 {
        if self.huge { 1.0 } else { 0.0 }
    }
}

impl<'a> Ledger<'a> {
    /// The ledger of `groups`, in their order.
    pub fn of(groups: &'a [PageGroup]) -> Self {
        // Most groups are on one node.
        let (entries, parts) = (Vec::with_capacity(groups.len()), Vec::with_capacity(groups.len() + groups.len() / 2));
        let mut ledger = Self { entries, parts, accesses: Vec::with_capacity(4 * groups.len()) };
        groups.iter().for_each(|group| ledger.add(group));
        ledger
    }

    fn add(&mut self, group: &'a PageGroup) {
        let (part, access) = (self.parts.len(), self.accesses.len());
        keep_filled(&group.resident_pages, &mut self.parts, |&pages| pages > 0);
        keep_filled(&group.accesses_per_s, &mut self.accesses, |&rate| rate != 0.0);
        let (mut home, mut resident, mut most) = (NOWHERE, 0, 0);
        for &(node, pages) in &self.parts[part..] {
            resident += pages;
            if pages > most {
                (home, most) = (node.0 as u32, pages);
            }
        }
        let load = sound(self.accesses[access..].iter().fold(0.0, |sum, access| sum + access.1));
        let (parts, accesses) = (short(part..self.parts.len()), short(access..self.accesses.len()));
        self.entries.push(Entry {
            group,
            load,
            resident,
            samples: sound(group.samples),
            parts,
            accesses,
            home,
            process: group.id.process,
            huge: group.huge,
            movable: group.unmovable.is_none(),
        });
    }

    /// The group at position `at`.
    pub fn weighed(&self, at: usize) -> Weighed<'_> {
        let Entry { group, load, resident, samples, ref parts, ref accesses, home, process, huge, movable } =
            self.entries[at];
        let (pages, accesses) = (&self.parts[long(parts)], &self.accesses[long(accesses)]);
        let home = (home != NOWHERE).then_some(NodeIndex(home as usize));
        Weighed { group, process, load, samples, movable, home, resident, huge, pages, accesses }
    }

    /// All groups, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Weighed<'_>> {
        (0..self.entries.len()).map(|at| self.weighed(at))
    }

    /// Positions of those groups for which `is_meant`, the greatest load first.
    pub fn heaviest_first(&self, is_meant: impl Fn(usize) -> bool) -> Vec<usize> {
        let meant = (0..self.entries.len()).filter(|&at| is_meant(at));
        let mut order: Vec<(f64, usize)> = meant.map(|at| (self.entries[at].load, at)).collect();
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order.into_iter().map(|(_, at)| at).collect()
    }
}

impl Weighed<'_> {
    /// Pages on `node`.
    pub fn pages_on(&self, node: NodeIndex) -> u64 {
        self.pages.iter().find(|part| part.0 == node).map_or(0, |part| part.1)
    }

    /// The nodes where it is, with its pages there.
    pub fn pages(&self) -> impl Iterator<Item = (NodeIndex, u64)> {
        self.pages.iter().copied()
    }

    /// What of the load is on `node`.
    pub fn load_on(&self, node: NodeIndex) -> f64 {
        self.load_of(self.pages_on(node))
    }

    fn load_of(&self, pages: u64) -> f64 {
        if self.resident == 0 { 0.0 } else { self.load * pages as f64 / self.resident as f64 }
    }

    /// The nodes where it is, with its load there.
    pub fn parts(&self) -> impl Iterator<Item = (NodeIndex, f64)> {
        self.pages.iter().map(|&(node, pages)| (node, self.load_of(pages)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_row_of_many_nodes_all_that_is_filled_is_kept() {
        let mut row = PerNode::filled(20, 0u64);
        [0, 7, 8, 19].into_iter().for_each(|node| row[NodeIndex(node)] = node as u64 + 1);
        let kept = |row: &PerNode<u64>| {
            let mut kept = vec![];
            keep_filled(row, &mut kept, |&pages| pages > 0);
            kept.into_iter().map(|(node, pages)| (node.0, pages)).collect::<Vec<_>>()
        };
        assert_eq!(kept(&row), [(0, 1), (7, 8), (8, 9), (19, 20)]);
        assert_eq!((kept(&PerNode::filled(20, 0)), kept(&PerNode::filled(0, 0))), (vec![], vec![]));
    }
}
