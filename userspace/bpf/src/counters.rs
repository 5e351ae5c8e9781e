// SPDX-License-Identifier: GPL-2.0-only
//! Events of CPUs, counted by thread (`bpf/counters.bpf.c`). It lives in this process: nothing is pinned.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramInput, libbpf_sys};

use crate::counters_skeleton::{CountersSkel, CountersSkelBuilder};
use crate::handle::{kernel, read_value};
use crate::{Error, MAX_EVENTS, intf};

/// What an event counted while a thread ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// As counted.
    pub count: u64,
    /// Nanoseconds for which the thread ran with the event enabled.
    pub enabled_ns: u64,
    /// Nanoseconds of these in which the event was on the hardware; less where events take turns.
    pub running_ns: u64,
}

/// What was charged to a thread since it was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCharges {
    /// Number of the process in the initial namespace.
    pub tgid: u32,
    /// Number of the thread in the initial namespace.
    pub tid: u32,
    /// In the order in which the events were given.
    pub events: Vec<EventCount>,
}

/// The loaded programs.
pub struct Counters {
    skeleton: CountersSkel<'static>,
    _switches: Link,
    events: usize,
    cpus: u32,
}

impl Counters {
    /// Loads the programs, with room for `events` events on each of the CPUs below `cpus`.
    ///
    /// # Errors
    /// [`Error::Kernel`]: no rights, more than [`MAX_EVENTS`], or a kernel that does not have what they need.
    pub fn load(events: usize, cpus: u32) -> Result<Self, Error> {
        if events > MAX_EVENTS {
            let source = io::Error::other(format!("{events} events are more than {MAX_EVENTS}"));
            return Err(Error::Kernel { what: "counting events", source });
        }
        // The skeleton borrows the place that it lives in: a few words that are never given back.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open = CountersSkelBuilder::default().open(storage).map_err(kernel("opening the counting programs"))?;
        let constants = open.maps.rodata_data.as_mut().expect("the object has constants");
        (constants.nr_events, constants.nr_cpus) = (events as u32, cpus);
        let slots = (events as u32).saturating_mul(cpus).max(1);
        open.maps.events.set_max_entries(slots).map_err(kernel("making room for events"))?;
        let skeleton = open.load().map_err(kernel("loading the counting programs"))?;
        let switches = skeleton.progs.tandem_switched.attach_raw_tracepoint("sched_switch");
        let _switches = switches.map_err(kernel("watching switches"))?;
        Ok(Self { skeleton, _switches, events, cpus })
    }

    /// Counts with the perf event `fd`, which counts on `cpu`, as the event of number `event`. The event lives as long as this
    /// does; its descriptor may be closed.
    ///
    /// # Errors
    /// [`Error::Kernel`]: not such an event, CPU or descriptor.
    pub fn set_event(&self, event: usize, cpu: u32, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let slot = event as u32 * self.cpus + cpu;
        let value = fd.as_raw_fd().to_ne_bytes();
        let set = self.skeleton.maps.events.update(&slot.to_ne_bytes(), &value, MapFlags::ANY);
        set.map_err(kernel("counting an event"))
    }

    /// Charges threads of the process from now on.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no room for one more.
    pub fn add_process(&self, tgid: u32) -> Result<(), Error> {
        let added = self.skeleton.maps.counted_processes.update(&tgid.to_ne_bytes(), &KNOWN, MapFlags::ANY);
        added.map_err(kernel("counting a process"))
    }

    /// Charges threads of the process no longer.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it was not there.
    pub fn remove_process(&self, tgid: u32) -> Result<(), Error> {
        let removed = self.skeleton.maps.counted_processes.delete(&tgid.to_ne_bytes());
        removed.map_err(kernel("counting a process no longer"))
    }

    /// Charges the thread that runs on `cpu` for what it did until now, and from now on.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the CPU is offline.
    pub fn look(&self, cpu: u32) -> Result<(), Error> {
        let input = ProgramInput { cpu, flags: libbpf_sys::BPF_F_TEST_RUN_ON_CPU, ..ProgramInput::default() };
        self.skeleton.progs.tandem_looked.test_run(input).map(drop).map_err(kernel("looking at a CPU's counters"))
    }

    /// All charges since the last call. A thread that is charged in this very moment may lose that charge.
    ///
    /// # Errors
    /// [`Error::Kernel`] when they cannot be read.
    pub fn take(&self) -> Result<Vec<ThreadCharges>, Error> {
        let charges = &self.skeleton.maps.charges;
        let mut all = Vec::new();
        for key in charges.keys().collect::<Vec<_>>() {
            let value = charges.lookup_and_delete(&key).map_err(kernel("taking charges"))?;
            // Only this takes any away.
            let Some(value) = value else { continue };
            let counts: intf::tandem_counts = read_value(&value)?;
            let tid = u32::from_ne_bytes(key.try_into().map_err(|_| Error::OtherVersion)?);
            let event = |event: &intf::tandem_event_count| EventCount {
                count: event.count,
                enabled_ns: event.enabled_ns,
                running_ns: event.running_ns,
            };
            let events = counts.events[..self.events].iter().map(event).collect();
            all.push(ThreadCharges { tgid: counts.tgid, tid, events });
        }
        Ok(all)
    }

    /// Charges that found no room so far.
    pub fn uncharged(&self) -> u64 {
        self.skeleton.maps.bss_data.as_ref().map_or(0, |data| data.uncharged)
    }
}

const KNOWN: [u8; 4] = 1_u32.to_ne_bytes();
