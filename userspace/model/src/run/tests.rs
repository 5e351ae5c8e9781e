// SPDX-License-Identifier: GPL-2.0-only
//! Known answers, computed by hand on machines of two nodes: 90 ns locally, 180 ns remotely.

use tandem_policies::model::Action;
use tandem_policies::registry::{Inputs, Kind, Memory, find};

use super::*;
use crate::scenario::{builtin, builtins};
use crate::sense::{Sensor, thread_of};
use crate::testing::{machine, scenario, two_nodes};

fn outcome(machine: &Machine, scenario: &Scenario, arm: &str) -> Outcome {
    outcome_of_seed(machine, scenario, arm, 0)
}

fn outcome_of_seed(machine: &Machine, scenario: &Scenario, arm: &str, seed: u64) -> Outcome {
    run(machine, scenario, Arm::parse(arm).unwrap(), &Settings::default(), seed, &mut |_| ())
}

/// Two nodes of `cpus` CPUs whose memory serves a line in next to no time, so that nobody waits for anybody.
fn without_waits(cpus: usize) -> Machine {
    machine(&format!(
        "nodes = 2\ncpus_per_node = {cpus}\nmemory_mb = 768\nlatency_ns = [[90, 180], [180, 90]]\n\
         [memory]\nservice_ns_per_line = 1e-9\noutstanding_misses = 10"
    ))
}

/// `threads` threads that only walk `mb` MiB each, for so many ideal seconds.
fn walkers(threads: usize, mb: f64, seconds: f64, place: &str, home: &str) -> Scenario {
    let text = format!(
        "[[program]]\nname = 'p'\nthreads = {threads}\nplace = '{place}'\nuses = [{{ region = 'own', share = 1 }}]\n\
         [[program.region]]\nname = 'own'\nmb = {mb}\nhome = '{home}'"
    );
    scenario(&text).lasting(seconds, false)
}

#[track_caller]
fn assert_near(value: f64, expected: f64, error: f64) {
    assert!((value - expected).abs() <= error * expected.abs(), "{value}, expected {expected}");
}

#[test]
fn one_thread_takes_its_ideal_time_locally_and_twice_that_remotely() {
    let machine = without_waits(1);
    let local = outcome(&machine, &walkers(1, 4.0, 3.0, "first", "local"), "eevdf");
    assert_near(local.time_s.unwrap(), 3.0, 1e-6);
    assert_eq!((local.remote_share, local.thread_moves, local.page_moves), (0.0, 0, 0));
    let remote = outcome(&machine, &walkers(1, 4.0, 3.0, "first", "far"), "eevdf");
    assert_near(remote.time_s.unwrap(), 6.0, 1e-6);
    assert_near(remote.remote_share, 1.0, 1e-9);
}

#[test]
fn two_threads_with_crossed_memory_change_places_once() {
    let machine = without_waits(1);
    let crossed = walkers(2, 4.0, 10.0, "scatter", "far");
    assert_near(outcome(&machine, &crossed, "eevdf").time_s.unwrap(), 20.0, 1e-6);
    assert_near(outcome(&machine, &crossed, "oracle").time_s.unwrap(), 10.0, 1e-6);
    assert_near(outcome(&machine, &crossed, "worst").time_s.unwrap(), 20.0, 1e-6);
    for policy in ["sma", "dyrmma"] {
        let swapped = outcome(&machine, &crossed, policy);
        // One interval of 1 s at half the speed, then 9.5 s of work, and two moves of 10 us + 16384 lines (1 MiB) at 90 ns.
        assert_eq!(swapped.thread_moves, 2, "{policy}");
        assert_near(swapped.time_s.unwrap(), 10.5 + 10e-6 + 16_384.0 * 90e-9, 1e-6);
        assert_near(swapped.overhead_s, 2.0 * (10e-6 + 16_384.0 * 90e-9), 1e-9);
        assert_eq!(swapped.missing, None);
    }
}

#[test]
fn policies_that_compare_threads_do_not_see_that_all_are_placed_badly() {
    let machine = without_waits(1);
    let crossed = walkers(2, 4.0, 10.0, "scatter", "far");
    for policy in ["nimar", "cimar"] {
        assert_eq!(outcome(&machine, &crossed, policy).thread_moves, 0, "{policy}");
    }
}

