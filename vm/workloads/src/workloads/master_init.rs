// SPDX-License-Identifier: GPL-2.0-only
//! `master-init`: one thread first touches an array, then all threads partition it.
//!
//! The commonest fault of threaded programs. Each thread walks its own part and counts every visit. Start under `none`:
//! all memory on one node, threads spread.

use crate::frame::memory::LINE_BYTES;
use crate::frame::plan::{Claim, Home, Placement, Plan, Region, Request, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::Walk;
use anyhow::Result;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "master-init",
    summary: "one thread first touches an array, then all threads partition it",
    sizes: &[
        THREADS,
        size("array-mib", 128, "MiB", "the array; every thread has an equal part"),
        size("passes", 200, "passes", "times that each thread walks through its part"),
    ],
    metric: Metric::Seconds,
    work_unit: "visits",
    best: "each part on the node of its thread",
    worst: "each part on the node farthest from its thread",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(1)?;
    let seats = request.seats(threads)?;
    let home = match request.placement {
        Placement::None => Home::on(request.local_to(request.tour()?[0])),
        Placement::Oracle => Home::Parts(request.locals(&seats)),
        Placement::Worst => Home::Parts(request.fars(&seats)),
    };
    let part_bytes = request.part_bytes("array-mib", threads)?;
    let part = part_bytes / LINE_BYTES;
    let visits = part as u64 * request.sizes.of("passes");
    let threads = seats.iter().enumerate().map(|(thread, seat)| {
        let first = request.random(thread as u64);
        Thread::at(seat.cpu, move |worker| {
            let own = thread * part..(thread + 1) * part;
            let mut walk = Walk::new(&worker.lines(0)[own.clone()], first);
            worker.count(&mut walk, 0, visits);
            walk.check()?;
            Ok(vec![Claim::of(&walk, 0, own, 0)])
        })
    });
    Ok(Plan::of_one(vec![Region::cycles(part_bytes * seats.len(), seats.len(), home)], threads.collect()))
}
