// SPDX-License-Identifier: GPL-2.0-only
//! The sensing half of the loop: samples often, makes a snapshot once an interval.

mod forget;
mod homes;
mod successor;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;
use tandem_policies::model::{AccessRates, CpuId, GroupId, ProcessId, Snapshot, ThreadId, Topology, Unmovable};

use crate::access::{Access, Batch, Counts, Measured, Sampler};
use crate::affinity::{AffinityConfig, AffinityCounters, AffinityTable};
use crate::counting::{Counting, CountingError};
use crate::fault::FaultConfig;
use crate::folios;
use crate::frames::{FrameCounters, FrameTable};
use crate::homes::{HomeCounters, HomeQuery};
use crate::known_homes::{Home, KnownHomes};
use crate::load::NodeBusy;
use crate::lookahead::LookaheadConfig;
use crate::measures::Measures;
use crate::page_access::{PageAccess, Pending};
use crate::performance::PerformanceMemory;
use crate::rate::RateTable;
use crate::regions::Regions;
use crate::samplers::{self, SamplerChoice, SamplerCounters, SamplerError};
use crate::snapshot::{MIN_ACCESSES, MIN_LOOKS, Parts, TaskAccount};
use crate::source::Level;
use crate::thread_policies::ThreadPolicies;
use crate::touches::Seen;
use successor::Successor;
use watch::Watch;

/// How to sense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorConfig {
    /// CPU time for sampling, as a share of one CPU, for `lookahead` and `fault`; hardware samples at a frequency.
    pub budget: f64,
    /// The sampler.
    pub sampler: SamplerChoice,
    /// How it works if it is `lookahead`.
    pub lookahead: LookaheadConfig,
    /// Have the kernel make hint faults if the sampler is `fault`: in partial mode only.
    pub hint_faults: bool,
    /// Count with hardware counters, beside what the sampler does.
    pub counters: bool,
    /// Bounds and ageing of the affinity table.
    pub affinity: AffinityConfig,
    /// Every how many pages of a group the kernel is asked for their home.
    pub home_stride_pages: u64,
    /// Pages asked for per snapshot at most; of groups that are to be asked for those with the oldest answers come first.
    pub home_pages: u64,
}

impl Default for SensorConfig {
    /// 1 % of one CPU; every 16th page, 65536 pages (4 GiB of groups) per snapshot.
    fn default() -> Self {
        Self {
            budget: 0.01,
            sampler: SamplerChoice::default(),
            lookahead: LookaheadConfig::default(),
            hint_faults: false,
            counters: false,
            affinity: AffinityConfig::default(),
            home_stride_pages: 16,
            home_pages: 1 << 16,
        }
    }
}

/// What happened on the way from accesses to snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SensorCounters {
    /// The affinity table's losses.
    pub affinity: AffinityCounters,
    /// The frame table's.
    pub frames: FrameCounters,
    /// Page home queries.
    pub homes: HomeCounters,
    /// Processes gone when their regions were read.
    pub region_races: u64,
    /// Accesses of threads that no account named (they came or went within the interval).
    pub unknown_threads: u64,
    /// Times that a thread turned to memory on other nodes, so that what it did before was forgotten.
    pub turned: u64,
    /// Times that nobody could tell of which units memory is made: a group was not cut, or a process's huge pages not told from
    /// others.
    pub unknown_units: u64,
    /// Accesses dropped because too many were pending.
    pub dropped: u64,
    /// Times that hardware counters could not be read or told what to count, and charges of threads for which there was no room.
    pub uncounted: u64,
    /// Samplers that could not go on, so that another one took their place.
    pub replaced_samplers: u64,
}

/// Sampler, tables and memory of the sensing side.
pub struct Sensor {
    config: SensorConfig,
    sampler: Box<dyn Sampler>,
    /// What comes after it if it fails; `None` if it was named.
    successor: Option<Successor>,
    /// Hardware counters, if they are asked for.
    counting: Option<Counting>,
    /// Share of the budget that is taken.
    share: f64,
    /// The sampler measures.
    measuring: bool,
    managed: BTreeSet<ProcessId>,
    /// The process of each thread of the last snapshot.
    processes: BTreeMap<ThreadId, ProcessId>,
    pending: Pending,
    /// What came last.
    fresh: Vec<Access>,
    table: AffinityTable,
    /// Where sharing is read from if the sampler sees faults.
    frames: Option<FrameTable>,
    rates: RateTable,
    regions: Regions,
    thread_policies: ThreadPolicies,
    homes: HomeQuery,
    known_homes: KnownHomes,
    /// Groups whose pages moved since they were asked for.
    moved: BTreeSet<GroupId>,
    /// All others may have moved.
    homes_doubted: bool,
    performance: PerformanceMemory,
    busy: NodeBusy,
    watch: Watch,
    /// When each thread last turned to memory on other nodes: what it did before is forgotten.
    turned_ns: BTreeMap<ThreadId, u64>,
    /// Since when threads are known by the looks that told of their turn.
    known_ns: BTreeMap<ThreadId, u64>,
    /// See [`Sensor::is_hardly_seen_since_turn`].
    hardly_seen: BTreeSet<ThreadId>,
    counters: SensorCounters,
}

