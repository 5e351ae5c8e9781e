// SPDX-License-Identifier: GPL-2.0-only
//! How long a traced program is in each of its parallel regions, and what happens at their beginnings.
//!
//! Problem: a program is as fast as its regions, and what is best for one may be bad for another. Mechanism: the OpenMP
//! runtimes enter every region through few functions, with the region's own function as an argument. There are breakpoints
//! at these when the program proper begins, and one where the call returns while a region runs: two stops a region. What
//! the main thread enters counts; regions within regions count as part of the outer one. Stripped static programs
//! have no regions. What is loaded later is looked at then (`loads`). Functions that are named count like regions.
//!
//! Where regions have seats of their own ([`Places::is_by_region`]), the stop at the beginning seats the threads that are
//! there, and gives the number of threads: libgomp has it as an argument, in libomp the function that a `num_threads`
//! clause calls is called in the stopped thread (`call`). A number that the program gives itself is left alone.
//!
//! Two stops take some 20 us. A program of which half of each `LOOK_AFTER` regions are shorter than [`SHORTEST`] is let run
//! without breakpoints from then on: its regions cannot be told without disturbing them. So is one that loses more than a small
//! part of its time by stops (`stop_cost`), of whatever thread and of regions within regions as well.

mod meaning;
mod region;
mod stay;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::ptrace::{self, AddressType};
use nix::unistd::Pid;

use crate::breakpoint::{Breakpoint, Stand};
use crate::call::Call;
use crate::launch::Entry;
use crate::places::Places;
use crate::plan::ENOUGH;
use crate::process::{Process, Seating};
use crate::stop_cost::Stops;
use crate::symbols::Code;
use meaning::{Meaning, THREAD_NUMBER, function, meaning, number_at};
pub use region::Region;
pub(crate) use region::together;
use stay::{Stay, Stays};

/// Regions of which half are shorter are not looked at.
pub const SHORTEST: Duration = Duration::from_micros(500);

/// Entries after which that is judged.
const LOOK_AFTER: u64 = 1000;

/// A region that runs now.
#[derive(Clone, Debug)]
struct Open {
    name: String,
    end: Breakpoint,
    /// The stack at its entry.
    stack: u64,
    start: Instant,
    stay: Stay,
}

/// All entries of a region.
#[derive(Clone, Debug, Default)]
struct Times {
    entries: u64,
    time: Duration,
    own_threads: Option<usize>,
    samples: Vec<Vec<f64>>,
    /// When it was entered last, and which choice that measures.
    last: Option<(Instant, Option<usize>)>,
}

impl Times {
    /// It is entered again, and nothing was done for that yet.
    fn comes_round(&mut self, now: Instant) {
        if let Some((since, Some(choice))) = self.last {
            self.samples.resize(self.samples.len().max(choice + 1), Vec::new());
            self.samples[choice].push((now - since).as_secs_f64());
        }
        self.last = Some((now, None));
    }
}

/// A call that is on its way in the main thread, which stands at the entry of a region.
#[derive(Clone, Debug)]
enum Asking {
    ThreadNumber(Call),
    Push(Call),
}

/// What is called in a runtime like libomp, of which a program may have loaded several.
#[derive(Clone, Debug, Default)]
struct Runtime {
    push: Option<u64>,
    thread_number: Option<u64>,
    /// What it calls the main thread.
    main_number: Option<u64>,
}

impl Runtime {
    fn functions(&self) -> impl Iterator<Item = u64> {
        self.push.into_iter().chain(self.thread_number)
    }
}

