// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::cimar;
use crate::model::Plan;
use crate::score::{preferred, remembered_from};
use crate::testing::{SnapshotBuilder, machine, throttled, two_nodes};
use rand_core::SeedableRng;

fn scaled(topology: &Topology, thread: &Thread, present: NodeIndex, node: NodeIndex) -> f64 {
    preferred(topology, thread, node) + remembered_from(thread, present, node)
}

fn cpu_board(snapshot: &Snapshot) -> Board<'_> {
    Board::of_cpus(snapshot, settled(snapshot, 1.0), |_| true, cimar::worth)
}

fn points(board: &Board, thread: usize) -> Vec<f64> {
    let mut found = Vec::new();
    board.candidates(thread, &mut found);
    found.into_iter().map(|candidate| candidate.points).collect()
}

fn remembers(here: f64, there: f64) -> impl FnOnce(&mut Thread) {
    move |thread| thread.performance = vec![Some(here), Some(there)].into()
}

#[test]
fn free_preferred_and_better_is_ten_points_on_a_cpu_and_on_a_node() {
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).with_thread(remembers(1.0, 2.0));
    let snapshot = builder.build();
    assert_eq!(points(&cpu_board(&snapshot), 0), [10.0]);
    assert_eq!(points(&Board::of_nodes(&snapshot, settled(&snapshot, 1.0), |_| true, scaled), 0), [10.0]);
}

#[test]
fn free_unknown_and_not_preferred_is_flat_on_a_cpu_and_scaled_on_a_node() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 0).build();
    assert_eq!(points(&cpu_board(&snapshot), 0), [4.0]);
    let of_node = points(&Board::of_nodes(&snapshot, settled(&snapshot, 1.0), |_| true, scaled), 0);
    assert!((of_node[0] - (2.0 + 40.0 / 21.0 + 2.0)).abs() < 1e-12);
}

#[test]
fn an_exchange_has_the_points_of_both_threads_and_q4_if_the_partner_lags() {
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).with_thread(remembers(1.0, 2.0));
    let worse = |thread: &mut Thread| thread.performance = vec![Some(1.0), Some(2.0)].into();
    let snapshot = builder.thread_with_memory_on(2, 1, 0).with_thread(worse).build();
    assert_eq!(points(&cpu_board(&snapshot), 0), [(4.0 + 4.0) + (4.0 + 1.0)]);
    assert_eq!(points(&cpu_board(&snapshot).with_lagging(|thread| thread == 1), 0), [13.0 + 3.0]);
    assert_eq!(points(&cpu_board(&snapshot).with_lagging(|thread| thread == 0), 0), [13.0]);
}

/// Uniform draws: 10 against 5 points win 1 - 5/20 = 75 %; by points alone it would be 66.7 %.
#[test]
fn ten_points_win_against_five_in_three_of_four_lotteries() {
    let candidate = |thread: usize, points: f64| Candidate { thread, to: 0, partner: None, points };
    let mut rng = Pcg64::seed_from_u64(1);
    let mut first_wins = 0;
    for _ in 0..20_000 {
        let draws = lottery(vec![candidate(0, 10.0), candidate(1, 5.0), candidate(2, 0.0)], &mut rng);
        assert_eq!(draws.len(), 2);
        first_wins += usize::from(draws[0].1.thread == 0);
    }
    assert!((14_700..15_300).contains(&first_wins), "{first_wins} of 20000");
}

#[test]
fn a_thread_last_seen_on_another_node_s_cpu_counts_on_the_least_used_one_of_its_own() {
    let astray = |thread: &mut Thread| thread.cpu = CpuId(3);
    let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(astray).thread(2, 0, None);
    let snapshot = builder.with_thread(|thread| thread.cpu = CpuId(0)).build();
    let board = cpu_board(&snapshot);
    assert_eq!(board.places[board.at[0]], Place { node: NodeIndex(0), cpu: Some(CpuId(1)) });
    assert!(board.is_empty(2) && board.is_empty(3));
}

#[test]
fn a_thread_that_may_not_run_on_its_node_is_on_no_place() {
    let closed = |thread: &mut Thread| thread.allowed = vec![false, true].into();
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).with_thread(closed).build();
    assert!(cpu_board(&snapshot).threads.is_empty());
}

#[test]
fn what_was_taken_is_in_the_way_of_the_next() {
    let topology = machine(&[2, 1], &[&[10, 21], &[21, 10]]);
    let builder = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 0, 1);
    let snapshot = builder.build();
    let mut board = cpu_board(&snapshot);
    let to_cpu_2 = |thread| Candidate { thread, to: 2, partner: None, points: 8.0 };
    assert!(board.gains(&to_cpu_2(0)) && board.gains(&to_cpu_2(1)));
    assert!(board.take(&to_cpu_2(0), "").is_some());
    assert!(!board.gains(&to_cpu_2(1)) && board.take(&to_cpu_2(1), "").is_none());
    let back = Candidate { thread: 0, to: 0, partner: None, points: 8.0 };
    assert!(board.take(&back, "").is_none());
}

#[test]
fn a_full_place_offers_exchanges_with_each_of_its_residents_that_may_come() {
    let stays = |thread: &mut Thread| thread.allowed = vec![false, true].into();
    let builder = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 1);
    let snapshot = builder.thread_with_memory_on(3, 1, 1).with_thread(stays).build();
    let board = Board::of_nodes(&snapshot, settled(&snapshot, 1.0), |_| true, scaled);
    let mut found = Vec::new();
    board.candidates(0, &mut found);
    assert_eq!(found.iter().map(|candidate| candidate.partner).collect::<Vec<_>>(), [Some(1)]);
}

#[test]
fn a_cpu_that_is_partly_used_is_free_for_the_rest_and_an_empty_slow_one_for_what_it_is_worth() {
    let light = |thread: &mut Thread| thread.cpu_time_ns = 400_000_000;
    let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 0).thread(2, 1, None);
    let mut snapshot = builder.with_thread(light).build();
    snapshot.threads[1].run_ns = vec![0, 400_000_000].into();
    assert_eq!(points(&cpu_board(&snapshot), 0), [1.0 + 2.0], "half a CPU is left");
    let slow = SnapshotBuilder::new(throttled(two_nodes(1), 1, 256)).thread_with_memory_on(1, 0, 0).build();
    assert_eq!(points(&cpu_board(&slow), 0), [0.5 + 2.0]);
}

/// Of two threads that change places for nothing else, the one that takes more is not sent where there is less room.
#[test]
fn an_exchange_counts_what_both_threads_take() {
    let light = |thread: &mut Thread| (thread.cpu_time_ns, thread.run_ns) = (200_000_000, vec![0, 200_000_000].into());
    let builder = SnapshotBuilder::new(throttled(two_nodes(1), 1, 256)).thread(1, 0, Some(&[1.0, 1.0]));
    let snapshot = builder.thread(2, 1, Some(&[1.0, 1.0])).with_thread(light).build();
    let board = Board::of_nodes(&snapshot, settled(&snapshot, 1.0), |_| true, |_, _, _, _| 0.0);
    let worse = Candidate { thread: 0, to: 1, partner: Some(1), points: 0.0 };
    assert!(!board.gains(&worse));
    let back = snapshot
        .after_thread_moves(&Plan { moves: planned(&snapshot, &[board.relocation(0, 1), board.relocation(1, 0)], "") });
    let board = Board::of_nodes(&back, settled(&back, 1.0), |_| true, |_, _, _, _| 0.0);
    assert!(board.gains(&Candidate { to: 0, ..worse }));
}
