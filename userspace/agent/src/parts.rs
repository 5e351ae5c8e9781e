// SPDX-License-Identifier: GPL-2.0-only
//! A plan process by process.
//!
//! A plan that paid in all may have slowed one process down, and one that made things worse may have paid for others. So what a plan
//! changed of each process, its part, is judged by the accesses of that process alone, against what they were like before the plan
//! or were expected to be like after it, if that is more: a policy may have one process give way to another. Parts that made
//! things worse, and of which accesses would be better without them, go back alone, one after the other as long as their threads
//! would not crowd a node that others were given instead.
//!
//! A process that turns to other memory leaves: what its accesses were like before says nothing any more, and nothing is said
//! against the parts of the others.

use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::capacity::demands;
use tandem_policies::model::{NodeIndex, PerNode, ProcessId, Snapshot, Thread, ThreadId};
use tandem_policies::phases;
use tandem_policies::stall::{ByProcess, Changed, Locality, localities_without};

use crate::leases::busy;
use crate::verify::rose;

/// Standard errors of a rise that is still taken for chance: more than of the whole plan, as there are many parts.
const ERRORS: f64 = 3.0;

/// The parts of a plan that are still judged.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The latency that each process is accepted to have, in ns.
    accepted_ns: BTreeMap<ProcessId, f64>,
    /// Whose the threads are that the plan changed or holds.
    owners: BTreeMap<ThreadId, ProcessId>,
}

impl Parts {
    /// Those of a plan that changed something and holds threads, with what accesses are like before it and expected to be like
    /// after it. Processes of which nothing is known have none.
    pub fn of(
        snapshot: &Snapshot,
        (changed, held): (&Changed, &[ThreadId]),
        before: &ByProcess<Locality>,
        expected: &ByProcess<Locality>,
    ) -> Self {
        let whose = |thread: &ThreadId| snapshot.thread(*thread).map(|known| (*thread, known.process));
        let threads = changed.threads.iter().map(|(thread, _)| thread).chain(held);
        let owners: BTreeMap<ThreadId, ProcessId> = threads.filter_map(whose).collect();
        let moved = changed.threads.iter().filter_map(|(thread, _)| owners.get(thread).copied());
        let processes: BTreeSet<ProcessId> = moved.chain(changed.groups.keys().map(|group| group.process)).collect();
        let accepted_ns = |process: ProcessId| {
            let (before, expected) = (before.of.get(&process)?, expected.of.get(&process));
            Some((process, expected.map_or(before.latency_ns, |then| then.latency_ns.max(before.latency_ns))))
        };
        Self { accepted_ns: processes.into_iter().filter_map(accepted_ns).collect(), owners }
    }

    /// Of processes that are accepted to have these latencies, in ns; with no threads.
    #[cfg(test)]
    pub fn accepting(accepted_ns: BTreeMap<ProcessId, f64>) -> Self {
        Self { accepted_ns, owners: BTreeMap::new() }
    }

    /// Whether none is judged any more.
    pub fn is_empty(&self) -> bool {
        self.accepted_ns.is_empty()
    }

    /// Those of these processes are not judged any more; returns which there were.
    pub fn leave(&mut self, processes: &BTreeSet<ProcessId>) -> BTreeSet<ProcessId> {
        let left = self.accepted_ns.keys().filter(|process| processes.contains(process)).copied().collect();
        self.accepted_ns.retain(|process, _| !processes.contains(process));
        left
    }

    /// Splits what the plan changed and the threads that it holds: what is of these processes first.
    pub fn split(
        &self,
        changed: &Changed,
        held: &[ThreadId],
        processes: &BTreeSet<ProcessId>,
    ) -> [(Changed, Vec<ThreadId>); 2] {
        let is_theirs = |thread: &ThreadId| self.owners.get(thread).is_some_and(|owner| processes.contains(owner));
        [true, false].map(|theirs| {
            let threads = changed.threads.iter().filter(|(thread, _)| is_theirs(thread) == theirs).copied().collect();
            let groups = changed.groups.iter().filter(|(group, _)| processes.contains(&group.process) == theirs);
            let groups = groups.map(|(&group, pages)| (group, pages.clone())).collect();
            (Changed { threads, groups }, held.iter().filter(|thread| is_theirs(thread) == theirs).copied().collect())
        })
    }

