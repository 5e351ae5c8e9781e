// SPDX-License-Identifier: GPL-2.0-only
//! Follows the threads of a traced program from birth to end: seats, regions, allocations. What stops them and why is told
//! in [`super`].

mod ending;
mod frozen;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use tandem_machine::monotonic_ns;

use super::{End, Program, Seen, Streams, stand, stood};
use crate::births::Births;
use crate::breakpoint::{Breakpoint, Stand, entry_point};
use crate::first_touch::FirstTouch;
use crate::loads::Loads;
use crate::mapped::Part;
use crate::page_use::Member;
use crate::places::Places;
use crate::process::{Process, bind, process_of};
use crate::regions::{Region, Regions, together};
use crate::seat::CpuSet;
use crate::wait::{Event, go_on, is_gone, next_event};

pub(super) use frozen::Frozen;

/// What a traced thread tells of, besides its signals. The program is ended when its tracer is if it `ends_with_us`.
fn options(ends_with_us: bool) -> Options {
    let mut options = Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACESECCOMP;
    options.set(Options::PTRACE_O_EXITKILL, ends_with_us);
    options
}

/// Follows all threads of a program.
pub(super) struct Tracer<'a> {
    root: Pid,
    places: &'a Places,
    /// Functions that count as regions.
    functions: &'a [String],
    /// Whether there are breakpoints at regions while it runs: what it leaves behind is ended with it then.
    has_breakpoints: bool,
    is_measured: bool,
    /// Files that its processes had mapped as code.
    code: BTreeSet<String>,
    /// By process: where its memory was when its first region, or else its first thread, began; whether it was a region.
    first_touches: BTreeMap<Pid, (FirstTouch, bool)>,
    /// By process whose main thread is bound until its first thread is born: what CPUs it had.
    held: BTreeMap<Pid, CpuSet>,
    /// By the process's id.
    processes: BTreeMap<Pid, Process>,
    /// The process of each thread.
    owners: BTreeMap<Pid, Pid>,
    /// After how many entries of regions the run is over.
    last_entry: Option<u64>,
    /// How long it took until all that it was there for was measured.
    complete: Option<Duration>,
    /// Whether one of its processes asked for the terminal.
    wants_terminal: bool,
    /// New threads with their CPUs, whose first stop is to come.
    unborn: BTreeMap<Pid, Option<CpuSet>>,
    /// New threads that are stopped, whose parents' words are to come.
    stopped: BTreeSet<Pid>,
    /// By process, where the program proper begins.
    entries: BTreeMap<Pid, Breakpoint>,
    /// By process.
    regions: BTreeMap<Pid, Regions>,
    /// By process that may load code while it runs.
    loads: BTreeMap<Pid, Loads>,
    /// Those of processes that have ended.
    past_regions: Vec<Region>,
    /// Whether any process went on without breakpoints because of what its stops took.
    stops_too_often: bool,
    /// Binds what is allocated, if anything is to be bound.
    births: Option<Births>,
    /// Its threads, if they are to be told.
    members: Vec<Member>,
    start: Instant,
    /// How long the program stood while its runtimes were looked for, in ns: whoever ends it when its time is over knows it too.
    stood_ns: &'a AtomicU64,
    most_threads: usize,
    all_processes: usize,
}

impl<'a> Tracer<'a> {
    /// Takes over `root`, which stops at its exec.
    pub(super) fn new(
        root: Pid,
        places: &'a Places,
        program: &'a Program,
        last_entry: Option<u64>,
        stood_ns: &'a AtomicU64,
    ) -> Result<Self> {
        let is_measured = matches!(program.streams, Streams::Files { .. });
        match next_event()? {
            (pid, Event::Signal(libc::SIGTRAP)) if pid == root => {}
            (_, other) => bail!("the program did not stop at its start: {other:?}"),
        }
        let births = Births::of(places)?;
        let has_breakpoints = is_measured || places.is_by_region();
        // Without its tracer a program whose calls are filtered would get no more memory.
        let ends_with_us = has_breakpoints || births.is_some();
        ptrace::setoptions(root, options(ends_with_us)).context("the program cannot be traced")?;
        let blank = Self::of(root, places, &program.functions, stood_ns);
        let mut tracer = Self { has_breakpoints, is_measured, last_entry, births, ..blank };
        tracer.begin(root)?;
        go_on(root, 0)?;
        Ok(tracer)
    }

