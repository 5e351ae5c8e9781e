// SPDX-License-Identifier: GPL-2.0-only
//! The `fault` sampler: page faults tell who uses which page (kMAF, PACT 2014).
//!
//! Each fault gives thread, full virtual address and physical frame. First touches come by themselves. Extra faults are made
//! where the kernel can: at writes, by soft-dirty tracking ([`writes`]), in rounds over the managed processes; and in partial
//! mode by the kernel's own NUMA balancing, to which one thread of a process is lent a round ([`Loans`]). The kernel may also
//! move pages then. A kernel that offers NUMA balancing to sched_ext tasks adds its
//! hint faults without anything here: they are faults like others.
//!
//! The kernel counts a fault when it has been handled (software events `minor-faults` and `major-faults`, of every CPU), and
//! its page is there: so perf can tell the frame, which the tracepoint before the fault cannot. No BPF is needed.
//!
//! Bias: a page faults once a round, however often it is used; reads are seen at first touches and hint faults only.

mod counters;
mod frame;
mod touch;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use perf_event_open_sys::bindings;
use tandem_bpf::{Lending, Loans, Purpose};
use tandem_machine::{Capabilities, Capability, kernel_balances};
use tandem_policies::model::{CpuId, ProcessId};
use thiserror::Error;

pub use counters::FaultCounters;

use crate::KERNEL_ADDRESSES;
use crate::access::{Access, Batch, Measured, Sampler, SamplerTraits, Window};
use crate::lookahead::budget::Budget;
use crate::pmu::event::{Event, Sampled};
use crate::pmu::record::{Fields, Record, Sample, parse};
use crate::pmu::sysfs::Encoding;
use crate::pmu::{Attributes, Sampling};
use crate::samplers::{SamplerCounters, SamplerError};
use crate::source::DataSource;
use frame::FrameFlags;

/// What the sampler says of itself.
pub const TRAITS: SamplerTraits = SamplerTraits {
    name: "fault",
    coverage: "page faults: first touches; writes, a page once a round, where the kernel tracks soft-dirty bits; \
               hint faults in partial mode",
    bias: "a page counts once a round however often it is used; reads of touched pages are not seen without hint faults",
    cost: "faults of the managed threads and copying their records, held within a budget",
};

/// An address space is made to fault again after this time at the earliest.
const ROUND_NS: u64 = 1_000_000_000;
/// Instructions that a fault is taken to stand for: a guess, since nothing tells how often a page is used. Rates of
/// threads that all use memory keep their proportions.
const INSTRUCTIONS: u32 = 100;
/// CPU time of a round before one was measured.
const FIRST_ROUND_NS: u64 = 1_000_000;

/// Why the sampler cannot work.
#[derive(Debug, Error)]
pub enum FaultError {
    /// No CPU to sample on.
    #[error("sampling of page faults needs at least one online CPU: the list is empty")]
    NoCpu,
    /// The kernel refused the event.
    #[error("cannot watch page faults on CPU {cpu}: {source}; {}", advice(source), cpu = cpu.0)]
    Open {
        /// The CPU.
        cpu: CpuId,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// What a fault costs cannot be measured.
    #[error("cannot touch memory to see what a page fault costs: {0}; free some memory")]
    Memory(std::io::Error),
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "run as root or with CAP_PERFMON",
        Some(libc::ENODEV | libc::ENXIO | libc::EINVAL) => "is the CPU online?",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "see perf_event_open(2)",
    }
}

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultConfig {
    /// CPU time as a share of one CPU, faults of the threads included, above which no extra faults are made.
    pub budget_fraction: f64,
    /// Have the kernel make hint faults: in partial mode only.
    pub hints: bool,
}

impl Default for FaultConfig {
    /// 1 % of a CPU, full mode.
    fn default() -> Self {
        Self { budget_fraction: 0.01, hints: false }
    }
}

/// The sampler.
pub struct Fault {
    events: Vec<Sampled>,
    managed: BTreeSet<ProcessId>,
    budget: Budget,
    /// The kernel tracks writes.
    writes: bool,
    hints: Option<Loans>,
    flags: Option<FrameFlags>,
    /// When each process was last made to fault.
    rounds_ns: BTreeMap<ProcessId, u64>,
    counters: FaultCounters,
    scratch: Vec<u8>,
}

impl Fault {
    /// Watches the faults on each of `cpus` (online ones; ids may be sparse).
    ///
    /// # Errors
    /// [`FaultError`] with what to do about it.
    pub fn open(config: FaultConfig, cpus: &[CpuId]) -> Result<Self, FaultError> {
        if cpus.is_empty() {
            return Err(FaultError::NoCpu);
        }
        let mut events = Vec::new();
        for kind in [bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN, bindings::PERF_COUNT_SW_PAGE_FAULTS_MAJ] {
            for &cpu in cpus {
                let open = || Sampled::new(Event::open(&attributes(kind.into()), cpu, None)?, false);
                events.push(open().map_err(|source| FaultError::Open { cpu, source })?);
            }
        }
        // With the events on: writing the records is part of the cost.
        let fault_ns = touch::cost_ns().map_err(FaultError::Memory)?;
        let writes = writes::tracked().unwrap_or_else(|error| {
            tracing::warn!("whether this kernel tracks writes cannot be seen ({error}): no extra faults at writes");
            false
        });
        if !writes {
            tracing::info!("writes are not tracked (CONFIG_MEM_SOFT_DIRTY does): no extra faults at writes");
        } else if !Capabilities::read(Path::new("/")).has(Capability::DacOverride) {
            let name = Capability::DacOverride.name();
            tracing::warn!("without {name}: no extra faults at writes of other users' processes");
        }
        let flags = FrameFlags::open().inspect_err(|error| {
            tracing::warn!("{error}: which threads share pages is not seen");
        });
        let hints = (config.hints && kernel_balances(Path::new("/"))).then(|| Loans::new(Purpose::Samples));
        if config.hints && hints.is_none() {
            tracing::info!("kernel.numa_balancing is off: no hint faults");
        }
        Ok(Self {
            events,
            managed: BTreeSet::new(),
            budget: Budget::new(config.budget_fraction),
            writes,
            hints,
            flags: flags.ok(),
            rounds_ns: BTreeMap::new(),
            counters: FaultCounters { fault_ns, ..FaultCounters::default() },
            scratch: Vec::new(),
        })
    }

