// SPDX-License-Identifier: GPL-2.0-only
//! `tandem map`: which node each thread should run on, from what the threads share and how far nodes are apart.

mod graph;
mod pace;
mod scotch;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tandem_machine::read_running;
use tandem_policies::mapping::qap::Qap;
use tandem_policies::mapping::{Mapping, Method, Request, Search};
use tandem_policies::model::Topology;

use crate::machines;
use graph::Format;
use scotch::Opinion;

/// What to map, where to, and for how long.
#[derive(Args)]
pub struct Arguments {
    /// What threads share; see --format
    #[arg(long, value_name = "FILE", required_unless_present = "qap")]
    graph: Option<PathBuf>,
    /// Form of the graph; by default what the file's name ends with (.json, .csv, .graph or .metis), else edges
    #[arg(long, requires = "graph", conflicts_with = "qap")]
    format: Option<Format>,
    /// Map to the nodes of this machine, a name of those shipped or a machine file, instead of the running one
    #[arg(long, value_name = "NAME|FILE", requires = "graph", conflicts_with = "qap")]
    machine: Option<PathBuf>,
    /// What a pair of threads pays by its weight: distance (less 10, the local one) or latency (less the local one)
    #[arg(long, value_enum, default_value_t = Price::Distance, conflicts_with = "qap")]
    cost: Price,
    /// Solve a quadratic assignment problem in QAPLIB's format instead
    #[arg(long, value_name = "FILE", conflicts_with = "graph")]
    qap: Option<PathBuf>,
    /// Search for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, conflicts_with_all = ["steps", "time_limit"])]
    time: f64,
    /// Search for so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000), conflicts_with = "steps")]
    time_limit: Option<u64>,
    /// Search for so many steps, however long that takes: the steps of an earlier answer and its seed repeat it exactly
    #[arg(long)]
    steps: Option<u64>,
    /// Of random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ask another mapper, too, and print what it says
    #[arg(long, value_enum, conflicts_with = "qap")]
    with: Option<Rival>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Another mapper.
#[derive(Clone, Copy, ValueEnum)]
enum Rival {
    /// Scotch's program gmap (Debian's package scotch)
    Scotch,
}

/// What distance between nodes means.
#[derive(Clone, Copy, ValueEnum)]
enum Price {
    Distance,
    Latency,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.001..=3600.0).contains(value));
    value.ok_or_else(|| "give a number of seconds from 0.001 to 3600".to_owned())
}

/// The answer in JSON.
#[derive(Serialize)]
struct Answer<'a> {
    /// Index of the node (or of B's row) by thread (or row of A).
    assignment: &'a [usize],
    /// Kernel id of each node; absent for a quadratic assignment problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_ids: Option<&'a [u32]>,
    cost: f64,
    bound: f64,
    optimal: bool,
    method: Method,
    steps: u64,
    seed: u64,
    time_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    scotch: Option<&'a Opinion>,
}

/// Prints a mapping.
///
/// # Errors
/// A file cannot be read or says something wrong.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let limit = arguments.time_limit.map_or(Duration::from_secs_f64(arguments.time), Duration::from_millis);
    let (mut search, node_ids, request) = match (&arguments.qap, &arguments.graph) {
        (Some(path), _) => (quadratic(path)?.search(arguments.seed), None, None),
        (None, Some(path)) => {
            let topology = topology(arguments.machine.as_deref())?;
            let request = request(graph::read(path, arguments.format)?, &topology, arguments.cost);
            let search = Search::new(&request, arguments.seed).with_context(|| path.display().to_string())?;
            let node_ids: Vec<u32> = topology.nodes.values().map(|node| node.id.0).collect();
            (search, Some(node_ids), Some(request))
        }
        (None, None) => bail!("give --graph FILE or --qap FILE"),
    };
    let time = pace::run(&mut search, arguments.steps, start, limit);
    let mapping = search.best();
    let scotch = match (arguments.with, &request) {
        (Some(Rival::Scotch), Some(request)) => Some(scotch::ask(request)?),
        _ => None,
    };
    let text = if arguments.json {
        let answer = Answer {
            assignment: &mapping.places,
            node_ids: node_ids.as_deref(),
            cost: mapping.cost,
            bound: mapping.bound,
            optimal: mapping.optimal,
            method: mapping.method,
            steps: mapping.steps,
            seed: arguments.seed,
            time_ms: time.as_secs_f64() * 1e3,
            scotch: scotch.as_ref(),
        };
        serde_json::to_string_pretty(&answer)? + "\n"
    } else {
        let mut text = table(&mapping, node_ids.as_deref(), time)?;
        if let Some(Opinion { cost, moved, time_ms, .. }) = scotch {
            writeln!(text, "cost {cost} by Scotch in {time_ms:.1} ms, {moved} threads moved to keep capacities")?;
        }
        text
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

fn quadratic(path: &Path) -> Result<Qap> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Qap::parse(&text).with_context(|| path.display().to_string())
}

