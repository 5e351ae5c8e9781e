// SPDX-License-Identifier: GPL-2.0-only
//! Nodes, processes and threads as a snapshot has them.

use std::collections::BTreeMap;

use tandem_policies::foreign::printable;
use tandem_policies::model::{NodeIndex, PAGE_BYTES, PageGroup, Snapshot, Thread, ThreadId, Unmovable};

use crate::{Maybe, NodeView, ProcessView, ThreadView};

/// Threads that used less of a CPU than this are idle.
const BUSY_SHARE: f64 = 0.01;
/// Two threads are in one sharing group if this much of what one of them touches is shared with the other.
const SHARING_SHARE: f64 = 0.05;

/// What a snapshot shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Ascending by id.
    pub nodes: Vec<NodeView>,
    /// Ascending by id.
    pub processes: Vec<ProcessView>,
    /// Ascending by id.
    pub threads: Vec<ThreadView>,
    /// Of all accesses.
    pub local_share: Maybe<f64>,
    /// What accesses per second rest on; see [`crate::SamplerView::rates`].
    pub rates: String,
}

/// Accesses to the own node's memory, and all.
#[derive(Clone, Copy, Default)]
struct Accesses {
    local_per_s: f64,
    all_per_s: f64,
}

impl Accesses {
    fn of(thread: &Thread) -> Option<Self> {
        let by_node = thread.accesses_per_s.as_ref()?;
        Some(Self { local_per_s: by_node[thread.node], all_per_s: by_node.total() })
    }

    fn share(self) -> Maybe<f64> {
        Maybe((self.all_per_s > 0.0).then(|| self.local_per_s / self.all_per_s))
    }

    fn sum(threads: impl Iterator<Item = Self>) -> Self {
        threads.fold(Self::default(), |sum, one| Self {
            local_per_s: sum.local_per_s + one.local_per_s,
            all_per_s: sum.all_per_s + one.all_per_s,
        })
    }
}

/// What `snapshot` shows. Moves are not in it: what threads tell of theirs is left empty.
pub fn survey(snapshot: &Snapshot) -> Survey {
    let groups = sharing_groups(snapshot);
    let threads: Vec<ThreadView> =
        snapshot.threads.iter().zip(&groups).map(|(thread, group)| thread_view(snapshot, thread, *group)).collect();
    Survey {
        nodes: snapshot.topology.nodes.iter().map(|(index, _)| node_view(snapshot, index)).collect(),
        processes: process_views(snapshot, &threads),
        threads,
        local_share: Accesses::sum(snapshot.threads.iter().filter_map(Accesses::of)).share(),
        rates: snapshot.access_rates.map(|rates| rates.name().to_owned()).unwrap_or_default(),
    }
}

fn cpus(snapshot: &Snapshot, ns: u64) -> f64 {
    ns as f64 / snapshot.interval_ns.max(1) as f64
}

fn is_busy(snapshot: &Snapshot, thread: &Thread) -> bool {
    cpus(snapshot, thread.cpu_time_ns) >= BUSY_SHARE
}

pub(crate) fn mib(pages: u64) -> u64 {
    (pages * PAGE_BYTES) >> 20
}

fn id(snapshot: &Snapshot, node: NodeIndex) -> u64 {
    u64::from(snapshot.topology.nodes[node].id.0)
}

fn node_view(snapshot: &Snapshot, index: NodeIndex) -> NodeView {
    let (node, load) = (&snapshot.topology.nodes[index], &snapshot.nodes[index]);
    let here = || snapshot.threads.iter().filter(move |thread| thread.node == index);
    let rows = || snapshot.threads.iter().filter_map(|thread| thread.accesses_per_s.as_ref());
    let known: u64 = snapshot.groups.iter().map(|group| group.resident_pages[index]).sum();
    NodeView {
        id: u64::from(node.id.0),
        cpus: node.cpus.len() as u64,
        load_cpus: cpus(snapshot, load.busy_ns),
        unmanaged_cpus: cpus(snapshot, load.unmanaged_ns),
        busy_threads: here().filter(|thread| is_busy(snapshot, thread)).count() as u64,
        memory_mib: mib(node.memory_pages),
        free_mib: mib(node.free_pages),
        known_mib: mib(known),
        accesses_per_s: Maybe(rows().next().is_some().then(|| rows().map(|row| row[index]).sum())),
        local_share: Accesses::sum(here().filter_map(Accesses::of)).share(),
    }
}

