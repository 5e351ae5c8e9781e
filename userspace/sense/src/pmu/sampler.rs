// SPDX-License-Identifier: GPL-2.0-only
//! The `pmu` sampler: opens the planned events on each CPU and drains their rings.

use std::collections::BTreeSet;
use std::path::Path;

use tandem_policies::model::{CpuId, ProcessId};
use thiserror::Error;

use super::clock::{CoreClocks, highest_khz};
use super::counters::PmuCounters;
use super::detect::{Available, Unavailable, detect};
use super::event::{Event, Sampled, Sampling};
use super::intake::{CpuTrace, Intake};
use super::pace::Pace;
use super::plan::{Decoder, PlannedEvent, PmuConfig, plan};
use super::record::{AUX_COLLISION, AUX_PARTIAL, AUX_TRUNCATED, Record, parse};
use super::spe::Timeline;
use super::sysfs::read_text;
use crate::access::{Batch, Sampler, SamplerTraits};
use crate::samplers::{SamplerCounters, SamplerError};

/// What the sampler says of itself.
pub const TRAITS: SamplerTraits = SamplerTraits {
    name: "pmu",
    coverage: "user-space loads above a latency threshold that left the caches, and stores, with latency and source",
    bias: "prefetched lines are not seen; sources of stores are mostly unknown; AMD and Arm see operations, not misses",
    cost: "one interrupt or trace record a sample, at a frequency that falls when the kernel throttles",
};

/// Times are read from the events this often.
const TIMES_NS: u64 = 1_000_000_000;

/// Why the sampler cannot work.
#[derive(Debug, Error)]
pub enum PmuError {
    /// Not on this system.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// None of the CPUs has the hardware.
    #[error("none of the CPUs asked for can sample memory accesses: name online CPUs")]
    NoCpu,
    /// The kernel refused an event.
    #[error("cannot sample memory accesses on CPU {cpu}: {source}; {}", advice(source), cpu = cpu.0)]
    Open {
        /// The CPU.
        cpu: CpuId,
        /// What the kernel said.
        source: std::io::Error,
    },
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "run as root or with CAP_PERFMON, and raise kernel.perf_event_mlock_kb if you do"
        }
        Some(libc::ENODEV | libc::ENXIO) => "is the CPU online?",
        Some(libc::EBUSY) => "another program uses the PMU: stop it (perf, the NMI watchdog, a virtual machine)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENODATA) => {
            "is the CPU online? If it is, this kernel does not know the event: sample with `lookahead`"
        }
        _ => "see perf_event_open(2)",
    }
}

struct Source {
    cpu: CpuId,
    sampled: Sampled,
    planned: PlannedEvent,
    /// Keeps the group's first event open.
    _leader: Option<Event>,
    timeline: Timeline,
    /// Enabled time over time on the hardware.
    scale: f64,
}

/// The sampler.
pub struct Pmu {
    sources: Vec<Source>,
    intake: Intake,
    pace: Pace,
    throttled: u64,
    times_read_ns: Option<u64>,
    scratch: Vec<u8>,
    trace: Vec<u8>,
}

impl Pmu {
    /// Starts to sample on `cpus` of this machine.
    ///
    /// # Errors
    /// [`PmuError`] with what to do about it.
    pub fn open(config: &PmuConfig, cpus: &[CpuId]) -> Result<Self, PmuError> {
        let root = Path::new("/");
        Self::open_available(&detect(root)?, config, cpus, root)
    }

    fn open_available(
        available: &Available,
        config: &PmuConfig,
        cpus: &[CpuId],
        root: &Path,
    ) -> Result<Self, PmuError> {
        let allowed = read_text(&root.join("proc/sys/kernel/perf_event_max_sample_rate"));
        let pace = Pace::new(config.frequency_hz, allowed.and_then(|text| text.trim().parse().ok()));
        let events = plan(available, config, highest_khz(root), pace.hz())?;
        Self::open_planned(events, cpus, pace, root)
    }

    /// Opens these events on those of `cpus` that have them.
    pub(super) fn open_planned(
        events: Vec<PlannedEvent>,
        cpus: &[CpuId],
        pace: Pace,
        root: &Path,
    ) -> Result<Self, PmuError> {
        let mut sources = Vec::new();
        for planned in events {
            let has = |cpu: &&CpuId| planned.cpus.as_ref().is_none_or(|of| of.contains(cpu));
            for &cpu in cpus.iter().filter(has) {
                sources.push(Source::open(&planned, cpu).map_err(|source| PmuError::Open { cpu, source })?);
            }
        }
        if sources.is_empty() {
            return Err(PmuError::NoCpu);
        }
        Ok(Self {
            sources,
            intake: Intake {
                managed: BTreeSet::new(),
                clocks: CoreClocks::new(root),
                counters: PmuCounters::default(),
                accesses: Vec::new(),
            },
            pace,
            throttled: 0,
            times_read_ns: None,
            scratch: Vec::new(),
            trace: Vec::new(),
        })
    }

    /// What the sampler did so far.
    pub fn counters(&self) -> &PmuCounters {
        &self.intake.counters
    }

    /// Samples per second, event and CPU that are aimed at now.
    pub fn frequency_hz(&self) -> u64 {
        self.pace.hz()
    }

