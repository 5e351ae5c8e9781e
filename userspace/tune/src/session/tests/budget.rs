// SPDX-License-Identifier: GPL-2.0-only
//! Sessions whose time is limited.

use super::*;

/// Each run takes a while, so that the budget ends in a later round than the first.
#[test]
fn a_search_that_the_budget_cuts_off_says_so_in_whatever_round() {
    let directory = tempfile::tempdir().unwrap();
    let of = |store: &str, budget_s: f64, runs: u32| {
        let left = Cell::new(runs);
        let program = |one: Option<&Configuration>| {
            left.set(left.get().saturating_sub(1));
            if left.get() == 0 {
                std::thread::sleep(Duration::from_secs_f64(budget_s));
            }
            let (end, seconds, threads) = four_are_best(one);
            (end, seconds * 0.1, threads)
        };
        BUDGET.set(Some(Duration::from_secs_f64(budget_s)));
        ENTRIES.set(Some((3000, true)));
        let run = session(&directory.path().join(store), &program, 10_000);
        BUDGET.set(None);
        ENTRIES.set(None);
        run.outcome.unwrap().unwrap()
    };
    for (store, runs, waiting) in [("first", 9, true), ("later", 31, false)] {
        let outcome = of(store, 4.0, runs);
        let notes = &outcome.notes;
        assert_eq!(outcome.found.end, search::End::Stopped, "{store}: {notes:?}");
        assert_eq!(notes.iter().any(|note| note.contains("were not measured yet")), waiting, "{store}: {notes:?}");
        let cut_off = |note: &String| note.starts_with("the search was cut off before its end");
        assert_eq!(notes.iter().filter(|note| cut_off(note)).count(), 1, "{store}: {notes:?}");
    }
    assert!(of("whole", 1000.0, u32::MAX).notes.iter().all(|note| !note.contains("cut off")));
}

/// After ten runs as it is the main thread is bound, unless a configuration is faster; one of these runs takes the rest of the budget.
#[test]
fn a_session_whose_time_is_over_before_it_is_known_what_helps_against_chance_is_not_complete() {
    let directory = tempfile::tempdir().unwrap();
    let of = |store: &str, budget_s: f64, long_run: u32, as_it_is_s: f64| {
        DRAWS.set(Some((0, 1.5)));
        BUDGET.set(Some(Duration::from_secs_f64(budget_s)));
        ENTRIES.set(Some((3000, true)));
        let as_they_are = Cell::new(0);
        let program = |one: Option<&Configuration>| {
            as_they_are.set(as_they_are.get() + u32::from(one.is_none()));
            if as_they_are.get() == long_run {
                std::thread::sleep(Duration::from_secs_f64(budget_s.min(4.0)));
            }
            let (end, seconds, threads) = four_are_best(one);
            (end, if one.is_none() { as_it_is_s } else { 0.1 * seconds }, threads)
        };
        let run = session(&directory.path().join(store), &program, 10_000);
        DRAWS.set(None);
        BUDGET.set(None);
        ENTRIES.set(None);
        let outcome = run.outcome.unwrap().unwrap();
        (outcome.found.end.is_decision(), outcome.is_complete, outcome.best().is_some())
    };
    assert_eq!(of("bound", 4.0, 13, 0.1), (true, false, false));
    assert_eq!(of("as it is", 4.0, 8, 0.5), (true, false, true));
    assert_eq!(of("all", 1000.0, 13, 0.1), (true, true, false));
}

#[test]
fn the_first_run_takes_no_longer_than_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    BUDGET.set(Some(Duration::from_secs(2)));
    let said = session(&directory.path().join("s"), &four_are_best, 10_000)
        .outcome
        .map(|_| ())
        .map_err(|said| said.to_string());
    BUDGET.set(None);
    let said = said.unwrap_err();
    assert!(said.starts_with("one run of the program takes longer than --budget"), "{said}");
    assert!(
        session(&directory.path().join("s"), &four_are_best, 10_000).outcome.unwrap().is_some(),
        "without a budget"
    );
}

/// Of a run of three seconds one of 49 has a share of 100 seconds.
#[test]
fn of_runs_that_do_not_fit_the_budget_the_beginning_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let of = |store: &str, entries: u64, only_whole_runs: bool| {
        BUDGET.set(Some(Duration::from_secs(100)));
        ENTRIES.set(Some((entries, only_whole_runs)));
        let run = session(&directory.path().join(store), &four_are_best, 10_000);
        BUDGET.set(None);
        ENTRIES.set(None);
        run
    };
    let run = of("part", 3000, false);
    let outcome = run.outcome.unwrap().unwrap();
    let entries = outcome.first_entries.unwrap();
    assert!((2000..2400).contains(&entries), "{entries}");
    let as_it_is_s = outcome.found.runs[0].median().unwrap();
    assert!((as_it_is_s - 3.0 * entries as f64 / 3000.0).abs() < 1e-9, "{as_it_is_s}");
    assert_eq!(outcome.best().unwrap().0.threads, 4);
    let note = format!("each is ended after {entries} entries of its parallel regions");
    assert!(outcome.notes.iter().chain(&run.said).filter(|words| words.contains(&note)).count() == 2, "said and noted");
    let tuned = crate::tuned::Tuned::new(crate::subject::tests::subject(), &outcome);
    assert_eq!(tuned.evidence.as_ref().unwrap().first_entries, Some(entries));
    assert!(tuned.in_words().contains(&format!(" s until its regions were entered {entries} times, as it is ")));
    let again = of("part", 3000, false);
    assert_eq!(
        (again.ran.len(), again.outcome.unwrap().unwrap().found),
        (0, outcome.found),
        "nothing is measured twice"
    );
    let known = format!(
        "runs of the first {entries} entries, of another --budget, --codelets, --repeats or other --hosts, are known and say nothing of these"
    );
    for (budget_s, expected) in [(120, 2400..2900), (50, 1000..1200)] {
        BUDGET.set(Some(Duration::from_secs(budget_s)));
        ENTRIES.set(Some((3000, false)));
        let other = session(&directory.path().join("part"), &four_are_best, 10_000);
        BUDGET.set(None);
        ENTRIES.set(None);
        assert_eq!(other.said.iter().filter(|said| said.ends_with(&known)).count(), 1, "{:?}", other.said);
        let entries = other.outcome.unwrap().unwrap().first_entries.unwrap();
        assert!(expected.contains(&entries), "{budget_s} s: {entries}");
    }
    for (store, entries, only_whole_runs) in [("seldom", 10, false), ("whole", 3000, true)] {
        let run = of(store, entries, only_whole_runs);
        let outcome = run.outcome.unwrap().unwrap();
        assert_eq!((outcome.first_entries, outcome.found.runs[0].median()), (None, Some(3.0)), "{store}");
        assert_eq!(run.said.iter().any(|said| said.contains("too seldom to tell")), store == "seldom");
    }
}

