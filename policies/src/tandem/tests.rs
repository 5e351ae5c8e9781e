// SPDX-License-Identifier: GPL-2.0-only

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::cold::Cold;
use super::problem::Problem;
use super::residents::{EXCHANGES, Residents};
use super::search::{Effort, State, solve};
use super::*;
use crate::anneal::below;
use crate::model::{Action, Move, PerNode, ProcessId, ProcessMemory, ThreadId, Topology, Transfers, Unmovable};
use crate::registry::{self, Memory};
use crate::testing::{SnapshotBuilder, decided, decided_with, machine, ring_of_four, two_nodes};

/// Pages of a group.
pub const ALL: u64 = 512;

pub fn planned(snapshot: &Snapshot) -> Plan {
    decided(&POLICY, snapshot, 1, u64::MAX).unwrap()
}

/// What moves, each with the node that it goes to.
pub type Destinations<T> = Vec<(T, usize)>;

/// Threads that move, and groups that move, by position.
pub fn moves(snapshot: &Snapshot, plan: &Plan) -> (Destinations<u32>, Destinations<usize>) {
    let (mut threads, mut groups) = (vec![], vec![]);
    for planned in &plan.moves {
        match planned.action {
            Action::MoveThread { thread, to, .. } => threads.push((thread.tid, to.0)),
            Action::Interchange { first, second, first_node, second_node } => {
                threads.extend([(first.tid, second_node.0), (second.tid, first_node.0)]);
            }
            Action::MovePages { group, to, .. } => {
                groups.push((snapshot.groups.iter().position(|known| known.id == group).unwrap(), to.0));
            }
        }
    }
    threads.sort_unstable();
    groups.sort_unstable();
    (threads, groups)
}

fn problem(snapshot: &Snapshot) -> Problem {
    let defaults = POLICY.defaults();
    let seen = Seen::of(snapshot, &defaults);
    seen.facts(&seen.room, &Horizons::all(10.0), &Still::default()).problem()
}

/// So much effort, from the first thread on.
fn effort(seed: u64, steps: u64) -> Effort {
    Effort { seed, steps, first: 0 }
}

/// A placement's cost, worked out anew.
fn cost(problem: &Problem, place: &[usize]) -> f64 {
    State::at(problem, place.to_vec()).cost()
}

fn lines(within_node: f64, across_nodes: f64) -> impl FnOnce(&mut Thread) {
    move |thread| thread.transfers_per_s = Some(Transfers { within_node, across_nodes })
}

#[test]
fn a_thread_with_a_gigabyte_elsewhere_goes_to_it() {
    let thread = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1);
    let snapshot = (0..512).fold(thread, |all, _| all.group_used_by(&[0, ALL], &[(1, 1e6 / 512.0)])).build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan), (vec![(1, 1)], vec![]));
    assert_eq!(plan.moves[0].gain_ns_per_s, Some(1e6 * 110.0));
    assert!(plan.moves[0].reason.contains("100 % of its accesses go to node 1"), "{}", plan.moves[0].reason);
}

#[test]
fn under_memory_pressure_plans_are_for_threads_alone() {
    let after = |is_bound: bool, unmovable: Option<Unmovable>| {
        let thread = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1);
        let bound = thread.with_thread(|thread| thread.allowed[NodeIndex(1)] &= !is_bound);
        let snapshot = bound.group_used_by(&[0, ALL], &[(1, 1e6)]).with_group(|group| group.unmovable = unmovable);
        let snapshot = snapshot.build();
        moves(&snapshot, &planned(&snapshot))
    };
    let pressed = Some(Unmovable::MemoryPressure);
    assert_eq!(after(false, pressed), (vec![(1, 1)], vec![]));
    assert_eq!((after(true, None), after(true, pressed)), ((vec![], vec![(0, 0)]), (vec![], vec![])));
}

#[test]
fn a_thread_that_goes_near_its_memory_is_told_so_where_there_is_no_cpu_left() {
    let threads = SnapshotBuilder::new(ring_of_four(1)).thread_with_memory_on(1, 2, 0).thread_with_memory_on(2, 0, 0);
    let of_both = [(1, 1e6 / 512.0), (2, 1e6 / 512.0)];
    let snapshot = (0..512).fold(threads, |all, _| all.group_used_by(&[ALL, 0, 0, 0], &of_both)).build();
    let plan = planned(&snapshot);
    let (threads, pages) = moves(&snapshot, &plan);
    assert!(threads == [(1, 1)] || threads == [(1, 3)], "{plan:?}");
    assert_eq!(pages, []);
    assert!(plan.moves[0].reason.ends_with("is nearer to the memory that it uses"), "{}", plan.moves[0].reason);
}

