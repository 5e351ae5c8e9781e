// SPDX-License-Identifier: GPL-2.0-only
//! What hardware measured in one interval: latencies, lines from other caches, operations and cycles.

use std::collections::BTreeMap;

use tandem_policies::model::{GroupId, MemoryLines, NodeIndex, PerNode, ThreadId, Topology, Transfers};

use crate::access::{Access, Counts};
use crate::source::Level;

/// Measured accesses from which a mean says something.
const MIN_MEASURED: u64 = 8;

/// A mean latency, each access weighing what it stands for.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum_ns: f64,
    weight: f64,
    measured: u64,
}

impl Mean {
    fn add(&mut self, latency_ns: u32, weight: f64) {
        self.sum_ns += f64::from(latency_ns) * weight;
        self.weight += weight;
        self.measured += 1;
    }

    fn ns(self) -> Option<f64> {
        (self.measured >= MIN_MEASURED).then(|| self.sum_ns / self.weight)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OfThread {
    latency: Mean,
    /// Lines from other cores' caches, by samples.
    sampled: Option<Transfers>,
    /// The same, counted.
    counted_lines: Option<Transfers>,
    /// Lines from memory.
    memory_lines: MemoryLines,
    /// Operations (instructions and floating-point operations, as the thesis has them) and cycles.
    counted: Option<(u64, u64)>,
}

/// What was measured since it was last emptied.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    threads: BTreeMap<ThreadId, OfThread>,
    groups: BTreeMap<GroupId, Mean>,
    /// By node of the CPU, then of the memory.
    pairs: BTreeMap<(NodeIndex, NodeIndex), Mean>,
    nodes: BTreeMap<NodeIndex, Mean>,
}

impl Measures {
    /// An access of `thread` to a page of `group`; one that nobody measured says nothing. `home` is the node with all of the
    /// group's pages, as the kernel told last: where hardware does not name the node, the memory that answered is there.
    pub(crate) fn access(
        &mut self,
        thread: ThreadId,
        group: Option<GroupId>,
        access: &Access,
        home: Option<NodeIndex>,
        topology: &Topology,
    ) {
        let Some(measured) = access.measured else { return };
        let weight = measured.period.max(1) as f64;
        let of_thread = self.threads.entry(thread).or_default();
        // A page fault is told with its frame, as if measured, and says nothing of what answered.
        if measured.source.level != Level::Unknown {
            let sampled = of_thread.sampled.get_or_insert_default();
            match measured.source.remote.filter(|_| measured.source.level == Level::PeerCache) {
                Some(true) => sampled.across_nodes += weight,
                Some(false) => sampled.within_node += weight,
                None => {}
            }
        }
        let Some(latency_ns) = measured.latency_ns else { return };
        of_thread.latency.add(latency_ns, weight);
        if let Some(group) = group {
            self.groups.entry(group).or_default().add(latency_ns, weight);
        }
        let run = topology.node_of(access.cpu);
        // Pages that were moved since: hardware knows at least that it was another node's memory.
        let home = home.filter(|home| measured.source.remote != Some(true) || run != Some(*home));
        let node = measured.node.map_or(home, |id| topology.index_of(id));
        if let Some(node) = node.filter(|_| measured.source.level == Level::Memory) {
            self.nodes.entry(node).or_default().add(latency_ns, weight);
            if let Some(run) = run {
                self.pairs.entry((run, node)).or_default().add(latency_ns, weight);
            }
        }
    }

    /// What was counted of `thread`.
    pub(crate) fn count(&mut self, thread: ThreadId, counts: &Counts) {
        let of_thread = self.threads.entry(thread).or_default();
        let (operations, cycles) = of_thread.counted.unwrap_or_default();
        of_thread.counted = Some((operations + counts.instructions + counts.flops, cycles + counts.cycles));
        if let Some(transfers) = counts.transfers {
            let sum = of_thread.counted_lines.get_or_insert_default();
            sum.within_node += transfers.within_node;
            sum.across_nodes += transfers.across_nodes;
        }
        let sum = &mut of_thread.memory_lines;
        sum.all = both(sum.all, counts.memory.all);
        sum.remote = both(sum.remote, counts.memory.remote);
    }

    /// Mean latency of the thread's accesses.
    pub(crate) fn thread_latency_ns(&self, thread: ThreadId) -> Option<f64> {
        self.threads.get(&thread)?.latency.ns()
    }

    /// Mean latency of accesses to the group.
    pub(crate) fn group_latency_ns(&self, group: GroupId) -> Option<f64> {
        self.groups.get(&group)?.ns()
    }

    /// Mean latency served by the node's memory.
    pub(crate) fn node_latency_ns(&self, node: NodeIndex) -> Option<f64> {
        self.nodes.get(&node)?.ns()
    }