    /// Once a second: how much of the time the events were on the hardware.
    fn read_times(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(*self.times_read_ns.get_or_insert(now_ns)) < TIMES_NS {
            return;
        }
        self.times_read_ns = Some(now_ns);
        let (mut enabled_ns, mut running_ns) = (0, 0);
        for source in &mut self.sources {
            match source.sampled.event().times_ns() {
                Ok((enabled, running)) => {
                    enabled_ns += enabled;
                    running_ns += running;
                    source.scale = if running > 0 { enabled as f64 / running as f64 } else { 1.0 };
                }
                // An event whose CPU went offline tells no times any more; it brings no samples either.
                Err(error) => tracing::debug!(%error, cpu = source.cpu.0, "times of an event cannot be read"),
            }
        }
        (self.intake.counters.enabled_ns, self.intake.counters.running_ns) = (enabled_ns, running_ns);
    }

    fn adapt(&mut self, now_ns: u64) {
        let throttled = self.intake.counters.throttled - self.throttled;
        self.throttled = self.intake.counters.throttled;
        let Some(hz) = self.pace.adapt(throttled, now_ns) else { return };
        for source in self.sources.iter().filter(|source| matches!(source.sampling(), Sampling::Frequency(_))) {
            if let Err(error) = source.sampled.event().set_rate(hz) {
                tracing::debug!(%error, cpu = source.cpu.0, "sampling frequency not changed");
            }
        }
    }
}

impl Source {
    fn open(planned: &PlannedEvent, cpu: CpuId) -> std::io::Result<Self> {
        let attributes = &planned.attributes;
        let counting = |encoding| super::event::Attributes { encoding, sampling: Sampling::Never, ..*attributes };
        let leader = planned.leader.map(|leader| Event::open(&counting(leader), cpu, None)).transpose()?;
        let event = Event::open(attributes, cpu, leader.as_ref())?;
        let sampled = Sampled::new(event, matches!(planned.decoder, Decoder::Spe(_)))?;
        let planned = planned.clone();
        Ok(Self { cpu, sampled, planned, _leader: leader, timeline: Timeline::default(), scale: 1.0 })
    }

    fn sampling(&self) -> Sampling {
        self.planned.attributes.sampling
    }

    /// Takes out everything that came since the last call.
    fn drain(&mut self, intake: &mut Intake, scratch: &mut Vec<u8>, trace: &mut Vec<u8>, now_ns: u64) {
        let Self { sampled, planned, timeline, scale, .. } = self;
        let mut traces = Vec::new();
        let broken = sampled.drain(scratch, |bytes| match parse(bytes, planned.attributes.fields) {
            Record::Sample(sample) => intake.sample(&sample, planned.decoder, *scale, now_ns),
            Record::Lost(lost) => intake.counters.lost += lost,
            Record::LostSamples(lost) => intake.counters.lost_samples += lost,
            Record::Throttled => intake.counters.throttled += 1,
            Record::Aux { offset, size, flags } => {
                let damaged = flags & (AUX_TRUNCATED | AUX_PARTIAL | AUX_COLLISION) != 0;
                intake.counters.gaps += u64::from(damaged);
                traces.push((offset, size));
            }
            Record::SwitchIn(moment) => timeline.switch(moment.time_ns, Some((moment.process, moment.tid))),
            Record::SwitchOut(moment) => timeline.switch(moment.time_ns, None),
            Record::Unthrottled | Record::Other => {}
            Record::Malformed => intake.counters.malformed += 1,
        });
        intake.counters.broken_rings += u64::from(broken);
        for (offset, size) in traces {
            self.read_trace(offset, size, intake, trace, now_ns);
        }
        if let Some(latest_ns) = self.timeline.latest_ns() {
            self.timeline.forget_before(latest_ns.saturating_sub(TIMES_NS));
        }
    }

    fn read_trace(&mut self, offset: u64, size: u64, intake: &mut Intake, into: &mut Vec<u8>, now_ns: u64) {
        let Decoder::Spe(codes) = self.planned.decoder else { return };
        if !self.sampled.copy_trace(offset, size, into) {
            intake.counters.broken_rings += 1;
            return;
        }
        let period = match self.sampling() {
            Sampling::Period(period) => (period as f64 * self.scale).round() as u64,
            Sampling::Frequency(_) | Sampling::Never => 0,
        };
        let ticks = self.sampled.tick_clock();
        let trace = CpuTrace { bytes: into, offset, cpu: self.cpu, codes, ticks, timeline: &self.timeline, period };
        intake.trace(&trace, now_ns);
        self.sampled.release_trace(offset + size);
    }
}

impl Sampler for Pmu {
    fn traits(&self) -> SamplerTraits {
        TRAITS
    }

    fn set_managed(&mut self, managed: &BTreeSet<ProcessId>) {
        self.intake.managed.clone_from(managed);
    }

    fn drain(&mut self, now_ns: u64) -> Result<Batch, SamplerError> {
        let start_ns = crate::thread_cpu_ns();
        let Self { sources, intake, scratch, trace, .. } = self;
        for source in sources {
            source.drain(intake, scratch, trace, now_ns);
        }
        self.read_times(now_ns);
        self.adapt(now_ns);
        self.intake.counters.cost_ns += crate::thread_cpu_ns() - start_ns;
        Ok(Batch { accesses: std::mem::take(&mut self.intake.accesses), ..Batch::default() })
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Pmu(self.intake.counters)
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
