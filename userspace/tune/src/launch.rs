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

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tandem_ab::stop::Stop;

use crate::births::{Births, MapUse, monotonic_ns};
use crate::breakpoint::{Breakpoint, Stand, entry_point};
use crate::first_touch::FirstTouch;
use crate::page_use::{Born, Member};
use crate::places::Places;
use crate::process::{Process, bind};
use crate::regions::{Region, Regions};
use crate::seat::{CpuSet, NodeSet};
use crate::wait::{Event, go_on, next_event};

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
}

/// What was seen of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// How it ended.
    pub end: End,
    /// From the program's start to its end.
    pub seconds: f64,
    /// Most threads that one of its processes had at a time.
    pub threads: usize,
    /// Number of its processes, itself included.
    pub processes: usize,
    /// Its parallel regions, those with the most time first; only of a program that is measured.
    pub regions: Vec<Region>,
    /// Where its memory was when its first region or thread began; only of a program that is measured, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_touch: Option<FirstTouch>,
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
            first_touch: None,
            map_use: None,
            allocations: Vec::new(),
            members: Vec::new(),
        }
    }
}

/// Runs `program` in `places`, for `limit` at most, until a stop is wished. `started` is told its process.
///
/// # Errors
/// It cannot be started, or cannot be traced or placed.
pub fn run(
    program: &Program,
    places: &Places,
    limit: Option<Duration>,
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
    limit: Option<Duration>,
    stop: &Stop,
    started: impl FnOnce(i32) + Send,
) -> Result<Seen> {
    let mut command = command(program, places)?;
    let name = command.get_program().to_string_lossy().into_owned();
    // The child is waited for below, by the calls of tracing.
    let child = command.spawn().with_context(|| format!("{name}: cannot be started"))?;
    let root = Pid::from_raw(child.id().cast_signed());
    let handle = pidfd(root)?;
    let is_measured = matches!(program.streams, Streams::Files { .. });
    started(root.as_raw());
    let (ended, wait_for_end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || watch(&handle, limit, stop, &wait_for_end));
        let seen = Tracer::new(root, places, &program.functions, is_measured).and_then(Tracer::run);
        drop(ended);
        let stopped = watch.join().expect("watching does not panic");
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

/// A handle of a process that never means another one.
fn pidfd(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: takes plain numbers.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if handle < 0 {
        return Err(std::io::Error::last_os_error()).context("the program cannot be watched");
    }
    // SAFETY: a new descriptor, of nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(handle as i32) })
}

/// Kills the process after `limit` or when a stop is wished; returns which, if either, before `ended` hangs up.
fn watch(process: &OwnedFd, limit: Option<Duration>, stop: &Stop, ended: &mpsc::Receiver<()>) -> Option<End> {
    let start = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        if ended.recv_timeout(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)) == Err(RecvTimeoutError::Disconnected) {
            return None;
        }
        let end = match left {
            _ if stop.wished() => End::Stopped,
            Some(left) if left.is_zero() => End::TooLong,
            _ => continue,
        };
        // SAFETY: the descriptor is open and the other arguments are plain numbers. A process that has ended needs none.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, 0, 0) };
        return Some(end);
    }
}

/// Follows all threads of a program.
struct Tracer<'a> {
    root: Pid,
    places: &'a Places,
    /// Functions that count as regions.
    functions: &'a [String],
    /// Whether there are breakpoints at regions while it runs: what it leaves behind is ended with it then.
    has_breakpoints: bool,
    is_measured: bool,
    /// By process: where its memory was when its first region, or else its first thread, began; whether it was a region.
    first_touches: BTreeMap<Pid, (FirstTouch, bool)>,
    /// By process whose main thread is bound until its first thread is born: what CPUs it had.
    held: BTreeMap<Pid, CpuSet>,
    /// By the process's id.
    processes: BTreeMap<Pid, Process>,
    /// The process of each thread.
    owners: BTreeMap<Pid, Pid>,
    /// All that it was there for was measured.
    is_complete: bool,
    /// New threads with their CPUs, whose first stop is to come.
    unborn: BTreeMap<Pid, Option<CpuSet>>,
    /// New threads that are stopped, whose parents' words are to come.
    stopped: BTreeSet<Pid>,
    /// By process, where the program proper begins.
    entries: BTreeMap<Pid, Breakpoint>,
    /// By process.
    regions: BTreeMap<Pid, Regions>,
    /// Those of processes that have ended.
    past_regions: Vec<Region>,
    /// Binds what is allocated, if anything is to be bound.
    births: Option<Births>,
    /// Its threads, if they are to be told.
    members: Vec<Member>,
    start: Instant,
    /// How long the program stood while its runtimes were looked for.
    stood: Duration,
    most_threads: usize,
    all_processes: usize,
}

