// SPDX-License-Identifier: GPL-2.0-only
//! Arm's Statistical Profiling Extension (SPE): a trace of sampled operations in a buffer of its own, one per CPU.
//!
//! A record names neither thread nor process: who ran is known from context switches, and when from the timer ticks
//! that both clocks count.

pub mod packet;
pub mod record;
pub mod source;
pub mod timeline;

pub use record::{SpeRecord, TraceLoss, records};
pub use source::SourceCodes;
pub use timeline::{TickClock, Timeline};
