// SPDX-License-Identifier: GPL-2.0-only
//! One configuration for each region when not all of them go together.
//!
//! Problem (Popov et al., ICS 2019): the configurations that are best for two regions may want the same pages in two places,
//! and moving pages between regions never paid. Mechanism: of all choices in which every pair of regions agrees, the one
//! with the least sum of times; branch and bound, with each open region's best choice that agrees with those made as the
//! bound. Exact.

/// For each region one of the candidates, such that all agree, with the least sum of times; `None` if there is none.
/// `seconds[region][candidate]` is a region's time, `None` where that is not known. `agree` says whether a region with a
/// candidate goes together with another region with another one; it does not matter which of the two comes first.
pub fn resolve(
    seconds: &[Vec<Option<f64>>],
    agree: impl Fn((usize, usize), (usize, usize)) -> bool,
) -> Option<Vec<usize>> {
    let mut search = Search { seconds, agree: &agree, chosen: Vec::new(), best: None };
    search.choose(0.0);
    search.best.map(|(_, chosen)| chosen)
}

struct Search<'a, Agree> {
    seconds: &'a [Vec<Option<f64>>],
    agree: &'a Agree,
    /// Candidates of the first regions.
    chosen: Vec<usize>,
    /// The least sum so far, with its choices.
    best: Option<(f64, Vec<usize>)>,
}

impl<Agree: Fn((usize, usize), (usize, usize)) -> bool> Search<'_, Agree> {
    /// Goes on from the choices made, whose times are `spent` together.
    fn choose(&mut self, spent: f64) {
        let region = self.chosen.len();
        if region == self.seconds.len() {
            if self.best.as_ref().is_none_or(|best| spent < best.0) {
                self.best = Some((spent, self.chosen.clone()));
            }
            return;
        }
        let mut open = self.open(region);
        open.sort_by(|one, other| one.1.total_cmp(&other.1));
        for (candidate, seconds) in open {
            self.chosen.push(candidate);
            let bound = self.bound().map(|rest| spent + seconds + rest);
            let beaten = |bound: f64| self.best.as_ref().is_some_and(|best| bound >= best.0);
            if bound.is_some_and(|bound| !beaten(bound)) {
                self.choose(spent + seconds);
            }
            self.chosen.pop();
        }
    }

    /// A region's candidates that agree with the choices made, with their times.
    fn open(&self, region: usize) -> Vec<(usize, f64)> {
        let agrees = |candidate: usize| {
            self.chosen.iter().enumerate().all(|made| (self.agree)((made.0, *made.1), (region, candidate)))
        };
        let known = self.seconds[region].iter().enumerate().filter_map(|(at, seconds)| Some((at, (*seconds)?)));
        known.filter(|&(candidate, _)| agrees(candidate)).collect()
    }

    /// What the regions without a choice take at least; `None` if one of them has no choice left.
    fn bound(&self) -> Option<f64> {
        let least = |region: usize| self.open(region).iter().map(|open| open.1).min_by(f64::total_cmp);
        (self.chosen.len()..self.seconds.len()).map(least).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The least sum among all choices, one after the other.
    fn brute_force(
        seconds: &[Vec<Option<f64>>],
        agree: impl Fn((usize, usize), (usize, usize)) -> bool,
    ) -> Option<f64> {
        let all: usize = seconds.iter().map(Vec::len).product();
        let sum = |mut number: usize| {
            let mut chosen = Vec::new();
            for candidates in seconds {
                chosen.push(number % candidates.len());
                number /= candidates.len();
            }
            let regions = chosen.len();
            let pairs = (0..regions).flat_map(|one| (0..one).map(move |other| (one, other)));
            let together = pairs.into_iter().all(|(one, other)| agree((one, chosen[one]), (other, chosen[other])));
            let times: Option<f64> = chosen.iter().enumerate().map(|(region, &one)| seconds[region][one]).sum();
            times.filter(|_| together)
        };
        (0..all).filter_map(sum).min_by(f64::total_cmp)
    }

    #[test]
    fn two_regions_in_conflict_take_the_best_single_choice() {
        // Each alone wants its own; together 0 costs 1 + 4, and 1 costs 3 + 1.
        let seconds = [vec![Some(1.0), Some(3.0)], vec![Some(4.0), Some(1.0)]];
        assert_eq!(resolve(&seconds, |_, _| true), Some(vec![0, 1]));
        assert_eq!(resolve(&seconds, |one, other| one.1 == other.1), Some(vec![1, 1]));
        assert_eq!(resolve(&seconds, |_, _| false), None);
        assert_eq!(resolve(&[vec![None, Some(2.0)]], |_, _| true), Some(vec![1]));
        assert_eq!(resolve(&[], |_, _| true), Some(vec![]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_choice_is_the_one_that_brute_force_finds(
            seconds in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.9, 0.1f64..9.0), 5), 1..5),
            together in prop::collection::vec(prop::bool::weighted(0.6), 4 * 5 * 4 * 5),
        ) {
            let agree = |one: (usize, usize), other: (usize, usize)| {
                let (first, second) = (one.min(other), one.max(other));
                together[((first.0 * 5 + first.1) * 4 + second.0) * 5 + second.1]
            };
            let found = resolve(&seconds, agree);
            let sum = found.as_ref().map(|chosen| {
                chosen.iter().enumerate().map(|(region, &one)| seconds[region][one].unwrap()).sum::<f64>()
            });
            let expected = brute_force(&seconds, agree);
            prop_assert_eq!(sum.is_some(), expected.is_some());
            if let (Some(sum), Some(expected)) = (sum, expected) {
                prop_assert!((sum - expected).abs() < 1e-9, "{sum} {expected}");
            }
            for (at, &one) in found.iter().flatten().enumerate() {
                for (before, &other) in found.iter().flatten().enumerate().take(at) {
                    prop_assert!(agree((at, one), (before, other)));
                }
            }
        }
    }
}
