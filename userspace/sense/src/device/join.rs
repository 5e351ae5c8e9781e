// SPDX-License-Identifier: GPL-2.0-only
//! Whose the samples and counts of a CPU are: those of who ran on it then.
//!
//! Samples carry the TSC of their CPU, switches perf's clock, which the kernel makes of that same TSC: a sample is
//! joined with the switches of its own CPU without any error. Counts are known only when they are read: what a CPU did
//! between two looks is shared out by the time that threads ran there, which is exact while one of them ran.

use std::collections::{BTreeMap, BTreeSet};

use tandem_policies::model::ProcessId;

use super::counters::DeviceCounters;
use super::ring::{COUNTERS, CpuCounters, RingSample};
use crate::KERNEL_ADDRESSES;
use crate::access::{Access, Counts, LineCounts, Measured};
use crate::pmu::spe::timeline::Runner;
use crate::pmu::spe::{TickClock, Timeline};

/// How far a CPU's TSC may be ahead of another's: the vCPUs of the timing lab take turns in windows of 10 us.
const SKEW_NS: u64 = 20_000;

/// The moment of a look, on all clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// CLOCK_MONOTONIC.
    pub(super) now_ns: u64,
    /// The same moment on perf's clock.
    pub(super) perf_ns: u64,
    pub(super) clock: TickClock,
    /// Misses that each sample stands for.
    pub(super) period: u64,
}

/// What came out of a look.
#[derive(Debug, Default)]
pub(super) struct Join {
    pub(super) managed: BTreeSet<ProcessId>,
    pub(super) counters: DeviceCounters,
    pub(super) accesses: Vec<Access>,
    counts: BTreeMap<Runner, [f64; COUNTERS]>,
}

impl Join {
    /// A sample of a CPU with these switches.
    pub(super) fn sample(&mut self, sample: &RingSample, timeline: Option<&Timeline>, look: &Look) {
        let perf_ns = look.clock.time_ns(sample.ticks);
        if perf_ns > look.perf_ns + SKEW_NS {
            self.counters.misdated += 1;
            return;
        }
        let Some((process, tid)) = timeline.and_then(|timeline| timeline.at(perf_ns)) else {
            self.counters.unattributed += 1;
            return;
        };
        if !self.managed.contains(&process) {
            self.counters.unmanaged += 1;
            return;
        }
        self.counters.samples += 1;
        if sample.address >= KERNEL_ADDRESSES {
            self.counters.kernel += 1;
            return;
        }
        if !sample.source.may_leave_caches() {
            self.counters.cached += 1;
            return;
        }
        self.counters.accesses += 1;
        let measured = Measured {
            latency_ns: Some(sample.latency_ns),
            source: sample.source,
            node: Some(sample.node),
            physical: None,
            period: look.period,
        };
        self.accesses.push(Access {
            process,
            tid,
            address: sample.address,
            bytes: 0,
            store: sample.store,
            time_ns: look.now_ns.saturating_sub(look.perf_ns.saturating_sub(perf_ns)),
            cpu: sample.cpu,
            measured: Some(measured),
        });
    }

    /// What a CPU counted since the look at `since_ns` of perf's clock.
    pub(super) fn count(&mut self, counted: CpuCounters, timeline: &Timeline, since_ns: u64, look: &Look) {
        let is_idle = |runner: &Runner| runner.1 == 0;
        let runs: Vec<_> = timeline.runs(since_ns, look.perf_ns).filter(|(runner, _)| !is_idle(runner)).collect();
        let ran_ns: u64 = runs.iter().map(|(_, ns)| ns).sum();
        // The rest of the time in which it was not halted is the idle task's.
        let all_ns = ran_ns.max(counted.cycles()) as f64;
        for (runner, ns) in runs.into_iter().filter(|((process, _), _)| self.managed.contains(process)) {
            let share = ns as f64 / all_ns;
            let sums = self.counts.entry(runner).or_default();
            sums.iter_mut().zip(counted.0).for_each(|(sum, count)| *sum += count as f64 * share);
        }
    }

    /// The counts so far, thread by thread.
    pub(super) fn take_counts(&mut self) -> Vec<Counts> {
        let sums = std::mem::take(&mut self.counts).into_iter();
        let whole = |(runner, sums)| {
            let (counts, lines) = whole(runner, sums);
            self.counters.count(&counts, &lines);
            counts
        };
        sums.map(whole).collect()
    }
}