/// The regions of a process.
#[derive(Clone, Debug)]
pub struct Regions {
    code: Code,
    points: BTreeMap<u64, (Breakpoint, Meaning)>,
    /// By the file of a runtime like libomp.
    runtimes: BTreeMap<OsString, Runtime>,
    /// Names of functions that were entered, of those that are loaded now.
    names: BTreeMap<u64, String>,
    open: Option<Open>,
    /// Of this process and its copies.
    stays: Stays,
    /// Where breakpoints were that are no more: other threads may have run into these before they were taken out.
    gone: BTreeSet<u64>,
    /// By name: the same function may be loaded again elsewhere.
    times: BTreeMap<String, Times>,
    /// Entries that were short.
    short: u64,
    /// Stops at its breakpoints.
    stops: Stops,
    /// Whether they took too much of the program's time.
    stops_too_often: bool,
    /// Whether it goes on without breakpoints, whatever it loads.
    are_given_up: bool,
    /// Whether its breakpoints are kept, however short entries are and whatever they cost.
    are_kept: bool,
    /// Number of threads that the program set for all further regions.
    set: Option<usize>,
    /// The same for the next one.
    pushed: Option<usize>,
    asking: Option<Asking>,
    /// How long the process stood while names were looked for.
    stood: Duration,
}

impl Regions {
    /// Sets the breakpoints in a process whose main thread stands where the program proper begins, at functions of OpenMP runtimes
    /// and those that are `named`. They `are_kept`, or taken out when most entries are short.
    pub fn of(process: Pid, named: &[String], are_kept: bool) -> Self {
        let mut regions = Self {
            code: Code::default(),
            points: BTreeMap::new(),
            runtimes: BTreeMap::new(),
            names: BTreeMap::new(),
            open: None,
            stays: Stays::default(),
            gone: BTreeSet::new(),
            times: BTreeMap::new(),
            short: 0,
            stops: Stops::none(),
            stops_too_often: false,
            are_given_up: false,
            are_kept,
            set: None,
            pushed: None,
            asking: None,
            stood: Duration::ZERO,
        };
        regions.look(process, named);
        regions
    }

    /// Sets those in what the process of `thread`, which is stopped, has loaded since the last time.
    pub fn look(&mut self, thread: Pid, named: &[String]) {
        let code = Code::of(thread);
        if self.are_given_up || code.is_empty() {
            return;
        }
        self.points.retain(|&address, _| code.has(address));
        self.names.retain(|&address, _| code.has(address));
        self.runtimes.retain(|_, runtime| runtime.functions().all(|function| code.has(function)));
        self.open.take_if(|open| !code.has(open.end.address));
        let new = code.beyond(&self.code);
        for found in new.find(thread, |name| meaning(name, named).is_some() || name == THREAD_NUMBER) {
            let meaning = meaning(&found.name, named);
            if meaning.is_none_or(|meaning| meaning == Meaning::PushesNumber) {
                let runtime = self.runtimes.entry(found.file).or_default();
                let function = if meaning.is_some() { &mut runtime.push } else { &mut runtime.thread_number };
                *function = Some(found.address);
            }
            if let Some(meaning) = meaning {
                let point = Breakpoint::set_over(thread, found.address, found.word);
                self.points.extend(point.map(|point| (found.address, (point, meaning))));
            }
        }
        self.code = code;
    }

    /// Whether `thread` stands at the entry of a region.
    pub fn is_at_entry(&self, thread: Pid) -> bool {
        let meaning = |stand: Stand| self.points.get(&stand.at).map(|point| point.1);
        Stand::of(thread).and_then(meaning).is_some_and(Meaning::is_region)
    }

    /// Whether the main `thread` stands at this entry, outside of other regions.
    pub fn is_at_entry_of(&mut self, thread: Pid, entry: &Entry) -> bool {
        let Some(stand) = Stand::of(thread) else { return false };
        let meaning = self.points.get(&stand.at).map(|point| point.1).filter(|meaning| meaning.is_region());
        let Some(meaning) = meaning.filter(|_| self.open.is_none() && self.asking.is_none()) else { return false };
        let name = self.name(thread, function(meaning, &stand));
        name == entry.region && self.times.get(&name).map_or(0, |times| times.entries) == entry.number
    }