impl<'a> Tracer<'a> {
    /// Takes over `root`, which stops at its exec.
    fn new(root: Pid, places: &'a Places, functions: &'a [String], is_measured: bool) -> Result<Self> {
        match next_event()? {
            (pid, Event::Signal(libc::SIGTRAP)) if pid == root => {}
            (_, other) => bail!("the program did not stop at its start: {other:?}"),
        }
        let mut options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACESECCOMP;
        let births = Births::of(places)?;
        let has_breakpoints = is_measured || places.is_by_region();
        // Without its tracer a program whose calls are filtered would get no more memory.
        options.set(Options::PTRACE_O_EXITKILL, has_breakpoints || births.is_some());
        ptrace::setoptions(root, options).context("the program cannot be traced")?;
        let mut tracer = Self {
            root,
            places,
            functions,
            has_breakpoints,
            is_measured,
            first_touches: BTreeMap::new(),
            held: BTreeMap::new(),
            processes: BTreeMap::new(),
            owners: BTreeMap::new(),
            is_complete: false,
            unborn: BTreeMap::new(),
            stopped: BTreeSet::new(),
            entries: BTreeMap::new(),
            regions: BTreeMap::new(),
            past_regions: Vec::new(),
            births,
            members: Vec::new(),
            start: Instant::now(),
            stood: Duration::ZERO,
            most_threads: 1,
            all_processes: 1,
        };
        tracer.begin(root)?;
        go_on(root, 0)?;
        Ok(tracer)
    }

    fn run(mut self) -> Result<Seen> {
        let mut seen = None;
        loop {
            // Those whose allocations are bound need a tracer to their end.
            if let Some(seen) =
                seen.take_if(|_| self.births.is_none() || self.has_breakpoints || self.processes.is_empty())
            {
                self.end_rest()?;
                return Ok(seen);
            }
            match next_event()? {
                (pid, Event::Ended(end)) if pid == self.root => seen = Some(self.seen(end)),
                (pid, Event::Ended(_)) => self.forget(pid),
                (pid, Event::Call) => {
                    if let Some(births) = &mut self.births {
                        births.called(pid, process_of(pid).unwrap_or(pid))?;
                    }
                    go_on(pid, 0)?;
                }
                (pid, Event::Exec) => {
                    self.begin(pid)?;
                    go_on(pid, 0)?;
                }
                (pid, Event::Birth) => {
                    // A parent that was killed just now has no child.
                    if let Ok(new) = ptrace::getevent(pid) {
                        self.born(pid, Pid::from_raw(new as i32))?;
                    }
                    go_on(pid, 0)?;
                }
                (pid, Event::Signal(libc::SIGSTOP)) if self.is_new(pid) => self.first_stop(pid)?,
                (pid, Event::Signal(libc::SIGTRAP)) if self.at_breakpoint(pid)? => go_on(pid, 0)?,
                (pid, Event::Signal(signal)) => go_on(pid, signal)?,
            }
        }
    }

