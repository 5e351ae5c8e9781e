// SPDX-License-Identifier: GPL-2.0-only
//! `all-shared`: all threads read all of one array that lies on all nodes: there is nothing to gain.
//!
//! The control: whoever moves threads or pages here only pays for it. Where threads are makes no difference; memory can only be
//! put where it is worse, on one node, which all then wait for.

use crate::frame::plan::{Home, Placement, Plan, Region, Request, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::Walk;
use anyhow::Result;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "all-shared",
    summary: "all threads read all of one array that lies on all nodes: nothing to gain",
    sizes: &[
        THREADS,
        size("shared-mib", 64, "MiB", "memory that all threads share"),
        size("passes", 40, "passes", "times that each thread walks through the memory"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "memory interleaved over the nodes, one thread on each CPU",
    worst: "all memory on one node",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(1)?;
    let seats = request.seats(threads)?;
    let nodes: Vec<_> = request.tour()?.into_iter().map(|node| request.local_to(node)).collect();
    let home = if request.placement == Placement::Worst { Home::on(nodes[0]) } else { Home::Interleaved(nodes) };
    let bytes = request.sizes.mib("shared-mib");
    let visits = (bytes as u64 / 64) * request.sizes.of("passes");
    let threads = seats.iter().enumerate().map(|(thread, seat)| {
        let first = request.random(thread as u64);
        Thread::at(seat.cpu, move |worker| {
            let mut walk = Walk::new(worker.lines(0), first);
            worker.read(&mut walk, visits);
            walk.check()?;
            Ok(Vec::new())
        })
    });
    Ok(Plan::of_one(vec![Region::cycle(bytes, home)], threads.collect()))
}
