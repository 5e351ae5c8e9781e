// SPDX-License-Identifier: GPL-2.0-only
//! How the CPU time of an interval in the steady state grows with threads and with page groups: sensing, deciding (with what is
//! expected of the plan), verifying a plan all of whose pages are on their way, telling.
//! Prints a table of docs/policies-speed.md: `cargo test --release -p tandem-agent grows -- --nocapture`

use tandem_policies::model::{Action, GroupId, Move, NodeIndex};
use tandem_policies::stall::{Changed, localities, localities_expected};
use tandem_view::Board;

use super::acting::places_of_moved;
use super::many_groups::ManyGroups;
use super::*;
use crate::leases::leases;
use crate::parts::Parts;
use crate::status::{UnderWay, status};
use crate::verify::Seen;

/// Groups seen in an interval, of which there are as many on every machine: sampling has a budget.
const SEEN: u64 = 1000;
/// Intervals, of which the quickest counts: others take caches away from the rest.
const INTERVALS: u64 = 5;
/// Where a count grows tenfold, n log n grows as its power of 1.1 to 1.2; what goes beyond caches adds to that. The square is 2.
const MOST_GROWTH: f64 = 1.5;

fn cpu_ms() -> f64 {
    thread_cpu_ns() as f64 / 1e6
}

/// CPU time of sensing, deciding, verifying and telling, in ms.
fn interval_ms(threads: u32, groups: u64) -> [f64; 4] {
    let mut many = ManyGroups::new(threads, groups);
    let mut decider = Decider::new(PolicyChoice::of_both("tandem").expect("the default"));
    decider.decide(&many.see_all(), 1, STEPS);
    let board = Board::default();
    let mut least = [f64::INFINITY; 4];
    for number in 0..INTERVALS {
        let start_ms = cpu_ms();
        let snapshot = many.see(number * SEEN % groups..(number * SEEN % groups + SEEN).min(groups));
        let sensed_ms = cpu_ms();
        let decision = Decision::new(1, decider.decide(&snapshot, 1, STEPS));
        let plan = decision.plan().expect("it can be decided");
        let expected = localities_expected(&snapshot, plan);
        let decided_ms = cpu_ms();
        let changed = Changed { threads: Vec::new(), groups: places_of_moved(&snapshot, plan) };
        let on_their_way: Vec<_> = plan.moves.iter().filter_map(destination).collect();
        let parts = Parts::of(&snapshot, (&changed, &[]), &localities(&snapshot), &expected);
        assert!(Seen::of(&snapshot, &changed, &parts, &on_their_way).once_moved_ns.is_some() && !parts.is_empty());
        let verified_ms = cpu_ms();
        assert!(!leases(&snapshot, plan).is_empty());
        board.publish(status(&crate::testing::config(), &snapshot, &Report::default(), UnderWay::default()));
        let told_ms = cpu_ms();
        let times = [sensed_ms - start_ms, decided_ms - sensed_ms, verified_ms - decided_ms, told_ms - verified_ms];
        least = std::array::from_fn(|step| least[step].min(times[step]));
    }
    least
}

/// Where a plan has pages go.
fn destination(planned: &Move) -> Option<(GroupId, NodeIndex)> {
    if let Action::MovePages { group, to, .. } = planned.action { Some((group, to)) } else { None }
}

/// The exponents of growth of each step from the last but one to the last of these sizes.
fn growth(sizes: &[(u32, u64)], count: impl Fn(&(u32, u64)) -> f64) -> [f64; 4] {
    let times: Vec<[f64; 4]> = sizes.iter().map(|&(threads, groups)| interval_ms(threads, groups)).collect();
    for ((threads, groups), [sense, decide, verify, tell]) in sizes.iter().zip(&times) {
        println!("| {threads} | {groups} | {sense:.2} | {decide:.2} | {verify:.2} | {tell:.2} |");
    }
    let last = sizes.len() - 1;
    let times_as_many = (count(&sizes[last]) / count(&sizes[last - 1])).ln();
    std::array::from_fn(|step| (times[last][step] / times[last - 1][step]).ln() / times_as_many)
}

#[test]
fn an_interval_grows_with_threads_hardly_faster_than_these() {
    let found = growth(&[(8, 10_000), (64, 10_000), (512, 10_000), (4096, 10_000)], |size| f64::from(size.0));
    println!("growth of sensing, deciding, verifying, telling: {found:.2?}");
    assert!(found.iter().all(|growth| *growth < MOST_GROWTH), "{found:?}");
}

#[test]
fn an_interval_grows_with_page_groups_hardly_faster_than_these() {
    let found = growth(&[(64, 1000), (64, 10_000), (64, 100_000)], |size| size.1 as f64);
    println!("growth of sensing, deciding, verifying, telling: {found:.2?}");
    assert!(found.iter().all(|growth| *growth < MOST_GROWTH), "{found:?}");
}
