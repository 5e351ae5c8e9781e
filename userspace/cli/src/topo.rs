// SPDX-License-Identifier: GPL-2.0-only
//! `tandem topo`: what the machine is made of.

pub mod measure;
pub mod memory;
mod picture;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tandem_machine::{MachineFile, format_cpu_list, read_running};
use tandem_policies::model::{CpuId, FULL_CAPACITY, LatencySource, Node, NodeId, NodeIndex, PAGE_BYTES, Topology};

use crate::machines;
use measure::Measured;

/// What to show, and how.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["emit", "svg"])]
    json: bool,
    /// Print a picture (SVG) of the nodes and of what is between them
    #[arg(long, conflicts_with = "emit")]
    svg: bool,
    /// Show this machine, a name of those shipped or a machine file, instead of the running one
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<PathBuf>,
    /// Measure latency and bandwidth between all nodes, too; wants an idle machine
    #[arg(long, conflicts_with = "machine")]
    measure: bool,
    /// Length of each single measurement, of which there are two for each pair of nodes [ms]
    #[arg(long, value_name = "MS", default_value_t = 200, requires = "measure", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    measure_ms: u64,
    /// Print the machine file in another form; `lab` is key=value lines for vm/lab.py
    #[arg(long, requires = "machine")]
    emit: Option<Form>,
}

/// Forms of a machine file for other programs.
#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Lab,
}

/// A value for each pair of nodes; none where a node has no CPU or no memory.
struct Matrix {
    title: &'static str,
    rows: Vec<Vec<Option<f64>>>,
}

/// The JSON form: the topology, and what was derived or assumed.
#[derive(Serialize)]
struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    topology: Topology,
    /// Nodes that are nearer to each other than to all others; empty if latencies tell no such groups.
    near_nodes: Vec<Vec<NodeId>>,
    cores: Vec<Vec<CpuId>>,
    offline_cpus: Vec<CpuId>,
    notes: Vec<String>,
    /// Given by a machine file.
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_mb_s: Option<Vec<Vec<f64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// Prints the machine.
///
/// # Errors
/// The machine file or the running machine cannot be read.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = match (&arguments.machine, arguments.emit) {
        (Some(asked), Some(Form::Lab)) => lab_form(&machines::load(asked)?)?,
        (Some(asked), None) => show(from_file(machines::load(asked)?)?, arguments)?,
        (None, _) => show(running(arguments)?, arguments)?,
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

fn show(shown: Shown, arguments: &Arguments) -> Result<String> {
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&shown)? + "\n");
    }
    if !arguments.svg {
        return Ok(table(&shown));
    }
    let name = shown.name.as_deref().unwrap_or("this machine");
    Ok(picture::picture(name, &shown.topology, &matrices(&shown)))
}

/// What is known between nodes besides distances.
fn matrices(shown: &Shown) -> Vec<Matrix> {
    let mut all = Vec::new();
    let known = |rows: &[Vec<f64>]| rows.iter().map(|row| row.iter().copied().map(Some).collect()).collect();
    if let Some(measured) = &shown.measured {
        all.push(Matrix { title: "measured latency of a load [ns]", rows: measured.latency_ns.clone() });
        all.push(Matrix { title: "measured bandwidth [MB/s]", rows: measured.bandwidth_mb_s.clone() });
        return all;
    }
    // Latencies that were derived from distances are no news.
    if shown.topology.latency_source != LatencySource::Distance {
        let rows: Vec<Vec<f64>> =
            shown.topology.nodes.values().map(|node| node.latency_ns.values().copied().collect()).collect();
        all.push(Matrix { title: "latency of a load [ns]", rows: known(&rows) });
    }
    all.extend(shown.bandwidth_mb_s.as_ref().map(|rows| Matrix { title: "bandwidth [MB/s]", rows: known(rows) }));
    all
}