    /// The processes whose parts made things worse and may go back, by what accesses are like after a plan and would be without it.
    pub fn worse(
        &self,
        snapshot: &Snapshot,
        changed: &Changed,
        [after, without]: [&ByProcess<Locality>; 2],
        errors_ns: &ByProcess<f64>,
    ) -> BTreeSet<ProcessId> {
        let rose = self.rose([after, without], errors_ns);
        if rose.is_empty() {
            return rose;
        }
        // Others may have made them worse: what they would be like is told without their own parts.
        let (theirs, _) = self.split(changed, &[], &rose)[0].clone();
        let rose = self
            .rose([after, &localities_without(snapshot, &theirs)], errors_ns)
            .intersection(&rose)
            .copied()
            .collect();
        let mut crowds = Crowds::of(snapshot);
        let mut back: BTreeMap<ProcessId, Vec<(ThreadId, NodeIndex)>> = BTreeMap::new();
        for &(thread, node) in &theirs.threads {
            self.owners.get(&thread).into_iter().for_each(|owner| back.entry(*owner).or_default().push((thread, node)));
        }
        let finds_room = |process: &ProcessId| back.get(process).is_none_or(|threads| crowds.take(threads));
        BTreeSet::into_iter(rose).filter(finds_room).collect()
    }

    /// The processes that are worse off than is accepted of them and than they would be without something.
    fn rose(&self, [after, without]: [&ByProcess<Locality>; 2], errors_ns: &ByProcess<f64>) -> BTreeSet<ProcessId> {
        let is_worse = |(process, accepted_ns): (&ProcessId, &f64)| {
            let latency_ns = |of: &ByProcess<Locality>| of.of.get(process).map(|its| its.latency_ns);
            let (after_ns, without_ns, error_ns) =
                (latency_ns(after)?, latency_ns(without)?, errors_ns.of.get(process)?);
            let rose_from = |lower_ns: f64| rose(after_ns, lower_ns, ERRORS * error_ns);
            (rose_from(*accepted_ns) && rose_from(without_ns)).then_some(*process)
        };
        self.accepted_ns.iter().filter_map(is_worse).collect()
    }

    /// Whether these are all that are judged.
    pub fn are(&self, processes: &BTreeSet<ProcessId>) -> bool {
        self.accepted_ns.keys().eq(processes)
    }
}

/// Who turned to other memory in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turned {
    /// Processes of which a quarter of the threads at work did.
    pub processes: BTreeSet<ProcessId>,
    /// Whether a quarter of all threads at work did.
    pub is_new_phase: bool,
}

impl Turned {
    /// Those of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut threads: BTreeMap<ProcessId, (usize, usize)> = BTreeMap::new();
        for thread in busy(snapshot) {
            let (turned, working) = threads.entry(thread.process).or_default();
            *turned += usize::from(thread.turned_ns == Some(snapshot.time_ns));
            *working += 1;
        }
        let all = threads.values().fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        let has_turned =
            |&(_, (turned, working)): &(ProcessId, (usize, usize))| phases::threads_turned(turned, working);
        let processes = threads.into_iter().filter(has_turned).map(|(process, _)| process).collect();
        Self { processes, is_new_phase: phases::threads_turned(all.0, all.1) }
    }
}

/// What threads at work take of nodes, in 1/1024 of a full CPU.
struct Crowds {
    /// Capacity of each node.
    capacities: PerNode<u64>,
    /// Demand of those that are on it.
    loads: PerNode<u64>,
    /// Where each is, and what it takes.
    threads: BTreeMap<ThreadId, (NodeIndex, u64)>,
}

impl Crowds {
    fn of(snapshot: &Snapshot) -> Self {
        let working: Vec<&Thread> = busy(snapshot).collect();
        let demands = demands(snapshot, &working);
        let nodes = snapshot.topology.len();
        let mut loads = PerNode::filled(nodes, 0);
        working.iter().zip(&demands).for_each(|(thread, demand)| loads[thread.node] += demand);
        Self {
            capacities: PerNode::from_fn(nodes, |node| snapshot.topology.nodes[node].capacity()),
            loads,
            threads: working.iter().zip(demands).map(|(thread, demand)| (thread.id, (thread.node, demand))).collect(),
        }
    }

    /// Has these threads go to these nodes, if none of the nodes bears more than it can then, and more than the fullest does now for
    /// what it can.
    fn take(&mut self, threads: &[(ThreadId, NodeIndex)]) -> bool {
        let mut loads = self.loads.clone();
        let mut joined = BTreeSet::new();
        for (thread, to) in threads {
            let Some(&(from, demand)) = self.threads.get(thread) else { continue };
            if from != *to {
                loads[from] -= demand;
                loads[*to] += demand;
                joined.insert(*to);
            }
        }
        let crowd = |loads: &PerNode<u64>, node: NodeIndex| loads[node] as f64 / self.capacities[node].max(1) as f64;
        let fullest = self.loads.iter().map(|(node, _)| crowd(&self.loads, node)).fold(1.0, f64::max);
        let have_room = joined.into_iter().all(|node| crowd(&loads, node) <= fullest);
        if have_room {
            self.loads = loads;
        }
        have_room
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, PAGE_BYTES, PageGroup};
    use tandem_policies::stall;

