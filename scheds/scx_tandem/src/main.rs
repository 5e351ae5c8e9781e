// SPDX-License-Identifier: GPL-2.0-only
//! `scx_tandem`: loads the scheduler, runs the agent, unloads.

mod cli;
mod exit;
mod load;
mod log;
mod metrics;
mod monitor;
mod preflight;
mod refusal;
mod report;
mod service;
mod session;
mod tables;

use std::io::Write as _;
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

use crate::load::Loaded;
use crate::refusal::{lasting, lasting_if_forbidden};

fn main() -> ExitCode {
    let cli = match cli::read() {
        Ok(cli) => cli,
        Err(tandem_config::Error::Arguments(error)) => error.exit(),
        Err(error) => return refused(lasting(error)),
    };
    log::init(cli.options.log_format, cli.verbose);
    tandem_agent::give_back_large_blocks();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(error),
    }
}

/// Says why it ends. Where waiting does not help the scheduler that a killed agent may have left goes too: no agent will come for it.
fn refused(error: anyhow::Error) -> ExitCode {
    let is_left = || matches!(load::loaded(), Ok(Loaded::Tandem)) && session::lock().is_ok();
    let gives_up = refusal::lasts(&error) && is_left();
    refusal::told(&if gives_up { session::give_up(&Pins::default(), error) } else { error })
}

fn run(cli: &Cli) -> Result<()> {
    if cli.help_stats {
        let described = tandem_view::describe()?;
        return std::io::stdout().write_all(described.as_bytes()).context("standard output cannot be written");
    }
    if let Some(seconds) = cli.monitor {
        return monitor::run(Duration::from_secs(seconds), &orders()?);
    }
    for sentence in tandem_config::unknown_variables() {
        tracing::warn!("{sentence}");
    }
    preflight::check_root().map_err(lasting)?;
    preflight::check_kernel().map_err(lasting)?;
    let _lock = session::lock()?;
    if let Err(error) = Loans::recover() {
        tracing::warn!(%error, "threads that a killed scx_tandem had lent cannot be taken back");
    }
    if cli.unload {
        return load::unload_what_was_left(&Pins::default());
    }

    allow_many_files();
    let recorder = begin_files(cli).map_err(|error| session::give_up(&Pins::default(), error))?;
    let orders = orders()?;
    let mut report = Report::default();
    let ended = session::run(cli, recorder.clone(), &orders, &mut report);
    report.recording = recorder.as_ref().map(Recorder::finish);
    let written = cli.options.report.as_ref().map_or(Ok(()), |path| report::write(&report, path));
    if let (Err(_), Err(error)) = (&ended, &written) {
        tracing::error!("{error:#}");
    }
    ended.and(written)
}

/// Tries the report, since what ends a run long after it began would be known too late, and begins the recording.
fn begin_files(cli: &Cli) -> Result<Option<Recorder>> {
    cli.options.report.as_deref().map_or(Ok(()), report::check).map_err(lasting_if_forbidden)?;
    cli::recorder(cli)
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
