// SPDX-License-Identifier: GPL-2.0-only
//! A program that is stopped at the entry of a region, given to CRIU, and taken over again when it is restored.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tandem_machine::process_text;

use super::{Tracer, options};
use crate::breakpoint::Stand;
use crate::criu;
use crate::launch::{End, Entry, Seen, Standing};
use crate::loads::Loads;
use crate::page_places::PagePlaces;
use crate::places::Places;
use crate::process::Process;
use crate::regions::Regions;
use crate::wait::{Event, go_on, is_gone, next_event};

/// A process whose threads are all told to stop does so within moments.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// A program of which there is a checkpoint.
pub struct Frozen {
    root: Pid,
    process: Process,
    regions: Regions,
    loads: Option<Loads>,
    pages: PagePlaces,
}

impl Frozen {
    /// Its process, whenever it is restored.
    pub fn root(&self) -> Pid {
        self.root
    }

    /// Has CRIU make the process anew, stopped, as a child of the calling thread.
    ///
    /// # Errors
    /// What CRIU says.
    pub fn restore(&self, images: &Path, places: &Places) -> Result<()> {
        criu::restore(images, &places.page_nodes).inspect_err(|_| self.end_what_is_there())
    }

    /// Ends what CRIU had made when it failed, if anything: it would keep its id.
    fn end_what_is_there(&self) {
        let look = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        // No other process of this id is a child of ours.
        if waitpid(self.root, Some(look)) == Ok(WaitStatus::StillAlive) {
            // SAFETY: a plain system call, on a child that was not waited for yet.
            unsafe { libc::kill(self.root.as_raw(), libc::SIGKILL) };
            let _ = waitpid(self.root, Some(WaitPidFlag::__WALL));
        }
    }
}

impl<'a> Tracer<'a> {
    /// Follows the program until its main thread stands at this entry, and has a checkpoint made of it then, which ends it. No
    /// checkpoint if it ends before.
    ///
    /// # Errors
    /// It cannot be traced, or no checkpoint be made.
    pub(in crate::launch) fn capture(mut self, entry: &Entry, images: &Path) -> Result<(Seen, Option<Frozen>)> {
        loop {
            match next_event()? {
                (pid, Event::Ended(end)) if pid == self.root => {
                    let seen = self.seen(end);
                    self.end_rest()?;
                    return Ok((seen, None));
                }
                (pid, Event::Ended(_)) => self.forget(pid),
                (pid, Event::Signal(libc::SIGTRAP)) if self.is_at(pid, entry) => {
                    let frozen = self.freeze(images)?;
                    return Ok((Seen::of(End::Measured, self.took().as_secs_f64()), Some(frozen)));
                }
                (pid, event) => match self.stopped_by(pid, event) {
                    Err(error) if !is_gone(&error) => return Err(error),
                    _ => {}
                },
            }
        }
    }

    /// Whether `thread` is the main thread, and stands at this entry.
    fn is_at(&mut self, thread: Pid, entry: &Entry) -> bool {
        let regions = self.regions.get_mut(&thread).filter(|_| thread == self.root);
        regions.is_some_and(|regions| regions.is_at_entry_of(thread, entry))
    }

