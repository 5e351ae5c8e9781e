// SPDX-License-Identifier: GPL-2.0-only
//! How much a node or CPU can take, and how much a thread takes of it.
//!
//! Problem: CPUs are unlike (efficiency cores, throttled nodes), and threads use more or less of one; a count of threads says
//! little about whether there is room for another one. Mechanism: everything is in 1/1024 of one of the machine's fastest
//! CPUs ([`FULL_CAPACITY`]), so that sums are exact.
//!
//! | term | value |
//! |---|---|
//! | capacity of a node | sum over its CPUs |
//! | demand of a thread | what it used times 1.25, at most a whole CPU |
//! | load of a node or CPU | sum of the demands of its busy threads |
//! | room | its capacity; with more demand than the machine has capacity, its share of the demand by capacity |
//!
//! - *Demand.* A quarter more than was used, so that bursts find room, as the kernel has it when it asks whether a task
//!   fits a CPU. Of a thread that began within the interval, what it used since then: plans are made as soon as threads
//!   work. Time on a slow CPU counts as much as that CPU is worth. What a thread uses on a node that is busy nearly all
//!   the time says only that it could not get more: it counts as a whole CPU.
//! - *Room.* A place is free while its load is below its room. Two nodes at half and full speed with as many CPUs get one
//!   and two thirds of the threads, once there are as many as the capacity.
//!
//! All of it is ours: the sources count threads and CPUs, and have one for the other as long as each thread takes a whole
//! CPU and all CPUs are alike.

use crate::model::{FULL_CAPACITY, NodeIndex, PerNode, Snapshot, Thread, Topology};
use crate::relocation::may_run;
use crate::score::FREE;

/// What a place can take, all its residents together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    room: u64,
    /// Whether it is worth points.
    scored: bool,
}

impl Room {
    /// Room of a place with `capacity` of the machine's capacity `all`, when all busy threads together take `demand`.
    pub fn of(capacity: u64, all: u64, demand: u64) -> Self {
        let share = if all == 0 { 0 } else { u128::from(capacity) * u128::from(demand) / u128::from(all) };
        Self { room: capacity.max(share as u64), scored: true }
    }

    /// The same room worth no points: a limit for scores that have no term for free nodes.
    pub fn unscored(self) -> Self {
        Self { scored: false, ..self }
    }

    /// Whether a place that bears `load` has any left.
    pub fn is_free(self, load: u64) -> bool {
        load < self.room
    }

    /// q1 of all residents together, which take `load`.
    pub fn points(self, load: u64) -> f64 {
        if self.scored { FREE * load.min(self.room) as f64 / FULL_CAPACITY as f64 } else { 0.0 }
    }

    /// q1 of one more thread that takes `demand`, beside `load`.
    pub fn joining(self, load: u64, demand: u64) -> f64 {
        self.points(load + demand) - self.points(load)
    }

    /// q1 of all residents of a full place.
    pub fn most_points(self) -> f64 {
        self.points(self.room)
    }
}

/// What each of `threads` takes, in their order.
pub fn demands(snapshot: &Snapshot, threads: &[&Thread]) -> Vec<u64> {
    let busy = PerNode::from_fn(snapshot.topology.len(), |node| is_saturated(snapshot, node));
    threads.iter().map(|thread| demand(snapshot, &busy, thread)).collect()
}

/// Share of their time from which on the CPUs of a node are busy all the time.
const SATURATED: f64 = 0.95;
/// Demand by use.
const HEADROOM: f64 = 1.25;

fn is_saturated(snapshot: &Snapshot, node: NodeIndex) -> bool {
    let managed = snapshot.threads.iter().map(|thread| thread.run_ns[node]).fold(0, u64::saturating_add);
    let busy_ns = managed.max(snapshot.nodes[node].busy_ns) as f64;
    let cpus = snapshot.topology.nodes[node].cpus.len() as f64;
    busy_ns >= SATURATED * cpus * snapshot.interval_ns as f64
}