/// Ten threads on a full node whose five groups are on the other, which is full as well.
fn memory_elsewhere() -> Snapshot {
    let threads = (1..=10).fold(SnapshotBuilder::new(two_nodes(10)), |all, tid| all.thread_with_memory_on(tid, 0, 1));
    // Threads of another process whose memory is where they are.
    let full = (11..=20).fold(threads, |all, tid| {
        all.thread_with_memory_on(tid, 1, 1).with_thread(|thread| thread.process = ProcessId(2))
    });
    let users: Vec<(u32, f64)> = (1..=10).map(|tid| (tid, 1e6 / 5.0)).collect();
    (0..5).fold(full, |all, _| all.group_used_by(&[0, ALL], &users)).build()
}

#[test]
fn the_pages_that_ten_threads_of_a_full_node_share_come_to_them() {
    let snapshot = memory_elsewhere();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan), (vec![], (0..5).map(|group| (group, 0)).collect()));
}

#[test]
fn memory_in_common_goes_nowhere_against_the_few_that_were_seen_to_use_it() {
    let last_seen_from = |tid: u32, other_goes: bool| {
        let threads = (0..8).fold(SnapshotBuilder::new(two_nodes(8)), |all, tid| {
            // Threads cannot go to the memory.
            let node = usize::from(tid > 0);
            let stays = |thread: &mut Thread| thread.allowed = PerNode::from_fn(2, |at| at.0 == node);
            all.thread(tid, node, Some(&[1e6, 0.0])).with_thread(stays)
        });
        let memory = usize::from(other_goes);
        let other = |thread: &mut Thread| thread.process = ProcessId(2);
        let threads = threads.thread_with_memory_on(8, 0, memory).with_thread(other);
        let users: Vec<(u32, f64)> = (0..8).map(|tid| (tid, 2.5e5)).collect();
        let common = (0..31).fold(threads, |all, _| all.group_used_by(&[ALL, 0], &users));
        let last = common.group_used_by(&[ALL, 0], &[(tid, 2.5e5)]);
        let snapshot = last.with_group(|group| group.samples = 2.0).build();
        let (threads, groups) = moves(&snapshot, &planned(&snapshot));
        assert_eq!(threads.len(), memory);
        assert!(groups[..31].iter().copied().eq((0..31).map(|at| (at, 1))), "{groups:?}");
        groups.len() == 32
    };
    for other_goes in [false, true] {
        assert_eq!([last_seen_from(0, other_goes), last_seen_from(7, other_goes)], [false, true], "{other_goes}");
    }
}

#[test]
fn pages_stay_off_nodes_whose_memory_their_process_may_not_use() {
    let with = |allowed: [bool; 2]| {
        let mut snapshot = memory_elsewhere();
        let memory = ProcessMemory { allowed: allowed.to_vec().into() };
        snapshot.process_memory.insert(ProcessId(1), memory);
        moves(&snapshot, &planned(&snapshot)).1.len()
    };
    assert_eq!([with([true, true]), with([false, true])], [5, 0]);
}

/// Each of these pages saves 0.43 ms a second, within 10 s of the horizon 4.3 ms.
#[test]
fn what_a_page_was_measured_to_cost_decides_and_not_what_was_assumed() {
    let with = |measured_ns, assumed_ns| {
        let snapshot = Snapshot { page_move_ns: measured_ns, ..memory_elsewhere() };
        let given = BTreeMap::from([("page_move_ns".to_owned(), assumed_ns)]);
        let parameters = POLICY.parameters(&given).unwrap();
        decide_within(&snapshot, &parameters, &Horizons::all(10.0), effort(1, u64::MAX)).plan.moves.len()
    };
    assert_eq!([with(None, 2e6), with(None, 1e7)], [5, 0]);
    assert_eq!([with(Some(2e6), 1e7), with(Some(1e7), 2e6)], [5, 0]);
    assert_eq!([with(Some(1e9), 2e5), with(Some(1e9), 2e6)], [5, 0], "ten times what is assumed at most");
    assert_eq!([with(Some(0.0), 1e7), with(Some(f64::NAN), 1e7)], [0, 0], "nothing was measured");
}

