// SPDX-License-Identifier: GPL-2.0-only

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::births::MapUse;
use crate::first_touch::{FirstTouch, Remedy};
use crate::launch::End;
use crate::mapping::Profiled;
use crate::page_use::{Name, PageUse, Used};
use crate::space::ALL;
use crate::testing::machine;

mod budget;
mod made_up;
mod refused;

use made_up::*;

/// Seconds: best with four threads on one node.
fn four_are_best(one: Option<&Configuration>) -> (End, f64, usize) {
    let seconds = one.map_or(3.0, |one| {
        2.0 + (one.threads as f64 - 4.0).abs() * 0.1 + one.thread_nodes as f64 * 0.5 + one.page_nodes as f64 * 0.01
    });
    (End::Code(0), seconds, one.map_or(8, |one| one.threads))
}

#[test]
fn the_best_is_found_and_compared_with_the_program_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let run = session(&directory.path().join("s"), &four_are_best, 10_000);
    let outcome = run.outcome.unwrap().unwrap();
    let (best, at) = outcome.best().unwrap();
    assert_eq!((best.threads, best.thread_nodes, best.page_nodes), (4, 1, 1), "{best}");
    let evidence = [0, at].map(|one| outcome.found.evidence(one).unwrap().len());
    assert_eq!(evidence, [4, 4]);
    let counted = run.said.iter().find(|said| said.contains("configurations (")).unwrap();
    assert!(counted.starts_with("26 configurations (72 combinations"), "{counted}");
    assert_eq!(run.said.iter().filter(|said| said.contains("some are left out")).count(), 1);
    assert_eq!(outcome.notes.len(), 1, "{:?}", outcome.notes);
    assert!(outcome.notes[0].starts_with("it has no parallel regions"), "{:?}", outcome.notes);
}

#[test]
fn what_was_measured_is_not_measured_again_wherever_it_was_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let whole = session(&directory.path().join("whole"), &four_are_best, 10_000);
    let all: usize = whole.ran.values().sum();
    for last in [0, 1, 2, 7, all - 1] {
        let store = directory.path().join(format!("{last}"));
        let mut ran = session(&store, &four_are_best, last).ran;
        let rest = session(&store, &four_are_best, 10_000);
        for (name, times) in rest.ran {
            *ran.entry(name).or_default() += times;
        }
        assert_eq!(ran, whole.ran, "stopped after {last} runs");
        assert_eq!(rest.outcome.unwrap(), *whole.outcome.as_ref().unwrap());
    }
}

/// Only what is needed to know the space runs alone.
#[test]
fn rounds_that_run_at_once_find_what_runs_one_by_one_find() {
    let directory = tempfile::tempdir().unwrap();
    let alone = session(&directory.path().join("alone"), &four_are_best, 10_000);
    let rounds = RefCell::new(Vec::new());
    let moved = |_: &Configuration| panic!("nothing is moved");
    let at_once = |store: &str, last| {
        session_on(Some(&rounds), AT_BIRTH, &moved, false, &directory.path().join(store), &four_are_best, last)
    };
    let whole = at_once("whole", 10_000);
    let (one_by_one, found) = (alone.outcome.unwrap().unwrap(), whole.outcome.unwrap().unwrap());
    assert_eq!(found.best(), one_by_one.best());
    let all: usize = whole.ran.values().sum();
    assert_eq!(rounds.take().iter().sum::<usize>() + 2, all, "the program as it is and one other number of threads");
    let stopped = at_once("stopped", 9);
    let rest = at_once("stopped", 10_000);
    let ran: usize = stopped.ran.values().chain(rest.ran.values()).sum();
    assert_eq!((ran, rest.outcome.unwrap().unwrap()), (all, found));
}

