// SPDX-License-Identifier: GPL-2.0-only
//! Who runs on each CPU, from perf's records of context switches, on perf's own clock.

use std::collections::BTreeMap;
use std::io;

use perf_event_open_sys::bindings;
use tandem_policies::model::CpuId;

use super::counters::DeviceCounters;
use crate::pmu::event::{Attributes, Event, Sampled, Sampling};
use crate::pmu::record::{Fields, Record, parse};
use crate::pmu::spe::{TickClock, Timeline};
use crate::pmu::sysfs::Encoding;

struct OfCpu {
    sampled: Sampled,
    timeline: Timeline,
}

/// Context switches of some CPUs.
pub(super) struct Switches {
    cpus: BTreeMap<CpuId, OfCpu>,
    scratch: Vec<u8>,
}

impl Switches {
    /// Starts to watch `cpus`.
    ///
    /// # Errors
    /// The CPU on which the kernel refused, and what it said.
    pub(super) fn open(cpus: &[CpuId]) -> Result<Self, (CpuId, io::Error)> {
        let of_cpu = |cpu: CpuId| -> io::Result<OfCpu> {
            let event = Event::open(&switches_alone(), cpu, None)?;
            Ok(OfCpu { sampled: Sampled::new(event, false)?, timeline: Timeline::default() })
        };
        let opened = cpus.iter().map(|&cpu| Ok((cpu, of_cpu(cpu).map_err(|error| (cpu, error))?)));
        let switches = Self { cpus: opened.collect::<Result<_, _>>()?, scratch: Vec::new() };
        // Who has run there since before is known only at the next switch: make one.
        visit(cpus);
        Ok(switches)
    }

    /// Takes in what happened since the last call.
    pub(super) fn drain(&mut self, counters: &mut DeviceCounters) {
        let Self { cpus, scratch } = self;
        for OfCpu { sampled, timeline } in cpus.values_mut() {
            let broken = sampled.drain(scratch, |bytes| match parse(bytes, Fields::COMMON) {
                Record::SwitchIn(moment) => timeline.switch(moment.time_ns, Some((moment.process, moment.tid))),
                Record::SwitchOut(moment) => timeline.switch(moment.time_ns, None),
                Record::Lost(lost) => counters.lost_switches += lost,
                Record::Malformed => counters.malformed += 1,
                _ => {}
            });
            counters.malformed += u64::from(broken);
        }
    }

    /// Who ran on each CPU since when.
    pub(super) fn timelines(&self) -> impl Iterator<Item = (CpuId, &Timeline)> {
        self.cpus.iter().map(|(&cpu, of_cpu)| (cpu, &of_cpu.timeline))
    }

    /// Who ran on `cpu` since when.
    pub(super) fn timeline(&self, cpu: CpuId) -> Option<&Timeline> {
        self.cpus.get(&cpu).map(|of_cpu| &of_cpu.timeline)
    }

    /// Forgets what was over before `time_ns`.
    pub(super) fn forget_before(&mut self, time_ns: u64) {
        self.cpus.values_mut().for_each(|of_cpu| of_cpu.timeline.forget_before(time_ns));
    }

    /// How ticks of the TSC convert to the clock of the switches; `None` if the kernel does not say.
    pub(super) fn clock(&self) -> Option<TickClock> {
        self.cpus.values().next()?.sampled.tick_clock()
    }
}

/// An event that counts nothing and tells switches.
fn switches_alone() -> Attributes {
    Attributes {
        encoding: Encoding {
            kind: bindings::PERF_TYPE_SOFTWARE,
            config: [u64::from(bindings::PERF_COUNT_SW_DUMMY), 0, 0, 0, 0],
        },
        fields: Fields::COMMON,
        sampling: Sampling::Period(1),
        precise: 0,
        user_only: true,
        // The TSC converts to perf's own clock only.
        monotonic: false,
        switches: true,
        disabled: false,
    }
}

/// Runs on each of `cpus` for a moment. Where this thread may not run, the next switch there comes by itself.
fn visit(cpus: &[CpuId]) {
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeroes is an empty set.
    let empty = || unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    let mut before = empty();
    // SAFETY: the kernel writes at most `bytes` bytes into the set.
    if unsafe { libc::sched_getaffinity(0, bytes, &raw mut before) } != 0 {
        return;
    }
    for cpu in cpus.iter().filter(|cpu| (cpu.0 as usize) < bytes * 8) {
        let mut there = empty();
        // SAFETY: the CPU is inside the set, as just filtered; the kernel reads `bytes` bytes of it.
        unsafe {
            libc::CPU_SET(cpu.0 as usize, &mut there);
            libc::sched_setaffinity(0, bytes, &raw const there);
        }
    }
    // SAFETY: the kernel reads `bytes` bytes of the set. It had taken it before.
    unsafe { libc::sched_setaffinity(0, bytes, &raw const before) };
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::ProcessId;

    use super::*;

    /// Needs perf events (root or CAP_PERFMON) and fails without them.
    #[test]
    fn this_thread_is_seen_on_the_cpus_that_it_visits() {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let cpus: Vec<CpuId> = tandem_machine::parse_cpu_list(list.trim()).unwrap().into_iter().map(CpuId).collect();
        let mut switches = Switches::open(&cpus).unwrap_or_else(|(cpu, error)| panic!("{cpu:?}: {error}"));
        let mut counters = DeviceCounters::default();
        switches.drain(&mut counters);
        // SAFETY: no arguments.
        let own = (ProcessId(std::process::id()), unsafe { libc::gettid() } as u32);
        let seen = switches.timelines().filter(|(cpu, timeline)| {
            // Where it is now, the last switch is the one that brought it.
            let end_ns = timeline.latest_ns().unwrap_or_else(|| panic!("no switch on CPU {}", cpu.0)) + 1;
            timeline.runs(0, end_ns).any(|(runner, _)| runner == own)
        });
        // It did not have to come to where it was.
        assert!(seen.count() + 1 >= cpus.len());
        assert_eq!((counters.lost_switches, counters.malformed), (0, 0));
    }

    #[test]
    fn the_cpu_that_is_refused_is_named() {
        let refused = Switches::open(&[CpuId(4000)]).err().expect("no CPU 4000");
        assert_eq!(refused.0, CpuId(4000));
    }
}
