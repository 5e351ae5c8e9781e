// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::NodeIndex;
use crate::testing::{SnapshotBuilder, decided_with, two_nodes};

const SECOND_NS: u64 = 1_000_000_000;

/// `auto` at work; what it moves is moved, and each access takes as long as it is told.
struct Run {
    snapshot: Snapshot,
    memory: Memory,
}

impl Run {
    fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, memory: Memory::default() }
    }

    fn step(&mut self) -> Result<Plan, MissingSignal> {
        let plan = decided_with(&POLICY, &self.snapshot, &mut self.memory)?;
        self.snapshot = self.snapshot.after_thread_moves(&plan);
        self.snapshot.time_ns += SECOND_NS;
        Ok(plan)
    }

    /// Decides until it says something else, at most a hundred times; what it says then.
    fn until_it_says_more(&mut self) -> String {
        let before = self.says();
        let more = (0..100).find_map(|_| {
            self.step().unwrap();
            Some(self.says()).filter(|now| *now != before)
        });
        more.unwrap_or_else(|| panic!("it goes on as before: {before}"))
    }

    fn says(&self) -> String {
        (POLICY.statement)(&self.memory).unwrap_or_default()
    }

    fn take_ns(&mut self, latency_ns: f64) {
        self.snapshot.threads.iter_mut().for_each(|thread| thread.latency_ns = Some(latency_ns));
    }
}

/// Two threads on different nodes, each of which accesses the memory of both alike: nothing for `sma+tmma` to improve, and
/// 155 ns an access, 100 ns if all were local.
fn torn() -> Snapshot {
    let even = Some(&[1e6, 1e6][..]);
    let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, even).thread(2, 1, even);
    builder.group_used_by(&[512, 0], &[(1, 1e6), (2, 1e6)]).build()
}

/// The same with sharing: `kmaf+kmaf` can be tried too.
fn torn_sharers() -> Snapshot {
    let even = Some(&[1e6, 1e6][..]);
    let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, even).thread(2, 1, even).shared(0, 1, 1e6);
    builder.group_used_by(&[512, 0], &[(1, 1e6), (2, 1e6)]).build()
}

#[test]
fn without_a_signal_of_any_pair_one_is_missing() {
    let mut run = Run::new(SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build());
    assert_eq!(run.step(), Err(MissingSignal { policy: "auto", signal: Signal::ThreadAccesses }));
    assert_eq!(run.says(), "nothing is taken yet: no pair has its signals");
}

#[test]
fn the_signal_that_is_missing_is_one_that_is_not_there() {
    let mut run = Run::new(SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).build());
    assert_eq!(run.step(), Err(MissingSignal { policy: "auto", signal: Signal::GroupAccesses }));
}

/// What `tandem policies --json` says: what every pair needs, and what each needs besides.
#[test]
fn its_needs_are_those_of_its_pairs() {
    let all: BTreeSet<Signal> = POLICY.needs.iter().copied().collect();
    for (pair, besides) in PAIRS.iter().zip(POLICY.needs_one_of) {
        let stated: BTreeSet<Signal> = all.iter().chain(*besides).copied().collect();
        assert_eq!(stated, pair.needs().collect(), "{}", pair.name());
    }
    assert_eq!(POLICY.needs_one_of.len(), PAIRS.len());
    assert!(POLICY.needs_one_of.iter().all(|besides| besides.iter().all(|signal| !all.contains(signal))));
}

#[test]
fn its_plans_are_those_of_the_pair_it_took_with_the_reason_for_that() {
    let snapshot =
        SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).group_used_by(&[0, 512], &[(1, 1e6)]);
    let mut run = Run::new(snapshot.build());
    let own = decided_with(&sma::POLICY, &run.snapshot, &mut Memory::default()).unwrap();
    let plan = run.step().unwrap();
    assert_eq!(plan.moves[0].action, own.moves[0].action);
    assert_eq!(plan.moves[0].reason, format!("sma+tmma (the first of 1 with signals): {}", own.moves[0].reason));
    assert_eq!(run.says(), "tries sma+tmma: the first of 1 with signals");
}

#[test]
fn pages_move_when_there_is_no_thread_to_move() {
    let stays = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1);
    let pinned = |thread: &mut crate::model::Thread| thread.allowed = vec![true, false].into();
    let mut run = Run::new(stays.with_thread(pinned).group_used_by(&[0, 512], &[(1, 1e6)]).build());
    let plan = run.step().unwrap();
    assert!(matches!(plan.moves[0].action, crate::model::Action::MovePages { to: NodeIndex(0), .. }), "{plan:?}");
}

