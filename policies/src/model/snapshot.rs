// SPDX-License-Identifier: GPL-2.0-only
//! What was seen over one interval, in one shape whatever sampler saw it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Action, CpuId, GroupId, NodeIndex, PerNode, Plan, ProcessId, ThreadId, Topology};

/// One thread over the interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Who it is.
    pub id: ThreadId,
    /// The process it belongs to.
    pub process: ProcessId,
    /// The control group that its process is in, by the kernel's number; `None`: the root's, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    /// Its command name, for people.
    pub command: String,
    /// The node it is placed on: its assignment if it has one, else where it ran most.
    pub node: NodeIndex,
    /// The CPU it ran on last.
    pub cpu: CpuId,
    /// Nodes on which it may run (affinity and cpuset); at least one.
    pub allowed: PerNode<bool>,
    /// CPU time used.
    pub cpu_time_ns: u64,
    /// The same by node of the CPU it ran on.
    pub run_ns: PerNode<u64>,
    /// Memory accesses per second by node of the *memory*, aged over past intervals.
    pub accesses_per_s: Option<PerNode<f64>>,
    /// Mean latency of its accesses.
    pub latency_ns: Option<f64>,
    /// Operations per second (spec: O): instructions retired, or floating-point operations where they are counted.
    pub operations_per_s: Option<f64>,
    /// Cycles per second in which it did not halt.
    pub cycles_per_s: Option<f64>,
    /// Lines that it got from other cores' caches.
    pub transfers_per_s: Option<Transfers>,
    /// Lines that it got from memory, as counted.
    #[serde(default, skip_serializing_if = "MemoryLines::is_unknown")]
    pub memory_lines_per_s: MemoryLines,
    /// Remembered performance P by node it ran on (spec: O*I/L), faded by age. `None`: never seen there.
    pub performance: PerNode<Option<f64>>,
    /// Threads it shares lines or pages with, and how much; ascending by id.
    pub sharing: Vec<(ThreadId, f64)>,
    /// Moved so recently that no plan may move it.
    pub on_cooldown: bool,
    /// When it turned to other memory than before, so that its signals began anew, on CLOCK_MONOTONIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned_ns: Option<u64>,
    /// When it last worked in step with other threads of its process, on CLOCK_MONOTONIC, if it waits for them since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_step_ns: Option<u64>,
    /// The managed thread that mostly wakes it and sleeps then, and how often a second: they hand each other something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_by: Option<(ThreadId, f64)>,
}

/// Lines per second that came from other cores' caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfers {
    /// From cores of the same node.
    pub within_node: f64,
    /// From cores of other nodes.
    pub across_nodes: f64,
}

/// Lines per second that no cache had, as hardware counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryLines {
    /// From any memory: what the last-level cache missed. `None` where it is not counted.
    pub all: Option<f64>,
    /// Of those, from memory of other nodes than the one it ran on. `None` where it is not counted.
    pub remote: Option<f64>,
}

impl MemoryLines {
    /// Nothing was counted.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Why the pages of a group stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmovable {
    /// Moved so recently that no plan may move it.
    Cooldown,
    /// Mapped by other processes too.
    Shared,
    /// Locked or pinned, or of a kind the kernel does not migrate.
    Pinned,
    /// The process binds this memory to nodes itself, or may not use others.
    Bound,
    /// Huge pages that each node hands out of a pool of its own (hugetlbfs): another node may have none.
    HugeTlb,
    /// The machine is short of memory: no pages move until it is not.
    MemoryPressure,
    /// Something else moved it away from where a plan had put it: it rests for long.
    Contested,
}

/// Threads with accesses per second. There may be very many groups, and most have one user.
pub type GroupUsers = SmallVec<[(ThreadId, f64); 1]>;

/// A group of contiguous pages over the interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageGroup {
    /// Which pages.
    pub id: GroupId,
    /// Bytes from the first page to the end of the last.
    pub bytes: u64,
    /// Resident base pages by node of the memory.
    pub resident_pages: PerNode<u64>,
    /// Whether they are one huge page, which moves whole.
    #[serde(default)]
    pub huge: bool,
    /// Accesses per second by node of the *accessing thread*, aged.
    pub accesses_per_s: PerNode<f64>,
    /// The threads that access it most, with their accesses per second; ascending by id.
    pub users: GroupUsers,
    /// Samples behind the numbers above, aged: how far to trust them.
    pub samples: f64,
    /// Mean latency of accesses to it.
    pub latency_ns: Option<f64>,
    /// `None` if it may be moved, else why not.
    pub unmovable: Option<Unmovable>,
}

