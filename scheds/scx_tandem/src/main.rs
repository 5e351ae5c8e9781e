// SPDX-License-Identifier: GPL-2.0-only
//! `scx_tandem`: loads the scheduler, runs the agent, unloads.

mod cli;
mod load;
mod log;
mod metrics;
mod monitor;
mod preflight;
mod service;
mod session;
mod tables;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tandem_agent::{Order, Report};
use tandem_bpf::{Loans, Pins};
use tandem_trace::Recorder;

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
    log::init(cli.options.log_format, cli.verbose);
    tandem_agent::give_back_large_blocks();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scx_tandem: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if cli.help_stats {
        let described = tandem_view::describe()?;
        return std::io::stdout().write_all(described.as_bytes()).context("standard output cannot be written");
    }
    if let Some(seconds) = cli.monitor {
        return monitor::run(Duration::from_secs(seconds), &orders()?);
    }
    preflight::check_root()?;
    preflight::check_kernel()?;
    let _lock = session::lock()?;
    if let Err(error) = Loans::recover() {
        tracing::warn!(%error, "threads that a killed scx_tandem had lent cannot be taken back");
    }
    if cli.unload {
        return load::unload(&Pins::default());
    }

    allow_many_files();
    let recorder = cli::recorder(cli)?;
    let orders = orders()?;
    let mut report = Report::default();
    let ended = session::run(cli, recorder.clone(), &orders, &mut report);
    report.recording = recorder.as_ref().map(Recorder::finish);
    let written = cli.options.report.as_ref().map_or(Ok(()), |path| write_report(&report, path));
    if let (Err(_), Err(error)) = (&ended, &written) {
        tracing::error!("{error:#}");
    }
    ended.and(written)
}

/// Samplers have some files open for each CPU, more than a shell or systemd allows by default on machines with hundreds.
fn allow_many_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one limit, and reads it.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if !raised {
        tracing::warn!("no more files can be opened than usual: {}", std::io::Error::last_os_error());
    }
}

fn write_report(report: &Report, path: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    fs::write(path, json + "\n").with_context(|| format!("the report {} cannot be written", path.display()))
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
