// SPDX-License-Identifier: GPL-2.0-only

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tandem_ab::stop::Stop;
use tandem_policies::model::Topology;

use super::*;
use crate::conflicts::resolve;
use crate::launch::{End, Limit, Seen};
use crate::places::Places;
use crate::plan::Turn;
use crate::session::{AT_BIRTH, Ran, Replay, Replayer, plan_name};
use crate::space::PagePlacement;
use crate::space::ThreadPlacement::{Contiguous, Scatter};
use crate::store::Store;
use crate::testing::{self, machine, scattered, trial};

/// Outside of regions.
const SERIAL_S: f64 = 0.2;

/// Seconds of an entry (its number is last) of a region with these seats, its pages as this configuration has them.
type EntrySeconds<'a> = &'a dyn Fn(&str, &RegionSeats, &Configuration, usize) -> f64;

/// A made-up program with regions `a` and `b` on two nodes of four CPUs.
struct Made<'a> {
    seconds: EntrySeconds<'a>,
    /// Of each region, a run.
    entries: usize,
    /// The number of threads that `b` gives itself.
    own_threads: Option<usize>,
    /// What a run costs in which both regions have seats of their own, in s.
    both_own_s: f64,
    /// What keeps checkpoints from being made of it; they are not wished if none.
    checkpoints: Option<Result<(), &'a str>>,
}

impl<'a> Made<'a> {
    fn of(seconds: EntrySeconds<'a>) -> Self {
        Self { seconds, entries: 400, own_threads: None, both_own_s: 0.0, checkpoints: None }
    }

    /// What the replay of an entry shows.
    fn replay(&self, asked: &Replay) -> Ran {
        self.checkpoints.unwrap_or(Err("nobody wishes that"))?;
        let region = &asked.entry.region;
        let plans = [&asked.base, &asked.plan];
        assert!(plans.iter().all(|plan| plan.regions.len() == 1 && plan.most_threads() <= asked.threads));
        assert_eq!(asked.base.regions[region], asked.base.base.into());
        assert_eq!([&asked.base_places, &asked.places].map(|places| places.threads), [Some(asked.threads); 2]);
        let seconds =
            (self.seconds)(region, &asked.plan.regions[region], &asked.base.base, asked.entry.number as usize);
        let is_late = asked.limit.time.is_some_and(|limit| seconds > limit.as_secs_f64());
        Ok(trial(Seen::of(if is_late { End::TooLong } else { End::Measured }, seconds)))
    }

    /// What a run of it shows.
    fn run(&self, plan: Option<&Plan>) -> Seen {
        let as_it_is = scattered(8, (2, 2), PagePlacement::FirstTouch);
        let base = plan.map_or(as_it_is, |plan| plan.base);
        let slower = if plan.is_none() { 1.2 } else { 1.0 };
        let both = plan.is_some_and(|plan| plan.regions.len() == 2);
        let (mut all_s, mut regions) = (SERIAL_S + if both { self.both_own_s } else { 0.0 }, Vec::new());
        for name in ["a", "b"] {
            let own_threads = self.own_threads.filter(|_| name == "b");
            let own = plan.and_then(|plan| plan.regions.get(name).copied()).unwrap_or(base.into());
            let turns = plan.and_then(|plan| plan.turns.as_ref()).filter(|turns| turns.region == name);
            let mut region = Region { name: name.into(), own_threads, ..Region::default() };
            region.samples = vec![Vec::new(); turns.map_or(0, |turns| turns.choices.len())];
            for entry in 0..self.entries {
                let turn = turns.map(|turns| (turns, Turn::of(entry, turns.first, turns.choices.len())));
                let seats = turn.map_or(own, |(turns, turn)| turns.choices[turn.choice]);
                let took = slower * (self.seconds)(name, &seats, &base, entry);
                if let Some((_, turn)) = turn.filter(|turn| turn.1.is_measured) {
                    region.samples[turn.choice].push(took);
                }
                region.entries += 1;
                region.seconds += took;
            }
            all_s += region.seconds;
            regions.push(region);
        }
        let end = if plan.is_some_and(|plan| plan.turns.is_some()) { End::Measured } else { End::Code(0) };
        Seen { threads: base.threads.max(2), regions, ..Seen::of(end, all_s) }
    }
}

