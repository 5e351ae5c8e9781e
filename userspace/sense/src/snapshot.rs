// SPDX-License-Identifier: GPL-2.0-only
//! Makes the [`Snapshot`] of an interval out of accounts, affinity and homes.

use std::collections::BTreeMap;

use tandem_machine::LINE_BYTES;
use tandem_policies::model::{
    AccessRates, CpuId, GroupId, GroupUsers, NodeIndex, NodeLoad, PageGroup, PerNode, ProcessId, Snapshot, Thread,
    ThreadId, Topology, Unmovable,
};

use crate::affinity::{AffinityTable, Group};
use crate::frames::FrameTable;
use crate::known_homes::{Home, KnownHomes};
use crate::measures::Measures;
use crate::performance::PerformanceMemory;
use crate::rate::RateTable;
use crate::thread_policies::ThreadPolicies;

/// Users of a group that a snapshot names.
const TOP_USERS: usize = 8;
/// Aged accesses below which a thread counts as one without a signal: from fewer, the node of most of them is a guess.
pub(crate) const MIN_ACCESSES: f64 = 24.0;
/// The same of looks at it: one stretch of code often works on one place.
pub(crate) const MIN_LOOKS: f64 = 16.0;
/// Measured accesses per second of CPU time up to which a thread makes few: it waits for memory for a tenth of its time at most.
const FEW_PER_CPU_S: f64 = 1e6;
/// CPU time in an interval after which hardware that samples accesses has seen that a thread makes few.
const LEAST_RUN_NS: u64 = 100_000_000;

/// What the scheduler tells of one managed thread over an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskAccount {
    /// Who it is.
    pub id: ThreadId,
    /// Its process.
    pub process: ProcessId,
    /// The control group of its process, by the kernel's number.
    pub cgroup: Option<u64>,
    /// Its command name.
    pub command: String,
    /// Its assignment if it has one, else where it ran most, else its home.
    pub node: NodeIndex,
    /// The CPU it ran on last.
    pub cpu: CpuId,
    /// Nodes on which it may run.
    pub allowed: PerNode<bool>,
    /// CPU time in the interval by node of the CPU.
    pub run_ns: PerNode<u64>,
    /// Moved too recently to be moved again.
    pub on_cooldown: bool,
    /// The task that mostly wakes it and sleeps then, by its id, and how often it did in the interval.
    pub woken_by: Option<(u32, u64)>,
}

/// The parts that a snapshot is made of.
pub(crate) struct Parts<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) table: &'a AffinityTable,
    /// Where sharing is read from instead of from the table.
    pub(crate) frames: Option<&'a FrameTable>,
    pub(crate) rates: &'a RateTable,
    /// What those rest on.
    pub(crate) access_rates: AccessRates,
    pub(crate) measures: &'a Measures,
    pub(crate) policies: &'a ThreadPolicies,
    pub(crate) homes: &'a KnownHomes,
    /// When threads turned to other memory.
    pub(crate) turned_ns: &'a BTreeMap<ThreadId, u64>,
    /// Threads that are known by the looks that told of their turn.
    pub(crate) known: &'a BTreeMap<ThreadId, u64>,
    pub(crate) busy_ns: Option<PerNode<u64>>,
    pub(crate) interval_ns: u64,
    pub(crate) now_ns: u64,
}

