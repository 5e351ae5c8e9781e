// SPDX-License-Identifier: GPL-2.0-only
//! Hardware counters by thread: O and I of 3DyRM and SAM's four signals, counted and not sampled.
//!
//! Each event of `data/counters.toml` counts on each CPU; a BPF program charges the threads of managed processes at every
//! switch (`bpf/counters.bpf.c`). Where there are more events than the hardware has counters the kernel lets them take
//! turns; what each counted is then scaled by its share of the time in which the thread ran ([`charged`]).

mod charged;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use tandem_bpf::{Counters, MAX_EVENTS};
use tandem_policies::model::{CpuId, ProcessId};
use thiserror::Error;

use crate::access::Counts;
use crate::pmu::detect::{self, CounterSet, Unavailable};
use crate::pmu::event::{Attributes, Event, Sampling};
use crate::pmu::record::Fields;
pub use crate::pmu::sysfs::Encoding;
pub use crate::pmu::table::Counter;

/// An event that is counted on each of its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedOn {
    /// What it is part of.
    pub counter: Counter,
    /// What one event adds to that.
    pub weight: u32,
    /// The event.
    pub encoding: Encoding,
    /// CPUs that have it; `None`: all.
    pub cpus: Option<Vec<CpuId>>,
}

/// Why nothing can be counted.
#[derive(Debug, Error)]
pub enum CountingError {
    /// No counters here, or no rights.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There are counters, of unknown events.
    #[error("the events of this CPU model are not known: add it to userspace/sense/data/counters.toml")]
    UnknownModel,
    /// The kernel refused an event.
    #[error("{counter} cannot be counted on CPU {cpu}: {source}; does another program use the PMU (perf, the NMI watchdog)?", counter = counter.name(), cpu = cpu.0)]
    Open {
        /// What was to be counted.
        counter: Counter,
        /// The CPU.
        cpu: CpuId,
        /// What the kernel said.
        source: io::Error,
    },
    /// The BPF side.
    #[error("{0}; run as root")]
    Bpf(#[from] tandem_bpf::Error),
}

/// Counts events by thread as long as it lives.
pub struct Counting {
    counters: Counters,
    events: Vec<CountedOn>,
    cpus: Vec<CpuId>,
    managed: BTreeSet<ProcessId>,
}

impl Counting {
    /// Counts what this machine's CPUs can count, on `cpus` (online ones).
    ///
    /// # Errors
    /// [`CountingError`] with what to do about it.
    pub fn open(cpus: &[CpuId]) -> Result<Self, CountingError> {
        let events = known_events(&detect::counters(Path::new("/"))?);
        if events.is_empty() {
            return Err(CountingError::UnknownModel);
        }
        Self::open_events(events, cpus)
    }

    /// Counts these events on those of `cpus` that have them.
    ///
    /// # Errors
    /// [`CountingError`] with what to do about it.
    pub fn open_events(events: Vec<CountedOn>, cpus: &[CpuId]) -> Result<Self, CountingError> {
        let end = cpus.iter().map(|cpu| cpu.0 + 1).max().unwrap_or(0);
        let counters = Counters::load(events.len(), end)?;
        for (number, event) in events.iter().enumerate() {
            let has = |cpu: &&CpuId| event.cpus.as_ref().is_none_or(|of| of.contains(cpu));
            for &cpu in cpus.iter().filter(has) {
                let opened = Event::open(&counting(event.encoding), cpu, None);
                let opened = opened.map_err(|source| CountingError::Open { counter: event.counter, cpu, source })?;
                counters.set_event(number, cpu.0, opened.as_fd())?;
            }
        }
        Ok(Self { counters, events, cpus: cpus.to_vec(), managed: BTreeSet::new() })
    }

    /// Charges threads of these processes from now on, and of no others.
    ///
    /// # Errors
    /// [`CountingError::Bpf`] when there is no room for so many.
    pub fn set_managed(&mut self, managed: &BTreeSet<ProcessId>) -> Result<(), CountingError> {
        // In step with the kernel's set after each change: a refusal in the middle must not spoil the next call.
        let gone: Vec<ProcessId> = self.managed.difference(managed).copied().collect();
        for process in gone {
            self.counters.remove_process(process.0)?;
            self.managed.remove(&process);
        }
        for &process in managed {
            if !self.managed.contains(&process) {
                self.counters.add_process(process.0)?;
                self.managed.insert(process);
            }
        }
        Ok(())
    }

    /// What was counted of each thread since the last call; threads that did not run are left out.
    ///
    /// # Errors
    /// [`CountingError::Bpf`] when the kernel does not tell.
    pub fn take(&mut self) -> Result<Vec<Counts>, CountingError> {
        for &cpu in &self.cpus {
            // A CPU that went offline runs nobody.
            if let Err(error) = self.counters.look(cpu.0) {
                tracing::debug!(%error, cpu = cpu.0, "a CPU's counters are not read");
            }
        }
        let charges = self.counters.take()?;
        Ok(charges.iter().filter_map(|charges| charged::counts(charges, &self.events)).collect())
    }

    /// Charges of threads that were lost for want of room, so far.
    pub fn uncharged(&self) -> u64 {
        self.counters.uncharged()
    }
}

/// Counts what user code does.
fn counting(encoding: Encoding) -> Attributes {
    Attributes {
        encoding,
        fields: Fields::DECODED,
        sampling: Sampling::Never,
        precise: 0,
        user_only: true,
        monotonic: false,
        switches: false,
        disabled: false,
    }
}

/// The counters that something is made of, in the order in which they are worth their place.
const WANTED: [Counter; 7] = [
    Counter::Instructions,
    Counter::Cycles,
    Counter::TransfersAcrossNodes,
    Counter::TransfersWithinNode,
    Counter::L3Miss,
    Counter::RemoteMemory,
    Counter::Operations,
];

/// Events of all types of core, as many as there is room for; a counter that does not fit as a whole is left out.
fn known_events(sets: &[CounterSet]) -> Vec<CountedOn> {
    let mut events = Vec::new();
    for (counter, set) in WANTED.into_iter().flat_map(|counter| sets.iter().map(move |set| (counter, set))) {
        let of = set.get(counter).unwrap_or_default();
        if events.len() + of.len() <= MAX_EVENTS {
            let counted = |weight, encoding| CountedOn { counter, weight, encoding, cpus: set.cpus.clone() };
            events.extend(of.iter().map(|event| counted(event.weight, event.encoding)));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::testing::FakeSystem;

    #[test]
    fn a_known_model_counts_what_its_table_has_and_something_is_made_of() {
        let events = known_events(&detect::counters(FakeSystem::ivy_bridge().root()).unwrap());
        let named: Vec<_> = events.iter().map(|event| event.counter.name()).collect();
        let across = "transfers_across_nodes";
        assert_eq!(named[..4], ["instructions", "cycles", across, across]);
        let count = |wanted| named.iter().filter(|name| **name == wanted).count();
        let signals = ["transfers_across_nodes", "transfers_within_node", "l3_miss", "remote_memory"].map(count);
        assert!(signals.iter().all(|&events| events > 0), "SAM's four signals: {named:?}");
        assert_eq!(named.len(), 2 + signals.iter().sum::<usize>(), "{named:?}");
        assert!(events.iter().all(|event| event.weight == 1 && event.cpus.is_none()));
    }
}
