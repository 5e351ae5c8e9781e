// SPDX-License-Identifier: GPL-2.0-only
//! `phases`: who shares with whom, and which buffer is hot, change every few seconds.
//!
//! In even phases threads 2j and 2j+1 are a pair, in odd phases 2j+1 and 2j+2 (the last with the first). A thread has a
//! private array for even and one for odd phases, and each pair of each kind has an array; 80 % and 20 % of the visits.
//! The memory of pair j of either kind, private and shared, belongs together: in odd phases every even thread's memory
//! is elsewhere. Start under `none`: best for the first phase.

use crate::frame::plan::{Claim, Home, Placement, Plan, Region, Request, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::Walk;
use crate::frame::worker::Worker;
use crate::topology::{NodeId, Seat};
use anyhow::Result;

/// Visits of the private and of the shared array in one round.
const PRIVATE_VISITS: u64 = 4096;
const SHARED_VISITS: u64 = 1024;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "phases",
    summary: "who shares with whom, and which buffer is hot, change every few seconds",
    sizes: &[
        THREADS,
        size("private-mib", 16, "MiB", "each of a thread's two private arrays"),
        size("shared-mib", 4, "MiB", "each pair's array, for both kinds of phases"),
        size("phases", 3, "phases", "phases"),
        size("passes", 70, "passes", "times that each thread walks through its hot private array in a phase"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "pairs together with their memory; in each phase half of the threads go to the memory of that phase",
    worst: "pairs of even phases together, all memory on the node farthest from there",
    timed: false,
    plan,
};

/// The number of thread `thread`'s pair in a phase of kind `kind` (0 even, 1 odd), and its number in the pair.
fn pair_of(thread: usize, threads: usize, kind: usize) -> (usize, usize) {
    let shifted = (thread + threads - kind) % threads;
    (shifted / 2, shifted % 2)
}

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(2)?;
    let pair_seats = request.seats(threads / 2)?;
    let node_in = |thread: usize, kind: usize| pair_seats[pair_of(thread, threads, kind).0].node;
    let seats_in = |kind: usize| -> Vec<Seat> {
        request.seats_at(&(0..threads).map(|thread| node_in(thread, kind)).collect::<Vec<_>>())
    };
    let seats = match request.placement {
        Placement::None | Placement::Oracle => [seats_in(0), seats_in(1)],
        Placement::Worst => [seats_in(0), seats_in(0)],
    };
    let home = |node: NodeId| match request.placement {
        Placement::None | Placement::Oracle => Home::on(request.local_to(node)),
        Placement::Worst => Home::on(request.far_from(node)),
    };
    let (private_bytes, shared_bytes) = (request.sizes.mib("private-mib"), request.sizes.mib("shared-mib"));
    // Regions: private arrays of even phases, of odd phases, shared arrays of even phases, of odd phases.
    let mut regions = Vec::new();
    for kind in [0, 1] {
        regions.extend((0..threads).map(|thread| {
            // Under the worst placement threads stay, so what is far from them stays the same too.
            let node = if request.placement == Placement::Worst { node_in(thread, 0) } else { node_in(thread, kind) };
            Region::cycle(private_bytes, home(node))
        }));
    }
    for _kind in [0, 1] {
        regions.extend(pair_seats.iter().map(|seat| Region::cycle(shared_bytes, home(seat.node))));
    }
    let rounds = private_bytes as u64 / 64 / PRIVATE_VISITS * request.sizes.of("passes");
    let phases = request.sizes.of("phases") as usize;
    let threads = (0..threads).map(|thread| {
        let seats = [seats[0][thread], seats[1][thread]];
        Thread::at(seats[0].cpu, move |worker| work(worker, threads, seats, phases, rounds))
    });
    Ok(Plan::of_one(regions, threads.collect()))
}

fn work(worker: &mut Worker, threads: usize, seats: [Seat; 2], phases: usize, rounds: u64) -> Result<Vec<Claim>> {
    let regions = [0, 1].map(|kind| {
        let (pair, counter) = pair_of(worker.number, threads, kind);
        (kind * threads + worker.number, 2 * threads + kind * threads / 2 + pair, counter)
    });
    let mut walks =
        regions.map(|(private, shared, _)| (Walk::new(worker.lines(private), 0), Walk::new(worker.lines(shared), 0)));
    for phase in 0..phases {
        let kind = phase % 2;
        worker.meet();
        worker.go_to(seats[kind].cpu)?;
        for _ in 0..rounds {
            worker.count(&mut walks[kind].0, 0, PRIVATE_VISITS);
            worker.count(&mut walks[kind].1, regions[kind].2, SHARED_VISITS);
        }
    }
    let mut claims = Vec::new();
    for ((private, shared), (private_region, shared_region, counter)) in walks.iter().zip(regions) {
        private.check()?;
        shared.check()?;
        claims.push(Claim::of(private, private_region, 0..worker.lines(private_region).len(), 0));
        claims.push(Claim::of(shared, shared_region, 0..worker.lines(shared_region).len(), counter));
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_one_partner_in_each_phase_and_another_one_in_the_next() {
        for kind in [0, 1] {
            let mut members: Vec<_> = (0..8).map(|thread| pair_of(thread, 8, kind)).collect();
            members.sort_unstable();
            assert_eq!(members, (0..8).map(|member| (member / 2, member % 2)).collect::<Vec<_>>());
        }
        assert_eq!((pair_of(2, 8, 0).0, pair_of(3, 8, 0).0), (1, 1));
        assert_eq!((pair_of(1, 8, 1).0, pair_of(2, 8, 1).0), (0, 0));
        assert_eq!((pair_of(7, 8, 1).0, pair_of(0, 8, 1).0), (3, 3));
    }
}