impl Parts<'_> {
    /// The snapshot; `performance` learns from it first. `kept` tells why a group is to stay, other than for its region.
    pub(crate) fn snapshot(
        &self,
        accounts: Vec<TaskAccount>,
        performance: &mut PerformanceMemory,
        kept: impl Fn(GroupId, u64) -> Option<Unmovable>,
    ) -> Snapshot {
        let scales: BTreeMap<_, _> = accounts.iter().map(|account| (account.id, self.rate_of_one(account))).collect();
        let scale = |thread: ThreadId| scales.get(&thread).copied().unwrap_or(0.0);
        let nodes: BTreeMap<_, _> = accounts.iter().map(|account| (account.id, account.node)).collect();
        let mut accesses: BTreeMap<ThreadId, PerNode<f64>> = BTreeMap::new();
        let mut groups = Vec::new();
        for (id, group) in self.table.groups() {
            let home = self.homes.get(id);
            if let Some(home) = home {
                self.add_accesses(&group, home, scale, &mut accesses);
            }
            groups.push(self.page_group(id, &group, home, scale, &nodes, kept(id, group.bytes())));
        }
        let by_tid: BTreeMap<u32, ThreadId> = accounts.iter().map(|account| (account.id.tid, account.id)).collect();
        let mut sharing = self.frames.map_or_else(|| self.table.sharing(scale), FrameTable::sharing);
        let loads = self.loads(&accounts);
        let mut threads: Vec<_> = accounts
            .into_iter()
            .map(|account| {
                let row = self.row(&account, accesses.remove(&account.id));
                let shared = sharing.remove(&account.id).map(|row| row.into_iter().collect()).unwrap_or_default();
                let woken_by = account.woken_by.and_then(|(tid, wakes)| self.waker(by_tid.get(&tid), wakes));
                Thread { woken_by, ..self.thread(account, row, shared, performance) }
            })
            .collect();
        threads.sort_by_key(|thread| thread.id);
        Snapshot {
            time_ns: self.now_ns,
            interval_ns: self.interval_ns,
            topology: self.topology.clone(),
            threads,
            groups,
            nodes: loads,
            process_memory: BTreeMap::new(),
            page_move_ns: None,
            huge_page_move_ns: None,
            realised_share: None,
            access_rates: Some(self.access_rates),
        }
    }

    /// Accesses of the thread, given those to groups of which it is known where they are: `None` as long as too little is known.
    fn row(&self, account: &TaskAccount, seen: Option<PerNode<f64>>) -> Option<PerNode<f64>> {
        if self.makes_few(account) {
            let none_at_all = self.table.total(account.id) <= 0.0;
            return seen.or_else(|| none_at_all.then(|| PerNode::filled(self.topology.len(), 0.0)));
        }
        seen.filter(|_| self.knows(account.id))
    }

    /// Whether it is known that a thread hardly waits for memory: one that computes makes few accesses however often it is looked
    /// at, and must not hold up the others.
    fn makes_few(&self, account: &TaskAccount) -> bool {
        let ran_ns: u64 = account.run_ns.values().sum();
        let per_s = || self.rates.per_s(account.id, self.cpu_share(&account.run_ns)).unwrap_or(f64::INFINITY);
        let is_seen = match self.access_rates {
            AccessRates::Measured => {
                ran_ns >= LEAST_RUN_NS && per_s() <= FEW_PER_CPU_S * self.cpu_share(&account.run_ns)
            }
            // So few in so many stretches are few: one in 170 instructions at most.
            AccessRates::Inferred => self.rates.looks(account.id) >= MIN_LOOKS,
        };
        is_seen && self.table.total(account.id) < MIN_ACCESSES
    }

    /// Whether it is known what the thread uses: enough was seen, or what was seen tells that it just turned to that.
    fn knows(&self, thread: ThreadId) -> bool {
        let is_seen = self.table.total(thread) >= MIN_ACCESSES && self.table.looks(thread) >= MIN_LOOKS;
        is_seen || self.known.contains_key(&thread)
    }

    fn waker(&self, id: Option<&ThreadId>, wakes: u64) -> Option<(ThreadId, f64)> {
        let per_s = wakes as f64 * 1e9 / self.interval_ns.max(1) as f64;
        Some((*id?, per_s)).filter(|_| wakes > 0)
    }

    fn cpu_share(&self, run_ns: &PerNode<u64>) -> f64 {
        run_ns.values().sum::<u64>() as f64 / self.interval_ns.max(1) as f64
    }

    /// Accesses per second that a weight of 1 in the table stands for.
    fn rate_of_one(&self, account: &TaskAccount) -> f64 {
        let total = self.table.total(account.id);
        match self.rates.per_s(account.id, self.cpu_share(&account.run_ns)) {
            Some(per_s) if total > 0.0 => per_s / total,
            _ => 0.0,
        }
    }

    /// Spreads the accesses of a group's users over the nodes where its pages are.
    fn add_accesses(
        &self,
        group: &Group<'_>,
        home: Home<'_>,
        scale: impl Fn(ThreadId) -> f64,
        accesses: &mut BTreeMap<ThreadId, PerNode<f64>>,
    ) {
        if home == Home::NOWHERE {
            return;
        }
        for (user, weight) in group.users() {
            let row = accesses.entry(user).or_insert_with(|| PerNode::filled(self.topology.len(), 0.0));
            home.spread(row, weight * scale(user));
        }
    }

    fn page_group(
        &self,
        id: GroupId,
        group: &Group<'_>,
        home: Option<Home<'_>>,
        scale: impl Fn(ThreadId) -> f64,
        nodes: &BTreeMap<ThreadId, NodeIndex>,
        kept: Option<Unmovable>,
    ) -> PageGroup {
        let mut users: GroupUsers = group.users().map(|(user, weight)| (user, weight * scale(user))).collect();
        // Nobody tells whose policy a page came by, so one user that has one suffices.
        let bound = users.iter().any(|(user, _)| self.policies.binds(*user)).then_some(Unmovable::Bound);
        let mut accesses_per_s = PerNode::filled(self.topology.len(), 0.0);
        for (user, per_s) in &users {
            if let Some(&node) = nodes.get(user) {
                accesses_per_s[node] += per_s;
            }
        }
        users.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        users.truncate(TOP_USERS);
        users.shrink_to_fit();
        users.sort_by_key(|(user, _)| *user);
        PageGroup {
            id,
            bytes: group.bytes(),
            resident_pages: home.unwrap_or(Home::NOWHERE).pages(self.topology.len()),
            huge: home.is_some_and(Home::is_huge),
            accesses_per_s,
            users,
            samples: group.samples(),
            latency_ns: self.measures.group_latency_ns(id),
            unmovable: group.unmovable().or(bound).or(kept),
        }
    }

    fn thread(
        &self,
        account: TaskAccount,
        accesses_per_s: Option<PerNode<f64>>,
        sharing: Vec<(ThreadId, f64)>,
        performance: &mut PerformanceMemory,
    ) -> Thread {
        let cpu_time_ns = account.run_ns.values().sum();
        let latency_ns = self.measures.thread_latency_ns(account.id);
        let counted = self.measures.counted_per_s(account.id, self.interval_ns);
        let operations_per_s = counted.map(|(operations, _)| operations);
        let ran_mostly = account.run_ns.iter().find(|&(_, &ns)| ns * 2 > cpu_time_ns).map(|(node, _)| node);
        if let (Some(row), Some(node)) = (&accesses_per_s, ran_mostly)
            && row.total() > 0.0
        {
            let stall: f64 = row.iter().map(|(memory, per_s)| per_s * self.topology.latency_ns(node, memory)).sum();
            let done = match operations_per_s {
                Some(operations) => operations * operations / (row.total() * LINE_BYTES as f64),
                None => self.cpu_share(&account.run_ns),
            };
            let mean_ns = latency_ns.unwrap_or(stall / row.total());
            performance.record(account.id, node, done, mean_ns, self.now_ns);
        }
        Thread {
            id: account.id,
            process: account.process,
            cgroup: account.cgroup,
            command: account.command,
            node: account.node,
            cpu: account.cpu,
            allowed: account.allowed,
            cpu_time_ns,
            run_ns: account.run_ns,
            accesses_per_s,
            latency_ns,
            operations_per_s,
            cycles_per_s: counted.map(|(_, cycles)| cycles),
            transfers_per_s: self.measures.transfers_per_s(account.id, self.interval_ns),
            memory_lines_per_s: self.measures.memory_lines_per_s(account.id, self.interval_ns),
            performance: performance.recall(account.id, self.topology.len(), self.now_ns),
            sharing,
            on_cooldown: account.on_cooldown,
            turned_ns: self.turned_ns.get(&account.id).copied(),
            in_step_ns: None,
            woken_by: None,
        }
    }

    fn loads(&self, accounts: &[TaskAccount]) -> PerNode<NodeLoad> {
        PerNode::from_fn(self.topology.len(), |node| {
            let managed_ns: u64 = accounts.iter().filter_map(|account| account.run_ns.get(node)).sum();
            // /proc/stat counts in ticks and may lag behind the scheduler's own account.
            let busy_ns = self.busy_ns.as_ref().map_or(0, |busy| busy[node]).max(managed_ns);
            NodeLoad {
                busy_ns,
                unmanaged_ns: busy_ns - managed_ns,
                served_latency_ns: self.measures.node_latency_ns(node),
                latency_ns_from: self.measures.latency_ns_from(node, self.topology.len()),
            }
        })
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
