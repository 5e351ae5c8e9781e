// SPDX-License-Identifier: GPL-2.0-only
//! `migration`: what moving pages costs and gains, as a function of how much of their use is local.
//!
//! After the page-migration benchmark of R. Laso Rodriguez (PhD thesis, USC 2023, algorithm 4.1). Two groups of threads
//! on two far nodes; half of the pages on each. Of the operations on a page, a given share comes from the group that is
//! local to it at first. An operation picks a page at random and counts in some of its lines. After so many operations
//! on a page the thread that made the last one moves it, with a given probability, to the other group's node, once.
//! Below a local share of one half moving pays, above it harms. With probability 0 (the default) moving is left to the
//! system: either the pages or the groups should change nodes. Start under `none`: as described. Best is to have everything on one
//! node if that has a CPU for each thread, else each page with the group that uses it more; worst the opposite of either.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Home, Placement, Plan, Region, Request, Thread};
use crate::frame::seating::mix;
use crate::frame::spec::{Metric, Size, Spec, size};
use crate::frame::worker::Worker;
use crate::page_homes::move_page;
use crate::topology::NodeId;
use anyhow::{Result, bail};

/// Lines of a page, and how many of them an operation counts in.
const PAGE_LINES: usize = 64;
const LINES_PER_OPERATION: usize = 16;
/// Words of a line: visits, and (in a page's first line) operations on the page.
const VISITS: usize = 0;
const OPERATIONS: usize = 1;
/// Operations between two looks at the CPU.
const OPERATIONS_PER_LOOK: u64 = 256;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "migration",
    summary: "two groups of threads use pages of two nodes, a given share of the use being local; pages may be moved",
    sizes: &[
        size("threads-per-group", 2, "threads", "threads of each of the two groups"),
        size("pages", 16_384, "pages", "pages of 4 KiB, half of them on each node"),
        percent("local-percent", 20, "share of a page's operations that is local at first"),
        size("operations", 2_500_000, "operations", "operations of each thread, each on one page"),
        size("threshold", 20, "operations", "operations on a page after which it may be moved"),
        percent("move-percent", 0, "probability that a page is moved then, by the workload itself"),
    ],
    metric: Metric::Seconds,
    work_unit: "operations",
    best: "all on one node if that has the CPUs, else every page on the node of the group that uses it more",
    worst: "all threads on one node and all pages on another, else every page on the node of the group that uses it less",
    timed: false,
    plan,
};

const fn percent(name: &'static str, default: u64, help: &'static str) -> Size {
    Size { name, default, unit: "%", help, least: 0 }
}

fn plan(request: &Request) -> Result<Plan> {
    let sizes = request.sizes;
    for name in ["local-percent", "move-percent"] {
        if sizes.of(name) > 100 {
            bail!("--{name} {}: a share is at most 100", sizes.of(name));
        }
    }
    let group = sizes.of("threads-per-group") as usize;
    let half = sizes.of("pages") as usize / 2;
    if half == 0 {
        bail!("--pages 1: each of the two nodes needs one at least");
    }
    let first = request.tour()?[0];
    // Pages are on `nodes` at first, and that is where the workload itself moves them.
    let nodes = [first, request.far_from(first)];
    let gathered = request.placement != Placement::None && 2 * group <= request.topology.cpus_of(first).len();
    let seats = request.seats_at(&[vec![nodes[0]; group], vec![nodes[usize::from(!gathered)]; group]].concat());
    let as_started = nodes.map(|node| request.local_to(node)).to_vec();
    let swapped = vec![as_started[1], as_started[0]];
    let is_mostly_local = sizes.of("local-percent") >= 50;
    let homes = match (request.placement, is_mostly_local) {
        (Placement::Oracle, _) if gathered => vec![as_started[0]; 2],
        (Placement::Worst, _) if gathered => vec![request.far_from(first); 2],
        (Placement::None, _) | (Placement::Oracle, true) | (Placement::Worst, false) => as_started.clone(),
        (Placement::Oracle, false) | (Placement::Worst, true) => swapped,
    };
    let pages = Region {
        bytes: 2 * half * PAGE_LINES * LINE_BYTES,
        home: Home::Parts(homes),
        fill: Box::new(|lines, range| range.for_each(|index| lines[index].set(VISITS, 0))),
    };
    let operations = sizes.of("operations");
    let threads = seats.iter().enumerate().map(|(thread, seat)| {
        let member = Member {
            group: thread / group,
            half,
            local_of_100: sizes.of("local-percent"),
            threshold: sizes.of("threshold"),
            moved_of_100: if request.placement == Placement::None { sizes.of("move-percent") } else { 0 },
            nodes: [as_started[0], as_started[1]],
            random: request.random(thread as u64),
        };
        Thread::at(seat.cpu, move |worker| {
            member.operate(worker, operations)?;
            Ok(Vec::new())
        })
    });
    let mut plan = Plan::of_one(vec![pages], threads.collect());
    let expected = operations * seats.len() as u64;
    plan.programs[0].check = Some(Box::new(move |memory| check(memory, expected)));
    Ok(plan)
}

