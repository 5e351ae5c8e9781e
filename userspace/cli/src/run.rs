// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run`: one program under scx_tandem. The scheduler comes and goes with the program, manages it and its
//! descendants, and assigns nothing else of the machine, though it schedules it. With `--tuned`, what `tandem tune` found takes its place.

pub mod scheduler;
mod signals;
mod summary;
mod tuned;

use std::ffi::OsString;
use std::io::Write as _;
use std::iter;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use signal_hook::consts::SIGTERM;
use tandem_ab::say::say_line;
use tandem_ab::store::{check_writable, write_whole};
use tandem_config::Cli;
use tandem_tune::inherited;
use tandem_view::Client;

use scheduler::Scheduler;
use signals::Forwarding;
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
/// The scheduler cannot be loaded (then the program is not started), the program cannot be started, or the summary not be written
/// of one that succeeded.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(given) = &arguments.tuned {
        let file = given.clone().map_or_else(|| tuned::result_here(&arguments.command), Ok)?;
        return tuned::run(&file, &arguments.command);
    }
    arguments.summary.as_deref().map_or(Ok(()), check_writable)?;
    let flags = scheduler_flags(arguments)?;
    adopt_orphans()?;
    let forwarding = Forwarding::begin()?;
    let given_up = || forwarding.end_wished().is_some();
    let scheduler = Scheduler::start_unless(given_up, &flags, arguments.log.as_deref())?;
    let scheduler = match (scheduler, forwarding.end_wished()) {
        (Some(scheduler), None) => scheduler,
        (scheduler, signal) => {
            scheduler.map_or(Ok(()), |scheduler| scheduler.stop().map(drop))?;
            return Ok(killed_by(signal.unwrap_or(SIGTERM)));
        }
    };
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
    forwarding.to(child.id() as i32);
    let watch = Watch::start();
    let status = wait(&mut child, scheduler.id())?;
    forwarding.close();
    let seconds = start.elapsed().as_secs_f64();
    let shares = watch.end();
    let report = scheduler.stop()?;
    let summary = Summary::new(&arguments.command, status, seconds, shares, &report, is_dry_run(arguments, &flags));
    match write_summary(arguments, &summary) {
        // How the program failed is what its caller must know.
        Err(error) if !status.success() => say_line(format_args!("tandem: {error:#}")),
        written => written?,
    }
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

/// Whether scx_tandem, which took these flags, only observes: a flag, the environment or its file may say so.
fn is_dry_run(arguments: &Arguments, flags: &[OsString]) -> bool {
    let all: Vec<OsString> = iter::once("scx_tandem".into()).chain(flags.iter().cloned()).collect();
    // A file that is no more as it was when scx_tandem read it tells nothing.
    tandem_config::parse::<Cli>(&all).map_or(arguments.dry_run, |(cli, _)| cli.options.dry_run)
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
    status.signal().map_or_else(|| code(status.code().unwrap_or(1)), killed_by)
}

/// As shells have it.
fn killed_by(signal: i32) -> ExitCode {
    code(128 + signal)
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn write_summary(arguments: &Arguments, summary: &Summary) -> Result<()> {
    let text = if arguments.json { serde_json::to_string_pretty(summary)? + "\n" } else { summary.in_words() };
    let print = || std::io::stderr().write_all(text.as_bytes()).context("standard error cannot be written");
    let Some(path) = &arguments.summary else { return print() };
    // What was measured is not lost with the file.
    write_whole(path, text.as_bytes()).or_else(|error| print().and(Err(error)))
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
