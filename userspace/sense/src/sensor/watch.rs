// SPDX-License-Identifier: GPL-2.0-only
//! Between two snapshots: has a thread turned to other memory ([`crate::turning`])? And at the next one: what it did before is
//! forgotten.

use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::model::{GroupId, NodeId, NodeIndex, PAGE_BYTES, PerNode, ProcessId, ThreadId, Topology};

use super::Sensor;
use crate::access::Access;
use crate::affinity::page_weight;
use crate::page_access::PageAccess;
use crate::regions::RegionKind;
use crate::snapshot::TaskAccount;
use crate::touches::Seen;
use crate::turning::{Memory, Past, Pasts, Row, Turn, WINDOW_NS, stretch_of};

/// Memory that was never seen is asked for by one page of so many bytes, in so many pages at each look.
const CHUNK_BYTES: u64 = 2 << 20;
const NEW_PAGES: usize = 64;
/// Entries in a window at most: those that 16 looks may show.
const WINDOW_ENTRIES: usize = 4096;

/// A thread that turned from what so many looks had shown is known by the few that told so. Of one that is just beginning to work
/// they tell too little.
const PAST_LOOKS: f64 = 8.0;
/// Looks at a thread since one of its process turned: one tells whether it turned too, but one may have been just before it did. A
/// stretch of time counts as one.
const LOOKS_SINCE_TURN: usize = 2;
/// Threads of a process that turn within this time do so together.
const TOGETHER_NS: u64 = 1_000_000_000;

/// Process, and number of the [`CHUNK_BYTES`] in its memory.
type Chunk = (ProcessId, u64);

fn chunk_of(access: &Access) -> Chunk {
    (access.process, access.address / CHUNK_BYTES)
}

/// What a thread did since it was last told whether it turned: as many accesses as it takes to tell.
struct Window {
    process: ProcessId,
    accesses: Vec<PageAccess>,
    /// Those of which it is known where their memory is.
    row: Row,
}

impl Window {
    fn new(process: ProcessId, nodes: usize) -> Self {
        Self { process, accesses: Vec::new(), row: Row::new(nodes) }
    }
}

/// What is looked at between two snapshots, and kept over them for threads that are seldom looked at.
#[derive(Default)]
pub(super) struct Watch {
    /// Threads and nodes of the last snapshot.
    threads: BTreeMap<u32, ThreadId>,
    nodes: Vec<NodeId>,
    windows: BTreeMap<ThreadId, Window>,
    /// The stretches of the latest looks at each thread, the last one first: they outlast its window.
    latest: BTreeMap<ThreadId, [Option<u64>; LOOKS_SINCE_TURN]>,
    /// Processes of which threads turned less than [`TOGETHER_NS`] ago, and when.
    turning: BTreeMap<ProcessId, u64>,
    /// What is known of threads from before the windows.
    before: Pasts,
    /// The pending access that is to be looked at next.
    from: usize,
    /// Where memory is that is in no page group yet; `None`: nowhere.
    homes: BTreeMap<Chunk, Option<NodeIndex>>,
}

impl Watch {
    fn add(&mut self, thread: ThreadId, seen: &PageAccess, memory: Option<Memory>, now_ns: u64) {
        let PageAccess { access, times } = seen;
        let nodes = self.nodes.len();
        let window = self.windows.entry(thread).or_insert_with(|| Window::new(access.process, nodes));
        if window.accesses.len() >= WINDOW_ENTRIES {
            *window = Window::new(access.process, nodes);
        }
        window.accesses.push(*seen);
        if let Some(memory) = memory {
            let (stretch, latest) = (Some(stretch_of(access.time_ns)), self.latest.entry(thread).or_default());
            if stretch > latest[0] {
                latest.rotate_right(1);
                latest[0] = stretch;
            }
            let age_s = now_ns.saturating_sub(access.time_ns) as f64 * 1e-9;
            window.row.add(access.time_ns, f64::from(*times) * page_weight(age_s), memory);
        }
    }

    /// The threads that turned, and those that would have if others of their process did.
    fn turned(&self) -> Turned {
        let by = |rule: fn(&Row, &Past) -> Option<Turn>| -> BTreeMap<ThreadId, Turn> {
            let turn =
                |(thread, window): (&ThreadId, &Window)| Some((*thread, rule(&window.row, self.before.get(thread)?)?));
            self.windows.iter().filter_map(turn).collect()
        };
        let (mut turned, may_turn) = (by(Row::turned_from), by(Row::turned_in_company));
        let mut turning: BTreeSet<ProcessId> = turned.keys().map(|thread| self.windows[thread].process).collect();
        turning.extend(self.turning.keys());
        for (thread, turn) in &may_turn {
            if turning.contains(&self.windows[thread].process) {
                turned.entry(*thread).or_insert(*turn);
            }
        }
        Turned { turned, may_turn }
    }