    /// Stops all threads where they are, lets go of them, and gives them to CRIU.
    fn freeze(&mut self, images: &Path) -> Result<Frozen> {
        let root = self.root;
        let _standing = Standing::begin(self.stood_ns);
        ensure!(
            self.processes.len() == 1,
            "it has {} processes: a checkpoint is made of one only",
            self.processes.len()
        );
        Stand::of(root).context("it has ended")?.goes_on_there(root)?;
        let mut moving: BTreeSet<Pid> = self.owners.keys().copied().filter(|&thread| thread != root).collect();
        for &thread in &moving {
            // SAFETY: a plain system call; who has ended meanwhile tells that next.
            unsafe { libc::syscall(libc::SYS_tgkill, root.as_raw(), thread.as_raw(), libc::SIGSTOP) };
        }
        let mut signals = Vec::new();
        while !moving.is_empty() {
            let (thread, event) = next_event()?;
            match event {
                Event::Ended(_) if thread != root => self.forget(thread),
                Event::Signal(libc::SIGSTOP) => {}
                Event::Signal(libc::SIGTRAP) if self.at_breakpoint(thread)? => {}
                Event::Signal(signal) => signals.push((thread, signal)),
                event => bail!("thread {thread} of it did not stop at once ({event:?})"),
            }
            moving.remove(&thread);
        }
        let process = self.processes.remove(&root).context("it has ended")?;
        let regions = self.regions.remove(&root).context("it has no regions")?.of_a_copy();
        let loads = self.loads.remove(&root).map(|loads| loads.of_a_copy());
        let pages = PagePlaces::of(root)?;
        // The main thread's signal stops the process, with all that are let go after it.
        detach(root, libc::SIGSTOP)?;
        wait_until_stopped(&[root])?;
        for &thread in self.owners.keys().filter(|&&thread| thread != root) {
            let signal = signals.iter().find(|(other, _)| *other == thread).map_or(0, |(_, signal)| *signal);
            detach(thread, signal)?;
        }
        wait_until_stopped(&threads_of(root)?)?;
        criu::dump(root, images)?;
        waitpid(root, Some(WaitPidFlag::__WALL)).context("the program cannot be waited for")?;
        Ok(Frozen { root, process, regions, loads, pages })
    }

    /// Takes over a program that was restored and is stopped: its pages go where they were, its threads to their seats, and it goes
    /// on to the end of the region that it stands at the entry of.
    ///
    /// # Errors
    /// It cannot be traced or placed.
    pub(in crate::launch) fn of_frozen(frozen: &Frozen, places: &'a Places, stood_ns: &'a AtomicU64) -> Result<Self> {
        let root = frozen.root;
        let standing = Standing::begin(stood_ns);
        let threads = threads_of(root)?;
        for &thread in &threads {
            ptrace::attach(thread).context("the program that was restored cannot be traced")?;
            waitpid(thread, Some(WaitPidFlag::__WALL)).context("the program cannot be waited for")?;
            ptrace::setoptions(thread, options(true)).context("the program cannot be traced")?;
        }
        frozen.pages.bring_about(root)?;
        let mut tracer = Self::of(root, places, &[], stood_ns);
        tracer.last_entry = Some(1);
        tracer.has_breakpoints = true;
        tracer.owners = threads.iter().map(|&thread| (thread, root)).collect();
        // CRIU restores no affinity.
        let process = frozen.process.unseated();
        let seats: Vec<_> =
            process.all_seats().filter_map(|(thread, seat)| Some((thread, tracer.home(seat)?))).collect();
        places.placer.put(&seats)?;
        tracer.most_threads = process.threads();
        tracer.processes.insert(root, process);
        tracer.regions.insert(root, frozen.regions.clone());
        tracer.loads.extend(frozen.loads.as_ref().map(|loads| (root, loads.of_a_copy())));
        // Takes back the signals by which it was stopped.
        // SAFETY: a plain system call, on a child that was not waited for yet.
        unsafe { libc::kill(root.as_raw(), libc::SIGCONT) };
        drop(standing);
        threads.iter().try_for_each(|&thread| go_on(thread, 0))?;
        Ok(tracer)
    }
}

fn threads_of(process: Pid) -> Result<Vec<Pid>> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).context("the program that was restored has ended")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect())
}

/// Lets go of a stopped thread, with this signal if it is not 0.
fn detach(thread: Pid, signal: i32) -> Result<()> {
    // SAFETY: takes plain numbers.
    let done = unsafe { libc::ptrace(libc::PTRACE_DETACH, thread.as_raw(), 0, libc::c_long::from(signal)) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("the program cannot be let go") }
}

fn wait_until_stopped(threads: &[Pid]) -> Result<()> {
    let begun = Instant::now();
    let has_stopped = |thread: &Pid| {
        let status = process_text(format!("/proc/{thread}/status").as_ref()).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    while !threads.iter().all(has_stopped) {
        ensure!(begun.elapsed() < STOPS_WITHIN, "its threads did not stop within {} s", STOPS_WITHIN.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
