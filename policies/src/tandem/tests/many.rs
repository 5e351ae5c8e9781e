// SPDX-License-Identifier: GPL-2.0-only
//! Thousands of threads.

use super::*;

/// Threads of the machine: one a CPU, on four nodes.
const THREADS: u32 = 4096;
/// The last of them are crossed: two by two, each on the other's node, where its memory is not.
const CROSSED: u32 = 16;

/// The home of a thread, and whether it is crossed.
fn home(tid: u32) -> (usize, bool) {
    ((tid % 4) as usize, tid >= THREADS - CROSSED)
}

/// Threads at home with their memory, but for those that are crossed.
fn the_last_are_crossed() -> Snapshot {
    (0..THREADS)
        .fold(SnapshotBuilder::new(ring_of_four(THREADS / 4)), |all, tid| {
            let (home, is_crossed) = home(tid);
            all.thread_with_memory_on(tid, if is_crossed { 3 - home } else { home }, home)
        })
        .build()
}

/// Those that are crossed go home.
fn all_home() -> Destinations<u32> {
    (0..THREADS).filter(|&tid| home(tid).1).map(|tid| (tid, home(tid).0)).collect()
}

#[test]
fn of_4096_threads_the_last_go_home_at_once() {
    let snapshot = the_last_are_crossed();
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0, all_home());
}

/// With steps for a quarter of the threads a decision.
#[test]
fn threads_for_which_there_are_no_steps_left_come_first_in_the_next_decision() {
    let snapshot = the_last_are_crossed();
    let (parameters, mut memory) = (POLICY.defaults(), Memory::default());
    let mut decide = |snapshot: &Snapshot| {
        let steps = 18 * u64::from(THREADS) / 4;
        let plan = decide(&mut Inputs { snapshot, parameters: &parameters, memory: &mut memory, seed: 1, steps });
        moves(snapshot, &plan.unwrap()).0
    };
    let decisions: Vec<_> = (0..4).map(|_| decide(&snapshot)).collect();
    assert_eq!((&decisions[0], &decisions[2]), (&vec![], &all_home()));
}

/// Losers that are kept in order and follow changes are those that sorting all of them anew gives.
#[test]
fn those_that_lose_least_are_told_as_if_all_were_sorted_anew() {
    let mut rng = Pcg64::seed_from_u64(1);
    let threads = (0..400).fold(SnapshotBuilder::new(ring_of_four(100)), |all, tid| {
        let row: Vec<f64> = (0..4).map(|_| below(&mut rng, 1000) as f64 * 1e3).collect();
        all.thread(tid, below(&mut rng, 4), Some(&row))
    });
    let snapshot = threads.build();
    let problem = problem(&snapshot);
    let mut place: Vec<usize> = problem.threads.iter().map(|thread| thread.present).collect();
    let mut residents = Residents::of(&problem, &place);
    for _ in 0..5000 {
        let (any, to) = (problem.movable[below(&mut rng, problem.movable.len())], below(&mut rng, 4));
        // Those that come first go most, as they do in a search.
        let first = residents.losers(&problem, below(&mut rng, 4), to).next();
        let thread = first.filter(|_| below(&mut rng, 4) > 0).unwrap_or(any);
        if to != place[thread] {
            residents.go(&problem, thread, place[thread], to);
            place[thread] = to;
        }
        let (on, to) = (below(&mut rng, 4), below(&mut rng, 4));
        let loss = |&thread: &usize| problem.row(thread)[to] - problem.row(thread)[on];
        let mut all: Vec<usize> = problem.movable.iter().copied().filter(|&thread| place[thread] == on).collect();
        all.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(a.cmp(b)));
        all.truncate(EXCHANGES);
        assert_eq!(residents.losers(&problem, on, to).take(EXCHANGES).collect::<Vec<_>>(), all);
    }
}