    /// Deals with `thread` if it stands at one of the breakpoints; false if it does not. It may go on then.
    ///
    /// # Errors
    /// The process cannot be changed, or a thread not be bound.
    pub fn stopped(&mut self, thread: Pid, is_main: bool, places: &Places, process: &mut Process) -> Result<bool> {
        let is_ours = self.stands_at_one(thread, is_main, places, process)?;
        if is_ours && self.stops.take_too_much() && !self.are_kept {
            self.stops_too_often = true;
            self.give_up(thread)?;
        }
        Ok(is_ours)
    }

    fn stands_at_one(&mut self, thread: Pid, is_main: bool, places: &Places, process: &mut Process) -> Result<bool> {
        let Some(stand) = Stand::of(thread) else { return Ok(false) };
        if is_main && self.asking.as_ref().is_some_and(|asking| asking.call().has_returned(&stand)) {
            return self.answered(thread, places, process).map(|()| true);
        }
        if let Some(open) = self.open.take_if(|open| is_main && open.has_ended(&stand)) {
            self.ends(thread, open)?;
            process.is_formed();
            return Ok(true);
        }
        if let Some(open) = self.open.as_ref().filter(|open| open.end.address == stand.at) {
            open.end.step_over(thread)?;
            return Ok(true);
        }
        let Some(&(point, meaning)) = self.points.get(&stand.at) else {
            if self.gone.contains(&stand.at) {
                stand.goes_on_there(thread)?;
                return Ok(true);
            }
            return Ok(false);
        };
        match meaning {
            Meaning::SetsNumber => self.set = Some(stand.first as u32 as usize),
            Meaning::SetsNumberAt => self.set = number_at(thread, stand.first).or(self.set),
            // Called by ourselves it says nothing of the program.
            Meaning::PushesNumber if is_main && self.asking.is_none() => {
                self.pushed = Some(stand.third as u32 as usize);
            }
            Meaning::PushesNumber => {}
            Meaning::Gomp | Meaning::Kmp | Meaning::Named => {
                return self.enters(thread, is_main, &stand, places, process).map(|()| true);
            }
        }
        point.step_over(thread)?;
        Ok(true)
    }

    /// `thread` stands at the entry of a region.
    fn enters(
        &mut self,
        thread: Pid,
        is_main: bool,
        stand: &Stand,
        places: &Places,
        process: &mut Process,
    ) -> Result<()> {
        let (point, meaning) = self.points[&stand.at];
        if is_main && let Some(open) = self.open.take_if(|open| stand.stack >= open.stack) {
            // Left by a jump or an exception.
            open.end.take_out(thread)?;
            self.gone.insert(open.end.address);
        }
        if !is_main || self.open.is_some() {
            if is_main {
                process.is_formed();
            }
            point.step_over(thread)?;
            return Ok(());
        }
        let name = self.name(thread, function(meaning, stand));
        self.times.entry(name).or_default().comes_round(Instant::now());
        let own = self.own_number(meaning, stand, places);
        let wanted = places.is_by_region().then(|| self.wanted(thread, meaning, stand, places).0.threads);
        if let Some(wanted) = wanted.filter(|&wanted| own.is_none() && Some(wanted) != places.threads) {
            match meaning {
                Meaning::Gomp => stand.with_third(wanted as u64).write(thread)?,
                Meaning::Kmp if self.ask(thread, stand, wanted)? => return Ok(()),
                _ => {}
            }
        }
        self.begins(thread, stand, own, places, process)
    }

