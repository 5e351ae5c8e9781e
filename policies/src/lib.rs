// SPDX-License-Identifier: GPL-2.0-only
//! Placement policies for NUMA machines: pure functions from a [`model::Snapshot`] to a
//! [`model::Plan`]. No I/O, no clock, no thread, no global randomness.

pub mod cost;
pub mod model;
pub mod registry;
pub mod score;
pub mod sma;
pub mod tmma;

mod anneal;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod testing;