    /// Windows that tell begin anew, unless their threads turned or may be turning.
    fn begin_anew(&mut self, Turned { turned, may_turn }: &Turned) {
        let before = &mut self.before;
        self.windows.retain(|thread, window| {
            if turned.contains_key(thread) || may_turn.contains_key(thread) || !window.row.tells() {
                return true;
            }
            if let Some(past) = before.get_mut(thread) {
                past.add(&window.row);
            }
            false
        });
    }

    /// Forgets these processes and their threads.
    pub(super) fn forget(&mut self, gone: &BTreeSet<ProcessId>, threads: &BTreeSet<ThreadId>) {
        self.windows.retain(|thread, _| !threads.contains(thread));
        self.latest.retain(|thread, _| !threads.contains(thread));
        self.before.retain(|thread, _| !threads.contains(thread));
        self.turning.retain(|process, _| !gone.contains(process));
        self.homes.retain(|(process, _), _| !gone.contains(process));
    }

    /// Of `threads`, each with its process, those of which too few looks since a turn in it tell what they do now.
    fn hardly_seen(
        &self,
        turned: &BTreeMap<ThreadId, Turn>,
        threads: impl Iterator<Item = (ThreadId, ProcessId)>,
    ) -> BTreeSet<ThreadId> {
        // Of a turn of which nobody knows when it was nobody knows what was seen since.
        let mut since_ns: BTreeMap<ProcessId, Option<u64>> = BTreeMap::new();
        for (thread, turn) in turned {
            let latest_ns = since_ns.entry(self.windows[thread].process).or_insert(turn.since_ns);
            *latest_ns = latest_ns.zip(turn.since_ns).map(|(one, other)| one.max(other));
        }
        let is_hardly_seen = |&(thread, process): &(ThreadId, ProcessId)| {
            let Some(&of_process) = since_ns.get(&process) else { return false };
            let since = turned.get(&thread).map_or(of_process, |turn| turn.since_ns).map(stretch_of);
            let earliest = self.latest.get(&thread).and_then(|latest| latest[LOOKS_SINCE_TURN - 1]);
            self.before.contains_key(&thread) && (since.is_none() || earliest < since)
        };
        threads.filter(is_hardly_seen).map(|(thread, _)| thread).collect()
    }
}

/// What the windows tell.
struct Turned {
    turned: BTreeMap<ThreadId, Turn>,
    /// Threads that turned if others of their process did.
    may_turn: BTreeMap<ThreadId, Turn>,
}

impl Sensor {
    /// Whether a thread seems to have turned to memory on other nodes since the last snapshot, or the last call that could
    /// tell: a snapshot is then better made now (`now_ns`) than later.
    pub fn sees_turn(&mut self, now_ns: u64) -> bool {
        self.ask_for_new_memory();
        let mut watch = std::mem::take(&mut self.watch);
        for seen in &self.pending.accesses[watch.from..] {
            if let Some(&thread) = watch.threads.get(&seen.access.tid) {
                self.look_at(&mut watch, thread, seen, now_ns);
            }
        }
        watch.from = self.pending.accesses.len();
        let told = watch.turned();
        // The snapshot that is made of a turn looks at all windows.
        let turned = !told.turned.is_empty();
        if !turned {
            watch.begin_anew(&told);
        }
        self.watch = watch;
        turned
    }

    /// Drops what is pending of other processes, also accesses that were looked at.
    pub(super) fn drop_pending(&mut self, stays: impl Fn(ProcessId) -> bool) {
        let is_kept = |seen: &PageAccess| stays(seen.access.process);
        self.watch.from = self.pending.accesses[..self.watch.from].iter().filter(|seen| is_kept(seen)).count();
        self.pending.accesses.retain(is_kept);
        self.pending.windows.retain(|window| stays(window.process));
        self.pending.counts.retain(|counts| stays(counts.process));
    }

    /// Whether a thread of this one's process turned in the interval of the last snapshot, and too few looks at this one since tell
    /// what it does now: one interval more shows it.
    pub fn is_hardly_seen_since_turn(&self, thread: ThreadId) -> bool {
        self.hardly_seen.contains(&thread)
    }

