// SPDX-License-Identifier: GPL-2.0-only
//! What can be said of some boots, and of two sets of them.
//!
//! Problem: a handful of boots an arm, in a unit where lower or higher is better, not normally distributed (placements
//! are lotteries). Mechanism: medians; a 95 % interval of the ratio of two medians by the percentile bootstrap, both
//! samples resampled independently with a seeded generator, so that the same runs always give the same interval.
//!
//! Terms:
//! - *ratio*: median of the arm / median of the reference, no unit. Where lower is better, below 1 is better.
//! - *interval*: the 2.5 % and 97.5 % quantiles of the resampled ratios. With fewer than 6 runs an arm it can never be
//!   wider than the range of the runs, which holds the true median less often than 95 % (75 % of the time with 3 runs,
//!   93.75 % with 5): few boots claim more than they know.
//! - *no difference*: the interval contains 1.
//! - *bad boot*: a run worse than [`BAD_BOOT_FACTOR`] times the arm's best run. The best run is the reference because
//!   what disturbs a run only ever costs: no boot is better than its placement allows, while the median of an arm that
//!   loses most of its draws is itself a bad boot.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

/// A run this many times worse than the arm's best run is a bad boot.
pub const BAD_BOOT_FACTOR: f64 = 1.25;

/// Resamples behind an interval.
const RESAMPLES: usize = 10_000;

/// Seed of the generator that resamples.
const SEED: u64 = 0x7461_6e64_656d;

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times and latencies.
    Lower,
    /// Rates.
    Higher,
}

impl Better {
    /// How many times worse `value` is than `best`; 1 when they are equal, below 1 when it is better.
    pub fn times_worse(self, value: f64, best: f64) -> f64 {
        match self {
            Self::Lower => value / best,
            Self::Higher => best / value,
        }
    }

    /// The better one of two values.
    pub fn best(self, first: f64, second: f64) -> f64 {
        if self.times_worse(first, second) <= 1.0 { first } else { second }
    }
}

/// One or more runs of one arm; every value finite and above 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// The runs' values; `None` when there is none, or one is not a finite number above 0.
    pub fn new(values: &[f64]) -> Option<Self> {
        let usable = !values.is_empty() && values.iter().all(|value| value.is_finite() && *value > 0.0);
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        usable.then_some(Self(sorted))
    }

    /// The value in the middle; of an even number of runs, the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        median_of_sorted(&self.0)
    }

    /// The least and the greatest value.
    pub fn range(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }

    /// (greatest - least) / median.
    pub fn spread(&self) -> f64 {
        let (least, greatest) = self.range();
        (greatest - least) / self.median()
    }

    /// The share of runs that are worse than [`BAD_BOOT_FACTOR`] times the best, 0 to 1.
    pub fn bad_boot_share(&self, better: Better) -> f64 {
        let (least, greatest) = self.range();
        let best = better.best(least, greatest);
        let bad = self.0.iter().filter(|&&value| better.times_worse(value, best) > BAD_BOOT_FACTOR).count();
        bad as f64 / self.0.len() as f64
    }

    /// The median of a resample of the same size; `drawn` is scratch space.
    fn resampled_median(&self, rng: &mut Pcg64, drawn: &mut Vec<f64>) -> f64 {
        drawn.clear();
        drawn.extend((0..self.0.len()).map(|_| self.0[below(rng, self.0.len())]));
        drawn.sort_by(f64::total_cmp);
        median_of_sorted(drawn)
    }
}

/// An arm's runs against the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Ratio of the medians.
    pub ratio: f64,
    /// Its 95 % interval.
    pub interval: (f64, f64),
    /// Runs of the side that has fewer.
    pub runs: usize,
}

/// What a comparison amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval contains 1.
    NoDifference,
    /// The interval lies on the better side of 1.
    Better,
    /// The interval lies on the worse side of 1.
    Worse,
    /// Nobody can tell: with fewer than [`FEWEST_RUNS`] a side chance alone parts them too often.
    TooFewRuns,
}

