// SPDX-License-Identifier: GPL-2.0-only
//! The one shape of what samplers see.

use std::collections::BTreeSet;

use serde::Serialize;
use tandem_policies::model::{CpuId, MemoryLines, NodeId, ProcessId, ThreadId, Transfers};

use crate::samplers::{SamplerCounters, SamplerError};
use crate::source::DataSource;

/// One memory access of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its process.
    pub process: ProcessId,
    /// The thread, in the initial pid namespace.
    pub tid: u32,
    /// Virtual address.
    pub address: u64,
    /// Bytes.
    pub bytes: u16,
    /// A store; else a load, or not told by the sampler (`fault`).
    pub store: bool,
    /// When the thread was sampled, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Where it ran then.
    pub cpu: CpuId,
    /// What hardware measured; `None` from samplers that only know addresses.
    pub measured: Option<Measured>,
}

/// What hardware tells of an access beyond its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// From issue to data. `None` for stores on most machines, and where the core's frequency is not known.
    pub latency_ns: Option<u32>,
    /// What answered.
    pub source: DataSource,
    /// The node whose memory the address belongs to, where the hardware tells.
    pub node: Option<NodeId>,
    /// Physical address, where the hardware and our rights give it.
    pub physical: Option<u64>,
    /// Events of the sampled kind that this sample stands for: the sampling period then. Not accesses to memory:
    /// see the sampler's coverage.
    pub period: u64,
}

/// A stretch of code that was looked at, whether or not it accessed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its process.
    pub process: ProcessId,
    /// The thread.
    pub tid: u32,
    /// When it was sampled, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Instructions it covers.
    pub instructions: u32,
}

/// What hardware counted of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    /// Its process.
    pub process: ProcessId,
    /// The thread.
    pub tid: u32,
    /// Instructions retired.
    pub instructions: u64,
    /// Floating-point operations; 0 where they are not counted.
    pub flops: u64,
    /// Cycles in which its CPU did not halt.
    pub cycles: u64,
    /// Lines from other cores' caches; `None` where they are not counted.
    pub transfers: Option<Transfers>,
    /// Lines from memory, as far as they are counted.
    pub memory: MemoryLines,
}

/// Lines that missed the second-level cache, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineCounts {
    /// All of them.
    pub l2_misses: u64,
    /// From the last-level cache.
    pub l3_hits: u64,
    /// From main memory, or modified from another node's caches.
    pub l3_misses: u64,
    /// From another node's memory.
    pub remote_memory: u64,
    /// Modified, from another node's caches.
    pub remote_modified: u64,
}

impl LineCounts {
    /// Modified lines from other cores: of the node, what neither the last-level cache nor anything beyond it gave (SAM's
    /// intra-socket coherence); and of other nodes.
    pub fn transfers(&self) -> Transfers {
        let within_node = self.l2_misses.saturating_sub(self.l3_hits + self.l3_misses);
        Transfers { within_node: within_node as f64, across_nodes: self.remote_modified as f64 }
    }

    /// Lines from memory: what the last-level cache missed and no other node's cache had.
    pub fn memory(&self) -> MemoryLines {
        let all = self.l3_misses.saturating_sub(self.remote_modified);
        MemoryLines { all: Some(all as f64), remote: Some(self.remote_memory as f64) }
    }
}

/// What a sampler saw since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The accesses, sample by sample.
    pub accesses: Vec<Access>,
    /// The stretches of code they were found in.
    pub windows: Vec<Window>,
    /// Counts since the last batch; none from samplers that do not count.
    pub counts: Vec<Counts>,
}

/// What a sampler says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SamplerTraits {
    /// Its name on the command line.
    pub name: &'static str,
    /// Which accesses it can see.
    pub coverage: &'static str,
    /// Which of them it sees too often or too rarely.
    pub bias: &'static str,
    /// What it costs.
    pub cost: &'static str,
}

/// A source of accesses.
pub trait Sampler {
    /// Coverage, bias and cost.
    fn traits(&self) -> SamplerTraits;

    /// The processes whose threads are sampled; what others do is dropped.
    fn set_managed(&mut self, managed: &BTreeSet<ProcessId>);

    /// What was seen since the last call. `now_ns` is CLOCK_MONOTONIC. Call often (every 10 to 50 ms): the
    /// memory behind a sample is read then.
    ///
    /// # Errors
    /// When the sampler cannot go on; a process that exits is not an error.
    fn drain(&mut self, now_ns: u64) -> Result<Batch, SamplerError>;

    /// Takes this share of its budget from now on. What has none, as hardware that samples, goes on.
    fn take_share(&mut self, _of_budget: f64) {}

    /// Processes that have ended or run another program since, and their threads: what is known of their memory is not true any more.
    fn forget(&mut self, _gone: &BTreeSet<ProcessId>, _threads: &BTreeSet<ThreadId>) {}

    /// What it did so far.
    fn counters(&self) -> SamplerCounters;

    /// Its accesses are page faults: each says that somebody uses a page, none how often. Sharing is read from their frames
    /// then ([`crate::frames`]), and how many accesses a thread makes is inferred.
    fn sees_faults(&self) -> bool {
        false
    }
}
