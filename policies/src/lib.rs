// SPDX-License-Identifier: GPL-2.0-only
//! Placement policies for NUMA machines: pure functions from a [`model::Snapshot`] to a
//! [`model::Plan`]. No I/O, no clock, no thread, no global randomness.

pub mod auto;
pub mod autopin;
pub mod balance;
pub mod capacity;
pub mod cimar;
pub mod compact;
pub mod contiguous;
pub mod cost;
pub mod cra;
pub mod dataset;
pub mod decider;
pub mod direct;
pub mod dyrmma;
pub mod imar2;
pub mod interleave;
pub mod kmaf;
pub mod kmaf_pages;
pub mod lbma;
pub mod lmma;
pub mod locality;
pub mod mapping;
pub mod mix;
pub mod model;
pub mod next_touch;
pub mod nimar;
pub mod opt;
pub mod opt_pages;
pub mod phases;
pub mod registry;
pub mod rmma;
pub mod sam;
pub mod scatter;
pub mod score;
pub mod shares;
pub mod sharing;
pub mod sma;
pub mod stall;
pub mod tandem;
pub mod tmma;

mod anneal;
mod board;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod page_invariants;
mod page_moves;
mod placement;
mod placing;
mod relocation;
mod signals;
mod standing;
#[cfg(test)]
mod testing;
mod users;
