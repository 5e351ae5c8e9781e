// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::{Action, CpuId, NodeIndex};
use crate::testing::{lagging_snapshot, two_nodes};

const SECOND_NS: u64 = 1_000_000_000;

fn with(values: &[(&str, f64)]) -> Parameters {
    POLICY.parameters(&values.iter().map(|&(name, value)| (name.to_owned(), value)).collect()).unwrap()
}

/// Two threads on each of two nodes with four CPUs each; thread 1 lags, its memory is on node 1.
fn start() -> Snapshot {
    lagging_snapshot(two_nodes(4), &[(0, 0), (0, 1), (1, 1), (1, 1)])
}

/// `snapshot` with P_sys `percent` of that of `start` and as time `at_s` seconds.
fn at(snapshot: &Snapshot, at_s: u64, percent: f64) -> Snapshot {
    let mut later = snapshot.clone();
    later.time_ns = at_s * SECOND_NS;
    for (thread, first) in later.threads.iter_mut().zip(&start().threads) {
        let performance = first.performance[first.node].unwrap() * percent / 100.0;
        thread.performance = crate::model::PerNode::filled(2, None);
        thread.performance[thread.node] = Some(performance);
    }
    later
}

fn places(snapshot: &Snapshot) -> Vec<(NodeIndex, CpuId)> {
    snapshot.threads.iter().map(|thread| (thread.node, thread.cpu)).collect()
}

/// T in seconds and the plan after P_sys went from 100 to `percent` with T at `before_s`.
fn after_change(before_s: f64, percent: f64) -> (f64, Plan, Snapshot, Snapshot) {
    let parameters = with(&[]);
    let mut controller = Controller { period_ns: Some((before_s * 1e9) as u64), ..Controller::default() };
    let first = at(&start(), 100, 100.0);
    let plan = decide(&first, &parameters, &mut controller, 1).unwrap();
    assert!(!plan.is_empty());
    let moved = at(&first.after_thread_moves(&plan), 110, percent);
    let plan = decide(&moved, &parameters, &mut controller, 2).unwrap();
    (controller.period_ns.unwrap() as f64 / 1e9, plan, first, moved)
}

#[test]
fn a_rise_of_p_sys_halves_the_period_and_goes_on() {
    let (period_s, plan, ..) = after_change(4.0, 110.0);
    assert_eq!(period_s, 2.0);
    assert!(plan.moves.iter().all(|planned| !planned.reason.starts_with("undone")));
}

#[test]
fn a_small_fall_keeps_the_period_and_the_migrations() {
    let (period_s, plan, ..) = after_change(2.0, 95.0);
    assert_eq!(period_s, 2.0);
    assert!(plan.moves.iter().all(|planned| !planned.reason.starts_with("undone")));
}

#[test]
fn a_fall_below_delta_g_undoes_exactly_the_last_migrations_and_doubles_the_period() {
    let (period_s, plan, first, moved) = after_change(2.0, 85.0);
    assert_eq!(period_s, 4.0);
    assert_ne!(places(&moved), places(&first));
    assert_eq!(places(&moved.after_thread_moves(&plan)), places(&first));
    assert!(plan.moves.iter().all(|planned| planned.reason.starts_with("undone, P_sys fell; thread ")));
}

#[test]
fn the_period_stays_within_its_limits() {
    assert_eq!(after_change(1.0, 110.0).0, 1.0);
    assert_eq!(after_change(4.0, 85.0).0, 4.0);
}

#[test]
fn a_longest_period_below_the_least_is_the_least() {
    let parameters = with(&[("period_min_ms", 3000.0), ("period_max_ms", 1000.0)]);
    let mut controller = Controller::default();
    decide(&start(), &parameters, &mut controller, 1).unwrap();
    assert_eq!(controller.period_ns, Some(3 * SECOND_NS));
}

#[test]
fn noise_of_two_percent_changes_neither_the_period_nor_the_placement() {
    let parameters = with(&[("lagging_below", 0.0)]);
    let mut controller = Controller { period_ns: Some(2 * SECOND_NS), ..Controller::default() };
    for (step, percent) in [98.0, 102.0, 98.0, 100.0, 102.0, 98.5, 101.5, 98.0, 102.0].into_iter().enumerate() {
        let snapshot = at(&start(), 10 * (step as u64 + 1), percent);
        assert!(decide(&snapshot, &parameters, &mut controller, 1).unwrap().is_empty());
        assert_eq!(controller.period_ns, Some(2 * SECOND_NS), "step {step}");
    }
}

#[test]
fn nothing_is_decided_before_the_period_has_passed() {
    let mut controller =
        Controller { period_ns: Some(4 * SECOND_NS), acted_ns: 100 * SECOND_NS, ..Controller::default() };
    for (at_s, decides) in [(101, false), (102, false), (103, false), (104, true)] {
        let plan = decide(&at(&start(), at_s, 100.0), &with(&[]), &mut controller, 1).unwrap();
        assert_eq!(!plan.is_empty(), decides, "at {at_s} s");
    }
}

/// An interval of 1 s that ends a little early must not be passed over.
#[test]
fn an_interval_that_is_a_little_short_is_the_period() {
    let mut controller = Controller { period_ns: Some(SECOND_NS), acted_ns: 100 * SECOND_NS, ..Controller::default() };
    let mut snapshot = at(&start(), 101, 100.0);
    snapshot.time_ns -= 1_000_000;
    assert!(!decide(&snapshot, &with(&[]), &mut controller, 1).unwrap().is_empty());
}