fn running(arguments: &Arguments) -> Result<Shown> {
    let machine = read_running()?;
    let measured = arguments
        .measure
        .then(|| measure::measure(&machine, Duration::from_millis(arguments.measure_ms)))
        .transpose()?;
    let mut notes = machine.assumed;
    if let Some(measured) = &measured {
        notes.push(format!("measured on {} MiB of each node's memory", measured.buffer_bytes >> 20));
        if !measured.huge_pages {
            notes.push("it was not in huge pages: measured latencies include walks of page tables".to_owned());
        }
    }
    Ok(Shown {
        name: None,
        near_nodes: near_nodes(&machine.topology),
        topology: machine.topology,
        cores: machine.cores,
        offline_cpus: machine.offline_cpus,
        notes,
        bandwidth_mb_s: None,
        measured,
    })
}

fn from_file(machine: MachineFile) -> Result<Shown> {
    let threads = machine.threads_per_core as usize;
    let cores = machine.cpus().iter().flat_map(|cpus| cpus.chunks(threads).map(<[CpuId]>::to_vec)).collect();
    let topology = machine.topology()?;
    Ok(Shown {
        near_nodes: near_nodes(&topology),
        topology,
        name: Some(machine.name),
        bandwidth_mb_s: machine.bandwidth_mb_s,
        measured: None,
        cores,
        offline_cpus: Vec::new(),
        notes: machine.derived,
    })
}

fn near_nodes(topology: &Topology) -> Vec<Vec<NodeId>> {
    let ids = |group: &Vec<NodeIndex>| group.iter().map(|&node| topology.nodes[node].id).collect();
    topology.near_groups().iter().map(ids).collect()
}

fn cpu_list(cpus: &[CpuId]) -> String {
    if cpus.is_empty() { "-".to_owned() } else { format_cpu_list(&cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>()) }
}

fn mib(pages: u64) -> u64 {
    pages * PAGE_BYTES / (1 << 20)
}

fn table(shown: &Shown) -> String {
    let nodes = &shown.topology.nodes;
    let mut text = String::new();
    if let Some(name) = &shown.name {
        line(&mut text, format_args!("machine {name}"));
    }
    let llcs: Vec<String> =
        nodes.values().map(|node| node.llcs.iter().map(|llc| cpu_list(llc)).collect::<Vec<_>>().join(" | ")).collect();
    let width = llcs.iter().map(String::len).max().unwrap_or(0).max(4);
    line(
        &mut text,
        format_args!("{:>4}  {:<16}  {:<width$}  {:>10}  {:>10}", "node", "cpus", "llcs", "memory MB", "free MB"),
    );
    for (index, node) in nodes.iter() {
        let (cpus, llcs) = (cpu_list(&node.cpus), &llcs[index.0]);
        let (memory, free) = (mib(node.memory_pages), mib(node.free_pages));
        line(&mut text, format_args!("{:>4}  {cpus:<16}  {llcs:<width$}  {memory:>10}  {free:>10}", node.id.0));
    }
    let ids: Vec<u32> = nodes.values().map(|node| node.id.0).collect();
    matrix(&mut text, &distances(&shown.topology), &ids, 5);
    if shown.measured.is_some() {
        matrices(shown).iter().for_each(|one| matrix(&mut text, one, &ids, 9));
        line(&mut text, format_args!("\n(from CPUs of the node of a row to memory of the node of a column)"));
    }
    text.push('\n');
    let smt = shown.cores.iter().map(Vec::len).max().unwrap_or(1);
    line(&mut text, format_args!("{} cores, up to {smt} threads each", shown.cores.len()));
    if !shown.offline_cpus.is_empty() {
        line(&mut text, format_args!("offline: {}", cpu_list(&shown.offline_cpus)));
    }
    for node in nodes.values().filter(|node| !node.slow_cpus.is_empty()) {
        let percent = 100.0 * node.capacity() as f64 / (node.cpus.len() as u64 * FULL_CAPACITY) as f64;
        let slow: Vec<CpuId> = node.slow_cpus.keys().copied().collect();
        let slow = cpu_list(&slow);
        line(
            &mut text,
            format_args!(
                "node {}: slow CPUs {slow}; it has {percent:.0} % of the capacity of as many fast ones",
                node.id
            ),
        );
    }
    if !shown.near_nodes.is_empty() {
        let joined = |group: &Vec<NodeId>| group.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join("+");
        let groups: Vec<String> = shown.near_nodes.iter().map(joined).collect();
        line(&mut text, format_args!("nearer to each other than to all other nodes: {}", groups.join(" ")));
    }
    if shown.topology.latency_source == LatencySource::MachineFile {
        line(&mut text, format_args!("latencies: from the machine file"));
    }
    for note in &shown.notes {
        line(&mut text, format_args!("note: {note}"));
    }
    text
}