/// As above: what plans brought so far says what a move must be worth.
#[test]
fn where_plans_brought_less_than_predicted_moves_must_promise_more() {
    let with = |realised_share, assumed_ns| {
        let snapshot = Snapshot { realised_share, ..memory_elsewhere() };
        let given = BTreeMap::from([("page_move_ns".to_owned(), assumed_ns)]);
        let parameters = POLICY.parameters(&given).unwrap();
        decide_within(&snapshot, &parameters, &Horizons::all(10.0), effort(1, u64::MAX)).plan.moves.len()
    };
    assert_eq!([with(None, 2e6), with(Some(1.0), 2e6), with(Some(0.2), 2e6)], [5, 5, 0]);
    assert_eq!([with(Some(0.5), 2e6), with(Some(3.0), 1e7)], [5, 0], "who brought more than predicted was lucky");
    assert_eq!([with(Some(-1.0), 1e6), with(Some(-1.0), 4e6)], [5, 0], "a quarter at least");
    assert_eq!(with(Some(f64::NAN), 2e6), 5);
}

/// As above, each group one huge page.
#[test]
fn a_huge_page_moves_at_its_own_price() {
    let with = |huge, measured_ns, assumed_ns| {
        let mut snapshot = Snapshot { huge_page_move_ns: measured_ns, ..memory_elsewhere() };
        snapshot.groups.iter_mut().for_each(|group| group.huge = huge);
        let given = BTreeMap::from([("huge_page_move_ns".to_owned(), assumed_ns), ("page_move_ns".to_owned(), 2e6)]);
        let parameters = POLICY.parameters(&given).unwrap();
        decide_within(&snapshot, &parameters, &Horizons::all(10.0), effort(1, u64::MAX)).plan.moves.len()
    };
    assert_eq!([with(true, None, 2e6 * 512.0), with(true, None, 1e7 * 512.0)], [5, 0]);
    assert_eq!([with(true, Some(2e6 * 512.0), 1e7 * 512.0), with(true, Some(1e7 * 512.0), 2e6 * 512.0)], [5, 0]);
    assert_eq!([with(false, Some(1e7 * 512.0), 1e7 * 512.0)], [5], "of base pages it says nothing");
}

#[test]
fn two_threads_that_exchange_lines_come_together() {
    let one = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(lines(0.0, 1e6));
    let snapshot = one.thread(2, 1, None).with_thread(lines(0.0, 1e6)).shared(0, 1, 1e5).build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0.len(), 1, "{plan:?}");
    // 2e6 transfers a second, 110 ns each.
    assert_eq!(plan.moves[0].gain_ns_per_s, Some(2e6 * 110.0));
    assert!(plan.moves[0].reason.contains("exchanges lines"), "{}", plan.moves[0].reason);
}

#[test]
fn threads_that_wake_each_other_come_together() {
    let woken_by =
        |tid| move |thread: &mut Thread| thread.woken_by = Some((ThreadId { tid, start_boottime_ns: 1 }, 1e4));
    let one = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(woken_by(2));
    let snapshot = one.thread(2, 1, None).with_thread(woken_by(1)).build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0.len(), 1, "{plan:?}");
    // 2e4 wake-ups a second, 50 lines each, 110 ns each.
    assert_eq!(plan.moves[0].gain_ns_per_s, Some(1e6 * 110.0));
    assert!(plan.moves[0].reason.contains("exchanges lines"), "{}", plan.moves[0].reason);
}

/// Exchanges that are as many a second, known from so few wake-ups or samples that they may be chance.
#[test]
fn partners_that_few_wakeups_or_samples_tell_of_do_not_come_together() {
    let wake_each_other = |nodes: usize, interval_ns: u64| {
        let woken_by = |tid| {
            move |thread: &mut Thread| {
                thread.woken_by = Some((ThreadId { tid, start_boottime_ns: 1 }, 1e4));
                thread.cpu_time_ns = interval_ns;
            }
        };
        let topology = if nodes == 2 { two_nodes(2) } else { ring_of_four(2) };
        let one = SnapshotBuilder::new(topology).thread(1, 0, None).with_thread(woken_by(2));
        let snapshot = one.thread(2, 1, None).with_thread(woken_by(1)).build();
        planned(&Snapshot { interval_ns, ..snapshot }).moves.len()
    };
    for nodes in [2, 4] {
        let moved = [400_000, 10_000_000].map(|interval_ns| wake_each_other(nodes, interval_ns));
        assert_eq!(moved, [0, 1], "4 wake-ups each, and 100");
    }
    let share = |samples: f64, shared: f64| {
        let lines = |within_node: f64, across_nodes: f64| {
            move |thread: &mut Thread| thread.transfers_per_s = Some(Transfers { within_node, across_nodes })
        };
        let near = |node: usize| if node == 0 { [1e4, 0.0] } else { [0.0, 1e4] };
        let one = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, Some(&near(0))).with_thread(lines(0.0, 1e6));
        let two = one.thread(2, 1, Some(&near(1))).with_thread(lines(0.0, 1e6)).shared(0, 1, shared);
        let mut snapshot = two.group_used_by(&[8, 0], &[(1, 1e4)]).group_used_by(&[0, 8], &[(2, 1e4)]).build();
        snapshot.groups.iter_mut().for_each(|group| group.samples = samples);
        moves(&snapshot, &planned(&snapshot)).0.len()
    };
    assert_eq!([(2.0, 1e4), (100.0, 1e4), (100.0, 200.0)].map(|(samples, shared)| share(samples, shared)), [0, 1, 0]);
}

