// SPDX-License-Identifier: GPL-2.0-only
//! The agent: sense, decide, act, verify, once an interval.
//!
//! It is never needed for scheduling to go on. Everything it holds is either a lease that runs out, or can be read back
//! from the scheduler; it may be killed at any line.

mod agent;
mod allocator;
mod config;
mod contests;
mod cost;
mod leases;
mod managed;
mod moves;
mod pace;
mod parts;
mod patience;
mod reasons;
mod record;
mod report;
mod rest;
mod status;
mod steps;
mod talk;
#[cfg(test)]
mod testing;
mod trials;
mod verify;

pub use agent::{Agent, Ended, Handover, Order};
pub use allocator::give_back_large_blocks;
pub use config::{AgentConfig, MoverKind};
pub use cost::CostReport;
pub use managed::ManagedSet;
pub use report::{MoverReport, PagesMove, PlanResult, Recent, Report, SamplerReport, ThreadMove};
