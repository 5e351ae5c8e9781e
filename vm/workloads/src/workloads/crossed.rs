// SPDX-License-Identifier: GPL-2.0-only
//! `crossed`: processes of paired threads, each thread with private memory, each pair with shared memory, all of it on
//! other nodes than the threads.
//!
//! A thread walks its private array with 80 % of its accesses and its pair's array with 20 %, page after page or from
//! page to page as at random, counting every visit.
//! Start under `none`, with n > 2 nodes: the threads of pair j start on nodes j and j+1, their private memory is on node
//! j+2 and their shared memory on node j+3 (mod n, along the tour): every thread is away from its memory and from its
//! partner, and one node suits both. With two nodes both start on node j and their private memory is on the other one.

use crate::frame::plan::{Claim, Home, Place, Placement, Plan, Program, Region, Request, Start, Thread, Use};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::{Pace, Walk};
use crate::frame::worker::Worker;
use crate::topology::NodeId;
use anyhow::{Result, bail};

/// Visits of the private and of the shared array in one round: 80 % and 20 %.
const PRIVATE_VISITS: u64 = 4096;
const SHARED_VISITS: u64 = 1024;
/// Turns between the two in a round: a thread uses both all the time.
const TURNS: u64 = 256;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "crossed",
    summary: "processes of paired threads; private and pairwise shared memory, all of it on other nodes than the threads",
    sizes: &[
        size("processes", 2, "processes", "processes that the threads are divided among"),
        THREADS,
        size("private-mib", 32, "MiB", "memory that each thread uses alone"),
        size("shared-mib", 8, "MiB", "memory that each pair of threads shares"),
        size("passes", 64, "passes", "times that each thread walks through its private memory"),
        size("lines-in-a-row", 64, "lines", "lines of a page visited in a row: 64, or 1, as accesses at random do"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "both threads of a pair on the node of their memory",
    worst: "both threads of a pair on the node farthest from their memory",
    timed: true,
    plan,
};

/// One thread's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nodes {
    run: NodeId,
    private: NodeId,
    shared: NodeId,
}

fn plan(request: &Request) -> Result<Plan> {
    let processes = request.sizes.of("processes") as usize;
    let threads = request.threads(2 * processes)?;
    let nodes = nodes(request, threads)?;
    let seats = request.seats_at(&nodes.iter().map(|nodes| nodes.run).collect::<Vec<_>>());
    let (private_bytes, shared_bytes) = (request.sizes.mib("private-mib"), request.sizes.mib("shared-mib"));
    let Some(rounds) = (private_bytes as u64 / 64 / PRIVATE_VISITS).checked_mul(request.sizes.of("passes")) else {
        bail!("--passes {}: too many", request.sizes.of("passes"));
    };
    let pace = match request.sizes.of("lines-in-a-row") {
        1 => Pace::Lines,
        64 => Pace::Pages,
        other => bail!("--lines-in-a-row {other}: give 1 or 64"),
    };
    let per_process = threads / processes;
    let program = |process: usize| {
        let own = process * per_process..(process + 1) * per_process;
        let private =
            nodes[own.clone()].iter().map(|nodes| Region::paced(private_bytes, Home::on(nodes.private), pace));
        let shared = nodes[own.clone()].iter().step_by(2);
        let shared = shared.map(|nodes| Region::paced(shared_bytes, Home::on(nodes.shared), pace));
        let threads = own.clone().map(|thread| {
            let number = thread - own.start;
            let first = request.random(thread as u64);
            Thread {
                place: Place::Cpu(seats[thread].cpu),
                uses: vec![
                    Use { region: number, weight: PRIVATE_VISITS as f64 / (PRIVATE_VISITS + SHARED_VISITS) as f64 },
                    Use {
                        region: per_process + number / 2,
                        weight: SHARED_VISITS as f64 / (PRIVATE_VISITS + SHARED_VISITS) as f64,
                    },
                ],
                body: Box::new(move |worker| work(worker, per_process, first, rounds, pace)),
            }
        });
        let threads = threads.collect();
        Program { start: Start::Together, regions: private.chain(shared).collect(), threads, check: None }
    };
    Ok(Plan {
        programs: (0..processes).map(program).collect(),
        pairs: (0..threads / 2).map(|pair| [2 * pair, 2 * pair + 1]).collect(),
    })
}

