// SPDX-License-Identifier: GPL-2.0-only
//! One run of a program whose threads have seats from their birth.
//!
//! Problem: where a thread is when it first touches memory decides where that memory is, so threads must be in their
//! places before they run, and the main thread before it initialises anything; in any program, without its help.
//! Mechanism: the program is traced (ptrace). A new thread is stopped before its first instruction; then it gets the
//! lowest seat of its process that is empty, and may run on the CPUs of that seat's node. Only births, ends and signals
//! stop a thread, and where parallel regions begin and end ([`crate::regions`]). Pages follow by first touch, or by the memory policy that
//! the program starts with, or are bound as they are allocated ([`crate::births`]). What is left when a measured program ends is ended with it.
//!
//! The main thread gets its seat when the program proper begins: until then libraries initialise, and the
//! OpenMP runtimes count the CPUs they may use.
//!
//! While regions are measured, or have seats of their own, the program has breakpoints, which would end it if nobody dealt
//! with them: it is killed when this process is.
//!
//! Here a program is started and watched from outside; `tracer` follows its threads.

mod codelet;
mod tracer;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::ptrace;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tandem_ab::stop::Stop;

use crate::births::MapUse;
use crate::first_touch::FirstTouch;
use crate::inherited;
use crate::page_use::{Born, Member};
use crate::places::Places;
use crate::regions::Region;
use crate::seat::NodeSet;
use crate::wait::{Event, next_event};
pub use codelet::{Codelet, Entry};
use tracer::Tracer;

/// How often the wish to stop is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the OpenMP runtimes read that would contradict seats.
const CONTRADICTIONS: [&str; 4] = ["OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "OMP_DYNAMIC"];

/// libomp binds each new thread to the CPUs that its main thread has when the first region begins, unless it is told not to.
const LEFT_ALONE: (&str, &str) = ("KMP_AFFINITY", "disabled");

/// What is run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// What it reads and writes.
    pub streams: Streams,
    /// Functions that count as parallel regions.
    pub functions: Vec<String>,
}

/// What a program reads and writes.
#[derive(Clone, Debug)]
pub enum Streams {
    /// What this process reads and writes. Signals from the terminal reach both.
    Ours,
    /// Files; Ctrl-C is for this process, which then ends the program.
    Files {
        /// Standard input; nothing if none.
        input: Option<PathBuf>,
        /// Standard output and error.
        output: PathBuf,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was stopped because it took too long.
    TooLong,
    /// It was stopped because the user wished so.
    Stopped,
    /// It was stopped because what it was there to measure was measured.
    Measured,
    /// It was stopped because it asked for the terminal, which is not its own: it would ask again and again.
    WantsTerminal,
}

/// When a run is ended before it ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    /// After so long: it takes too long.
    pub time: Option<Duration>,
    /// After so many entries of its parallel regions: what it was there to measure was measured.
    pub entries: Option<u64>,
}

/// What was seen of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// How it ended.
    pub end: End,
    /// From the program's start to its end, or until all was measured.
    pub seconds: f64,
    /// Most threads that one of its processes had at a time.
    pub threads: usize,
    /// Number of its processes, itself included.
    pub processes: usize,
    /// Its parallel regions, those with the most time first; only of a program that is measured.
    pub regions: Vec<Region>,
    /// Whether its regions are not told because the stops at them, or where it loads code, took too much of its time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stops_too_often: bool,
    /// Where its memory was when its first region or thread began; only of a program that is measured, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_touch: Option<FirstTouch>,
    /// Files that its processes had mapped as code when each began, loaded or unloaded some, had its first region or made its first thread; only of a
    /// program that is measured. Those whose names are no text are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<String>,
    /// What became of the map of pages, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_use: Option<MapUse>,
    /// Its allocations, if they were [to be told](Places::tells_allocations).
    #[serde(skip)]
    pub allocations: Vec<Born>,
    /// Its threads, likewise.
    #[serde(skip)]
    pub members: Vec<Member>,
}

impl Seen {
    /// One process of one thread, of which nothing else was seen.
    pub fn of(end: End, seconds: f64) -> Self {
        Self {
            end,
            seconds,
            threads: 1,
            processes: 1,
            regions: Vec::new(),
            stops_too_often: false,
            first_touch: None,
            code: Vec::new(),
            map_use: None,
            allocations: Vec::new(),
            members: Vec::new(),
        }
    }
}

/// Runs `program` in `places`, to the `limit` at most, until a stop is wished. `started` is told its process.
///
/// # Errors
/// It cannot be started, or cannot be traced or placed.
pub fn run(
    program: &Program,
    places: &Places,
    limit: Limit,
    stop: &Stop,
    started: impl FnOnce(i32) + Send,
) -> Result<Seen> {
    // A thread of its own: it waits for its own children only, and what is left of the program ends with it.
    std::thread::scope(|scope| {
        let traced = scope.spawn(|| traced(program, places, limit, stop, started));
        traced.join().expect("tracing does not panic")
    })
}

fn traced(
    program: &Program,
    places: &Places,
    limit: Limit,
    stop: &Stop,
    started: impl FnOnce(i32) + Send,
) -> Result<Seen> {
    let root = start(command(program, places)?)?;
    started(root.as_raw());
    watched(root, limit.time, stop, |stood_ns| {
        Tracer::new(root, places, program, limit.entries, stood_ns).and_then(Tracer::run)
    })
}

