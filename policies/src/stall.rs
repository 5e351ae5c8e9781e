// SPDX-License-Identifier: GPL-2.0-only
//! The stall that threads suffered: from where they really ran and where the pages that they access really are, not
//! from what was ordered. An assignment that was not followed and a page that did not move do not count.
//!
//! Where the latency that memories serve is measured, what they take longer than on an idle machine counts too
//! (`knee.rs`): spreading pages makes no access nearer, and all of them faster.

mod traffic;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::knee::Knee;
use crate::model::{Action, GroupId, NodeIndex, PerNode, Plan, ProcessId, Snapshot, Thread, ThreadId};
use crate::signals::sound;
use crate::users::Users;

use traffic::{Traffic, localities as localities_of};

/// Least share of the stall of their processes that moving pages must save. Small pages that several nodes use about equally
/// would else follow every change of who uses them a little more.
const FAINTEST_GAIN: f64 = 0.005;
/// The same of the stall of the threads that were seen to use them, if that is less: what one of many threads saves is worth
/// it for that one, but which of them were seen to use a page that all use now and then is chance.
const FAINTEST_GAIN_OF_USERS: f64 = 0.02;

/// With fewer samples of a process nothing is known of its latency, however alike they are.
const LEAST_SAMPLES: f64 = 24.0;

/// What a plan changed, as it was before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changed {
    /// Threads that it moved, with their nodes.
    pub threads: Vec<(ThreadId, NodeIndex)>,
    /// Page groups that it moved, with their pages by node.
    pub groups: BTreeMap<GroupId, PerNode<u64>>,
}

impl Changed {
    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.groups.is_empty()
    }
}

/// What the accesses of all threads with a signal are like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Locality {
    /// Mean latency of one.
    pub latency_ns: f64,
    /// Share of them that go to another node's memory than that of the thread.
    pub remote_share: f64,
}

/// Something of the accesses of all threads with a signal, and of those of each process; without what has none.
#[derive(Clone, Debug, PartialEq)]
pub struct ByProcess<T> {
    /// Of all threads together.
    pub all: Option<T>,
    /// Of each process.
    pub of: BTreeMap<ProcessId, T>,
}

impl<T> Default for ByProcess<T> {
    fn default() -> Self {
        Self { all: None, of: BTreeMap::new() }
    }
}

/// What accesses are like now.
pub fn localities(snapshot: &Snapshot) -> ByProcess<Locality> {
    let now = Traffic::by_process(snapshot, snapshot.threads.iter().map(Cow::Borrowed));
    localities_of(&now, &now.0.measured_waits_ns(snapshot))
}

/// What they will be like once `plan` is carried out, if threads go on as they do.
pub fn localities_expected(snapshot: &Snapshot, plan: &Plan) -> ByProcess<Locality> {
    localities_with(snapshot, &targets(snapshot, plan))
}

/// What they will be like once these groups are where they go, if threads go on as they do.
pub fn localities_once_moved(snapshot: &Snapshot, groups: &[(GroupId, NodeIndex)]) -> ByProcess<Locality> {
    let groups = all_at(snapshot, groups.iter().copied().collect());
    localities_with(snapshot, &Changed { threads: Vec::new(), groups })
}

/// What they would be like if what a plan changed were as it was before: for what the threads do now, which may be something else
/// than when the plan was made. Groups that are not there any more are left out.
pub fn localities_without(snapshot: &Snapshot, changed: &Changed) -> ByProcess<Locality> {
    localities_with(snapshot, changed)
}

/// Accesses per second of all threads with a signal that ran.
pub fn accesses_per_s(snapshot: &Snapshot) -> f64 {
    Traffic::of(snapshot, snapshot.threads.iter().map(Cow::Borrowed)).per_s()
}

/// Mean latency of an access of all threads with a signal; `None` if there is none.
pub fn latency_ns(snapshot: &Snapshot) -> Option<f64> {
    localities(snapshot).all.map(|now| now.latency_ns)
}