#[test]
fn runs_at_once_have_the_maps_and_the_main_threads_node_that_single_runs_have() {
    let directory = tempfile::tempdir().unwrap();
    let of = |rounds: Option<&RefCell<Vec<usize>>>| {
        let store = directory.path().join(if rounds.is_some() { "at once" } else { "alone" });
        PROFILED.set(Some((true, Profiled::Use(page_use()))));
        DRAWS.set(Some((0, 1.5)));
        let program = |one: Option<&Configuration>| {
            let (end, seconds, threads) = four_are_best(one);
            (end, if one.is_none() { 0.5 } else { seconds }, threads)
        };
        let moved = |one: &Configuration| panic!("{one}: nothing is moved where there are maps");
        let run = session_on(rounds, &ALL, &moved, false, &store, &program, 10_000);
        PROFILED.set(None);
        DRAWS.set(None);
        (run.maps, run.profiles, run.outcome.unwrap().unwrap())
    };
    let (alone, at_once) = (of(None), of(Some(&RefCell::default())));
    assert!(alone.0.len() > 3, "{:?}", alone.0);
    assert_eq!((&at_once.0, &at_once.1), (&alone.0, &alone.1));
    assert_eq!(at_once.2.bimodal.as_ref().map(|bimodal| bimodal.remedy), Some(Remedy::MainThread));
    assert_eq!(at_once.2.bimodal, alone.2.bimodal);
}

/// It takes more than twice as long as the best one, which is when others are stopped.
#[test]
fn the_program_as_it_is_runs_to_its_end_in_rounds_too_and_once() {
    let directory = tempfile::tempdir().unwrap();
    let program = |one: Option<&Configuration>| {
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_none() { 3.0 * seconds } else { seconds }, threads)
    };
    let moved = |_: &Configuration| panic!("nothing is moved");
    let (alone, at_once) = (directory.path().join("alone"), directory.path().join("at once"));
    let alone = session(&alone, &program, 10_000);
    let rounds = RefCell::default();
    let at_once = session_on(Some(&rounds), AT_BIRTH, &moved, false, &at_once, &program, 10_000);
    let as_it_is = |run: &Run| run.ran[&name(None)];
    assert_eq!(as_it_is(&at_once), as_it_is(&alone));
}

#[test]
fn a_stopped_run_is_kept_with_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let program = |one: Option<&Configuration>| {
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_some_and(|one| one.thread_nodes == 2) { 60.0 } else { seconds }, threads)
    };
    let runs = ["s", "s"].map(|store| session(&directory.path().join(store), &program, 10_000).outcome.unwrap());
    assert!(runs[0].as_ref().unwrap().found.runs.iter().any(|runs| runs.slower_than.is_some_and(|limit| limit < 7.0)));
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn a_configuration_that_fails_is_told_and_the_search_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let program = |one: Option<&Configuration>| match one {
        Some(one) if one.threads == 8 => (End::Code(3), 0.1, 8),
        _ => four_are_best(one),
    };
    let outcome = session(&directory.path().join("s"), &program, 10_000).outcome.unwrap().unwrap();
    assert_eq!(outcome.best().unwrap().0.threads, 4);
    let told = outcome.notes.iter().filter(|note| note.contains("exit code 3, its last words: oh no")).count();
    assert_eq!(told, if births::POSSIBLE { 8 } else { 6 }, "{:?}", outcome.notes);
}

/// What keeps a run from taking place may be gone the next time.
#[test]
fn a_configuration_that_cannot_be_set_up_has_failed_and_is_tried_again_by_the_next_session() {
    let directory = tempfile::tempdir().unwrap();
    NOT_SET_UP.set(Some(8));
    let run = session(&directory.path().join("s"), &four_are_best, 10_000);
    NOT_SET_UP.set(None);
    let outcome = run.outcome.unwrap().unwrap();
    assert_eq!(outcome.best().unwrap().0.threads, 4);
    let told = outcome.notes.iter().filter(|note| note.contains("it failed: it could not be run: no seat is left"));
    assert!(told.count() > 0, "{:?}", outcome.notes);
    assert!(run.said.iter().any(|said| said.contains("8 threads") && said.contains("it could not be run")));
    let again = session(&directory.path().join("s"), &four_are_best, 10_000);
    assert!(again.ran.keys().any(|name| name.starts_with("8 threads")), "{:?}", again.ran);
    assert!(again.outcome.unwrap().unwrap().notes.iter().all(|note| !note.contains("failed")));
}

