// SPDX-License-Identifier: GPL-2.0-only
//! The workload `crossed`: processes of paired threads whose memory is on other nodes than they are.

use crate::affinity::Affinity;
use crate::buffer::PageSize;
use crate::child::{self, Child};
use crate::placement;
use crate::process::Process;
use crate::topology::Topology;
use crate::truth::{ThreadTruth, Truth, monotonic_ns};
use crate::worker::Work;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::{Error, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Options of `tandem-load crossed`.
#[derive(clap::Args)]
pub struct Options {
    /// Processes.
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// Threads in all processes together; a multiple of twice the processes.
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// MiB that each thread uses alone.
    #[arg(long, default_value_t = 32)]
    private_mib: usize,
    /// MiB that each pair of threads shares.
    #[arg(long, default_value_t = 8)]
    shared_mib: usize,
    /// Length of the measured phase in seconds.
    #[arg(long)]
    seconds: u64,
    /// Where to write who touches what, once everything is initialised.
    #[arg(long)]
    truth: PathBuf,
    /// Ask for 2 MiB pages.
    #[arg(long)]
    thp: bool,
}

/// What the workload prints at its end.
#[derive(Serialize)]
struct Summary {
    workload: &'static str,
    processes: usize,
    threads: usize,
    seconds: f64,
    accesses: u64,
    accesses_per_s: f64,
    self_check: &'static str,
}

/// Runs the workload to its end and prints what was done as JSON.
pub fn run(options: &Options) -> Result<()> {
    options.check()?;
    let stop = stop_at_signal()?;
    let affinity = Affinity::of_this_thread()?;
    let topology = Topology::read()?.restricted_to(&affinity.cpus());
    let placements = placement::plan(&topology, options.threads)?;
    let process = |number: usize| {
        let threads = options.threads / options.processes;
        Process {
            private_bytes: options.private_mib << 20,
            shared_bytes: options.shared_mib << 20,
            pages: if options.thp { PageSize::Huge } else { PageSize::Base },
            topology: &topology,
            affinity: &affinity,
            placements: &placements[number * threads..][..threads],
            first_thread: number * threads,
            measured: Duration::from_secs(options.seconds),
            stop,
        }
    };

    let mut children = Vec::new();
    for number in 1..options.processes {
        child::start(&mut children, |parent| process(number).run(|threads| parent.ready(threads)))?;
    }
    let mut started = Instant::now();
    let mut work = process(0).run(|mut threads| {
        for child in &mut children {
            threads.extend(child.wait_ready()?);
        }
        truth_of(threads, &children).write(&options.truth)?;
        started = Instant::now();
        children.iter_mut().try_for_each(Child::release)
    })?;
    for child in children {
        work.extend(child.wait_done()?);
    }
    print_summary(options, &work, started.elapsed())
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.processes == 0 || self.threads == 0 || !self.threads.is_multiple_of(2 * self.processes) {
            bail!(
                "--threads {} in --processes {}: threads must be a multiple of twice the processes, since every process holds whole pairs",
                self.threads,
                self.processes
            );
        }
        if self.private_mib == 0 || self.shared_mib == 0 {
            bail!("--private-mib and --shared-mib must be at least 1");
        }
        let needed_mib = self
            .threads
            .checked_mul(self.private_mib)
            .and_then(|private| private.checked_add((self.threads / 2).checked_mul(self.shared_mib)?));
        let available_mib = crate::process_files::available_memory_mib()?;
        match needed_mib {
            Some(needed_mib) if needed_mib as u64 <= available_mib => Ok(()),
            _ => bail!(
                "{} threads with {} MiB each and {} MiB a pair need more than the {available_mib} MiB available; use less",
                self.threads,
                self.private_mib,
                self.shared_mib
            ),
        }
    }
}

fn truth_of(threads: Vec<ThreadTruth>, children: &[Child]) -> Truth {
    let own = std::process::id() as i32;
    Truth {
        workload: "crossed".into(),
        initialised_at_ns: monotonic_ns(),
        processes: std::iter::once(own).chain(children.iter().map(Child::pid)).collect(),
        pairs: threads.chunks(2).map(|pair| [pair[0].tid, pair[1].tid]).collect(),
        threads,
    }
}

fn print_summary(options: &Options, work: &[Work], elapsed: Duration) -> Result<()> {
    let accesses = work.iter().map(|work| work.accesses).sum::<u64>();
    let summary = Summary {
        workload: "crossed",
        processes: options.processes,
        threads: work.len(),
        seconds: elapsed.as_secs_f64(),
        accesses,
        accesses_per_s: accesses as f64 / elapsed.as_secs_f64(),
        self_check: "passed",
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&summary)?).context("cannot print the summary")
}

/// The flag of all processes; in memory they share, because a signal may come to one of them only.
static STOP: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn handle_stop(_signal: i32) {
    // SAFETY: the handler is installed after the pointer is set, to memory that is never unmapped.
    unsafe { (*STOP.load(Relaxed)).store(true, Relaxed) };
}

/// A flag that SIGTERM or SIGINT to any of the processes sets for all of them. To be called before forking.
fn stop_at_signal() -> Result<&'static AtomicBool> {
    // SAFETY: a new shared anonymous page, zeroed: a valid AtomicBool that is false.
    let page = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(Error::last_os_error()).context("cannot map a shared page");
    }
    STOP.store(page.cast(), Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler does nothing but an atomic store.
        let before = unsafe { libc::signal(signal, handle_stop as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(Error::last_os_error()).context("cannot handle SIGTERM");
        }
    }
    // SAFETY: the page is valid and is never unmapped.
    Ok(unsafe { &*page.cast::<AtomicBool>() })
}
