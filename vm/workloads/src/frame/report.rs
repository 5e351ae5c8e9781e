// SPDX-License-Identifier: GPL-2.0-only
//! The last line of standard output: what a run gave, as JSON. The same for programs of other projects, with `null` and
//! empty lists for what only a workload of our own knows.

use crate::external::{External, session};
use crate::frame::plan::Placement;
use crate::frame::run::Outcome;
use crate::frame::spec::{Metric, Spec};
use crate::topology::{NodeId, Topology};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Write;

/// A run's result.
#[derive(Serialize)]
pub struct Report<'a> {
    workload: &'a str,
    placement: Placement,
    seed: u64,
    threads: Option<usize>,
    metric: Metric,
    unit: &'a str,
    better: &'a str,
    value: f64,
    /// Length of the timed part.
    seconds: f64,
    work: u64,
    work_unit: &'a str,
    /// In the timed part.
    work_per_s: f64,
    check: &'a str,
    p99_ns: Option<u64>,
    /// Online nodes.
    node_ids: Vec<NodeId>,
    /// In the order of `node_ids`.
    pages_per_node: Vec<u64>,
    /// Threads by the node each was on when its work ended, in the order of `node_ids`.
    threads_per_node: Vec<u64>,
    /// Node changes seen between two looks at the CPU (every 4096 visits, or at every meeting of the threads).
    thread_moves: Option<u64>,
    /// Of each thread; `null` where the kernel does not count it.
    run_delay_ns: Vec<Option<u64>>,
}

impl<'a> Report<'a> {
    /// The report of a run whose check was passed.
    pub fn new(
        spec: &'a Spec,
        placement: Placement,
        seed: u64,
        outcome: &Outcome,
        topology: &Topology,
    ) -> Result<Self> {
        let threads: Vec<_> = outcome.ended.iter().flat_map(|ended| &ended.threads).collect();
        let p99_ns = outcome.ended.iter().filter_map(|ended| ended.p99_ns).max();
        let node_ids = topology.nodes();
        let on = |node: &NodeId| threads.iter().filter(|notes| notes.node == Some(*node)).count() as u64;
        let work = threads.iter().map(|notes| notes.work).sum();
        Ok(Self {
            workload: spec.name,
            placement,
            seed,
            threads: Some(threads.len()),
            metric: spec.metric,
            unit: spec.metric.unit(),
            better: spec.metric.better(),
            value: match spec.metric {
                Metric::Seconds => outcome.seconds,
                Metric::AccumulatedSeconds => outcome.accumulated_seconds,
                Metric::P99Ns => p99_ns.context("the workload noted no request")? as f64,
                Metric::TriadGbPerS => bail!("no workload of ours is measured by STREAM's triad"),
            },
            seconds: outcome.seconds,
            work,
            work_unit: spec.work_unit,
            work_per_s: work as f64 / outcome.seconds,
            check: "ok",
            p99_ns,
            pages_per_node: node_ids.iter().map(|node| outcome.pages.get(node).copied().unwrap_or(0)).collect(),
            threads_per_node: node_ids.iter().map(on).collect(),
            thread_moves: Some(threads.iter().map(|notes| notes.moves).sum()),
            run_delay_ns: threads.iter().map(|notes| notes.run_delay_ns).collect(),
            node_ids,
        })
    }

    /// The report of a program of another project that proved its work.
    pub fn of_external(external: &'a External, seed: u64, outcome: &session::Outcome, topology: &Topology) -> Self {
        Self {
            workload: external.name,
            placement: Placement::None,
            seed,
            threads: None,
            metric: external.metric,
            unit: external.metric.unit(),
            better: external.metric.better(),
            value: outcome.value,
            seconds: outcome.seconds,
            work: outcome.work,
            work_unit: external.work_unit,
            work_per_s: outcome.work as f64 / outcome.seconds,
            check: "ok",
            p99_ns: outcome.p99_ns,
            node_ids: topology.nodes(),
            pages_per_node: Vec::new(),
            threads_per_node: Vec::new(),
            thread_moves: None,
            run_delay_ns: Vec::new(),
        }
    }

    /// Prints it.
    pub fn print(&self) -> Result<()> {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(self)?).context("cannot print the report")
    }
}