impl Sensor {
    /// Starts to sample on `cpus` (online ones) of the machine.
    ///
    /// # Errors
    /// [`SamplerError`] when sampling is not possible, with what to do about it.
    pub fn open(config: SensorConfig, topology: &Topology, cpus: &[CpuId]) -> Result<Self, SamplerError> {
        let lookahead = LookaheadConfig { budget_fraction: Some(config.budget), ..config.lookahead };
        let fault = FaultConfig { budget_fraction: config.budget, hints: config.hint_faults };
        let counting = config.counters.then(|| Counting::open(cpus)).transpose()?;
        let sampler = samplers::open(config.sampler, lookahead, fault, cpus)?;
        let cpus = cpus.to_vec();
        let next = move |failed: &str| samplers::open_next(failed, lookahead, fault, &cpus);
        let successor = (config.sampler == SamplerChoice::Auto).then(|| Box::new(next) as Successor);
        Ok(Self { counting, successor, regions: Regions::open(), ..Self::over(sampler, config, topology) })
    }

    /// Samples with `sampler`, whoever made it.
    pub fn over(sampler: Box<dyn Sampler>, config: SensorConfig, topology: &Topology) -> Self {
        let mut busy = NodeBusy::new();
        busy.read(topology);
        Self {
            frames: frames_for(&*sampler, &config),
            sampler,
            successor: None,
            counting: None,
            share: 1.0,
            measuring: false,
            managed: BTreeSet::new(),
            processes: BTreeMap::new(),
            pending: Pending::default(),
            fresh: Vec::new(),
            table: AffinityTable::new(config.affinity),
            rates: RateTable::new(config.affinity.half_life_ns),
            regions: Regions::default(),
            thread_policies: ThreadPolicies::default(),
            homes: HomeQuery::new(config.home_stride_pages),
            known_homes: KnownHomes::default(),
            moved: BTreeSet::new(),
            homes_doubted: false,
            performance: PerformanceMemory::default(),
            busy,
            watch: Watch::default(),
            turned_ns: BTreeMap::new(),
            known_ns: BTreeMap::new(),
            hardly_seen: BTreeSet::new(),
            counters: SensorCounters::default(),
            config,
        }
    }

