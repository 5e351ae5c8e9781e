// SPDX-License-Identifier: GPL-2.0-only
//! An entry of a function that is captured on two nodes and replayed with other seats: pages are where they were, each time.
//! Run by tests/boot_codelets.py, with CRIU in the guest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use tandem_ab::stop::Stop;
use tandem_guest_tests::{Memory, homes_in_words};
use tandem_policies::model::{NodeIndex, Topology};
use tandem_tune::launch::{Codelet, End, Entry, Limit, Program, Streams};
use tandem_tune::places::{ByRegion, Places};
use tandem_tune::process::Seating;
use tandem_tune::seat::CpuSet;

/// As the first argument, makes this the program that is captured.
const PROGRAM: &str = "tell";
/// What it tells, entry by entry.
const TOLD: &str = "/tmp/told";
const BYTES: usize = 1 << 20;

fn main() -> Result<()> {
    let topology = tandem_machine::read_running()?.topology;
    if std::env::args().nth(1).is_some_and(|word| word == PROGRAM) {
        return tell(&topology);
    }
    let nodes: Vec<NodeIndex> = topology.nodes_with_cpus().collect();
    let [first, second, ..] = nodes[..] else { bail!("this machine has no two nodes with CPUs") };
    fs::create_dir_all(TOLD)?;
    let streams = Streams::Files { input: None, output: "/dev/null".into() };
    let command = vec![std::env::current_exe()?.into_os_string(), PROGRAM.into()];
    let program = Program { command, streams, functions: vec!["entered".to_owned()] };
    let entry = Entry { region: "entered".to_owned(), number: 1 };
    let places = |node: NodeIndex| seated(&topology, first, node);
    let captured = Codelet::capture(&program, &places(first), &entry, None, &Stop::default())?;
    let codelet = captured.map_err(|end| anyhow::anyhow!("it ended before: {end:?}"))?;
    let (homes_before, cpus_before) = told(0)?;
    ensure!(homes_before.contains(','), "its memory is on one node: {homes_before}");
    for node in [second, first, second] {
        let seen = codelet.replay(&places(node), Limit::default(), &Stop::default())?;
        ensure!(seen.end == End::Measured && seen.regions.len() == 1, "{seen:?}");
        let (homes, cpus) = told(1)?;
        ensure!(homes == homes_before, "pages are elsewhere: {homes}, not {homes_before}");
        ensure!((cpus == cpus_before) == (node == first), "its seat on {node:?} has the CPUs {cpus}");
    }
    ensure!(!Path::new(TOLD).join("2").exists(), "what follows the entry was run");
    println!("ok: {homes_before}");
    Ok(())
}

/// One thread, which begins on a node and is on another one in the function.
fn seated(topology: &Topology, home: NodeIndex, node: NodeIndex) -> Places {
    let seating = |node| Seating { threads: 1, seats: vec![CpuSet::of_node(topology, node)] };
    let regions = [("entered".to_owned(), seating(node))].into();
    let by_region = Some(ByRegion { home: seating(home), regions, turns: None });
    Places { threads: Some(1), seats: seating(home).seats, by_region, ..Places::default() }
}

/// What the program told of an entry: where its pages are, and the CPUs of its thread. It is told once.
fn told(entry: usize) -> Result<(String, String)> {
    let path = format!("{TOLD}/{entry}");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: nothing was told"))?;
    fs::remove_file(&path)?;
    let (homes, cpus) = text.split_once('\n').context("two lines")?;
    Ok((homes.to_owned(), cpus.to_owned()))
}

/// The program: its memory is on two nodes, by turns.
fn tell(topology: &Topology) -> Result<()> {
    let nodes: Vec<u32> = topology.nodes_with_cpus().map(|node| topology.nodes[node].id.0).take(2).collect();
    let memory: Vec<Memory> = nodes.repeat(2).into_iter().map(|node| Memory::on_node(node, BYTES)).collect();
    for entry in 0..3 {
        entered(&memory, entry);
    }
    Ok(())
}

/// What is measured.
#[unsafe(no_mangle)]
#[inline(never)]
fn entered(memory: &[Memory], entry: usize) {
    let pages: Vec<*mut u8> = memory.iter().flat_map(Memory::pages).collect();
    let cpus = CpuSet::of_thread(0).expect("it may know its CPUs");
    let told = format!("{}\n{cpus:?}", homes_in_words(&pages));
    fs::write(format!("{TOLD}/{entry}"), told).expect("there is room in /tmp");
}