fn whole((process, tid): Runner, sums: [f64; COUNTERS]) -> (Counts, LineCounts) {
    let [instructions, cycles, l2_misses, l3_hits, l3_misses, remote_memory, remote_modified] =
        sums.map(|sum| sum.round() as u64);
    let lines = LineCounts { l2_misses, l3_hits, l3_misses, remote_memory, remote_modified };
    // The lab counts no floating-point operations.
    let (transfers, memory) = (Some(lines.transfers()), lines.memory());
    (Counts { process, tid, instructions, flops: 0, cycles, transfers, memory }, lines)
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{CpuId, MemoryLines, NodeId, Transfers};

    use super::super::ring::Ring;
    use super::super::testing::{Miss, RingFile, miss};
    use super::*;
    use crate::source::Level;

    const OURS: Runner = (ProcessId(70), 71);
    const THEIRS: Runner = (ProcessId(80), 81);

    /// Perf's clock is 1000 ns ahead of the TSC.
    fn look() -> Look {
        let clock = TickClock { zero_ns: 1000, multiplier: 1 << 10, shift: 10 };
        Look { now_ns: 900_000, perf_ns: 50_000, clock, period: 128 }
    }

    /// We ran in 11 to 20 us of perf's clock, then somebody else.
    fn timeline() -> Timeline {
        let mut timeline = Timeline::default();
        timeline.switch(11_000, Some(OURS));
        timeline.switch(20_000, None);
        timeline.switch(20_500, Some(THEIRS));
        timeline
    }

    fn joined(misses: &[Miss]) -> Join {
        let file = RingFile::new(4, 8).sampled(misses);
        let ring = Ring::open(file.path()).unwrap();
        let mut join = Join { managed: [OURS.0].into(), ..Join::default() };
        for number in 0..misses.len() as u64 {
            join.sample(&ring.sample(number).unwrap(), Some(&timeline()), &look());
        }
        join
    }

    #[test]
    fn a_sample_is_of_the_thread_that_ran_on_its_cpu_then() {
        let join = joined(&[miss(2, 10_000), miss(2, 18_999), miss(2, 9_999), miss(2, 19_000), miss(2, 19_500)]);
        let source = crate::DataSource { level: Level::Memory, remote: Some(true), ..crate::DataSource::UNKNOWN };
        let measured = Measured { latency_ns: Some(180), source, node: Some(NodeId(3)), physical: None, period: 128 };
        let expected = Access {
            process: OURS.0,
            tid: OURS.1,
            address: 0x7000_0040,
            bytes: 0,
            store: true,
            time_ns: 900_000 - (50_000 - 11_000),
            cpu: CpuId(2),
            measured: Some(measured),
        };
        assert_eq!(join.accesses, [expected, Access { time_ns: 900_000 - 30_001, ..expected }]);
        let counters = join.counters;
        assert_eq!((counters.samples, counters.accesses), (2, 2));
        assert_eq!((counters.unattributed, counters.unmanaged), (2, 1), "before the first switch, between two");
    }

    #[test]
    fn a_cpu_whose_switches_are_not_watched_gives_nothing() {
        let file = RingFile::new(4, 8).sampled(&[miss(2, 10_000)]);
        let mut join = Join { managed: [OURS.0].into(), ..Join::default() };
        join.sample(&Ring::open(file.path()).unwrap().sample(0).unwrap(), None, &look());
        assert_eq!((join.accesses.len(), join.counters.unattributed), (0, 1));
    }

    #[test]
    fn the_kernels_memory_and_cache_hits_are_dropped_and_counted() {
        let kernel = Miss { address: 0xffff_8880_0000_0000, ..miss(0, 10_000) };
        let join = joined(&[kernel, Miss { source: 1, ..miss(0, 10_000) }, Miss { source: 4, ..miss(0, 10_000) }]);
        let counters = join.counters;
        assert_eq!((counters.samples, counters.kernel, counters.cached, counters.accesses), (3, 1, 1, 1));
        assert_eq!(join.accesses[0].measured.unwrap().source.level, Level::PeerCache);
    }

    #[test]
    fn a_time_to_come_is_no_time() {
        let now = 49_000;
        let join = joined(&[miss(0, now + SKEW_NS), miss(0, now + SKEW_NS + 1)]);
        assert_eq!(join.counters.misdated, 1);
        assert_eq!(join.counters.unmanaged, 1, "who ran last still runs");
    }

    #[test]
    fn counts_are_shared_out_by_time() {
        let mut join = Join { managed: [OURS.0].into(), ..Join::default() };
        // Of the 20 us since 10 us we ran 9, they 9.5; the kernel's idle task some of the rest.
        let look = Look { perf_ns: 30_000, ..look() };
        join.count(CpuCounters([37_000, 18_500, 370, 74, 185, 37, 111]), &timeline(), 10_000, &look);
        join.count(CpuCounters([40_000, 20_000, 0, 0, 0, 0, 0]), &timeline(), 10_000, &look);
        let ours = LineCounts { l2_misses: 180, l3_hits: 36, l3_misses: 90, remote_memory: 18, remote_modified: 54 };
        let transfers = Some(Transfers { within_node: 54.0, across_nodes: 54.0 });
        let (process, tid) = OURS;
        let memory = MemoryLines { all: Some(36.0), remote: Some(18.0) };
        let counts = Counts { process, tid, instructions: 36_000, flops: 0, cycles: 18_000, transfers, memory };
        assert_eq!(join.take_counts(), [counts]);
        assert_eq!(join.take_counts(), []);
        let counters = join.counters;
        assert_eq!((counters.instructions, counters.cycles, counters.lines), (36_000, 18_000, ours));
    }

    #[test]
    fn what_the_idle_task_did_is_nobodys() {
        let mut timeline = Timeline::default();
        timeline.switch(0, Some((ProcessId(0), 0)));
        timeline.switch(49_000, Some(OURS));
        let mut join = Join { managed: [ProcessId(0), OURS.0].into(), ..Join::default() };
        join.count(CpuCounters([4000, 4000, 0, 0, 0, 0, 0]), &timeline, 0, &look());
        let (process, tid) = OURS;
        let transfers = Some(Transfers::default());
        let memory = MemoryLines { all: Some(0.0), remote: Some(0.0) };
        let ours = Counts { process, tid, instructions: 1000, flops: 0, cycles: 1000, transfers, memory };
        assert_eq!(join.take_counts(), [ours]);
    }
}
