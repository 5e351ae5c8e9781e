// SPDX-License-Identifier: GPL-2.0-only
//! Who touches what: samplers, the affinity table, page homes, and the [`Snapshot`] made of them.
//!
//! [`Sensor`] ties them together. Memory contents of sampled processes never leave the emulator.
//!
//! [`Snapshot`]: tandem_policies::model::Snapshot

mod access;
pub mod affinity;
pub mod counting;
pub mod device;
pub mod doctor;
pub mod fault;
pub mod folios;
pub mod frames;
mod fresh_pages;
pub mod homes;
mod known_homes;
mod load;
pub mod lookahead;
mod mapping;
mod measures;
mod page_access;
pub mod performance;
pub mod pmu;
pub mod rate;
pub mod regions;
pub mod samplers;
mod sensor;
mod sharing;
mod snapshot;
mod source;
mod split;
#[cfg(test)]
mod testing;
mod thread_numbers;
mod thread_policies;
mod touches;
mod turning;

pub use access::{Access, Batch, Counts, LineCounts, Measured, Sampler, SamplerTraits, Window};
pub use affinity::AffinityConfig;
pub use device::{Device, DeviceConfig, DeviceCounters, DeviceError};
pub use doctor::cpu_model;
pub use fault::{Fault, FaultConfig, FaultCounters, FaultError};
pub use lookahead::{Lookahead, LookaheadConfig, LookaheadCounters, LookaheadError, StopReason};
pub use samplers::{SamplerChoice, SamplerCounters, SamplerError, SamplerKind};
pub use sensor::{Sensor, SensorConfig, SensorCounters};
pub use snapshot::TaskAccount;
pub use source::{DataSource, Level, Snoop};
pub use tandem_machine::{monotonic_ns, process_cpu_ns, thread_cpu_ns};

/// Addresses from here on are the kernel's, on all supported machines.
pub(crate) const KERNEL_ADDRESSES: u64 = 1 << 63;
