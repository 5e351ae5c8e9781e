// SPDX-License-Identifier: GPL-2.0-only
//! `pairs`: threads that share memory two by two, partners scattered over the machine.
//!
//! Both partners walk all of their pair's array and count every visit, each in its own counter of the same lines. Start
//! under `none`: partners on far nodes, their memory with the first of them.

use crate::frame::plan::{Claim, Home, Placement, Plan, Region, Request, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::Walk;
use crate::frame::worker::Worker;
use anyhow::Result;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "pairs",
    summary: "threads that share memory two by two, partners scattered over the machine",
    sizes: &[
        THREADS,
        size("shared-mib", 32, "MiB", "memory that each pair shares"),
        size("passes", 110, "passes", "times that each thread walks through its pair's memory"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "both partners on the node of their memory",
    worst: "both partners on the node farthest from their memory",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(2)?;
    let pair_seats = request.seats(threads / 2)?;
    let firsts = pair_seats.iter().map(|seat| seat.node);
    let seconds = pair_seats.iter().map(|seat| match request.placement {
        Placement::None => request.far_from(seat.node),
        Placement::Oracle | Placement::Worst => seat.node,
    });
    // Thread j and thread j + threads / 2 are partners.
    let seats = request.seats_at(&firsts.chain(seconds).collect::<Vec<_>>());
    let bytes = request.sizes.mib("shared-mib");
    let visits = (bytes as u64 / 64) * request.sizes.of("passes");
    let regions = pair_seats.iter().map(|seat| match request.placement {
        Placement::Worst => Region::cycle(bytes, Home::on(request.far_from(seat.node))),
        Placement::None | Placement::Oracle => Region::cycle(bytes, Home::on(request.local_to(seat.node))),
    });
    let of_thread = |thread: usize| {
        let (pair, counter) = (thread % (threads / 2), thread / (threads / 2));
        let first = request.random(thread as u64);
        Thread::at(seats[thread].cpu, move |worker| work(worker, pair, counter, first, visits))
    };
    Ok(Plan::of_one(regions.collect(), (0..threads).map(of_thread).collect()))
}

fn work(worker: &mut Worker, pair: usize, counter: usize, first: u64, visits: u64) -> Result<Vec<Claim>> {
    let lines = worker.lines(pair);
    let mut walk = Walk::new(lines, first);
    worker.count(&mut walk, counter, visits);
    walk.check()?;
    Ok(vec![Claim::of(&walk, pair, 0..lines.len(), counter)])
}
