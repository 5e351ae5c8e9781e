// SPDX-License-Identifier: GPL-2.0-only
//! Lookahead sampling: data addresses by thread on any x86-64 machine, without a PMU.
//!
//! A timer interrupts a thread and delivers its user registers. Running the thread's own code forward from
//! there, on a private copy of its memory, gives the loads and stores it is about to make. Nothing in the
//! sampled process changes. Memory contents stay in the emulator: they are never stored, logged or recorded.
//!
//! Bias: memory is read a little later than the registers, so a pointer may be stale; runs end early where code
//! depends on vector registers or enters the kernel; accesses in the kernel are not seen.

mod arithmetic;
pub(crate) mod budget;
mod compute;
pub mod counters;
mod decode;
pub mod emulator;
mod execute;
mod filter;
mod intake;
pub mod memory;
mod pace;
pub mod perf;
mod queue;
mod tls;
mod values;
mod vector;

#[cfg(test)]
mod hardware_tests;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tandem_bpf::SampleFilter;
use tandem_policies::model::{CpuId, ProcessId, ThreadId};
use thiserror::Error;

pub use counters::{LookaheadCounters, StopReason};
pub use memory::CopyLimits;

use crate::access::{Access, Batch, Sampler, SamplerTraits, Window};
use crate::samplers::{SamplerCounters, SamplerError};
use budget::Budget;
use emulator::{Emulator, Reach, STACK_POINTER, Touch};
use filter::CacheFilter;
use pace::Pace;
use perf::CpuClock;
use queue::{FairQueue, Sample};
use tls::ThreadLocalBases;

/// What the sampler says of itself.
pub const TRAITS: SamplerTraits = SamplerTraits {
    name: "lookahead",
    coverage: "user-space loads and stores of 64-bit x86 code that follow a timer sample",
    bias: "runs end at system calls and where vector registers decide; cached lines are filtered by rule",
    cost: "CPU time of reading samples and of emulation, held within a budget",
};

/// Why the sampler cannot work.
#[derive(Debug, Error)]
pub enum LookaheadError {
    /// No CPU to sample on.
    #[error("lookahead sampling needs at least one online CPU: the list is empty")]
    NoCpu,
    /// Nobody may read another process's memory, root included.
    #[error(
        "memory of other processes cannot be read: kernel.yama.ptrace_scope is 3, until the next boot; choose another sampler with --sampler"
    )]
    Withheld,
    /// The kernel refused the event.
    #[error("cannot sample on CPU {cpu}: {source}; {}", advice(source), cpu = cpu.0)]
    Open {
        /// The CPU.
        cpu: CpuId,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Whether the kernel below `root` lets nobody read another process's memory (Documentation/admin-guide/LSM/Yama.rst). One's own,
/// by which this could be tried, can be read all the same.
fn is_withheld(root: &Path) -> bool {
    std::fs::read_to_string(root.join("proc/sys/kernel/yama/ptrace_scope")).is_ok_and(|scope| scope.trim() == "3")
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "run as root or with CAP_PERFMON, or set /proc/sys/kernel/perf_event_paranoid to -1"
        }
        Some(libc::ENODEV | libc::ENXIO | libc::EINVAL) => "is the CPU online?",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "see perf_event_open(2)",
    }
}

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookaheadConfig {
    /// How far each sample is run at most.
    pub reach: Reach,
    /// CPU time for reading samples and for emulation as a share of one CPU; `None`: 1 % of one CPU for every 8 CPUs.
    pub budget_fraction: Option<f64>,
    /// Shortest and longest time between samples of a CPU; the budget decides in between.
    pub period_ns: (u64, u64),
    /// Samples older than this when their turn comes are dropped: their memory may have moved on.
    pub max_age_ns: u64,
    /// Limits of what is copied of a process's memory.
    pub copies: CopyLimits,
    /// Drop what caches absorb. Without, every access counts as one to memory: to see what the filter is worth.
    pub cache_filter: bool,
}

impl Default for LookaheadConfig {
    /// 1 ms to 100 ms between samples, samples up to 200 ms old.
    fn default() -> Self {
        Self {
            reach: Reach::default(),
            budget_fraction: None,
            period_ns: (1_000_000, 100_000_000),
            max_age_ns: 200_000_000,
            copies: CopyLimits::default(),
            cache_filter: true,
        }
    }
}

