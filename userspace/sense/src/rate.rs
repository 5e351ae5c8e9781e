// SPDX-License-Identifier: GPL-2.0-only
//! An estimate of how many memory accesses a thread makes per second.
//!
//! A sampler sees accesses in stretches of code, not in time. Estimate: accesses to page groups per instruction in the
//! sampled stretches, times an assumed [`INSTRUCTIONS_PER_CPU_S`], times the share of a CPU the thread used. The shares
//! within a thread, and of equally dense threads, do not depend on the assumption; absolute rates do.
//!
//! Hardware tells how many accesses a sample stands for: of threads that are watched by it, those are counted in time.

use std::collections::BTreeMap;

use tandem_policies::model::ThreadId;

/// Assumed instructions per second of CPU time: about one per ns.
pub const INSTRUCTIONS_PER_CPU_S: f64 = 1e9;
/// Instructions from which on a stretch shows what a thread does: a shorter one ended where it could not be followed.
const LEAST_STRETCH: u32 = 128;
const FAINTEST: f64 = 1.0;
const FAINTEST_S: f64 = 1e-3;

#[derive(Clone, Copy, Debug, Default)]
struct Density {
    instructions: f64,
    accesses: f64,
    /// Stretches of [`LEAST_STRETCH`] at least.
    looks: f64,
    /// Accesses that measured samples stood for, in `watched_s`.
    measured: f64,
    watched_s: f64,
}

/// Access density by thread, aged as the affinity table is.
pub struct RateTable {
    half_life_ns: u64,
    threads: BTreeMap<ThreadId, Density>,
    aged_ns: Option<u64>,
}

impl RateTable {
    /// Nothing seen; a stretch loses half its weight in `half_life_ns`.
    pub fn new(half_life_ns: u64) -> Self {
        Self { half_life_ns, threads: BTreeMap::new(), aged_ns: None }
    }

    /// Lets the past fade to `now_ns`.
    pub fn age(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(*self.aged_ns.get_or_insert(now_ns));
        self.aged_ns = Some(now_ns);
        let factor = 0.5_f64.powf(elapsed_ns as f64 / self.half_life_ns as f64);
        self.threads.retain(|_, density| {
            density.instructions *= factor;
            density.accesses *= factor;
            density.looks *= factor;
            density.measured *= factor;
            density.watched_s *= factor;
            density.instructions >= FAINTEST || density.watched_s >= FAINTEST_S
        });
    }

    /// A stretch of `instructions` with so many `accesses` to page groups in it.
    pub fn add(&mut self, thread: ThreadId, instructions: u32, accesses: u32) {
        let density = self.threads.entry(thread).or_default();
        density.instructions += f64::from(instructions);
        density.accesses += f64::from(accesses);
        density.looks += f64::from(u8::from(instructions >= LEAST_STRETCH));
    }

    /// Hardware watched a thread for `seconds` of wall time and saw samples that stand for `accesses`.
    pub fn add_measured(&mut self, thread: ThreadId, seconds: f64, accesses: f64) {
        let density = self.threads.entry(thread).or_default();
        density.watched_s += seconds;
        density.measured += accesses;
    }

    /// Accesses per second of a thread that uses `cpu_share` of a CPU; `None` if it was not sampled.
    pub fn per_s(&self, thread: ThreadId, cpu_share: f64) -> Option<f64> {
        let density = self.threads.get(&thread)?;
        if density.watched_s > 0.0 {
            return Some(density.measured / density.watched_s);
        }
        (density.instructions > 0.0)
            .then(|| density.accesses / density.instructions * INSTRUCTIONS_PER_CPU_S * cpu_share)
    }

    /// Stretches of a thread's code that could be followed, aged.
    pub fn looks(&self, thread: ThreadId) -> f64 {
        self.threads.get(&thread).map_or(0.0, |density| density.looks)
    }

    /// Forgets threads that are gone.
    pub fn retain(&mut self, alive: impl Fn(ThreadId) -> bool) {
        self.threads.retain(|thread, _| alive(*thread));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_density_times_share() {
        let thread = ThreadId { tid: 1, start_boottime_ns: 1 };
        let mut rates = RateTable::new(1_000_000_000);
        assert_eq!(rates.per_s(thread, 1.0), None);
        rates.age(0);
        rates.add(thread, 256, 16);
        rates.add(thread, 256, 0);
        assert_eq!(rates.per_s(thread, 0.5), Some(1e9 / 64.0));
        // Old stretches weigh less than new ones: 16 of 512 fade to a quarter.
        rates.age(2_000_000_000);
        rates.add(thread, 128, 4);
        assert_eq!(rates.per_s(thread, 1.0), Some(1e9 * 8.0 / 256.0));
    }

    #[test]
    fn stretches_that_could_not_be_followed_are_no_looks() {
        let thread = ThreadId { tid: 1, start_boottime_ns: 1 };
        let mut rates = RateTable::new(1_000_000_000);
        rates.age(0);
        [256, 127, 3, 128].into_iter().for_each(|instructions| rates.add(thread, instructions, 0));
        assert_eq!(rates.looks(thread), 2.0);
        rates.age(1_000_000_000);
        assert_eq!(rates.looks(thread), 1.0);
    }

    #[test]
    fn what_is_measured_is_a_rate_of_its_own() {
        let thread = ThreadId { tid: 1, start_boottime_ns: 1 };
        let mut rates = RateTable::new(1_000_000_000);
        rates.age(0);
        rates.add_measured(thread, 0.5, 4000.0);
        assert_eq!(rates.per_s(thread, 1e-9), Some(8000.0), "from its first half second on");
        // It stopped: two new seconds against half a second that faded to a quarter.
        rates.age(2_000_000_000);
        rates.add_measured(thread, 2.0, 0.0);
        assert_eq!(rates.per_s(thread, 1.0), Some(1000.0 / 2.125));
    }
}