    /// Ends what is left of a program with breakpoints. Otherwise what outlives the program does so untraced from now on.
    fn end_rest(mut self) -> Result<()> {
        while self.has_breakpoints && !self.processes.is_empty() {
            for &process in self.processes.keys() {
                // SAFETY: a plain system call; the process was not waited for yet, so its id is its own.
                unsafe { libc::kill(process.as_raw(), libc::SIGKILL) };
            }
            match next_event()? {
                (pid, Event::Ended(_)) => self.forget(pid),
                (pid, Event::Birth) => {
                    if let Ok(new) = ptrace::getevent(pid) {
                        self.born(pid, Pid::from_raw(new as i32))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_new(&self, thread: Pid) -> bool {
        self.unborn.contains_key(&thread) || !self.owners.contains_key(&thread)
    }

    /// What was seen, as the program ends now.
    fn seen(&mut self, end: End) -> Seen {
        let seconds = self.start.elapsed().saturating_sub(self.stood).as_secs_f64();
        let end = if self.is_complete && end == End::Signal(libc::SIGKILL) { End::Measured } else { end };
        self.forget(self.root);
        let open = self.regions.values().flat_map(Regions::regions);
        let regions = together(self.past_regions.drain(..).chain(open));
        let first_touch = std::mem::take(&mut self.first_touches).into_values().map(|(first_touch, _)| first_touch);
        let first_touch = first_touch.max_by_key(FirstTouch::all_pages);
        Seen {
            threads: self.most_threads,
            processes: self.all_processes,
            regions,
            first_touch,
            map_use: self.births.as_ref().and_then(Births::map_use),
            allocations: self.births.as_mut().map(Births::take_told).unwrap_or_default(),
            members: std::mem::take(&mut self.members),
            ..Seen::of(end, seconds)
        }
    }

    /// A process has a new program: one thread, with the first seat.
    fn begin(&mut self, process: Pid) -> Result<()> {
        self.owners.retain(|_, owner| *owner != process);
        self.owners.insert(process, process);
        self.processes.insert(process, Process::of(process));
        self.tell(process, process, 0);
        self.note_regions(process);
        if let Some(births) = &mut self.births {
            births.forget(process);
        }
        let is_bound = !self.places.seats.is_empty() || self.places.main.is_some();
        if self.has_breakpoints || is_bound || self.births.is_some() {
            match entry_point(process).and_then(|address| Breakpoint::set(process, address)) {
                Some(entry) => {
                    self.entries.insert(process, entry);
                }
                None => self.bind_main(process)?,
            }
        }
        Ok(())
    }

    /// Deals with a thread that stands at a breakpoint; false if it does not.
    fn at_breakpoint(&mut self, thread: Pid) -> Result<bool> {
        if let Some(entry) = self.entries.get(&thread).copied()
            && Stand::of(thread).is_some_and(|stand| stand.at == entry.address)
        {
            let since = Instant::now();
            self.entries.remove(&thread);
            entry.remove(thread)?;
            self.bind_main(thread)?;
            if let Some(births) = &mut self.births {
                births.began(thread)?;
            }
            if let Some(regions) = self.has_breakpoints.then(|| Regions::of(thread, self.functions)).flatten() {
                self.regions.insert(thread, regions);
            }
            self.stood += since.elapsed();
            return Ok(true);
        }
        let owner = self.owners.get(&thread).copied().unwrap_or(thread);
        let is_noted = !self.is_measured || self.first_touches.get(&owner).is_some_and(|known| known.1);
        if !is_noted && thread == owner && self.regions.get(&owner).is_some_and(|known| known.is_at_entry(thread)) {
            self.note_first_touch(owner, true);
        }
        let (Some(regions), Some(process)) = (self.regions.get_mut(&owner), self.processes.get_mut(&owner)) else {
            return Ok(false);
        };
        let is_ours = regions.stopped(thread, thread == owner, self.places, process)?;
        self.stood += regions.take_stood();
        if !self.is_complete && self.choices().is_some_and(|choices| self.regions[&owner].are_measured(choices)) {
            self.is_complete = true;
            // SAFETY: a plain system call; the program was not waited for yet, so its id is its own.
            unsafe { libc::kill(self.root.as_raw(), libc::SIGKILL) };
        }
        Ok(is_ours)
    }

    /// How many seats a region takes in turns.
    fn choices(&self) -> Option<usize> {
        self.places.by_region.as_ref()?.turns.as_ref().map(|turns| turns.choices.len())
    }

    /// Keeps the regions of a process that has ended or has a new program.
    fn note_regions(&mut self, process: Pid) {
        self.past_regions.extend(self.regions.remove(&process).iter().flat_map(Regions::regions));
    }

    /// A new thread or process, in its parent's words: they come in the order of births, so seats are given now.
    fn born(&mut self, parent: Pid, new: Pid) -> Result<()> {
        let owner = process_of(new).unwrap_or(new);
        let of_parent = self.owners.get(&parent).copied();
        self.owners.insert(new, owner);
        if owner == new {
            self.all_processes += 1;
            if let (Some(births), Some(parent)) = (&mut self.births, process_of(parent)) {
                births.copied(parent, new);
            }
            // Its memory is a copy, breakpoints included.
            let same = of_parent.and_then(|parent| self.regions.get(&parent)).map(Regions::of_a_copy);
            self.regions.extend(same.map(|regions| (new, regions)));
            self.processes.insert(new, Process::of(new));
        }
        if owner != new {
            self.note_first_touch(owner, false);
        }
        let process = self.processes.entry(owner).or_default();
        let seat = if owner == new { 0 } else { process.seat(new) };
        self.most_threads = self.most_threads.max(process.threads());
        // The runtimes' teams are born of the main thread.
        let in_team = (parent == owner && owner != new).then(|| process.join(new)).flatten();
        self.tell(owner, new, seat);
        let held = of_parent.and_then(|parent| self.held.get(&parent)).cloned();
        if owner != new
            && let Some(cpus) = self.held.remove(&owner)
        {
            bind(owner, &cpus)?;
        }
        let cpus = in_team.or_else(|| self.home(seat)).or(held);
        if self.stopped.remove(&new) {
            return self.let_in(new, cpus.as_ref());
        }
        self.unborn.insert(new, cpus);
        Ok(())
    }

    /// Notes a thread, if threads are to be told.
    fn tell(&mut self, process: Pid, thread: Pid, rank: usize) {
        if self.places.tells_allocations {
            let [process, thread] = [process, thread].map(Pid::as_raw);
            self.members.push(Member { process, thread, rank, at_ns: monotonic_ns() });
        }
    }

    /// The first stop of a new thread or process, which comes before or after its parent's words.
    fn first_stop(&mut self, new: Pid) -> Result<()> {
        if let Some(cpus) = self.unborn.remove(&new) {
            return self.let_in(new, cpus.as_ref());
        }
        self.stopped.insert(new);
        Ok(())
    }

    /// Puts a new thread that is stopped onto its seat, and lets it run.
    fn let_in(&self, new: Pid, cpus: Option<&CpuSet>) -> Result<()> {
        cpus.map_or(Ok(()), |cpus| bind(new, cpus))?;
        go_on(new, 0)
    }

    /// The CPUs of a seat outside of regions.
    fn home(&self, seat: usize) -> Option<CpuSet> {
        seat.checked_rem(self.places.seats.len()).map(|at| self.places.seats[at].clone())
    }

    /// Notes where the memory of a process is as its first region, or else its first thread, begins.
    fn note_first_touch(&mut self, process: Pid, by_region: bool) {
        let is_known = self.first_touches.get(&process).is_some_and(|known| known.1 || !by_region);
        if !self.is_measured || is_known {
            return;
        }
        let since = Instant::now();
        let noted = FirstTouch::of(process).map(|first_touch| (process, (first_touch, by_region)));
        self.first_touches.extend(noted);
        self.stood += since.elapsed();
    }

    /// Puts the main thread of a process onto its seat, or where it is held until its first thread is born.
    fn bind_main(&mut self, process: Pid) -> Result<()> {
        if let Some(cpus) = self.places.main.as_ref().filter(|_| self.places.seats.is_empty()) {
            if let Ok(before) = CpuSet::of_thread(process.as_raw()) {
                // One that has a new program is held already.
                self.held.entry(process).or_insert(before);
                bind(process, cpus)?;
            }
            return Ok(());
        }
        self.home(0).map_or(Ok(()), |cpus| bind(process, &cpus))
    }

    fn forget(&mut self, pid: Pid) {
        self.unborn.remove(&pid);
        self.stopped.remove(&pid);
        self.note_regions(pid);
        self.entries.remove(&pid);
        self.held.remove(&pid);
        if let Some(births) = &mut self.births {
            births.forget(pid);
        }
        let owner = self.owners.remove(&pid).unwrap_or(pid);
        if self.processes.get_mut(&owner).is_some_and(|process| process.forget(pid)) {
            self.processes.remove(&owner);
        }
    }
}

/// Regions of the same name as one, those with the most time first.
fn together(regions: impl Iterator<Item = Region>) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    for region in regions {
        match all.iter_mut().find(|known| known.name == region.name) {
            Some(known) => {
                known.entries += region.entries;
                known.seconds += region.seconds;
                known.own_threads = known.own_threads.or(region.own_threads);
                known.samples.resize(known.samples.len().max(region.samples.len()), Vec::new());
                known.samples.iter_mut().zip(region.samples).for_each(|(all, new)| all.extend(new));
            }
            None => all.push(region),
        }
    }
    all.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    all
}

/// The process of a thread.
fn process_of(thread: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_by_region;
