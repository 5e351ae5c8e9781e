// SPDX-License-Identifier: GPL-2.0-only
//! Programs of other projects as workloads, and loads of our own on the scheduler alone: a fixed amount of work, timed as
//! a whole, with a proof that it was done.
//!
//! They place nothing themselves, so there is no `oracle` and no `worst` of them. An experiment brings their programs
//! ([`External::needs`]) into the guest; elsewhere they are found by `PATH`.

mod benchmarks;
mod command;
pub mod forks;
mod hpcc;
mod redis;
pub mod redis_clients;
pub mod session;
pub mod wake_ups;

use crate::frame::spec::{Listed, Metric, Size, Values};
use anyhow::{Context, Result};
use std::path::Path;

pub use command::{command, run};
use session::Session;

/// All of them, in the order of lists.
pub const ALL: &[External] = &[
    benchmarks::PERF_NUMA,
    benchmarks::PIPE,
    benchmarks::HACKBENCH,
    benchmarks::STRESS_NG,
    benchmarks::SYSBENCH_THREADS,
    redis::SPEC,
    hpcc::SPEC,
    forks::SPEC,
    wake_ups::SPEC,
];

/// A program of another project as a workload.
pub struct External {
    /// What one types.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// Its sizes.
    pub sizes: &'static [Size],
    /// What it is measured by.
    pub metric: Metric,
    /// What its work is counted in.
    pub work_unit: &'static str,
    /// The programs it starts, by the names under which it starts them.
    pub needs: &'static [&'static str],
    /// Says what to start.
    pub session: fn(&Setting) -> Result<Session>,
}

/// What a session is made for.
pub struct Setting<'a> {
    /// Values of its sizes.
    pub sizes: &'a Values,
    /// CPUs that default sizes are made for.
    pub cpus: u64,
    /// Nodes with such CPUs.
    pub nodes: u64,
    /// Varies random choices, where the program has any that can be seeded.
    pub seed: u64,
    /// An empty folder, removed afterwards.
    pub folder: &'a Path,
}

impl Setting<'_> {
    /// The value of size `name`, 0 meaning `instead`.
    fn or(&self, name: &str, instead: u64) -> u64 {
        match self.sizes.of(name) {
            0 => instead,
            given => given,
        }
    }
}

/// The path of this program, which is its own helper in other processes.
fn own_program() -> Result<String> {
    let path = std::env::current_exe().context("the path of tandem-load is not known")?;
    Ok(path.to_string_lossy().into_owned())
}

impl External {
    /// What is said of it in lists.
    pub fn listed(&self) -> Listed {
        Listed::of_external(self.name, self.summary, self.sizes, self.metric, self.needs)
    }
}