    use super::*;
    use crate::testing::{SECOND_NS, id, two_processes};

    fn localities(latencies_ns: &[(u32, f64)]) -> ByProcess<Locality> {
        let of = |&(process, latency_ns): &(u32, f64)| (ProcessId(process), Locality { latency_ns, remote_share: 0.0 });
        ByProcess { all: None, of: latencies_ns.iter().map(of).collect() }
    }

    /// Of a plan that moved threads 1 and 3 to node 0, from node 1, and a group of process 2.
    fn changed() -> Changed {
        let groups = [(GroupId { process: ProcessId(2), start: 0 }, vec![0, 8].into())].into();
        Changed { threads: vec![(id(1), NodeIndex(1)), (id(3), NodeIndex(1))], groups }
    }

    fn parts(snapshot: &Snapshot, before: &[(u32, f64)], expected: &[(u32, f64)]) -> Parts {
        Parts::of(snapshot, (&changed(), &[id(2), id(4)]), &localities(before), &localities(expected))
    }

    #[test]
    fn a_process_may_be_as_slow_as_it_was_or_as_the_plan_has_it() {
        let snapshot = two_processes([0, 0, 0, 1]);
        let before = [(1, 100.0), (2, 100.0), (3, 100.0)];
        let parts = parts(&snapshot, &before, &[(1, 80.0), (2, 150.0)]);
        assert_eq!(parts.accepted_ns, [(ProcessId(1), 100.0), (ProcessId(2), 150.0)].into(), "it changed nothing of 3");
        let errors_ns = ByProcess { all: None, of: [(ProcessId(1), 2.0), (ProcessId(2), 2.0)].into() };
        let rose = |after_ns: f64, without_ns: f64| {
            let [after, without] = [after_ns, without_ns].map(|ns| localities(&[(1, ns), (2, 150.0)]));
            parts.rose([&after, &without], &errors_ns)
        };
        assert_eq!(rose(107.0, 100.0), [ProcessId(1)].into());
        assert_eq!(rose(106.0, 100.0), [].into(), "three errors");
        assert_eq!(rose(130.0, 125.0), [].into(), "it does something else now");
        let unknown = ByProcess { all: None, of: [(ProcessId(2), 2.0)].into() };
        let [after, without] = [200.0, 100.0].map(|ns| localities(&[(1, ns)]));
        assert_eq!(parts.rose([&after, &without], &unknown), [].into(), "too few samples");
    }

    #[test]
    fn a_plan_splits_by_whose_threads_and_pages_they_are() {
        let parts = parts(&two_processes([0, 0, 0, 1]), &[(1, 100.0), (2, 100.0)], &[]);
        let [(theirs, held), (rest, rest_held)] = parts.split(&changed(), &[id(2), id(4)], &[ProcessId(2)].into());
        assert_eq!((theirs.threads, held), (vec![(id(3), NodeIndex(1))], vec![id(4)]));
        assert_eq!((rest.threads, rest_held), (vec![(id(1), NodeIndex(1))], vec![id(2)]));
        assert_eq!((theirs.groups, rest.groups), (changed().groups, [].into()));
    }

    #[test]
    fn threads_find_room_where_nobody_took_their_place() {
        let room = |nodes| Crowds::of(&two_processes(nodes)).take(&[(id(1), NodeIndex(1))]);
        assert!(room([0, 0, 0, 1]), "one of two CPUs is free there");
        assert!(!room([0, 0, 1, 1]), "others run there now");
        assert!(room([0, 0, 0, 0]), "it is not fuller there than here");
        assert!(Crowds::of(&two_processes([0, 0, 1, 1])).take(&[(id(9), NodeIndex(1))]), "it is gone");
        let mut light = two_processes([0, 0, 1, 1]);
        for thread in &mut light.threads {
            (thread.cpu_time_ns, thread.run_ns) = (SECOND_NS / 5, PerNode::filled(2, SECOND_NS / 10));
        }
        assert!(Crowds::of(&light).take(&[(id(1), NodeIndex(1))]), "a CPU does for all of them");
    }