fn thread_view(snapshot: &Snapshot, thread: &Thread, group: Option<(ThreadId, usize)>) -> ThreadView {
    let allowed = thread.allowed.iter().filter(|&(_, &allowed)| allowed);
    ThreadView {
        tid: u64::from(thread.id.tid),
        pid: u64::from(thread.process.0),
        command: printable(&thread.command),
        node: id(snapshot, thread.node),
        cpu: u64::from(thread.cpu.0),
        preferred_node: thread.preferred_node().map(|node| id(snapshot, node)).into(),
        load_cpus: cpus(snapshot, thread.cpu_time_ns),
        local_share: Maybe(Accesses::of(thread).and_then(|accesses| accesses.share().0)),
        accesses_per_s: thread.accesses_per_s.as_ref().map_or_else(Vec::new, |row| row.values().copied().collect()),
        allowed_nodes: allowed.map(|(node, _)| id(snapshot, node)).collect(),
        group: group.map(|(first, _)| u64::from(first.tid)).into(),
        group_threads: group.map_or(0, |(_, threads)| threads as u64),
        on_cooldown: u64::from(thread.on_cooldown),
        assigned_to: Maybe(None),
        moved_at_ns: Maybe(None),
        moved_from: Maybe(None),
        moved_to: Maybe(None),
        moved_generation: Maybe(None),
        moved_why: String::new(),
        stays_because: String::new(),
    }
}

fn process_views(snapshot: &Snapshot, views: &[ThreadView]) -> Vec<ProcessView> {
    let nodes = snapshot.topology.len();
    let mut processes: BTreeMap<u64, (ProcessView, Accesses)> = BTreeMap::new();
    for (thread, view) in snapshot.threads.iter().zip(views) {
        let (process, accesses) = processes.entry(view.pid).or_insert_with(|| {
            let rows = (vec![0; nodes], vec![0; nodes]);
            let view = ProcessView { pid: view.pid, known_mib: rows.0, busy_threads: rows.1, ..ProcessView::default() };
            (view, Accesses::default())
        });
        process.threads += 1;
        process.load_cpus += view.load_cpus;
        // The first thread bears the name that people know.
        if process.command.is_empty() || view.tid == view.pid {
            process.command.clone_from(&view.command);
        }
        process.busy_threads[thread.node.0] += u64::from(is_busy(snapshot, thread));
        *accesses = Accesses::sum([*accesses, Accesses::of(thread).unwrap_or_default()].into_iter());
    }
    let mut pages: BTreeMap<u64, KnownPages> = BTreeMap::new();
    for group in &snapshot.groups {
        pages.entry(u64::from(group.id.process.0)).or_insert_with(|| KnownPages::none(nodes)).add(group);
    }
    let finished = processes.into_iter().map(|(pid, (mut process, accesses))| {
        process.local_share = accesses.share();
        if let Some(known) = pages.get(&pid) {
            known.tell(&mut process);
        }
        process
    });
    finished.collect()
}

/// Known resident pages of a process: by node, and those that stay by the reason.
struct KnownPages {
    by_node: Vec<u64>,
    staying: Vec<(Unmovable, u64)>,
}

impl KnownPages {
    fn none(nodes: usize) -> Self {
        Self { by_node: vec![0; nodes], staying: Vec::new() }
    }

    fn add(&mut self, group: &PageGroup) {
        self.by_node.iter_mut().zip(group.resident_pages.values()).for_each(|(sum, pages)| *sum += pages);
        let Some(why) = group.unmovable else { return };
        let pages: u64 = group.resident_pages.values().sum();
        match self.staying.iter_mut().find(|known| known.0 == why) {
            Some(known) => known.1 += pages,
            None => self.staying.push((why, pages)),
        }
    }

    fn tell(&self, process: &mut ProcessView) {
        process.known_pages = self.by_node.iter().sum();
        process.known_mib = self.by_node.iter().map(|&pages| mib(pages)).collect();
        for &(why, pages) in &self.staying {
            *match why {
                Unmovable::Shared => &mut process.shared_mib,
                Unmovable::Pinned => &mut process.pinned_mib,
                Unmovable::Bound => &mut process.bound_mib,
                Unmovable::HugeTlb => &mut process.hugetlb_mib,
                Unmovable::Cooldown => &mut process.resting_mib,
                Unmovable::MemoryPressure => &mut process.waiting_mib,
                Unmovable::Contested => &mut process.contested_mib,
            } = mib(pages);
        }
    }
}

