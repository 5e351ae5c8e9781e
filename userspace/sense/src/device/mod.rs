// SPDX-License-Identifier: GPL-2.0-only
//! The `device` sampler: the timing lab's ring of sampled misses and its counters, as `pmu` would deliver them.
//!
//! The ring names no process: who ran is known from context switches ([`join`]). It holds far more samples than a
//! monitor of hardware would bring, so only as many are taken as asked for, evenly; those stand for the others.

mod counters;
mod find;
mod join;
mod ring;
mod switches;
#[cfg(test)]
mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use tandem_policies::model::{CpuId, ProcessId};
use thiserror::Error;

pub use counters::DeviceCounters;

use crate::access::{Batch, Sampler, SamplerTraits};
use crate::pmu::spe::TickClock;
use crate::samplers::{SamplerCounters, SamplerError};
use join::{Join, Look};
use ring::{CpuCounters, Ring};
use switches::Switches;

/// What the sampler says of itself.
pub const TRAITS: SamplerTraits = SamplerTraits {
    name: "device",
    coverage: "loads and stores that missed the second-level cache of the timing lab, with latency, source and node; \
               instructions, cycles and where lines came from by thread",
    bias: "none known: misses are sampled at random; counts of threads that take turns on a CPU are shared out by time",
    cost: "copying samples and context switches, at most 1000 samples a second and CPU",
};

/// Why the sampler cannot work.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// Not a timing guest.
    #[error(
        "there is no PCI device 1af4:1110, which only guests of the timing lab have: start one with `vm/lab.py run \
         --timing`, or choose another sampler"
    )]
    None,
    /// Its file.
    #[error("{}: {source}; run as root", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its contents.
    #[error("{} is no ring of the timing lab ({why}): use a lab and a program of one version", path.display())]
    NotARing {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Context switches cannot be watched.
    #[error("cannot watch context switches on CPU {cpu}: {source}; run as root, on online CPUs", cpu = cpu.0)]
    Switches {
        /// The CPU.
        cpu: CpuId,
        /// What the kernel said.
        source: io::Error,
    },
    /// The TSC is not perf's clock.
    #[error("the kernel does not tell how the TSC converts to perf's clock: boot it with tsc=reliable")]
    Clock,
}

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceConfig {
    /// Samples per second and CPU that are taken at most.
    pub frequency_hz: u64,
}

impl Default for DeviceConfig {
    /// 1000 Hz, as `pmu`.
    fn default() -> Self {
        Self { frequency_hz: 1000 }
    }
}

/// The sampler.
pub struct Device {
    config: DeviceConfig,
    ring: Ring,
    switches: Switches,
    join: Join,
    /// Number of the next sample.
    next: u64,
    /// Counters at the last look.
    counted: BTreeMap<CpuId, CpuCounters>,
    /// The last look, on perf's clock and on CLOCK_MONOTONIC.
    looked_ns: (u64, u64),
}

impl Device {
    /// Starts to sample on `cpus` of this machine.
    ///
    /// # Errors
    /// [`DeviceError`] with what to do about it.
    pub fn open(config: DeviceConfig, cpus: &[CpuId]) -> Result<Self, DeviceError> {
        let ring = Ring::open(&find::ring_file(Path::new("/"))?)?;
        let switches = Switches::open(cpus).map_err(|(cpu, source)| DeviceError::Switches { cpu, source })?;
        let clock = switches.clock().ok_or(DeviceError::Clock)?;
        let counted = cpus.iter().filter_map(|&cpu| Some((cpu, ring.counters(cpu)?))).collect();
        let looked_ns = (clock.time_ns(ticks()), crate::monotonic_ns());
        Ok(Self { config, next: ring.head(), ring, switches, join: Join::default(), counted, looked_ns })
    }

    /// What the sampler did so far.
    pub fn counters(&self) -> &DeviceCounters {
        &self.join.counters
    }

