// SPDX-License-Identifier: GPL-2.0-only
//! `oltp`: servers that answer many short requests over one heap, with hot keys; what counts is the 99th percentile.
//!
//! Every server has a part of the heap. A request reads rows one after the other, each telling which comes next; a row is
//! of any server's part with a chance of 1 in 20, else of the server's own. Then it counts itself in the last row and
//! adds to one of few hot lines that all servers use. Start under `none`: the heap on one node, loaded by one thread.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Home, Placement, Plan, Region, Request, Thread};
use crate::frame::seating::{mix, scaled};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::worker::Worker;
use anyhow::{Result, bail};
use std::time::Instant;

/// Regions and the words of a row.
const HEAP: usize = 0;
const HOT: usize = 1;
const KEY: usize = 0;
const COUNT: usize = 1;
/// Lines that all servers add to; each is taken twice as often as the one after it.
const HOT_LINES: u32 = 64;
/// Of 256 rows, how many are of any server's part.
const FOREIGN_OF_256: u64 = 13;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "oltp",
    summary: "servers that answer many short requests over one heap with hot keys; the 99th percentile counts",
    sizes: &[
        THREADS,
        size("heap-mib", 128, "MiB", "the heap; every server has an equal part"),
        size("rows", 64, "rows", "rows that a request reads"),
        size("requests", 800_000, "requests", "requests that each server answers"),
    ],
    metric: Metric::P99Ns,
    work_unit: "requests",
    best: "each server's part of the heap on its node",
    worst: "each server's part of the heap on the node farthest from it",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(1)?;
    let seats = request.seats(threads)?;
    let first = request.local_to(request.tour()?[0]);
    let home = match request.placement {
        Placement::None => Home::on(first),
        Placement::Oracle => Home::Parts(request.locals(&seats)),
        Placement::Worst => Home::Parts(request.fars(&seats)),
    };
    let part_bytes = request.part_bytes("heap-mib", threads)?;
    let part = part_bytes / LINE_BYTES;
    let (rows, requests, seed) = (request.sizes.of("rows"), request.sizes.of("requests"), request.random(0));
    let heap = Region {
        bytes: part_bytes * threads,
        home,
        fill: Box::new(move |lines, range| range.for_each(|index| lines[index].set(KEY, mix(seed ^ index as u64)))),
    };
    let hot = Region {
        bytes: HOT_LINES as usize * LINE_BYTES,
        home: Home::on(first),
        fill: Box::new(|lines, range| range.for_each(|index| lines[index].set(COUNT, 0))),
    };
    let of_thread = |(thread, seat): (usize, &crate::topology::Seat)| {
        let server = Server { part, rows, random: request.random(1 + thread as u64) };
        Thread::at(seat.cpu, move |worker| {
            server.answer(worker, requests);
            Ok(Vec::new())
        })
    };
    let mut plan = Plan::of_one(vec![heap, hot], seats.iter().enumerate().map(of_thread).collect());
    let expected = requests * threads as u64;
    plan.programs[0].check = Some(Box::new(move |memory| check(memory, seed, expected)));
    Ok(plan)
}

/// What a server knows.
struct Server {
    part: usize,
    rows: u64,
    random: u64,
}

impl Server {
    fn answer(&self, worker: &mut Worker, requests: u64) {
        let (heap, hot) = (worker.lines(HEAP), worker.lines(HOT));
        let own = &heap[worker.number * self.part..][..self.part];
        let mut random = self.random;
        worker.latencies_ns.reserve_exact(requests as usize);
        for request in 0..requests {
            let begin = Instant::now();
            random = self.request(heap, own, random.wrapping_add(request));
            // Line i is taken with a chance of 1 in 2^(i+1).
            hot[(random | 1 << (HOT_LINES - 1)).trailing_zeros() as usize].add(COUNT, 1);
            worker.latencies_ns.push(begin.elapsed().as_nanos() as u64);
            if request % 64 == 0 {
                worker.look();
            }
        }
        worker.notes.work += requests;
    }

    /// Reads rows, each named by the one before; gives a number that depends on all of them.
    fn request(&self, heap: &[Line], own: &[Line], mut random: u64) -> u64 {
        let mut row = &own[scaled(random, own.len())];
        for _ in 1..self.rows {
            random = (random ^ row.get(KEY)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let part = if random >> 24 & 255 < FOREIGN_OF_256 { heap } else { own };
            row = &part[scaled(random, part.len())];
        }
        row.add(COUNT, 1);
        random ^ row.get(KEY)
    }
}

/// Fails unless every request is counted in both places and every row's key is whole.
fn check(memory: &[Memory], seed: u64, expected: u64) -> Result<()> {
    let rows = memory[HEAP].lines();
    if let Some(row) = (0..rows.len()).find(|row| rows[*row].get(KEY) != mix(seed ^ *row as u64)) {
        bail!("self-check failed: the key of row {row} was overwritten");
    }
    for (name, array) in [("rows", HEAP), ("hot lines", HOT)] {
        let counted: u64 = memory[array].lines().iter().map(|line| line.get(COUNT)).sum();
        if counted != expected {
            bail!("self-check failed: the {name} count {counted} requests, not {expected}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::spec::Values;
    use crate::topology::topology_of;
    use crate::workloads::kernel::tests::run;

    fn serve(damage: impl FnOnce(&[Memory])) -> Result<()> {
        let one = topology_of(&[(0, &[0], true)]);
        let sizes = Values([("threads", 2), ("heap-mib", 1), ("rows", 8), ("requests", 500)].into());
        let request = Request { topology: &one, sizes: &sizes, placement: Placement::None, seed: 1 };
        run(&plan(&request).unwrap().programs[0], damage)
    }

    #[test]
    fn a_lost_request_or_a_damaged_key_fails_the_check() {
        serve(|_| {}).unwrap();
        let error = serve(|memory| memory[HOT].lines()[0].set(COUNT, 0)).unwrap_err();
        assert!(error.to_string().contains("the hot lines count"), "{error}");
        let error = serve(|memory| memory[HEAP].lines()[3].set(COUNT, 999)).unwrap_err();
        assert!(error.to_string().contains("the rows count"), "{error}");
        let error = serve(|memory| memory[HEAP].lines()[3].set(KEY, 1)).unwrap_err();
        assert!(error.to_string().contains("key of row 3"), "{error}");
    }

    #[test]
    fn hot_lines_are_taken_ever_more_rarely() {
        serve(|memory| {
            let counts: Vec<u64> = memory[HOT].lines().iter().map(|line| line.get(COUNT)).collect();
            assert!((400..600).contains(&counts[0]) && (150..350).contains(&counts[1]), "{counts:?}");
        })
        .unwrap();
    }
}