/// What a plan changes, as it shall be after it.
fn targets(snapshot: &Snapshot, plan: &Plan) -> Changed {
    let (mut threads, mut nodes) = (Vec::new(), BTreeMap::new());
    for planned in &plan.moves {
        match planned.action {
            Action::MoveThread { thread, to, .. } => threads.push((thread, to)),
            Action::Interchange { first, second, first_node, second_node } => {
                threads.extend([(first, second_node), (second, first_node)]);
            }
            Action::MovePages { group, to, .. } => {
                nodes.insert(group, to);
            }
        }
    }
    Changed { threads, groups: all_at(snapshot, nodes) }
}

/// The pages of these groups by node when all of them are where it is said; without groups that are not there any more.
fn all_at(snapshot: &Snapshot, nodes: BTreeMap<GroupId, NodeIndex>) -> BTreeMap<GroupId, PerNode<u64>> {
    let known = snapshot.groups.iter().filter_map(|group| Some((group, *nodes.get(&group.id)?)));
    let whole = known.map(|(group, to)| {
        let (pages, all) = (&group.resident_pages, group.resident_pages.values().sum());
        (group.id, PerNode::from_fn(pages.len(), |node| if node == to { all } else { 0 }))
    });
    whole.collect()
}

/// What accesses would be like if these threads and groups were where it is said.
fn localities_with(snapshot: &Snapshot, changed: &Changed) -> ByProcess<Locality> {
    let shifts = shifts(snapshot, changed);
    let nodes: BTreeMap<ThreadId, NodeIndex> = changed.threads.iter().copied().collect();
    let then = Traffic::by_process(snapshot, snapshot.threads.iter().map(|thread| placed(thread, &nodes, &shifts)));
    let now = Traffic::of(snapshot, snapshot.threads.iter().map(Cow::Borrowed));
    let mut waits_ns = now.measured_waits_ns(snapshot);
    if let Some(knee) = Knee::of(snapshot, &now.loads, &now.idle_ns()) {
        for (node, wait_ns) in waits_ns.iter_mut().enumerate() {
            let more_ns = knee.wait_ns(node, then.0.loads[node].per_s) - knee.wait_ns(node, now.loads[node].per_s);
            *wait_ns = (*wait_ns + more_ns).max(0.0);
        }
    }
    localities_of(&then, &waits_ns)
}

/// What threads really wait of the stall that accesses and latencies come to: none waits longer than it runs, so where that is
/// more, accesses were in flight together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waited {
    /// All of it, in ns per second.
    pub ns_per_s: f64,
    /// Its share of what accesses and latencies come to; 1 where nothing is known.
    pub share: f64,
}

/// What all threads with a signal wait.
pub fn waited(snapshot: &Snapshot) -> Waited {
    let all = Traffic::of(snapshot, snapshot.threads.iter().map(Cow::Borrowed));
    let waits_ns = all.measured_waits_ns(snapshot);
    let interval_ns = snapshot.interval_ns.max(1) as f64;
    let stalls = snapshot.threads.iter().filter_map(|thread| {
        let more = |(memory, &per_s): (NodeIndex, &f64)| per_s * waits_ns[memory.0];
        let waits_ns_per_s: f64 = thread.accesses_per_s.iter().flat_map(|row| row.iter()).map(more).sum();
        let stall_ns_per_s = stall_of(snapshot, thread)? + waits_ns_per_s;
        Some((stall_ns_per_s.min(thread.cpu_time_ns as f64 / interval_ns * 1e9), stall_ns_per_s))
    });
    let (ns_per_s, all) = stalls.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Waited { ns_per_s, share: if all > 0.0 { ns_per_s / all } else { 1.0 } }
}

