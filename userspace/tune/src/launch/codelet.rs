// SPDX-License-Identifier: GPL-2.0-only
//! Codelets: an entry of a parallel region, captured once and replayed under other seats as often as is wanted.
//!
//! Problem: a region that is entered a few times a run can take few seats in turns, and a whole run for each of them takes long.
//! Mechanism: when the main thread stands at the entry, CRIU makes a checkpoint of the process: its memory, and the registers of
//! all its threads. On which node each page was by then, by first touch or whatever rule the run had, is noted besides, as a
//! process that is restored has all its memory where that is filled. A replay restores the process, moves its pages there, seats
//! its threads, and ends it when the region has. Breakpoints are part of the memory, so what they mean is kept.

use std::io::Error;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tandem_ab::stop::Stop;
use tempfile::TempDir;

use super::tracer::{Frozen, Tracer};
use super::{End, Limit, Program, Seen, command, start, watched};
use crate::places::Places;

/// An entry of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The region's function.
    pub region: String,
    /// Which of its entries, from 0.
    pub number: u64,
}

/// An entry that was captured.
pub struct Codelet {
    images: TempDir,
    frozen: Frozen,
}

impl Codelet {
    /// Runs `program` in `places` until it comes to an entry, for so long at most; how it ended if it did not get there.
    ///
    /// # Errors
    /// It cannot be started or traced, or no checkpoint be made of it.
    pub fn capture(
        program: &Program,
        places: &Places,
        entry: &Entry,
        time: Option<Duration>,
        stop: &Stop,
    ) -> Result<Result<Self, End>> {
        let images = tempfile::tempdir().context("there is no place for checkpoints")?;
        // A thread of its own: it waits for its own children only.
        let captured = std::thread::scope(|scope| {
            let capturing = || {
                let root = start(ends_with_this_thread(command(program, places)?))?;
                let mut frozen = None;
                let seen = watched(root, time, stop, |stood_ns| {
                    let tracer = Tracer::new(root, places, program, None, stood_ns)?;
                    let (seen, captured) = tracer.capture(entry, images.path())?;
                    frozen = captured;
                    Ok(seen)
                })?;
                Ok(frozen.ok_or(seen.end))
            };
            scope.spawn(capturing).join().expect("tracing does not panic")
        });
        captured.map(|captured: Result<Frozen, End>| captured.map(|frozen| Self { images, frozen }))
    }

    /// Replays it in `places`, to the end of its region, for so long at most. Seconds are those of the region.
    ///
    /// # Errors
    /// It cannot be restored, or not be traced or placed.
    pub fn replay(&self, places: &Places, limit: Limit, stop: &Stop) -> Result<Seen> {
        let replaying = || {
            self.frozen.restore(self.images.path(), places)?;
            watched(self.frozen.root(), limit.time, stop, |stood_ns| {
                Tracer::of_frozen(&self.frozen, places, stood_ns).and_then(Tracer::run)
            })
        };
        let seen = std::thread::scope(|scope| scope.spawn(replaying).join().expect("tracing does not panic"))?;
        let seconds = seen.regions.first().filter(|_| seen.end == End::Measured).map(|region| region.seconds);
        Ok(Seen { seconds: seconds.unwrap_or(seen.seconds), ..seen })
    }
}

/// A program that nobody traces while CRIU has it, and that is to be left to nobody: if the calling thread is killed, so is the
/// program; one that is restored as well, from the end of that on.
fn ends_with_this_thread(mut command: Command) -> Command {
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| {
            let done = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
        });
    }
    command
}
