// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run`: one program under scx_tandem. The scheduler comes and goes with the program, manages it and its
//! descendants, and assigns nothing else of the machine, though it schedules it. With `--tuned`, what `tandem tune` found takes its place.

pub mod scheduler;
mod signals;
mod summary;
mod tuned;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use tandem_tune::inherited;
use tandem_view::Client;

use scheduler::Scheduler;
use summary::{Shares, Summary};

/// Time between two looks at where accesses go.
const LOOK: Duration = Duration::from_secs(1);

/// What to run, and how.
#[derive(Args)]
#[command(after_help = "\
Exit codes: that of the program, 128 + signal if it was killed; 2 bad input, or the program was not started, or scx_tandem or the
summary failed.")]
pub struct Arguments {
    /// Observe and decide, but assign and move nothing (all tasks are scheduled by scx_tandem all the same)
    #[arg(long)]
    dry_run: bool,
    /// Configuration file of scx_tandem; what is managed is always the program
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An option of scx_tandem by its name in a configuration file (repeatable; not manage, exclude, report, partial)
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// Write what scx_tandem says to FILE
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the summary to FILE instead of standard error
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write the summary as JSON
    #[arg(long)]
    json: bool,
    /// Apply what `tandem tune` found, instead of scx_tandem [default: NAME.tandem.toml in this directory]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["dry_run", "config", "options", "log", "summary", "json"])]
    tuned: Option<Option<PathBuf>>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the program; the exit code is the program's.
///
/// # Errors
/// The scheduler cannot be loaded (then the program is not started), or the program cannot be started.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(given) = &arguments.tuned {
        let file = given.clone().map_or_else(|| tuned::result_here(&arguments.command), Ok)?;
        return tuned::run(&file, &arguments.command);
    }
    adopt_orphans()?;
    let caught = signals::catch()?;
    let scheduler = Scheduler::start(&scheduler_flags(arguments)?, arguments.log.as_deref())?;
    let start = Instant::now();
    let (program, words) = arguments.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    let started = inherited::pass_on(command.args(words)).and_then(|()| command.spawn());
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            scheduler.stop()?;
            bail!("{}: cannot be started: {error}", program.display());
        }
    };
    signals::forward(caught, child.id() as i32);
    let watch = Watch::start();
    let status = wait(&mut child, scheduler.id())?;
    let seconds = start.elapsed().as_secs_f64();
    let shares = watch.end();
    let report = scheduler.stop()?;
    let summary = Summary::new(&arguments.command, status, seconds, shares, &report, arguments.dry_run);
    write_summary(arguments, &summary)?;
    Ok(exit_code(status))
}

/// Descendants whose parent ends become children of this process, and so stay in the managed tree.
fn adopt_orphans() -> Result<()> {
    // SAFETY: this operation takes plain numbers and concerns this process only.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error()).context("descendants cannot be kept together");
    }
    Ok(())
}

fn scheduler_flags(arguments: &Arguments) -> Result<Vec<OsString>> {
    let mut flags = scheduler::managed().to_vec();
    if let Some(path) = &arguments.config {
        flags.extend(["--config".into(), path.clone().into_os_string()]);
    }
    if arguments.dry_run {
        flags.push("--dry-run".into());
    }
    for option in &arguments.options {
        let (name, value) =
            option.split_once('=').with_context(|| format!("--option {option}: expected NAME=VALUE"))?;
        let flag = tandem_config::flag_of(name).with_context(|| {
            format!("--option {option}: there is no such option; `tandem config --show-effective` lists them")
        })?;
        if ["manage", "exclude", "report", "partial"].contains(&name) {
            bail!("--option {option}: what is managed, and how, is given by `tandem run` itself");
        }
        flags.push(format!("{flag}={value}").into());
    }
    Ok(flags)
}

/// Waits for the program, and reaps adopted orphans meanwhile.
fn wait(child: &mut Child, scheduler: u32) -> Result<ExitStatus> {
    loop {
        // SAFETY: all zeroes is a value of this plain structure.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the structure lives through the call. The child is left to be waited for by those who own it.
        let failed = unsafe { libc::waitid(libc::P_ALL, 0, &mut ended, libc::WEXITED | libc::WNOWAIT) };
        // SAFETY: after a successful waitid this field is the id of a child.
        let pid = unsafe { ended.si_pid() };
        if failed != 0 || pid == child.id() as i32 || pid == scheduler as i32 {
            return child.wait().context("the program cannot be waited for");
        }
        // SAFETY: a child that has ended; its status is not wanted.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn write_summary(arguments: &Arguments, summary: &Summary) -> Result<()> {
    let text = if arguments.json { serde_json::to_string_pretty(summary)? + "\n" } else { summary.in_words() };
    match &arguments.summary {
        Some(path) => std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display())),
        None => std::io::stderr().write_all(text.as_bytes()).context("standard error cannot be written"),
    }
}

/// Looks at where accesses go while the program runs.
struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Shares>,
}

impl Watch {
    fn start() -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut shares = Shares::default();
            let Ok(mut client) = Client::connect(tandem_view::SOCKET.as_ref()) else { return shares };
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                match client.status() {
                    Ok(Some(status)) => shares.note(&status),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            shares
        });
        Self { end, thread }
    }

    fn end(self) -> Shares {
        drop(self.end);
        self.thread.join().expect("looking does not panic")
    }
}
