// SPDX-License-Identifier: GPL-2.0-only

use std::fs;

use super::*;
use crate::one_by_one::Contender;
use crate::page_map::Mapped;
use crate::search::{End, Found, Runs};
use crate::space::PagePlacement;
use crate::testing::{self, runs, scattered};

fn subject() -> Subject {
    crate::subject::tests::subject()
}

fn outcome() -> Outcome {
    let configuration = scattered(4, (2, 2), PagePlacement::Interleave);
    let configurations = [configuration, Configuration { threads: 2, ..configuration }];
    let all = [&[4.0, 4.2, 4.1][..], &[2.0, 2.1, 2.05], &[]].map(runs).to_vec();
    Outcome { notes: vec!["careful".into()], ..testing::outcome(&configurations, 1, all) }
}

#[test]
fn a_result_is_read_back_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tandem.toml");
    let tuned = Tuned::new(subject(), &outcome());
    fs::write(&path, tuned.text().unwrap()).unwrap();
    assert_eq!(Tuned::read(&path).unwrap(), tuned);
    assert_eq!(tuned.measured.len(), 2, "what did not run is not there");
    let said = "2.00 times as fast (95 %: 1.90 to 2.10, 3 and 3 runs): too few runs to tell that from chance\n";
    assert!(tuned.text().unwrap().contains(said), "{tuned:?}");
    let evidence = tuned.evidence.clone().map(|evidence| Evidence { runs: [8, 8], ..evidence });
    let of_more_runs = Tuned { evidence, ..tuned.clone() };
    assert_eq!((tuned.gains(), of_more_runs.gains()), (false, true));
    for page_placement in crate::space::ALL {
        let configuration = tuned.configuration.map(|one| Configuration { page_placement, ..one });
        let tuned = Tuned { configuration, ..tuned.clone() };
        fs::write(&path, tuned.text().unwrap()).unwrap();
        assert_eq!(Tuned::read(&path).unwrap(), tuned);
    }
}

#[test]
fn a_plan_for_single_regions_is_read_back_with_its_evidence_and_predictions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tandem.toml");
    let mut outcome = outcome();
    let base = outcome.candidates[1].unwrap();
    let seats = RegionSeats { threads: 2, ..base.into() };
    let plan = Plan { regions: [("main._omp_fn.0".to_owned(), seats)].into(), ..base.into() };
    let contender =
        |plan: &Plan, predicted_s| Contender { plan: Some(plan.clone()), predicted_s, way: "in place".into() };
    let contenders = vec![contender(&base.into(), None), contender(&plan, Some(1.05))];
    let seconds = vec![1.0, 1.1, 1.025];
    let runs = vec![outcome.found.runs[1].clone(), runs(&seconds)];
    let found = Found { best: Some(1), runs, end: End::Decided, choice: testing::CHOICE };
    outcome.one_by_one = Some(OneByOne { contenders, found, regions: vec![], chosen: Some(1) });
    let tuned = Tuned::new(subject(), &outcome);
    fs::write(&path, tuned.text().unwrap()).unwrap();
    let read = Tuned::read(&path).unwrap();
    assert_eq!((read.plan(), &read), (Some(plan.clone()), &tuned));
    let words = tuned.in_words();
    assert!(words.contains("; main._omp_fn.0: 2 threads scatter on 2 nodes: 1.025 s") && words.contains("4.00 times"));
    let [prediction] = &tuned.predictions[..] else { panic!("{tuned:?}") };
    assert_eq!((prediction.real_s, prediction.predicted_s, prediction.runs), (Some(1.025), 1.05, 3));
    assert_eq!(tuned.measured[0].configuration, plan.to_string(), "the fastest of all");
    // One that these runs did not show to be better is evidence, not the result.
    outcome.one_by_one.as_mut().unwrap().chosen = None;
    let tuned = Tuned::new(subject(), &outcome);
    assert_eq!((tuned.plan(), tuned.predictions.len()), (Some(base.into()), 1));
}

#[test]
fn a_file_of_version_2_is_read_and_what_it_does_not_know_is_no_difference() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.toml");
    let tuned = Tuned::new(subject(), &outcome());
    let mut old: toml::Table = tuned.text().unwrap().parse().unwrap();
    old.insert("version".into(), 2.into());
    let of_subject = old["subject"].as_table_mut().unwrap();
    assert!(of_subject.remove("libraries").is_some() && of_subject.remove("variables").is_some());
    of_subject.remove("cpu");
    fs::write(&path, old.to_string()).unwrap();
    let read = Tuned::read(&path).unwrap();
    assert_eq!(read.plan(), tuned.plan());
    assert!(read.subject.differences(&subject()).is_empty());
}

#[test]
fn another_kernel_is_said_and_no_difference_and_none_to_files_that_do_not_know_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    let old = Tuned::new(subject(), &outcome());
    let tuned = old.clone().under(Some("6.18.1".into()));
    for one in [&old, &tuned] {
        fs::write(&path, one.text().unwrap()).unwrap();
        assert_eq!(Tuned::read(&path).unwrap(), *one);
    }
    let said = "it was tuned under Linux 6.18.1, here is Linux 6.12.3";
    assert_eq!(tuned.other_kernel(Some("6.12.3")).as_deref(), Some(said));
    let none = [tuned.other_kernel(Some("6.18.1")), tuned.other_kernel(None), old.other_kernel(Some("6.12.3"))];
    assert_eq!(none, [None, None, None]);
    assert!(tuned.subject.differences(&old.subject).is_empty());
}

