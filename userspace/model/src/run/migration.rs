// SPDX-License-Identifier: GPL-2.0-only
//! The thesis's migration benchmark (algorithm 4.1, its test 20) on the model: two groups of threads on two nodes, a share
//! of each half of the pages' use local, and every page exchanged by those who use it, after a while.

use super::*;
use crate::testing::{machine, scenario};

/// Pages of each half, and threads of both groups.
const HALF_PAGES: f64 = 8192.0;
const THREADS: f64 = 4.0;
/// Ideal length: page moves are a small part of it.
const WORK_S: f64 = 20.0;

/// Two nodes whose memory keeps nobody waiting.
fn quiet() -> Machine {
    machine(
        "nodes = 2\ncpus_per_node = 2\nmemory_mb = 768\nlatency_ns = [[90, 180], [180, 90]]\n\
         [memory]\nservice_ns_per_line = 1e-9\noutstanding_misses = 10",
    )
}

/// Seconds with this local share; the halves change nodes after so many seconds, if at all, and all threads pay alike.
fn time_s(local: f64, exchanged_after_s: Option<f64>) -> f64 {
    let machine = quiet();
    let away = 1.0 - local;
    let benchmark = scenario(&format!(
        "[[program]]\nname = 'p'\nthreads = {THREADS}\nplace = 'two-blocks'\nuses = [\n\
         {{ region = 'half', share = {local} }}, {{ region = 'half', share = {away}, of = 'opposite' }}]\n\
         [[program.region]]\nname = 'half'\nper = 'half'\nmb = {}",
        HALF_PAGES / 256.0
    ))
    .lasting(WORK_S, false);
    let world = World::new(&machine, &benchmark, 0);
    let mut sim = Sim::new(&machine, &world);
    let mut exchange_ns = exchanged_after_s.map(|seconds| seconds * 1e9);
    while !sim.is_over() {
        start_due(&mut sim, Arm::Eevdf);
        if exchange_ns.take_if(|due_ns| *due_ns <= sim.now_ns + 1.0).is_some() {
            exchange(&mut sim);
        }
        sim.solve();
        let most_ns = exchange_ns.map_or(f64::INFINITY, |due_ns| due_ns - sim.now_ns);
        let step_ns = sim.step_ns(most_ns.min(10e6));
        sim.advance(step_ns);
    }
    time_ns(&sim) * 1e-9
}

fn exchange(sim: &mut Sim) {
    for region in 0..2 {
        for group in 0..sim.world.regions[region].groups() {
            let (from, pages) = sim.regions[region].groups[group][0];
            let moved = sim.move_pages(region, group, from, 1 - from, pages);
            let cost_ns = moved * sim.machine.page_move_ns(from, 1 - from);
            (0..sim.threads.len()).for_each(|thread| sim.owe(thread, cost_ns / THREADS));
        }
    }
}

/// R² of the best line through the points.
fn linearity(points: &[(f64, f64)]) -> f64 {
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let covariance = mean(&|point| (point.0 - x) * (point.1 - y));
    covariance.powi(2) / (mean(&|point| (point.0 - x).powi(2)) * mean(&|point| (point.1 - y).powi(2)))
}

#[test]
fn time_is_linear_in_locality_and_in_the_delay_of_the_moves() {
    let by_locality: Vec<(f64, f64)> =
        (1..10).map(|tenths| 0.1 * f64::from(tenths)).map(|s| (s, time_s(s, None))).collect();
    let by_delay: Vec<(f64, f64)> =
        (0..8).map(f64::from).map(|after_s| (after_s, time_s(0.2, Some(after_s)))).collect();
    assert!(linearity(&by_locality) > 0.98 && linearity(&by_delay) > 0.98, "{by_locality:?} {by_delay:?}");
    assert!(by_locality[0].1 > by_locality[8].1 && by_delay[0].1 < by_delay[7].1);
}

#[test]
fn exchanging_pays_up_to_a_local_share_slightly_below_one_half_and_costs_what_the_pages_do() {
    let loss_s = |local: f64| time_s(local, Some(0.0)) - time_s(local, None);
    assert!(loss_s(0.2) < 0.0 && loss_s(0.48) < 0.0 && loss_s(0.8) > 0.0);
    // At one half it is the cost of the pages alone, from which that of one follows; the gain is linear, so it breaks even
    // where it has made up for that.
    let page_ns = loss_s(0.5) * 1e9 * THREADS / (2.0 * HALF_PAGES);
    assert!((page_ns / quiet().page_move_ns(0, 1) - 1.0).abs() < 0.02, "{page_ns} ns a page");
    assert!(loss_s(0.499) > 0.0);
}
