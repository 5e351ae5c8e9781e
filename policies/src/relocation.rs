// SPDX-License-Identifier: GPL-2.0-only
//! From a mapping of threads to nodes to a plan: who may go where, and in which order the moves are made.
//!
//! Opposite moves become interchanges and come first, the most gainful before the others. Single moves follow in an
//! order in which no node gets over-full in between, if there is one.

use std::collections::BTreeMap;

use crate::capacity::{Room, demands, loads, rooms};
use crate::cost::thread_gain_ns_per_s;
use crate::model::{Action, Move, NodeIndex, Plan, Snapshot, Thread};

/// Threads that used at least `min_cpu_percent` of a CPU and have a place, ascending by id.
pub(crate) fn busy(snapshot: &Snapshot, min_cpu_percent: f64) -> Vec<&Thread> {
    let busy_ns = min_cpu_percent / 100.0 * snapshot.interval_ns as f64;
    let counts = |thread: &&Thread| thread.cpu_time_ns as f64 >= busy_ns && has_a_place(snapshot, thread);
    snapshot.threads.iter().filter(counts).collect()
}

/// Whether `thread` can run on `node`.
pub(crate) fn may_run(snapshot: &Snapshot, thread: &Thread, node: NodeIndex) -> bool {
    thread.allowed[node] && !snapshot.topology.nodes[node].cpus.is_empty()
}

/// Whether a plan may move `thread` to `node`.
pub(crate) fn may_go(snapshot: &Snapshot, thread: &Thread, node: NodeIndex) -> bool {
    !thread.on_cooldown && may_run(snapshot, thread, node)
}

/// Whether `thread` can run where it is or be moved to where it can; else it would hold a slot for nothing.
pub(crate) fn has_a_place(snapshot: &Snapshot, thread: &Thread) -> bool {
    let nodes = || (0..snapshot.topology.len()).map(NodeIndex);
    may_run(snapshot, thread, thread.node) || nodes().any(|node| may_go(snapshot, thread, node))
}

/// The moves that bring each of `threads`, which ascend by id, to its node in `place`; `reason` says why one goes to a node.
pub(crate) fn plan(
    snapshot: &Snapshot,
    threads: &[&Thread],
    place: &[usize],
    reason: impl Fn(&Thread, NodeIndex) -> String,
) -> Plan {
    let mut routes: BTreeMap<(usize, usize), Vec<&Thread>> = BTreeMap::new();
    for (thread, &to) in threads.iter().zip(place) {
        if to != thread.node.0 {
            routes.entry((thread.node.0, to)).or_default().push(thread);
        }
    }
    let mut moves = Vec::new();
    let mut single = Vec::new();
    for (&(from, to), going) in &routes {
        let back = routes.get(&(to, from)).map_or(&[][..], Vec::as_slice);
        let pairs = going.len().min(back.len());
        if from < to {
            moves.extend(going.iter().zip(back).map(|(first, second)| interchange(snapshot, first, second, &reason)));
        }
        single.extend(going[pairs..].iter().map(|&thread| (thread, to)));
    }
    moves.sort_by(|a, b| gain_order(b).total_cmp(&gain_order(a)));
    for (thread, to) in in_order(snapshot, threads, single) {
        let to = NodeIndex(to);
        moves.push(single_move(snapshot, thread, to, reason(thread, to)));
    }
    Plan { moves }
}

/// The moves in an order that overfills no node in between, if there is one.
fn in_order<'a>(
    snapshot: &Snapshot,
    threads: &[&Thread],
    mut moves: Vec<(&'a Thread, usize)>,
) -> Vec<(&'a Thread, usize)> {
    let taken = demands(snapshot, threads);
    let rooms: Vec<Room> = rooms(&snapshot.topology, &taken);
    let mut loads = loads(snapshot, threads, &taken);
    let demand_of = |thread: &Thread| taken[threads.partition_point(|known| known.id < thread.id)];
    let gain = |&(thread, to): &(&Thread, usize)| known_gain(snapshot, thread, NodeIndex(to));
    moves.sort_by(|a, b| gain(b).unwrap_or(f64::NEG_INFINITY).total_cmp(&gain(a).unwrap_or(f64::NEG_INFINITY)));
    let mut ordered = Vec::new();
    while !moves.is_empty() {
        let fits = moves.iter().position(|&(_, to)| rooms[to].is_free(loads[to]));
        let (thread, to) = moves.remove(fits.unwrap_or(0));
        if may_run(snapshot, thread, thread.node) {
            loads[thread.node.0] -= demand_of(thread);
        }
        loads[to] += demand_of(thread);
        ordered.push((thread, to));
    }
    ordered
}

fn gain_order(planned: &Move) -> f64 {
    planned.gain_ns_per_s.unwrap_or(f64::NEG_INFINITY)
}

/// Stall saved by a move; `None` if the signal is absent or no number.
fn known_gain(snapshot: &Snapshot, thread: &Thread, to: NodeIndex) -> Option<f64> {
    thread_gain_ns_per_s(&snapshot.topology, thread, to).filter(|gain| gain.is_finite())
}

/// `thread` goes to `to`.
pub(crate) fn single_move(snapshot: &Snapshot, thread: &Thread, to: NodeIndex, reason: String) -> Move {
    Move {
        action: Action::MoveThread { thread: thread.id, from: thread.node, to, cpu: None },
        gain_ns_per_s: known_gain(snapshot, thread, to),
        reason,
    }
}

/// `first` and `second` change nodes.
pub(crate) fn interchange(
    snapshot: &Snapshot,
    first: &Thread,
    second: &Thread,
    reason: impl Fn(&Thread, NodeIndex) -> String,
) -> Move {
    // What is not known is left out; nothing known is no gain of zero.
    let known = [known_gain(snapshot, first, second.node), known_gain(snapshot, second, first.node)];
    let sum = known.into_iter().flatten().reduce(|one, other| one + other);
    let gain_ns_per_s = sum.filter(|gain| gain.is_finite());
    let (here, there) = (first.node, second.node);
    let reason = format!("{}: {}; {}: {}", first.id, reason(first, there), second.id, reason(second, here));
    let action =
        Action::Interchange { first: first.id, second: second.id, first_node: first.node, second_node: second.node };
    Move { action, gain_ns_per_s, reason }
}

/// Why `thread` cannot stay where it is, in words; `None` if it can.
pub(crate) fn pulled_out(snapshot: &Snapshot, thread: &Thread) -> Option<String> {
    let node = &snapshot.topology.nodes[thread.node];
    if node.cpus.is_empty() {
        Some(format!("node {} has no CPU", node.id))
    } else if !thread.allowed[thread.node] {
        Some(format!("may not run on node {} any more", node.id))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SnapshotBuilder, two_nodes};

    #[test]
    fn the_gain_of_an_interchange_is_what_is_known_of_it() {
        let gain = |first: Option<&[f64]>, second: Option<&[f64]>| {
            let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, first).thread(2, 1, second).build();
            interchange(&snapshot, &snapshot.threads[0], &snapshot.threads[1], |_, _| String::new()).gain_ns_per_s
        };
        assert_eq!(gain(Some(&[0.0, 1.0]), Some(&[1.0, 0.0])), Some(220.0));
        assert_eq!(gain(Some(&[0.0, 1.0]), None), Some(110.0));
        assert_eq!(gain(None, Some(&[1.0, 0.0])), Some(110.0));
        assert_eq!(gain(None, None), None);
        assert_eq!(gain(Some(&[f64::NAN, 1.0]), None), None);
    }
}