#[test]
fn pages_follow_at_the_movers_rate_and_threads_on_full_nodes_pay_for_it() {
    let machine = without_waits(1);
    // 8 MiB: 2048 pages on the other node.
    let moved = outcome(&machine, &walkers(1, 8.0, 10.0, "first", "far"), "tmma");
    assert_eq!((moved.page_moves, moved.thread_moves), (2048, 0));
    let page_ns = 10_900.0 + 64.0 * 270.0;
    assert_near(moved.overhead_s, 2048.0 * page_ns * 1e-9, 1e-6);
    // What the mover has saved is enough: 1 s at half the speed, and the time of the moves, of which the thread pays all and
    // in which its pages come near.
    let moving_s = 2048.0 * page_ns * 1e-9;
    let time_s = moved.time_s.unwrap();
    assert!((10.5 + moving_s..10.51 + moving_s).contains(&time_s), "{time_s}, moving took {moving_s}");
}

#[test]
fn when_its_savings_are_spent_the_mover_goes_at_its_rate() {
    let machine = without_waits(1);
    // 1 ms a second and 30 ms saved: less than the 58 ms that 2048 pages need.
    let settings = Settings { mover_ns_per_s: 1e6, ..Settings::default() };
    let pages = Arm::parse("tmma").unwrap();
    let moved = run(&machine, &walkers(1, 8.0, 10.0, "first", "far"), pages, &settings, 0, &mut |_| ());
    let may_use_ns = 30e6 + 1e6 * (moved.time_s.unwrap() - 1.0);
    assert_near(moved.page_moves as f64, may_use_ns / machine.page_move_ns(1, 0), 0.01);
}

#[test]
fn pages_go_to_several_nodes_at_the_same_time() {
    let machine = without_waits(2);
    // Nobody waits for a CPU, so that only the way of the pages takes time: 16 MiB to each node take no longer than to one.
    let [one, two] = [1, 2].map(|threads| outcome(&machine, &walkers(threads, 16.0, 10.0, "scatter", "far"), "tmma"));
    assert_eq!((one.page_moves, two.page_moves), (4096, 8192));
    assert_near(two.time_s.unwrap(), one.time_s.unwrap(), 1e-3);
}

#[test]
fn no_page_moves_where_there_is_no_room() {
    let machine = without_waits(1);
    let mut full = walkers(2, 100.0, 5.0, "scatter", "far");
    full.occupied = 0.86;
    let outcome = outcome(&machine, &full, "tmma");
    // 107.52 MiB are free on each node before 100 MiB come.
    assert!(outcome.page_moves < 2 * 2000, "{}", outcome.page_moves);
}

#[test]
fn memory_that_saturates_serves_what_it_can() {
    let machine = two_nodes();
    let mut scan = walkers(4, 8.0, 2.0, "first", "local");
    scan.programs[0].overlap = 10.0;
    // 9 ns alone; four share 3.2 ns a line.
    assert_near(outcome(&machine, &scan, "eevdf").time_s.unwrap(), 2.0 * 12.8 / 9.0, 1e-4);
    // Two on each node: 4.5 ns a line of 3.2 ns each, still below the knee.
    let best_s = outcome(&machine, &scan, "oracle").time_s.unwrap();
    assert!((2.0..2.2).contains(&best_s), "{best_s}");
}

#[test]
fn two_threads_on_one_cpu_take_twice_the_time() {
    let machine = machine("nodes = 1\ncpus_per_node = 1\nmemory_mb = 64\n[memory]\nservice_ns_per_line = 1e-9");
    let both = outcome(&machine, &walkers(2, 4.0, 2.0, "first", "local"), "eevdf");
    assert_near(both.time_s.unwrap(), 4.0, 1e-6);
}

#[test]
fn the_scheduler_leaves_no_cpu_idle_while_threads_wait() {
    let machine = without_waits(2);
    let spread = outcome(&machine, &walkers(4, 4.0, 2.0, "first", "interleaved"), "eevdf");
    // Two go to the other node; half of everybody's memory is remote: 135 ns.
    assert_eq!(spread.thread_moves, 2);
    let refill_s = 10e-6 + 16_384.0 * 135e-9;
    assert_near(spread.time_s.unwrap(), 3.0 + refill_s, 1e-6);
}