/// A thread of one of the groups.
struct Member {
    group: usize,
    /// Pages in each half of the array.
    half: usize,
    local_of_100: u64,
    threshold: u64,
    moved_of_100: u64,
    /// Nodes of the two groups.
    nodes: [NodeId; 2],
    random: u64,
}

impl Member {
    fn operate(&self, worker: &mut Worker, operations: u64) -> Result<()> {
        let lines = worker.lines(0);
        let mut random = self.random;
        for operation in 0..operations {
            random = mix(random);
            let is_local = random % 100 < self.local_of_100;
            let side = if is_local { self.group } else { 1 - self.group };
            let page = side * self.half + (((random >> 32) * self.half as u64) >> 32) as usize;
            let done = visit(&lines[page * PAGE_LINES..][..PAGE_LINES], random as usize >> 8);
            if done == self.threshold && mix(!random) % 100 < self.moved_of_100 {
                move_page(&lines[page * PAGE_LINES], self.nodes[1 - side])?;
            }
            if operation % OPERATIONS_PER_LOOK == 0 {
                worker.look();
            }
        }
        worker.notes.work += operations;
        Ok(())
    }
}

/// Counts in some lines of a page, beginning at line `first` (modulo 64); gives the operations on the page so far.
fn visit(page: &[Line], first: usize) -> u64 {
    for step in 0..LINES_PER_OPERATION {
        page[(first + 27 * step) % PAGE_LINES].add(VISITS, 1);
    }
    page[0].add(OPERATIONS, 1) + 1
}

/// Fails unless every operation on every line was counted.
fn check(memory: &[Memory], operations: u64) -> Result<()> {
    for (name, word, expected) in
        [("visits", VISITS, operations * LINES_PER_OPERATION as u64), ("operations", OPERATIONS, operations)]
    {
        let counted: u64 = memory[0].lines().iter().map(|line| line.get(word)).sum();
        if counted != expected {
            bail!("self-check failed: the pages count {counted} {name}, not {expected}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::plan::Place;
    use crate::frame::spec::Values;
    use crate::topology::{CpuId, ring_of_four, topology_of};
    use crate::workloads::kernel::tests::run;

    fn sizes(threads: u64, local_percent: u64) -> Values {
        let given =
            [("threads-per-group", threads), ("pages", 8), ("local-percent", local_percent), ("operations", 5000)];
        Values(given.into_iter().chain([("threshold", 20), ("move-percent", 0)]).collect())
    }

    #[test]
    fn the_share_of_local_operations_is_as_given_and_a_lost_one_fails_the_check() {
        let one = topology_of(&[(0, &[0], true)]);
        let request = Request { topology: &one, sizes: &sizes(1, 20), placement: Placement::None, seed: 1 };
        let mut program = plan(&request).unwrap().programs.remove(0);
        let operations = |memory: &[Memory], pages: std::ops::Range<usize>| -> u64 {
            pages.map(|page| memory[0].lines()[page * PAGE_LINES].get(OPERATIONS)).sum()
        };
        // Without the second group only the first one's preference shows: 1 of 5 in its own half.
        program.threads.truncate(1);
        program.check = Some(Box::new(|memory| check(memory, 5000)));
        run(&program, |memory| assert!((900..1100).contains(&operations(memory, 0..4)))).unwrap();
        let lose = |memory: &[Memory]| memory[0].lines()[5].set(VISITS, 0);
        assert!(run(&program, lose).unwrap_err().to_string().contains("visits, not 80000"));
    }

    #[test]
    fn the_oracle_gives_pages_to_the_group_that_uses_them_more() {
        let ring = ring_of_four();
        let homes = |local_percent, placement| {
            let request = Request { topology: &ring, sizes: &sizes(2, local_percent), placement, seed: 0 };
            plan(&request).unwrap().programs[0].regions[0].home.clone()
        };
        let [kept, swapped] = [[0, 2], [2, 0]].map(|nodes| Home::Parts(nodes.map(NodeId).to_vec()));
        assert_eq!((homes(20, Placement::Oracle), homes(20, Placement::Worst)), (swapped.clone(), kept.clone()));
        assert_eq!((homes(80, Placement::Oracle), homes(80, Placement::Worst)), (kept.clone(), swapped));
        assert_eq!(homes(20, Placement::None), kept);
    }

    #[test]
    fn groups_that_fit_on_a_node_are_best_there_with_all_pages_and_worst_with_none() {
        let ring = ring_of_four();
        for (placement, cpus, homes) in
            [(Placement::Oracle, [0, 1], [0, 0]), (Placement::Worst, [0, 1], [2, 2]), (Placement::None, [0, 4], [0, 2])]
        {
            let program = plan(&Request { topology: &ring, sizes: &sizes(1, 20), placement, seed: 0 })
                .unwrap()
                .programs
                .remove(0);
            assert_eq!(program.regions[0].home, Home::Parts(homes.map(NodeId).to_vec()), "{placement:?}");
            let places: Vec<Place> = program.threads.iter().map(|thread| thread.place).collect();
            assert_eq!(places, cpus.map(|cpu| Place::Cpu(CpuId(cpu))), "{placement:?}");
        }
    }
}
