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

/// The present time on a clock that every Linux system has.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(read, 0, "clock {clock} is readable");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The present time on CLOCK_MONOTONIC, which samples and snapshots are dated by.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of all threads of this process.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of this thread.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}
