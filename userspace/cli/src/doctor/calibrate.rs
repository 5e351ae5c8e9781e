// SPDX-License-Identifier: GPL-2.0-only
//! `tandem doctor --calibrate FILE`: what policies would else assume of this machine, measured.
//!
//! ```text
//! latency, bandwidth   between all nodes, as `tandem topo --measure`
//! bandwidth_per_s      0.8 of the lines per second that a node's memory gives its own CPUs at most (1, 2, 4, ... of them),
//!                      the least of all nodes (SAM: 20 % below the plateau)
//! cpu_lines_per_s      the least of all nodes of these lines per second for each CPU of the node, for `tandem`
//! remote_per_cycle     0.05 / (remote latency - local latency): from there on remote accesses cost more than 5 % of the time
//! coherence_per_cycle  see `coherence`
//! ```
//!
//! Rates become rates per cycle at the highest frequency of the CPUs; where the kernel does not tell that, those are left out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tandem_ab::say::say_line;
use tandem_ab::store::{check_writable, write_whole};
use tandem_machine::{Calibration, RunningMachine, read_running};
use tandem_policies::model::{CpuId, Node, NodeIndex, Topology};
use tandem_sense::pmu::clock::highest_khz;

use super::coherence;
use crate::topo::measure::{Measured, measure};
use crate::topo::memory::Buffer;

/// Time for all pairs of nodes, each of which is measured twice, and bounds of one measurement.
const PAIRS_MS: u64 = 30_000;
const EACH_MS: std::ops::RangeInclusive<u64> = 10..=200;
/// Of one measurement of shared lines, of which there may be 38.
const SHARED_MS: u64 = 100;
/// How much of what memory gives at most is much.
const MUCH: f64 = 0.8;
/// What remote accesses may cost.
const COST: f64 = 0.05;
const BUFFER_BYTES: u64 = 64 << 20;

/// Measures, prints what came out, and writes the file.
///
/// # Errors
/// The machine cannot be measured, or the file not be written.
pub fn run(file: &Path) -> Result<()> {
    check_writable(file)?;
    let machine = read_running().context("the machine's topology cannot be read")?;
    let calibration = calibrate(&machine)?;
    let text = toml::to_string(&calibration).context("what was measured has no form")?;
    let head = "# What `tandem doctor --calibrate` measured on this machine, for scx_tandem's --calibration.\n";
    write_whole(file, format!("{head}{text}").as_bytes())?;
    std::io::stdout().write_all(words(&calibration, file)?.as_bytes()).context("standard output cannot be written")
}

fn words(calibration: &Calibration, file: &Path) -> Result<String> {
    let mut text = String::new();
    for (title, rows) in
        [("latency of a load [ns]", &calibration.latency_ns), ("bandwidth [MB/s]", &calibration.bandwidth_mb_s)]
    {
        writeln!(text, "{title}, from CPUs of a node (rows) to memory of a node")?;
        for (node, row) in calibration.nodes.iter().zip(rows) {
            let values: String = row.iter().map(|value| format!("{value:>10}")).collect();
            writeln!(text, "    node {node:<4}{values}")?;
        }
    }
    for (parameter, value) in &calibration.parameters {
        writeln!(text, "{parameter} = {value}")?;
    }
    writeln!(text, "written to {0}: scx_tandem --calibration {0}", file.display())?;
    Ok(text)
}

fn calibrate(machine: &RunningMachine) -> Result<Calibration> {
    let topology = &machine.topology;
    let pairs = (topology.len() * topology.len()) as u64;
    let each = Duration::from_millis((PAIRS_MS / (2 * pairs)).clamp(*EACH_MS.start(), *EACH_MS.end()));
    let measured = measure(machine, each)?;
    let known = |rows: &[Vec<Option<f64>>]| -> Vec<Vec<f64>> {
        rows.iter().map(|row| row.iter().map(|value| value.unwrap_or(0.0)).collect()).collect()
    };
    Ok(Calibration {
        cpu: tandem_sense::cpu_model(),
        nodes: topology.nodes.values().map(|node| node.id.0).collect(),
        parameters: thresholds(machine, &measured, each)?
            .into_iter()
            .map(|(name, value)| (name.to_owned(), significant(value)))
            .collect(),
        latency_ns: known(&measured.latency_ns),
        bandwidth_mb_s: known(&measured.bandwidth_mb_s),
    })
}

/// Three digits: more are noise.
fn significant(value: f64) -> f64 {
    if value <= 0.0 {
        return value;
    }
    let unit = 10_f64.powi(value.log10().floor() as i32 - 2);
    // Back from a text, so that no digits of rounding are left.
    let rounded = (value / unit).round() * unit;
    format!("{rounded:.3e}").parse().unwrap_or(rounded)
}