#[test]
fn a_configuration_that_cannot_be_set_up_elsewhere_has_failed_and_is_asked_for_once() {
    let directory = tempfile::tempdir().unwrap();
    let rounds = RefCell::new(Vec::new());
    let moved = |_: &Configuration| panic!("nothing is moved");
    NOT_SET_UP.set(Some(8));
    let store = directory.path().join("s");
    let run = session_on(Some(&rounds), AT_BIRTH, &moved, false, &store, &four_are_best, 10_000);
    NOT_SET_UP.set(None);
    let outcome = run.outcome.unwrap().unwrap();
    assert_eq!(outcome.best().unwrap().0.threads, 4);
    let in_vain = run.said.iter().filter(|said| said.ends_with("it could not be run: no seat is left")).count();
    let failed = outcome.found.runs.iter().filter(|runs| runs.failure.is_some()).count();
    assert!(failed > 0 && in_vain == failed, "{in_vain} for {failed}");
}

#[test]
fn a_program_that_failed_as_it_is_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    assert!(session(&store, &|_| (End::Code(1), 1.0, 1), 10_000).outcome.is_err());
    assert!(session(&store, &four_are_best, 10_000).outcome.unwrap().is_some());
}

#[test]
fn a_program_with_its_own_number_of_threads_is_tuned_with_that() {
    let directory = tempfile::tempdir().unwrap();
    let program = |one: Option<&Configuration>| (End::Code(0), four_are_best(one).1, 6);
    for (command_has_threads, advice) in [
        (false, "(write {threads} where the command takes it)"),
        (true, "(nor does {threads} in its command change it)"),
    ] {
        let store = directory.path().join(format!("{command_has_threads}"));
        let outcome = session_of(command_has_threads, &store, &program, 10_000).outcome.unwrap().unwrap();
        assert!(outcome.candidates.iter().flatten().all(|one| one.threads == 6), "{:?}", outcome.candidates);
        let note = &outcome.notes[0];
        assert!(note.contains("6 threads at a time") && note.ends_with(advice), "{note}");
    }
}

/// Asked for two threads it fails early, or takes for ever, with as many as it had by then.
#[test]
fn a_run_that_did_not_end_well_does_not_fix_the_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    for (store, end, seconds) in [("fails", End::Code(3), 0.1), ("hangs", End::Code(0), 1e6)] {
        let program = |one: Option<&Configuration>| match one {
            Some(one) if one.threads == 2 => (end.clone(), seconds, 1),
            _ => four_are_best(one),
        };
        let outcome = session(&directory.path().join(store), &program, 10_000).outcome.unwrap().unwrap();
        assert_eq!(outcome.best().unwrap().0.threads, 4, "{store}: {:?}", outcome.notes);
        let is_unknown = outcome.notes.iter().any(|note| note.contains("whether the program follows"));
        assert_eq!(is_unknown, store == "hangs", "four threads tell: {:?}", outcome.notes);
    }
}

/// It has as many threads as it is told to, but never more than four.
#[test]
fn a_program_that_caps_its_threads_is_not_said_to_have_more() {
    let directory = tempfile::tempdir().unwrap();
    let program = |one: Option<&Configuration>| {
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_some_and(|one| one.threads == 8) { 1.0 } else { seconds }, threads.min(4))
    };
    let run = session(&directory.path().join("s"), &program, 10_000);
    let outcome = run.outcome.unwrap().unwrap();
    assert_eq!(outcome.best().unwrap().0.threads, 8);
    let said = |words: &str| run.said.iter().filter(|said| said.contains(words)).count();
    assert!(said("8 threads") > 1 && said("8 threads") == said(", 4 threads"), "{:?}", run.said);
    let note = "asked for 8 threads the program has 4 at a time: what is said of 8 threads is of these";
    assert!(outcome.notes.iter().any(|note_of| note_of == note), "{:?}", outcome.notes);
    assert!(
        session(&directory.path().join("t"), &four_are_best, 10_000)
            .outcome
            .unwrap()
            .unwrap()
            .notes
            .iter()
            .all(|note| !note.contains("asked for"))
    );
}

