// SPDX-License-Identifier: GPL-2.0-only
//! The command line of external programs, and their line of JSON: that of the other workloads, with `null` and empty
//! lists for what only a workload of our own knows.

use crate::affinity::Affinity;
use crate::external::{External, Setting, session};
use crate::frame::command::{option, size_options, values};
use crate::frame::spec::Metric;
use crate::topology::{NodeId, Topology};
use anyhow::{Context, Result};
use clap::{ArgMatches, Command, value_parser};
use serde::Serialize;
use std::io::Write;

/// A run's result.
#[derive(Serialize)]
struct Report<'a> {
    workload: &'a str,
    placement: &'a str,
    seed: u64,
    metric: Metric,
    unit: &'a str,
    better: &'a str,
    value: f64,
    seconds: f64,
    work: u64,
    work_unit: &'a str,
    check: &'a str,
    node_ids: Vec<NodeId>,
    pages_per_node: [u64; 0],
    threads_per_node: [u64; 0],
    thread_moves: Option<u64>,
    run_delay_ns: [u64; 0],
}

/// The subcommand of an external program.
pub fn command(external: &External) -> Command {
    let command = Command::new(external.name)
        .about(external.summary)
        .after_help(format!("Starts {}, found by PATH. It places nothing itself.", external.needs.join(", ")))
        .arg(option("placement", "none: it places nothing itself", "none").value_parser(["none"]))
        .arg(
            option("seed", "varies random choices, where the program has any", "0")
                .value_parser(value_parser!(u64).range(..1 << 32)),
        );
    size_options(command, external.sizes)
}

/// Runs it to its end and prints what it gave.
pub fn run(external: &External, matches: &ArgMatches) -> Result<()> {
    let sizes = values(external.sizes, matches);
    let topology = Topology::read()?.restricted_to(&Affinity::of_this_thread()?.cpus());
    let seed = *matches.get_one::<u64>("seed").expect("it has a default");
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let setting = Setting {
        sizes: &sizes,
        cpus: topology.cpu_count() as u64,
        nodes: topology.nodes_with_cpus().len() as u64,
        seed,
        folder: folder.path(),
    };
    let outcome = session::run(&(external.session)(&setting)?, folder.path())?;
    let report = Report {
        workload: external.name,
        placement: "none",
        seed,
        metric: external.metric,
        unit: external.metric.unit(),
        better: external.metric.better(),
        value: outcome.value,
        seconds: outcome.seconds,
        work: outcome.work,
        work_unit: external.work_unit,
        check: "ok",
        node_ids: topology.nodes(),
        pages_per_node: [],
        threads_per_node: [],
        thread_moves: None,
        run_delay_ns: [],
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?).context("cannot print the report")
}