    /// The sampler's name.
    pub fn name(&self) -> &'static str {
        self.sampler.traits().name
    }

    /// The processes whose threads are sampled.
    pub fn set_managed(&mut self, managed: BTreeSet<ProcessId>) {
        self.sampler.set_managed(&managed);
        let told = self.counting.as_mut().map(|counting| counting.set_managed(&managed));
        self.note_uncounted(told);
        self.regions.retain(|process| managed.contains(&process));
        self.managed = managed;
    }

    /// Whether so many `times` as much is known of each of these threads as it takes to know what it uses.
    pub fn knows_well(&self, threads: impl IntoIterator<Item = ThreadId>, times: f64) -> bool {
        let is_seen = |thread: ThreadId| {
            self.table.total(thread) >= times * MIN_ACCESSES && self.table.looks(thread) >= times * MIN_LOOKS
        };
        let makes_few =
            |thread: ThreadId| self.table.total(thread) < MIN_ACCESSES && self.rates.looks(thread) >= times * MIN_LOOKS;
        threads.into_iter().all(|thread| is_seen(thread) || makes_few(thread))
    }

    /// Samples for this share of the budget from now on.
    pub fn take_share(&mut self, of_budget: f64) {
        self.share = of_budget;
        self.sampler.take_share(of_budget);
    }

    /// Takes in what the sampler saw. Call every 10 to 50 ms with CLOCK_MONOTONIC. If the sampler was left to us and cannot go
    /// on, the next best takes its place.
    ///
    /// # Errors
    /// When the sampler cannot go on, and neither can any that could take its place.
    pub fn sample(&mut self, now_ns: u64) -> Result<(), SamplerError> {
        let batch = match self.sampler.drain(now_ns) {
            Ok(batch) => batch,
            Err(error) => {
                self.replace_sampler(error)?;
                Batch::default()
            }
        };
        self.counters.dropped += self.pending.add(&batch);
        self.fresh = batch.accesses;
        Ok(())
    }

    /// The accesses that the last [`Sensor::sample`] took in.
    pub fn fresh(&self) -> &[Access] {
        &self.fresh
    }

    /// What the sampler did so far.
    pub fn counters(&self) -> SamplerCounters {
        self.sampler.counters()
    }

    /// Memory that page groups, where they are, and the pages and frames in which sharing is looked for take, in bytes.
    pub fn group_bytes(&self) -> usize {
        let frames = self.frames.as_ref().map_or(0, FrameTable::bytes);
        self.table.bytes() + self.known_homes.bytes() + frames
    }

    /// What happened to the accesses afterwards.
    pub fn table_counters(&self) -> SensorCounters {
        SensorCounters {
            affinity: self.table.counters(),
            frames: self.frames.as_ref().map(|frames| frames.counters).unwrap_or_default(),
            homes: self.homes.counters,
            region_races: self.regions.races,
            uncounted: self.counters.uncounted + self.counting.as_ref().map_or(0, Counting::uncharged),
            ..self.counters
        }
    }

    /// The snapshot of the interval from `start_ns` to `now_ns` (CLOCK_MONOTONIC). `accounts` names every managed
    /// thread once; `kept` tells why a group of so many bytes is to stay for reasons that this sensor does not see.
    pub fn snapshot(
        &mut self,
        topology: &Topology,
        accounts: Vec<TaskAccount>,
        start_ns: u64,
        now_ns: u64,
        kept: impl Fn(GroupId, u64) -> Option<Unmovable>,
    ) -> Snapshot {
        self.processes = accounts.iter().map(|account| (account.id, account.process)).collect();
        let alive = |thread| self.processes.contains_key(&thread);
        self.table.retain(|process| self.managed.contains(&process), alive);
        self.rates.retain(alive);
        self.thread_policies.retain(alive);
        self.performance.prune(now_ns, alive);
        self.table.age(now_ns);
        self.rates.age(now_ns);
        if let Some(frames) = &mut self.frames {
            frames.retain(alive);
            frames.age(now_ns);
        }
        self.adapt_groups();
        let batch = std::mem::take(&mut self.pending);
        let threads: BTreeMap<u32, ThreadId> = accounts.iter().map(|account| (account.id.tid, account.id)).collect();
        let mut measures = self.take_in(&batch, &threads, topology, start_ns, now_ns);
        for counts in self.take_counts() {
            if let Some(&thread) = threads.get(&counts.tid) {
                measures.count(thread, &counts);
            }
        }
        self.read_homes(topology, now_ns);
        self.start_anew(&batch.accesses, &accounts, topology, now_ns);
        let parts = Parts {
            topology,
            table: &self.table,
            frames: self.frames.as_ref(),
            rates: &self.rates,
            access_rates: if self.measuring { AccessRates::Measured } else { AccessRates::Inferred },
            measures: &measures,
            policies: &self.thread_policies,
            homes: &self.known_homes,
            turned_ns: &self.turned_ns,
            known: &self.known_ns,
            busy_ns: self.busy.read(topology),
            interval_ns: now_ns.saturating_sub(start_ns),
            now_ns,
        };
        parts.snapshot(accounts, &mut self.performance, kept)
    }

    /// What hardware counted since the last snapshot.
    fn take_counts(&mut self) -> Vec<Counts> {
        let taken = self.counting.as_mut().map(Counting::take);
        self.note_uncounted(taken).unwrap_or_default()
    }

    /// What came of it; a failure is counted and costs an interval's counts.
    fn note_uncounted<T>(&mut self, done: Option<Result<T, CountingError>>) -> Option<T> {
        done?
            .inspect_err(|error| {
                self.counters.uncounted += 1;
                tracing::debug!(%error, "hardware counters are not read");
            })
            .ok()
    }

    /// Cuts and joins groups by what is known of their users. Where pages of those are is asked anew.
    fn adapt_groups(&mut self) {
        let (regions, counters) = (&self.regions, &mut self.counters);
        let whole_pages = |process, bytes| match folios::largest_pages(process, &bytes) {
            Ok(pages) => Some(pages),
            Err(error) => {
                counters.unknown_units += 1;
                tracing::debug!(%error, process = process.0, "a page group stays whole");
                None
            }
        };
        let one_region = |process, bytes: Range<u64>| {
            regions.find(process, bytes.start).is_some_and(|region| region.end >= bytes.end)
        };
        let changed: BTreeSet<GroupId> = self.table.adapt(whole_pages, one_region).into_iter().collect();
        if !changed.is_empty() {
            self.known_homes.forget(&changed);
        }
    }

    /// Reads the regions of the processes whose accesses these are, and the policies of the threads.
    fn read_regions(&mut self, batch: &Pending, threads: &BTreeMap<u32, ThreadId>, now_ns: u64) {
        for process in batch.accesses.iter().map(|seen| seen.access.process).collect::<BTreeSet<_>>() {
            self.regions.refresh(process, now_ns);
        }
        for (process, tid) in
            batch.accesses.iter().map(|seen| (seen.access.process, seen.access.tid)).collect::<BTreeSet<_>>()
        {
            if let Some(&thread) = threads.get(&tid) {
                self.thread_policies.look(process, thread, self.regions.first(process), now_ns);
            }
        }
    }

    /// Puts the accesses into the table, and returns what was measured of them.
    fn take_in(
        &mut self,
        batch: &Pending,
        threads: &BTreeMap<u32, ThreadId>,
        topology: &Topology,
        start_ns: u64,
        now_ns: u64,
    ) -> Measures {
        self.read_regions(batch, threads, now_ns);
        self.measuring |= !self.sampler.sees_faults()
            && (!batch.counts.is_empty() || batch.accesses.iter().any(|seen| seen.access.measured.is_some()));
        let mut measures = Measures::default();
        let mut measured: BTreeMap<ThreadId, f64> = BTreeMap::new();
        let mut grouped: BTreeMap<ThreadId, u32> = BTreeMap::new();
        for PageAccess { access, times } in &batch.accesses {
            let Some(&thread) = threads.get(&access.tid) else {
                self.counters.unknown_threads += u64::from(*times);
                continue;
            };
            let region = self.regions.find(access.process, access.address);
            let seen = Seen { time_ns: access.time_ns, weight: *times as f32 };
            let group = self.table.add(access.process, thread, seen, access.address, region);
            *grouped.entry(thread).or_default() += group.map_or(0, |_| *times);
            let home = group.and_then(|group| self.known_homes.get(group)).and_then(Home::only_node);
            measures.access(thread, group, access, home, topology);
            let physical = access.measured.filter(|_| group.is_some()).and_then(|measured| measured.physical);
            if let (Some(frames), Some(physical)) = (&mut self.frames, physical) {
                frames.add(thread, physical);
            }
            if let Some(sample) = access.measured.filter(|sample| group.is_some() && tells_of_memory(access, sample)) {
                *measured.entry(thread).or_default() += sample.period.max(1) as f64;
            }
        }
        for window in &batch.windows {
            if let Some(&thread) = threads.get(&window.tid) {
                // The rate is spread over a thread's groups: what belongs to none, as its stack, has no part in it.
                self.rates.add(thread, window.instructions, grouped.remove(&thread).unwrap_or(0));
            }
        }
        for counts in &batch.counts {
            if let Some(&thread) = threads.get(&counts.tid) {
                measures.count(thread, counts);
            }
        }
        if self.measuring {
            let watched_s = now_ns.saturating_sub(start_ns) as f64 * 1e-9;
            for thread in threads.values() {
                self.rates.add_measured(*thread, watched_s, measured.get(thread).copied().unwrap_or(0.0));
            }
        }
        measures
    }
}

/// Whether a sample stands for accesses that left the caches. Of most stores hardware does not tell what answered them, and it
/// counts all of them, when of loads it counts the slow ones.
fn tells_of_memory(access: &Access, sample: &Measured) -> bool {
    !access.store || sample.source.level != Level::Unknown
}

/// Where sharing is read from if `sampler` sees faults.
fn frames_for(sampler: &dyn Sampler, config: &SensorConfig) -> Option<FrameTable> {
    let AffinityConfig { max_pages, half_life_ns, .. } = config.affinity;
    sampler.sees_faults().then(|| FrameTable::new(max_pages, half_life_ns))
}

#[cfg(test)]
mod policy_tests;
#[cfg(test)]
#[path = "sensor_tests.rs"]
mod tests;
