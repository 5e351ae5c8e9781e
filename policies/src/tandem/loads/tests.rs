// SPDX-License-Identifier: GPL-2.0-only

use crate::knee::{Knee, Load};
use crate::model::{NodeIndex, NodeLoad, ProcessId, ProcessMemory, Snapshot, Thread};
use crate::tandem::tests::{ALL, moves, planned};
use crate::testing::{SnapshotBuilder, machine, two_nodes};

/// Eight threads, four a node, which read 32 groups alike, all on node 0; nobody knows how long they wait there.
fn readers() -> Snapshot {
    let threads = (0..8)
        .fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid, tid as usize / 4, Some(&[3.2e7, 0.0])));
    let users: Vec<(u32, f64)> = (0..8).map(|tid| (tid, 1e6)).collect();
    (0..32).fold(threads, |all, _| all.group_used_by(&[ALL, 0], &users)).build()
}

/// The same, and how long they wait.
fn scanners(wait_ns: f64) -> Snapshot {
    let mut snapshot = readers();
    snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(155.0 + wait_ns);
    snapshot
}

#[test]
fn pages_of_a_memory_that_all_wait_for_are_spread() {
    let (threads, groups) = moves(&scanners(0.0), &planned(&scanners(0.0)));
    assert!(threads.is_empty() && groups.is_empty(), "nobody waits");
    let snapshot = scanners(100.0);
    let (threads, groups) = moves(&snapshot, &planned(&snapshot));
    assert!(threads.is_empty() && (13..=16).contains(&groups.len()), "half of them go: {groups:?}");
}

#[test]
fn service_times_follow_from_waits() {
    // 12.5e6 accesses a second, 40 ns each: busy half of the time, 40 x 0.5 / (2 x 0.5) = 20 ns of wait.
    let load = Load { per_s: 12.5e6, waited_per_s: 12.5e6 };
    let mut snapshot = SnapshotBuilder::new(two_nodes(1)).build();
    let served = |ns| NodeLoad { served_latency_ns: Some(ns), ..NodeLoad::default() };
    snapshot.nodes = vec![served(120.0), served(100.0)].into();
    let knee = Knee::of(&snapshot, &[load, Load::default()], &[100.0, 100.0]).unwrap();
    assert!((knee.wait_ns(0, 12.5e6) - 20.0).abs() < 1e-9);
    // 20 x 0.75 / 0.25; and the idle memory is taken to be like it.
    assert!((knee.wait_ns(1, 18.75e6) - 60.0).abs() < 1e-9);
    assert!(knee.wait_ns(1, 50e6) > knee.wait_ns(1, 25e6), "and goes on rising");
    snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(104.0);
    assert_eq!(Knee::of(&snapshot, &[load, load], &[100.0, 100.0]), None, "nobody waits");
}

#[test]
fn memory_that_nodes_use_alike_is_spread_where_nobody_can_tell_how_long_it_is_waited_for() {
    let snapshot = readers();
    let (threads, groups) = moves(&snapshot, &planned(&snapshot));
    assert!(threads.is_empty() && (8..=16).contains(&groups.len()), "until the rest waits little: {groups:?}");
    let mut spread = readers();
    spread.groups.iter_mut().step_by(2).for_each(|group| group.resident_pages = vec![0, ALL].into());
    spread.threads.iter_mut().for_each(|thread| thread.accesses_per_s = Some(vec![1.6e7, 1.6e7].into()));
    assert_eq!(moves(&spread, &planned(&spread)), (vec![], vec![]), "and stay there");
}

#[test]
fn memories_whose_loads_differ_by_chance_are_left_alone() {
    // A quarter of the groups is on node 1, where samples say so much of the loads.
    let with_samples = |samples: f64| {
        let mut snapshot = readers();
        for (at, group) in snapshot.groups.iter_mut().enumerate() {
            group.resident_pages = if at % 4 == 0 { vec![0, ALL] } else { vec![ALL, 0] }.into();
            group.samples = samples;
        }
        snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = Some(vec![2.4e7, 8e6].into()));
        moves(&snapshot, &planned(&snapshot))
    };
    // Of 32 samples 24 and 8 at each: 16 apart, and chance makes 3 x 5.7. Of 320 it is 160 and 54.
    assert_eq!(with_samples(1.0), (vec![], vec![]));
    assert_ne!(with_samples(10.0), (vec![], vec![]));
}

#[test]
fn a_group_that_one_node_happened_to_be_seen_to_use_more_is_spread_until_many_samples_say_so() {
    let with_samples = |samples: f64| {
        let mut snapshot = readers();
        for group in &mut snapshot.groups {
            (group.accesses_per_s, group.samples) = (vec![6e6, 2e6].into(), samples);
        }
        moves(&snapshot, &planned(&snapshot)).1.len()
    };
    assert!(with_samples(8.0) >= 8, "six of eight may be chance: {}", with_samples(8.0));
    assert_eq!(with_samples(100.0), 0);
}

#[test]
fn a_group_that_only_one_node_was_seen_to_use_is_not_spread() {
    let mut snapshot = readers();
    for group in &mut snapshot.groups {
        group.accesses_per_s = vec![8e6, 0.0].into();
    }
    assert_eq!(moves(&snapshot, &planned(&snapshot)), (vec![], vec![]));
}

#[test]
fn memory_leaves_its_users_for_measured_waits_only() {
    // Four threads of node 0 use as much, all of it near: on node 1 it would be far.
    let near = |served_ns: Option<f64>| {
        let threads =
            (0..4).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid, 0, Some(&[6.4e7, 0.0])));
        let users: Vec<(u32, f64)> = (0..4).map(|tid| (tid, 2e6)).collect();
        let mut snapshot = (0..32).fold(threads, |all, _| all.group_used_by(&[ALL, 0], &users)).build();
        snapshot.nodes[NodeIndex(0)].served_latency_ns = served_ns;
        moves(&snapshot, &planned(&snapshot))
    };
    assert_eq!(near(None), (vec![], vec![]));
    assert_ne!(near(Some(1000.0)), (vec![], vec![]));
}

#[test]
fn memory_that_is_waited_for_is_spread_over_nodes_that_its_process_may_use() {
    let topology = machine(&[4, 4, 4], &[&[10, 21, 15], &[21, 10, 21], &[15, 21, 10]]);
    let goes = |allowed: [bool; 3]| {
        let bound = |thread: &mut Thread| thread.allowed = vec![true, false, false].into();
        let threads = (0..4).fold(SnapshotBuilder::new(topology.clone()), |all, tid| {
            all.thread(tid, 0, Some(&[6.4e7, 0.0, 0.0])).with_thread(bound)
        });
        let users: Vec<(u32, f64)> = (0..4).map(|tid| (tid, 2e6)).collect();
        let mut snapshot = (0..32).fold(threads, |all, _| all.group_used_by(&[ALL, 0, 0], &users)).build();
        snapshot.nodes[NodeIndex(0)].served_latency_ns = Some(1000.0);
        snapshot.process_memory.insert(ProcessId(1), ProcessMemory { allowed: allowed.to_vec().into() });
        moves(&snapshot, &planned(&snapshot)).1
    };
    assert!(goes([true; 3]).iter().any(|&(_, to)| to == 2), "it is the nearest");
    let to_the_other = goes([true, true, false]);
    assert!(!to_the_other.is_empty() && to_the_other.iter().all(|&(_, to)| to == 1), "{to_the_other:?}");
}