struct Tuned {
    outcome: Option<Outcome>,
    /// How often what was really run.
    ran: BTreeMap<String, usize>,
}

impl Tuned {
    fn outcome(&self) -> &Outcome {
        self.outcome.as_ref().unwrap()
    }

    fn one_by_one(&self) -> &OneByOne {
        self.outcome().one_by_one.as_ref().unwrap()
    }

    fn has_noted(&self, words: &str) -> bool {
        self.outcome().notes.iter().any(|note| note.contains(words))
    }
}

/// Tunes it, until the `last` run.
fn tune(made: &Made, store: &Path, last: usize) -> Tuned {
    tune_within(None, made, store, last)
}

/// Tunes it within this time, of which the first run with turns takes all.
fn tune_within(budget: Option<Duration>, made: &Made, store: &Path, last: usize) -> Tuned {
    let started = Instant::now();
    let (topology, stop) = (machine(2, 4), Stop::default());
    let (ran, left) = (RefCell::new(BTreeMap::new()), Cell::new(last));
    let run = |plan: Option<&Plan>, _: &Places, limit: Limit| {
        assert!(plan.is_none() || limit.time.is_some(), "one that waits for ever under {plan:?} would not be stopped");
        let mut seen = made.run(plan);
        if let Some(budget) = budget.filter(|_| plan.is_some_and(|plan| plan.turns.is_some())) {
            std::thread::sleep(budget.saturating_sub(started.elapsed()));
        }
        if left.get() == 0 {
            stop.wish();
            seen.end = End::Stopped;
        } else {
            left.set(left.get() - 1);
            *ran.borrow_mut().entry(plan_name(plan)).or_default() += 1;
            if limit.time.is_some_and(|limit| seen.seconds > limit.as_secs_f64()) {
                seen.end = End::TooLong;
            }
        }
        Ok(Ok(trial(seen)))
    };
    let replay = |asked: &Replay| {
        *ran.borrow_mut().entry(format!("{} replayed", asked.plan)).or_default() += 1;
        Ok(made.replay(asked))
    };
    let replay: &Replayer = &replay;
    let replay = made.checkpoints.map(|_| replay);
    let store = Store::open(store, &"made").unwrap();
    let session = Session { started, budget, replay, ..testing::session(&topology, &store, &stop, &run) };
    let outcome = session.tune().unwrap();
    Tuned { outcome, ran: ran.into_inner() }
}

fn tuned(made: &Made) -> Tuned {
    let directory = tempfile::tempdir().unwrap();
    tune(made, &directory.path().join("store"), usize::MAX)
}

/// Every base with every seats of both regions, one after the other: the least time.
fn brute_force_s(made: &Made, topology: &Topology) -> f64 {
    let space = Space::of(topology, 8, AT_BIRTH);
    let seats = RegionSeats::all(&space.threads, topology);
    let mut least = f64::INFINITY;
    for base in space.configurations(topology) {
        for a in &seats {
            for b in &seats {
                let entry_s = (made.seconds)("a", a, &base, 0) + (made.seconds)("b", b, &base, 0);
                least = least.min(SERIAL_S + made.entries as f64 * entry_s);
            }
        }
    }
    least
}