/// The sampler.
pub struct Lookahead {
    config: LookaheadConfig,
    clocks: Vec<CpuClock>,
    /// `None`: samples of all processes come, and are filtered here.
    kernel_filter: Option<SampleFilter>,
    emulator: Emulator,
    managed: BTreeSet<ProcessId>,
    queue: FairQueue,
    budget: Budget,
    filter: CacheFilter,
    bases: ThreadLocalBases,
    counters: LookaheadCounters,
    scratch: Vec<u8>,
    pace: Pace,
}

impl Lookahead {
    /// Opens one event on each of `cpus` (online ones; ids may be sparse).
    ///
    /// # Errors
    /// [`LookaheadError`] with what to do about it.
    pub fn open(config: LookaheadConfig, cpus: &[CpuId]) -> Result<Self, LookaheadError> {
        if cpus.is_empty() {
            return Err(LookaheadError::NoCpu);
        }
        if is_withheld(Path::new("/")) {
            return Err(LookaheadError::Withheld);
        }
        let period_ns = 10_000_000.clamp(config.period_ns.0, config.period_ns.1);
        let open = |&cpu| CpuClock::open(cpu, period_ns).map_err(|source| LookaheadError::Open { cpu, source });
        let clocks = cpus.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let kernel_filter = filter_in_kernel(&clocks);
        for (clock, &cpu) in clocks.iter().zip(cpus) {
            clock.enable().map_err(|source| LookaheadError::Open { cpu, source })?;
        }
        let fraction = config.budget_fraction.unwrap_or(0.01 * cpus.len().div_ceil(8) as f64);
        Ok(Self {
            config,
            clocks,
            kernel_filter,
            emulator: Emulator::new(config.reach, config.copies),
            managed: BTreeSet::new(),
            queue: FairQueue::default(),
            budget: Budget::new(fraction),
            filter: CacheFilter::default(),
            bases: ThreadLocalBases::default(),
            counters: LookaheadCounters::default(),
            scratch: Vec::new(),
            pace: Pace::new(period_ns, config.period_ns),
        })
    }

    /// What the sampler did so far.
    pub fn counters(&self) -> &LookaheadCounters {
        &self.counters
    }

    /// Time between samples of a CPU at present.
    pub fn period_ns(&self) -> u64 {
        self.pace.period_ns()
    }

    /// Events stop when a filter is taken from them.
    fn enable_again(&self) {
        for clock in &self.clocks {
            if let Err(error) = clock.enable() {
                tracing::warn!(%error, "sampling of a CPU stopped");
            }
        }
    }

    fn collect(&mut self) {
        let Self { clocks, counters, managed, queue, scratch, .. } = self;
        counters.declined = self.kernel_filter.as_ref().map_or(0, SampleFilter::declined).max(counters.declined);
        for clock in clocks {
            let broken = clock.drain(scratch, |record| intake::take(&record, managed, queue, counters));
            counters.malformed += u64::from(broken);
        }
    }

    fn emulate(&mut self, sample: &Sample, now_ns: u64, batch: &mut Batch) {
        let Sample { moment: sample, registers } = sample;
        let fs_base = self.bases.get(sample.process, sample.tid);
        let run = self.emulator.run(sample.process, registers, fs_base, now_ns);
        if self.emulator.thread_local_was_wrong() {
            self.bases.forget(sample.tid);
        }
        let counters = &mut self.counters;
        counters.unknown_tls += u64::from(fs_base.is_none() || self.emulator.thread_local_was_wrong());
        counters.emulated += 1;
        counters.instructions += u64::from(run.instructions);
        counters.stepped_over += u64::from(run.stepped_over);
        counters.copies = self.emulator.copies();
        *counters.stops.entry(run.stop).or_default() += 1;
        let before = batch.accesses.len();
        let stack_pointer = registers.general[STACK_POINTER];
        let touches = self.emulator.touches();
        let kept: Vec<Touch> = if self.config.cache_filter {
            self.filter.keep((sample.process, sample.tid), stack_pointer, touches, counters)
        } else {
            touches.to_vec()
        };
        batch.accesses.extend(kept.into_iter().map(|touch| Access {
            process: sample.process,
            tid: sample.tid,
            address: touch.address,
            bytes: touch.bytes,
            store: touch.store,
            time_ns: sample.time_ns,
            cpu: sample.cpu,
            measured: None,
        }));
        counters.accesses += (batch.accesses.len() - before) as u64;
        batch.windows.push(Window {
            process: sample.process,
            tid: sample.tid,
            time_ns: sample.time_ns,
            instructions: run.instructions,
        });
    }

