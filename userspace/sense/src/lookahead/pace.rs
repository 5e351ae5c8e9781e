// SPDX-License-Identifier: GPL-2.0-only
//! How often to sample: as often as brings samples that the budget pays for.

use super::budget::{Budget, next_period_ns};
use super::counters::LookaheadCounters;

/// Time between two adaptations at least.
const INTERVAL_NS: u64 = 100_000_000;

/// What there was at the last adaptation.
#[derive(Clone, Copy)]
struct Totals {
    time_ns: u64,
    samples: u64,
    superseded: u64,
    emulated: u64,
    cost_ns: u64,
}

/// The sampling period and what it goes by.
pub(super) struct Pace {
    period_ns: u64,
    /// Shortest and longest period.
    bounds: (u64, u64),
    last: Option<Totals>,
    /// Samples that were emulated, and what all took between the adaptations in which any was: what looking for samples takes while there
    /// are none makes none dearer. Over all time, for a period that goes up and down is dear itself: each CPU is told.
    emulated: u64,
    cost_ns: u64,
}

impl Pace {
    /// Begins with this period.
    pub(super) fn new(period_ns: u64, bounds: (u64, u64)) -> Self {
        Self { period_ns, bounds, last: None, emulated: 0, cost_ns: 0 }
    }

    /// Time between samples of a CPU at present.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Every 100 ms or later: the period that brings as many samples as can be used, if it is another one than now.
    pub(super) fn adapt(&mut self, now_ns: u64, counters: &LookaheadCounters, budget: &Budget) -> Option<u64> {
        let &LookaheadCounters { samples, superseded, emulated, cost_ns, .. } = counters;
        let seen = Totals { time_ns: now_ns, samples, superseded, emulated, cost_ns };
        let last = *self.last.get_or_insert(seen);
        let elapsed_ns = now_ns.saturating_sub(last.time_ns);
        if elapsed_ns < INTERVAL_NS {
            return None;
        }
        self.last = Some(seen);
        if emulated > last.emulated {
            self.emulated += emulated - last.emulated;
            self.cost_ns += cost_ns - last.cost_ns;
        }
        let mean_cost_ns = self.cost_ns.checked_div(self.emulated).unwrap_or(0);
        let came = samples - last.samples;
        let usable = came - (superseded - last.superseded);
        let affordable = budget.affordable(elapsed_ns, mean_cost_ns);
        let period_ns = next_period_ns(self.period_ns, came, affordable.min(usable), self.bounds);
        if period_ns.abs_diff(self.period_ns) * 10 <= self.period_ns {
            return None;
        }
        self.period_ns = period_ns;
        Some(period_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 10_000_000;
    const HOUR_NS: u64 = 3_600_000_000_000;

    fn pace() -> Pace {
        Pace::new(PERIOD_NS, (1_000_000, 100_000_000))
    }

    /// So many samples came, so many of them were emulated, and all took so long.
    fn add(counters: &mut LookaheadCounters, came: u64, emulated: u64, cost_ns: u64) {
        counters.samples += came;
        counters.emulated += emulated;
        counters.cost_ns += cost_ns;
    }

    #[test]
    fn what_looking_for_samples_took_while_there_were_none_makes_later_ones_no_dearer() {
        let (mut pace, mut counters, budget) = (pace(), LookaheadCounters::default(), Budget::new(0.01));
        add(&mut counters, 100, 100, 3_000_000);
        assert_eq!(pace.adapt(0, &counters, &budget), None);
        for at in 1..=36_000 {
            add(&mut counters, 0, 0, 200_000);
            assert_eq!(pace.adapt(at * INTERVAL_NS, &counters, &budget), None, "without samples the period stays");
        }
        add(&mut counters, 100, 100, 3_000_000);
        assert_eq!(
            pace.adapt(HOUR_NS + INTERVAL_NS, &counters, &budget),
            Some(7_500_000),
            "savings pay for all of them"
        );
        assert_eq!(pace.period_ns(), 7_500_000);
    }

    /// Looking for samples may take long, and few be emulated, for want of budget.
    #[test]
    fn a_moment_in_which_few_samples_were_dear_changes_the_period_little() {
        let (mut pace, mut counters, budget) = (pace(), LookaheadCounters::default(), Budget::new(0.01));
        pace.adapt(0, &counters, &budget);
        add(&mut counters, 100, 100, 3_000_000);
        assert_eq!(pace.adapt(INTERVAL_NS, &counters, &budget), Some(7_500_000));
        add(&mut counters, 100, 1, 5_000_000);
        assert_eq!(pace.adapt(2 * INTERVAL_NS, &counters, &budget), Some(5_625_000), "all of them are paid for still");
    }

    #[test]
    fn where_none_was_emulated_a_sample_costs_what_it_did_before() {
        let (mut pace, mut counters, mut budget) = (pace(), LookaheadCounters::default(), Budget::new(0.01));
        pace.adapt(0, &counters, &budget);
        add(&mut counters, 50, 50, 5_000_000);
        pace.adapt(INTERVAL_NS, &counters, &budget);
        let before_ns = pace.period_ns();
        budget.spend(40_000_000);
        add(&mut counters, 100, 0, 1_000_000);
        assert_eq!(
            pace.adapt(2 * INTERVAL_NS, &counters, &budget),
            Some(before_ns * 3),
            "ten of the hundred are paid for"
        );
    }
}