/// By seed: what each region takes with which seats, and how much more where its pages are not as it wants them: `a`
/// interleaved over both nodes, `b` all on one.
fn table(seed: u64) -> impl Fn(&str, &RegionSeats, &Configuration, usize) -> f64 {
    let topology = machine(2, 4);
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut between = |low: f64, high: f64| low + (high - low) * (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let all = RegionSeats::all(&[2, 4, 8], &topology);
    let seconds: Vec<[f64; 2]> = all.iter().map(|_| [between(1e-3, 1.9e-3), between(1e-3, 1.9e-3)]).collect();
    let elsewhere = [between(1.0, 1.5), between(1.0, 1.5)];
    move |name, seats, base, _| {
        let region = usize::from(name == "b");
        let at = all.iter().position(|one| one == seats).unwrap();
        let likes = base.page_placement == PagePlacement::Interleave && base.page_nodes == 2 - region
            || region == 1 && base.page_nodes == 1;
        let first_touch = base.page_placement == PagePlacement::FirstTouch && base.page_nodes == 2;
        let pages = if likes { 1.0 } else { elsewhere[region] + if first_touch { 0.5 } else { 0.0 } };
        seconds[at][region] * pages
    }
}

#[test]
fn the_final_choice_is_the_one_that_brute_force_finds() {
    let topology = machine(2, 4);
    let (mut by_region, mut in_conflict) = (0, 0);
    for seed in 0..20 {
        let seconds = table(seed);
        let made = Made::of(&seconds);
        let tuned = tuned(&made);
        let (_, runs) = tuned.outcome().plan().unwrap();
        let (found, least) = (runs.median().unwrap(), brute_force_s(&made, &topology));
        assert!((found / least - 1.0).abs() < 1e-9, "seed {seed}: {found} s, not {least} s");
        // Without one no other seats promise anything.
        let one_by_one = tuned.outcome().one_by_one.as_ref();
        let is_by_region = one_by_one.is_some_and(|all| all.chosen.is_some());
        by_region += usize::from(is_by_region);
        let in_regions: f64 = apart::regions(tuned.outcome()).iter().map(|region| region.tuned_s).sum();
        assert!((SERIAL_S + in_regions - found).abs() < 1e-6, "seed {seed}: times are those of what was chosen");
        in_conflict += usize::from(tuned.has_noted("with its pages elsewhere"));
        assert_eq!(tuned.has_noted("within 0.0 %"), one_by_one.is_some(), "what was predicted is so");
    }
    assert!(by_region > 10 && in_conflict > 10, "{by_region} and {in_conflict} of 20");
}

#[test]
fn the_best_predicted_plan_is_what_branch_and_bound_finds_under_the_rule_that_pages_agree() {
    let mut rng = Pcg64::seed_from_u64(3);
    let topology = machine(2, 4);
    let all = RegionSeats::all(&[2, 4, 8], &topology);
    let configurations = Space::of(&topology, 8, AT_BIRTH).configurations(&topology);
    for _ in 0..200 {
        let mut random = || 1.0 + (rng.next_u64() >> 40) as f64 / (1 << 24) as f64;
        let bases = [0, 4, 9].map(|at| Base { configuration: configurations[at], seconds: 8.0, regions: vec![] });
        let table = |random: &mut dyn FnMut() -> f64, region: usize| {
            let choices: Vec<_> = all.iter().map(|seats| (*seats, random())).collect();
            Table { region: region.to_string(), entries: 1, base_s: choices[0].1, choices, way: String::new() }
        };
        let tables = bases.each_ref().map(|_| [0, 1, 2].map(|region| table(&mut random, region)));
        let plans =
            bases.iter().zip(&tables).flat_map(|(base, tables)| predicted(base, tables)).map(|one| (false, one));
        let best = chosen_to_run(plans.collect())[0].predicted_s.unwrap();
        // By region, all choices under all bases; the rest of the program is shared out among the regions.
        let rest = |base: usize| (8.0 - tables[base].iter().map(|table| table.base_s).sum::<f64>()) / 3.0;
        let of = |region: usize| {
            let under = |base: usize| tables[base][region].choices.iter().map(move |one| (base, one.1));
            (0..3).flat_map(under).map(|(base, seconds)| Some(seconds + rest(base))).collect::<Vec<_>>()
        };
        let seconds: Vec<Vec<Option<f64>>> = (0..3).map(of).collect();
        let base = |choice: usize| choice / all.len();
        let chosen = resolve(&seconds, |one, other| base(one.1) == base(other.1)).unwrap();
        let least: f64 = chosen.iter().enumerate().map(|(region, &choice)| seconds[region][choice].unwrap()).sum();
        assert!((best - least).abs() < 1e-9, "{best} {least}");
    }
}

/// `a` is known by whole runs, and gains a little with seven of its choices; each choice of `b` loses.
#[test]
fn plans_that_are_known_do_not_keep_predicted_ones_from_running() {
    let topology = machine(2, 4);
    let (all, configurations) = (RegionSeats::all(&[2, 4, 8], &topology), Space::of(&topology, 8, AT_BIRTH));
    let table = |region: &str, way: &str, step: f64| {
        let choices = all.iter().enumerate().map(|(at, seats)| (*seats, 1.0 + step * at as f64)).collect();
        Table { region: region.into(), entries: 1, base_s: 1.0, choices, way: way.into() }
    };
    let base = Base { configuration: configurations.configurations(&topology)[0], seconds: 8.0, regions: vec![] };
    let tables = [table("a", WHOLE, -1e-6), table("b", "in place", 0.1)];
    let run = chosen_to_run(predicted(&base, &tables).into_iter().map(|one| (false, one)).collect());
    let (known, foretold): (Vec<&Contender>, Vec<_>) = run.iter().partition(|one| one.predicted_s.is_none());
    assert_eq!((known.len(), foretold.len()), (all.len().min(RUN + 1) - 1, RUN), "{run:?}");
    assert!(foretold.iter().all(|one| one.plan.as_ref().unwrap().regions.contains_key("b")));
}

#[test]
fn what_runs_show_decides_and_not_what_was_predicted() {
    let seconds = table(1);
    let made = Made::of(&seconds);
    let plan = tuned(&made).outcome().plan().unwrap().0;
    assert_eq!(plan.regions.len(), 2, "{plan}");
    let tuned = tuned(&Made { both_own_s: 0.4, ..made });
    let one_by_one = tuned.one_by_one();
    let predicted = one_by_one.predictions();
    assert!(predicted.iter().any(|one| one.real_s.is_some_and(|real| real > one.predicted_s + 0.3)), "{predicted:?}");
    assert!(tuned.outcome().plan().unwrap().0.regions.len() < 2, "{predicted:?}");
}

#[test]
fn a_region_is_measured_in_one_run_in_several_or_by_whole_runs_as_its_entries_allow() {
    let seconds = table(1);
    for (entries, way) in [(400, "in place"), (30, "in place in 4 runs"), (2, "whole runs")] {
        let scaled = |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| {
            seconds(name, seats, base, entry) * 400.0 / entries as f64
        };
        let made = Made { entries, ..Made::of(&scaled) };
        let tuned = tuned(&made);
        let predictions = tuned.one_by_one().predictions();
        assert!(!predictions.is_empty() && predictions.iter().all(|one| one.way == way), "{predictions:?}");
        let of_one_region = predictions.iter().filter(|one| one.plan.matches("; ").count() == 1).count();
        assert_eq!(of_one_region == 0, way == "whole runs", "that is what it was measured by: {predictions:?}");
        assert_eq!(tuned.has_noted("a was measured in place"), way != "whole runs", "{:?}", tuned.outcome().notes);
        assert_eq!(tuned.has_noted("it is entered 2 times a run, too seldom for turns"), way == "whole runs");
        let least = brute_force_s(&made, &machine(2, 4));
        let found = tuned.outcome().plan().unwrap().1.median().unwrap();
        assert!((found / least - 1.0).abs() < 1e-9, "{way}: {found} s, not {least} s");
    }
}

#[test]
fn a_region_is_measured_from_a_checkpoint_if_that_is_wished_and_replays_are_kept() {
    let seconds = table(1);
    let scaled =
        |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| seconds(name, seats, base, entry) * 200.0;
    let made = Made { entries: 2, checkpoints: Some(Ok(())), ..Made::of(&scaled) };
    let directory = tempfile::tempdir().unwrap();
    let tuned = tune(&made, &directory.path().join("store"), usize::MAX);
    let predictions = tuned.one_by_one().predictions();
    assert!(!predictions.is_empty() && predictions.iter().all(|one| one.way == "from a checkpoint"), "{predictions:?}");
    assert!(tuned.has_noted("a was measured from a checkpoint: an entry takes with "), "{:?}", tuned.outcome().notes);
    let replays: Vec<usize> =
        tuned.ran.iter().filter(|(name, _)| name.ends_with("replayed")).map(|(_, times)| *times).collect();
    assert!(replays.len() > 4 && replays.iter().all(|times| *times == 11), "one to warm up and ten: {replays:?}");
    let least = brute_force_s(&made, &machine(2, 4));
    let found = tuned.outcome().plan().unwrap().1.median().unwrap();
    assert!((found / least - 1.0).abs() < 1e-9, "{found} s, not {least} s");
    let again = tune(&made, &directory.path().join("store"), usize::MAX);
    let plans = [&tuned, &again].map(|tuned| tuned.outcome().plan().map(|(plan, _)| plan));
    assert!(again.ran.is_empty() && plans[0] == plans[1], "{:?}", again.ran);
}

#[test]
fn an_entry_that_takes_another_time_than_others_do_is_not_replayed_for_them() {
    let seconds = table(1);
    let uneven = |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| {
        seconds(name, seats, base, entry) * if entry == 1 { 1000.0 } else { 100.0 }
    };
    let made = Made { entries: 4, checkpoints: Some(Ok(())), ..Made::of(&uneven) };
    let tuned = tuned(&made);
    let words = "a was not measured from a checkpoint: the entry that was captured takes another time than entries do";
    assert!(tuned.has_noted(words), "{:?}", tuned.outcome().notes);
    assert!(tuned.one_by_one().predictions().iter().all(|one| one.way == "whole runs"));
}

#[test]
fn seats_under_which_a_replay_is_stopped_once_are_not_replayed_again() {
    let seconds = table(1);
    let slow_once = |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| {
        seconds(name, seats, base, entry) * if entry == 1 && seats.threads == 2 { 4000.0 } else { 200.0 }
    };
    let made = Made { entries: 60, checkpoints: Some(Ok(())), ..Made::of(&slow_once) };
    let tuned = tuned(&made);
    let replays = tuned.ran.iter().filter(|(name, _)| name.ends_with("replayed"));
    let (few, all): (Vec<_>, Vec<_>) = replays.partition(|(name, _)| name.contains(": 2 threads"));
    assert!(few.len() > 1 && few.iter().all(|(_, times)| **times == 1), "{few:?}");
    assert!(all.len() > 1 && all.iter().all(|(_, times)| **times == 11), "{all:?}");
}

#[test]
fn a_region_of_which_no_checkpoint_can_be_made_is_measured_as_without() {
    let seconds = table(1);
    let scaled =
        |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| seconds(name, seats, base, entry) * 200.0;
    let made = Made { entries: 2, checkpoints: Some(Err("the disk is full")), ..Made::of(&scaled) };
    let tuned = tuned(&made);
    assert!(tuned.has_noted("a was not measured from a checkpoint: the disk is full"), "{:?}", tuned.outcome().notes);
    assert!(tuned.one_by_one().predictions().iter().all(|one| one.way == "whole runs"));
}

#[test]
fn the_five_best_predicted_plans_run_though_they_promise_nothing() {
    let all_on_two = |seats: &RegionSeats| seats.threads == 8 && seats.thread_placement == Scatter;
    let seconds =
        |_: &str, seats: &RegionSeats, _: &Configuration, _: usize| if all_on_two(seats) { 1e-3 } else { 1.3e-3 };
    let tuned = tuned(&Made::of(&seconds));
    let predictions = tuned.one_by_one().predictions();
    assert_eq!((predictions.len(), tuned.one_by_one().chosen), (5, None), "{predictions:?}");
    let as_predicted =
        |one: &Prediction| one.real_s.is_some_and(|real_s| (one.predicted_s / real_s - 1.0).abs() < 1e-9);
    assert!(predictions.iter().all(as_predicted), "{predictions:?}");
}

#[test]
fn entries_that_differ_among_themselves_are_not_measured_in_place() {
    let seconds = table(1);
    // Every fourth entry is ten times as long: as many turns have one as have none.
    let uneven = |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| {
        seconds(name, seats, base, entry) * if entry.is_multiple_of(4) { 10.0 } else { 1.0 }
    };
    let tuned = tuned(&Made::of(&uneven));
    assert!(tuned.has_noted("b was measured by whole runs: its entries take too different times"));
    assert!(tuned.one_by_one().predictions().iter().all(|one| one.way == "whole runs"));
}

#[test]
fn a_region_with_its_own_number_of_threads_has_no_other() {
    let seconds = table(1);
    let tuned = tuned(&Made { own_threads: Some(4), ..Made::of(&seconds) });
    assert!(tuned.has_noted("b has its own number of threads, 4: only their places are varied"));
    let plans = tuned.one_by_one().contenders.iter().filter_map(|one| one.plan.as_ref());
    assert!(plans.flat_map(|plan| plan.regions.get("b")).all(|seats| seats.threads == 4));
}

#[test]
fn regions_of_an_interrupted_session_are_not_measured_again() {
    let directory = tempfile::tempdir().unwrap();
    let seconds = table(1);
    let made = Made::of(&seconds);
    let whole = tune(&made, &directory.path().join("whole"), usize::MAX);
    let all: usize = whole.ran.values().sum();
    let first_turns = all - whole.one_by_one().found.runs.iter().map(|runs| runs.seconds.len()).sum::<usize>();
    for last in [first_turns - 3, first_turns, all - 1] {
        let store = directory.path().join(last.to_string());
        let begun = tune(&made, &store, last);
        let mut ran = begun.ran.clone();
        let rest = tune(&made, &store, usize::MAX);
        assert_eq!((begun.outcome().is_complete, rest.outcome().is_complete), (false, true), "{last} of {all} runs");
        rest.ran.iter().for_each(|(name, times)| *ran.entry(name.clone()).or_default() += times);
        assert_eq!(ran, whole.ran, "stopped after {last} of {all} runs");
        // Times that come from the store differ in the last digit.
        let plan = |tuned: &Tuned| tuned.outcome().plan().map(|(plan, runs)| (plan, runs.seconds.len()));
        assert_eq!((plan(&rest), &rest.outcome().notes), (plan(&whole), &whole.outcome().notes));
    }
}

/// Entered so seldom that turns take several runs.
#[test]
fn turns_end_with_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let seconds = |_: &str, seats: &RegionSeats, _: &Configuration, _: usize| 0.01 + 0.001 * seats.threads as f64;
    let made = Made { entries: 20, ..Made::of(&seconds) };
    let turns = |tuned: &Tuned| tuned.ran.keys().filter(|name| name.contains(" in turns ")).count();
    let whole = tune(&made, &directory.path().join("whole"), 10_000);
    assert!(turns(&whole) > 2, "{:?}", whole.ran.keys());
    let tuned = tune_within(Some(Duration::from_secs(4)), &made, &directory.path().join("s"), 10_000);
    assert_eq!(turns(&tuned), 1, "{:?}", tuned.ran.keys());
    let noted = |words| assert!(tuned.has_noted(words), "{:?}", tuned.outcome().notes);
    noted("there was no time to measure a, it has the whole program's seats: there was no time for more runs");
    noted("there was no time to tune all regions one by one");
    assert_eq!((whole.outcome().is_complete, tuned.outcome().is_complete), (true, false));
}