    /// The region that `thread` stands at the entry of begins, with its number of threads told.
    fn begins(
        &mut self,
        thread: Pid,
        stand: &Stand,
        own: Option<usize>,
        places: &Places,
        process: &mut Process,
    ) -> Result<()> {
        let (point, meaning) = self.points[&stand.at];
        let function = function(meaning, stand);
        self.pushed = None;
        let mut choice = None;
        if places.is_by_region() {
            let (seating, turn) = self.wanted(thread, meaning, stand, places);
            choice = turn.filter(|turn| turn.is_measured).map(|turn| turn.choice);
            match meaning {
                Meaning::Named => process.enter_function(seating, &places.placer)?,
                _ => process.enter(own.unwrap_or(seating.threads), seating, self.surplus_ends(), &places.placer)?,
            }
        }
        let name = self.name(thread, function);
        let times = self.times.entry(name.clone()).or_default();
        times.own_threads = own.or(times.own_threads);
        times.last = times.last.map(|(since, _)| (since, choice));
        // At the first instruction of a function its return address is on top of the stack.
        let back = ptrace::read(thread, stand.stack as AddressType).ok();
        let end = back.and_then(|back| Breakpoint::set(thread, back as u64));
        point.step_over(thread)?;
        let (stack, start) = (stand.stack, Instant::now());
        self.open = end.map(|end| Open { name, end, stack, start, stay: self.stays.begin(function) });
        Ok(())
    }

    /// The number of threads of a region if the program gave that itself.
    fn own_number(&self, meaning: Meaning, stand: &Stand, places: &Places) -> Option<usize> {
        let argument = match meaning {
            Meaning::Gomp => Some(stand.third as u32 as usize).filter(|&number| number != 0),
            Meaning::Kmp => self.pushed,
            _ => return None,
        };
        argument.or(self.set.filter(|&set| Some(set) != places.threads))
    }

