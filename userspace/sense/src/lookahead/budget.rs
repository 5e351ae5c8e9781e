// SPDX-License-Identifier: GPL-2.0-only
//! How much CPU time sampling may take, and how often to sample so that it is used but not exceeded.

/// Time that may be saved up, and is there at first: when threads come, much is to be learnt at once. A sampler that slept
/// does not run at full speed for long.
const MAX_SAVED_NS: i64 = 4_000_000_000;
/// Time within which savings may be spent.
const SPENDING_NS: u64 = 500_000_000;
/// Samples wanted per sample that can be afforded: some choice between threads, little waste.
const OVERSAMPLING: f64 = 2.0;
/// Share of the way to the wanted period that is gone at a time.
const DAMPING: f64 = 0.5;

/// CPU time earned by the passing of time, spent by reading samples and by emulation: over any time its share of it, and what was saved before.
pub(crate) struct Budget {
    fraction: f64,
    /// Share of it that is earned now.
    earned: f64,
    saved_ns: i64,
    last_ns: Option<u64>,
}

impl Budget {
    /// `fraction` is a share of one CPU.
    pub(crate) fn new(fraction: f64) -> Self {
        Self { fraction, earned: 1.0, saved_ns: (MAX_SAVED_NS as f64 * fraction) as i64, last_ns: None }
    }

    /// From now on this share of it is earned.
    pub(crate) fn earn_share(&mut self, share: f64) {
        self.earned = share;
    }

    /// Time passes.
    pub(crate) fn earn(&mut self, now_ns: u64) {
        let elapsed_ns = self.last_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        self.last_ns = Some(now_ns);
        let earned_ns = (elapsed_ns as f64 * self.fraction * self.earned) as i64;
        self.saved_ns = (self.saved_ns + earned_ns).min((MAX_SAVED_NS as f64 * self.fraction) as i64);
    }

    /// Whether a sample of about `cost_ns` may be emulated now; what it takes too much is owed.
    pub(crate) fn affords(&self, cost_ns: u64) -> bool {
        let full_ns = (MAX_SAVED_NS as f64 * self.fraction) as i64;
        self.saved_ns > 0 && self.saved_ns.saturating_mul(2) >= (cost_ns as i64).min(full_ns)
    }

    /// Whether more was spent than was there: nothing is to be done until that is paid off.
    pub(crate) fn is_in_debt(&self) -> bool {
        self.saved_ns < 0
    }

    pub(crate) fn spend(&mut self, cost_ns: u64) {
        self.saved_ns -= cost_ns as i64;
    }

    /// Samples of `cost_ns` each that the budget of `elapsed_ns` pays for, savings being spent within [`SPENDING_NS`].
    pub(super) fn affordable(&self, elapsed_ns: u64, cost_ns: u64) -> u64 {
        let saved = self.saved_ns.max(0) as f64 / SPENDING_NS as f64;
        (elapsed_ns as f64 * (self.fraction * self.earned + saved) / cost_ns.max(1) as f64) as u64
    }
}

/// The next sampling period, between the two bounds, after `came` samples came at `period_ns` of which `useful`
/// could be made use of.
pub(super) fn next_period_ns(period_ns: u64, came: u64, useful: u64, bounds: (u64, u64)) -> u64 {
    if came == 0 {
        return period_ns;
    }
    let wanted = useful.max(1) as f64 * OVERSAMPLING;
    let target_ns = period_ns as f64 * came as f64 / wanted;
    let next_ns = period_ns as f64 + (target_ns - period_ns as f64) * DAMPING;
    (next_ns as u64).clamp(bounds.0, bounds.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spends_no_more_than_its_share() {
        let mut budget = Budget::new(0.01);
        let mut spent_ns = 0;
        for tick in 0..1000 {
            budget.earn(tick * 10_000_000);
            while budget.affords(70_000) {
                budget.spend(70_000);
                spent_ns += 70_000;
            }
        }
        // 10 s at 1 %, and as much that was there at first.
        assert!((135_000_000..=140_070_000).contains(&spent_ns), "{spent_ns}");
    }

    #[test]
    fn half_its_share_is_earned_where_that_is_all_it_takes() {
        let mut budget = Budget::new(0.01);
        budget.earn(0);
        budget.spend(MAX_SAVED_NS as u64 / 100);
        budget.earn_share(0.5);
        assert_eq!(budget.affordable(1_000_000_000, 100_000), 50);
        budget.earn(1_000_000_000);
        assert_eq!(budget.saved_ns, 5_000_000);
        budget.earn_share(1.0);
        budget.earn(2_000_000_000);
        assert_eq!(budget.saved_ns, 15_000_000);
    }

    #[test]
    fn a_sample_dearer_than_the_savings_cap_still_runs_and_is_paid_off() {
        let mut budget = Budget::new(0.01);
        let mut runs = 0;
        for tick in 0..1000 {
            budget.earn(tick * 10_000_000);
            if budget.affords(40_000_000) {
                budget.spend(40_000_000);
                runs += 1;
            }
        }
        assert!((3..=4).contains(&runs), "{runs}");
    }

    #[test]
    fn period_follows_what_is_useful_within_its_bounds() {
        let mut budget = Budget::new(0.01);
        assert_eq!(budget.affordable(100_000_000, 100_000), 10 + 80, "a fifth of what is saved, too");
        budget.spend(MAX_SAVED_NS as u64 / 100);
        assert_eq!(budget.affordable(1_000_000_000, 100_000), 100);
        let bounds = (1_000_000, 100_000_000);
        // 100 came, all useful, 200 wanted: shorter.
        assert_eq!(next_period_ns(10_000_000, 100, 100, bounds), 7_500_000);
        // As many as wanted: as it is.
        assert_eq!(next_period_ns(10_000_000, 100, 50, bounds), 10_000_000);
        // Hardly any is useful: longer, but bounded.
        assert_eq!(next_period_ns(90_000_000, 1000, 0, bounds), 100_000_000);
    }
}
