// SPDX-License-Identifier: GPL-2.0-only
//! The shapes. Nodes are named by the kernel's ids, rows by node are in the order of [`Status::nodes`]. Times are on
//! CLOCK_MONOTONIC, shares between 0 and 1, CPU use in CPUs.

use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::Maybe;

/// The whole state of a running scx_tandem after an interval.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(top, desc = "state after the last interval")]
pub struct Status {
    #[stat(desc = "version of the program")]
    pub version: String,
    #[stat(desc = "end of the interval [ns on CLOCK_MONOTONIC]")]
    pub time_ns: u64,
    #[stat(desc = "when the scheduler was there [ns on CLOCK_MONOTONIC]")]
    pub loaded_at_ns: u64,
    #[stat(desc = "length of the interval [ns]")]
    pub interval_ns: u64,
    #[stat(desc = "what is done: acting, dry-run or observing")]
    pub mode: String,
    #[stat(desc = "policy that places threads")]
    pub thread_policy: String,
    #[stat(desc = "policy that places pages")]
    pub page_policy: String,
    #[stat(desc = "share of accesses that go to the own node's memory, all managed threads")]
    pub local_share: Maybe<f64>,
    #[stat(desc = "estimated mean latency of an access [ns]")]
    pub latency_ns: Maybe<f64>,
    #[stat(desc = "sampling")]
    pub sampler: SamplerView,
    #[stat(desc = "what was done since the scheduler was there")]
    pub activity: Activity,
    #[stat(desc = "what scx_tandem itself takes")]
    pub agent: AgentView,
    #[stat(desc = "nodes, ascending by id")]
    pub nodes: Vec<NodeView>,
    #[stat(desc = "managed processes, ascending by id")]
    pub processes: Vec<ProcessView>,
    #[stat(desc = "managed threads, ascending by id")]
    pub threads: Vec<ThreadView>,
    #[stat(desc = "the last moves, oldest first")]
    pub moves: Vec<MoveView>,
    #[stat(desc = "the last plans and what they brought, oldest first")]
    pub plans: Vec<PlanView>,
}

/// Sampling.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "sampling")]
pub struct SamplerView {
    #[stat(desc = "name of the sampler")]
    pub name: String,
    #[stat(desc = "what accesses per second rest on: measured, inferred, or empty if not told")]
    pub rates: String,
    #[stat(desc = "CPU time allowed [percent of one CPU]")]
    pub budget_percent: f64,
    #[stat(desc = "CPU time used [percent of one CPU]")]
    pub used_percent: f64,
    #[stat(desc = "managed threads that used a CPU in the interval")]
    pub busy_threads: u64,
    #[stat(desc = "those of them with a signal")]
    pub covered_threads: u64,
    #[stat(desc = "page groups known")]
    pub groups: u64,
    #[stat(desc = "memory that these and the pages in which sharing is looked for take [bytes]")]
    pub group_bytes: u64,
}

/// What scx_tandem itself takes: all its threads, sampling included.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "what scx_tandem itself takes: all its threads, sampling included")]
pub struct AgentView {
    #[stat(desc = "CPU time since the scheduler was there [ns]")]
    pub cpu_ns: u64,
    #[stat(desc = "the same in percent of one CPU")]
    pub cpu_percent: f64,
    #[stat(desc = "CPU time in the last interval [percent of one CPU]")]
    pub interval_cpu_percent: f64,
    #[stat(desc = "most memory that was ever resident [bytes]")]
    pub peak_resident_bytes: Maybe<u64>,
}

/// Counts since the scheduler was there.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "counts since the scheduler was there")]
pub struct Activity {
    #[stat(desc = "intervals")]
    pub intervals: u64,
    #[stat(desc = "threads that are assigned to a node now")]
    pub assigned_threads: u64,
    #[stat(desc = "threads sent to another node")]
    pub thread_moves: u64,
    #[stat(desc = "pages moved")]
    pub moved_pages: u64,
    #[stat(desc = "page groups that wait to be moved")]
    pub queued_groups: u64,
    #[stat(desc = "times that page moves waited for memory pressure to end")]
    pub pressure_pauses: u64,
    #[stat(desc = "times that leases ran out because scx_tandem stood still, and the plan under way was given up")]
    pub lost_leases: u64,
    #[stat(desc = "plans carried out")]
    pub plans: u64,
    #[stat(desc = "plans undone, or something of which was, because they did not pay")]
    pub undone_plans: u64,
    #[stat(desc = "of the latency that the last judged plans should save, the share that they did")]
    pub realised_share: Maybe<f64>,
}

