// SPDX-License-Identifier: GPL-2.0-only
//! What goes over the interface, in Rust's terms. Nodes are dense indices here as on the BPF side.

use crate::{MAX_NODES, NO_NODE, intf};

/// A thread shall run on a node until its lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Its start on CLOCK_BOOTTIME.
    pub start_boottime_ns: u64,
    /// Index of the node; `None` withdraws what is assigned.
    pub node: Option<u32>,
    /// An assignment never replaces one of a later generation.
    pub generation: u64,
    /// End of the lease on CLOCK_MONOTONIC.
    pub expires_ns: u64,
}

/// What became of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AssignOutcome {
    /// It is in force.
    Applied,
    /// There is no such thread.
    NoTask,
    /// The id belongs to another thread now.
    WrongStart,
    /// The scheduler does not have this thread.
    NotOurs,
    /// A later generation is in force.
    Stale,
    /// The lease was over on arrival.
    Expired,
    /// The lease was longer than allowed.
    LeaseTooLong,
    /// There is no such node, or it has no CPU.
    BadNode,
    /// The thread may not run on that node.
    NodeForbidden,
}

impl AssignOutcome {
    /// All outcomes, in the order of the interface.
    pub const ALL: [Self; intf::tandem_assign_outcome_TANDEM_NR_ASSIGN_OUTCOMES as usize] = [
        Self::Applied,
        Self::NoTask,
        Self::WrongStart,
        Self::NotOurs,
        Self::Stale,
        Self::Expired,
        Self::LeaseTooLong,
        Self::BadNode,
        Self::NodeForbidden,
    ];

    pub(crate) fn from_intf(outcome: u32) -> Option<Self> {
        Self::ALL.get(outcome as usize).copied()
    }

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::NoTask => "no_task",
            Self::WrongStart => "wrong_start",
            Self::NotOurs => "not_ours",
            Self::Stale => "stale",
            Self::Expired => "expired",
            Self::LeaseTooLong => "lease_too_long",
            Self::BadNode => "bad_node",
            Self::NodeForbidden => "node_forbidden",
        }
    }
}

impl From<&Assignment> for intf::tandem_assignment {
    fn from(assignment: &Assignment) -> Self {
        Self {
            tid: assignment.tid,
            node: assignment.node.unwrap_or(u32::from(NO_NODE)),
            start_boottime_ns: assignment.start_boottime_ns,
            generation: assignment.generation,
            expires_ns: assignment.expires_ns,
            outcome: u32::MAX,
            pad: 0,
        }
    }
}

/// One task as the scheduler accounts it. Times are totals since the scheduler knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Thread group id.
    pub process: u32,
    /// Start on CLOCK_BOOTTIME.
    pub start_boottime_ns: u64,
    /// Command name.
    pub command: String,
    /// CPU time by node it ran on.
    pub run_ns: Vec<u64>,
    /// Time spent runnable in queues.
    pub wait_ns: u64,
    /// Times it was put on a CPU.
    pub switches: u64,
    /// Times it ran on another node than before.
    pub node_changes: u64,
    /// The task that mostly wakes it and sleeps then, by id, and how often it did since it is that one.
    pub partner: Option<(u32, u64)>,
    /// Where it is at home.
    pub home: u32,
    /// Its assignment, while the lease runs.
    pub assigned: Option<u32>,
    /// Generation of its last assignment.
    pub generation: u64,
    /// Bit per node on which it may run.
    pub allowed_nodes: u32,
    /// Scheduling weight, 100 at nice 0.
    pub weight: u32,
    /// The CPU it ran on last.
    pub cpu: u32,
    /// A thread of the kernel.
    pub kernel_thread: bool,
}

impl TaskRecord {
    /// Its partner, and how often that one woke it since `before` was read, when it may have had another one.
    pub fn woken_since(&self, before: Option<(u32, u64)>) -> Option<(u32, u64)> {
        let (tid, wakes) = self.partner?;
        let known = before.filter(|known| known.0 == tid && known.1 <= wakes).map_or(0, |known| known.1);
        Some((tid, wakes - known))
    }

