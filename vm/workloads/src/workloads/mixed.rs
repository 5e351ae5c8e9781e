// SPDX-License-Identifier: GPL-2.0-only
//! `mixed`: three programs at once: memory hogs (half of the threads), CPU hogs and sharers (a quarter each).
//!
//! The hogs copy private memory as `membench` does, the sharers write common lines as `hubench` does, the CPU hogs only
//! compute. A good placement brings the sharers together, spreads the memory hogs and fills up with CPU hogs. Start under
//! `none`: sharers scattered, memory hogs crowded on the first nodes with all of their memory on the first.

use crate::frame::plan::{Placement, Plan, Request};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::topology::{NodeId, Seat};
use crate::workloads::{hogs, membench, sharers};
use anyhow::Result;

/// Steps between two additions of a sharer, as in `hubench`.
const SHARER_COMPUTE: u64 = 50;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "mixed",
    summary: "memory hogs, CPU hogs and sharers at once, as three programs",
    sizes: &[
        THREADS,
        size("private-mib", 12, "MiB", "each of a memory hog's two arrays"),
        size("passes", 1200, "passes", "times that a memory hog copies"),
        size("additions", 14_000_000, "additions", "additions to shared lines by each sharer"),
        size("steps", 850_000_000, "steps", "steps of arithmetic by each CPU hog, about 6 instructions each"),
    ],
    metric: Metric::Seconds,
    work_unit: "operations",
    best: "sharers on one node, memory hogs spread with their memory, CPU hogs where room is left",
    worst: "memory hogs crowded and their memory far away, sharers scattered over what is left",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let seats = seats(request, request.threads(4)?)?;
    let homes = match request.placement {
        Placement::None => vec![request.local_to(request.tour()?[0]); seats.memory_hogs.len()],
        Placement::Oracle => request.locals(&seats.memory_hogs),
        Placement::Worst => request.fars(&seats.memory_hogs),
    };
    let sizes = request.sizes;
    let shared_home = request.local_to(seats.sharers[0].node);
    Ok(Plan {
        programs: vec![
            membench::program(&seats.memory_hogs, &homes, sizes.mib("private-mib"), sizes.of("passes")),
            sharers::program(&seats.sharers, shared_home, sizes.of("additions"), SHARER_COMPUTE),
            hogs::program(&seats.cpu_hogs, sizes.of("steps")),
        ],
        pairs: Vec::new(),
    })
}

/// Where the threads of each kind sit.
#[derive(Debug, PartialEq)]
struct Seats {
    memory_hogs: Vec<Seat>,
    sharers: Vec<Seat>,
    cpu_hogs: Vec<Seat>,
}

fn seats(request: &Request, threads: usize) -> Result<Seats> {
    let mut room = Room::of(&request.seats(threads)?);
    let (sharers, hogs) = (threads / 4, threads / 2);
    let (of_hogs, of_sharers);
    match request.placement {
        Placement::Oracle => {
            of_sharers = room.take_together(sharers);
            of_hogs = room.take_apart(hogs);
        }
        Placement::None => {
            of_sharers = room.take_apart(sharers);
            of_hogs = room.take_together(hogs);
        }
        // One link that all hogs of a node wait for costs more than sharers that are apart.
        Placement::Worst => {
            of_hogs = room.take_together(hogs);
            of_sharers = room.take_apart(sharers);
        }
    }
    let mut memory_hogs = request.seats_at(&[of_hogs, of_sharers, room.rest()].concat());
    let mut sharers_on = memory_hogs.split_off(hogs);
    let cpu_hogs = sharers_on.split_off(sharers);
    Ok(Seats { memory_hogs, sharers: sharers_on, cpu_hogs })
}

/// Seats left on each node, in the order of the tour.
struct Room(Vec<(NodeId, usize)>);

impl Room {
    fn of(seats: &[Seat]) -> Self {
        let blocks = seats.chunk_by(|one, next| one.node == next.node);
        Self(blocks.map(|block| (block[0].node, block.len())).collect())
    }

    /// So many seats, node after node.
    fn take_together(&mut self, threads: usize) -> Vec<NodeId> {
        let next = |room: &mut Self| {
            let at = room.0.iter().position(|(_, left)| *left > 0);
            room.take(at.expect("there are as many seats as threads"))
        };
        (0..threads).map(|_| next(self)).collect()
    }

    /// So many seats, each on a node that the fewest of them are on.
    fn take_apart(&mut self, threads: usize) -> Vec<NodeId> {
        let mut taken = Vec::new();
        for _thread in 0..threads {
            let with_room = (0..self.0.len()).filter(|at| self.0[*at].1 > 0);
            let at = with_room.min_by_key(|at| taken.iter().filter(|node| **node == self.0[*at].0).count());
            taken.push(self.take(at.expect("there are as many seats as threads")));
        }
        taken
    }

    /// All seats left.
    fn rest(self) -> Vec<NodeId> {
        self.0.into_iter().flat_map(|(node, left)| vec![node; left]).collect()
    }

    fn take(&mut self, at: usize) -> NodeId {
        self.0[at].1 -= 1;
        self.0[at].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::seating::tests::request;
    use crate::topology::{Topology, ring_of_four, topology_of};

    /// Nodes of the memory hogs, the sharers and the CPU hogs.
    fn nodes(topology: &Topology, placement: Placement) -> [Vec<u32>; 3] {
        let seats = seats(&request(topology, placement), 8).unwrap();
        [seats.memory_hogs, seats.sharers, seats.cpu_hogs].map(|seats| seats.iter().map(|seat| seat.node.0).collect())
    }

    #[test]
    fn the_oracle_gathers_sharers_and_spreads_memory_hogs() {
        let two = topology_of(&[(0, &[0, 1, 2, 3], true), (1, &[4, 5, 6, 7], true)]);
        assert_eq!(nodes(&two, Placement::Oracle), [vec![0, 1, 0, 1], vec![0, 0], vec![1, 1]]);
        assert_eq!(nodes(&ring_of_four(), Placement::Oracle), [vec![1, 2, 3, 1], vec![0, 0], vec![2, 3]]);
    }

    #[test]
    fn the_worst_crowds_memory_hogs_and_the_start_scatters_sharers_first() {
        let two = topology_of(&[(0, &[0, 1, 2, 3], true), (1, &[4, 5, 6, 7], true)]);
        assert_eq!(nodes(&two, Placement::Worst), [vec![0, 0, 0, 0], vec![1, 1], vec![1, 1]]);
        assert_eq!(nodes(&two, Placement::None), [vec![0, 0, 0, 1], vec![0, 1], vec![1, 1]]);
        assert_eq!(nodes(&ring_of_four(), Placement::Worst), [vec![0, 0, 1, 1], vec![2, 3], vec![2, 3]]);
    }
}