    /// Asks where memory is that was touched since the last call and never before: a program that goes on to its next
    /// phase turns to nothing else.
    fn ask_for_new_memory(&mut self) {
        let mut asked: BTreeMap<ProcessId, Vec<(GroupId, u64)>> = BTreeMap::new();
        let mut chosen = BTreeSet::new();
        for PageAccess { access, .. } in &self.pending.accesses[self.watch.from..] {
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

    /// Puts an access into its thread's window, unless it is to memory that is not grouped.
    fn look_at(&self, watch: &mut Watch, thread: ThreadId, seen: &PageAccess, now_ns: u64) {
        let access = &seen.access;
        let region = self.regions.find(access.process, access.address);
        if region.is_none_or(|region| region.kind == RegionKind::Skipped) {
            return;
        }
        // What hardware tells is as it was then: pages that were moved meanwhile would look as if their users had turned.
        let group = self.table.group_at(access.process, access.address);
        let home = group.and_then(|group| self.known_homes.get(group));
        let measured =
            access.measured.and_then(|measured| watch.nodes.iter().position(|id| Some(*id) == measured.node));
        let asked = watch.homes.get(&chunk_of(access)).copied().flatten();
        let node = measured.map(NodeIndex).or(asked).map(Memory::Node);
        watch.add(thread, seen, home.map(Memory::Group).or(node), now_ns);
    }

    /// Of threads that turned to memory on other nodes, forgets what they did before.
    pub(super) fn start_anew(
        &mut self,
        accesses: &[PageAccess],
        accounts: &[TaskAccount],
        topology: &Topology,
        now_ns: u64,
    ) {
        let threads = accounts.iter().map(|account| (account.id.tid, account.id)).collect();
        let mut watch = self.windows_anew(accesses, threads, topology, now_ns);
        let all = self.pasts_of_all(topology.len());
        watch.before = all.iter().map(|(thread, all)| (*thread, without(all, watch.windows.get(thread)))).collect();
        let told = watch.turned();
        self.hardly_seen =
            watch.hardly_seen(&told.turned, accounts.iter().map(|account| (account.id, account.process)));
        watch.begin_anew(&told);
        let turned = told.turned;
        self.turned_ns.retain(|thread, _| all.contains_key(thread));
        self.turned_ns.extend(turned.keys().map(|&thread| (thread, now_ns)));
        let known = turned.iter().filter(|(_, turn)| turn.past_looks >= PAST_LOOKS);
        self.known_ns
            .retain(|thread, known_ns| now_ns.saturating_sub(*known_ns) < WINDOW_NS && all.contains_key(thread));
        self.known_ns.extend(known.map(|(&thread, _)| (thread, now_ns)));
        let windows = &watch.windows;
        watch.turning.extend(turned.keys().filter_map(|thread| Some((windows.get(thread)?.process, now_ns))));
        if !turned.is_empty() {
            self.counters.turned += turned.len() as u64;
            self.table.retain(|_| true, |thread| !turned.contains_key(&thread));
        }
        for (thread, Turn { since_ns, .. }) in turned {
            let Some(window) = watch.windows.remove(&thread) else { continue };
            let since_ns = since_ns.unwrap_or(0);
            for PageAccess { access, times } in window.accesses.iter().filter(|seen| seen.access.time_ns >= since_ns) {
                let region = self.regions.find(access.process, access.address);
                let seen = Seen { time_ns: access.time_ns, weight: *times as f32 };
                self.table.add(access.process, thread, seen, access.address, region);
            }
            watch.before.insert(thread, window.row.since(since_ns));
        }
        self.watch = watch;
    }

    /// The windows as the snapshot sees them: with what is still pending, without what is too old, and where memory is now.
    fn windows_anew(
        &mut self,
        accesses: &[PageAccess],
        threads: BTreeMap<u32, ThreadId>,
        topology: &Topology,
        now_ns: u64,
    ) -> Watch {
        let old = std::mem::take(&mut self.watch);
        let is_turning = |&(_, turned_ns): &(ProcessId, u64)| now_ns.saturating_sub(turned_ns) < TOGETHER_NS;
        let turning = old.turning.into_iter().filter(is_turning).collect();
        let is_there = |(id, _): &(ThreadId, _)| threads.get(&id.tid) == Some(id);
        let latest = old.latest.into_iter().filter(is_there).collect();
        let mut watch = Watch { threads, nodes: topology.node_ids(), turning, latest, ..Watch::default() };
        let is_recent = |seen: &&PageAccess| now_ns.saturating_sub(seen.access.time_ns) < WINDOW_NS;
        let in_windows = old.windows.values().flat_map(|window| &window.accesses).filter(is_recent);
        for seen in in_windows.chain(&accesses[old.from..]) {
            if let Some(&thread) = watch.threads.get(&seen.access.tid) {
                self.look_at(&mut watch, thread, seen, now_ns);
            }
        }
        watch
    }

    /// What is known of all threads: accesses to all groups of which it is known where they are.
    fn pasts_of_all(&self, nodes: usize) -> Pasts {
        let mut all = Pasts::new();
        for (id, group) in self.table.groups() {
            let Some(home) = self.known_homes.get(id) else { continue };
            for (user, weight) in group.users() {
                let new = || Past { weights: PerNode::filled(nodes, 0.0), looks: self.table.looks(user) };
                home.spread(&mut all.entry(user).or_insert_with(new).weights, weight);
            }
        }
        all
    }
}

/// What `all` that is known, the accesses of the window included, was before it.
fn without(all: &Past, window: Option<&Window>) -> Past {
    let Some(Window { row, .. }) = window else { return all.clone() };
    let weights = PerNode::from_fn(all.weights.len(), |node| (all.weights[node] - row.weights[node]).max(0.0));
    Past { weights, looks: (all.looks - row.looks).max(0.0) }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
