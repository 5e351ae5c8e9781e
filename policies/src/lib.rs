// SPDX-License-Identifier: GPL-2.0-only
//! Placement policies for NUMA machines: pure functions from a [`model::Snapshot`] to a
//! [`model::Plan`]. No I/O, no clock, no thread, no global randomness.
//!
//! What the agent does once an interval, with the default policy and a snapshot of two nodes whose threads all have their memory on
//! the other one:
//!
//! ```
//! use tandem_policies::decider::{Decider, PolicyChoice};
//! use tandem_policies::example;
//!
//! let snapshot = example::crossed();
//! let mut decider = Decider::new(PolicyChoice::of_both("tandem")?);
//! let (seed, steps) = (1, 100_000);
//! let decision = decider.decide(&snapshot, seed, steps);
//! let plan = decision.plan().expect("there is much to gain");
//! for planned in &plan.moves {
//!     println!("{}", planned.in_words(&snapshot.topology));
//! }
//! let gain_ns_per_s: f64 = plan.moves.iter().filter_map(|planned| planned.gain_ns_per_s).sum();
//! assert!(gain_ns_per_s > 0.5e9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each policy's page ([`registry::policies`] lists them) has an example of its own.

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
pub mod example;
pub mod foreign;
pub mod imar2;
pub mod in_step;
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
pub mod stay;
pub mod tandem;
pub mod tmma;

mod anneal;
mod board;
#[cfg(test)]
mod invariants;
mod knee;
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
