// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler below every arm: it knows nothing of memory and leaves no CPU idle while threads wait.
//!
//! Stands for EEVDF's load balancing, and for `scx_tandem` where threads have leases. A thread that has a lease and is
//! away goes home when home has room. A node from which a thread could go to one with less load for its CPUs loses one,
//! to the nearest such node: threads without a lease first; those with one only to an idle CPU.

use crate::sim::Sim;

/// Balances the active threads.
pub fn balance(sim: &mut Sim) {
    let mut load = sim.load();
    for at in 0..sim.active.len() {
        let thread = sim.active[at];
        let state = &sim.threads[thread];
        if let Some(home) = state.lease.filter(|&home| home != state.node && load[home] < sim.machine.cpus(home)) {
            load[state.node] -= 1;
            load[home] += 1;
            sim.move_thread(thread, home, None);
        }
    }
    while let Some((thread, to)) = next_move(sim, &load) {
        load[sim.threads[thread].node] -= 1;
        load[to] += 1;
        sim.move_thread(thread, to, None);
    }
}

fn next_move(sim: &Sim, load: &[usize]) -> Option<(usize, usize)> {
    let cpus = |node: usize| sim.machine.cpus(node);
    let mut full: Vec<usize> = (0..load.len()).filter(|&node| load[node] > cpus(node)).collect();
    full.sort_by(|&a, &b| crowd(load, cpus, b).total_cmp(&crowd(load, cpus, a)).then(a.cmp(&b)));
    for &from in &full {
        let gains = |&to: &usize| {
            let after = (load[to] + 1) as f64 / cpus(to) as f64;
            cpus(to) > 0 && to != from && after < crowd(load, cpus, from)
        };
        let mut to: Vec<usize> = (0..load.len()).filter(gains).collect();
        // An idle CPU before a shorter queue, and the nearest of equals.
        let key = |node: usize| (crowd(load, cpus, node).max(1.0 - f64::EPSILON), sim.machine.latency_ns[from][node]);
        to.sort_by(|&a, &b| key(a).0.total_cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)).then(a.cmp(&b)));
        for to in to {
            if let Some(thread) = thread_to_take(sim, from, load[to] < cpus(to)) {
                return Some((thread, to));
            }
        }
    }
    None
}

fn crowd(load: &[usize], cpus: impl Fn(usize) -> usize, node: usize) -> f64 {
    load[node] as f64 / cpus(node).max(1) as f64
}

/// The last thread of a node that may be taken: without a lease, else with one if a CPU waits for it.
fn thread_to_take(sim: &Sim, from: usize, to_idle: bool) -> Option<usize> {
    let here =
        || sim.active.iter().rev().copied().filter(|&at| sim.threads[at].node == from && !sim.threads[at].pinned);
    here().find(|&at| sim.threads[at].lease.is_none()).or_else(|| here().next().filter(|_| to_idle))
}
