// SPDX-License-Identifier: GPL-2.0-only
//! Memory accesses from the performance monitoring unit (PMU): address, latency and what answered.
//!
//! Three kinds of hardware sample accesses: Intel's load latency facility (PEBS), AMD's instruction-based sampling (IBS)
//! and Arm's Statistical Profiling Extension (SPE). [`detect`](detect()) says which a system has, or why none can be
//! used; [`plan`] which events to open; [`Pmu`] opens and drains them. What comes out of the kernel is decoded by pure
//! functions that take any bytes: [`ring`], [`record`], [`data_source`], [`ibs`], [`spe`].
//!
//! [`counters`](detect::counters) says what can be counted per thread, by the table of CPU models in data/.

pub mod clock;
mod counters;
pub mod data_source;
pub mod detect;
pub(crate) mod event;
pub mod ibs;
mod intake;
pub mod model;
mod pace;
pub mod plan;
pub mod record;
pub mod ring;
mod sampler;
pub mod spe;
pub mod sysfs;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use counters::PmuCounters;
pub use detect::{Available, Hardware, Unavailable, detect};
pub use event::{Attributes, Sampling};
pub use plan::PmuConfig;
pub use sampler::{Pmu, PmuError, TRAITS};