#[test]
fn what_failed_in_the_end_is_last_however_fast_it_was() {
    let mut outcome = outcome();
    outcome.found.runs[2] = Runs { failure: Some("oh no".into()), ..runs(&[1.0]) };
    let names: Vec<String> =
        Tuned::new(subject(), &outcome).measured.into_iter().map(|one| one.configuration).collect();
    assert_eq!((names.len(), &names[2]), (3, &name(outcome.candidates[2].as_ref())));
}

#[test]
fn without_a_better_configuration_the_program_as_it_is_is_the_result() {
    let mut outcome = outcome();
    outcome.found.best = Some(0);
    let tuned = Tuned::new(subject(), &outcome);
    assert_eq!((tuned.configuration, &tuned.evidence), (None, &None));
    assert!(tuned.in_words().contains("as it is is the fastest"));
}

#[test]
fn a_result_tells_how_far_its_session_came_though_it_is_the_program_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    for (best, is_complete) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut outcome = outcome();
        let (end, reached) = if is_complete { (End::Near, Reached::End) } else { (End::Stopped, Reached::Search) };
        (outcome.found.best, outcome.found.end, outcome.is_complete) = (Some(best), end, is_complete);
        let tuned = Tuned::new(subject(), &outcome);
        fs::write(&path, tuned.text().unwrap()).unwrap();
        assert_eq!(Tuned::read(&path).unwrap().reached(), reached, "{best}");
        // What was written before there was that word.
        let old = tuned.text().unwrap().replacen("\ncomplete = false\n", "\n", 1).replacen("searched = false\n", "", 1);
        fs::write(&path, old).unwrap();
        let reached = if is_complete || best == 0 { Reached::End } else { Reached::Search };
        assert_eq!(Tuned::read(&path).unwrap().reached(), reached, "{best}");
    }
    let mut cut_off = outcome();
    cut_off.is_complete = false;
    let tuned = Tuned::new(subject(), &cut_off);
    assert_eq!(tuned.reached(), Reached::Regions);
    assert!(!tuned.evidence.unwrap().complete);
    assert!(Reached::Search < Reached::Regions && Reached::Regions < Reached::End);
}

#[test]
fn a_configuration_is_the_result_though_the_program_failed_as_it_is_in_the_end() {
    let mut outcome = outcome();
    outcome.found.runs[0].failure = Some("exit code 9".into());
    let tuned = Tuned::new(subject(), &outcome);
    let words = tuned.in_words();
    assert!(words.starts_with("4 threads scatter on 2 nodes, pages interleave on 2 nodes: 2.050 s"), "{words}");
    assert!(words.ends_with("not compared with the program as it is, which failed: exit code 9"), "{words}");
    assert!(tuned.is_applied() && tuned.text().unwrap().contains(&words));
}

#[test]
fn a_program_placed_by_chance_is_read_back_and_its_main_thread_alone_is_bound_if_nothing_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tandem.toml");
    let runs: Vec<(f64, u32)> = (0..8).map(|run| (1.0 + f64::from(run % 2), run % 2)).collect();
    let bimodal = Bimodal { remedy: Remedy::MainThread, bound_s: Some(1.0), ..Bimodal::of(&runs).unwrap() };
    let mut outcome = Outcome { bimodal: Some(bimodal.clone()), ..outcome() };
    assert_eq!(Tuned::new(subject(), &outcome).main_node(), None, "the configuration binds all threads");
    outcome.found.best = Some(0);
    let tuned = Tuned::new(subject(), &outcome);
    fs::write(&path, tuned.text().unwrap()).unwrap();
    assert_eq!(Tuned::read(&path).unwrap(), tuned);
    assert_eq!((tuned.main_node(), tuned.is_applied()), (Some(0), true));
    assert!(tuned.in_words().ends_with("that was found, with its main thread on node 0 at first"));
    outcome.bimodal = Some(Bimodal { remedy: Remedy::None, ..bimodal });
    let tuned = Tuned::new(subject(), &outcome);
    assert_eq!((tuned.main_node(), tuned.is_applied()), (None, false));
}

#[test]
fn a_map_of_pages_is_read_back_and_stands_at_the_end_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tandem.toml");
    let mapped = |order| Mapped { site: "x+0x10".into(), order, pages: 9, runs: "0-4 on 0, 5-8 on 1".into() };
    let map = PageMap { sampler: "pmu".into(), accesses: 99, allocations: vec![mapped(0), mapped(1)] };
    let tuned = Tuned::new(subject(), &Outcome { page_map: Some(map), ..outcome() });
    let text = tuned.text().unwrap();
    fs::write(&path, &text).unwrap();
    assert_eq!(Tuned::read(&path).unwrap(), tuned);
    let end = "[[page_map.allocation]]\nsite = \"x+0x10\"\norder = 1\npages = 9\nruns = \"0-4 on 0, 5-8 on 1\"\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn what_is_no_result_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    fs::write(&path, "interval_ms = 5\n").unwrap();
    let said = format!("{:#}", Tuned::read(&path).unwrap_err());
    assert!(said.contains("x.toml: is no result of tandem tune"), "{said}");
    let newer = Tuned::new(subject(), &outcome()).text().unwrap().replace("version = 4", "version = 9");
    fs::write(&path, newer).unwrap();
    assert!(Tuned::read(&path).unwrap_err().to_string().contains("version 9"));
}
