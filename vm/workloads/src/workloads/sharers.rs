// SPDX-License-Identifier: GPL-2.0-only
//! `hubench` and `lubench`: threads that write the same cache lines, with much or with little sharing.
//!
//! After HuBench and LuBench of Srikanthan, Dwarkadas and Shen (SAM, USENIX ATC 2015): about 1.3e-3 and 2.6e-4 transfers
//! of lines between caches per cycle; the second is just above the rate from which placing sharers apart costs 5 %. All
//! threads add to the lines of one small array in the same order, so each line was last written by another thread. The
//! arithmetic between two additions sets the rate. No false sharing: a line is one datum. Start under `none`: threads
//! scattered over the nodes.

use crate::frame::memory::{LINE_BYTES, Memory};
use crate::frame::plan::{Home, Placement, Plan, Program, Region, Request, Start, Thread};
use crate::frame::spec::{Metric, Size, Spec, THREADS_OF_A_NODE, size};
use crate::frame::spin::Spin;
use crate::frame::worker::Worker;
use crate::topology::{NodeId, Seat};
use anyhow::{Result, bail};

/// Lines of the shared array: fit every cache.
const SHARED_LINES: usize = 512;
/// Additions between two looks at the CPU.
const BOUT_ADDITIONS: u64 = 4096;

const fn sizes(additions: u64, compute: u64) -> [Size; 3] {
    [
        THREADS_OF_A_NODE,
        size("additions", additions, "additions", "additions to shared lines by each thread"),
        size("compute", compute, "steps", "steps of arithmetic between two additions, about 6 instructions each"),
    ]
}

/// The workload of much sharing.
pub const HUBENCH: Spec = Spec {
    name: "hubench",
    summary: "threads that write the same cache lines all the time, scattered over the nodes",
    sizes: &sizes(14_000_000, 50),
    metric: Metric::Seconds,
    work_unit: "additions",
    best: "all threads and the shared lines on one node",
    worst: "threads alternately on two far nodes",
    timed: false,
    plan,
};

/// The workload of little sharing.
pub const LUBENCH: Spec = Spec {
    name: "lubench",
    summary: "threads that write the same cache lines now and then, scattered over the nodes",
    sizes: &sizes(2_900_000, 290),
    ..HUBENCH
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads_of_a_node()?;
    let tour = request.tour()?;
    let far = request.far_from(tour[0]);
    let nodes: Vec<NodeId> = match request.placement {
        Placement::None => (0..threads).map(|thread| tour[thread % tour.len()]).collect(),
        Placement::Oracle => vec![tour[0]; threads],
        Placement::Worst => (0..threads).map(|thread| [tour[0], far][thread % 2]).collect(),
    };
    let home = request.local_to(tour[0]);
    let (additions, compute) = (request.sizes.of("additions"), request.sizes.of("compute"));
    Ok(Plan { programs: vec![program(&request.seats_at(&nodes), home, additions, compute)], pairs: Vec::new() })
}

/// A program of one sharing thread at each of these seats, the shared lines on node `home`.
pub fn program(seats: &[Seat], home: NodeId, additions: u64, compute: u64) -> Program {
    let shared = Region {
        bytes: SHARED_LINES * LINE_BYTES,
        home: Home::on(home),
        fill: Box::new(|lines, range| range.for_each(|index| lines[index].set(0, 0))),
    };
    let threads = seats.iter().map(|seat| {
        Thread::at(seat.cpu, move |worker| {
            work(worker, additions, compute)?;
            Ok(Vec::new())
        })
    });
    let expected = additions * seats.len() as u64;
    Program {
        start: Start::Together,
        regions: vec![shared],
        threads: threads.collect(),
        check: Some(Box::new(move |memory| check(memory, expected))),
    }
}

fn work(worker: &mut Worker, additions: u64, compute: u64) -> Result<()> {
    let lines = worker.lines(0);
    let mut spin = Spin::default();
    let mut left = additions;
    while left > 0 {
        let now = left.min(BOUT_ADDITIONS);
        for addition in 0..now as usize {
            spin.steps(compute);
            lines[addition % SHARED_LINES].add(0, 1);
        }
        left -= now;
        worker.notes.work += now;
        worker.look();
    }
    spin.check()
}

/// Fails unless no addition was lost.
fn check(memory: &[Memory], expected: u64) -> Result<()> {
    let sum: u64 = memory[0].lines().iter().map(|line| line.get(0)).sum();
    if sum != expected {
        bail!("self-check failed: the shared lines count {sum} additions, not {expected}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::CpuId;
    use crate::workloads::kernel::tests::run;

    #[test]
    fn an_addition_that_was_lost_fails_the_check() {
        let seats = [Seat { cpu: CpuId(0), node: NodeId(0) }; 3];
        run(&program(&seats, NodeId(0), 5000, 1), |_| {}).unwrap();
        let lose = |memory: &[Memory]| memory[0].lines()[7].set(0, memory[0].lines()[7].get(0) - 1);
        let error = run(&program(&seats, NodeId(0), 5000, 1), lose).unwrap_err();
        assert!(error.to_string().contains("count 14999 additions, not 15000"), "{error}");
    }
}
