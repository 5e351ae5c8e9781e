// SPDX-License-Identifier: GPL-2.0-only
//! Cache-aware scheduling, as Linux 7 has it: threads of one process run where they share a last-level cache.
//!
//! A process with no more threads than a last-level cache has CPUs prefers the one where most of it runs, and its threads go
//! there if a CPU is idle: the kernel's load balancing moves threads, it does not exchange them. They come from nodes that
//! have no nearer one: on the lab's ring neighbours were gathered, threads of opposite nodes not in any of four runs. It
//! takes its time: in the timing lab from 10 to 650 ms. Here it happens when a program has run for [`DELAY_NS`], and
//! whenever others start or end after that. As caches within a node are alike here, a node stands for its caches. With NUMA balancing it ends with a
//! program's first second, as the kernel lets a thread's preferred node win.

use std::ops::Range;

use tandem_policies::model::NodeIndex;

use crate::sim::Sim;

/// How long a program runs before it is gathered: about the median of what the lab's stock runs took until lines were no more
/// taken from other nodes (`lubench`, `hubench`, `ping-pong`: 10, 40, 170, 240, 650 ms).
const DELAY_NS: f64 = 170e6;

/// Until when a program is gathered if NUMA balancing finds its threads' preferred nodes after that.
const UNTIL_BALANCED_NS: f64 = 1e9;

/// When to gather.
pub struct Gathering {
    /// How long a program that is gathered has run, from and to.
    ages_ns: Range<f64>,
    /// Events that were there the last time.
    events: u64,
    /// When the next program has run long enough.
    next_ns: Option<f64>,
}

impl Gathering {
    /// Nothing gathered yet; `balanced`: on a kernel with NUMA balancing.
    pub fn new(balanced: bool) -> Self {
        let until_ns = if balanced { UNTIL_BALANCED_NS } else { f64::INFINITY };
        Self { ages_ns: DELAY_NS..until_ns, events: 0, next_ns: None }
    }

    /// Gathers, if there is a reason to.
    pub fn pass(&mut self, sim: &mut Sim) {
        if self.events != sim.events || self.next_ns.is_some_and(|next_ns| next_ns <= sim.now_ns) {
            self.events = sim.events;
            gather(sim, &self.ages_ns);
            let due = sim.started_ns.iter().flatten().map(|ns| ns + DELAY_NS).filter(|&ns| ns > sim.now_ns);
            self.next_ns = due.reduce(f64::min);
        }
    }

    /// Time until there is a reason again by itself.
    pub fn step_ns(&self, sim: &Sim) -> f64 {
        self.next_ns.map_or(f64::INFINITY, |next_ns| next_ns - sim.now_ns)
    }
}

/// Gathers every program that fits a last-level cache and has run for so long.
fn gather(sim: &mut Sim, ages_ns: &Range<f64>) {
    let mut room: Vec<usize> = (0..sim.machine.nodes()).map(|node| sim.machine.cpus(node)).collect();
    let mut home = vec![None; sim.world.programs.len()];
    for program in most_gathered_first(sim) {
        let is_due = |ns: f64| (ns + ages_ns.start..ns + ages_ns.end).contains(&sim.now_ns);
        if !sim.started_ns[program].is_some_and(is_due) {
            continue;
        }
        let threads = active_of(sim, program);
        let on = |node: usize| on(sim, &threads, node);
        let fits = |&node: &usize| {
            threads.len() <= sim.machine.cpus(node) / sim.machine.llcs_per_node && threads.len() <= room[node]
        };
        let tour = sim.world.tour.iter().copied().filter(fits);
        let most = tour.reduce(|best, next| if on(next) > on(best) { next } else { best });
        if let Some(node) = most.filter(|_| threads.len() > 1) {
            room[node] -= threads.len();
            home[program] = Some(node);
        }
    }
    for at in 0..sim.active.len() {
        let thread = sim.active[at];
        if let Some(to) = home[sim.world.threads[thread].program] {
            bring(sim, thread, to);
        }
    }
}

/// Moves a thread to its program's node, if that is near and a CPU is idle there.
fn bring(sim: &mut Sim, thread: usize, to: usize) {
    let from = sim.threads[thread].node;
    if from != to && is_nearest(sim, from, to) && sim.load()[to] < sim.machine.cpus(to) {
        sim.move_thread(thread, to, None);
    }
}

/// Whether no other node with CPUs is nearer to `from` than `to`: the kernel's domains are of CPUs.
fn is_nearest(sim: &Sim, from: usize, to: usize) -> bool {
    let distance = |other: usize| sim.machine.topology.distance(NodeIndex(from), NodeIndex(other));
    let others = (0..sim.machine.nodes()).filter(|&other| other != from && sim.machine.cpus(other) > 0);
    others.map(distance).all(|other| distance(to) <= other)
}

/// Programs, those with most threads on one node first: the more of a process runs in a cache, the sooner it gathers there.
fn most_gathered_first(sim: &Sim) -> Vec<usize> {
    let mut programs: Vec<usize> = (0..sim.world.programs.len()).collect();
    programs.sort_by_cached_key(|&program| {
        let threads = active_of(sim, program);
        let most = (0..sim.machine.nodes()).map(|node| on(sim, &threads, node)).max();
        std::cmp::Reverse(most)
    });
    programs
}

/// How many of `threads` are on `node`.
fn on(sim: &Sim, threads: &[usize], node: usize) -> usize {
    threads.iter().filter(|&&thread| sim.threads[thread].node == node).count()
}

fn active_of(sim: &Sim, program: usize) -> Vec<usize> {
    let threads = sim.active.iter().copied();
    threads.filter(|&thread| sim.world.threads[thread].program == program).collect()
}