/// Standard error of the mean latency of an access: what the latencies of accesses vary, by as many samples as there are of page
/// groups, those of a group by who accesses it as much as they do; 0 where these are not counted. Without processes of which there are too few.
pub fn latency_errors_ns(snapshot: &Snapshot) -> ByProcess<f64> {
    let (all, of) = Traffic::by_process(snapshot, snapshot.threads.iter().map(Cow::Borrowed));
    let threads = Users::positions(snapshot);
    let (mut samples, mut samples_of) = (0.0, BTreeMap::new());
    for group in &snapshot.groups {
        let its = sound(group.samples);
        samples += its;
        let per_s: f64 = group.users.iter().map(|user| sound(user.1)).sum();
        for &(user, of_user_per_s) in group.users.iter().filter(|_| its > 0.0 && per_s > 0.0) {
            let Some((at, _)) = threads.seat(user) else { continue };
            *samples_of.entry(snapshot.threads[at].process).or_insert(0.0) += its * sound(of_user_per_s) / per_s;
        }
    }
    let error_of = |(process, traffic): (ProcessId, Traffic)| {
        let its = samples_of.get(&process).copied().unwrap_or(0.0);
        (samples == 0.0 || its >= LEAST_SAMPLES).then(|| (process, traffic.error_ns(its)))
    };
    ByProcess { all: Some(all.error_ns(samples)), of: of.into_iter().filter_map(error_of).collect() }
}

/// What each thread accesses more of each node's memory if the groups had their pages where it is said.
fn shifts(snapshot: &Snapshot, changed: &Changed) -> BTreeMap<ThreadId, PerNode<f64>> {
    let mut shifts: BTreeMap<ThreadId, PerNode<f64>> = BTreeMap::new();
    for group in &snapshot.groups {
        let Some(then) = changed.groups.get(&group.id) else { continue };
        let (pages_then, pages_now) = (then.values().sum::<u64>(), group.resident_pages.values().sum::<u64>());
        if pages_then == 0 || pages_now == 0 {
            continue;
        }
        for &(user, per_s) in &group.users {
            let shift = shifts.entry(user).or_insert_with(|| PerNode::filled(then.len(), 0.0));
            for (node, &pages) in then.iter() {
                let now = group.resident_pages[node] as f64 / pages_now as f64;
                shift[node] += per_s * (pages as f64 / pages_then as f64 - now);
            }
        }
    }
    shifts
}

/// A thread as it would be then.
fn placed<'a>(
    thread: &'a Thread,
    nodes: &BTreeMap<ThreadId, NodeIndex>,
    shifts: &BTreeMap<ThreadId, PerNode<f64>>,
) -> Cow<'a, Thread> {
    let (shift, moved) = (shifts.get(&thread.id), nodes.get(&thread.id));
    if shift.is_none() && moved.is_none() {
        return Cow::Borrowed(thread);
    }
    let mut thread = thread.clone();
    if let (Some(row), Some(shift)) = (&mut thread.accesses_per_s, shift) {
        // Small groups and seldom users are not in the snapshot: no node can lose more than it has.
        shift.iter().for_each(|(node, more)| row[node] = (row[node] + more).max(0.0));
    }
    if let Some(node) = moved {
        let ran_ns = thread.run_ns.values().sum();
        thread.run_ns = PerNode::from_fn(thread.run_ns.len(), |at| if at == *node { ran_ns } else { 0 });
    }
    Cow::Owned(thread)
}

/// Stall of a thread's accesses from where it ran, in ns per second, without waits; `None` without a signal.
fn stall_of(snapshot: &Snapshot, thread: &Thread) -> Option<f64> {
    let alone = Traffic::of(snapshot, std::iter::once(Cow::Borrowed(thread)));
    let is_seen = thread.accesses_per_s.is_some() && thread.run_ns.values().any(|&ran_ns| ran_ns > 0);
    is_seen.then(|| alone.stall_ns_per_s.iter().sum())
}