fn topology(machine: Option<&Path>) -> Result<Topology> {
    match machine {
        Some(asked) => Ok(machines::load(asked)?.topology()?),
        None => Ok(read_running()?.topology),
    }
}

/// One thread to a CPU; what two threads of one node pay is nothing.
fn request(graph: graph::Graph, topology: &Topology, price: Price) -> Request {
    let nodes: Vec<_> = topology.nodes.values().collect();
    let distance = |from: usize, to: usize| match price {
        Price::Distance => f64::from(nodes[from].distance.values().nth(to).copied().unwrap_or_default()) - 10.0,
        Price::Latency => {
            let latency = |from: usize, to: usize| nodes[from].latency_ns.values().nth(to).copied().unwrap_or_default();
            latency(from, to) - (latency(from, from) + latency(to, to)) / 2.0
        }
    };
    Request {
        threads: graph.threads,
        weights: graph.weights,
        capacities: nodes.iter().map(|node| node.cpus.len()).collect(),
        distances: (0..nodes.len()).map(|from| (0..nodes.len()).map(|to| distance(from, to)).collect()).collect(),
        ..Request::default()
    }
}

/// One line a node (or the permutation), then what it costs.
fn table(mapping: &Mapping, node_ids: Option<&[u32]>, time: Duration) -> Result<String> {
    let mut text = String::new();
    match node_ids {
        Some(ids) => {
            writeln!(text, "node  threads")?;
            for (index, id) in ids.iter().enumerate() {
                let here = (0..mapping.places.len() as u32).filter(|&thread| mapping.places[thread as usize] == index);
                let here: Vec<u32> = here.collect();
                let list = if here.is_empty() { "-".to_owned() } else { tandem_machine::format_cpu_list(&here) };
                writeln!(text, "{id:>4}  {list}")?;
            }
        }
        None => {
            let one_based: Vec<String> = mapping.places.iter().map(|place| (place + 1).to_string()).collect();
            writeln!(text, "permutation (from 1)  {}", one_based.join(" "))?;
        }
    }
    let Mapping { cost, bound, method, steps, .. } = mapping;
    let known = if mapping.optimal { "the optimum".to_owned() } else { format!("no mapping costs less than {bound}") };
    writeln!(text, "\ncost {cost} ({known}), by {method}, {steps} steps in {:.1} ms", time.as_secs_f64() * 1e3)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_none_are_refused() {
        for text in ["0", "-1", "NaN", "inf", "x", "3601"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
    }

    #[test]
    fn an_empty_node_is_a_dash() {
        let (places, method) = (vec![1, 1], Method::Exact);
        let mapping = Mapping { places, cost: 0.0, bound: 0.0, optimal: true, method, steps: 1 };
        let text = table(&mapping, Some(&[0, 5]), Duration::from_millis(1)).unwrap();
        assert!(text.starts_with("node  threads\n   0  -\n   5  0-1\n\ncost 0 (the optimum)"), "{text}");
    }
}