/// A node.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "a node", _om_prefix = "node_", _om_label = "node")]
pub struct NodeView {
    #[stat(desc = "the kernel's id")]
    pub id: u64,
    #[stat(desc = "CPUs online")]
    pub cpus: u64,
    #[stat(desc = "CPUs used by all tasks")]
    pub load_cpus: f64,
    #[stat(desc = "CPUs used by tasks that are not managed")]
    pub unmanaged_cpus: f64,
    #[stat(desc = "managed threads placed here that used a CPU")]
    pub busy_threads: u64,
    #[stat(desc = "installed memory [MiB]")]
    pub memory_mib: u64,
    #[stat(desc = "free memory [MiB]")]
    pub free_mib: u64,
    #[stat(desc = "known resident memory of managed processes [MiB]")]
    pub known_mib: u64,
    #[stat(desc = "accesses per second to this node's memory, by managed threads")]
    pub accesses_per_s: Maybe<f64>,
    #[stat(desc = "share of its threads' accesses that stay on this node")]
    pub local_share: Maybe<f64>,
}

/// A managed process.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "a managed process", _om_prefix = "process_", _om_label = "pid")]
pub struct ProcessView {
    #[stat(desc = "process id")]
    pub pid: u64,
    #[stat(desc = "command name of its first thread")]
    pub command: String,
    #[stat(desc = "managed threads")]
    pub threads: u64,
    #[stat(desc = "CPUs used")]
    pub load_cpus: f64,
    #[stat(desc = "share of accesses that are local")]
    pub local_share: Maybe<f64>,
    #[stat(desc = "known resident memory [pages of 4 KiB]")]
    #[serde(default)]
    pub known_pages: u64,
    #[stat(desc = "known resident memory by node [MiB]")]
    pub known_mib: Vec<u64>,
    #[stat(desc = "known memory that stays because other processes map it too [MiB]")]
    pub shared_mib: u64,
    #[stat(
        desc = "known memory that stays because it is locked, pinned or in use each time, or of a kind that the kernel does not migrate [MiB]"
    )]
    pub pinned_mib: u64,
    #[stat(
        desc = "known memory that stays because the process binds it to nodes, or the kernel refuses to move it to others [MiB]"
    )]
    pub bound_mib: u64,
    #[stat(desc = "known memory that stays because it is in huge pages of hugetlbfs [MiB]")]
    pub hugetlb_mib: u64,
    #[stat(desc = "known memory that stays for a while because it was moved, or moved back, lately [MiB]")]
    pub resting_mib: u64,
    #[stat(desc = "known memory that stays until the machine is not short of memory any more [MiB]")]
    pub waiting_mib: u64,
    #[stat(
        desc = "known memory that stays for long because something else moved it away from where a plan had put it [MiB]"
    )]
    pub contested_mib: u64,
    #[stat(desc = "pages that plans moved since it is managed")]
    pub moved_pages: u64,
    #[stat(desc = "pages that were moved back, as a plan did not pay")]
    pub returned_pages: u64,
    #[stat(desc = "busy threads by node")]
    pub busy_threads: Vec<u64>,
}

/// A managed thread.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "a managed thread", _om_prefix = "thread_", _om_label = "tid")]
pub struct ThreadView {
    #[stat(desc = "thread id")]
    pub tid: u64,
    #[stat(desc = "process id")]
    pub pid: u64,
    #[stat(desc = "command name")]
    pub command: String,
    #[stat(desc = "node it is placed on")]
    pub node: u64,
    #[stat(desc = "CPU it ran on last")]
    pub cpu: u64,
    #[stat(desc = "node whose memory it uses most")]
    pub preferred_node: Maybe<u64>,
    #[stat(desc = "CPUs used")]
    pub load_cpus: f64,
    #[stat(desc = "share of accesses that are local")]
    pub local_share: Maybe<f64>,
    #[stat(desc = "accesses per second by node of the memory; empty if unknown")]
    pub accesses_per_s: Vec<f64>,
    #[stat(desc = "nodes it may run on, by id")]
    pub allowed_nodes: Vec<u64>,
    #[stat(desc = "sharing group: the lowest thread id of those that share memory directly or through others")]
    pub group: Maybe<u64>,
    #[stat(desc = "threads of that group")]
    pub group_threads: u64,
    #[stat(desc = "1: moved, or moved back, so recently that no plan may move it")]
    pub on_cooldown: u64,
    #[stat(desc = "the node that an assignment keeps it on, or has it go to")]
    pub assigned_to: Maybe<u64>,
    #[stat(desc = "when it was moved last [ns on CLOCK_MONOTONIC]")]
    pub moved_at_ns: Maybe<u64>,
    #[stat(desc = "the node that it was on before")]
    pub moved_from: Maybe<u64>,
    #[stat(desc = "the node that it went to")]
    pub moved_to: Maybe<u64>,
    #[stat(desc = "number of the plan that it was moved for, or taken back from")]
    pub moved_generation: Maybe<u64>,
    #[stat(desc = "why it was moved last")]
    pub moved_why: String,
    #[stat(desc = "why its policy leaves it away from the memory that it uses most; empty if that does not tell")]
    pub stays_because: String,
}

