// SPDX-License-Identifier: GPL-2.0-only

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::space::{PAPERS, PagePlacement, Space};
use crate::testing::machine;

/// A table of runs: by candidate, the seconds of each of its runs.
struct Table(Vec<Vec<f64>>);

impl Table {
    /// Around these medians, runs that differ by `noise` (share, evenly).
    fn around(medians: &[f64], noise: f64, seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut run =
            |median: f64| median * (1.0 + noise * ((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 0.5));
        Self(medians.iter().map(|&median| (0..11).map(|_| run(median)).collect()).collect())
    }

    fn medians(&self) -> Vec<f64> {
        self.0.iter().map(|runs| Sample::new(runs).unwrap().median()).collect()
    }

    /// Searches it; what was found and how long that took, in s of runs.
    fn search(&self, reference: Option<usize>) -> (Found, f64) {
        let mut spent = 0.0;
        let found = search(
            self.0.len(),
            reference,
            &Settings::default(),
            |candidate: usize, attempt: usize, limit: Option<f64>| {
                let seconds = self.0[candidate][attempt];
                match limit {
                    Some(limit) if limit < seconds => {
                        spent += limit;
                        Ok(Reading::SlowerThan(limit))
                    }
                    _ => {
                        spent += seconds;
                        Ok(Reading::Seconds(seconds))
                    }
                }
            },
        );
        (found.unwrap(), spent)
    }

    /// What the source's way takes: a warm-up run and ten measured ones of everybody.
    fn exhaustive_s(&self) -> f64 {
        self.0.iter().flatten().sum()
    }
}

/// Seconds of a made-up program on four nodes of eight cores, in the paper's proportions: it scales with threads until
/// the page nodes' bandwidth is used up, remote accesses cost more, and page placements differ by a few percent.
fn medians(balanced: bool) -> Vec<f64> {
    let topology = machine(4, 8);
    let all = Space::of(&topology, 32, &PAPERS).configurations(&topology);
    let seconds = |one: &crate::space::Configuration| {
        let compute = 24.0 / one.threads as f64;
        let bandwidth = 2.0 / one.page_nodes as f64;
        let remote = 1.0 - 1.0 / one.page_nodes as f64;
        let rule = match (one.page_placement, balanced) {
            (PagePlacement::Balance, true) | (PagePlacement::Locality, false) => 0.85,
            (PagePlacement::Mix, _) => 0.9,
            _ => 1.0,
        };
        (compute.max(bandwidth) + if balanced { 0.2 } else { 1.2 } * remote) * rule + 0.05 * one.thread_nodes as f64
    };
    all.iter().map(seconds).collect()
}

#[test]
fn the_best_is_found_within_two_percent_in_an_eighth_of_the_time() {
    for balanced in [true, false] {
        for seed in 0..10 {
            let table = Table::around(&medians(balanced), 0.03, seed);
            let (found, spent) = table.search(None);
            let medians = table.medians();
            let least = medians.iter().copied().min_by(f64::total_cmp).unwrap();
            let ratio = medians[found.best.unwrap()] / least;
            assert!(ratio <= 1.02, "seed {seed}: {ratio}");
            let share = spent / table.exhaustive_s();
            assert!(share <= 0.125, "seed {seed}: {share}");
        }
    }
}

#[test]
fn few_candidates_are_searched_exhaustively_and_end_by_intervals() {
    let table = Table::around(&[1.0, 1.0, 1.3, 1.5], 0.06, 3);
    let (found, _) = table.search(None);
    assert!(found.best.unwrap() < 2, "{found:?}");
    let runs: Vec<usize> = found.runs.iter().map(|runs| runs.seconds.len()).collect();
    assert_eq!(runs[2..], [4, 4], "worse with confidence after four runs");
    assert!(runs[0] > 4 && runs[1] > 4, "{runs:?}");
}

#[test]
fn an_exhaustive_search_runs_everybody_to_the_end() {
    let table = Table::around(&[1.0, 1.0, 30.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0], 0.001, 3);
    let settings = Settings { repeats: 5, exhaustive: true, ..Settings::default() };
    let found = search(10, None, &settings, |candidate: usize, attempt: usize, limit: Option<f64>| {
        assert_eq!(limit, None);
        Ok(Reading::Seconds(table.0[candidate][attempt]))
    });
    let found = found.unwrap();
    assert!(found.runs.iter().all(|runs| runs.seconds.len() == 5), "{found:?}");
    assert_eq!((found.end, expected_runs(10, &settings, 1)), (End::Decided, 50));
}

/// Where all are equal, and for ten runs in a row, whenever these begin, the machine is a third slower.
#[test]
fn a_slow_spell_of_the_machine_makes_no_candidate_better_than_another() {
    for (begin, exhaustive) in (0..40).flat_map(|begin| [(begin, false), (begin, true)]) {
        let settings = Settings { exhaustive, ..Settings::default() };
        let mut runs = 0;
        let found = search(4, Some(0), &settings, |_: usize, _: usize, _: Option<f64>| {
            runs += 1;
            Ok(Reading::Seconds(if (begin..begin + 10).contains(&(runs - 1)) { 1.3 } else { 1.0 }))
        });
        let samples: Vec<Sample> = found.unwrap().runs.iter().map(|runs| runs.sample().unwrap()).collect();
        let is_better = |one: &Sample| Comparison::of(one, &samples[0]).verdict(Better::Lower) == Verdict::Better;
        assert!(!samples.iter().any(is_better), "from run {begin} on, exhaustive: {exhaustive}: {samples:?}");
    }
}

/// Of 60 searches among 27 candidates whose runs differ by 6 %: in how many the best one is better than the reference with
/// confidence, and how many runs were the most.
fn claims(gain: f64) -> (usize, usize) {
    let mut medians = [1.0; 27];
    medians[13] -= gain;
    let (mut claims, mut most) = (0, 0);
    for seed in 0..60 {
        let (found, _) = Table::around(&medians, 0.06, seed).search(Some(0));
        let best = found.best.unwrap();
        let verdict = found.compared(best, 0).unwrap().verdict(Better::Lower);
        claims += usize::from(best != 0 && verdict == Verdict::Better);
        most = most.max(found.runs.iter().map(|runs| runs.seconds.len()).sum());
    }
    (claims, most)
}

/// By all runs, those that chose the best one among them, five of these searches claimed it.
#[test]
fn what_chance_chose_among_equals_is_not_claimed_to_be_faster_and_what_is_faster_is() {
    let (wrong, most) = claims(0.0);
    assert!(wrong <= 3, "{wrong} of 60: more than 5 %");
    assert!(most <= 62, "{most} runs");
    assert_eq!(claims(0.1).0, 60, "a tenth is found each time");
}

/// The end is when one looks ahead, so chance has as many tries as there are times to end.
#[test]
fn the_interval_of_a_gain_holds_for_all_that_were_left_each_time_the_search_may_end() {
    let choice = |candidates: usize| Table::around(&vec![1.0; candidates], 0.06, 1).search(Some(0)).0.choice;
    assert_eq!((choice(27).among, choice(27).comparisons()), (2, 6), "after four runs, eight and ten");
    assert_eq!(
        (choice(4).among, choice(4).comparisons()),
        (3, 3),
        "all runs are evidence of all until there are intervals"
    );
}

#[test]
fn equal_candidates_end_before_they_have_all_their_runs() {
    let table = Table::around(&[1.0; 6], 0.005, 1);
    let (found, _) = table.search(None);
    assert_eq!(found.end, End::Near);
    assert!(found.runs.iter().all(|runs| runs.seconds.len() == 4), "{found:?}");
}

#[test]
fn slow_runs_are_stopped_and_never_chosen() {
    let table = Table::around(&[1.0, 10.0, 5.0], 0.01, 1);
    let (found, spent) = table.search(None);
    assert_eq!(found.best, Some(0));
    assert!(found.runs[1].slower_than.is_some_and(|limit| (1.9..2.1).contains(&limit)), "{found:?}");
    assert!(spent < 4.0 + 2.0 * 2.1, "{spent}");
}

#[test]
fn one_disturbed_run_does_not_throw_the_best_out() {
    let mut table = Table::around(&[1.0, 1.3, 1.4], 0.01, 5);
    table.0[0][1] = 9.0;
    let (found, _) = table.search(None);
    assert_eq!(found.best, Some(0), "{found:?}");
    assert!(found.runs[0].slower_than.is_none() && found.runs[0].seconds[1] < 3.0, "{found:?}");
}

#[test]
fn the_reference_is_kept_until_it_is_worse_with_confidence() {
    let mut medians = vec![1.0; 30];
    medians[0] = 7.0;
    let (found, _) = Table::around(&medians, 0.05, 2).search(Some(0));
    let with_evidence = 1 + FEWEST;
    assert_eq!((found.runs[0].seconds.len(), found.runs[0].slower_than), (with_evidence, None), "{found:?}");
    assert_ne!(found.best, Some(0));
    medians[0] = 1.0;
    let (found, _) = Table::around(&medians, 0.05, 2).search(Some(0));
    assert!(found.runs[0].seconds.len() > FEWEST, "nobody is better: {found:?}");
}

/// Its runs by candidate, of a search that must find `best` besides the reference, the first one.
fn runs_of(table: &Table, best: usize) -> Vec<usize> {
    let (found, _) = table.search(Some(0));
    assert!(found.best == Some(best) && found.end.is_decision(), "{found:?}");
    found.runs.iter().map(|runs| runs.seconds.len()).collect()
}

#[test]
fn the_reference_does_not_run_where_ranks_decide_and_takes_nobodys_place() {
    let mut medians = vec![1.4; 51];
    medians[..11].fill(1.0);
    medians[10] = 0.9;
    let mut asked = vec![];
    let found = search(51, Some(0), &Settings::default(), |candidate: usize, attempt: usize, _: Option<f64>| {
        asked.push((candidate, attempt));
        Ok(Reading::Seconds(medians[candidate]))
    });
    let second_round: Vec<usize> = asked[51..61].iter().map(|&(candidate, _)| candidate).collect();
    assert!((1..=10).all(|one| second_round.contains(&one)), "{second_round:?}");
    let found = found.unwrap();
    let evidence = [10, 0].map(|one| found.evidence(one).unwrap().len());
    assert_eq!((evidence, found.runs[10].seconds.len(), found.runs[0].seconds.len()), ([4, 4], 6, 5));
}

#[test]
fn who_is_further_behind_after_two_runs_than_runs_are_apart_runs_no_more() {
    let mut medians = vec![1.3; 46];
    medians[7..10].copy_from_slice(&[1.0, 1.12, 1.2]);
    for seed in 0..20 {
        let runs = runs_of(&Table::around(&medians, 0.06, seed), 7);
        assert_eq!((runs[7], runs[8], runs[0]), (6, 2, 5), "seed {seed}");
    }
    // Where runs of anybody are as far apart, it may be chance.
    let mut table = Table::around(&medians, 0.06, 3);
    table.0[9][1] *= 1.3;
    let (found, _) = table.search(Some(0));
    assert!(found.runs[8].seconds.len() > 2, "{found:?}");
}

#[test]
fn where_runs_hardly_differ_two_are_enough_to_leave_equals_alone() {
    let mut medians = vec![1.3; 46];
    medians[7..10].fill(1.0);
    for (noise, are_alone) in [(0.01, true), (0.1, false)] {
        let (found, _) = Table::around(&medians, noise, 1).search(Some(0));
        let most = (7..10).filter(|&one| Some(one) != found.best).map(|one| found.runs[one].seconds.len()).max();
        assert_eq!(most == Some(2), are_alone, "{noise}: {found:?}");
        assert!((7..10).contains(&found.best.unwrap()), "{found:?}");
    }
    // Four candidates by chance run alike more often.
    let (found, _) = Table::around(&[&[1.3; 17][..], &[1.0; 3]].concat(), 0.01, 1).search(Some(0));
    assert_eq!(found.runs[17..].iter().filter(|runs| runs.seconds.len() > 2).count(), 2, "{found:?}");
}

#[test]
fn who_need_not_run_on_does_if_the_best_one_fails() {
    let mut medians = vec![1.3; 46];
    (medians[7], medians[8]) = (1.0, 1.12);
    for last in [2, 5] {
        let found = search(46, Some(0), &Settings::default(), |candidate: usize, attempt: usize, _: Option<f64>| {
            let fails = candidate == 7 && attempt == last;
            Ok(if fails { Reading::Failed("oh no".into()) } else { Reading::Seconds(medians[candidate]) })
        });
        let found = found.unwrap();
        assert_eq!((found.best, found.runs[8].seconds.len()), (Some(8), 6), "fails in run {last}: {found:?}");
        assert!(found.compared(8, 0).is_some(), "{found:?}");
    }
}

/// Which of the two is better takes more runs to tell than it is worth.
#[test]
fn it_is_over_when_nobody_left_may_be_better_by_more_than_two_percent() {
    let mut table = Table::around(&[1.3; 46], 0.04, 5);
    table.0[7] = [1.0, 1.03, 1.02].repeat(4);
    table.0[8] = vec![1.03; 11];
    assert_eq!(runs_of(&table, 7)[7..9], [6, 4]);
}

#[test]
fn a_candidate_that_fails_is_noted_and_the_search_goes_on() {
    let found = search(3, None, &Settings::default(), |candidate: usize, _: usize, _: Option<f64>| {
        Ok(if candidate == 0 { Reading::Failed("exit code 3".into()) } else { Reading::Seconds(candidate as f64) })
    });
    let found = found.unwrap();
    assert_eq!(found.best, Some(1));
    assert_eq!(found.runs[0].failure.as_deref(), Some("exit code 3"));
    let none =
        search(2, None, &Settings::default(), |_: usize, _: usize, _: Option<f64>| Ok(Reading::Failed("no".into())))
            .unwrap();
    assert_eq!((none.best, none.end), (None, End::NoneWorks));
}

#[test]
fn what_was_found_until_it_is_stopped_counts() {
    let mut left = 4;
    let found = search(20, None, &Settings::default(), |candidate: usize, _: usize, _: Option<f64>| {
        left -= 1;
        Ok(if left < 0 { Reading::Stop } else { Reading::Seconds(10.0 - candidate as f64) })
    });
    let found = found.unwrap();
    assert_eq!((found.best, found.end), (Some(3), End::Stopped));
}

#[test]
fn a_stop_within_a_round_does_not_favour_those_that_had_their_turn_in_it() {
    let mut left = 6;
    let found = search(4, Some(0), &Settings::default(), |candidate: usize, _: usize, _: Option<f64>| {
        left -= 1;
        Ok(if left < 0 { Reading::Stop } else { Reading::Seconds([10.0, 8.0, 9.0, 4.0][candidate]) })
    });
    let found = found.unwrap();
    assert_eq!((found.best, found.end, found.runs[3].seconds.len()), (Some(3), End::Stopped, 1));
}

#[test]
fn the_same_readings_give_the_same_search() {
    let table = Table::around(&medians(true), 0.1, 9);
    assert_eq!(table.search(Some(5)), table.search(Some(5)));
}

#[test]
fn the_expected_number_of_runs_is_about_what_it_takes() {
    let table = Table::around(&medians(true), 0.03, 4);
    let (found, _) = table.search(None);
    let took: usize = found.runs.iter().map(|runs| runs.seconds.len() + usize::from(runs.slower_than.is_some())).sum();
    let expected = expected_runs(table.0.len(), &Settings::default(), 1);
    assert!((0.7..=1.3).contains(&(took as f64 / expected as f64)), "{took} runs, {expected} expected");
    assert_eq!(expected_runs(4, &Settings::default(), 1), 40, "few candidates run as often as the last survivors");
    assert_eq!([1, 4, 100].map(|machines| expected_runs(27, &Settings::default(), machines)), [49, 13, 5], "by rounds");
}