/// Of `a` an entry takes a third of a millisecond, whatever its seats.
#[test]
fn one_long_region_beside_a_short_one_gets_seats_of_its_own() {
    let seconds = table(1);
    let short = |name: &str, seats: &RegionSeats, base: &Configuration, entry: usize| {
        if name == "a" { 3e-4 } else { seconds(name, seats, base, entry) }
    };
    let tuned = tuned(&Made::of(&short));
    assert!(tuned.has_noted("a takes less than 0.5 ms an entry"), "{:?}", tuned.outcome().notes);
    assert!(tuned.has_noted("b was measured in place"), "{:?}", tuned.outcome().notes);
}

/// Under a further base no seats gain anything, so that base itself is what is predicted first of it.
#[test]
fn of_a_further_base_a_plan_with_seats_runs_though_none_gains() {
    let bases = [all_threads(2, PagePlacement::Interleave), all_threads(1, PagePlacement::Interleave)];
    // On one node seats lose more than where `a` wants its pages.
    let seconds = |name: &str, seats: &RegionSeats, base: &Configuration, _: usize| {
        let pages = if (base.page_nodes == 2) == (name == "a") { 1.0 } else { 1.3 };
        let own = if *seats == RegionSeats::from(bases[0]) { 1.0 } else { [1.6, 1.2][base.page_nodes - 1] };
        1e-3 * pages * own * if base.page_placement == PagePlacement::Interleave { 1.0 } else { 1.1 }
    };
    let tuned = tuned(&Made::of(&seconds));
    assert!(tuned.has_noted("with its pages elsewhere"), "{:?}", tuned.outcome().notes);
    let plans = tuned.one_by_one().contenders.iter().filter_map(|one| one.plan.as_ref());
    let by_base = |base: &Configuration| plans.clone().filter(|plan| plan.is_by_region() && plan.base == *base).count();
    let further = bases.iter().filter(|&&base| Some(base) != tuned.outcome().best().map(|(one, _)| one));
    for base in further {
        assert!(by_base(base) > 0, "{:?}", tuned.one_by_one().predictions());
    }
}