    /// What the region that is entered gets, and what for if it takes seats in turns.
    fn wanted<'a>(
        &mut self,
        thread: Pid,
        meaning: Meaning,
        stand: &Stand,
        places: &'a Places,
    ) -> (&'a Seating, Option<crate::plan::Turn>) {
        let name = self.name(thread, function(meaning, stand));
        let entries = self.times.get(&name).map_or(0, |times| times.entries as usize);
        places.seating(&name, entries)
    }

    /// The name of a function that `thread` enters.
    fn name(&mut self, thread: Pid, function: u64) -> String {
        if let Some(name) = self.names.get(&function) {
            return name.clone();
        }
        let since = Instant::now();
        let name = self.code.name(thread, function);
        self.names.insert(function, name.clone());
        self.stood += since.elapsed();
        name
    }

    /// The runtime of the entry at this address: that of its file, or the only one where a tool stands before it.
    fn runtime_at(&mut self, address: u64) -> Option<&mut Runtime> {
        let own = self.code.file(address).filter(|&file| self.runtimes.contains_key(file)).map(OsStr::to_owned);
        match own {
            Some(file) => self.runtimes.get_mut(&file),
            None if self.runtimes.len() == 1 => self.runtimes.values_mut().next(),
            None => None,
        }
    }

    /// Has libomp told how many threads the next region has; false if it has no function for that.
    fn ask(&mut self, thread: Pid, stand: &Stand, threads: usize) -> Result<bool> {
        let runtime = self.runtime_at(stand.at).map(|runtime| &*runtime);
        let Some(&Runtime { push: Some(push), thread_number: Some(thread_number), main_number }) = runtime else {
            return Ok(false);
        };
        let location = stand.first;
        self.asking = Some(match main_number {
            Some(number) => Asking::Push(Call::begin(thread, push, [location, number, threads as u64])?),
            None => Asking::ThreadNumber(Call::begin(thread, thread_number, [location, 0, 0])?),
        });
        Ok(true)
    }

    /// A call has returned to the entry of the region.
    fn answered(&mut self, thread: Pid, places: &Places, process: &mut Process) -> Result<()> {
        match self.asking.take() {
            Some(Asking::ThreadNumber(call)) => {
                let (number, stand) = (call.end(thread)?, call.stand());
                let wanted = self.wanted(thread, Meaning::Kmp, &stand, places).0.threads;
                let Some(runtime) = self.runtime_at(stand.at) else {
                    return self.begins(thread, &stand, None, places, process);
                };
                runtime.main_number = Some(number);
                self.ask(thread, &stand, wanted).map(drop)
            }
            Some(Asking::Push(call)) => {
                call.end(thread)?;
                self.begins(thread, &call.stand(), None, places, process)
            }
            None => Ok(()),
        }
    }

    fn ends(&mut self, thread: Pid, open: Open) -> Result<()> {
        let now = Instant::now();
        self.short += u64::from(now - open.start < SHORTEST);
        let times = self.times.entry(open.name).or_default();
        times.entries += 1;
        times.time += open.stay.end(now);
        open.end.remove(thread)?;
        self.gone.insert(open.end.address);
        if !self.are_kept && self.are_too_short() {
            self.give_up(thread)?;
        }
        Ok(())
    }

    /// Has the program go on without breakpoints. What was told of its regions is worth nothing.
    ///
    /// # Errors
    /// The process cannot be changed.
    pub fn give_up(&mut self, thread: Pid) -> Result<()> {
        self.are_given_up = true;
        self.take_out(thread)?;
        self.times.clear();
        Ok(())
    }

    /// Whether it goes on without breakpoints because its stops took too much of its time.
    pub fn stops_too_often(&self) -> bool {
        self.stops_too_often
    }

    /// Whether the runtime ends threads that a team does not need. libomp has libgomp's functions as well.
    fn surplus_ends(&self) -> bool {
        self.points.values().all(|point| point.1 != Meaning::Kmp)
    }

    /// Whether each of `choices` was measured often enough.
    pub fn are_measured(&self, choices: usize) -> bool {
        let enough = |times: &Times| {
            times.samples.len() == choices && times.samples.iter().all(|samples| samples.len() >= ENOUGH)
        };
        self.times.values().any(enough)
    }

    /// How many entries have ended, of all regions.
    pub fn entries(&self) -> u64 {
        self.times.values().map(|times| times.entries).sum()
    }

    /// How long the process stood for nothing but this since the last time.
    pub fn take_stood(&mut self) -> Duration {
        std::mem::take(&mut self.stood)
    }

    /// Those of a process that is a copy of this one.
    pub fn of_a_copy(&self) -> Self {
        Self { times: BTreeMap::new(), short: 0, stops: Stops::none(), asking: None, ..self.clone() }
    }

    fn are_too_short(&self) -> bool {
        let entries = self.entries();
        entries.is_multiple_of(LOOK_AFTER) && 2 * self.short >= entries
    }

    /// Takes all breakpoints out of the process of `thread`, which is stopped anywhere.
    ///
    /// # Errors
    /// The process cannot be changed.
    pub fn take_out(&mut self, thread: Pid) -> Result<()> {
        let points = std::mem::take(&mut self.points).into_values().map(|(point, _)| point);
        for point in points.chain(self.open.take().map(|open| open.end)) {
            point.take_out(thread)?;
            self.gone.insert(point.address);
        }
        Ok(())
    }

    /// The regions, those with the most time first.
    pub fn regions(&self) -> Vec<Region> {
        let region = |(name, times): (&String, &Times)| Region {
            name: name.clone(),
            entries: times.entries,
            seconds: times.time.as_secs_f64(),
            own_threads: times.own_threads,
            samples: times.samples.clone(),
        };
        let mut regions: Vec<Region> = self.times.iter().map(region).collect();
        regions.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        regions
    }
}

impl Open {
    fn has_ended(&self, stand: &Stand) -> bool {
        // Its return address is off the stack then. The same code may be run further down.
        stand.at == self.end.address && stand.stack > self.stack
    }
}

impl Asking {
    fn call(&self) -> &Call {
        match self {
            Self::ThreadNumber(call) | Self::Push(call) => call,
        }
    }
}