    /// Threads 1 and 3 use memory of node 1 from node 0, where the plan brought them; thread 4 has a CPU of node 1.
    #[test]
    fn parts_go_back_one_after_the_other_while_there_is_room_where_they_were() {
        let mut snapshot = two_processes([0, 0, 0, 1]);
        for at in [0, 2] {
            snapshot.threads[at].accesses_per_s = Some(vec![0.0, 1e6].into());
            snapshot.threads[at].run_ns = vec![SECOND_NS, 0].into();
        }
        let changed = Changed { groups: [].into(), ..changed() };
        let worse = |snapshot: &Snapshot| {
            let before = localities(&[(1, 100.0), (2, 100.0)]);
            let parts = Parts::of(snapshot, (&changed, &[]), &before, &before);
            let errors_ns = ByProcess { all: None, of: [(ProcessId(1), 1.0), (ProcessId(2), 1.0)].into() };
            let [after, without] = [stall::localities(snapshot), localities_without(snapshot, &changed)];
            parts.worse(snapshot, &changed, [&after, &without], &errors_ns)
        };
        assert_eq!(worse(&snapshot), [ProcessId(1)].into(), "the one CPU that is free");
        snapshot.threads[3].cpu_time_ns = 0;
        assert_eq!(worse(&snapshot), [ProcessId(1), ProcessId(2)].into());
        // The memory of process 1 came to node 0 as well, by something else: its thread is near there.
        snapshot.threads[0].accesses_per_s = Some(vec![1e6, 0.0].into());
        assert_eq!(worse(&snapshot), [ProcessId(2)].into());
    }

    /// The plan brought a little of process 1 and all of process 2 to node 0, which is waited for since.
    #[test]
    fn a_part_does_not_go_back_for_what_another_one_did() {
        let mut snapshot = two_processes([0, 0, 0, 1]);
        let group = |process: u32, per_s: f64| PageGroup {
            id: GroupId { process: ProcessId(process), start: 0 },
            bytes: 8 * PAGE_BYTES,
            resident_pages: vec![8, 0].into(),
            huge: false,
            accesses_per_s: vec![per_s, 0.0].into(),
            users: vec![(id(2 * process - 1), per_s)].into(),
            samples: 0.0,
            latency_ns: None,
            unmovable: None,
        };
        for (at, per_s) in [(0, 1e6), (2, 1e7)] {
            snapshot.threads[at].accesses_per_s = Some(vec![per_s, 0.0].into());
            snapshot.threads[at].run_ns = vec![SECOND_NS, 0].into();
        }
        snapshot.groups = vec![group(1, 1e4), group(2, 1e7)];
        snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(300.0);
        snapshot.nodes[NodeIndex(1)].served_latency_ns = Some(100.0);
        let groups = snapshot.groups.iter().map(|group| (group.id, vec![0, 8].into())).collect();
        let changed = Changed { threads: vec![], groups };
        let before = localities(&[(1, 105.0), (2, 1000.0)]);
        let parts = Parts::of(&snapshot, (&changed, &[]), &before, &before);
        let errors_ns = ByProcess { all: None, of: [(ProcessId(1), 1.0), (ProcessId(2), 1.0)].into() };
        let [after, without] = [stall::localities(&snapshot), localities_without(&snapshot, &changed)];
        assert_eq!(parts.rose([&after, &without], &errors_ns), [ProcessId(1)].into());
        assert_eq!(parts.worse(&snapshot, &changed, [&after, &without], &errors_ns), [].into());
    }

    #[test]
    fn a_process_turns_with_a_quarter_of_its_own_threads_in_one_interval() {
        let mut snapshot = two_processes([0, 0, 0, 1]);
        snapshot.threads.extend_from_within(..2);
        snapshot.threads.extend_from_within(..2);
        assert_eq!(Turned::of(&snapshot), Turned::default());
        snapshot.time_ns = 5 * SECOND_NS;
        snapshot.threads[3].turned_ns = Some(5 * SECOND_NS);
        assert_eq!(Turned::of(&snapshot), Turned { processes: [ProcessId(2)].into(), is_new_phase: false });
        snapshot.threads[2].turned_ns = Some(5 * SECOND_NS);
        assert!(Turned::of(&snapshot).is_new_phase, "two of eight");
        // The next interval begins before the snapshot that told of it.
        (snapshot.time_ns, snapshot.interval_ns) = (6 * SECOND_NS, SECOND_NS + 1);
        assert_eq!(Turned::of(&snapshot), Turned::default());
    }
}