/// The first three runs as they are begin on the node where the program is fast, and all later ones elsewhere.
#[test]
fn what_more_runs_as_they_are_show_decides_again() {
    let directory = tempfile::tempdir().unwrap();
    let runs = Cell::new(0);
    let program = |one: Option<&Configuration>| {
        let (end, _, threads) = four_are_best(one);
        if one.is_none() {
            runs.set(runs.get() + 1);
            DRAWS.set(Some((u32::from(runs.get() <= 3), 2.0)));
        }
        (end, if one.is_none() { 2.49 } else { 2.5 }, threads)
    };
    DRAWS.set(Some((1, 2.0)));
    let outcome = session(&directory.path().join("s"), &program, 10_000).outcome.unwrap().unwrap();
    DRAWS.set(None);
    let (as_it_is, best) = (&outcome.found.runs[0], outcome.best().map(|(_, best)| &outcome.found.runs[best]));
    assert_eq!((as_it_is.seconds.len(), as_it_is.median()), (10, Some(4.98)));
    assert_eq!(best.and_then(search::Runs::median), Some(2.5), "{:?}", outcome.notes);
    assert_eq!(outcome.bimodal.unwrap().remedy, Remedy::Configuration);
}

#[test]
fn before_the_first_run_it_is_said_that_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let words = "the program runs once as it is, to see how long it takes";
    let run = session(&directory.path().join("s"), &four_are_best, 10_000);
    assert!(run.said[0].starts_with(words) && run.said[0].contains("--budget TIME"), "{:?}", run.said);
    let again = session(&directory.path().join("s"), &four_are_best, 10_000);
    assert!(again.said.iter().all(|said| !said.starts_with(words)), "it is known: {:?}", again.said);
}

#[test]
fn a_lottery_is_told_and_what_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let draws = Cell::new(0);
    let program = |one: Option<&Configuration>| {
        draws.set(draws.get() + usize::from(one.is_none()));
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_none() && draws.get().is_multiple_of(2) { 2.0 * seconds } else { seconds }, threads)
    };
    let outcome = session(&directory.path().join("s"), &program, 10_000).outcome.unwrap().unwrap();
    assert!(
        outcome.notes.iter().any(|note| note.contains("3.000 to 6.000 s") && note.contains("chance")),
        "{:?}",
        outcome.notes
    );
}

