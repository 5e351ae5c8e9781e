// SPDX-License-Identifier: GPL-2.0-only
//! Cache-aware scheduling, as Linux 7 has it: threads of one process run where they share a last-level cache.
//!
//! A process with no more threads than a last-level cache has CPUs prefers the one where most of it runs, and its threads go
//! there: to an idle CPU, or in exchange with a thread that does not belong there. The kernel gets there within some tens of
//! milliseconds, by its load balancing; here it happens at once, whenever a program has started or a thread ended. As caches
//! within a node are alike here, a node stands for its caches. NUMA balancing's moves afterwards stay, as the kernel lets
//! a thread's preferred node win.

use crate::sim::Sim;

/// Gathers every program that fits a last-level cache.
pub fn gather(sim: &mut Sim) {
    let mut room: Vec<usize> = (0..sim.machine.nodes()).map(|node| sim.machine.cpus(node)).collect();
    let mut home = vec![None; sim.world.programs.len()];
    for program in most_gathered_first(sim) {
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
            bring(sim, thread, to, &home);
        }
    }
}

/// Moves a thread to its program's node: to an idle CPU, or in exchange with one whose program is not at home there.
fn bring(sim: &mut Sim, thread: usize, to: usize, home: &[Option<usize>]) {
    let from = sim.threads[thread].node;
    if from == to {
        return;
    }
    if sim.load()[to] >= sim.machine.cpus(to) {
        let strange =
            |&&other: &&usize| sim.threads[other].node == to && home[sim.world.threads[other].program] != Some(to);
        // One that is at home where this one comes from, before any other.
        let wants = |&&other: &&usize| home[sim.world.threads[other].program] != Some(from);
        let Some(&other) = sim.active.iter().filter(strange).min_by_key(wants) else { return };
        sim.move_thread(other, from, None);
    }
    sim.move_thread(thread, to, None);
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
