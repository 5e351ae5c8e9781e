// SPDX-License-Identifier: GPL-2.0-only
//! What each parallel region did under each configuration, from the same runs as the whole program's times.
//!
//! A region above `LEAST_SHARE` of the time is judged by itself: by its median over a configuration's runs. Regions use
//! the same pages, so they can have configurations of their own only as far as these agree about pages ([`resolve`]).
//! What that would bring is a bound: a configuration that ran once may have been lucky.

use serde::{Deserialize, Serialize};
use tandem_ab::statistics::median;

use crate::conflicts::resolve;
use crate::one_by_one::OneByOne;
use crate::regions::Region;
use crate::session::{Outcome, name};

/// Regions below this share of the program's time, as it is and under what is best for it, are left out, unless they have seats of their
/// own.
const LEAST_SHARE: f64 = 0.05;

/// A region under the configurations that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionResult {
    /// Its function.
    pub name: String,
    /// How often a run enters it, as it is.
    pub entries: u64,
    /// Share of the program's time as it is.
    pub share: f64,
    /// Time in it, as it is.
    pub as_it_is_s: f64,
    /// Time in it under what is best for the program.
    pub tuned_s: f64,
    /// The configuration that is best for it.
    pub best: String,
    /// Time in it under that.
    pub best_s: f64,
    /// Runs of that.
    pub best_runs: usize,
    /// The configuration that it has when all regions agree about pages and are as fast as they can be together.
    pub together: String,
    /// Time in it under that.
    pub together_s: f64,
}

/// The regions that matter, those with the most time first; none if the program as it is has none, or nothing is best.
pub fn regions(outcome: &Outcome) -> Vec<RegionResult> {
    let (Some(best), Some(whole_s)) = (outcome.found.best, outcome.found.runs[0].median()) else { return Vec::new() };
    let Some(first) = outcome.regions.first().and_then(|runs| runs.first()) else { return Vec::new() };
    let mut matter: Vec<(&Region, Vec<Option<f64>>)> =
        first.iter().map(|region| (region, seconds(outcome, &region.name))).collect();
    let by_plan = outcome.one_by_one.as_ref().and_then(OneByOne::regions_of_plan);
    let chosen_s = |region: &str| in_region(by_plan.unwrap_or(&outcome.regions[best]), region);
    let chosen_whole_s = outcome.plan().and_then(|(_, runs)| runs.median()).unwrap_or(whole_s);
    let has_own_seats = |name: &str| outcome.plan().is_some_and(|(plan, _)| plan.regions.contains_key(name));
    matter.retain(|(region, seconds)| {
        let (Some(as_it_is_s), Some(chosen_s)) = (seconds[0], chosen_s(&region.name)) else { return false };
        is_large(as_it_is_s, whole_s) || is_large(chosen_s, chosen_whole_s) || has_own_seats(&region.name)
    });
    matter.sort_by(|one, other| other.1[0].unwrap_or(0.0).total_cmp(&one.1[0].unwrap_or(0.0)));
    let times: Vec<Vec<Option<f64>>> = matter.iter().map(|(_, seconds)| seconds.clone()).collect();
    let pages = &outcome.pages_alike;
    let together = resolve(&times, |one, other| pages[one.1] == pages[other.1]).unwrap_or_default();
    let result = |((region, seconds), together): ((&Region, Vec<Option<f64>>), usize)| {
        let known = seconds.iter().enumerate().filter_map(|(candidate, seconds)| Some((candidate, (*seconds)?)));
        let (own, best_s) = known.min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(RegionResult {
            name: region.name.clone(),
            entries: region.entries,
            share: seconds[0]? / whole_s,
            as_it_is_s: seconds[0]?,
            tuned_s: chosen_s(&region.name)?,
            best: name(outcome.candidates[own].as_ref()),
            best_s,
            best_runs: outcome.regions[own].len(),
            together: name(outcome.candidates[together].as_ref()),
            together_s: seconds[together]?,
        })
    };
    matter.into_iter().zip(together).filter_map(result).collect()
}

/// Whether a region of so many seconds matters to a program that takes `whole_s`.
pub(crate) fn is_large(seconds: f64, whole_s: f64) -> bool {
    seconds >= LEAST_SHARE * whole_s
}

/// By candidate, the median time in the region of this name.
fn seconds(outcome: &Outcome, region: &str) -> Vec<Option<f64>> {
    outcome.regions.iter().map(|runs| in_region(runs, region)).collect()
}

/// The median time in the region of this name.
fn in_region(runs: &[Vec<Region>], region: &str) -> Option<f64> {
    let of_run = |run: &Vec<Region>| run.iter().find(|one| one.name == region).map(|one| one.seconds);
    median(runs.iter().filter_map(of_run))
}

/// Time of the program at best, if each region had a configuration of its own, as far as all agree about pages; `tuned_s`
/// is under the one that is best for the whole program.
fn at_best_s(tuned_s: f64, regions: &[RegionResult]) -> f64 {
    tuned_s - regions.iter().map(|region| region.tuned_s - region.together_s).sum::<f64>()
}

