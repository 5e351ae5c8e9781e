// SPDX-License-Identifier: GPL-2.0-only
//! `membench`: threads that copy private memory line after line; as many as one node has CPUs saturate its memory.
//!
//! After MemBench of Srikanthan, Dwarkadas and Shen (SAM, USENIX ATC 2015). Each thread copies one array to another and
//! back, adding 1 each time, so the end tells how often every line was copied. Start under `none`: all threads and all
//! memory on one node; everything is local, and spreading half of the threads with their memory wins.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Home, Placement, Plan, Program, Region, Request, Start, Thread};
use crate::frame::spec::{Metric, Spec, THREADS_OF_A_NODE, size};
use crate::frame::stream::copy;
use crate::frame::worker::Worker;
use crate::topology::{NodeId, Seat};
use anyhow::{Result, bail};

/// Lines copied between two looks at the CPU.
const BOUT_LINES: usize = 4096;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "membench",
    summary: "threads that copy private memory, all of them on one node, whose memory they saturate: spreading wins",
    sizes: &[
        THREADS_OF_A_NODE,
        size("private-mib", 16, "MiB", "each of a thread's two arrays"),
        size("passes", 700, "passes", "times that each thread copies"),
    ],
    metric: Metric::Seconds,
    work_unit: "lines",
    best: "threads spread over the nodes, each with its memory",
    worst: "all threads on one node, all memory on the node farthest from it",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads_of_a_node()?;
    let first = request.tour()?[0];
    let seats = match request.placement {
        Placement::Oracle => request.seats(threads)?,
        Placement::None | Placement::Worst => request.seats_at(&vec![first; threads]),
    };
    let homes = match request.placement {
        Placement::None | Placement::Oracle => request.locals(&seats),
        Placement::Worst => request.fars(&seats),
    };
    Ok(Plan {
        programs: vec![program(&seats, &homes, request.sizes.mib("private-mib"), request.sizes.of("passes"))],
        pairs: Vec::new(),
    })
}

/// A program of one copying thread at each of these seats, its memory on the node named for it.
pub fn program(seats: &[Seat], homes: &[NodeId], bytes: usize, passes: u64) -> Program {
    let array = |node: NodeId, step: u64| Region {
        bytes,
        home: Home::on(node),
        fill: Box::new(move |lines, range| range.for_each(|index| lines[index].set(0, index as u64 * step))),
    };
    let regions = homes.iter().flat_map(|node| [array(*node, 1), array(*node, 0)]).collect();
    let threads = seats.iter().map(|seat| {
        Thread::at(seat.cpu, move |worker| {
            work(worker, passes);
            Ok(Vec::new())
        })
    });
    Program {
        start: Start::Together,
        regions,
        threads: threads.collect(),
        check: Some(Box::new(move |memory| check(memory, passes))),
    }
}

fn work(worker: &mut Worker, passes: u64) {
    let arrays = [worker.lines(2 * worker.number), worker.lines(2 * worker.number + 1)];
    for pass in 0..passes as usize {
        let (from, to) = (arrays[pass % 2], arrays[(pass + 1) % 2]);
        for (from, to) in from.chunks(BOUT_LINES).zip(to.chunks(BOUT_LINES)) {
            copy(from, to);
            worker.look();
        }
        worker.notes.work += from.len() as u64;
    }
}

/// Fails unless every line was copied `passes` times.
fn check(memory: &[Memory], passes: u64) -> Result<()> {
    for array in memory.iter().skip(passes as usize % 2).step_by(2) {
        let wrong = |(index, line): &(usize, &Line)| line.get(0) != *index as u64 + passes;
        if let Some((index, line)) = array.lines().iter().enumerate().find(wrong) {
            let copies = line.get(0).wrapping_sub(index as u64);
            bail!(
                "self-check failed: line {index} of {} was copied {copies} times, not {passes}",
                array.bytes() / LINE_BYTES as u64
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::CpuId;
    use crate::workloads::kernel::tests::run;

    #[test]
    fn a_line_that_was_not_copied_every_time_fails_the_check() {
        let node = NodeId(0);
        let copier = |passes| program(&[Seat { cpu: CpuId(0), node }; 2], &[node; 2], 1 << 16, passes);
        run(&copier(3), |_| {}).unwrap();
        let error = run(&copier(3), |memory| memory[3].lines()[9].set(0, 9 + 2)).unwrap_err();
        assert!(error.to_string().contains("line 9 of 1024 was copied 2 times, not 3"), "{error}");
        assert!(run(&copier(4), |memory| memory[0].lines()[9].set(0, 0)).is_err());
    }
}
