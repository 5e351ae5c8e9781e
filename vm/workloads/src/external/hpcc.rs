// SPDX-License-Identifier: GPL-2.0-only
//! HPCC: the HPC Challenge benchmarks (HPL, DGEMM, STREAM, PTRANS, RandomAccess, FFT, latency) under MPI.
//!
//! Some of them repeat until a time is over, so the length of the whole says little. What counts is STREAM's triad, run
//! by all processes at the same time.

use crate::external::session::{Own, Session};
use crate::external::{External, Setting};
use crate::frame::spec::{Metric, Size, size};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// The workload.
pub const SPEC: External = External {
    name: "hpcc",
    summary: "HPC Challenge: all seven benchmarks one after the other, one MPI process for each CPU",
    sizes: &[
        Size { name: "processes", default: 0, unit: "processes", help: "processes; 0: one for each CPU", least: 0 },
        size("order", 1200, "rows", "order of HPL's matrix, which the other sizes follow from"),
    ],
    metric: Metric::TriadGbPerS,
    work_unit: "suites",
    needs: &["mpirun", "hpcc"],
    session,
};

/// Rows of a block of HPL's matrix.
const BLOCK: u64 = 40;

fn session(setting: &Setting) -> Result<Session> {
    let processes = setting.or("processes", setting.cpus);
    let input = setting.folder.join("hpccinf.txt");
    std::fs::write(&input, parameters(setting.sizes.of("order"), processes))
        .with_context(|| format!("{} cannot be written", input.display()))?;
    // Processes are neither bound nor counted against CPUs: where they run is what is measured.
    let command = format!(
        "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated -np {processes} hpcc"
    );
    let result = setting.folder.join("hpccoutf.txt");
    Ok(Session {
        commands: vec![command.split(' ').map(str::to_owned).collect()],
        proof: Box::new(move |_| Ok(Own { value: Some(prove(&result)?), p99_ns: None })),
        ..Session::nothing(1)
    })
}

/// The grid of processes nearest to a square.
fn grid(processes: u64) -> (u64, u64) {
    let rows =
        (1..=processes).filter(|rows| processes.is_multiple_of(*rows) && rows * rows <= processes).max().unwrap_or(1);
    (rows, processes / rows)
}

/// HPCC's input file: what is not said here has no choice.
fn parameters(order: u64, processes: u64) -> String {
    let (rows, columns) = grid(processes);
    let block = BLOCK.min(order);
    format!(
        "HPLinpack benchmark input file\nTandem\nHPL.out\n8\n1\n{order}\n1\n{block}\n0\n1\n{rows}\n{columns}\n16.0\n1\n2\n1\n4\n1\n2\n\
         1\n1\n1\n1\n1\n0\n2\n64\n0\n0\n1\n8\n##### PTRANS\n0\n{order}\n0\n{block}\n"
    )
}

/// All tests were passed; what the triad got.
fn prove(result: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(result).with_context(|| format!("{} cannot be read", result.display()))?;
    if !text.lines().any(|line| line.trim() == "Success=1") {
        bail!("HPCC does not say that all its tests were passed");
    }
    let triad = text.lines().find_map(|line| line.trim().strip_prefix("StarSTREAM_Triad="));
    let triad = triad.and_then(|value| value.parse().ok());
    triad.context("HPCC does not say what STREAM's triad got")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_holds_all_processes_and_is_as_square_as_it_can() {
        assert_eq!([1, 2, 6, 7, 8, 16].map(grid), [(1, 1), (1, 2), (2, 3), (1, 7), (2, 4), (4, 4)]);
    }

    #[test]
    fn only_a_suite_that_passed_is_a_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let file = folder.path().join("hpccoutf.txt");
            std::fs::write(&file, text).unwrap();
            prove(&file)
        };
        assert_eq!(of("Success=1\nStarSTREAM_Triad=0.75\n").unwrap(), 0.75);
        assert!(of("Success=0\nStarSTREAM_Triad=0.75\n").is_err());
        assert!(of("Success=1\n").is_err());
    }
}