#[test]
fn cache_aware_scheduling_gathers_the_programs_that_fit_a_cache() {
    // Where no CPU is idle nobody is exchanged: in the lab 81 % of the accesses of `crossed` stay remote.
    let crossed = outcome(&two_nodes(), &builtin("crossed").unwrap(), "eevdf-llc");
    assert_eq!(crossed.thread_moves, 0);
    assert_near(crossed.remote_share, 0.8, 1e-3);
    let sharers = outcome(&two_nodes(), &builtin("hubench").unwrap(), "eevdf-llc");
    assert_eq!(sharers.thread_moves, 2);
    let oracle = outcome(&two_nodes(), &builtin("hubench").unwrap(), "oracle");
    let later_s = sharers.time_s.unwrap() - oracle.time_s.unwrap();
    assert!(later_s > 0.0 && later_s < 0.17, "they begin to gain after 0.17 s: {later_s}");
    // Eight threads fit no cache of four CPUs.
    assert_eq!(outcome(&two_nodes(), &builtin("master-init").unwrap(), "eevdf-llc").thread_moves, 0);
}

#[test]
fn memory_without_cpus_between_two_nodes_keeps_nobody_from_being_gathered() {
    let machine = machine(
        "nodes = 3\ncpus_per_node = [4, 4, 0]\nmemory_mb = 768\ndistance = [[10, 20, 14], [20, 10, 14], [14, 14, 10]]",
    );
    let text = "[[program]]\nname = 'sharers'\nthreads = 2\nplace = 'scatter'\ncompute_ns = 50\n\
                uses = [{ region = 'lines', share = 1 }]\n\
                [[program.region]]\nname = 'lines'\nper = 'program'\nlines = true";
    assert_eq!(outcome(&machine, &scenario(text), "eevdf-llc").thread_moves, 1);
}

#[test]
fn with_numa_balancing_nobody_is_gathered_after_the_first_second() {
    let text = "[[program]]\nname = 'sharers'\nthreads = 2\nplace = 'scatter'\ncompute_ns = 50\nwork = 3\n\
                uses = [{ region = 'lines', share = 1 }]\n\
                [[program.region]]\nname = 'lines'\nper = 'program'\nlines = true\n\
                [[program]]\nname = 'crowd'\nthreads = 6\nplace = 'fill'\ncompute_ns = 1\nwork = 2";
    // CPUs are idle after two seconds.
    let moves = |arm: &str| outcome(&two_nodes(), &scenario(text), arm).thread_moves;
    assert_eq!((moves("eevdf"), moves("eevdf-llc"), moves("autonuma-llc")), (0, 1, 0));
}

#[test]
fn a_programs_memory_is_with_its_main_thread_which_keeps_a_cpu_from_the_threads_that_it_starts() {
    let text = "[[program]]\nname = 'p'\ncopies = 2\nthreads = 2\nplace = 'free'\nuses = [{ region = 'all', share = 1 }]\n\
                [[program.region]]\nname = 'all'\nper = 'program'\nmb = 4\nhome = 'first'";
    // Main threads on 0 and 1. Of the first program one thread stays there and one finds more room at 1, of the second likewise.
    let crossed = outcome(&without_waits(2), &scenario(text), "eevdf");
    assert_near(crossed.remote_share, 0.5, 0.2);
    let direct = outcome(&without_waits(2), &scenario(text), "direct");
    let far = outcome(&without_waits(2), &scenario(text), "direct-far");
    assert_eq!((direct.remote_share, far.remote_share), (0.0, 1.0));
}

#[test]
fn numa_balancing_brings_pages_after_its_first_scan() {
    let machine = without_waits(1);
    // 32 MiB: 8192 pages. A second of delay, a second of scanning.
    let brought = outcome(&machine, &walkers(1, 32.0, 10.0, "first", "far"), "autonuma");
    assert_eq!((brought.page_moves, brought.thread_moves), (8192, 0));
    assert!(brought.time_s.unwrap() > 10.95 && brought.time_s.unwrap() < 11.1, "{brought:?}");
}

#[test]
fn bound_and_interleaved_memory_are_where_they_are_said_to_be() {
    let machine = without_waits(2);
    let away = walkers(2, 4.0, 2.0, "scatter", "far");
    let direct = outcome(&machine, &away, "direct");
    assert_near(direct.time_s.unwrap(), 2.0, 1e-6);
    assert_eq!(direct.remote_share, 0.0);
    let interleaved = outcome(&machine, &away, "interleave");
    assert_near(interleaved.time_s.unwrap(), 3.0, 1e-6);
    assert_near(interleaved.remote_share, 0.5, 1e-6);
}

#[test]
fn programs_start_when_due_or_after_others_and_may_be_summed() {
    let machine = without_waits(1);
    let program = |name: &str, more: &str| {
        format!("[[program]]\nname = '{name}'\nthreads = 1\nplace = 'free'\ncompute_ns = 1\n{more}\n")
    };
    let text = program("a", "") + &program("b", "start_s = 0.5") + &program("c", "after = 'b'\nwork = 2");
    let mut chain = scenario(&text);
    // Two CPUs: b runs from .5 to 1.5, c from there to 3.5.
    assert_near(outcome(&machine, &chain, "eevdf").time_s.unwrap(), 3.5, 1e-6);
    chain.metric = Metric::Accumulated;
    assert_near(outcome(&machine, &chain, "eevdf").time_s.unwrap(), 1.0 + 1.0 + 2.0, 1e-6);
}

