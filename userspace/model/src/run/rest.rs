// SPDX-License-Identifier: GPL-2.0-only
//! Placements come to rest: where nothing changes any more, nothing moves any more.

use super::*;
use crate::scenario::builtin;
use crate::testing::{machine, scenario};

/// Time after which nothing moves.
const REST_FROM_S: f64 = 10.0;
/// Ideal length of the runs: none is over before rest has lasted for half a minute.
const LASTS_S: f64 = 45.0;

fn machines() -> [Machine; 3] {
    [
        machine(include_str!("../../../../vm/machines/2node.toml")),
        machine(include_str!("../../../../vm/machines/ring4.toml")),
        machine(include_str!("../../../../vm/machines/8node.toml")),
    ]
}

/// Threads that are at home with memory of their own.
const STATIONARY: &str = "[[program]]\nname = 'p'\nthreads = 8\nplace = 'blocks'\n\
     uses = [{ region = 'own', share = 1 }]\n[[program.region]]\nname = 'own'\nmb = 8\nhome = 'local'\n";

/// Runs a scenario under `tandem` on each machine with three seeds.
#[track_caller]
fn assert_comes_to_rest(scenario: &Scenario) {
    let scenario = scenario.clone().lasting(LASTS_S, false);
    for machine in machines() {
        for seed in 1..=3 {
            let outcome =
                run(&machine, &scenario, Arm::parse("tandem").unwrap(), &Settings::default(), seed, &mut |_| ());
            assert!(outcome.time_s.is_some_and(|time_s| time_s >= REST_FROM_S + 30.0), "{outcome:?}");
            let last_s = outcome.last_thread_move_s.max(outcome.last_page_move_s);
            assert!(last_s < REST_FROM_S, "{} nodes, seed {seed}: {outcome:?}", machine.nodes());
        }
    }
}

#[test]
fn two_players_of_ping_pong_come_to_rest() {
    assert_comes_to_rest(&builtin("ping-pong").unwrap());
}

#[test]
fn threads_that_share_all_memory_come_to_rest() {
    assert_comes_to_rest(&builtin("all-shared").unwrap());
}

#[test]
fn threads_whose_memory_is_on_other_nodes_come_to_rest() {
    assert_comes_to_rest(&builtin("crossed").unwrap());
}

#[test]
fn threads_that_are_at_home_stay() {
    assert_comes_to_rest(&scenario(STATIONARY));
}