#[test]
fn sharing_without_transfers_brings_nobody_together() {
    let one = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0);
    let snapshot = one.thread_with_memory_on(2, 1, 1).shared(0, 1, 1e9).build();
    assert!(planned(&snapshot).is_empty());
}

#[test]
fn a_thread_leaves_a_node_with_more_threads_than_cpus() {
    let hogs = (1..=3).fold(SnapshotBuilder::new(two_nodes(2)), |all, tid| all.thread(tid, 0, Some(&[0.0, 0.0])));
    let snapshot = hogs.build();
    let plan = planned(&snapshot);
    assert_eq!(moves(&snapshot, &plan).0.len(), 1);
    // One CPU less the slack.
    assert_eq!(plan.moves[0].gain_ns_per_s.map(|gain| (gain / 1e7).round()), Some(95.0));
    assert!(plan.moves[0].reason.contains("more to run than CPUs"), "{}", plan.moves[0].reason);
}

#[test]
fn a_thread_does_not_follow_its_memory_to_a_full_node() {
    let full = (1..=2).fold(SnapshotBuilder::new(two_nodes(2)), |all, tid| all.thread_with_memory_on(tid, 0, 0));
    let snapshot = full.thread_with_memory_on(3, 1, 0).build();
    assert!(planned(&snapshot).is_empty(), "to have a CPU is worth more than near memory that cannot move");
}

#[test]
fn threads_that_would_be_better_off_with_each_others_place_change_places() {
    let one = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1);
    let snapshot = one.thread_with_memory_on(2, 1, 0).build();
    let plan = planned(&snapshot);
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(moves(&snapshot, &plan).0, [(1, 1), (2, 0)]);
    assert!(!plan.moves[0].reason.contains("more to run"), "nobody waits for a CPU: {}", plan.moves[0].reason);
}

#[test]
fn what_a_thread_waits_for_is_no_more_than_it_ran() {
    // Ten misses in flight: 2.1 s of latency a second.
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, Some(&[0.0, 1e7])).build();
    let scale = problem(&snapshot).threads[0].scale;
    assert!((scale - 1.0 / 2.1).abs() < 1e-12, "{scale}");
}