fn nodes(request: &Request, threads: usize) -> Result<Vec<Nodes>> {
    let tour = request.tour()?;
    let pair_seats = request.seats(threads / 2)?;
    let apart = usize::from(tour.len() > 2);
    let at = |place: usize| tour[place % tour.len()];
    let of_thread = |thread: usize| {
        let pair = thread / 2;
        let run = pair_seats[pair].node;
        match request.placement {
            Placement::None => Nodes {
                run: at(pair + apart * (thread % 2)),
                private: request.local_to(at(pair + 1 + apart)),
                shared: request.local_to(at(pair + 2 + apart)),
            },
            Placement::Oracle => Nodes { run, private: request.local_to(run), shared: request.local_to(run) },
            Placement::Worst => Nodes { run, private: request.far_from(run), shared: request.far_from(run) },
        }
    };
    Ok((0..threads).map(of_thread).collect())
}

fn work(worker: &mut Worker, threads: usize, first: u64, rounds: u64, pace: Pace) -> Result<Vec<Claim>> {
    let (shared_region, counter) = (threads + worker.number / 2, worker.number % 2);
    let (private, shared) = (worker.lines(worker.number), worker.lines(shared_region));
    let (mut private_walk, mut shared_walk) = (Walk::paced(private, first, pace), Walk::paced(shared, first, pace));
    let mut round = 0;
    while worker.goes_on(round, rounds) {
        let private = (&mut private_walk, 0, PRIVATE_VISITS / TURNS);
        worker.count_in_turns(private, (&mut shared_walk, counter, SHARED_VISITS / TURNS), TURNS);
        round += 1;
    }
    private_walk.check()?;
    shared_walk.check()?;
    Ok(vec![
        Claim::of(&private_walk, worker.number, 0..private.len(), 0),
        Claim::of(&shared_walk, shared_region, 0..shared.len(), counter),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::seating::tests::request;
    use crate::topology::{ring_of_four, topology_of};

    #[test]
    fn pairs_start_apart_and_one_other_node_has_the_private_memory_of_both() {
        let nodes = nodes(&request(&ring_of_four(), Placement::None), 8).unwrap();
        for (thread, nodes) in nodes.iter().enumerate() {
            let pair = thread as u32 / 2;
            assert_eq!(nodes.run, NodeId((pair + thread as u32 % 2) % 4));
            assert_eq!(nodes.private, NodeId((pair + 2) % 4));
            assert_eq!(nodes.shared, NodeId((pair + 3) % 4));
        }
    }

    #[test]
    fn private_memory_is_remote_at_first_on_every_machine_with_two_nodes_of_memory() {
        let two = topology_of(&[(0, &[0, 1], true), (1, &[2, 3], true)]);
        let with_gaps = topology_of(&[(0, &[0, 1], true), (3, &[], true), (5, &[4], true)]);
        for machine in [two, with_gaps, ring_of_four()] {
            for nodes in nodes(&request(&machine, Placement::None), 8).unwrap() {
                assert_ne!(nodes.run, nodes.private);
            }
        }
    }

    #[test]
    fn the_oracle_has_everything_local_and_the_worst_everything_two_hops_away() {
        let ring = ring_of_four();
        for thread in nodes(&request(&ring, Placement::Oracle), 8).unwrap() {
            assert_eq!((thread.private, thread.shared), (thread.run, thread.run));
        }
        for thread in nodes(&request(&ring, Placement::Worst), 8).unwrap() {
            assert_eq!(ring.distance(thread.run, thread.private), 20);
            assert_eq!(ring.distance(thread.run, thread.shared), 20);
        }
    }

    #[test]
    fn one_node_takes_everything() {
        for placement in [Placement::None, Placement::Oracle, Placement::Worst] {
            let one = topology_of(&[(0, &[0], true)]);
            let nodes = nodes(&request(&one, placement), 4).unwrap();
            assert!(nodes.iter().all(|n| (n.run, n.private, n.shared) == (NodeId(0), NodeId(0), NodeId(0))));
        }
    }
}