fn demand(snapshot: &Snapshot, saturated: &PerNode<bool>, thread: &Thread) -> u64 {
    let ran_ns = thread.run_ns.values().copied().fold(0, u64::saturating_add);
    let waited_ns = thread.run_ns.iter().filter(|&(node, _)| saturated[node]).map(|(_, ns)| ns);
    if ran_ns > 0 && 2 * u128::from(waited_ns.sum::<u64>()) > u128::from(ran_ns) {
        return FULL_CAPACITY;
    }
    demand_by_use(snapshot, thread)
}

/// What a thread takes by what it used alone, however busy its node is.
pub fn demand_by_use(snapshot: &Snapshot, thread: &Thread) -> u64 {
    let share = HEADROOM * thread.cpu_time_ns as f64 / watched_ns(snapshot, thread) as f64;
    if share >= 1.0 {
        return FULL_CAPACITY;
    }
    ((share * worth(snapshot, thread)) as u64).max(1)
}

/// How much of the interval `thread` was there for. Threads begin by a clock that goes on while the machine sleeps: after that
/// some seem not to have begun, and count as older; one that seems to have begun in this interval wants too much, once.
fn watched_ns(snapshot: &Snapshot, thread: &Thread) -> u64 {
    let lived_ns = snapshot.time_ns.checked_sub(thread.id.start_boottime_ns).filter(|&ns| ns > 0);
    lived_ns.map_or(snapshot.interval_ns, |ns| ns.min(snapshot.interval_ns)).max(1)
}

/// Mean capacity of the CPUs on which `thread` ran.
fn worth(snapshot: &Snapshot, thread: &Thread) -> f64 {
    let of = |node: NodeIndex| snapshot.topology.nodes[node].mean_cpu_capacity();
    let ran = || thread.run_ns.iter().map(|(node, &ns)| (node, ns as f64));
    let ran_ns: f64 = ran().map(|(_, ns)| ns).sum();
    if ran_ns > 0.0 { ran().map(|(node, ns)| of(node) * ns).sum::<f64>() / ran_ns } else { of(thread.node) }
}

/// Rooms of the nodes when busy threads take `demands`.
pub fn rooms(topology: &Topology, demands: &[u64]) -> Vec<Room> {
    let all = capacity(topology);
    let demand = demands.iter().sum();
    topology.nodes.values().map(|node| Room::of(node.capacity(), all, demand)).collect()
}

/// Capacity of all nodes together.
pub fn capacity(topology: &Topology) -> u64 {
    topology.nodes.values().map(|node| node.capacity()).sum()
}

/// Loads by node of the `threads` that really can run there.
pub(crate) fn loads(snapshot: &Snapshot, threads: &[&Thread], demands: &[u64]) -> Vec<u64> {
    let mut loads = vec![0; snapshot.topology.len()];
    for (thread, demand) in threads.iter().zip(demands).filter(|(thread, _)| may_run(snapshot, thread, thread.node)) {
        loads[thread.node.0] += demand;
    }
    loads
}

/// How many threads each node takes, for a mapper that counts threads: as many as find room there even if they are those
/// that take most, and no fewer than the node's share of all of them by capacity.
pub(crate) fn places(topology: &Topology, demands: &[u64]) -> Vec<usize> {
    let mut heaviest_first = demands.to_vec();
    heaviest_first.sort_unstable_by(|a, b| b.cmp(a));
    let all = capacity(topology).max(1);
    let by_room = |room: &Room| {
        let mut load = 0;
        let mut takes = heaviest_first.iter().copied().chain(std::iter::repeat(FULL_CAPACITY));
        std::iter::from_fn(|| {
            let joins = room.is_free(load);
            load += takes.next().unwrap_or(FULL_CAPACITY);
            joins.then_some(())
        })
        .count()
    };
    let share = |node: &crate::model::Node| (demands.len() as u64 * node.capacity()).div_ceil(all) as usize;
    let rooms = rooms(topology, demands);
    topology.nodes.values().zip(&rooms).map(|(node, room)| by_room(room).max(share(node))).collect()
}

#[cfg(test)]
mod tests;