/// A number of events that are `mean` in the mean.
fn poisson(rng: &mut Pcg64, mean: f64) -> f64 {
    let (mut product, mut events) = (1.0, -1.0);
    while product > libm::exp(-mean) {
        product *= (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        events += 1.0;
    }
    events
}

/// Threads that use groups, as a sampler sees it: by group, its node (or pages on all nodes) and the mean samples of each
/// thread; a sample stands for 1000 accesses a second.
fn sampled(seed: u64, topology: Topology, threads: &[usize], groups: &[(Option<usize>, Vec<f64>)]) -> Snapshot {
    let (mut rng, nodes) = (Pcg64::seed_from_u64(seed), topology.len());
    let mut rows = vec![vec![0.0; nodes]; threads.len()];
    let mut drawn = Vec::new();
    for (home, means) in groups {
        let resident: Vec<u64> =
            (0..nodes).map(|node| home.map_or(ALL / nodes as u64, |home| if home == node { ALL } else { 0 })).collect();
        let seen: Vec<f64> = means.iter().map(|&mean| poisson(&mut rng, mean)).collect();
        for (row, &seen) in rows.iter_mut().zip(&seen) {
            let pages: u64 = resident.iter().sum();
            row.iter_mut().zip(&resident).for_each(|(cell, &here)| *cell += 1e3 * seen * here as f64 / pages as f64);
        }
        drawn.push((resident, seen));
    }
    let add = |all: SnapshotBuilder, (tid, &node): (usize, &usize)| all.thread(tid as u32, node, Some(&rows[tid]));
    let mut builder = threads.iter().enumerate().fold(SnapshotBuilder::new(topology), add);
    for (resident, seen) in drawn {
        let users: Vec<(u32, f64)> =
            (0..).zip(&seen).filter(|user| *user.1 > 0.0).map(|(tid, &seen)| (tid, 1e3 * seen)).collect();
        builder = builder.group_used_by(&resident, &users).with_group(|group| group.samples = seen.iter().sum());
    }
    builder.build()
}

#[test]
fn nothing_moves_by_chance() {
    let apart = [0, 0, 0, 0, 1, 1, 1, 1];
    let all_shared: Vec<_> = (0..32).map(|_| (None, vec![4.0; 8])).collect();
    let shared_by_homes: Vec<_> = (0..32).map(|group| (Some(group % 2), vec![4.0; 8])).collect();
    let own = |group: usize| (0..8).map(|thread| if thread == group / 4 { 30.0 } else { 0.0 }).collect();
    let at_home: Vec<_> = (0..32).map(|group| (Some(apart[group / 4]), own(group))).collect();
    let faint: Vec<_> = (0..256).map(|group| (Some(group % 2), vec![0.2; 8])).collect();
    for seed in 0..100 {
        for (name, groups) in
            [("shared", &all_shared), ("by homes", &shared_by_homes), ("own", &at_home), ("faint", &faint)]
        {
            let snapshot = sampled(seed, two_nodes(4), &apart, groups);
            let plan = planned(&snapshot);
            assert!(plan.is_empty(), "{name}, seed {seed}: {:?}", moves(&snapshot, &plan));
        }
    }
}

#[test]
fn two_players_of_ping_pong_stay() {
    for seed in 0..100 {
        let own = |player: usize| {
            let mut means = vec![0.0; 2];
            means[player] = 60.0;
            (Some(player), means)
        };
        let groups: Vec<_> = (0..32).map(|group| own(group / 16)).collect();
        let mut snapshot = sampled(seed, two_nodes(4), &[0, 1], &groups);
        snapshot.threads.iter_mut().for_each(|thread| {
            thread.accesses_per_s =
                thread.accesses_per_s.take().map(|row| PerNode::from_fn(2, |node| 10.0 * row[node]));
            lines(0.0, 8e4)(thread);
        });
        let (first, second) = (snapshot.threads[0].id, snapshot.threads[1].id);
        snapshot.threads[0].sharing = vec![(second, 1e5)];
        snapshot.threads[1].sharing = vec![(first, 1e5)];
        assert!(planned(&snapshot).is_empty(), "seed {seed}");
    }
}

#[test]
fn without_room_threads_go_and_pages_stay() {
    let full = |mut topology: Topology| {
        topology.nodes.values_mut().for_each(|node| node.free_pages = 0);
        topology
    };
    let cross = |topology: Topology| {
        let one = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
        let first = (0..4).fold(one, |all, _| all.group_used_by(&[0, ALL], &[(1, 2.5e5)]));
        (0..4).fold(first, |all, _| all.group_used_by(&[ALL, 0], &[(2, 2.5e5)])).build()
    };
    let snapshot = cross(full(two_nodes(1)));
    assert_eq!(moves(&snapshot, &planned(&snapshot)), (vec![(1, 1), (2, 0)], vec![]));
}

#[test]
fn memory_goes_to_memory_only_nodes_never() {
    let topology = machine(&[1, 0], &[&[10, 9], &[9, 10]]);
    let thread = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 0);
    let snapshot = thread.group_used_by(&[ALL, 0], &[(1, 1e6)]).build();
    assert!(planned(&snapshot).is_empty());
}

#[test]
fn without_any_signal_it_says_which_is_missing() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
    let error = decided(&POLICY, &snapshot, 1, u64::MAX).unwrap_err();
    assert_eq!(error, MissingSignal { policy: "tandem", signal: Signal::ThreadAccesses });
}

#[test]
fn the_plan_after_a_plan_is_empty() {
    let one = SnapshotBuilder::new(ring_of_four(1)).thread_with_memory_on(1, 0, 2).thread_with_memory_on(2, 2, 0);
    let snapshot = one.thread_with_memory_on(3, 1, 1).build();
    let mut memory = Memory::default();
    let plan = decided_with(&POLICY, &snapshot, &mut memory).unwrap();
    assert!(!plan.is_empty());
    let mut after = snapshot.after_thread_moves(&plan);
    after.time_ns += 1_000_000_000;
    assert!(decided_with(&POLICY, &after, &mut memory).unwrap().is_empty());
}

mod cold;
mod crossed;
mod crowds;
mod doubt;
mod gains;
mod horizons;
mod many;
mod owners;
mod payback;
mod search;
mod spread;
mod stays;
mod together;

#[test]
fn it_is_in_the_registry_as_a_joint_policy() {
    assert!(std::ptr::eq(registry::find(Kind::Joint, "tandem").unwrap(), &POLICY));
}
