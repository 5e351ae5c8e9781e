// SPDX-License-Identifier: GPL-2.0-only
//! The model that every policy shares: what was seen ([`Snapshot`]) on which machine
//! ([`Topology`]), and what is to be done about it ([`Plan`]).
//!
//! Units are in the names: `_ns` nanoseconds, `_per_s` per second, `_pages` base pages of
//! [`PAGE_BYTES`]. A signal that a sampler cannot give is `None`, never zero. Everything is
//! ordered (by id), so that one snapshot and one seed give one plan.

mod ids;
mod near_groups;
mod plan;
mod snapshot;
mod topology;

pub use ids::{CpuId, GroupId, NodeId, NodeIndex, PerNode, ProcessId, ThreadId};
pub use plan::{Action, Move, Plan};
pub use snapshot::{
    AccessRates, GroupUsers, MemoryLines, NodeLoad, PageGroup, ProcessMemory, Snapshot, Thread, Transfers, Unmovable,
};
pub use topology::{FULL_CAPACITY, LatencySource, Node, Topology, TopologyError};

/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 4096;