/// The same in words, with how much less it is.
pub fn at_best_in_words(tuned_s: f64, regions: &[RegionResult]) -> String {
    let at_best_s = at_best_s(tuned_s, regions);
    let less_percent = 100.0 * (1.0 - at_best_s / tuned_s);
    format!(
        "with a configuration for each region, alike for pages: {at_best_s:.3} s at best, {less_percent:.1} % less than {tuned_s:.3} s\n"
    )
}

/// The regions as text.
pub fn table(regions: &[RegionResult]) -> String {
    let width = regions.iter().map(|region| region.name.chars().count()).max().unwrap_or(0).max("region".len());
    let mut text = format!(
        "{:<width$}  {:>5}  {:>7}  {:>10}  {:>8}  {:>6}  its own best\n",
        "region", "share", "entries", "as it is s", "chosen s", "best s"
    );
    for one in regions {
        let (share, runs) = (one.share * 100.0, one.best_runs);
        let (name, own, runs) = (&one.name, &one.best, if runs == 1 { "1 run".into() } else { format!("{runs} runs") });
        text += &format!(
            "{name:<width$}  {share:>3.0} %  {:>7}  {:>10.3}  {:>8.3}  {:>6.3}  {own} ({runs})\n",
            one.entries, one.as_it_is_s, one.tuned_s, one.best_s
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{PagePlacement, Space};
    use crate::testing::{self, machine, runs};

    /// Two regions that want different configurations, and one that is too small.
    fn outcome() -> Outcome {
        let topology = machine(2, 2);
        let all =
            Space { threads: vec![2], page_placements: vec![PagePlacement::FirstTouch, PagePlacement::Interleave] }
                .configurations(&topology);
        let region = |name: &str, seconds: f64| Region { name: name.into(), entries: 3, seconds, ..Region::default() };
        let run = |at: usize, noise: f64| {
            let at = at as f64;
            vec![region("a", 1.0 + at + noise), region("b", 3.0 - 0.5 * at + noise), region("small", 0.1)]
        };
        Outcome {
            pages_alike: (0..4).collect(),
            regions: (0..4).map(|at| [0.0, 0.5, -0.25].map(|noise| run(at, noise)).to_vec()).collect(),
            ..testing::outcome(&all[..3], 1, vec![runs(&[4.2, 4.3, 4.1]); 4])
        }
    }

    #[test]
    fn each_region_has_its_own_best_and_small_ones_are_left_out() {
        let outcome = outcome();
        let results = regions(&outcome);
        let own: Vec<_> =
            results.iter().map(|one| (one.name.as_str(), one.best_s, one.tuned_s, one.best_runs)).collect();
        assert_eq!(own, [("b", 1.5, 2.5, 3), ("a", 1.0, 2.0, 3)], "medians, by the time as it is");
        assert_eq!((results[1].best.as_str(), &results[0].best), ("as it is", &name(outcome.candidates[3].as_ref())));
        assert!((results[0].share - 3.0 / 4.2).abs() < 1e-12);
        // As it is is a placement of its own. Candidates 1 (first touch) and 2 and 3 (one page node, two) disagree too, so
        // both regions have the same one: 2.0 + 2.5, 3.0 + 2.0 or 4.0 + 1.5 s, and 1.0 + 3.0 as it is.
        assert_eq!(results.iter().map(|one| one.together.as_str()).collect::<Vec<_>>(), ["as it is"; 2]);
        assert!((at_best_s(4.2, &results) - 3.7).abs() < 1e-12);
        assert!(at_best_in_words(4.2, &results).ends_with(": 3.700 s at best, 11.9 % less than 4.200 s\n"));
        // Were the pages of 1 and 3 in the same places, `a` would have the first and `b` the last.
        let agreed = regions(&Outcome { pages_alike: vec![0, 1, 2, 1], ..outcome.clone() });
        assert_eq!(agreed.iter().map(|one| one.together_s).collect::<Vec<_>>(), [1.5, 2.0]);
        let text = table(&results);
        assert!(
            text.lines().nth(1).unwrap().starts_with("b        71 %        3       3.000     2.500   1.500  "),
            "{text}"
        );
    }

    #[test]
    fn a_region_that_matters_once_the_rest_is_faster_is_not_left_out() {
        let mut outcome = outcome();
        outcome.found.runs[1] = runs(&[1.9, 2.0, 1.9]);
        let names: Vec<String> = regions(&outcome).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["b", "a", "small"], "0.1 s of 4.2, and of 1.9");
    }

    #[test]
    fn a_program_without_regions_has_none() {
        let mut outcome = outcome();
        outcome.regions = vec![vec![vec![]]; 4];
        assert!(regions(&outcome).is_empty());
        outcome.regions = vec![vec![]; 4];
        assert!(regions(&outcome).is_empty());
    }
}
