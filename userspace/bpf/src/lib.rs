// SPDX-License-Identifier: GPL-2.0-only
//! The BPF side as Rust sees it: the object and its skeleton, the constants and records of
//! `bpf/intf.h`, and a handle on a scheduler that is loaded.
//!
//! A loaded scheduler lives in the BPF file system, not in the process that loaded it. Loading
//! pins everything; working with it always goes through the pins, whether this process loaded
//! it or one before it.

mod counters;
mod handle;
mod loans;
mod pins;
mod records;
mod regions;
mod sampled;

#[allow(missing_docs, dead_code, non_camel_case_types, non_upper_case_globals, non_snake_case, clippy::all)]
mod intf {
    include!(concat!(env!("OUT_DIR"), "/intf.rs"));
}

/// The skeleton that libbpf-cargo makes of the object.
#[allow(missing_docs, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/tandem_skel.rs"));
}

/// What the object asks of the kernel: names of `enum scx_ops_flags`, whose values are those of the running kernel.
///
/// Wake-ups are passed on to idle CPUs, so that what they write need not travel. A thread that is still leaving its CPU is then
/// enqueued without a CPU having been selected for it.
pub const FLAGS: [&str; 4] =
    ["SCX_OPS_ENQ_LAST", "SCX_OPS_KEEP_BUILTIN_IDLE", "SCX_OPS_BUILTIN_IDLE_PER_NODE", "SCX_OPS_ALLOW_QUEUED_WAKEUP"];

/// As [`skeleton`], of what counts events by thread.
#[allow(missing_docs, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
mod counters_skeleton {
    include!(concat!(env!("OUT_DIR"), "/counters_skel.rs"));
}

/// As [`skeleton`], of what filters samples.
#[allow(missing_docs, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
mod sampled_skeleton {
    include!(concat!(env!("OUT_DIR"), "/sampled_skel.rs"));
}

/// As [`skeleton`], of what looks at regions.
#[allow(missing_docs, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
mod regions_skeleton {
    include!(concat!(env!("OUT_DIR"), "/regions_skel.rs"));
}

pub use counters::{Counters, EventCount, ThreadCharges};
pub use handle::{Error, Identity, Scheduler};
pub use loans::{Lending, Loans, Purpose, rounds_of_a_scan};
pub use pins::Pins;
pub use records::{AssignOutcome, Assignment, Statistics, TaskRecord};
pub use regions::{RegionPolicies, RegionPolicy};
pub use sampled::SampleFilter;

/// Nodes that the BPF side has room for.
pub const MAX_NODES: usize = intf::tandem_consts_TANDEM_MAX_NODES as usize;
/// CPU numbers that the BPF side has room for.
pub const MAX_CPUS: usize = intf::tandem_consts_TANDEM_MAX_CPUS as usize;
/// Assignments that go in one batch.
pub const MAX_BATCH: usize = intf::tandem_consts_TANDEM_MAX_BATCH as usize;
/// Queues shared by CPUs that the BPF side has room for.
pub const MAX_QUEUES: usize = intf::tandem_consts_TANDEM_MAX_QUEUES as usize;
/// Events that can be counted for each thread.
pub const MAX_EVENTS: usize = intf::tandem_consts_TANDEM_MAX_EVENTS as usize;
/// In place of a queue: none.
pub const NO_QUEUE: u8 = intf::tandem_consts_TANDEM_NO_QUEUE as u8;
/// In place of a node: none.
pub const NO_NODE: u8 = intf::tandem_consts_TANDEM_NO_NODE as u8;

/// Hash of the BPF object in this binary. Objects with the same hash understand each other.
pub fn object_hash() -> u64 {
    env!("TANDEM_OBJECT_HASH").parse().expect("the build script writes a number")
}
