// SPDX-License-Identifier: GPL-2.0-only
//! Between two snapshots: has a thread turned to other memory ([`crate::turning`])? And at the next one: what it did before is
//! forgotten.

use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::model::{GroupId, NodeId, NodeIndex, PAGE_BYTES, PerNode, ProcessId, ThreadId, Topology};

use super::Sensor;
use crate::access::Access;
use crate::affinity::page_weight;
use crate::regions::{Region, RegionKind};
use crate::turning::{Memory, Rows, Weights};

/// Memory that was never seen is asked for by one page of so many bytes, in so many pages at each look.
const CHUNK_BYTES: u64 = 2 << 20;
const NEW_PAGES: usize = 64;

/// Process, and number of the [`CHUNK_BYTES`] in its memory.
type Chunk = (ProcessId, u64);

fn chunk_of(access: &Access) -> Chunk {
    (access.process, access.address / CHUNK_BYTES)
}

/// What is looked at between two snapshots.
#[derive(Default)]
pub(super) struct Watch {
    /// Threads and nodes of the last snapshot.
    threads: BTreeMap<u32, ThreadId>,
    nodes: Vec<NodeId>,
    /// Accesses up to then.
    before: Weights,
    /// The pending access that is to be looked at next.
    from: usize,
    /// The first of the pending accesses among which a turn was seen.
    turned_from: Option<usize>,
    /// Where memory is that is in no page group yet; `None`: nowhere.
    homes: BTreeMap<Chunk, Option<NodeIndex>>,
}

impl Sensor {
    /// Whether a thread seems to have turned to memory on other nodes since the last snapshot, or the last call that could
    /// tell: a snapshot is then better made now (`now_ns`) than later.
    pub fn sees_turn(&mut self, now_ns: u64) -> bool {
        self.ask_for_new_memory();
        let window = &self.pending.accesses[self.watch.from..];
        let (fresh, _) = self.rows(window, &self.watch.threads, &self.watch.nodes, now_ns);
        if !fresh.turned(&self.watch.before).is_empty() {
            self.watch.turned_from = Some(self.watch.from);
            return true;
        }
        if fresh.tell() {
            self.watch.from = self.pending.accesses.len();
        }
        false
    }

    /// Asks where memory is that was touched since the last snapshot and never before: a program that goes on to its next
    /// phase turns to nothing else.
    fn ask_for_new_memory(&mut self) {
        let mut asked: BTreeMap<ProcessId, Vec<(GroupId, u64)>> = BTreeMap::new();
        let mut chosen = BTreeSet::new();
        for access in &self.pending.accesses[self.watch.from..] {
            let group = self.table.group_at(access.process, access.address);
            let is_known = access.measured.is_some_and(|measured| measured.node.is_some())
                || group.is_some_and(|group| self.known_homes.get(group).is_some());
            let is_managed = self.watch.threads.contains_key(&access.tid);
            if is_known || !is_managed || chosen.len() >= NEW_PAGES || self.watch.homes.contains_key(&chunk_of(access))
            {
                continue;
            }
            if chosen.insert(chunk_of(access)) {
                let page = GroupId { process: access.process, start: access.address / PAGE_BYTES * PAGE_BYTES };
                asked.entry(access.process).or_default().push((page, PAGE_BYTES));
            }
        }
        for (process, pages) in asked {
            let homes = self.homes.resident(process, &pages, &self.watch.nodes);
            for ((page, _), resident) in pages.into_iter().zip(homes) {
                if let Some(resident) = resident {
                    let node = resident.iter().find(|(_, pages)| **pages > 0).map(|(node, _)| node);
                    self.watch.homes.insert((process, page.start / CHUNK_BYTES), node);
                }
            }
        }
    }

    /// Accesses of which it is known where their memory is, by thread and node, and each of them with its region.
    fn rows<'a>(
        &self,
        accesses: &'a [Access],
        threads: &BTreeMap<u32, ThreadId>,
        nodes: &[NodeId],
        now_ns: u64,
    ) -> (Rows, Vec<(ThreadId, &'a Access, Region)>) {
        let mut rows = Rows::new(nodes.len());
        let mut known = Vec::new();
        for access in accesses {
            let region = self.regions.find(access.process, access.address);
            let (Some(&thread), Some(region)) = (threads.get(&access.tid), region) else { continue };
            // What hardware tells is as it was then: pages that were moved meanwhile would look as if their users had turned.
            let group = self.table.group_at(access.process, access.address);
            let home = group.and_then(|group| self.known_homes.get(group));
            let measured = access.measured.and_then(|measured| nodes.iter().position(|id| Some(*id) == measured.node));
            let asked = || self.watch.homes.get(&chunk_of(access)).copied().flatten();
            let node = || measured.map(NodeIndex).or_else(asked).map(Memory::Node);
            let memory = home.map(Memory::Group).or_else(node);
            if let Some(memory) = memory.filter(|_| region.kind != RegionKind::Skipped) {
                let age_s = now_ns.saturating_sub(access.time_ns) as f64 * 1e-9;
                rows.add(thread, access.time_ns, page_weight(age_s), memory);
                known.push((thread, access, *region));
            }
        }
        (rows, known)
    }

    /// Of threads that turned to memory on other nodes, forgets what they did before.
    pub(super) fn start_anew(
        &mut self,
        accesses: &[Access],
        threads: BTreeMap<u32, ThreadId>,
        topology: &Topology,
        now_ns: u64,
    ) {
        let since = std::mem::take(&mut self.watch).turned_from.unwrap_or(0);
        let nodes = topology.node_ids();
        let (fresh, known) = self.rows(&accesses[since..], &threads, &nodes, now_ns);
        let mut all = Weights::new();
        for (id, group) in self.table.groups() {
            let Some(home) = self.known_homes.get(id) else { continue };
            for (user, weight) in group.users() {
                home.spread(all.entry(user).or_insert_with(|| PerNode::filled(nodes.len(), 0.0)), weight);
            }
        }
        let turned = fresh.turned(&fresh.before(&all));
        self.turned = turned.len();
        self.turned_ns.retain(|thread, _| all.contains_key(thread));
        self.turned_ns.extend(turned.iter().map(|&thread| (thread, now_ns)));
        if !turned.is_empty() {
            self.counters.turned += turned.len() as u64;
            self.table.retain(|_| true, |thread| !turned.contains(&thread));
            for (thread, access, region) in known.iter().filter(|(thread, ..)| turned.contains(thread)) {
                self.table.add(access.process, *thread, access.time_ns, access.address, Some(region));
            }
            all.append(&mut fresh.only(&turned));
        }
        self.watch = Watch { threads, nodes, before: all, ..Watch::default() };
    }
}