    pub(crate) fn from_intf(record: &intf::tandem_task_record, nodes: usize) -> Self {
        let end = record.comm.iter().position(|&byte| byte == 0).unwrap_or(record.comm.len());
        Self {
            tid: record.tid,
            process: record.process,
            start_boottime_ns: record.start_boottime_ns,
            command: String::from_utf8_lossy(&record.comm[..end]).into_owned(),
            run_ns: record.run_ns[..nodes.min(MAX_NODES)].to_vec(),
            wait_ns: record.wait_ns,
            switches: record.switches,
            node_changes: record.node_changes,
            partner: (record.partner != 0).then_some((record.partner, record.partner_wakes)),
            home: record.home,
            assigned: (record.assigned != u32::from(NO_NODE)).then_some(record.assigned),
            generation: record.generation,
            allowed_nodes: record.allowed_nodes,
            weight: record.weight,
            cpu: record.cpu,
            kernel_thread: record.kernel_thread != 0,
        }
    }
}

/// Names of the scheduler's events, in the order of the interface.
const EVENT_NAMES: [&str; intf::tandem_stat_TANDEM_NR_STATS as usize] = [
    "idle_prev",
    "idle_home",
    "idle_remote",
    "waker_cpu",
    "followed",
    "queued",
    "queued_on_cpu",
    "preempted",
    "visit_ended",
    "kthread",
    "home_forbidden",
    "taken_nearby",
    "stolen",
    "rescue_kick",
    "looked_again",
    "rehomed",
    "balanced",
    "relieved",
    "group_made",
    "group_removed",
    "group_no_room",
    "throttled",
    "lease_expired",
    "task_made",
    "task_gone",
    "no_context",
];

/// The scheduler's counters, summed over CPUs, since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    events: [u64; EVENT_NAMES.len()],
    assignments: [u64; AssignOutcome::ALL.len()],
    busy_ns: Vec<u64>,
}

impl Statistics {
    pub(crate) fn sum<'a>(per_cpu: impl Iterator<Item = &'a intf::tandem_stats>, nodes: usize) -> Self {
        let mut sum = Self { busy_ns: vec![0; nodes.min(MAX_NODES)], ..Self::default() };
        for cpu in per_cpu {
            let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            add(&mut sum.events, &cpu.events);
            add(&mut sum.assignments, &cpu.assignments);
            add(&mut sum.busy_ns, &cpu.busy_ns);
        }
        sum
    }

    /// Events with their names.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        EVENT_NAMES.into_iter().zip(self.events.iter().copied())
    }

    /// Tasks that the scheduler was told of.
    pub fn tasks_made(&self) -> u64 {
        self.events[intf::tandem_stat_TANDEM_STAT_TASK_MADE as usize]
    }

    /// Assignments by what became of them.
    pub fn assignments(&self) -> impl Iterator<Item = (AssignOutcome, u64)> + '_ {
        AssignOutcome::ALL.into_iter().zip(self.assignments.iter().copied())
    }

    /// CPU time of all tasks by node.
    pub fn busy_ns(&self) -> &[u64] {
        &self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withdrawing_is_no_node_on_the_wire() {
        let assignment = Assignment { tid: 7, start_boottime_ns: 1, node: None, generation: 3, expires_ns: 9 };
        let wire = intf::tandem_assignment::from(&assignment);
        assert_eq!((wire.tid, wire.node, wire.generation), (7, u32::from(NO_NODE), 3));
        assert_eq!(AssignOutcome::from_intf(wire.outcome), None, "no outcome before BPF wrote one");
    }

    #[test]
    fn statistics_add_up_over_cpus() {
        let mut cpu = intf::tandem_stats {
            events: [0; EVENT_NAMES.len()],
            assignments: [0; AssignOutcome::ALL.len()],
            busy_ns: [0; MAX_NODES],
        };
        cpu.events[intf::tandem_stat_TANDEM_STAT_STOLEN as usize] = 2;
        cpu.assignments[intf::tandem_assign_outcome_TANDEM_ASSIGN_STALE as usize] = 3;
        cpu.busy_ns[1] = 5;
        let sum = Statistics::sum([&cpu, &cpu].into_iter(), 2);
        assert_eq!(sum.events().find(|&(name, _)| name == "stolen"), Some(("stolen", 4)));
        assert!(sum.assignments().any(|stale| stale == (AssignOutcome::Stale, 6)));
        assert_eq!(sum.busy_ns(), [0, 10]);
    }
}