/// The program is fastest as it is if its main thread is lucky.
#[test]
fn a_program_placed_by_chance_gets_its_main_thread_bound_where_it_is_fast() {
    let directory = tempfile::tempdir().unwrap();
    let of = |store: &str, factor: f64, as_it_is_s: f64| {
        DRAWS.set(Some((0, factor)));
        let program = |one: Option<&Configuration>| {
            let (end, seconds, threads) = four_are_best(one);
            (end, if one.is_none() { as_it_is_s } else { seconds }, threads)
        };
        let run = session(&directory.path().join(store), &program, 10_000);
        DRAWS.set(None);
        run
    };
    let run = of("lucky", 1.5, 1.0);
    let outcome = run.outcome.unwrap().unwrap();
    let bimodal = outcome.bimodal.as_ref().unwrap();
    assert_eq!((outcome.best(), bimodal.remedy, bimodal.node), (None, Remedy::MainThread, 1));
    assert_eq!(bimodal.bound_s, Some(1.0));
    assert!(outcome.notes.iter().any(|note| note.contains("on node 1: 5 runs, 1.000 to 1.000 s; on node 0: 5 runs")));
    assert!(outcome.notes.iter().all(|note| !note.contains("placement by chance is what differs")), "said once");
    assert!(run.said.iter().any(|said| said.starts_with("as it is, main thread first on node 1: 1.000 s")));
    let again = of("lucky", 1.5, 1.0);
    assert_eq!((again.ran.len(), again.outcome.unwrap().unwrap().bimodal), (0, outcome.bimodal), "all is known");
    NOT_SET_UP.set(Some(0));
    let run = of("unbound", 1.5, 1.0);
    NOT_SET_UP.set(None);
    let bimodal = run.outcome.unwrap().unwrap().bimodal.unwrap();
    assert_eq!((bimodal.remedy, bimodal.bound_s), (Remedy::None, None), "it cannot be bound, and the session goes on");
    assert!(run.said.iter().any(|said| said.ends_with("on node 1: it could not be run: no seat is left")));
    for (store, second) in [("slow", (End::Code(0), 100.0)), ("failed", (End::Code(1), 1.0))] {
        BOUND.set([vec![(End::Code(0), 1.0)], vec![second; 3]].concat());
        let bimodal = of(&format!("bound and {store}"), 1.5, 1.0).outcome.unwrap().unwrap().bimodal.unwrap();
        assert_eq!(bimodal.remedy, Remedy::None, "{store}");
    }
    BOUND.take();
    // A configuration that is faster binds the main thread anyway: its first seat is on node 0.
    let outcome = of("slow", 1.5, 5.0).outcome.unwrap().unwrap();
    let bimodal = outcome.bimodal.unwrap();
    assert_eq!((outcome.found.best.is_some(), bimodal.remedy, bimodal.node), (true, Remedy::Configuration, 0));
    let outcome = of("alike", 1.0, 1.0).outcome.unwrap().unwrap();
    assert_eq!(outcome.bimodal, None);
}

/// The first half of an allocation is used by all threads but the first one, the second half by that.
fn page_use() -> PageUse {
    let uses = (0..1024).map(|page| (page, if page < 512 { 1 + page as usize % 3 } else { 0 }, 9)).collect();
    PageUse {
        sampler: "made up".into(),
        allocations: vec![Used { name: Name { site: "p".into(), order: 0 }, pages: 1024, uses }],
    }
}

/// As good as can be where pages are placed by who uses them.
fn by_use_is_best(one: Option<&Configuration>) -> (End, f64, usize) {
    let (end, seconds, threads) = four_are_best(one);
    (end, if one.is_some_and(Configuration::needs_moving) { seconds - 1.0 } else { seconds }, threads)
}

fn with_maps(store: &Path, can_move: bool, profiled: Profiled, last: usize) -> Run {
    PROFILED.set(Some((can_move, profiled)));
    let run = session_with(&ALL, &|_| Ok(17), false, store, &by_use_is_best, last);
    PROFILED.set(None);
    run
}

#[test]
fn pages_go_by_a_map_that_is_made_once_for_each_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    let part = with_maps(&store, true, Profiled::Use(page_use()), 12);
    let mut run = with_maps(&store, true, Profiled::Use(page_use()), 10_000);
    run.maps.extend(part.maps);
    let (mut profiles, outcome) = ([part.profiles, run.profiles].concat(), run.outcome.unwrap().unwrap());
    profiles.sort_unstable();
    assert_eq!(profiles, [2, 4, 8], "interrupted or not");
    assert!([part.said, run.said].concat().iter().all(|said| !said.contains("pages moved")));
    let (best, _) = outcome.best().unwrap();
    assert!(best.needs_moving(), "{best}");
    assert_eq!(outcome.page_map.as_ref(), run.maps.get(&best.to_string()));
    assert!(outcome.notes.iter().any(|note| note.contains("by a map of 1 allocation from 9216 accesses")));
    let runs_of = |name: &str| run.maps[name].allocations[0].runs.as_str();
    // The four that use it are on node 0.
    let name = "8 threads contiguous on 2 nodes, pages locality on 2 nodes";
    assert_eq!(runs_of(name), "0-1023 on 0");
    assert!(runs_of("4 threads scatter on 1 node, pages balance on 2 nodes").contains(" on 1"));
    // By the mover it would be another measurement.
    let moved = session_with(&ALL, &|_| Ok(17), false, &store, &by_use_is_best, 10_000);
    assert!(moved.ran.contains_key(name) && moved.outcome.unwrap().unwrap().page_map.is_none());
}

