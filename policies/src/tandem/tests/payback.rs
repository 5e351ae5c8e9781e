// SPDX-License-Identifier: GPL-2.0-only
//! The migration-cost benchmark (Laso, thesis of 2023, algorithm 4.1): threads that are bound to two nodes, pages half on each, and
//! a share s of the accesses to each page from where it is. Moving pages helped below s = 1/2 and harmed from there on, where
//! it is cost alone.

use super::*;

/// Threads of each node.
const THREADS: u32 = 4;
/// Groups of each node.
const GROUPS: usize = 40;
const ACCESSES_PER_S: f64 = 1e7;

/// The benchmark, at a share of local accesses; all of them together are so many a thread and second.
fn benchmark(local: f64, accesses_per_s: f64) -> Snapshot {
    let node_of = |tid: u32| usize::from(tid >= THREADS);
    // Of its accesses a thread has this share at each group of its own node, and of the other.
    let share = |at_home: bool| if at_home { local } else { 1.0 - local };
    let threads = (0..2 * THREADS).fold(SnapshotBuilder::new(two_nodes(THREADS)), |all, tid| {
        let home = node_of(tid);
        let accesses: Vec<f64> = (0..2).map(|node| accesses_per_s * share(node == home)).collect();
        let bound = |thread: &mut Thread| thread.allowed = PerNode::from_fn(2, |node| node.0 == home);
        all.thread(tid, home, Some(&accesses)).with_thread(bound)
    });
    let groups = (0..2 * GROUPS).fold(threads, |all, group| {
        let home = group % 2;
        let users: Vec<(u32, f64)> = (0..2 * THREADS)
            .map(|tid| (tid, accesses_per_s * share(node_of(tid) == home) / GROUPS as f64))
            .filter(|user| user.1 > 0.0)
            .collect();
        let resident: Vec<u64> = (0..2).map(|node| if node == home { ALL } else { 0 }).collect();
        all.group_used_by(&resident, &users).with_group(|group| group.samples = 1e4)
    });
    groups.build()
}

/// Groups that move to the other node, where a page takes so long to move.
fn moved(snapshot: &Snapshot, page_ns: f64) -> usize {
    let snapshot = Snapshot { page_move_ns: Some(page_ns), ..snapshot.clone() };
    let (threads, groups) = moves(&snapshot, &planned(&snapshot));
    assert!(threads.is_empty() && groups.iter().all(|&(group, to)| to != group % 2), "{groups:?}");
    groups.len()
}

#[test]
fn pages_move_where_less_than_half_of_their_accesses_are_local() {
    let moved = |local| moved(&benchmark(local, ACCESSES_PER_S), 1000.0);
    assert_eq!([0.0, 0.1, 0.25, 0.4].map(moved), [2 * GROUPS; 4]);
    assert_eq!([0.5, 0.6, 0.75, 1.0].map(moved), [0; 4]);
}

/// Time saved grows with 1/2 - s, as in the benchmark: what just pays at s = 0 does not at s = 1/4, for a price between.
#[test]
fn the_less_is_saved_the_less_pages_may_cost() {
    let dearest = |local: f64| {
        let snapshot = benchmark(local, 1e5);
        let prices = (0..60).map(|step| 1000.0 * 1.2_f64.powi(step));
        prices.take_while(|&page_ns| moved(&snapshot, page_ns) == 2 * GROUPS).last().expect("cheap enough at first")
    };
    let [all, half] = [0.0, 0.25].map(dearest);
    // Of all accesses a move brings 1 - 2s, and each price is 1.2 times the one before.
    assert!((1.6..=2.5).contains(&(all / half)), "{all} and {half} ns a page");
}