#[test]
fn with_all_memory_local_there_is_nothing_else_to_try() {
    let builder = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0).thread_with_memory_on(2, 1, 1);
    let mut run = Run::new(builder.shared(0, 1, 1.0).group_used_by(&[512, 0], &[(1, 1e6)]).build());
    run.step().unwrap();
    assert_eq!(run.until_it_says_more(), "stays with sma+tmma: an access takes 100 ns, 100 ns if all were local");
    assert!((0..100).all(|_| run.step().unwrap().is_empty()));
}

/// Programs come and go: what nobody ran under says nothing of a pair.
#[test]
fn while_nobody_accesses_memory_no_pair_is_judged_and_what_stays_for_want_of_accesses_does_not_for_long() {
    let mut run = Run::new(torn_sharers());
    let working = run.snapshot.threads.clone();
    run.step().unwrap();
    let idle = |run: &mut Run, decisions: usize| {
        for thread in &mut run.snapshot.threads {
            (thread.accesses_per_s, thread.latency_ns) = (None, None);
        }
        (0..decisions).for_each(|_| drop(run.step()));
    };
    idle(&mut run, 10);
    assert_eq!(run.says(), "tries sma+tmma: the first of 2 with signals");
    idle(&mut run, 60);
    assert_eq!(run.says(), "stays with sma+tmma: nothing tells how long an access takes");
    run.snapshot.threads = working;
    assert_eq!(run.until_it_says_more(), "tries sma+tmma: memory is accessed now");
    assert!(run.until_it_says_more().starts_with("tries kmaf+kmaf"));
}

#[test]
fn a_pair_under_which_accesses_take_long_is_followed_by_the_next_and_the_best_stays() {
    let mut run = Run::new(torn_sharers());
    run.step().unwrap();
    assert_eq!(run.says(), "tries sma+tmma: the first of 2 with signals");
    assert_eq!(run.until_it_says_more(), "tries kmaf+kmaf: an access took 155 ns under sma+tmma");
    run.take_ns(140.0);
    assert_eq!(run.until_it_says_more(), "stays with kmaf+kmaf: 140 ns an access, the least of 2 tried");
    assert_eq!(run.snapshot.threads[0].node, run.snapshot.threads[1].node, "the sharers are together");
}

#[test]
fn a_later_pair_must_be_better_by_more_than_noise() {
    let mut run = Run::new(torn_sharers());
    run.step().unwrap();
    run.until_it_says_more();
    run.take_ns(153.0);
    assert_eq!(run.until_it_says_more(), "stays with sma+tmma: 155 ns an access, the least of 2 tried");
}

#[test]
fn everything_is_tried_anew_when_accesses_take_longer_for_good() {
    let mut run = Run::new(torn());
    run.step().unwrap();
    assert_eq!(run.until_it_says_more(), "stays with sma+tmma: 155 ns an access, the least of 1 tried");
    run.take_ns(400.0);
    (0..2).for_each(|_| drop(run.step().unwrap()));
    run.take_ns(150.0);
    (0..5).for_each(|_| drop(run.step().unwrap()));
    assert!(run.says().starts_with("stays"), "twice in a row may be chance: {}", run.says());
    run.take_ns(400.0);
    let anew = "tries sma+tmma: an access takes 400 ns, 155 ns when sma+tmma was taken";
    assert_eq!(run.until_it_says_more(), anew);
}

#[test]
fn a_pair_whose_signals_come_late_is_tried_as_well() {
    let mut run = Run::new(torn());
    run.step().unwrap();
    assert!(run.until_it_says_more().starts_with("stays with sma+tmma"));
    run.snapshot = Snapshot { time_ns: run.snapshot.time_ns, ..torn_sharers() };
    assert_eq!(run.until_it_says_more(), "tries sma+tmma: the first of 2 with signals");
}

#[test]
fn while_something_cools_down_no_pair_is_at_rest() {
    let mut run = Run::new(torn());
    run.snapshot.threads[0].on_cooldown = true;
    (0..50).for_each(|_| drop(run.step().unwrap()));
    assert!(run.says().starts_with("tries"), "{}", run.says());
    (0..10).for_each(|_| drop(run.step().unwrap()));
    assert!(run.says().starts_with("stays"), "after 60 decisions it is over: {}", run.says());
}

#[test]
fn another_recording_begins_without_what_was_seen_in_this_one() {
    let mut run = Run::new(torn());
    run.step().unwrap();
    run.until_it_says_more();
    run.snapshot = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build();
    run.snapshot.time_ns = 0;
    assert!(run.step().is_err());
}