#[test]
fn where_no_map_can_be_made_pages_are_moved_or_not_placed_by_use_and_it_is_said() {
    let directory = tempfile::tempdir().unwrap();
    for can_move in [true, false] {
        let store = directory.path().join(format!("{can_move}"));
        let run = with_maps(&store, can_move, Profiled::Impossible("too little".into()), 10_000);
        let outcome = run.outcome.unwrap().unwrap();
        let note =
            outcome.notes.iter().find(|note| note.starts_with("no map of pages can be made: too little; ")).unwrap();
        assert_eq!(run.profiles.len(), 1, "it is not tried again and again");
        assert_eq!(outcome.candidates.iter().flatten().any(Configuration::needs_moving), can_move, "{note}");
        assert_eq!(note.contains("moved while it runs instead"), can_move, "{note}");
        assert_eq!(run.said.iter().any(|said| said.ends_with("17 pages moved")), can_move);
    }
}

#[test]
fn a_program_that_allocates_otherwise_than_its_map_has_failed_under_it_in_words() {
    let directory = tempfile::tempdir().unwrap();
    MAP_USE.set(MapUse { mapped_pages: 9, map_pages: 20, unknown: Some("oh dear".into()), other_size: None });
    let run = with_maps(&directory.path().join("s"), false, Profiled::Use(page_use()), 10_000);
    let outcome = run.outcome.unwrap().unwrap();
    assert!(outcome.best().is_some_and(|(best, _)| !best.needs_moving()) && outcome.page_map.is_none());
    let failed = "it failed: its allocations are not those that were profiled: 9 of 20 pages";
    assert!(
        outcome.notes.iter().any(|note| note.contains(failed) && note.ends_with("(oh dear)")),
        "{:?}",
        outcome.notes
    );
    // Most of it is right: the run counts, and it is said.
    MAP_USE.set(MapUse { mapped_pages: 19, map_pages: 20, ..MapUse::default() });
    let run = with_maps(&directory.path().join("other"), false, Profiled::Use(page_use()), 10_000);
    MAP_USE.set(MapUse::default());
    assert!(run.outcome.unwrap().unwrap().page_map.is_some());
    assert!(
        run.said.iter().any(|said| said.contains(" s; its allocations are not those") && said.contains("19 of 20"))
    );
}

#[test]
fn places_are_those_of_the_configuration() {
    let topology = machine(2, 2);
    let all = Space::of(&topology, 4, &ALL).configurations(&topology);
    assert!(ALL.iter().all(|&placement| all.iter().any(|one| one.page_placement == placement)), "{all:?}");
    for one in &all {
        let places = Places::of(&(*one).into(), &topology);
        assert_eq!((places.threads, places.seats.len()), (Some(one.threads), one.threads));
        let bound = one.page_placement == PagePlacement::Interleave;
        assert_eq!(places.page_nodes, if bound { (0..one.page_nodes as u32).collect() } else { vec![] });
        let cut = one.page_placement == PagePlacement::Dataset;
        let seats: Vec<u32> = one.seats(&topology).iter().map(|node| node.0 as u32).collect();
        let chunks = if one.page_nodes == one.thread_nodes { seats } else { vec![0, 1] };
        assert_eq!(places.chunks, if cut { chunks } else { vec![] }, "{one}");
    }
}