/// Starts a program that stops at its exec. It is waited for by the calls of tracing.
fn start(mut command: Command) -> Result<Pid> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().with_context(|| format!("{name}: cannot be started"))?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// Follows a program, which is ended when it has run for `limit` or a stop is wished.
fn watched(
    root: Pid,
    limit: Option<Duration>,
    stop: &Stop,
    follow: impl FnOnce(&AtomicU64) -> Result<Seen>,
) -> Result<Seen> {
    let handle = pidfd(root)?;
    let to_end = handle.try_clone().context("the program cannot be watched")?;
    let (ended, wait_for_end) = mpsc::channel::<()>();
    let stood_ns = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || watch(&handle, limit, stop, &wait_for_end, stood_ns));
        let seen = follow(stood_ns);
        drop(ended);
        let stopped = watch.join().expect("watching does not panic");
        if seen.is_err() {
            end_now(root, &to_end);
        }
        let mut seen = seen?;
        // What ends by itself at the last moment has ended by itself.
        if let (Some(end), End::Signal(libc::SIGKILL)) = (stopped, &seen.end) {
            seen.end = end;
        }
        Ok(seen)
    })
}

fn command(program: &Program, places: &Places) -> Result<Command> {
    let (name, words) = program.command.split_first().context("there is no program to run")?;
    let mut command = Command::new(name);
    command.args(words);
    if let Streams::Files { input, output } = &program.streams {
        command.stdin(match input {
            Some(path) => File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?.into(),
            None => Stdio::null(),
        });
        let file = File::create(output).with_context(|| format!("{}: cannot be written", output.display()))?;
        command.stdout(file.try_clone()?).stderr(file).process_group(0);
    }
    if let Some(threads) = places.threads {
        command.env("OMP_NUM_THREADS", threads.to_string());
    }
    if !places.seats.is_empty() {
        for name in CONTRADICTIONS {
            command.env_remove(name);
        }
        command.env(LEFT_ALONE.0, LEFT_ALONE.1);
    }
    inherited::pass_on(&mut command).context("what signals the program gets is not known")?;
    let start = places.all_cpus();
    let page_nodes = (!places.page_nodes.is_empty()).then(|| NodeSet::of(&places.page_nodes));
    #[cfg(target_arch = "x86_64")]
    let binds = !places.chunks.is_empty() || places.page_map.is_some() || places.tells_allocations;
    // SAFETY: between fork and exec only system calls are made, on what is there already.
    unsafe {
        command.pre_exec(move || {
            if let Some(cpus) = &start {
                cpus.allow(0)?;
            }
            if let Some(nodes) = &page_nodes {
                nodes.interleave_from_now_on()?;
            }
            #[cfg(target_arch = "x86_64")]
            if binds {
                crate::call_filter::stop_at_births()?;
            }
            Ok(ptrace::traceme()?)
        });
    }
    Ok(command)
}

/// Ends a program that cannot be traced to its end: nobody would let its threads go on.
fn end_now(root: Pid, handle: &OwnedFd) {
    kill(handle);
    // If its end was told already, there is nobody to wait for.
    while let Ok((pid, event)) = next_event() {
        if pid == root && matches!(event, Event::Ended(_)) {
            return;
        }
    }
}

/// A handle of a process that never means another one.
pub(crate) fn pidfd(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: takes plain numbers.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if handle < 0 {
        return Err(std::io::Error::last_os_error()).context("the program cannot be watched");
    }
    // SAFETY: a new descriptor, of nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(handle as i32) })
}

/// Kills a process, unless it has ended already.
fn kill(process: &OwnedFd) {
    // SAFETY: the descriptor is open and the other arguments are plain numbers.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, 0, 0) };
}

/// A program stood for so long more.
fn stand(stood_ns: &AtomicU64, time: Duration) {
    stood_ns.fetch_add(time.as_nanos() as u64, Relaxed);
}

/// While it lives no time passes for the program, whose limit may be shorter than what is done meanwhile.
struct Standing<'a> {
    stood_ns: &'a AtomicU64,
    since: Instant,
}

impl<'a> Standing<'a> {
    /// More than any limit.
    const LONG: Duration = Duration::from_secs(1 << 32);

    fn begin(stood_ns: &'a AtomicU64) -> Self {
        stand(stood_ns, Self::LONG);
        Self { stood_ns, since: Instant::now() }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let too_much = Self::LONG.saturating_sub(self.since.elapsed());
        self.stood_ns.fetch_sub(too_much.as_nanos() as u64, Relaxed);
    }
}

/// How long it stood.
fn stood(stood_ns: &AtomicU64) -> Duration {
    Duration::from_nanos(stood_ns.load(Relaxed))
}

/// Kills the process when it has run for `limit`, less the times it stood that are over, or when a stop is wished; returns which, if
/// either, before `ended` hangs up.
fn watch(
    process: &OwnedFd,
    limit: Option<Duration>,
    stop: &Stop,
    ended: &mpsc::Receiver<()>,
    stood_ns: &AtomicU64,
) -> Option<End> {
    let start = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed().saturating_sub(stood(stood_ns))));
        if ended.recv_timeout(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)) == Err(RecvTimeoutError::Disconnected) {
            return None;
        }
        let end = match left {
            _ if stop.wished() => End::Stopped,
            Some(left) if left.is_zero() => End::TooLong,
            _ => continue,
        };
        kill(process);
        return Some(end);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_by_region;
#[cfg(test)]
mod tests_of_assigners;
#[cfg(test)]
mod tests_of_codelets;
#[cfg(test)]
mod tests_of_plugins;