/// Parameters of policies, as far as they can be told here.
fn thresholds(machine: &RunningMachine, measured: &Measured, each: Duration) -> Result<Vec<(&'static str, f64)>> {
    let topology = &machine.topology;
    let mut all = Vec::new();
    let plateaus = plateaus(topology, each)?;
    let least = |values: &mut dyn Iterator<Item = f64>| values.min_by(f64::total_cmp);
    if let Some(node) = least(&mut plateaus.iter().map(|plateau| plateau.lines_per_s)) {
        all.push(("sam.bandwidth_per_s", MUCH * node));
    }
    if let Some(cpu) = least(&mut plateaus.iter().map(|plateau| plateau.lines_per_s / plateau.cpus as f64)) {
        all.push(("tandem.cpu_lines_per_s", cpu));
    }
    let Some(khz) = highest_khz(Path::new("/")) else {
        say_line(format_args!("tandem: the kernel tells no frequency of the CPUs: rates per cycle are left out"));
        return Ok(all);
    };
    let cycles_per_s = khz as f64 * 1e3;
    all.push(("sam.clock_ghz", cycles_per_s * 1e-9));
    if let Some(rate) = remote_per_s(&measured.latency_ns) {
        all.push(("sam.remote_per_cycle", rate / cycles_per_s));
    }
    if let Some((near, far)) = sharers(topology, &machine.cores) {
        say_line(format_args!("tandem: two threads that share lines, on one node and on two"));
        match coherence::threshold_per_s(near, far, Duration::from_millis(SHARED_MS))? {
            Some(rate) => all.push(("sam.coherence_per_cycle", rate / cycles_per_s)),
            None => {
                say_line(format_args!("tandem: sharing costs no more on two nodes than on one: no threshold for it"))
            }
        }
    }
    Ok(all)
}

/// What a node's memory gives its own CPUs at most.
struct Plateau {
    lines_per_s: f64,
    cpus: usize,
}

/// The plateau of each node that has CPUs and memory.
fn plateaus(topology: &Topology, each: Duration) -> Result<Vec<Plateau>> {
    let both = |node: &&Node| !node.cpus.is_empty() && node.memory_pages > 0;
    let measured = |node: &Node| -> Result<Plateau> {
        say_line(format_args!("tandem: how much the memory of node {} gives", node.id));
        let buffer = Buffer::on(node.id, BUFFER_BYTES)
            .with_context(|| format!("{} MiB of node {} cannot be had to measure with", BUFFER_BYTES >> 20, node.id))?;
        let mut lines_per_s: f64 = 0.0;
        let counts = std::iter::successors(Some(1), |cpus| Some(cpus * 2)).take_while(|cpus| *cpus < node.cpus.len());
        for cpus in counts.chain([node.cpus.len()]) {
            lines_per_s = lines_per_s.max(buffer.scattered_lines_per_s(&node.cpus[..cpus], each)?);
        }
        Ok(Plateau { lines_per_s, cpus: node.cpus.len() })
    };
    topology.nodes.values().filter(both).map(measured).collect()
}

/// Remote accesses per second of a thread that cost it [`COST`] of its time; `None` if remote memory is no farther.
fn remote_per_s(latency_ns: &[Vec<Option<f64>>]) -> Option<f64> {
    let values = |local: bool| -> Vec<f64> {
        let at = |(from, row): (usize, &Vec<Option<f64>>)| -> Vec<f64> {
            row.iter().enumerate().filter(|(to, _)| (*to == from) == local).filter_map(|(_, value)| *value).collect()
        };
        latency_ns.iter().enumerate().flat_map(at).collect()
    };
    let mean = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let farther_ns = mean(values(false))? - mean(values(true))?;
    (farther_ns > 0.0).then(|| COST / (farther_ns * 1e-9))
}

/// Two CPUs of different cores of a node, and one of these with one of the nearest other node.
fn sharers(topology: &Topology, cores: &[Vec<CpuId>]) -> Option<([CpuId; 2], [CpuId; 2])> {
    let core_of = |cpu: CpuId| cores.iter().position(|core| core.contains(&cpu));
    topology.nodes.iter().find_map(|(index, node)| {
        let &first = node.cpus.first()?;
        let &second = node.cpus.iter().find(|&&cpu| core_of(cpu) != core_of(first))?;
        let others = topology.nodes.iter().filter(|(other, node)| *other != index && !node.cpus.is_empty());
        let distance = |other: NodeIndex| node.distance[other];
        let (_, nearest) = others.min_by_key(|(other, _)| distance(*other))?;
        Some(([first, second], [first, nearest.cpus[0]]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_accesses_cost_what_remote_memory_is_farther() {
        let latency_ns = vec![vec![Some(80.0), Some(180.0)], vec![Some(180.0), Some(80.0)]];
        // 500,000 accesses of 100 ns more are 50 ms of a second.
        assert!((remote_per_s(&latency_ns).unwrap() - 5e5).abs() < 1.0);
        assert_eq!(remote_per_s(&[vec![Some(80.0)]]), None, "one node");
        assert_eq!(remote_per_s(&[vec![Some(80.0), Some(70.0)], vec![None, None]]), None);
    }

    #[test]
    fn three_digits_are_kept() {
        assert_eq!([123_456.0, 2.4999e-4, 75e6, 0.0].map(significant), [123_000.0, 2.5e-4, 75e6, 0.0]);
    }
}