#[test]
fn a_run_that_does_not_end_in_time_says_so() {
    let settings = Settings { patience: 0.5, ..Settings::default() };
    let slow = walkers(1, 4.0, 3.0, "first", "far");
    let outcome = run(&without_waits(1), &slow, Arm::Eevdf, &settings, 0, &mut |_| ());
    assert_eq!(outcome.time_s, None);
}

#[test]
fn a_seed_repeats_a_run_exactly_and_another_does_not() {
    let machine = two_nodes();
    let crossed = builtin("crossed").unwrap();
    let of = |seed| {
        let outcome = outcome_of_seed(&machine, &crossed, "cra+rmma", seed);
        Outcome { policy_time: Duration::ZERO, longest_decision: Duration::ZERO, ..outcome }
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1).time_s, of(2).time_s);
}

#[test]
fn every_scenario_runs_on_a_ring_and_where_a_node_has_no_cpus() {
    for file in ["ring4", "3-cpuless"] {
        let path = format!("{}/../../vm/machines/{file}.toml", env!("CARGO_MANIFEST_DIR"));
        let machine = Machine::new(&tandem_machine::MachineFile::load(path).unwrap()).unwrap();
        for scenario in builtins() {
            let short = (0.01 * scenario.seconds).min(0.05);
            let scenario = scenario.lasting(short, true);
            let outcome = outcome(&machine, &scenario, "tmma");
            assert!(outcome.time_s.is_some(), "{} on {file}: {outcome:?}", scenario.name);
        }
    }
}

fn with_two_nodes(scenario: &str, arm: &str) -> Outcome {
    outcome(&two_nodes(), &builtin(scenario).unwrap(), arm)
}

/// Popov et al., ICS 2019: all threads read one array on node 0, and its memory saturates.
#[test]
fn balance_beats_locality_where_shared_memory_saturates() {
    let time_s = |arm: &str| with_two_nodes("bandwidth", arm).time_s.unwrap();
    let (untouched, balance, locality) = (time_s("eevdf"), time_s("none+balance"), time_s("none+locality"));
    assert!(balance < 0.9 * locality && balance < 0.75 * untouched, "{balance} {locality} {untouched}");
}

/// The same with memory of each thread's own, far from it, and bandwidth to spare.
#[test]
fn locality_is_as_good_as_balance_for_private_memory() {
    let far = walkers(4, 8.0, 10.0, "scatter", "far");
    let time_s = |arm: &str| outcome(&without_waits(4), &far, arm).time_s.unwrap();
    let (untouched, balance, locality) = (time_s("eevdf"), time_s("none+balance"), time_s("none+locality"));
    assert!(locality <= 1.005 * balance && locality < 0.6 * untouched, "{balance} {locality} {untouched}");
}

/// Thesis, test 25: all data on one node and all cores reading.
#[test]
fn spread_memory_beats_all_local_memory_that_saturates() {
    let time_s = |arm: &str| with_two_nodes("bandwidth", arm).time_s.unwrap();
    let (on_one_node, all_local) = (time_s("eevdf"), time_s("direct"));
    for spread in ["interleave", "none+balance", "tandem"] {
        let spread_s = time_s(spread);
        assert!(
            spread_s < 0.8 * on_one_node && spread_s < 0.8 * all_local,
            "{spread}: {spread_s} {on_one_node} {all_local}"
        );
    }
}

/// Two threads on two nodes that change their hot buffers, of 8 MiB each, every `phase_s`, for 80 s.
fn changing_buffers(phase_s: f64) -> Scenario {
    let phase = |of: &str| {
        format!("[[program.phase]]\nseconds = {phase_s}\nuses = [{{ region = 'hot', share = 1, of = '{of}' }}]\n")
    };
    let text = "[[program]]\nname = 'p'\nthreads = 2\nplace = 'scatter'\n[[program.region]]\nname = 'hot'\nmb = 8\n";
    Scenario { seconds: 80.0, ..scenario(&format!("{text}{}{}", phase("own"), phase("opposite"))) }
}