    /// One that knows nothing yet.
    fn of(root: Pid, places: &'a Places, functions: &'a [String], stood_ns: &'a AtomicU64) -> Self {
        Self {
            root,
            places,
            functions,
            has_breakpoints: false,
            is_measured: false,
            code: BTreeSet::new(),
            first_touches: BTreeMap::new(),
            held: BTreeMap::new(),
            processes: BTreeMap::new(),
            owners: BTreeMap::new(),
            last_entry: None,
            complete: None,
            wants_terminal: false,
            unborn: BTreeMap::new(),
            stopped: BTreeSet::new(),
            entries: BTreeMap::new(),
            regions: BTreeMap::new(),
            loads: BTreeMap::new(),
            past_regions: Vec::new(),
            stops_too_often: false,
            births: None,
            members: Vec::new(),
            start: Instant::now(),
            stood_ns,
            most_threads: 1,
            all_processes: 1,
        }
    }

    pub(super) fn run(mut self) -> Result<Seen> {
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
                (pid, event) => match self.stopped_by(pid, event) {
                    // Who is killed while it is dealt with tells its end next.
                    Err(error) if !is_gone(&error) => return Err(error),
                    _ => {}
                },
            }
        }
    }

    /// Deals with a thread that stopped, and lets it go on.
    fn stopped_by(&mut self, thread: Pid, event: Event) -> Result<()> {
        match event {
            Event::Ended(_) => return Ok(()),
            Event::Call => {
                if let Some(births) = &mut self.births {
                    births.called(thread, process_of(thread).unwrap_or(thread))?;
                }
            }
            Event::Exec => self.begin(thread)?,
            Event::Birth => {
                // A parent that was killed just now does not say whom it made.
                if let Ok(new) = ptrace::getevent(thread) {
                    self.born(thread, Pid::from_raw(new as i32))?;
                }
            }
            Event::Signal(libc::SIGSTOP) if self.is_new(thread) => return self.first_stop(thread),
            Event::Signal(libc::SIGTRAP) if self.at_breakpoint(thread)? => {}
            Event::Signal(libc::SIGTTIN | libc::SIGTTOU) if self.is_measured => {
                self.wants_terminal = true;
                self.end_program();
            }
            Event::Signal(signal) => return go_on(thread, signal),
        }
        go_on(thread, 0)
    }

    fn is_new(&self, thread: Pid) -> bool {
        self.unborn.contains_key(&thread) || !self.owners.contains_key(&thread)
    }

    /// What was seen, as the program ends now.
    fn seen(&mut self, end: End) -> Seen {
        let complete = self.complete.filter(|_| end == End::Signal(libc::SIGKILL));
        let end = match end {
            End::Signal(libc::SIGKILL) if complete.is_some() => End::Measured,
            End::Signal(libc::SIGKILL) if self.wants_terminal => End::WantsTerminal,
            end => end,
        };
        let seconds = complete.unwrap_or_else(|| self.took()).as_secs_f64();
        self.forget(self.root);
        let open = self.regions.values().flat_map(Regions::regions);
        let regions = together(self.past_regions.drain(..).chain(open));
        let first_touch = std::mem::take(&mut self.first_touches).into_values().map(|(first_touch, _)| first_touch);
        let first_touch = first_touch.max_by_key(FirstTouch::all_pages);
        Seen {
            threads: self.most_threads,
            processes: self.all_processes,
            regions,
            stops_too_often: self.stops_too_often || self.regions.values().any(Regions::stops_too_often),
            first_touch,
            code: std::mem::take(&mut self.code).into_iter().collect(),
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
        // Started by a program that has its seat already: runtimes count the CPUs that they may use before the entry point.
        let all = self.places.all_cpus();
        if let Some(cpus) = all.as_ref().or(self.held.get(&process)) {
            bind(process, cpus)?;
        }
        if self.has_breakpoints || is_bound || self.births.is_some() {
            match entry_point(process).and_then(|address| Breakpoint::set(process, address)) {
                Some(entry) => {
                    self.entries.insert(process, entry);
                }
                None => {
                    self.note_code(process);
                    self.bind_main(process)?;
                }
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
            // Libraries are loaded by now, those that are preloaded included.
            self.note_code(thread);
            self.bind_main(thread)?;
            if let Some(births) = &mut self.births {
                births.began(thread)?;
            }
            if self.has_breakpoints {
                self.regions.insert(thread, self.regions_of(thread));
                self.loads.extend(Loads::of(thread, self.are_kept()).map(|loads| (thread, loads)));
            }
            self.stand_since(since);
            return Ok(true);
        }
        let owner = self.owners.get(&thread).copied().unwrap_or(thread);
        if self.loads.get(&owner).is_some_and(|loads| loads.are_at(thread)) {
            return self.has_loaded(thread, owner).map(|()| true);
        }
        let is_noted = !self.is_measured || self.first_touches.get(&owner).is_some_and(|known| known.1);
        if !is_noted && thread == owner && self.regions.get(&owner).is_some_and(|known| known.is_at_entry(thread)) {
            self.note_first_touch(owner, true);
        }
        let (Some(regions), Some(process)) = (self.regions.get_mut(&owner), self.processes.get_mut(&owner)) else {
            return Ok(false);
        };
        let is_ours = regions.stopped(thread, thread == owner, self.places, process)?;
        stand(self.stood_ns, regions.take_stood());
        let is_complete = self.choices().is_some_and(|choices| self.regions[&owner].are_measured(choices))
            || self.last_entry.is_some_and(|last| self.entries_of_regions() >= last);
        if self.complete.is_none() && is_complete {
            self.complete = Some(self.took());
            self.end_program();
        }
        Ok(is_ours)
    }

    /// `thread` stands where what its process has loaded changes.
    fn has_loaded(&mut self, thread: Pid, owner: Pid) -> Result<()> {
        let since = Instant::now();
        let were_over = self.loads.get(&owner).is_some_and(Loads::are_over);
        if !were_over {
            self.note_code(owner);
            self.regions.entry(owner).and_modify(|regions| regions.look(thread, self.functions));
        }
        let loads = self.loads.get_mut(&owner).context("it loads nothing")?;
        loads.pass(thread, since)?;
        if loads.are_over() && !were_over {
            self.stops_too_often = true;
            self.regions.get_mut(&owner).map_or(Ok(()), |regions| regions.give_up(thread))?;
        }
        self.stand_since(since);
        Ok(())
    }

    fn end_program(&self) {
        // SAFETY: a plain system call; the program was not waited for yet, so its id is its own.
        unsafe { libc::kill(self.root.as_raw(), libc::SIGKILL) };
    }

    /// How long the program has run.
    fn took(&self) -> Duration {
        self.start.elapsed().saturating_sub(stood(self.stood_ns))
    }

    /// It stands since then, and goes on now.
    fn stand_since(&self, since: Instant) {
        stand(self.stood_ns, since.elapsed());
    }

    /// How many entries of regions have ended.
    fn entries_of_regions(&self) -> u64 {
        let open: u64 = self.regions.values().map(Regions::entries).sum();
        open + self.past_regions.iter().map(|region| region.entries).sum::<u64>()
    }

    /// How many seats a region takes in turns.
    fn choices(&self) -> Option<usize> {
        self.places.by_region.as_ref()?.turns.as_ref().map(|turns| turns.choices.len())
    }

    /// The regions of a process whose main thread stands where the program proper begins. Where they have seats of their own, or
    /// count, they are not given up.
    fn regions_of(&self, process: Pid) -> Regions {
        Regions::of(process, self.functions, self.are_kept())
    }

    /// Whether regions are told to the end, whatever that takes.
    fn are_kept(&self) -> bool {
        self.places.is_by_region() || self.last_entry.is_some()
    }

    /// Keeps the regions of a process that has ended or has a new program.
    fn note_regions(&mut self, process: Pid) {
        self.loads.remove(&process);
        let Some(regions) = self.regions.remove(&process) else { return };
        self.stops_too_often |= regions.stops_too_often();
        self.past_regions.extend(regions.regions());
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
            let same = of_parent.and_then(|parent| self.loads.get(&parent)).map(Loads::of_a_copy);
            self.loads.extend(same.map(|loads| (new, loads)));
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
            return self.let_in(new, cpus);
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
            return self.let_in(new, cpus);
        }
        self.stopped.insert(new);
        Ok(())
    }

    /// Puts a new thread that is stopped onto its seat, and lets it run.
    fn let_in(&self, new: Pid, cpus: Option<CpuSet>) -> Result<()> {
        let seat = cpus.map(|cpus| (new, cpus));
        self.places.placer.put(seat.as_slice())?;
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
        self.note_code(process);
        let noted = FirstTouch::of(process).map(|first_touch| (process, (first_touch, by_region)));
        self.first_touches.extend(noted);
        self.stand_since(since);
    }

    /// Notes which files a process has mapped as code, if the program is measured.
    fn note_code(&mut self, process: Pid) {
        if self.is_measured {
            let code = Part::all_of(process).into_iter().filter(|part| part.can_run() && part.is_of_a_file());
            self.code.extend(code.filter_map(|part| part.name.into_string().ok()));
        }
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
        let seat = self.home(0).map(|cpus| (process, cpus));
        self.places.placer.put(seat.as_slice())
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
