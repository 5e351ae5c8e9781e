// SPDX-License-Identifier: GPL-2.0-only
//! What holds for every scenario on every machine.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::machine::MoveCosts;
use crate::testing::{machine, scenario};

/// Two or three nodes of three or four CPUs, some latencies, little or much bandwidth.
fn machines() -> impl Strategy<Value = Machine> {
    (2..=3_usize, 3..=4_u32, 100..300_u32, 1.0..10.0_f64).prop_map(|(nodes, cpus, remote_ns, service_ns)| {
        let row = |from: usize| {
            let one = |to: usize| if from == to { 90 } else { remote_ns + 20 * (from.abs_diff(to) as u32 - 1) };
            format!("[{}]", (0..nodes).map(|to| one(to).to_string()).collect::<Vec<_>>().join(", "))
        };
        let rows = (0..nodes).map(row).collect::<Vec<_>>().join(", ");
        let text = format!(
            "nodes = {nodes}\ncpus_per_node = {cpus}\nmemory_mb = 256\nlatency_ns = [{rows}]\n\
             [memory]\nservice_ns_per_line = {service_ns}\noutstanding_misses = 10"
        );
        Machine { moves: MoveCosts::FREE, ..machine(&text) }
    })
}

const PLACES: [&str; 6] = ["blocks", "scatter", "fill", "first", "pairs-apart", "free"];
const HOMES: [&str; 6] = ["local", "far", "first", "next", "interleaved", "half-away"];

/// One or two programs of one to three threads, no more than there are CPUs, with private and common memory, and lines.
fn scenarios() -> impl Strategy<Value = Scenario> {
    let program =
        (1..=3_usize, 0..6_usize, 0..6_usize, 0.0..50.0_f64, 1.0..10.0_f64, any::<bool>(), 0..4_u32, 0..3_u32);
    prop::collection::vec(program, 1..=2).prop_map(|programs| {
        let text = programs.iter().enumerate().map(
            |(at, &(threads, place, home, compute_ns, overlap, barrier, common, lines))| {
                format!(
                    "[[program]]\nname = 'p{at}'\nthreads = {threads}\nplace = '{}'\ncompute_ns = {compute_ns}\n\
                 overlap = {overlap}\nbarrier = {barrier}\n\
                 uses = [{{ region = 'own', share = 4, write = 0.3 }}, {{ region = 'common', share = {common} }}, \
                 {{ region = 'lines', share = {lines} }}]\n\
                 [[program.region]]\nname = 'own'\nmb = 4\nhome = '{}'\n\
                 [[program.region]]\nname = 'common'\nper = 'program'\nmb = 8\nhome = '{}'\n\
                 [[program.region]]\nname = 'lines'\nper = 'program'\nlines = true\n",
                    PLACES[place], HOMES[home], HOMES[home]
                )
            },
        );
        scenario(&text.collect::<String>()).lasting(4.0, false)
    })
}

fn time_s(machine: &Machine, scenario: &Scenario, arm: Arm) -> f64 {
    // Everything is seen, nothing rests, pages go at once: an arm has only its decisions to blame.
    let mut settings = Settings { cooldown_ns: 0.0, pages_per_s: 1e9, ..Settings::default() };
    settings.sense.samples_per_s = 0.0;
    run(machine, scenario, arm, &settings, 0, &mut |_| ()).time_s.expect("it ends")
}

const ARMS: &str =
    "eevdf,autonuma,interleave,sma+tmma,nimar+lmma,cra+rmma,lbma+locality,kmaf+kmaf,sam+balance,scatter+mix";

/// The same cases each time. A thousand others have been tried.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_arm_beats_the_oracle_by_a_hundredth(machine in machines(), scenario in scenarios()) {
        let oracle_s = time_s(&machine, &scenario, Arm::Oracle);
        for arm in Arm::parse_list(ARMS).unwrap().into_iter().chain([Arm::Direct]) {
            let arm_s = time_s(&machine, &scenario, arm);
            prop_assert!(oracle_s <= 1.01 * arm_s, "{arm} takes {arm_s} s, oracle {oracle_s} s");
        }
    }

    #[test]
    fn no_arm_that_fills_the_cpus_is_worse_than_the_worst(machine in machines(), scenario in scenarios()) {
        let worst_s = time_s(&machine, &scenario, Arm::Worst);
        for arm in Arm::parse_list(ARMS).unwrap() {
            let arm_s = time_s(&machine, &scenario, arm);
            prop_assert!(worst_s >= 0.99 * arm_s, "{arm} takes {arm_s} s, worst {worst_s} s");
        }
    }

    #[test]
    fn pages_are_neither_lost_nor_made_and_no_node_holds_more_than_it_has(
        machine in machines(),
        scenario in scenarios(),
        moves in prop::collection::vec((any::<usize>(), any::<usize>(), 0..3_usize, 0..3_usize, 0.0..600.0_f64), 1..50),
    ) {
        let world = World::new(&machine, &scenario, 0);
        let mut sim = Sim::new(&machine, &world);
        sim.due().into_iter().for_each(|program| sim.start(program, None, None));
        for (region, group, from, to, pages) in moves {
            let region = region % world.regions.len();
            let group = group % world.regions[region].groups();
            if from < machine.nodes() && to < machine.nodes() {
                sim.move_pages(region, group, from, to, pages);
            }
        }
        for node in 0..machine.nodes() {
            let held: f64 = (0..world.regions.len()).map(|region| sim.pages_of(region)[node]).sum();
            prop_assert!((held + sim.free_pages[node] - machine.memory_pages(node) as f64).abs() < 1e-3);
            prop_assert!(sim.free_pages[node] > -1e-6);
        }
        for region in 0..world.regions.len() {
            let groups: f64 = sim.regions[region].groups.iter().flatten().map(|on| on.1).sum();
            prop_assert!((groups - world.regions[region].pages as f64).abs() < 1e-3);
            let shares: f64 = sim.spreads[region].iter().map(|on| on.1).sum();
            prop_assert!((shares - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn nothing_is_faster_than_ideal(machine in machines(), scenario in scenarios()) {
        for arm in [Arm::Eevdf, Arm::Oracle] {
            prop_assert!(time_s(&machine, &scenario, arm) >= scenario.seconds * (1.0 - 1e-6));
        }
    }
}
