// SPDX-License-Identifier: GPL-2.0-only
//! `scx_tandem`: loads the scheduler, runs the agent, unloads.

mod cli;
mod load;
mod metrics;
mod monitor;
mod preflight;
mod service;
mod session;
mod tables;

use std::fs;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tandem_agent::{Order, Report};
use tandem_trace::Recorder;
use tracing_subscriber::EnvFilter;

use tandem_config::Cli;

fn main() -> ExitCode {
    let cli = match cli::read() {
        Ok(cli) => cli,
        Err(tandem_config::Error::Arguments(error)) => error.exit(),
        Err(error) => {
            eprintln!("scx_tandem: {error}");
            return ExitCode::FAILURE;
        }
    };
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
    if cli.help_stats {
        return Ok(std::io::stdout().write_all(tandem_view::describe()?.as_bytes())?);
    }
    if let Some(seconds) = cli.monitor {
        return monitor::run(Duration::from_secs(seconds), &orders()?);
    }
    preflight::check_root()?;
    preflight::check_kernel()?;
    let _lock = session::lock()?;
    if cli.unload {
        return load::unload(&tandem_bpf::Pins::default());
    }

    let recorder = cli::recorder(cli)?;
    let orders = orders()?;
    let mut report = Report::default();
    let ended = session::run(cli, recorder.clone(), &orders, &mut report);
    report.recording = recorder.as_ref().map(Recorder::finish);
    if let Some(path) = &cli.options.report {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json + "\n").with_context(|| format!("the report {} cannot be written", path.display()))?;
    }
    ended
}

/// What the signals of the service say: SIGHUP to read the configuration again, SIGINT and SIGTERM to stop.
fn orders() -> Result<Receiver<Order>> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("signals cannot be handled")?;
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        for signal in signals.forever() {
            let order = if signal == SIGHUP { Order::Reload } else { Order::Stop };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    Ok(orders)
}
