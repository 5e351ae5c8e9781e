// SPDX-License-Identifier: GPL-2.0-only
//! `bandwidth`: all threads read all of one array, which lies on one node: that node's memory is the limit.
//!
//! Nothing can be local to everyone, but spreading the pages spreads the load. Reads are independent. Each thread goes through the
//! array in an order of its own: threads that go the same way catch up with the one that waits longest, and from then on read what
//! it brought into their cache. The lines hold their index, so every pass has a known sum. Start under `none`: all memory on one
//! node.

use crate::frame::plan::{Home, Placement, Plan, Region, Request, Thread};
use crate::frame::seating::scaled;
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::stream::sum;
use crate::frame::worker::Worker;
use anyhow::{Result, bail};

/// Lines read between two looks at the CPU.
const BOUT_LINES: usize = 4096;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "bandwidth",
    summary: "all threads read all of one array on one node, whose memory is the limit: spreading the pages wins",
    sizes: &[
        THREADS,
        size("array-mib", 64, "MiB", "the array"),
        size("passes", 200, "passes", "times that each thread reads the array"),
    ],
    metric: Metric::Seconds,
    work_unit: "lines",
    best: "the array interleaved over all nodes",
    worst: "the array on one node",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let seats = request.seats(request.threads(1)?)?;
    let locals: Vec<_> = request.tour()?.into_iter().map(|node| request.local_to(node)).collect();
    let home = match request.placement {
        Placement::Oracle => Home::Interleaved(locals),
        Placement::None | Placement::Worst => Home::on(locals[0]),
    };
    let passes = request.sizes.of("passes");
    let fill = Box::new(|lines: &[_], range: std::ops::Range<usize>| {
        range.for_each(|index| crate::frame::memory::Line::set(&lines[index], 0, index as u64));
    });
    let threads = seats.iter().enumerate().map(|(thread, seat)| {
        let first = request.random(thread as u64);
        Thread::at(seat.cpu, move |worker| {
            work(worker, first, passes)?;
            Ok(Vec::new())
        })
    });
    Ok(Plan::of_one(vec![Region { bytes: request.sizes.mib("array-mib"), home, fill }], threads.collect()))
}

/// The order in which a thread reads so many bouts, each once: `first`, then always as many further on, round and round.
fn order(first: u64, bouts: usize) -> impl Iterator<Item = usize> {
    let divides_both =
        |one: usize, other: usize| (2..=one).any(|number| one.is_multiple_of(number) && other.is_multiple_of(number));
    let wanted = scaled(first.rotate_left(32), bouts);
    let step = (wanted..).find(|&step| step > 0 && !divides_both(step, bouts)).unwrap_or(1);
    (0..bouts).map(move |bout| (scaled(first, bouts) + bout * step) % bouts)
}

/// Reads the array `passes` times, in an order that others do not have.
fn work(worker: &mut Worker, first: u64, passes: u64) -> Result<()> {
    let lines = worker.lines(0);
    let bouts = lines.len() / BOUT_LINES;
    let expected = (lines.len() as u64 * (lines.len() as u64 - 1)) / 2;
    for pass in 0..passes {
        let mut read = 0u64;
        for bout in order(first, bouts) {
            read = read.wrapping_add(sum(&lines[bout * BOUT_LINES..][..BOUT_LINES]));
            worker.look();
        }
        if read != expected {
            bail!("self-check failed: pass {pass} read a sum of {read}, not {expected}");
        }
        worker.notes.work += lines.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::Memory;
    use crate::frame::spec::Values;
    use crate::topology::topology_of;
    use crate::workloads::kernel::tests::run;

    #[test]
    fn every_bout_is_read_once_in_an_order_of_the_threads_own() {
        for bouts in [1, 2, 8, 12, 255, 256] {
            for thread in 0..20u64 {
                let mut read: Vec<usize> = order(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15), bouts).collect();
                read.sort_unstable();
                assert_eq!(read, (0..bouts).collect::<Vec<_>>(), "thread {thread}");
            }
        }
        let steps = |thread: u64| {
            let read: Vec<usize> = order(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15), 256).take(2).collect();
            (256 + read[1] - read[0]) % 256
        };
        assert_ne!(steps(1), steps(2));
    }

    #[test]
    fn a_pass_that_read_something_else_fails() {
        let one = topology_of(&[(0, &[0], true)]);
        let sizes = Values([("threads", 2), ("array-mib", 1), ("passes", 2)].into());
        let request = Request { topology: &one, sizes: &sizes, placement: Placement::None, seed: 1 };
        let program = || {
            let mut program = plan(&request).unwrap().programs.remove(0);
            program.check = Some(Box::new(|_: &[Memory]| Ok(())));
            program
        };
        run(&program(), |_| {}).unwrap();
        let mut wrong = program();
        wrong.regions[0].fill = Box::new(|lines, range| range.for_each(|index| lines[index].set(0, 3)));
        assert!(run(&wrong, |_| {}).unwrap_err().to_string().contains("pass 0 read a sum of"));
    }
}
