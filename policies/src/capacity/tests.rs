// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::testing::{SnapshotBuilder, throttled, two_nodes};

const WHOLE: u64 = FULL_CAPACITY;
const SECOND_NS: u64 = 1_000_000_000;

/// Uses `percent` of a CPU.
fn uses(percent: u64) -> impl FnOnce(&mut Thread) {
    move |thread| {
        thread.cpu_time_ns = percent * SECOND_NS / 100;
        let node = thread.node;
        thread.run_ns = PerNode::from_fn(thread.run_ns.len(), |at| if at == node { thread.cpu_time_ns } else { 0 });
    }
}

fn demands_of(snapshot: &Snapshot) -> Vec<u64> {
    demands(snapshot, &snapshot.threads.iter().collect::<Vec<_>>())
}

/// Room of one of the nodes of a machine of `cpus` CPUs a node on `nodes` nodes, for `threads` that take a whole CPU.
fn room(cpus: u64, nodes: u64, threads: u64) -> Room {
    Room::of(cpus * WHOLE, nodes * cpus * WHOLE, threads * WHOLE)
}

#[test]
fn a_thread_takes_a_quarter_more_than_it_uses_and_at_most_a_whole_cpu() {
    let mut builder = SnapshotBuilder::new(two_nodes(4));
    for (tid, percent) in [20, 40, 80, 100].into_iter().enumerate() {
        builder = builder.thread(tid as u32, 0, None).with_thread(uses(percent));
    }
    assert_eq!(demands_of(&builder.build()), [256, 512, WHOLE, WHOLE]);
}

#[test]
fn a_thread_that_just_began_takes_what_it_used_since_then() {
    let builder = SnapshotBuilder::new(two_nodes(4)).thread(1, 0, None).with_thread(uses(20));
    let mut snapshot = builder.build();
    snapshot.time_ns = 100 * SECOND_NS;
    let mut demand_from = |begun_ns: u64| {
        snapshot.threads[0].id.start_boottime_ns = begun_ns;
        demands_of(&snapshot)[0]
    };
    assert_eq!(demand_from(99 * SECOND_NS + SECOND_NS / 2), 512, "20 % of a second within half a second");
    assert_eq!(demand_from(100 * SECOND_NS - SECOND_NS / 5), WHOLE);
    assert_eq!([1, 99, 101].map(|at| demand_from(at * SECOND_NS)), [256; 3], "the machine slept");
}

#[test]
fn where_all_cpus_are_busy_what_a_thread_uses_does_not_tell_what_it_wants() {
    let crowded =
        (0..4).fold(SnapshotBuilder::new(two_nodes(2)), |all, tid| all.thread(tid, 0, None).with_thread(uses(50)));
    assert_eq!(demands_of(&crowded.build()), [WHOLE; 4]);
    let others = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(uses(20));
    let mut snapshot = others.build();
    snapshot.nodes[NodeIndex(0)].busy_ns = 2 * SECOND_NS;
    assert_eq!(demands_of(&snapshot), [WHOLE], "tasks that are not managed keep them busy");
}

#[test]
fn time_on_a_slow_cpu_takes_as_much_as_that_cpu_is_worth() {
    let builder = SnapshotBuilder::new(throttled(two_nodes(4), 1, 512)).thread(1, 1, None).with_thread(uses(40));
    assert_eq!(demands_of(&builder.thread(2, 1, None).with_thread(uses(100)).build()), [256, WHOLE]);
}

#[test]
fn a_thread_that_did_not_run_takes_what_its_cpu_time_says() {
    let mut snapshot = SnapshotBuilder::new(two_nodes(4)).thread(1, 0, None).with_thread(uses(40)).build();
    snapshot.threads[0].run_ns = PerNode::filled(2, 0);
    assert_eq!(demands_of(&snapshot), [512]);
    snapshot.interval_ns = 0;
    assert_eq!(demands_of(&snapshot), [WHOLE], "no interval, no share");
}

#[test]
fn room_is_the_capacity_until_there_is_more_demand() {
    for threads in 0..=6 {
        assert_eq!(room(3, 2, threads), room(3, 2, 0));
    }
    assert_eq!(room(3, 2, 0).most_points(), 6.0);
    assert_eq!(room(3, 2, 12).most_points(), 12.0);
    assert_eq!(Room::of(0, 4 * WHOLE, 9 * WHOLE).most_points(), 0.0, "no CPU");
    assert_eq!(Room::of(0, 0, 9 * WHOLE).most_points(), 0.0, "no CPU anywhere");
}

#[test]
fn a_full_place_gives_no_point_for_being_free() {
    let two = room(2, 2, 4);
    assert_eq!((two.joining(WHOLE, WHOLE), two.joining(2 * WHOLE, WHOLE)), (FREE, 0.0));
    assert_eq!((two.is_free(2 * WHOLE - 1), two.is_free(2 * WHOLE)), (true, false));
}

#[test]
fn residents_of_an_over_full_node_keep_the_points_there_are() {
    let two = room(2, 2, 4);
    assert_eq!((two.points(2 * WHOLE), two.points(5 * WHOLE)), (4.0, 4.0));
}

#[test]
fn unscored_room_is_as_much_and_worth_nothing() {
    let limit = room(2, 2, 9).unscored();
    assert_eq!((limit.is_free(4 * WHOLE), limit.is_free(5 * WHOLE)), (true, false));
    assert_eq!((limit.points(5 * WHOLE), limit.joining(0, WHOLE)), (0.0, 0.0));
}

#[test]
fn five_threads_on_four_cpus_score_best_when_balanced_within_one() {
    let room = room(1, 4, 5);
    let points = |residents: [u64; 4]| residents.iter().map(|&count| room.points(count * WHOLE)).sum::<f64>();
    assert_eq!(points([2, 1, 1, 1]), 2.0 * (1.25 + 3.0));
    assert!(points([2, 1, 1, 1]) > points([2, 2, 1, 0]));
    assert!(points([2, 2, 1, 0]) > points([3, 1, 1, 0]));
}

/// The speed ratio of the work shares' known answer.
#[test]
fn a_node_at_half_speed_gets_a_third_of_the_room() {
    let rooms = rooms(&throttled(two_nodes(4), 1, 512), &[WHOLE; 12]);
    assert_eq!(rooms, [Room::of(8 * WHOLE, 0, 0), Room::of(4 * WHOLE, 0, 0)]);
}

#[test]
fn places_are_cpus_for_threads_that_take_a_whole_one_and_more_for_others() {
    assert_eq!(places(&two_nodes(4), &[WHOLE; 5]), [4, 4]);
    assert_eq!(places(&two_nodes(4), &[WHOLE; 9]), [5, 5]);
    assert_eq!(places(&two_nodes(2), &[256; 12]), [8, 8]);
    assert_eq!(places(&throttled(two_nodes(4), 1, 512), &[WHOLE; 6]), [4, 2]);
    let unlike = [&[WHOLE; 8][..], &[128; 72]].concat();
    assert_eq!(places(&two_nodes(4), &unlike), [40, 40], "no fewer in all than there are threads");
}