#[test]
fn undoing_waits_for_the_cooldown_and_nothing_else_is_decided_meanwhile() {
    let parameters = with(&[]);
    let mut controller = Controller::default();
    let first = at(&start(), 100, 100.0);
    let plan = decide(&first, &parameters, &mut controller, 1).unwrap();
    let mut moved = at(&first.after_thread_moves(&plan), 110, 50.0);
    moved.threads.iter_mut().for_each(|thread| thread.on_cooldown = true);
    assert!(decide(&moved, &parameters, &mut controller, 2).unwrap().is_empty());
    moved.time_ns += 10 * SECOND_NS;
    assert!(decide(&moved, &parameters, &mut controller, 3).unwrap().is_empty());
    moved.threads.iter_mut().for_each(|thread| thread.on_cooldown = false);
    let undone = decide(&moved, &parameters, &mut controller, 4).unwrap();
    assert_eq!(places(&moved.after_thread_moves(&undone)), places(&first));
}

#[test]
fn what_went_elsewhere_or_ended_is_not_undone() {
    let exchange = || {
        let place = |node: usize, cpu: u32| crate::board::Place { node: NodeIndex(node), cpu: Some(CpuId(cpu)) };
        let id = |at: usize| start().threads[at].id;
        let one = |thread, from, to| Relocation { thread, from, to };
        vec![vec![one(id(1), place(0, 1), place(1, 4)), one(id(2), place(1, 4), place(0, 1))]]
    };
    let undo = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = at(&start(), 100, 100.0);
        (snapshot.threads[1].node, snapshot.threads[2].node) = (NodeIndex(1), NodeIndex(0));
        change(&mut snapshot);
        let mut controller = Controller { to_undo: exchange(), ..Controller::default() };
        decide(&snapshot, &with(&[]), &mut controller, 1).unwrap().moves
    };
    assert!(matches!(undo(&|_| {})[..], [crate::model::Move { action: Action::Interchange { .. }, .. }]));
    let one_left = undo(&|snapshot| drop(snapshot.threads.remove(2)));
    let back =
        Action::MoveThread { thread: start().threads[1].id, from: NodeIndex(1), to: NodeIndex(0), cpu: Some(CpuId(1)) };
    assert_eq!(one_left.into_iter().map(|planned| planned.action).collect::<Vec<_>>(), [back]);
    assert!(undo(&|snapshot| snapshot.threads.truncate(1)).is_empty());
    let elsewhere = |snapshot: &mut Snapshot| {
        (snapshot.threads[1].node, snapshot.threads[2].node) = (NodeIndex(0), NodeIndex(1));
    };
    assert!(undo(&elsewhere).iter().all(|planned| !planned.reason.starts_with("undone")));
}

/// The ended thread had a quarter of P_sys.
#[test]
fn a_thread_that_ends_is_no_fall_of_p_sys() {
    let parameters = with(&[("lagging_below", 0.0)]);
    let mut controller = Controller { period_ns: Some(2 * SECOND_NS), ..Controller::default() };
    decide(&at(&start(), 100, 100.0), &parameters, &mut controller, 1).unwrap();
    let mut later = at(&start(), 110, 100.0);
    later.threads.pop();
    decide(&later, &parameters, &mut controller, 1).unwrap();
    assert_eq!(controller.period_ns, Some(2 * SECOND_NS));
}

#[test]
fn a_thread_at_98_percent_of_its_process_does_not_trigger_and_one_at_50_percent_does() {
    let triggers = |performance: f64| {
        let mut snapshot = at(&start(), 100, 100.0);
        snapshot.threads.iter_mut().for_each(|thread| thread.performance[thread.node] = Some(1.0));
        // P_rel of one in four: 4p / (3 + p).
        snapshot.threads[1].performance[NodeIndex(0)] = Some(3.0 * performance / (4.0 - performance));
        !decide(&snapshot, &with(&[]), &mut Controller::default(), 1).unwrap().is_empty()
    };
    assert!(!triggers(0.98) && triggers(0.50));
}

#[test]
fn no_more_threads_are_candidates_than_asked_for() {
    let snapshot = lagging_snapshot(two_nodes(6), &[(0, 1), (0, 1), (0, 1), (0, 0), (0, 0), (0, 0)]);
    let moves = |most: f64| {
        let parameters = with(&[("threads_per_interval", most)]);
        decide(&snapshot, &parameters, &mut Controller::default(), 1).unwrap().moves.len()
    };
    assert_eq!((moves(1.0), moves(2.0), moves(9.0)), (1, 2, 3));
}

/// Free, preferred, unknown: 2 + 4 + 2. With q1 twice it would be 10.
#[test]
fn the_points_of_a_free_cpu_count_once() {
    let draw = |seed| decide(&at(&start(), 100, 100.0), &with(&[]), &mut Controller::default(), seed).unwrap().moves;
    let to_free = |planned: &crate::model::Move| matches!(planned.action, Action::MoveThread { .. });
    let moves: Vec<_> = (0..20).flat_map(draw).filter(to_free).collect();
    assert!(!moves.is_empty());
    for planned in moves {
        let words = " of 8.0 points, P_rel 0.55 here; thread 1 is on node 0, 100 % of its accesses go to node 1";
        assert!(planned.reason.ends_with(words), "{}", planned.reason);
    }
}