/// Its budget, entries of a whole run, regions, and the store: after how many entries runs are ended.
fn entries_of(budget_s: u64, entries: u64, regions: u64, store: &Path) -> Option<u64> {
    BUDGET.set(Some(Duration::from_secs(budget_s)));
    ENTRIES.set(Some((entries, false)));
    REGIONS.set(regions);
    let run = session(store, &four_are_best, 10_000);
    BUDGET.set(None);
    ENTRIES.set(None);
    REGIONS.set(1);
    run.outcome.unwrap().unwrap().first_entries
}

/// The search takes 49 runs. Seven choices of seats take 105 entries of a region in turns, and five plans and the best configuration four
/// runs each.
#[test]
fn regions_that_are_tuned_after_the_search_have_their_share_of_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let of = |regions: u64| entries_of(100, 3000, regions, &directory.path().join(regions.to_string())).unwrap() as f64;
    let (alone, two) = (of(1), of(2));
    assert!((alone / two - (49.0 + 2.0 + 24.0) / 49.0).abs() < 0.01, "{alone} {two}");
    // None of them has 5 % of the time; entries are rounded down to as many of each.
    assert!((of(30) - alone).abs() < 30.0);
}

#[test]
fn what_regions_take_is_said_before_the_search() {
    let directory = tempfile::tempdir().unwrap();
    for (regions, words) in [(1, ": 2 min"), (2, ": 2 min, and about 78 s for single regions")] {
        ENTRIES.set(Some((3000, true)));
        REGIONS.set(regions);
        let run = session(&directory.path().join(words), &four_are_best, 10_000);
        ENTRIES.set(None);
        REGIONS.set(1);
        let announced = run.said.iter().find(|said| said.contains("configurations (")).unwrap();
        assert!(announced.ends_with(words), "{announced}");
    }
}

#[test]
fn regions_take_no_more_of_the_search_than_it_can_be_told_without() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(entries_of(100, 36, 2, &directory.path().join("few")), Some(20), "24 are in the search's share alone");
}

#[test]
fn runs_end_at_the_same_entry_again_whatever_longer_ones_came_between() {
    let directory = tempfile::tempdir().unwrap();
    let of = |budget_s: u64| entries_of(budget_s, 600, 2, &directory.path().join("s"));
    let first = of(50);
    assert!(of(100) > first);
    assert_eq!(of(50), first);
}

/// As it is, its third run would take for ever.
#[test]
fn a_run_that_takes_the_rest_of_the_budget_is_stopped_and_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    let runs = Cell::new(0);
    let program = |one: Option<&Configuration>| {
        runs.set(runs.get() + u32::from(one.is_none()));
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_none() && runs.get() == 3 { 1e6 } else { seconds }, threads)
    };
    BUDGET.set(Some(Duration::from_secs(1000)));
    let run = session(&store, &program, 10_000);
    BUDGET.set(None);
    let outcome = run.outcome.unwrap().unwrap();
    assert_eq!((outcome.found.runs[0].seconds.len(), outcome.is_complete), (2, false));
    assert!(run.said.contains(&"as it is: stopped, as the time is over".to_owned()), "{:?}", run.said);
    let rest = session(&store, &four_are_best, 10_000);
    assert!(rest.outcome.unwrap().unwrap().is_complete && rest.ran["as it is"] > 0, "it runs anew");
}

/// As it is, its third run would take for ever.
#[test]
fn a_run_that_does_not_come_to_the_last_entry_ends_with_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let runs = Cell::new(0);
    let program = |one: Option<&Configuration>| {
        runs.set(runs.get() + u32::from(one.is_none()));
        let is_stuck = one.is_none() && runs.get() == 3;
        ENTRIES.set(Some((if is_stuck { 10 } else { 3000 }, false)));
        let (end, seconds, threads) = four_are_best(one);
        (end, if is_stuck { 1e6 } else { seconds }, threads)
    };
    BUDGET.set(Some(Duration::from_secs(100)));
    let run = session(&directory.path().join("s"), &program, 10_000);
    BUDGET.set(None);
    ENTRIES.set(None);
    let seconds = &run.outcome.unwrap().unwrap().found.runs[0].seconds;
    assert!(runs.get() > 3 && seconds.iter().all(|&seconds| seconds <= 100.0), "{seconds:?}");
}