fn distances(topology: &Topology) -> Matrix {
    let row = |node: &Node| node.distance.values().map(|&distance| Some(f64::from(distance))).collect();
    Matrix { title: "distance (10 = local)", rows: topology.nodes.values().map(row).collect() }
}

/// A matrix as text, in columns of so many letters.
fn matrix(text: &mut String, matrix: &Matrix, ids: &[u32], width: usize) {
    let head: String = ids.iter().map(|id| format!("{id:>width$}")).collect();
    line(text, format_args!("\n{}\n    {head}", matrix.title));
    for (id, row) in ids.iter().zip(&matrix.rows) {
        let cells: String = row.iter().map(|&value| format!("{:>width$}", cell(value))).collect();
        line(text, format_args!("{id:>4}{cells}"));
    }
}

/// A value of a matrix for eyes.
fn cell(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// Flat `key=value` lines: scalars, then per node (by position) its id, CPUs, memory and matrix rows. Bandwidths only
/// where the file has them.
fn lab_form(machine: &MachineFile) -> Result<String> {
    let mut text = String::new();
    line(&mut text, format_args!("name={}", machine.name));
    line(&mut text, format_args!("nodes={}", machine.node_ids.len()));
    line(&mut text, format_args!("threads_per_core={}", machine.threads_per_core));
    line(&mut text, format_args!("llcs_per_node={}", machine.llcs_per_node));
    timing_form(&mut text, machine);
    let topology = machine.topology()?;
    for (index, node) in topology.nodes.iter() {
        let prefix = format!("node.{}", index.0);
        line(&mut text, format_args!("{prefix}.id={}", node.id.0));
        line(&mut text, format_args!("{prefix}.cpus={}", node.cpus.len()));
        line(&mut text, format_args!("{prefix}.memory_mb={}", machine.memory_mb[index.0]));
        line(&mut text, format_args!("{prefix}.distance={}", list(node.distance.values())));
        line(&mut text, format_args!("{prefix}.latency_ns={}", list(node.latency_ns.values())));
        if let Some(rows) = &machine.bandwidth_mb_s {
            line(&mut text, format_args!("{prefix}.bandwidth_mb_s={}", list(&rows[index.0])));
        }
    }
    Ok(text)
}

/// Costs that are the same for all nodes.
fn timing_form(text: &mut String, machine: &MachineFile) {
    let (core, caches, memory, coherence) = (&machine.core, &machine.caches, &machine.memory, &machine.coherence);
    line(text, format_args!("core.instruction_ns={}", core.instruction_ns));
    line(text, format_args!("core.kernel_instruction_ns={}", core.kernel_instruction_ns));
    line(text, format_args!("core.pause_ns={}", core.pause_ns));
    line(text, format_args!("caches.l1_kb={}", caches.l1_kb));
    line(text, format_args!("caches.l2_kb={}", caches.l2_kb));
    line(text, format_args!("caches.l3_kb_per_llc={}", caches.l3_kb_per_llc));
    line(text, format_args!("caches.line_b={}", caches.line_b));
    line(text, format_args!("caches.l2_ns={}", caches.l2_ns));
    line(text, format_args!("caches.l3_ns={}", caches.l3_ns));
    line(text, format_args!("memory.service_ns_per_line={}", memory.service_ns_per_line));
    line(text, format_args!("memory.outstanding_misses={}", memory.outstanding_misses));
    line(text, format_args!("coherence.same_llc_ns={}", coherence.same_llc_ns));
    line(text, format_args!("coherence.same_node_ns={}", coherence.same_node_ns));
    line(text, format_args!("coherence.cross_node_ns={}", coherence.cross_node_ns));
    line(text, format_args!("paging.tlb_pages={}", machine.paging.tlb_pages));
    line(text, format_args!("paging.walk_ns={}", machine.paging.walk_ns));
}

fn list<'a, T: ToString + 'a>(values: impl IntoIterator<Item = &'a T>) -> String {
    values.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a String takes all");
}