/// For each thread the lowest thread of its sharing group and the group's size; none for those that share with nobody.
fn sharing_groups(snapshot: &Snapshot) -> Vec<Option<(ThreadId, usize)>> {
    let index: BTreeMap<ThreadId, usize> =
        snapshot.threads.iter().enumerate().map(|(at, thread)| (thread.id, at)).collect();
    let touched: Vec<f64> =
        snapshot.threads.iter().map(|thread| Accesses::of(thread).map_or(0.0, |accesses| accesses.all_per_s)).collect();
    let mut leader: Vec<usize> = (0..snapshot.threads.len()).collect();
    for (at, thread) in snapshot.threads.iter().enumerate() {
        for (other, shared) in &thread.sharing {
            let Some(&other) = index.get(other) else { continue };
            if *shared > 0.0 && *shared >= SHARING_SHARE * touched[at].min(touched[other]) {
                let (one, two) = (find(&mut leader, at), find(&mut leader, other));
                leader[one.max(two)] = one.min(two);
            }
        }
    }
    let leaders: Vec<usize> = (0..leader.len()).map(|at| find(&mut leader, at)).collect();
    let mut size = vec![0; leaders.len()];
    leaders.iter().for_each(|&first| size[first] += 1);
    leaders.iter().map(|&first| (size[first] > 1).then(|| (snapshot.threads[first].id, size[first]))).collect()
}

