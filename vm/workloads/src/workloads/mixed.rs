// SPDX-License-Identifier: GPL-2.0-only
//! `mixed`: three programs at once: memory hogs (half of the threads), CPU hogs and sharers (a quarter each).
//!
//! The hogs copy private memory as `membench` does, the sharers write common lines as `hubench` does, the CPU hogs only
//! compute. A good placement brings the sharers together, spreads the memory hogs and fills up with CPU hogs. Start under
//! `none`: sharers scattered, memory hogs crowded on the first nodes with all of their memory on the first.

use crate::frame::plan::{Placement, Plan, Program, Request, Start, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::spin::Spin;
use crate::topology::{NodeId, Seat};
use crate::workloads::{membench, sharers};
use anyhow::Result;

/// Steps between two looks at the CPU.
const BOUT_STEPS: u64 = 1 << 16;
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
    worst: "sharers scattered, memory hogs crowded and their memory far away",
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
            cpu_hogs(&seats.cpu_hogs, sizes.of("steps")),
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
    let is_best = request.placement == Placement::Oracle;
    let mut nodes: Vec<NodeId> = Vec::new();
    for sharer in 0..sharers {
        nodes.push(room.take_from(if is_best { 0 } else { sharer }));
    }
    for _hog in 0..hogs {
        nodes.push(if is_best { room.take_of_fewest(&nodes[sharers..]) } else { room.take_from(0) });
    }
    for _hog in sharers + hogs..threads {
        nodes.push(room.take_from(0));
    }
    let mut seats = request.seats_at(&nodes);
    let cpu_hogs = seats.split_off(sharers + hogs);
    let memory_hogs = seats.split_off(sharers);
    Ok(Seats { memory_hogs, sharers: seats, cpu_hogs })
}

/// Seats left on each node, in the order of the tour.
struct Room(Vec<(NodeId, usize)>);

impl Room {
    fn of(seats: &[Seat]) -> Self {
        let blocks = seats.chunk_by(|one, next| one.node == next.node);
        Self(blocks.map(|block| (block[0].node, block.len())).collect())
    }

    /// A seat of the `first`-th node (modulo their number) or of the first one after it that has any left.
    fn take_from(&mut self, first: usize) -> NodeId {
        let count = self.0.len();
        let at = (first..first + count).map(|at| at % count).find(|at| self.0[*at].1 > 0);
        self.take(at.expect("there are as many seats as threads"))
    }

    /// A seat of the node that is the fewest times among `taken`.
    fn take_of_fewest(&mut self, taken: &[NodeId]) -> NodeId {
        let with_room = (0..self.0.len()).filter(|at| self.0[*at].1 > 0);
        let at = with_room.min_by_key(|at| taken.iter().filter(|node| **node == self.0[*at].0).count());
        self.take(at.expect("there are as many seats as threads"))
    }

    fn take(&mut self, at: usize) -> NodeId {
        self.0[at].1 -= 1;
        self.0[at].0
    }
}

fn cpu_hogs(seats: &[Seat], steps: u64) -> Program {
    let threads = seats.iter().map(|seat| {
        Thread::at(seat.cpu, move |worker| {
            let mut spin = Spin::default();
            let mut left = steps;
            while left > 0 {
                let now = left.min(BOUT_STEPS);
                spin.steps(now);
                left -= now;
                worker.notes.work += now;
                worker.look();
            }
            spin.check()?;
            Ok(Vec::new())
        })
    });
    Program { start: Start::Together, regions: Vec::new(), threads: threads.collect(), check: None }
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
    fn the_worst_scatters_sharers_and_crowds_memory_hogs() {
        let two = topology_of(&[(0, &[0, 1, 2, 3], true), (1, &[4, 5, 6, 7], true)]);
        assert_eq!(nodes(&two, Placement::Worst), [vec![0, 0, 0, 1], vec![0, 1], vec![1, 1]]);
    }
}
