// SPDX-License-Identifier: GPL-2.0-only
//! How long a traced program is in each of its parallel regions.
//!
//! Problem: a program is as fast as its regions, and what is best for one may be bad for another. Mechanism: the OpenMP
//! runtimes enter every region through few functions, with the region's own function as an argument. There are breakpoints
//! at these when the program proper begins, and one where the call returns while a region runs: two stops a region. What
//! the main thread enters counts; regions within regions count as part of the outer one. Static programs and
//! runtimes that are loaded later have no regions.
//!
//! Two stops take some 20 us. A program of which half of each [`LOOK_AFTER`] regions are shorter than [`SHORTEST`] is let run
//! without breakpoints from then on: its regions cannot be told without disturbing them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::ptrace::{self, AddressType};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::breakpoint::{Breakpoint, Stand};
use crate::symbols::Code;

/// Regions of which half are shorter are not looked at.
const SHORTEST: Duration = Duration::from_micros(500);

/// Entries after which that is judged.
const LOOK_AFTER: u64 = 1000;

/// A region of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Its function.
    pub name: String,
    /// How often it was entered.
    pub entries: u64,
    /// Time from its entries to its ends.
    pub seconds: f64,
}

/// Where a runtime's function has the region's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Argument {
    First,
    Third,
}

/// The runtimes' functions that run a region and return after it.
fn runs_a_region(name: &str) -> Option<Argument> {
    let gomp = name.starts_with("GOMP_parallel") && !name.ends_with("_start") && !name.ends_with("_end");
    match name {
        "__kmpc_fork_call" => Some(Argument::Third),
        _ if gomp => Some(Argument::First),
        _ => None,
    }
}

/// A region that runs now.
#[derive(Clone, Debug)]
struct Open {
    function: u64,
    end: Breakpoint,
    start: Instant,
}

/// The regions of a process.
#[derive(Clone, Debug)]
pub struct Regions {
    code: Code,
    forks: BTreeMap<u64, (Breakpoint, Argument)>,
    open: Option<Open>,
    times: BTreeMap<u64, (u64, Duration)>,
    /// Entries that were short.
    short: u64,
}

impl Regions {
    /// Sets the breakpoints in a process whose main thread stands where the program proper begins; `None` if it has no
    /// OpenMP runtime.
    pub fn of(process: Pid) -> Option<Self> {
        let code = Code::of(process);
        let mut forks = BTreeMap::new();
        for (address, name) in code.find(|name| runs_a_region(name).is_some()) {
            if let (Some(argument), Some(breakpoint)) = (runs_a_region(&name), Breakpoint::set(process, address)) {
                forks.insert(address, (breakpoint, argument));
            }
        }
        (!forks.is_empty()).then_some(Self { code, forks, open: None, times: BTreeMap::new(), short: 0 })
    }

    /// Deals with `thread` if it stands at one of the breakpoints; false if it does not. It may go on then.
    ///
    /// # Errors
    /// The process cannot be changed.
    pub fn stopped(&mut self, thread: Pid, is_main: bool) -> Result<bool> {
        let Some(stand) = Stand::of(thread) else { return Ok(false) };
        if let Some(open) = self.open.take_if(|open| open.end.address == stand.at && is_main) {
            let took = open.start.elapsed();
            self.short += u64::from(took < SHORTEST);
            let time = self.times.entry(open.function).or_default();
            *time = (time.0 + 1, time.1 + took);
            open.end.remove(thread)?;
            if self.are_too_short() {
                self.take_out(thread)?;
            }
            return Ok(true);
        }
        if let Some(open) = self.open.as_ref().filter(|open| open.end.address == stand.at) {
            open.end.step_over(thread)?;
            return Ok(true);
        }
        let Some(&(breakpoint, argument)) = self.forks.get(&stand.at) else { return Ok(false) };
        let opens = is_main && self.open.is_none();
        if opens {
            let function = if argument == Argument::First { stand.first } else { stand.third };
            // At the first instruction of a function its return address is on top of the stack.
            if let Ok(back) = ptrace::read(thread, stand.stack as AddressType) {
                let end = Breakpoint::set(thread, back as u64);
                self.open = end.map(|end| Open { function, end, start: Instant::now() });
            }
        }
        breakpoint.step_over(thread)?;
        if let Some(open) = self.open.as_mut().filter(|_| opens) {
            open.start = Instant::now();
        }
        Ok(true)
    }

    /// Those of a process that is a copy of this one.
    pub fn of_a_copy(&self) -> Self {
        Self { times: BTreeMap::new(), short: 0, ..self.clone() }
    }

    fn are_too_short(&self) -> bool {
        let entries: u64 = self.times.values().map(|time| time.0).sum();
        entries.is_multiple_of(LOOK_AFTER) && 2 * self.short >= entries
    }

    fn take_out(&mut self, thread: Pid) -> Result<()> {
        for (breakpoint, _) in std::mem::take(&mut self.forks).values() {
            breakpoint.take_out(thread)?;
        }
        self.times.clear();
        Ok(())
    }

    /// The regions, those with the most time first.
    pub fn regions(&self) -> Vec<Region> {
        let region = |(&function, time): (&u64, &(u64, Duration))| Region {
            name: self.code.name(function),
            entries: time.0,
            seconds: time.1.as_secs_f64(),
        };
        let mut regions: Vec<Region> = self.times.iter().map(region).collect();
        regions.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        regions
    }
}