/// Runs a side from which on a verdict is given: chance puts all of one side below all of the other in one case of 10 with three
/// runs each, in one of 35 with four.
pub const FEWEST_RUNS: usize = 4;

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoDifference => "no difference",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::TooFewRuns => "too few runs",
        })
    }
}

impl Comparison {
    /// Compares `arm` with `reference`.
    pub fn of(arm: &Sample, reference: &Sample) -> Self {
        Self::among(arm, reference, 1)
    }

    /// The same of the best of `arms` arms: an interval that holds 95 % of the time for all of them at once (Bonferroni), as the
    /// one that looks best is the one that chance favoured most.
    pub fn among(arm: &Sample, reference: &Sample, arms: usize) -> Self {
        let mut rng = Pcg64::seed_from_u64(SEED);
        let mut drawn = Vec::new();
        let mut ratios: Vec<f64> = (0..RESAMPLES)
            .map(|_| arm.resampled_median(&mut rng, &mut drawn) / reference.resampled_median(&mut rng, &mut drawn))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let tail = RESAMPLES / 40 / arms.max(1);
        Self {
            ratio: arm.median() / reference.median(),
            interval: (ratios[tail], ratios[RESAMPLES - 1 - tail]),
            runs: arm.0.len().min(reference.0.len()),
        }
    }

    /// What it amounts to where `better` is better.
    pub fn verdict(&self, better: Better) -> Verdict {
        let (low, high) = self.interval;
        match better {
            _ if self.runs < FEWEST_RUNS => Verdict::TooFewRuns,
            _ if low <= 1.0 && high >= 1.0 => Verdict::NoDifference,
            Better::Lower if high < 1.0 => Verdict::Better,
            Better::Higher if low > 1.0 => Verdict::Better,
            _ => Verdict::Worse,
        }
    }
}