/// Whether a plan for pages should save enough of the stall of the threads that use them, or of their processes, to be noticed
/// at all. Where the signal or the prediction is missing, nothing speaks against it.
pub fn is_worth_a_trial(plan: &Plan, snapshot: &Snapshot) -> bool {
    let group = |action: &Action| if let Action::MovePages { group, .. } = action { Some(*group) } else { None };
    let mut moved: Vec<GroupId> = plan.moves.iter().filter_map(|planned| group(&planned.action)).collect();
    // Both in the order of addresses, so that they can be gone through side by side: plans may name all groups.
    moved.sort_unstable();
    let processes: BTreeSet<ProcessId> = moved.iter().map(|id| id.process).collect();
    let mut moved = moved.into_iter().peekable();
    let threads = Users::positions(snapshot);
    let mut uses = vec![false; snapshot.threads.len()];
    for group in &snapshot.groups {
        while moved.next_if(|&id| id < group.id).is_some() {}
        if moved.peek() == Some(&group.id) {
            group.users.iter().filter_map(|user| threads.seat(user.0)).for_each(|(at, _)| uses[at] = true);
        }
    }
    let (mut of_users, mut of_processes) = (0.0, 0.0);
    for (thread, uses) in snapshot.threads.iter().zip(uses) {
        if uses || processes.contains(&thread.process) {
            let stall_ns_per_s = stall_of(snapshot, thread).unwrap_or(0.0);
            of_users += if uses { stall_ns_per_s } else { 0.0 };
            of_processes += stall_ns_per_s;
        }
    }
    let least = (FAINTEST_GAIN * of_processes).min(FAINTEST_GAIN_OF_USERS * of_users);
    let gains: Option<f64> = plan.moves.iter().map(|planned| planned.gain_ns_per_s).sum();
    of_users == 0.0 || gains.is_none_or(|gain_ns_per_s| gain_ns_per_s >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Move, NodeIndex, NodeLoad, PerNode, Topology};
    use crate::testing::{SnapshotBuilder, two_nodes};

    const SECOND_NS: u64 = 1_000_000_000;

    /// One thread that ran on node 0 with 1000 accesses per second to node 0 and `remote_per_s` to node 1 (100 and 200 ns
    /// away), the latter to one group, and a plan that brings the group and should save `gain_ns_per_s`.
    fn page_plan(remote_per_s: f64, gain_ns_per_s: Option<f64>) -> (Plan, Snapshot) {
        let mut topology = two_nodes(2);
        for node in [NodeIndex(0), NodeIndex(1)] {
            let distance = PerNode::from_fn(2, |other| if other == node { 10 } else { 20 });
            topology.nodes[node].latency_ns = Topology::latency_from_distance(&distance);
            topology.nodes[node].distance = distance;
        }
        let builder = SnapshotBuilder::new(topology).thread(1, 0, Some(&[1000.0, remote_per_s]));
        let snapshot = builder
            .with_thread(|thread| thread.run_ns = vec![SECOND_NS, 0].into())
            .group_used_by(&[0, 1], &[(1, remote_per_s)])
            .build();
        let action = Action::MovePages { group: snapshot.groups[0].id, bytes: 4096, to: NodeIndex(0) };
        (Plan { moves: vec![Move { action, gain_ns_per_s, reason: "test".to_owned() }] }, snapshot)
    }

    #[test]
    fn the_latency_is_that_of_where_threads_ran() {
        assert_eq!(latency_ns(&page_plan(1000.0, None).1), Some(150.0));
        assert_eq!(latency_ns(&SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build()), None, "no signal");
    }

    #[test]
    fn without_a_plan_its_threads_are_on_their_nodes_and_its_pages_where_they_were() {
        // 1000 accesses a second to each node, those to node 1 to a group that is half on node 0 now.
        let (_, mut snapshot) = page_plan(1000.0, None);
        let group = snapshot.groups[0].id;
        let without = |snapshot: &Snapshot, threads: &[(ThreadId, NodeIndex)], pages: Option<[u64; 2]>| {
            let groups = pages.map(|pages| (group, pages.to_vec().into())).into_iter().collect();
            localities_without(snapshot, &Changed { threads: threads.to_vec(), groups }).all.unwrap().latency_ns
        };
        let thread = snapshot.threads[0].id;
        assert_eq!(without(&snapshot, &[], None), 150.0, "nothing was changed");
        assert_eq!(
            without(&snapshot, &[(thread, NodeIndex(1))], None),
            150.0,
            "as far from the one half as from the other"
        );
        assert_eq!(without(&snapshot, &[], Some([8, 0])), 100.0, "it took pages away from their user");
        snapshot.threads[0].accesses_per_s = Some(vec![1000.0, 0.0].into());
        snapshot.groups[0].resident_pages = vec![4, 0].into();
        assert_eq!(without(&snapshot, &[], Some([0, 8])), 200.0, "it brought them");
        assert_eq!(without(&snapshot, &[(thread, NodeIndex(1))], None), 200.0);
        assert_eq!(without(&snapshot, &[(thread, NodeIndex(1))], Some([0, 8])), 100.0, "both were away together");
    }

    #[test]
    fn what_is_expected_of_a_plan_is_what_is_found_once_it_was_carried_out() {
        let (mut plan, mut snapshot) = page_plan(1000.0, None);
        let now = Locality { latency_ns: 150.0, remote_share: 0.5 };
        assert_eq!(
            (localities(&snapshot).all, localities_expected(&snapshot, &Plan::default()).all),
            (Some(now), Some(now))
        );
        let expected = localities_expected(&snapshot, &plan).all;
        snapshot.threads[0].accesses_per_s = Some(vec![2000.0, 0.0].into());
        assert_eq!(expected, localities(&snapshot).all);
        assert_eq!(expected.unwrap().remote_share, 0.0);
        let thread = snapshot.threads[0].id;
        let (first, to) = (NodeIndex(0), NodeIndex(1));
        plan.moves[0].action = Action::MoveThread { thread, from: first, to, cpu: None };
        let moved = Locality { latency_ns: 200.0, remote_share: 1.0 };
        assert_eq!(localities_expected(&snapshot, &plan).all, Some(moved));
        let second = ThreadId { tid: 99, ..thread };
        plan.moves[0].action = Action::Interchange { first: thread, second, first_node: first, second_node: to };
        assert_eq!(localities_expected(&snapshot, &plan).all, Some(moved));
        snapshot.threads[0].run_ns = vec![0, SECOND_NS].into();
        assert_eq!(localities(&snapshot).all, Some(moved));
    }

    #[test]
    fn what_memories_were_measured_to_take_longer_counts() {
        // 1000 accesses a second to each node; node 0 takes 30 ns longer than its 100, node 1 nothing more than its 200.
        let (_, mut snapshot) = page_plan(1000.0, None);
        let served = |ns| NodeLoad { served_latency_ns: Some(ns), ..NodeLoad::default() };
        snapshot.nodes = vec![served(130.0), served(150.0)].into();
        assert_eq!(latency_ns(&snapshot), Some(165.0));
        // If the group that is on node 1 were on node 0, all would be near, and wait for each other.
        let groups = [(snapshot.groups[0].id, vec![8, 0].into())].into();
        let without_ns = localities_without(&snapshot, &Changed { threads: vec![], groups }).all.unwrap().latency_ns;
        assert!(without_ns > 130.0 + 30.0, "the one memory serves twice as much: {without_ns}");
    }

    #[test]
    fn nobody_waits_longer_than_it_runs() {
        // 1000 accesses a second of 100 ns and as many of 200: 300 us of every second.
        let (_, mut snapshot) = page_plan(1000.0, None);
        (snapshot.interval_ns, snapshot.threads[0].cpu_time_ns) = (SECOND_NS, SECOND_NS);
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9 * other;
        let all = waited(&snapshot);
        assert!(near(all.ns_per_s, 300_000.0) && all.share == 1.0, "{all:?}");
        snapshot.threads[0].cpu_time_ns = 30_000;
        let some = waited(&snapshot);
        assert!(near(some.ns_per_s, 30_000.0) && near(some.share, 0.1), "{some:?}");
        // Node 1 takes three times as long as on an idle machine: 600 us instead of 200 us.
        let busy = NodeLoad { served_latency_ns: Some(600.0), ..NodeLoad::default() };
        snapshot.nodes = vec![NodeLoad::default(), busy].into();
        assert!(near(waited(&snapshot).share, 30.0 / 700.0), "waits count too");
        snapshot.threads[0].accesses_per_s = None;
        assert_eq!(waited(&snapshot), Waited { ns_per_s: 0.0, share: 1.0 }, "no signal");
    }

    #[test]
    fn groups_that_are_on_their_way_count_where_they_go() {
        let (_, snapshot) = page_plan(1000.0, None);
        let group = snapshot.groups[0].id;
        let once = |groups: &[(GroupId, NodeIndex)]| localities_once_moved(&snapshot, groups).all.unwrap().latency_ns;
        assert_eq!((once(&[]), once(&[(group, NodeIndex(0))])), (150.0, 100.0));
        let gone = GroupId { start: 1 << 40, ..group };
        assert_eq!(once(&[(gone, NodeIndex(0))]), 150.0);
    }

    /// The thread of [`page_plan`], and one of another process on node 1 that accesses the same group from near.
    fn two_processes() -> Snapshot {
        let (_, mut snapshot) = page_plan(1000.0, None);
        let mut other = snapshot.threads[0].clone();
        (other.id.tid, other.process) = (2, ProcessId(other.process.0 + 1));
        (other.accesses_per_s, other.run_ns) = (Some(vec![0.0, 1000.0].into()), vec![0, SECOND_NS].into());
        snapshot.groups[0].users.push((other.id, 1000.0));
        snapshot.threads.push(other);
        snapshot
    }

    #[test]
    fn each_process_has_the_latency_of_its_own_accesses() {
        let snapshot = two_processes();
        let latencies = |of: ByProcess<Locality>| of.of.into_values().map(|its| its.latency_ns).collect::<Vec<_>>();
        assert_eq!(latencies(localities(&snapshot)), [150.0, 100.0]);
        assert_eq!(
            latencies(localities_once_moved(&snapshot, &[(snapshot.groups[0].id, NodeIndex(0))])),
            [100.0, 200.0]
        );
        let mut silent = snapshot;
        silent.threads[1].accesses_per_s = None;
        assert_eq!(latencies(localities(&silent)), [150.0], "no signal");
    }

    #[test]
    fn samples_of_a_group_tell_of_those_who_access_it_as_much_as_they_do() {
        let mut snapshot = two_processes();
        snapshot.groups[0].samples = 100.0;
        let errors = latency_errors_ns(&snapshot).of;
        let first = snapshot.threads[0].process;
        // Half of them are of the first: 50 ns of deviation. The other one has none.
        assert!((errors[&first] - 50.0 / 50.0_f64.sqrt()).abs() < 1e-9 && errors.len() == 2, "{errors:?}");
        let is_known = |snapshot: &Snapshot| latency_errors_ns(snapshot).of.contains_key(&first);
        snapshot.groups[0].samples = 47.0;
        assert!(!is_known(&snapshot), "half of them are too few");
        snapshot.groups[0].samples = 0.0;
        assert!(is_known(&snapshot), "they are not counted");
    }

    #[test]
    fn the_error_is_that_of_a_mean_of_so_many_samples() {
        let (_, mut snapshot) = page_plan(1000.0, None);
        snapshot.groups[0].samples = 100.0;
        // 100 ns and 200 ns, half each: 50 ns of deviation.
        let near = |errors: ByProcess<f64>| {
            errors.all.into_iter().chain(errors.of.into_values()).all(|ns| (ns - 5.0).abs() < 1e-9)
        };
        assert!(near(latency_errors_ns(&snapshot)));
        snapshot.groups[0].samples = 0.0;
        assert_eq!(latency_errors_ns(&snapshot).all, Some(0.0));
    }

    #[test]
    fn page_moves_that_nobody_would_notice_are_not_worth_a_trial() {
        let worth = |gain| {
            let (plan, snapshot) = page_plan(1.0, gain);
            is_worth_a_trial(&plan, &snapshot)
        };
        assert!(!worth(Some(100.0)), "a thousandth of 100 us of stall");
        assert!(worth(Some(1000.0)), "a hundredth");
        assert!(worth(None), "nothing predicted");
        // Beside others of its process that do not use it, one thread must save more for itself; a fiftieth is worth it beside any
        // number.
        let beside = |others: usize, gain: f64| {
            let (plan, mut snapshot) = page_plan(1.0, Some(gain));
            for tid in 2..2 + others as u32 {
                let mut other = snapshot.threads[0].clone();
                other.id.tid = tid;
                snapshot.threads.push(other);
            }
            is_worth_a_trial(&plan, &snapshot)
        };
        assert!(!beside(3, 1000.0), "a four-hundredth of four threads' stall");
        assert!(beside(3, 2100.0) && beside(300, 2100.0));
        let (plan, mut snapshot) = page_plan(1.0, Some(100.0));
        snapshot.threads[0].accesses_per_s = None;
        assert!(is_worth_a_trial(&plan, &snapshot), "no signal");
    }
}
