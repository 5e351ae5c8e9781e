// SPDX-License-Identifier: GPL-2.0-only
//! Quality of `tandem map` on planted problems, whose optimum is known, beside Scotch's in the same run; and whether the time limit is kept.
//!
//!     cargo bench -p tandem-cli --bench planted [-- --seeds N --scotch]
//!
//! Threads of a grid share with their neighbours; nodes are a grid, too, and full (`tandem_policies::mapping::planted`). Ratios are costs
//! over the optimum. With --scotch its Debian package is installed when it is not here yet, for which one must be root.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::Value;
use tandem_policies::mapping::planted::{Planted, squares};

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Ask Scotch, too
    #[arg(long)]
    scotch: bool,
    /// What cargo passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// A grid of threads, on square blocks of which nodes are full, and what is wanted.
struct Case {
    rows: usize,
    columns: usize,
    block: usize,
    limit_ms: u64,
    /// Of the median over the optimum.
    most: f64,
}

const CASES: [Case; 4] = [
    Case { rows: 8, columns: 8, block: 4, limit_ms: 10, most: 1.0 },
    Case { rows: 16, columns: 16, block: 4, limit_ms: 100, most: 1.05 },
    Case { rows: 32, columns: 32, block: 4, limit_ms: 1000, most: 1.10 },
    Case { rows: 50, columns: 80, block: 10, limit_ms: 1000, most: f64::INFINITY },
];
/// How far the time limit may be missed.
const LATE: f64 = 1.05;

/// What was seen of one case, one entry a seed.
#[derive(Default)]
struct Seen {
    ratios: Vec<f64>,
    /// Time taken over the limit.
    times: Vec<f64>,
    scotch: Vec<f64>,
    scotch_ms: Vec<f64>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.scotch {
        install_scotch()?;
    }
    let folder = tempfile::tempdir()?;
    println!("| threads | nodes | limit, ms | median | worst | longest, ms | Scotch: median | best | ms |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut reached = true;
    for case in &CASES {
        let mut seen = Seen::default();
        for seed in 1..=arguments.seeds {
            run(case, seed, arguments.scotch, folder.path(), &mut seen)?;
        }
        reached &= report(case, seen);
    }
    Ok(if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn install_scotch() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = root.join("vm/setup/programs.sh");
    let output = Command::new(programs).arg(root.join("build/cache")).arg("scotch_gmap").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn run(case: &Case, seed: u64, scotch: bool, folder: &Path, seen: &mut Seen) -> Result<()> {
    let planted = squares(case.rows, case.columns, case.block, seed);
    let (graph, machine) = (folder.join("graph"), folder.join("machine.toml"));
    std::fs::write(&graph, edges(&planted))?;
    std::fs::write(&machine, machine_file(&planted))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(["map", "--json", "--graph"]).arg(&graph).arg("--machine").arg(&machine);
    command.args(["--time-limit", &case.limit_ms.to_string(), "--seed", &seed.to_string()]);
    if scotch {
        command.args(["--with", "scotch"]);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let number = |value: &Value| value.as_f64().context("the answer lacks a number");
    seen.ratios.push(number(&answer["cost"])? / planted.optimum);
    seen.times.push(number(&answer["time_ms"])? / case.limit_ms as f64);
    if scotch {
        seen.scotch.push(number(&answer["scotch"]["cost"])? / planted.optimum);
        seen.scotch_ms.push(number(&answer["scotch"]["time_ms"])?);
    }
    Ok(())
}

/// Prints a row; whether the goals are reached.
fn report(case: &Case, mut seen: Seen) -> bool {
    let never_worse = seen.ratios.iter().zip(&seen.scotch).all(|(ours, scotch)| ours <= scotch);
    for list in [&mut seen.ratios, &mut seen.times, &mut seen.scotch, &mut seen.scotch_ms] {
        list.sort_by(f64::total_cmp);
    }
    let median = |list: &[f64]| list.get(list.len() / 2).copied();
    let text = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let (ours, longest) = (median(&seen.ratios).unwrap_or(f64::INFINITY), seen.times.last().copied().unwrap_or(0.0));
    let (threads, nodes) = (case.rows * case.columns, case.rows * case.columns / (case.block * case.block));
    println!(
        "| {threads} | {nodes} | {} | {ours:.3} | {} | {:.1} | {} | {} | {} |",
        case.limit_ms,
        text(seen.ratios.last().copied(), 3),
        longest * case.limit_ms as f64,
        text(median(&seen.scotch), 3),
        text(seen.scotch.first().copied(), 3),
        text(median(&seen.scotch_ms), 0),
    );
    ours <= case.most && longest <= LATE && never_worse
}

fn edges(planted: &Planted) -> String {
    planted.request.weights.iter().fold(String::new(), |mut text, (first, second, weight)| {
        let _ = writeln!(text, "{first} {second} {weight}");
        text
    })
}

/// A machine whose nodes hold as many threads as the places of the request, each unit of distance farther than the local one.
fn machine_file(planted: &Planted) -> String {
    let request = &planted.request;
    let row = |row: &Vec<f64>| format!("{:?}", row.iter().map(|distance| 10 + *distance as u64).collect::<Vec<_>>());
    let distance: Vec<String> = request.distances.iter().map(row).collect();
    format!(
        "name = 'planted'\nnodes = {}\ncpus_per_node = {:?}\nmemory_mb = 64\ndistance = [{}]\n",
        request.capacities.len(),
        request.capacities,
        distance.join(",\n")
    )
}
