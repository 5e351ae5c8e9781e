// SPDX-License-Identifier: GPL-2.0-only
//! `hogs`: threads that only compute, one for each CPU: there is nothing to gain.
//!
//! The other control beside `all-shared`: no memory could be nearer, no line is shared, and no CPU is left, so whatever a
//! scheduler spends on them, or any thread that it puts beside another one, is lost.

use crate::frame::plan::{Placement, Plan, Program, Request, Start, Thread};
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::spin::Spin;
use crate::topology::Seat;
use anyhow::Result;

/// Steps between two looks at the CPU.
const BOUT_STEPS: u64 = 1 << 16;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "hogs",
    summary: "threads that only compute, one for each CPU: nothing to gain",
    sizes: &[THREADS, size("steps", 160_000_000, "steps", "steps of each thread, about 6 instructions each")],
    metric: Metric::Seconds,
    work_unit: "steps",
    best: "one thread on each CPU",
    worst: "all threads on one node",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(1)?;
    let seats = match request.placement {
        Placement::None | Placement::Oracle => request.seats(threads)?,
        Placement::Worst => request.seats_at(&vec![request.tour()?[0]; threads]),
    };
    Ok(Plan { programs: vec![program(&seats, request.sizes.of("steps"))], pairs: Vec::new() })
}

/// A program of one computing thread at each of these seats.
pub fn program(seats: &[Seat], steps: u64) -> Program {
    let threads = seats.iter().map(|seat| {
        Thread::at(seat.cpu, move |worker| {
            let mut spin = Spin::default();
            let mut left = steps;
            while left > 0 {
                let now = left.min(BOUT_STEPS);
                spin.steps(now);
                left -= now;
                worker.notes.work += now;
                worker.look();
            }
            spin.check()?;
            Ok(Vec::new())
        })
    });
    Program { start: Start::Together, regions: Vec::new(), threads: threads.collect(), check: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::plan::Place;
    use crate::frame::spec::Values;
    use crate::topology::ring_of_four;

    #[test]
    fn each_has_a_cpu_of_its_own_but_in_the_worst_placement() {
        let cpus = |placement: Placement| {
            let (topology, sizes) = (ring_of_four(), Values([("threads", 8), ("steps", 1)].into()));
            let plan = plan(&Request { topology: &topology, sizes: &sizes, placement, seed: 0 }).unwrap();
            let of = |thread: &Thread| match thread.place {
                Place::Cpu(cpu) => cpu.0,
                _ => panic!("a thread without a CPU"),
            };
            plan.programs[0].threads.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!([Placement::None, Placement::Oracle].map(cpus), [[0, 1, 2, 3, 4, 5, 6, 7]; 2]);
        assert_eq!(cpus(Placement::Worst), [0, 1, 0, 1, 0, 1, 0, 1]);
    }
}