/// The first thread of the group that `at` is in; paths are halved on the way.
fn find(leader: &mut [usize], mut at: usize) -> usize {
    while leader[at] != at {
        leader[at] = leader[leader[at]];
        at = leader[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{
        CpuId, GroupId, LatencySource, MemoryLines, Node, NodeId, NodeLoad, PageGroup, PerNode, ProcessId, Topology,
    };

    use super::*;

    /// Nodes 0 and 5, of 1 GiB each, over half a second.
    fn snapshot(threads: Vec<Thread>, groups: Vec<PageGroup>) -> Snapshot {
        let node = |at: usize| Node {
            id: NodeId(5 * at as u32),
            cpus: vec![CpuId(2 * at as u32), CpuId(2 * at as u32 + 1)],
            llcs: vec![],
            slow_cpus: Default::default(),
            memory_pages: 1 << 18,
            free_pages: 1 << 17,
            distance: PerNode::from_fn(2, |other| if other.0 == at { 10 } else { 20 }),
            latency_ns: PerNode::filled(2, 100.0),
        };
        let load = NodeLoad { busy_ns: 750_000_000, unmanaged_ns: 250_000_000, ..NodeLoad::default() };
        Snapshot {
            time_ns: 1,
            interval_ns: 500_000_000,
            topology: Topology::new(vec![node(0), node(1)], LatencySource::Distance).unwrap(),
            threads,
            groups,
            nodes: PerNode::filled(2, load),
            process_memory: BTreeMap::new(),
            page_move_ns: None,
            huge_page_move_ns: None,
            realised_share: None,
            access_rates: None,
        }
    }

    fn thread(pid: u32, tid: u32, node: usize, accesses: Option<[f64; 2]>, sharing: &[(u32, f64)]) -> Thread {
        let id = |tid| ThreadId { tid, start_boottime_ns: 1 };
        Thread {
            id: id(tid),
            process: ProcessId(pid),
            cgroup: None,
            command: format!("t{tid}"),
            node: NodeIndex(node),
            cpu: CpuId(0),
            allowed: PerNode::from(vec![true, tid != 1]),
            cpu_time_ns: 250_000_000,
            run_ns: PerNode::filled(2, 0),
            accesses_per_s: accesses.map(|row| PerNode::from(row.to_vec())),
            latency_ns: None,
            operations_per_s: None,
            cycles_per_s: None,
            transfers_per_s: None,
            memory_lines_per_s: MemoryLines::default(),
            performance: PerNode::filled(2, None),
            sharing: sharing.iter().map(|&(tid, per_s)| (id(tid), per_s)).collect(),
            on_cooldown: false,
            turned_ns: None,
            in_step_ns: None,
            woken_by: None,
        }
    }

    fn group(pid: u32, resident: [u64; 2]) -> PageGroup {
        PageGroup {
            id: GroupId { process: ProcessId(pid), start: 0 },
            bytes: 1 << 21,
            resident_pages: PerNode::from(resident.to_vec()),
            huge: false,
            accesses_per_s: PerNode::filled(2, 0.0),
            users: Default::default(),
            samples: 1.0,
            latency_ns: None,
            unmovable: None,
        }
    }

    #[test]
    fn shares_weigh_accesses_and_leave_out_threads_without_a_signal() {
        let threads = vec![
            thread(1, 1, 0, Some([30.0, 10.0]), &[]),
            thread(1, 2, 1, Some([0.0, 60.0]), &[]),
            thread(1, 3, 1, None, &[]),
        ];
        let survey = survey(&snapshot(threads, vec![]));
        assert_eq!(survey.local_share, Maybe(Some(0.9)));
        let of_threads: Vec<_> = survey.threads.iter().map(|thread| thread.local_share.0).collect();
        assert_eq!(of_threads, [Some(0.75), Some(1.0), None]);
        assert_eq!(survey.processes[0].local_share, Maybe(Some(0.9)));
        assert_eq!(survey.nodes[0].local_share, Maybe(Some(0.75)));
        assert_eq!(survey.nodes[1].accesses_per_s, Maybe(Some(70.0)));
    }

    #[test]
    fn nodes_are_named_by_the_kernels_ids() {
        let survey = survey(&snapshot(vec![thread(1, 1, 1, Some([0.0, 1.0]), &[])], vec![]));
        assert_eq!(survey.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 5]);
        assert_eq!((survey.threads[0].node, survey.threads[0].preferred_node), (5, Maybe(Some(5))));
        assert_eq!(survey.threads[0].allowed_nodes, [0]);
    }

    #[test]
    fn loads_are_in_cpus_and_memory_in_mib() {
        let survey =
            survey(&snapshot(vec![thread(1, 1, 0, None, &[])], vec![group(1, [256, 512]), group(1, [256, 0])]));
        let node = &survey.nodes[0];
        assert_eq!((node.load_cpus, node.unmanaged_cpus, node.busy_threads), (1.5, 0.5, 1));
        assert_eq!((node.memory_mib, node.free_mib, node.known_mib), (1024, 512, 2));
        assert_eq!((survey.processes[0].load_cpus, &survey.processes[0].known_mib[..]), (0.5, &[2, 2][..]));
        assert_eq!(node.accesses_per_s, Maybe(None), "nobody has a signal");
    }

    #[test]
    fn memory_that_stays_is_told_by_its_reason() {
        let because = |unmovable, pages| PageGroup { unmovable: Some(unmovable), ..group(1, pages) };
        let groups = vec![
            because(Unmovable::Shared, [256, 0]),
            because(Unmovable::Shared, [512, 256]),
            because(Unmovable::HugeTlb, [512, 0]),
            because(Unmovable::Cooldown, [0, 256]),
            because(Unmovable::MemoryPressure, [0, 512]),
            because(Unmovable::Contested, [0, 768]),
            PageGroup { id: GroupId { process: ProcessId(2), start: 0 }, ..because(Unmovable::Bound, [256, 0]) },
            group(1, [256, 0]),
        ];
        let survey = survey(&snapshot(vec![thread(1, 1, 0, None, &[])], groups));
        let process = &survey.processes[0];
        assert_eq!((process.shared_mib, process.hugetlb_mib, process.resting_mib, process.waiting_mib), (4, 2, 1, 2));
        assert_eq!((process.pinned_mib, process.bound_mib, process.contested_mib), (0, 0, 3));
        assert_eq!((process.known_mib.iter().sum::<u64>(), process.known_pages), (13, 13 * 256));
    }

    #[test]
    fn a_threads_name_gives_no_orders_to_the_terminal() {
        let named = Thread { command: "a\x1b[2Jb".to_owned(), ..thread(1, 1, 0, None, &[]) };
        assert_eq!(survey(&snapshot(vec![named], vec![])).threads[0].command, "a?[2Jb");
    }

    #[test]
    fn a_process_is_called_like_its_first_thread() {
        let survey = survey(&snapshot(vec![thread(9, 8, 0, None, &[]), thread(9, 9, 0, None, &[])], vec![]));
        assert_eq!((survey.processes.len(), survey.processes[0].command.as_str()), (1, "t9"));
        assert_eq!((survey.processes[0].threads, &survey.processes[0].busy_threads[..]), (2, &[2, 0][..]));
    }

    #[test]
    fn threads_that_share_are_one_group_also_through_others() {
        let row = Some([100.0, 0.0]);
        let threads = vec![
            thread(1, 1, 0, row, &[(2, 50.0)]),
            thread(1, 2, 0, row, &[(1, 50.0), (3, 20.0)]),
            thread(1, 3, 0, row, &[(2, 20.0), (4, 1.0)]),
            thread(1, 4, 0, row, &[(3, 1.0)]),
        ];
        let survey = survey(&snapshot(threads, vec![]));
        let groups: Vec<_> = survey.threads.iter().map(|thread| (thread.group.0, thread.group_threads)).collect();
        assert_eq!(groups, [(Some(1), 3), (Some(1), 3), (Some(1), 3), (None, 0)], "1 % is too little to bind");
    }
}
