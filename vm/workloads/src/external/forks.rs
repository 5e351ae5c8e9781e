// SPDX-License-Identifier: GPL-2.0-only
//! Processes that come and go, in the manner of `make -j` over many small files.
//!
//! As many starters as CPUs each start one short program after the other. Such a program fills some memory of its own,
//! reads it again in another order, says what it found, and ends: fork, exec, page faults, exit, and some computing.

use crate::external::session::{Own, Session};
use crate::external::{External, Setting, own_program};
use crate::frame::seating::mix;
use crate::frame::spec::{Metric, Size, size};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Name of the subcommand that starts the programs.
pub const COMMAND: &str = "forks-starters";
/// Name of the subcommand that is one of them.
pub const PROGRAM: &str = "forks-program";

/// The workload.
pub const SPEC: External = External {
    name: "forks",
    summary: "starters that start one short program after the other, as make -j does: fork, exec, some work, exit",
    sizes: &[
        Size {
            name: "starters",
            default: 0,
            unit: "threads",
            help: "programs side by side; 0: one for each CPU",
            least: 0,
        },
        size("programs", 200, "programs", "programs in all"),
        size("kib", 256, "KiB", "memory that each fills and reads"),
    ],
    metric: Metric::Seconds,
    work_unit: "programs",
    needs: &[],
    session,
};

/// What the starters do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[arg(long)]
    starters: u64,
    #[arg(long)]
    programs: u64,
    #[arg(long)]
    kib: u64,
}

/// What one program does.
#[derive(Args, Clone, Debug)]
pub struct Program {
    #[arg(long)]
    kib: u64,
    #[arg(long)]
    seed: u64,
}

fn session(setting: &Setting) -> Result<Session> {
    let (programs, kib) = (setting.sizes.of("programs"), setting.sizes.of("kib"));
    let given = [("starters", setting.or("starters", setting.cpus)), ("programs", programs), ("kib", kib)];
    let options = given.iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
    Ok(Session {
        commands: vec![[own_program()?, COMMAND.to_owned()].into_iter().chain(options).collect()],
        proof: Box::new(move |printed| {
            if printed[0].trim().parse() != Ok(programs) {
                bail!("the starters counted '{}' programs instead of {programs}", printed[0].trim());
            }
            Ok(Own::default())
        }),
        ..Session::nothing(programs)
    })
}

/// Starts all programs, some side by side, and prints how many found what they should.
///
/// # Errors
/// A program does not start, fails, or finds something else.
pub fn start(options: &Options) -> Result<()> {
    let (own, next, ended) = (own_program()?, AtomicU64::new(0), AtomicU64::new(0));
    let starter = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= options.programs {
                return Ok(());
            }
            start_one(&own, options.kib, seed)?;
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let starters: Vec<_> = (0..options.starters).map(|_| scope.spawn(starter)).collect();
        starters.into_iter().try_for_each(|starter| starter.join().expect("a starter does not panic"))
    })?;
    writeln!(std::io::stdout(), "{}", ended.into_inner()).context("cannot print the count")
}

fn start_one(own: &str, kib: u64, seed: u64) -> Result<()> {
    let words = [PROGRAM, "--kib", &kib.to_string(), "--seed", &seed.to_string()];
    let done = Command::new(own).args(words).output().context("a program does not start")?;
    if !done.status.success() {
        bail!("program {seed} failed ({}): {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// One program.
///
/// # Errors
/// It read something else than it wrote.
pub fn run(program: &Program) -> Result<()> {
    /// Words of a line: the next word that is read lies in the next line.
    const LINE: usize = 8;
    let written = || (0..program.kib * 1024 / 8).map(|at| mix(program.seed ^ at));
    let words: Vec<u64> = written().collect();
    let read = (0..LINE).flat_map(|first| words.iter().skip(first).step_by(LINE));
    if read.fold(0, |sum: u64, word| sum.wrapping_add(*word)) != written().fold(0, u64::wrapping_add) {
        bail!("self-check failed: it read something else than it wrote");
    }
    Ok(())
}