/// Notes of conflicts in a program of which `a` is fastest under one configuration and `b` under the other one, whatever their seats.
fn conflicts(a: Configuration, b: Configuration) -> usize {
    let seconds = |name: &str, _: &RegionSeats, base: &Configuration, _: usize| {
        let (wanted, elsewhere) = if name == "a" { (a, 1.5e-3) } else { (b, 1.3e-3) };
        if *base == wanted { 1e-3 } else { elsewhere }
    };
    let notes = &tuned(&Made::of(&seconds)).outcome.unwrap().notes;
    notes.iter().filter(|note| note.contains("with its pages elsewhere")).count()
}

fn all_threads(page_nodes: usize, page_placement: PagePlacement) -> Configuration {
    scattered(8, (2, page_nodes), page_placement)
}

#[test]
fn regions_that_want_pages_in_the_same_places_are_in_no_conflict_whatever_these_are_called() {
    let on_one = all_threads(1, PagePlacement::Interleave);
    let of_one = Configuration { threads: 4, thread_nodes: 1, ..all_threads(1, PagePlacement::FirstTouch) };
    assert_eq!((conflicts(of_one, on_one), conflicts(on_one, of_one)), (0, 0), "all pages are on the first node");
    assert_eq!(conflicts(of_one, all_threads(2, PagePlacement::Interleave)), 1);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn regions_that_want_chunks_with_other_threads_are_in_conflict() {
    let scatter = all_threads(2, PagePlacement::Dataset);
    let contiguous = Configuration { thread_placement: Contiguous, ..scatter };
    assert_eq!(conflicts(scatter, contiguous), 1);
    let half = Configuration { threads: 4, ..contiguous };
    assert_eq!(conflicts(contiguous, half), 0, "two halves, in eight chunks and in four");
}