    /// Takes the CPU time of this thread from `from_ns` on out of the budget; returns what it is now.
    fn charge(&mut self, from_ns: u64) -> u64 {
        let now_ns = crate::thread_cpu_ns();
        self.budget.spend(now_ns - from_ns);
        self.counters.cost_ns += now_ns - from_ns;
        now_ns
    }

    fn adapt(&mut self, now_ns: u64) {
        let Some(period_ns) = self.pace.adapt(now_ns, &self.counters, &self.budget) else { return };
        for clock in &self.clocks {
            // An event whose CPU went offline keeps its period; it brings no samples.
            if let Err(error) = clock.set_period(period_ns) {
                tracing::debug!(%error, "sampling period not changed");
            }
        }
    }
}

/// Has the kernel drop samples of processes that are not managed; where it cannot, that is left to [`Lookahead::collect`].
fn filter_in_kernel(clocks: &[CpuClock]) -> Option<SampleFilter> {
    // Elsewhere the kernel knows processes by other numbers than this process does.
    if !in_initial_pid_namespace() {
        tracing::debug!("samples are not filtered in the kernel: this is a container with process numbers of its own");
        return None;
    }
    let filtered = SampleFilter::load().and_then(|mut filter| {
        clocks.iter().try_for_each(|clock| filter.attach(clock.event()))?;
        Ok(filter)
    });
    if let Err(error) = &filtered {
        tracing::debug!(%error, "samples are not filtered in the kernel");
    }
    filtered.ok()
}

fn in_initial_pid_namespace() -> bool {
    /// The kernel's number of the first namespace of process numbers (`PROC_PID_INIT_INO`).
    const INITIAL: u64 = 0xefff_fffc;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == INITIAL)
}

impl Sampler for Lookahead {
    fn traits(&self) -> SamplerTraits {
        TRAITS
    }

    fn set_managed(&mut self, managed: &BTreeSet<ProcessId>) {
        if *managed != self.managed {
            self.managed.clone_from(managed);
            self.bases.clear();
            let numbers = managed.iter().map(|process| process.0).collect();
            let told = self.kernel_filter.as_mut().map_or(Ok(()), |filter| filter.set_processes(&numbers));
            if let Err(error) = told {
                tracing::warn!(%error, "all processes are sampled, and filtered after that");
                self.kernel_filter = None;
                self.enable_again();
            }
        }
    }

    fn forget(&mut self, gone: &BTreeSet<ProcessId>, threads: &BTreeSet<ThreadId>) {
        self.filter.forget(gone, threads);
    }

    fn take_share(&mut self, of_budget: f64) {
        self.budget.earn_share(of_budget);
    }

    fn drain(&mut self, now_ns: u64) -> Result<Batch, SamplerError> {
        let start_ns = crate::thread_cpu_ns();
        self.budget.earn(now_ns);
        let mut batch = Batch::default();
        if self.budget.is_in_debt() {
            // Reading the rings costs too. What has no room in them meanwhile the kernel counts as lost.
            return Ok(batch);
        }
        self.collect();
        let mut from_ns = self.charge(start_ns);
        let expected_ns = self.counters.mean_run_ns().unwrap_or(0);
        while self.budget.affords(expected_ns) {
            let Some(sample) = self.queue.pop() else { break };
            if now_ns.saturating_sub(sample.moment.time_ns) > self.config.max_age_ns {
                self.counters.too_old += 1;
                continue;
            }
            self.emulate(&sample, now_ns, &mut batch);
            let done_ns = self.charge(from_ns);
            self.counters.emulation_ns += done_ns - from_ns;
            from_ns = done_ns;
        }
        self.counters.over_budget += self.queue.clear();
        self.adapt(now_ns);
        self.charge(from_ns);
        Ok(batch)
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Lookahead(self.counters.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_may_read_others_memory_it_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/kernel/yama");
        assert!(!is_withheld(root.path()), "a kernel without Yama");
        std::fs::create_dir_all(&folder).unwrap();
        for (scope, withheld) in [("0\n", false), ("2\n", false), ("3\n", true)] {
            std::fs::write(folder.join("ptrace_scope"), scope).unwrap();
            assert_eq!(is_withheld(root.path()), withheld, "{scope}");
        }
    }
}
