// SPDX-License-Identifier: GPL-2.0-only
//! `scx_tandem`: loads the scheduler, runs the agent, unloads.

mod cli;
mod load;
mod preflight;
mod session;
mod tables;

use std::fs;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context, Result};
use clap::Parser;
use tandem_agent::Report;
use tandem_trace::Recorder;
use tracing_subscriber::EnvFilter;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    init_log(cli.verbose);
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scx_tandem: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn init_log(verbose: u8) {
    // What scx_utils finds out about the kernel is of interest only when asked for.
    let level = if verbose > 0 { "debug" } else { "info,scx_utils=warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stdout().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}

fn run(cli: &Cli) -> Result<()> {
    // Everything that is wrong with the command line comes before anything that is wrong with the machine.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut config = cli.agent_config(cpus)?;
    preflight::check_root()?;
    preflight::check_kernel()?;
    let _lock = session::lock()?;
    if cli.unload {
        return load::unload(&tandem_bpf::Pins::default());
    }

    config.recorder = cli.recorder()?;
    let (stop_sender, stop) = mpsc::channel();
    // The receiver lives to the end of this function: sending can only fail when nobody waits any more.
    ctrlc::set_handler(move || {
        let _ = stop_sender.send(());
    })
    .context("signals cannot be handled")?;
    let mut report = Report::default();
    let ended = session::run(cli, &config, &stop, &mut report);
    report.recording = config.recorder.as_ref().map(Recorder::finish);
    if let Some(path) = &cli.report {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json + "\n").with_context(|| format!("the report {} cannot be written", path.display()))?;
    }
    ended
}
