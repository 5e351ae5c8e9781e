// SPDX-License-Identifier: GPL-2.0-only
//! A deterministic model of NUMA machines, for judging policies at sizes that no lab has. Its equations, and what it
//! leaves out, are in docs/machine-model.md.

pub mod arm;
pub mod machine;
pub mod placement;
pub mod rates;
pub mod run;
pub mod scenario;
pub mod sense;
pub mod sim;
pub mod world;

mod autonuma;
mod balance;
mod gather;
mod managed;
mod search;
#[cfg(test)]
mod testing;