    fn look(&mut self, now_ns: u64) -> Result<Batch, DeviceError> {
        let head = self.ring.head();
        // Samples first: switches before them are then known too.
        self.switches.drain(&mut self.join.counters);
        let clock: TickClock = self.switches.clock().ok_or(DeviceError::Clock)?;
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns.1);
        let cpus = self.counted.len().max(1) as u64;
        let most = (u128::from(self.config.frequency_hz) * u128::from(cpus * elapsed_ns)).div_ceil(1_000_000_000);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let chosen = Chosen::of(self.next, head, self.ring.slots(), most);
        self.next = head;
        let period = self.ring.period() * chosen.there / chosen.taken.max(1);
        let look = Look { now_ns, perf_ns: clock.time_ns(ticks()), clock, period };
        // Now, and not after the samples, which take a while: the time that threads ran is known for up to now.
        let counted: BTreeMap<CpuId, CpuCounters> =
            self.counted.keys().filter_map(|&cpu| Some((cpu, self.ring.counters(cpu)?))).collect();
        self.join.counters.overrun += chosen.overrun;
        self.join.counters.thinned += chosen.there - chosen.taken;
        for number in chosen.numbers() {
            match self.ring.sample(number) {
                Some(sample) => self.join.sample(&sample, self.switches.timeline(sample.cpu), &look),
                None => self.join.counters.overrun += 1,
            }
        }
        self.count(counted, &look);
        self.switches.forget_before(look.perf_ns);
        self.looked_ns = (look.perf_ns, now_ns);
        let accesses = std::mem::take(&mut self.join.accesses);
        Ok(Batch { accesses, windows: Vec::new(), counts: self.join.take_counts() })
    }

    fn count(&mut self, counted: BTreeMap<CpuId, CpuCounters>, look: &Look) {
        for (cpu, timeline) in self.switches.timelines() {
            let (Some(before), Some(now)) = (self.counted.get(&cpu), counted.get(&cpu)) else { continue };
            self.join.count(now.since(*before), timeline, self.looked_ns.0, look);
        }
        self.counted.extend(counted);
    }
}

impl Sampler for Device {
    fn traits(&self) -> SamplerTraits {
        TRAITS
    }

    fn set_managed(&mut self, managed: &BTreeSet<ProcessId>) {
        self.join.managed.clone_from(managed);
    }

    fn drain(&mut self, now_ns: u64) -> Result<Batch, SamplerError> {
        let start_ns = crate::thread_cpu_ns();
        let batch = self.look(now_ns);
        self.join.counters.cost_ns += crate::thread_cpu_ns() - start_ns;
        Ok(batch?)
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Device(self.join.counters)
    }
}

/// The TSC of the CPU that this runs on.
fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has a TSC, and Linux lets programs read it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Which samples to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    /// The oldest that is still there.
    first: u64,
    there: u64,
    taken: u64,
    /// Overwritten since the last look.
    overrun: u64,
}

impl Chosen {
    /// At most `most` of the samples from `next` to before `head` in a ring of `slots`, evenly.
    fn of(next: u64, head: u64, slots: u64, most: u64) -> Self {
        let first = next.max(head.saturating_sub(slots)).min(head);
        let there = head - first;
        Self { first, there, taken: there.min(most), overrun: first.saturating_sub(next) }
    }

    fn numbers(self) -> impl Iterator<Item = u64> {
        let Self { first, there, taken, .. } = self;
        (0..taken).map(move |at| first + (u128::from(at) * u128::from(there) / u128::from(taken)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(next: u64, head: u64, most: u64) -> (Vec<u64>, u64) {
        let chosen = Chosen::of(next, head, 8, most);
        (chosen.numbers().collect(), chosen.overrun)
    }

    #[test]
    fn samples_are_thinned_evenly_and_what_was_overwritten_is_told() {
        assert_eq!(chosen(3, 3, 9), (vec![], 0));
        assert_eq!(chosen(3, 6, 9), (vec![3, 4, 5], 0));
        assert_eq!(chosen(0, 8, 4), (vec![0, 2, 4, 6], 0));
        assert_eq!(chosen(0, 8, 3), (vec![0, 2, 5], 0));
        assert_eq!(chosen(0, 20, 2), (vec![12, 16], 12));
        assert_eq!(chosen(0, 20, 0), (vec![], 12));
        assert_eq!(chosen(9, 3, 5), (vec![], 0), "a ring that began anew");
    }

    #[test]
    fn a_machine_without_the_device_is_refused_with_what_to_do() {
        let refused = Device::open(DeviceConfig::default(), &[CpuId(0)]).err().expect("no timing guest").to_string();
        assert!(refused.contains("vm/lab.py run --timing") && refused.contains("another sampler"), "{refused}");
    }
}