#[test]
fn pages_of_one_node_are_there_from_the_start_whatever_their_rule() {
    let topology = machine(2, 2);
    for placement in [PagePlacement::Balance, PagePlacement::Mix, PagePlacement::Dataset] {
        let all = Space::of(&topology, 4, &[placement]).configurations(&topology);
        let (on_one, on_two): (Vec<&Configuration>, Vec<_>) = all.iter().partition(|one| one.page_nodes == 1);
        let placed = |one: &Configuration| Places::of(&(*one).into(), &topology);
        assert!(on_one.iter().all(|one| !one.needs_moving() && placed(one).page_nodes == [0]));
        assert!(on_two.iter().all(|one| placed(one).page_nodes.is_empty()));
        assert!(on_two.iter().all(|one| one.needs_moving() != (placement == PagePlacement::Dataset)));
        assert!(!on_one.is_empty() && !on_two.is_empty());
    }
}

#[test]
fn a_run_whose_pages_nobody_moved_any_more_has_failed_and_the_search_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let moved = |one: &Configuration| match one.page_placement {
        PagePlacement::Mix => Err("scx_tandem did not end well: oh dear".to_owned()),
        _ => Ok(17),
    };
    // As good as can be where pages are moved.
    let program = |one: Option<&Configuration>| {
        let (end, seconds, threads) = four_are_best(one);
        (end, if one.is_some_and(Configuration::needs_moving) { seconds - 1.0 } else { seconds }, threads)
    };
    let run =
        |last| session_with(&ALL, &moved, false, &directory.path().join(format!("s{}", last > 99)), &program, last);
    let (whole, part) = (run(10_000), run(20));
    let outcome = whole.outcome.unwrap().unwrap();
    let (best, _) = outcome.best().unwrap();
    assert!(best.needs_moving() && best.page_placement != PagePlacement::Mix, "{best}");
    assert!(
        whole.said.iter().any(|said| said.contains("pages balance on 2 nodes: ") && said.ends_with("17 pages moved"))
    );
    let failed =
        |note: &&String| note.contains("pages mix on 2 nodes: it failed: scx_tandem did not end well: oh dear");
    let runs_of = |one: &&Configuration| whole.ran[&one.to_string()];
    let mixed: Vec<&Configuration> =
        outcome.candidates.iter().flatten().filter(|one| one.page_placement == PagePlacement::Mix).collect();
    assert!(mixed.iter().all(|one| runs_of(one) == 1) && !mixed.is_empty());
    assert_eq!(outcome.notes.iter().filter(failed).count(), mixed.len(), "{:?}", outcome.notes);
    // Interrupted, what is left is measured, and nothing twice.
    let store = directory.path().join("sfalse");
    let rest = session_with(&ALL, &moved, false, &store, &program, 10_000);
    let mut ran = part.ran;
    rest.ran.into_iter().for_each(|(name, times)| *ran.entry(name).or_default() += times);
    assert_eq!(ran, whole.ran);
    assert_eq!(rest.outcome.unwrap().unwrap(), outcome);
}

#[test]
fn a_machine_that_is_slower_than_the_others_is_among_the_notes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("s"), &"one").unwrap();
    for configuration in 0..10 {
        for (attempt, (host, seconds)) in [("first", 1.0), ("second", 1.5)].into_iter().enumerate() {
            let reading = Reading::Seconds(seconds);
            let row = Row { reading, seconds, host: Some(host.to_owned()), ..Row::failed(String::new()) };
            store.keep(&format!("{configuration} threads"), attempt, &row).unwrap();
        }
    }
    let (topology, stop) = (machine(2, 4), Stop::default());
    let session = crate::testing::session(&topology, &store, &stop, &|_, _, _| panic!("nothing runs"));
    let found = Found { best: None, runs: vec![], end: search::End::Stopped, choice: crate::testing::CHOICE };
    let notes = session.notes_of(&[], &found).unwrap();
    assert!(notes[0].starts_with("second takes 50 % longer than the other machines"), "{notes:?}");
}
