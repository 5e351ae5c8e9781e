// SPDX-License-Identifier: GPL-2.0-only
//! The score of a thread at a node: the sum of three terms (Thanos thesis, eq. 3.17 and the ticket table).
//!
//! | term | value |
//! |---|---|
//! | q1 the node is free | 2 if it has room for the thread, 0 if it has none, in between if it has some |
//! | q2 preferred node | 4 d(n,n) / d(n,n_pref); 0 without a preferred node |
//! | q3 remembered performance | 4 better than now, 2 equal or unknown, 1 worse |
//!
//! Policies that place threads on CPUs take q1 of the CPU and a flat q2 ([`preferred_flat`]). Those that look for
//! threads to exchange add q4, 3 points for a partner that lags behind its process ([`LAGGING`]).
//!
//! Points add; the score of an interchange is the sum over its two threads. At its present node a
//! thread's performance is compared with itself, so q3 is 2 there.
//!
//! q1 belongs to room: 2 points for a whole CPU that a thread takes and finds free ([`Room`]). The residents of a node fill
//! its room one after the other, and those of an over-full node do not all lose theirs. S_sys is therefore the sum of
//! [`score`] over all threads when they are put on the nodes one by one, in whatever order.

use crate::capacity::Room;
use crate::model::{NodeIndex, Thread, Topology};

/// q1 of a thread that takes a whole CPU and finds one free.
pub const FREE: f64 = 2.0;
/// q2 at the preferred node itself.
pub const PREFERRED: f64 = 4.0;
/// q3 where the thread performed better than now.
pub const BETTER: f64 = 4.0;
/// q3 where its performance is equal or unknown.
pub const UNKNOWN_OR_EQUAL: f64 = 2.0;
/// q3 where it performed worse.
pub const WORSE: f64 = 1.0;
/// q4 of an exchange whose partner lags behind the other threads of its process.
pub const LAGGING: f64 = 3.0;

/// Local distance in SLIT units; stands for a distance of 0, which no table should hold.
pub(crate) const LOCAL_DISTANCE: u32 = 10;

/// q2: points of `node` for being near to the memory that `thread` accesses most.
pub fn preferred(topology: &Topology, thread: &Thread, node: NodeIndex) -> f64 {
    let Some(memory) = thread.preferred_node() else { return 0.0 };
    let distance = |to| match topology.distance(node, to) {
        0 => f64::from(LOCAL_DISTANCE),
        known => f64::from(known),
    };
    PREFERRED * distance(node) / distance(memory)
}

/// q2 of policies that place threads on CPUs: [`PREFERRED`] on the preferred node, 0 elsewhere.
pub fn preferred_flat(thread: &Thread, node: NodeIndex) -> f64 {
    if thread.preferred_node() == Some(node) { PREFERRED } else { 0.0 }
}

/// q3: points of `node` for how `thread` performed there, compared with its present node.
pub fn remembered(thread: &Thread, node: NodeIndex) -> f64 {
    remembered_from(thread, thread.node, node)
}

/// q3 as it is for `thread` while it is on `present`.
pub fn remembered_from(thread: &Thread, present: NodeIndex, node: NodeIndex) -> f64 {
    match (thread.performance[node], thread.performance[present]) {
        (Some(there), Some(now)) if there > now => BETTER,
        (Some(there), Some(now)) if there < now => WORSE,
        _ => UNKNOWN_OR_EQUAL,
    }
}

/// Score of `thread`, which takes `demand`, at `node`, which has `room` and bears the `load` of other threads.
pub fn score(topology: &Topology, thread: &Thread, node: NodeIndex, room: Room, load: u64, demand: u64) -> f64 {
    room.joining(load, demand) + preferred(topology, thread, node) + remembered(thread, node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FULL_CAPACITY;
    use crate::testing::{SnapshotBuilder, machine, ring_of_four, two_nodes};

    const LOCAL_AND_BETTER: f64 = 10.0;
    const WHOLE: u64 = FULL_CAPACITY;

    /// Room for one thread.
    fn one() -> Room {
        Room::of(WHOLE, WHOLE, WHOLE)
    }

    #[test]
    fn free_preferred_and_better_is_ten_points() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1);
        let snapshot = snapshot.with_thread(|thread| thread.performance = vec![Some(1.0), Some(2.0)].into()).build();
        assert_eq!(score(&snapshot.topology, &snapshot.threads[0], NodeIndex(1), one(), 0, WHOLE), LOCAL_AND_BETTER);
        assert_eq!(remembered(&snapshot.threads[0], NodeIndex(0)), UNKNOWN_OR_EQUAL);
    }

    #[test]
    fn free_unknown_and_not_preferred_scales_with_distance() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 0).build();
        let points = score(&snapshot.topology, &snapshot.threads[0], NodeIndex(1), one(), 0, WHOLE);
        assert!((points - (2.0 + 40.0 / 21.0 + 2.0)).abs() < 1e-12);
    }

    #[test]
    fn an_interchange_scores_the_sum_of_both_threads() {
        let builder = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
        let snapshot = builder.with_thread(|thread| thread.performance = vec![Some(1.0), Some(2.0)].into()).build();
        let sum = |first: usize, second: usize| {
            score(&snapshot.topology, &snapshot.threads[0], NodeIndex(first), one(), 0, WHOLE)
                + score(&snapshot.topology, &snapshot.threads[1], NodeIndex(second), one(), 0, WHOLE)
        };
        assert!((sum(0, 1) - 2.0 * (4.0 + 40.0 / 21.0)).abs() < 1e-12);
        assert_eq!(sum(1, 0), (2.0 + 4.0 + 2.0) + (2.0 + 4.0 + 1.0));
    }

    #[test]
    fn a_cpu_is_on_the_preferred_node_or_it_is_not() {
        let snapshot = SnapshotBuilder::new(ring_of_four(1)).thread_with_memory_on(1, 0, 1).build();
        let points: Vec<f64> = (0..4).map(|node| preferred_flat(&snapshot.threads[0], NodeIndex(node))).collect();
        assert_eq!(points, [0.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    fn performance_is_compared_with_the_node_a_thread_is_seen_from() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None);
        let snapshot = snapshot.with_thread(|thread| thread.performance = vec![Some(1.0), Some(2.0)].into()).build();
        let from = |present| remembered_from(&snapshot.threads[0], NodeIndex(present), NodeIndex(1));
        assert_eq!((from(0), from(1)), (BETTER, UNKNOWN_OR_EQUAL));
        assert_eq!(remembered_from(&snapshot.threads[0], NodeIndex(1), NodeIndex(0)), WORSE);
    }

    #[test]
    fn a_distance_of_zero_counts_as_local() {
        let topology = machine(&[1; 2], &[&[0, 0], &[20, 10]]);
        let snapshot = SnapshotBuilder::new(topology).thread_with_memory_on(1, 0, 1).thread_with_memory_on(2, 1, 0);
        let snapshot = snapshot.build();
        assert_eq!(preferred(&snapshot.topology, &snapshot.threads[0], NodeIndex(0)), 4.0);
        assert_eq!(preferred(&snapshot.topology, &snapshot.threads[1], NodeIndex(1)), 2.0);
    }

    #[test]
    fn a_thread_without_accesses_has_no_preference() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build();
        assert_eq!(score(&snapshot.topology, &snapshot.threads[0], NodeIndex(1), one(), 0, WHOLE), 4.0);
    }
}