    /// What the sampler did so far.
    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Takes out everything that came since the last call, in order of time.
    fn collect(&mut self) -> Vec<Access> {
        let Self { events, managed, flags, counters, scratch, .. } = self;
        let mut accesses = Vec::new();
        for event in events {
            let broken = event.drain(scratch, |bytes| match parse(bytes, Fields::FAULT) {
                Record::Sample(sample) if !managed.contains(&sample.moment.process) => counters.unmanaged += 1,
                Record::Sample(sample) if sample.address >= KERNEL_ADDRESSES => counters.kernel += 1,
                Record::Sample(sample) => accesses.push(access(&sample, flags.as_ref())),
                Record::Lost(lost) | Record::LostSamples(lost) => counters.lost += lost,
                Record::Malformed => counters.malformed += 1,
                _ => {}
            });
            counters.broken_rings += u64::from(broken);
        }
        accesses.sort_by_key(|access| access.time_ns);
        let no_frame = |access: &&Access| access.measured.is_none_or(|measured| measured.physical.is_none());
        counters.no_frame += accesses.iter().filter(no_frame).count() as u64;
        counters.samples += accesses.len() as u64;
        counters.accesses += accesses.len() as u64;
        accesses
    }

    /// Makes the process that waits longest fault again, if that is affordable and time.
    fn make_faults(&mut self, now_ns: u64) {
        let Self { managed, rounds_ns, .. } = self;
        rounds_ns.retain(|process, _| managed.contains(process));
        let due = |process: &ProcessId| rounds_ns.get(process).map_or(0, |round_ns| round_ns + ROUND_NS);
        let next = managed.iter().map(|process| (due(process), *process)).min();
        let Some((_, process)) = next.filter(|(due_ns, _)| *due_ns <= now_ns) else { return };
        rounds_ns.insert(process, now_ns);
        if self.writes {
            let rearmed = writes::rearm(process).is_ok();
            self.counters.write_rounds += u64::from(rearmed);
            self.counters.refused += u64::from(!rearmed);
        }
        if let Some(hints) = &mut self.hints {
            match hints.lend(process.0, now_ns) {
                Ok(lending) => self.counters.hint_rounds += u64::from(lending == Lending::Lent),
                Err(_) => self.counters.refused += 1,
            }
        }
    }

    /// What a round cost so far, on the average.
    fn round_ns(&self) -> u64 {
        let rounds = self.counters.write_rounds + self.counters.hint_rounds;
        (self.counters.own_ns + self.counters.threads_ns).checked_div(rounds).unwrap_or(FIRST_ROUND_NS)
    }
}

fn attributes(kind: u64) -> Attributes {
    Attributes {
        encoding: Encoding { kind: bindings::PERF_TYPE_SOFTWARE, config: [kind, 0, 0, 0, 0] },
        fields: Fields::FAULT,
        sampling: Sampling::Period(1),
        precise: 0,
        // Memory that the kernel touches for a thread is the thread's.
        user_only: false,
        monotonic: true,
        switches: false,
        disabled: false,
    }
}

fn access(sample: &Sample<'_>, flags: Option<&FrameFlags>) -> Access {
    let known = |physical: &u64| *physical != 0 && flags.is_some_and(|flags| flags.is_memory(*physical));
    let physical = Some(sample.physical).filter(known);
    Access {
        process: sample.moment.process,
        tid: sample.moment.tid,
        address: sample.address,
        bytes: 0,
        store: false,
        time_ns: sample.moment.time_ns,
        cpu: sample.moment.cpu,
        measured: Some(Measured { latency_ns: None, source: DataSource::UNKNOWN, node: None, physical, period: 1 }),
    }
}

impl Sampler for Fault {
    fn traits(&self) -> SamplerTraits {
        TRAITS
    }

    fn set_managed(&mut self, managed: &BTreeSet<ProcessId>) {
        self.managed.clone_from(managed);
    }

    fn take_share(&mut self, of_budget: f64) {
        self.budget.earn_share(of_budget);
    }

    fn drain(&mut self, now_ns: u64) -> Result<Batch, SamplerError> {
        let start_ns = crate::thread_cpu_ns();
        self.budget.earn(now_ns);
        let accesses = self.collect();
        if let Some(hints) = &mut self.hints {
            hints.take_back(now_ns);
        }
        if (self.writes || self.hints.is_some()) && self.budget.affords(self.round_ns()) {
            self.make_faults(now_ns);
        }
        let window = |access: &Access| Window {
            process: access.process,
            tid: access.tid,
            time_ns: access.time_ns,
            instructions: INSTRUCTIONS,
        };
        let windows = accesses.iter().map(window).collect();
        let (own_ns, threads_ns) = (crate::thread_cpu_ns() - start_ns, accesses.len() as u64 * self.counters.fault_ns);
        self.budget.spend(own_ns + threads_ns);
        self.counters.own_ns += own_ns;
        self.counters.threads_ns += threads_ns;
        Ok(Batch { accesses, windows, counts: Vec::new() })
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Fault(self.counters)
    }

    fn sees_faults(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
