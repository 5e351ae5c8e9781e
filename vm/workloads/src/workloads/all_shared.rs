// SPDX-License-Identifier: GPL-2.0-only
//! `all-shared`: all threads read all of one array that lies on all nodes: there is nothing to gain.
//!
//! The control: whoever moves threads or pages here only pays for it. Where threads are makes no difference; memory can only be
//! put where it is worse, on one node, which all then wait for.
//!
//! The array is many short cycles, and every thread takes them in an order of its own, another one in each pass. On one
//! long cycle a thread that comes close behind another finds its lines in the cache that both share, catches up, and stays:
//! then it would count who walks beside whom.

use crate::frame::memory::LINE_BYTES;
use crate::frame::plan::{Home, Placement, Plan, Region, Request, Thread};
use crate::frame::seating::{mix, scaled};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::walk::Walk;
use anyhow::Result;

/// Bytes of a cycle: far less than the array, so that threads seldom meet; far more than a page.
const CYCLE_BYTES: usize = 256 << 10;
const CYCLE_LINES: usize = CYCLE_BYTES / LINE_BYTES;

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
    let (passes, cycles) = (request.sizes.of("passes"), bytes / CYCLE_BYTES);
    let threads = seats.iter().enumerate().map(|(thread, seat)| {
        let seed = request.random(thread as u64);
        Thread::at(seat.cpu, move |worker| {
            let lines = worker.lines(0);
            let mut order: Vec<usize> = (0..cycles).collect();
            for pass in 0..passes {
                shuffle(&mut order, seed.wrapping_add(pass));
                for cycle in &order {
                    let cycle = &lines[cycle * CYCLE_LINES..(cycle + 1) * CYCLE_LINES];
                    let mut walk = Walk::new(cycle, seed);
                    worker.read(&mut walk, CYCLE_LINES as u64);
                    walk.check()?;
                }
            }
            Ok(Vec::new())
        })
    });
    Ok(Plan::of_one(vec![Region::cycles(bytes, cycles, home)], threads.collect()))
}

/// Puts `order` into a random order that depends on `seed` and on the order before.
fn shuffle(order: &mut [usize], seed: u64) {
    for length in (2..=order.len()).rev() {
        order.swap(length - 1, scaled(mix(seed ^ mix(length as u64)), length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_and_pass_takes_all_cycles_in_an_order_of_its_own() {
        let orders: Vec<Vec<usize>> = (0..4)
            .map(|seed| {
                let mut order: Vec<usize> = (0..256).collect();
                shuffle(&mut order, mix(seed));
                order
            })
            .collect();
        for (number, order) in orders.iter().enumerate() {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..256));
            for other in &orders[..number] {
                // Of two random orders one place in 256 is the same by chance.
                assert!(order.iter().zip(other).filter(|(one, two)| one == two).count() < 8);
            }
        }
    }
}