/// Thesis, test 22, with T = 1 s and samples that halve every 3 s: after 4.75 s two thirds of them are of the new node.
#[test]
fn a_hot_buffer_that_changes_node_every_20_s_is_placed_anew_within_two_intervals_and_decay() {
    let machine = without_waits(2);
    let scenario = changing_buffers(20.0);
    // In two of four phases all memory is remote.
    assert_near(outcome(&machine, &scenario, "eevdf").time_s.unwrap(), 120.0, 1e-6);
    let moved = outcome(&machine, &scenario, "none+tmma");
    let decay_s = 3.0 * libm::log2(3.0);
    // At each of three changes half the speed for so long, then the pages move at 10 % of a CPU: 4096 of 3.2 us.
    let late_s = 3.0 * ((2.0 + decay_s) / 2.0 + 4096.0 * 3.2e-6 / 0.1);
    // The threads do not wait for each other: the slower one may come to a fourth change.
    assert!((3 * 4096..=4 * 4096).contains(&moved.page_moves), "{moved:?}");
    assert!(moved.time_s.unwrap() < 80.0 + late_s, "{moved:?}, at most {late_s} s late");
}

#[test]
fn a_hot_buffer_that_changes_node_every_half_second_is_not_chased() {
    let machine = without_waits(2);
    let scenario = changing_buffers(0.5);
    let left_s = outcome(&machine, &scenario, "eevdf").time_s.unwrap();
    for policies in ["none+tmma", "sma+tmma", "none+lmma", "kmaf+tmma", "tandem"] {
        let outcome = outcome(&machine, &scenario, policies);
        let time_s = outcome.time_s.unwrap();
        // A thread rests for 10 s.
        let chased = outcome.page_moves > 2 * 4096 || outcome.thread_moves as f64 > 2.0 * (1.0 + time_s / 10.0);
        assert!(!chased && time_s < 1.05 * left_s, "{policies}: {outcome:?}, {left_s} s unmoved");
    }
}

/// Lets a run without policies go on for so long.
fn advance(sim: &mut Sim, seconds: f64) {
    let end_ns = sim.now_ns + seconds * 1e9;
    while sim.now_ns + 1.0 < end_ns {
        start_due(sim, Arm::Eevdf);
        if sim.is_dirty() {
            balance(sim);
        }
        sim.solve();
        let step_ns = sim.step_ns((end_ns - sim.now_ns).min(10e6));
        sim.advance(step_ns);
    }
    sim.solve();
}

/// Thesis, test 13: what `dyrmma` predicts of a thread where it sends it is what the thread measures there.
#[test]
fn the_latency_that_dyrmma_predicts_comes_true() {
    let machine = two_nodes();
    let mut crowd = walkers(3, 8.0, 60.0, "first", "far");
    crowd.programs[0].overlap = 4.0;
    let world = World::new(&machine, &crowd, 0);
    let mut sim = Sim::new(&machine, &world);
    let mut sensor = Sensor::new(&sim, Settings::default().sense, 0);
    let mut seen = |sim: &mut Sim| {
        advance(sim, 1.0);
        let snapshot = sensor.snapshot(sim, 1e9, |_| false, |_, _| false);
        sim.start_interval();
        snapshot
    };
    let before = seen(&mut sim);
    let dyrmma = find(Kind::Thread, "dyrmma").unwrap();
    let mut memory = Memory::default();
    let inputs = &mut Inputs {
        snapshot: &before,
        parameters: &dyrmma.defaults(),
        memory: &mut memory,
        seed: 1,
        steps: u64::MAX,
    };
    let mut predicted = Vec::new();
    for planned in dyrmma.decide(inputs).unwrap().moves {
        let Action::MoveThread { thread, to, .. } = planned.action else { panic!("there are free CPUs: {planned:?}") };
        let (_, words) = planned.reason.split_once("would take ").unwrap();
        predicted.push((thread, words.split_once(" ns").unwrap().0.parse::<f64>().unwrap()));
        let at = thread_of(thread);
        sim.threads[at].lease = Some(to.0);
        sim.move_thread(at, to.0, None);
    }
    assert_eq!(predicted.len(), 3, "all are far from their memory");
    seen(&mut sim);
    let after = seen(&mut sim);
    for (id, predicted_ns) in predicted {
        let (then, now) = (before.thread(id).unwrap(), after.thread(id).unwrap());
        assert_ne!(then.node, now.node);
        let measured_ns = now.latency_ns.unwrap();
        assert!(measured_ns < 0.8 * then.latency_ns.unwrap(), "{measured_ns} after {:?}", then.latency_ns);
        assert_near(predicted_ns, measured_ns, 0.2);
    }
}