/// The median of numbers of any kind, such as counts; `None` of no numbers.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| median_of_sorted(&sorted))
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// A number below `count` (at least 1).
fn below(rng: &mut Pcg64, count: usize) -> usize {
    ((u128::from(rng.next_u64()) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values).unwrap()
    }

    #[test]
    fn known_medians_and_ranges() {
        assert_eq!(sample(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(sample(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(sample(&[7.0]).median(), 7.0);
        assert_eq!(sample(&[4.88, 4.74, 4.90]).range(), (4.74, 4.90));
        assert!((sample(&[4.0, 4.1, 4.2]).spread() - 0.2 / 4.1).abs() < 1e-12);
        assert_eq!(median([]), None);
        assert_eq!(median([0.0, 10.0]), Some(5.0));
    }

    #[test]
    fn values_without_meaning_are_no_sample() {
        for values in [&[][..], &[0.0], &[-1.0, 2.0], &[f64::NAN], &[1.0, f64::INFINITY]] {
            assert_eq!(Sample::new(values), None, "{values:?}");
        }
    }

    #[test]
    fn a_bad_boot_is_worse_than_five_quarters_of_the_best() {
        let lottery = sample(&[4.0, 4.1, 5.0, 5.01, 8.0]);
        assert_eq!(lottery.bad_boot_share(Better::Lower), 0.4);
        // An arm that loses most of its draws is still seen to lose them.
        assert_eq!(sample(&[4.0, 8.0, 8.0, 8.0, 8.0]).bad_boot_share(Better::Lower), 0.8);
        assert_eq!(sample(&[8.0, 8.0]).bad_boot_share(Better::Lower), 0.0);
        assert_eq!(sample(&[100.0, 90.0, 79.0]).bad_boot_share(Better::Higher), 1.0 / 3.0);
    }

    /// With two runs a side a resample's median is a, (a+b)/2 or b with probability 1/4, 1/2, 1/4: the extreme ratios
    /// have probability 1/16 each, more than a tail.
    #[test]
    fn the_interval_of_two_runs_a_side_is_that_of_the_extremes() {
        let comparison = Comparison::of(&sample(&[2.0, 3.0]), &sample(&[4.0, 5.0]));
        assert_eq!(comparison.interval, (2.0 / 5.0, 3.0 / 4.0));
        assert!((comparison.ratio - 2.5 / 4.5).abs() < 1e-12);
    }

    #[test]
    fn disjoint_samples_differ_and_overlapping_ones_do_not() {
        let (fast, slow) = (sample(&[4.0, 4.1, 4.2, 4.0, 4.1]), sample(&[8.0, 8.1, 7.9, 8.2, 8.0]));
        assert_eq!(Comparison::of(&fast, &slow).verdict(Better::Lower), Verdict::Better);
        assert_eq!(Comparison::of(&slow, &fast).verdict(Better::Lower), Verdict::Worse);
        assert_eq!(Comparison::of(&fast, &slow).verdict(Better::Higher), Verdict::Worse);
        assert_eq!(Comparison::of(&slow, &fast).verdict(Better::Higher), Verdict::Better);
        let lottery = sample(&[4.0, 8.0, 4.2, 8.1, 5.0]);
        assert_eq!(
            Comparison::of(&lottery, &sample(&[4.9, 5.1, 5.0, 5.2, 4.8])).verdict(Better::Lower),
            Verdict::NoDifference
        );
    }

    #[test]
    fn few_runs_tell_nothing_however_they_differ() {
        let verdict = |runs: usize| {
            let (fast, slow) = (sample(&vec![4.0; runs]), sample(&vec![8.0; runs]));
            [Comparison::of(&fast, &slow), Comparison::of(&slow, &fast)].map(|one| one.verdict(Better::Lower))
        };
        assert_eq!([verdict(1), verdict(3)], [[Verdict::TooFewRuns; 2]; 2]);
        assert_eq!(verdict(4), [Verdict::Better, Verdict::Worse]);
    }

    /// Two arms with the same true median: the interval must contain 1 about 95 times in 100.
    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        let mut rng = Pcg64::seed_from_u64(7);
        let mut draw = || -> Sample {
            let values: Vec<f64> = (0..10)
                .map(|_| {
                    let noise: f64 = (0..12).map(|_| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).sum();
                    5.0 + (noise - 6.0) * 0.1
                })
                .collect();
            Sample::new(&values).unwrap()
        };
        let trials = 200;
        let covered = (0..trials)
            .filter(|_| Comparison::of(&draw(), &draw()).verdict(Better::Lower) == Verdict::NoDifference)
            .count();
        let share = covered as f64 / f64::from(trials);
        assert!((0.90..=0.995).contains(&share), "{share}");
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(0.1f64..100.0, 1..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn the_median_lies_in_the_range_whatever_the_order(mut values in values()) {
            let sorted = sample(&values);
            values.reverse();
            let (least, greatest) = sorted.range();
            prop_assert_eq!(&sample(&values), &sorted);
            prop_assert!((least..=greatest).contains(&sorted.median()));
        }

        #[test]
        fn the_unit_does_not_matter(first in values(), second in values()) {
            let scaled = |values: &[f64]| sample(&values.iter().map(|value| value * 1024.0).collect::<Vec<_>>());
            let comparison = Comparison::of(&sample(&first), &sample(&second));
            prop_assert_eq!(Comparison::of(&scaled(&first), &scaled(&second)), comparison);
        }

        #[test]
        fn the_interval_lies_within_what_the_runs_allow(first in values(), second in values()) {
            let (first, second) = (sample(&first), sample(&second));
            let (low, high) = Comparison::of(&first, &second).interval;
            prop_assert!(low <= high);
            prop_assert!(low >= first.range().0 / second.range().1);
            prop_assert!(high <= first.range().1 / second.range().0);
        }

        #[test]
        fn an_arm_does_not_differ_from_itself(values in values()) {
            let same = sample(&values);
            let comparison = Comparison::of(&same, &same);
            prop_assert_eq!(comparison.ratio, 1.0);
            let told = if values.len() < FEWEST_RUNS { Verdict::TooFewRuns } else { Verdict::NoDifference };
            prop_assert_eq!(comparison.verdict(Better::Lower), told);
        }

        #[test]
        fn shares_of_bad_boots_spare_the_best(values in values()) {
            for better in [Better::Lower, Better::Higher] {
                let share = sample(&values).bad_boot_share(better);
                prop_assert!((0.0..1.0).contains(&share));
            }
        }
    }
}