/// The memory of a process as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Nodes whose memory it may use (its cpuset's memory nodes); empty: all.
    pub allowed: PerNode<bool>,
}

/// One node over the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// CPU time used on the node's CPUs by all tasks.
    pub busy_ns: u64,
    /// CPU time used by tasks that are not managed.
    pub unmanaged_ns: u64,
    /// Mean latency served by the node's memory.
    pub served_latency_ns: Option<f64>,
    /// The same by node of the CPUs that were served; empty if nothing was measured.
    #[serde(default, skip_serializing_if = "PerNode::is_empty")]
    pub latency_ns_from: PerNode<Option<f64>>,
}

/// Everything a policy may look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// End of the interval on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Length of the interval.
    pub interval_ns: u64,
    /// The machine.
    pub topology: Topology,
    /// Managed threads, ascending by id.
    pub threads: Vec<Thread>,
    /// Known page groups, ascending by id.
    pub groups: Vec<PageGroup>,
    /// One entry a node.
    pub nodes: PerNode<NodeLoad>,
    /// What is known of the memory of whole processes; of one that is not named, nothing: it may use all nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub process_memory: BTreeMap<ProcessId, ProcessMemory>,
    /// What moving a base page took lately, in ns of a CPU; `None` until pages were moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_move_ns: Option<f64>,
    /// The same of a huge page of 2 MiB that moved whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page_move_ns: Option<f64>,
    /// Share of the savings predicted by the last plans that came; `None` until a plan was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realised_share: Option<f64>,
    /// What the rates of accesses above rest on; `None` where the snapshot does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_rates: Option<AccessRates>,
}

/// What rates of memory accesses rest on. Shares, by thread, node and group, are samples' in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessRates {
    /// Hardware tells how many accesses each sample stands for.
    Measured,
    /// Derived from samples that do not tell, at an assumed number of instructions a second.
    Inferred,
}

impl AccessRates {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Inferred => "inferred",
        }
    }
}

impl PageGroup {
    /// Node with most of the resident pages; `None` if nothing is resident.
    pub fn home(&self) -> Option<NodeIndex> {
        let (mut home, mut most) = (None, 0);
        for (node, &pages) in self.resident_pages.iter() {
            if pages > most {
                (home, most) = (Some(node), pages);
            }
        }
        home
    }
}

impl Thread {
    /// The node whose memory it accesses most (eq. 3.10 of the Thanos thesis).
    pub fn preferred_node(&self) -> Option<NodeIndex> {
        self.accesses_per_s.as_ref()?.argmax()
    }
}

impl Snapshot {
    /// The thread with this id.
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.binary_search_by_key(&id, |thread| thread.id).ok().map(|at| &self.threads[at])
    }

    /// Whether the memory of `process` may be on `node`.
    pub fn may_use(&self, process: ProcessId, node: NodeIndex) -> bool {
        let allowed = self.process_memory.get(&process).and_then(|memory| memory.allowed.get(node));
        allowed.copied().unwrap_or(true)
    }

    /// The same interval as if the threads of `plan` had already run at their new nodes, and CPUs where it names
    /// those: page groups are accessed from there.
    pub fn after_thread_moves(&self, plan: &Plan) -> Snapshot {
        let nodes = plan.thread_nodes();
        let mut cpus = BTreeMap::new();
        for action in plan.moves.iter().map(|planned| &planned.action) {
            match *action {
                Action::MoveThread { thread, cpu, .. } => {
                    cpus.insert(thread, cpu);
                }
                Action::Interchange { first, second, .. } => {
                    let cpu_of = |id| self.thread(id).map(|thread| thread.cpu);
                    cpus.insert(first, cpu_of(second));
                    cpus.insert(second, cpu_of(first));
                }
                Action::MovePages { .. } => {}
            }
        }
        let mut after = self.clone();
        for group in &mut after.groups {
            for (user, accesses_per_s) in &group.users {
                let (Some(&to), Some(thread)) = (nodes.get(user), self.thread(*user)) else { continue };
                let moved = accesses_per_s.min(group.accesses_per_s[thread.node]);
                group.accesses_per_s[thread.node] -= moved;
                group.accesses_per_s[to] += moved;
            }
        }
        for thread in &mut after.threads {
            if let Some(&to) = nodes.get(&thread.id) {
                thread.node = to;
                thread.cpu = cpus.get(&thread.id).copied().flatten().unwrap_or(thread.cpu);
            }
        }
        after
    }
}
