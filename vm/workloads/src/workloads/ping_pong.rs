// SPDX-License-Identifier: GPL-2.0-only
//! `ping-pong`: two threads on two nodes use one page alternately; each has private memory where it is.
//!
//! Nothing should move: the page is as well placed on one node as on the other, and the threads belong to their private
//! memory. In each turn one thread visits every line of the page, then both walk private memory, then they meet. Start
//! under `none`: as under the oracle.

use crate::frame::plan::{Claim, Home, Placement, Plan, Region, Request, Thread};
use crate::frame::spec::{Metric, Spec, size};
use crate::frame::walk::Walk;
use crate::frame::worker::Worker;
use anyhow::Result;

/// Visits of private memory in a turn.
const PRIVATE_VISITS: u64 = 4096;
/// Regions: the page, then the private arrays.
const PAGE: usize = 0;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "ping-pong",
    summary: "two threads on two nodes use one page alternately: nothing may oscillate",
    sizes: &[
        size("private-mib", 32, "MiB", "memory that each thread uses alone"),
        size("page-kib", 4, "KiB", "memory that is used alternately"),
        size("turns", 14_000, "turns", "turns; in even ones the first thread has the page, in odd ones the second"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "two threads on far nodes, each with its private memory; the page with the first",
    worst: "the same threads, each with the private memory of the other",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let first = request.tour()?[0];
    let second = request.far_from(first);
    let seats = request.seats_at(&[first, second]);
    let homes = match request.placement {
        Placement::None | Placement::Oracle => request.locals(&seats),
        Placement::Worst => vec![request.local_to(second), request.local_to(first)],
    };
    let page = Region::cycle((request.sizes.of("page-kib") as usize) << 10, Home::on(homes[0]));
    let private = homes.iter().map(|node| Region::cycle(request.sizes.mib("private-mib"), Home::on(*node)));
    let turns = request.sizes.of("turns");
    let threads = seats.iter().map(|seat| Thread::at(seat.cpu, move |worker| work(worker, turns)));
    Ok(Plan::of_one(std::iter::once(page).chain(private).collect(), threads.collect()))
}

fn work(worker: &mut Worker, turns: u64) -> Result<Vec<Claim>> {
    let (page, private) = (worker.lines(PAGE), worker.lines(1 + worker.number));
    let (mut on_page, mut alone) = (Walk::new(page, 0), Walk::new(private, 0));
    for turn in 0..turns {
        if turn % 2 == worker.number as u64 {
            worker.count(&mut on_page, worker.number, page.len() as u64);
        }
        worker.count(&mut alone, 0, PRIVATE_VISITS);
        worker.meet();
    }
    on_page.check()?;
    alone.check()?;
    Ok(vec![
        Claim::of(&on_page, PAGE, 0..page.len(), worker.number),
        Claim::of(&alone, 1 + worker.number, 0..private.len(), 0),
    ])
}
