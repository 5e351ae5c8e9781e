// SPDX-License-Identifier: GPL-2.0-only
//! `queue` and `interactive`: programs that come and go, after the scenarios of R. Laso Rodriguez (PhD thesis, USC 2023).
//!
//! The programs are the kernels `cg`, `sp` and `is`, each a process that fills its own memory where it happens to run,
//! works, checks itself and ends. In `queue` there are as many users as nodes, each of whom starts a program as soon as
//! the one before has ended, with as many threads as a node has CPUs: the machine is always full. In `interactive` eight
//! programs, each with a fifth of the CPUs, start at the thesis's times, scaled; at the peak there are more threads than
//! CPUs. Its codes LU and BT, which solve along the lines of a grid as SP does, are played by `sp`. Start under `none`:
//! nothing is placed.

use crate::frame::plan::{Home, Place, Placement, Plan, Program, Request, Start};
use crate::frame::spec::{Metric, Size, Spec, size};
use crate::topology::NodeId;
use crate::workloads::kernel::Layout;
use crate::workloads::{cg, is, sp};
use anyhow::Result;
use std::time::Duration;

/// The codes and starts in seconds of `interactive` on the thesis's first machine (section 4).
const INTERACTIVE: [(Code, u64); 8] = [
    (Code::Sp, 0),
    (Code::Sp, 18),
    (Code::Cg, 137),
    (Code::Sp, 190),
    (Code::Sp, 224),
    (Code::Sp, 244),
    (Code::Cg, 269),
    (Code::Sp, 316),
];
/// Its programs have 8 threads on 40 cores.
const CPUS_PER_THREAD: usize = 5;

/// The share of the default work of one thread, in percent, that a program does.
const WORK: Size = size("work", 200, "%", "work of a program; 100 is about a second when the machine is full");

/// The scenario of several users.
pub const QUEUE: Spec = Spec {
    name: "queue",
    summary: "as many users as nodes, each starting one program after the other: the machine is always full",
    sizes: &[size("programs", 3, "programs", "programs that each user starts"), WORK],
    metric: Metric::Seconds,
    work_unit: "elements",
    best: "each user on a node of their own, a thread on each CPU, with all memory",
    worst: "each user on a node of their own, a thread on each CPU, with all memory on the node farthest from it",
    timed: false,
    plan: queue,
};

/// The scenario of programs that start at given times.
pub const INTERACTIVE_SPEC: Spec = Spec {
    name: "interactive",
    summary: "eight programs that start at given times, at the peak more threads than CPUs; the sum of their lengths counts",
    sizes: &[
        size("scale", 20, "ms", "time for each second of the original starts (0 to 316 s)"),
        Size { default: 250, ..WORK },
    ],
    metric: Metric::AccumulatedSeconds,
    best: "each program on one node with its memory, nodes in turn",
    worst: "each program on one node with its memory on the node farthest from it, nodes in turn",
    plan: interactive,
    ..QUEUE
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Cg,
    Sp,
    Is,
}

fn queue(request: &Request) -> Result<Plan> {
    let (tour, programs) = (request.tour()?, request.sizes.of("programs") as usize);
    let mut plan = Plan { programs: Vec::new(), pairs: Vec::new() };
    let users = request.topology.counted_nodes();
    for turn in 0..programs {
        for user in 0..users {
            let node = tour[user % tour.len()];
            let start = match turn {
                0 => Start::At(Duration::ZERO),
                _ => Start::After((turn - 1) * users + user),
            };
            // Users begin with different codes, so that not everybody changes at once.
            let code = [Code::Cg, Code::Sp, Code::Is][(turn + user) % 3];
            // As many threads as CPUs: one on each.
            let cpus = request.topology.cpus_of(node);
            let threads = request.topology.counted_cpus_of(node);
            let places = (0..threads).map(|thread| Place::Cpu(cpus[thread % cpus.len()])).collect();
            plan.programs.push(program(request, code, node, places, start));
        }
    }
    Ok(plan)
}

fn interactive(request: &Request) -> Result<Plan> {
    let tour = request.tour()?;
    let threads = request.topology.counted_cpus().div_ceil(CPUS_PER_THREAD);
    let scale = Duration::from_millis(request.sizes.of("scale"));
    let programs = INTERACTIVE.iter().enumerate().map(|(number, (code, start))| {
        let node = tour[number % tour.len()];
        program(request, *code, node, vec![Place::Node(node); threads], Start::At(scale * *start as u32))
    });
    Ok(Plan { programs: programs.collect(), pairs: Vec::new() })
}

/// A program of `code` with a thread for each of `places` on `node`, where they are if the workload decides.
fn program(request: &Request, code: Code, node: NodeId, places: Vec<Place>, start: Start) -> Program {
    let threads = places.len();
    let (places, home) = match request.placement {
        Placement::None => (vec![Place::Anywhere; threads], Home::Anywhere),
        Placement::Oracle => (places, Home::on(request.local_to(node))),
        Placement::Worst => (places, Home::on(request.far_from(node))),
    };
    let layout = Layout { places, home, start };
    // Amounts of memory and of work for each thread; work is counted in whole solves, steps and sorts.
    let work = |amount: u64| (amount * request.sizes.of("work")).div_ceil(100);
    let seed = request.random(0);
    match code {
        Code::Cg => cg::program(&layout, 8192 * threads, work(6), seed),
        Code::Sp => sp::program(&layout, (64_000.0 * threads as f64).cbrt() as usize, work(100)),
        Code::Is => is::program(&layout, (6 << 14) * threads, work(170), seed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::spec::Values;
    use crate::topology::ring_of_four;

    fn planned(build: fn(&Request) -> Result<Plan>, placement: Placement) -> Plan {
        let ring = ring_of_four();
        let sizes = Values([("programs", 2), ("work", 100), ("scale", 20)].into());
        build(&Request { topology: &ring, sizes: &sizes, placement, seed: 0 }).unwrap()
    }

    #[test]
    fn users_of_the_queue_have_a_node_each_and_start_one_program_after_the_other() {
        let plan = planned(queue, Placement::Oracle);
        assert_eq!(plan.programs.len(), 8);
        for (index, program) in plan.programs.iter().enumerate() {
            let expected = if index < 4 { Start::At(Duration::ZERO) } else { Start::After(index - 4) };
            assert_eq!(program.start, expected);
            let node = NodeId(index as u32 % 4);
            let places: Vec<Place> = program.threads.iter().map(|thread| thread.place).collect();
            let cpus = ring_of_four().cpus_of(node).to_vec();
            assert_eq!(places, cpus.into_iter().map(Place::Cpu).collect::<Vec<_>>(), "one on each CPU");
            assert_eq!((program.threads.len(), &program.regions[0].home), (2, &Home::on(node)));
        }
    }

    #[test]
    fn interactive_programs_start_at_the_scaled_times_with_a_fifth_of_the_cpus() {
        let plan = planned(interactive, Placement::None);
        let starts: Vec<Start> = plan.programs.iter().map(|program| program.start).collect();
        assert_eq!(starts[1], Start::At(Duration::from_millis(360)));
        assert_eq!(starts[7], Start::At(Duration::from_millis(6320)));
        assert!(plan.programs.iter().all(|program| program.threads.len() == 2));
        assert!(plan.programs.iter().flat_map(|program| &program.regions).all(|region| region.home == Home::Anywhere));
    }
}