    /// Mean latency served by the node's memory to CPUs of each of `nodes` nodes; empty if nothing was measured.
    pub(crate) fn latency_ns_from(&self, memory: NodeIndex, nodes: usize) -> PerNode<Option<f64>> {
        let rows = PerNode::from_fn(nodes, |run| self.pairs.get(&(run, memory))?.ns());
        if rows.values().all(Option::is_none) { PerNode::default() } else { rows }
    }

    /// Operations and cycles of the thread, per second of an interval.
    pub(crate) fn counted_per_s(&self, thread: ThreadId, interval_ns: u64) -> Option<(f64, f64)> {
        let (operations, cycles) = self.threads.get(&thread)?.counted?;
        Some((per_s(operations as f64, interval_ns), per_s(cycles as f64, interval_ns)))
    }

    /// Lines from other cores' caches, per second of an interval: as counted, else as samples say; `None` if none of the
    /// thread was counted and no sample told what answered.
    pub(crate) fn transfers_per_s(&self, thread: ThreadId, interval_ns: u64) -> Option<Transfers> {
        let of_thread = self.threads.get(&thread)?;
        let Transfers { within_node, across_nodes } = of_thread.counted_lines.or(of_thread.sampled)?;
        Some(Transfers { within_node: per_s(within_node, interval_ns), across_nodes: per_s(across_nodes, interval_ns) })
    }