/// A move.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "a move of a thread or of pages")]
pub struct MoveView {
    #[stat(desc = "when [ns on CLOCK_MONOTONIC]")]
    pub time_ns: u64,
    #[stat(desc = "process id; null for a thread whose process is not managed any more")]
    pub pid: Maybe<u64>,
    #[stat(desc = "thread id; null if pages were moved")]
    pub tid: Maybe<u64>,
    #[stat(desc = "node before; null for pages")]
    pub from: Maybe<u64>,
    #[stat(desc = "node after")]
    pub to: u64,
    #[stat(desc = "pages moved")]
    pub pages: u64,
    #[stat(desc = "number of the plan that it was made for, or taken back from")]
    pub generation: Maybe<u64>,
    #[stat(desc = "why")]
    pub reason: String,
}

/// What became of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanVerdict {
    /// It is carried out, or watched.
    #[default]
    Trial,
    /// It stayed.
    Kept,
    /// It made things worse and was taken back.
    Undone,
    /// It was given up before it could be judged ([`Superseding`] says why): it stays until the next plan, and nobody knows
    /// what it brought.
    Superseded,
}

/// Why a plan was given up before it was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Superseding {
    /// Threads turned to other memory.
    Turned,
    /// Memory pressure held its pages up.
    MemoryPressure,
    /// Its pages took too long to move.
    TookLong,
    /// Leases ran out.
    LeasesRanOut,
    /// Processes whose pages were to move ended, ran other programs, or were not managed any more.
    ProcessesGone,
    /// The agent began anew: other settings, or another machine by hotplug.
    BeganAnew,
}

impl Superseding {
    /// In words, as [`PlanView::superseded_because`] has it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Turned => "threads turned to other memory before it was judged",
            Self::MemoryPressure => "memory pressure held its pages up",
            Self::TookLong => "its pages took long to move, so that what was left of them was planned anew",
            Self::LeasesRanOut => "leases ran out before it was judged",
            Self::ProcessesGone => {
                "processes whose pages were to move ended or ran other programs before it was judged"
            }
            Self::BeganAnew => {
                "scx_tandem began anew, for other settings or as CPUs or memory came or went, before it was judged"
            }
        }
    }
}

impl PlanVerdict {
    /// In a word, as [`PlanView::verdict`] has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trial => "trial",
            Self::Kept => "kept",
            Self::Undone => "undone",
            Self::Superseded => "superseded",
        }
    }
}

/// A plan and what it brought.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "a plan and what it brought")]
pub struct PlanView {
    #[stat(desc = "when it was decided [ns on CLOCK_MONOTONIC]")]
    pub time_ns: u64,
    #[stat(desc = "its number, ascending")]
    pub generation: u64,
    #[stat(desc = "moves of threads and page groups in it")]
    pub moves: u64,
    #[stat(desc = "stall it should save, as far as threads can really wait [ns per s]")]
    pub predicted_gain_ns_per_s: Maybe<f64>,
    #[stat(
        desc = "stall it saved, by the latency that an access would have without it and has, and the accesses then [ns per s]; null as below"
    )]
    pub measured_gain_ns_per_s: Maybe<f64>,
    #[stat(desc = "estimated mean latency of an access before [ns]")]
    pub before_ns: Maybe<f64>,
    #[stat(desc = "what it should be after the plan [ns]")]
    pub expected_ns: Maybe<f64>,
    #[stat(desc = "and what it was [ns]; null while the plan is on trial, and if it was superseded")]
    pub after_ns: Maybe<f64>,
    #[stat(desc = "what it would have been then without the plan [ns]; null as above")]
    pub without_ns: Maybe<f64>,
    #[stat(desc = "share of accesses that went to other nodes' memory before")]
    pub remote_before: Maybe<f64>,
    #[stat(desc = "what it should be after the plan")]
    pub remote_expected: Maybe<f64>,
    #[stat(desc = "and what it was; null as above")]
    pub remote_after: Maybe<f64>,
    #[stat(desc = "what became of it: trial, kept, undone, or superseded (given up before it was judged)")]
    pub verdict: String,
    #[stat(desc = "why it was superseded; empty if it was not")]
    pub superseded_because: String,
    #[stat(desc = "ids of processes of which what it changed was taken back alone, as it slowed them down")]
    pub undone_of: Vec<u64>,
}