    /// Lines from memory, per second of an interval, as far as they were counted.
    pub(crate) fn memory_lines_per_s(&self, thread: ThreadId, interval_ns: u64) -> MemoryLines {
        let MemoryLines { all, remote } = self.threads.get(&thread).map(|of| of.memory_lines).unwrap_or_default();
        let per_s = |count: f64| per_s(count, interval_ns);
        MemoryLines { all: all.map(per_s), remote: remote.map(per_s) }
    }
}

/// The sum of what is known; `None` if neither is.
fn both(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.map_or(other, |one| Some(one + other.unwrap_or(0.0)))
}

fn per_s(count: f64, interval_ns: u64) -> f64 {
    count * 1e9 / interval_ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{CpuId, NodeId, ProcessId};

    use super::*;
    use crate::access::{LineCounts, Measured};
    use crate::source::{DataSource, Snoop};
    use crate::testing::topology;

    const THREAD: ThreadId = ThreadId { tid: 1, start_boottime_ns: 1 };
    const COUNTS: Counts = Counts {
        process: ProcessId(7),
        tid: 1,
        instructions: 20,
        flops: 10,
        cycles: 100,
        transfers: None,
        memory: MemoryLines { all: None, remote: None },
    };
    const GROUP: GroupId = GroupId { process: ProcessId(7), start: 0 };

    fn access(level: Level, remote: bool, latency_ns: Option<u32>, period: u64) -> Access {
        let source = DataSource { level, remote: Some(remote), snoop: Snoop::Unknown };
        Access {
            process: ProcessId(7),
            tid: 1,
            address: 0,
            bytes: 0,
            store: false,
            time_ns: 0,
            cpu: CpuId(0),
            measured: Some(Measured { latency_ns, source, node: Some(NodeId(2)), physical: None, period }),
        }
    }

    fn measures(times: u64, access: &Access) -> Measures {
        let mut measures = Measures::default();
        (0..times).for_each(|_| measures.access(THREAD, Some(GROUP), access, None, &topology(2)));
        measures
    }

    #[test]
    fn latencies_are_means_by_what_accesses_stand_for() {
        let mut measures = measures(MIN_MEASURED, &access(Level::Memory, true, Some(200), 1));
        measures.access(THREAD, Some(GROUP), &access(Level::Memory, true, Some(100), MIN_MEASURED), None, &topology(2));
        for mean in [
            measures.thread_latency_ns(THREAD),
            measures.group_latency_ns(GROUP),
            measures.node_latency_ns(NodeIndex(1)),
        ] {
            assert_eq!(mean, Some(150.0));
        }
        assert_eq!(measures.node_latency_ns(NodeIndex(0)), None);
        let from = |memory| measures.latency_ns_from(NodeIndex(memory), 2).values().copied().collect::<Vec<_>>();
        assert_eq!((from(0), from(1)), (vec![], vec![Some(150.0), None]), "CPU 0 is on the first node");
    }

    /// Of the memory on node 1 as hardware tells, on node 0 as the kernel did.
    #[test]
    fn where_hardware_does_not_name_the_node_that_of_the_pages_counts() {
        let served = |node, home, level, remote| {
            let one = access(level, remote, Some(200), 1);
            let one = Access { measured: one.measured.map(|measured| Measured { node, ..measured }), ..one };
            let mut measures = Measures::default();
            (0..MIN_MEASURED).for_each(|_| measures.access(THREAD, Some(GROUP), &one, home, &topology(2)));
            let pair =
                |memory: usize| measures.latency_ns_from(NodeIndex(memory), 2).get(NodeIndex(0)).copied().flatten();
            ([0, 1].map(|memory| measures.node_latency_ns(NodeIndex(memory)).is_some()), [pair(0), pair(1)])
        };
        let (here, there, memory) = (Some(NodeIndex(0)), Some(NodeIndex(1)), Level::Memory);
        assert_eq!(served(None, there, memory, true), ([false, true], [None, Some(200.0)]));
        assert_eq!(served(None, here, memory, false), ([true, false], [Some(200.0), None]));
        assert_eq!(
            served(Some(NodeId(2)), here, memory, true),
            ([false, true], [None, Some(200.0)]),
            "hardware knows better"
        );
        assert_eq!(served(None, None, memory, true), ([false; 2], [None; 2]), "on several nodes, or not known");
        assert_eq!(served(None, here, memory, true), ([false; 2], [None; 2]), "they are not there any more");
        assert_eq!(served(None, there, Level::PeerCache, true), ([false; 2], [None; 2]), "no memory answered");
    }

    #[test]
    fn too_few_are_no_mean_and_what_was_not_measured_is_nothing() {
        let few = measures(MIN_MEASURED - 1, &access(Level::Memory, true, Some(200), 9));
        assert_eq!(few.thread_latency_ns(THREAD), None);
        let unmeasured = measures(99, &Access { measured: None, ..access(Level::Memory, true, None, 1) });
        assert_eq!((unmeasured.thread_latency_ns(THREAD), unmeasured.transfers_per_s(THREAD, 1)), (None, None));
        let stores = measures(99, &access(Level::Memory, true, None, 1));
        assert_eq!(stores.thread_latency_ns(THREAD), None, "latencies of stores are seldom known");
    }

    #[test]
    fn lines_from_caches_are_transfers_and_no_latency_of_memory() {
        let mut measures = measures(10, &access(Level::PeerCache, true, Some(150), 3));
        measures.access(THREAD, None, &access(Level::PeerCache, false, None, 4), None, &topology(2));
        let transfers = Transfers { within_node: 8.0, across_nodes: 60.0 };
        assert_eq!(measures.transfers_per_s(THREAD, 500_000_000), Some(transfers));
        assert_eq!(measures.node_latency_ns(NodeIndex(1)), None);
        assert_eq!(measures.thread_latency_ns(THREAD), Some(150.0), "it waited for them all the same");
    }

    #[test]
    fn samples_of_which_nobody_tells_what_answered_are_not_none_from_caches() {
        let unknown = measures(99, &access(Level::Unknown, true, Some(150), 1));
        assert_eq!(unknown.transfers_per_s(THREAD, 1_000_000_000), None);
        assert_eq!(unknown.thread_latency_ns(THREAD), Some(150.0));
        let none = measures(1, &access(Level::Memory, true, None, 1));
        assert_eq!(none.transfers_per_s(THREAD, 1_000_000_000), Some(Transfers::default()));
    }

    #[test]
    fn counts_add_up_over_the_interval() {
        let mut measures = Measures::default();
        assert_eq!(measures.counted_per_s(THREAD, 1), None);
        (0..2).for_each(|_| measures.count(THREAD, &COUNTS));
        assert_eq!(measures.counted_per_s(THREAD, 2_000_000_000), Some((30.0, 100.0)));
    }

    #[test]
    fn lines_that_were_counted_come_before_those_of_samples() {
        let mut measures = measures(10, &access(Level::PeerCache, true, Some(150), 3));
        let sampled = Transfers { within_node: 0.0, across_nodes: 30.0 };
        measures.count(THREAD, &COUNTS);
        assert_eq!(measures.transfers_per_s(THREAD, 1_000_000_000), Some(sampled), "who counts no lines says nothing");
        let lines = LineCounts { l2_misses: 100, l3_hits: 40, l3_misses: 50, remote_memory: 20, remote_modified: 25 };
        (0..2).for_each(|_| measures.count(THREAD, &Counts { transfers: Some(lines.transfers()), ..COUNTS }));
        let counted = Transfers { within_node: 20.0, across_nodes: 50.0 };
        assert_eq!(measures.transfers_per_s(THREAD, 1_000_000_000), Some(counted));
    }

    #[test]
    fn lines_from_memory_add_up_as_far_as_they_are_counted() {
        let mut measures = Measures::default();
        measures.count(THREAD, &COUNTS);
        assert!(measures.memory_lines_per_s(THREAD, 1).is_unknown(), "not counted is not zero");
        let lines = LineCounts { l2_misses: 100, l3_hits: 40, l3_misses: 50, remote_memory: 20, remote_modified: 25 };
        measures.count(THREAD, &Counts { memory: lines.memory(), ..COUNTS });
        measures.count(THREAD, &Counts { memory: MemoryLines { all: Some(5.0), remote: None }, ..COUNTS });
        let found = measures.memory_lines_per_s(THREAD, 500_000_000);
        assert_eq!(found, MemoryLines { all: Some(60.0), remote: Some(40.0) });
    }
}
