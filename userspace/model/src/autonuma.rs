// SPDX-License-Identifier: GPL-2.0-only
//! NUMA balancing as Linux does it, in expectations.
//!
//! Of every program, up to 256 MB of pages are made to fault in each scan period; whoever touches one next takes a hint
//! fault. Faults tell each thread's preferred node (most of its faults' memory), to which it goes if a CPU is idle there
//! or another thread gains by changing places. A page follows a fault from another node if the program is in its first
//! four scans and the page has not faulted before, or if its last fault was by the same thread (private), or if it was
//! from the same node and the node's share of the use exceeds its share of the memory by a third (shared). The period,
//! 1 s at first (less for large programs), is longer while faults are private or local and shorter while they are not.
//! Where the kernel has one page and one thread, here is a share of a group's pages: each is hit by a thread with the
//! chance that is that thread's share of the accesses.
//!
//! Terms and constants are those of kernel/sched/fair.c; left out are groups of threads that share, and tiering.

use crate::rates::Target;
use crate::sim::{Sim, Status, add};

/// Pages of one scan: 256 MB.
const SCAN_PAGES: f64 = 65_536.0;
/// First, least and greatest scan period of a program that one scan covers.
const FIRST_PERIOD_NS: f64 = 1e9;
const LEAST_PERIOD_NS: f64 = 1e8;
const GREATEST_PERIOD_NS: f64 = 60e9;
/// Scans in which untouched pages move at once.
const EARLY_SCANS: u32 = 4;
/// Slots of a period, and those that private or local faults must fill for it to grow.
const SLOTS: f64 = 10.0;
const THRESHOLD: f64 = 7.0;

/// What the kernel knows of a program.
#[derive(Clone, Debug, Default)]
struct Scan {
    period_ns: f64,
    least_ns: f64,
    /// How long the process had been there when its work began.
    before_ns: f64,
    /// When the present period ends.
    end_ns: f64,
    scans: u32,
    /// Next group, counted over the program's regions, and pages of it still to come.
    region: usize,
    group: usize,
    /// Pages that may be scanned now.
    budget: f64,
    /// Faults of this period: all, by the thread that faulted there last, and on local memory.
    faults: f64,
    private: f64,
    local: f64,
    /// Aged faults by node of the CPU and by node of the memory.
    by_cpu: Vec<f64>,
    by_memory: Vec<f64>,
}

/// NUMA balancing of all programs.
pub struct AutoNuma {
    scans: Vec<Scan>,
    /// By thread: aged faults by node of the memory.
    faults: Vec<Vec<f64>>,
    /// By region and group: shares of the threads in the last faults; empty before the first.
    last: Vec<Vec<Vec<(usize, f64)>>>,
}

impl AutoNuma {
    /// Nothing scanned.
    pub fn new(sim: &Sim) -> Self {
        let nodes = sim.machine.nodes();
        let scan = Scan { by_cpu: vec![0.0; nodes], by_memory: vec![0.0; nodes], ..Scan::default() };
        Self {
            scans: vec![scan; sim.world.programs.len()],
            faults: vec![vec![0.0; nodes]; sim.threads.len()],
            last: sim.world.regions.iter().map(|region| vec![Vec::new(); region.groups()]).collect(),
        }
    }

    /// What happens in a step.
    pub fn pass(&mut self, sim: &mut Sim, step_ns: f64) {
        sim.solve();
        let users = users(sim);
        for program in 0..self.scans.len() {
            let Some(started_ns) = sim.started_ns[program].filter(|_| sim.ended_ns[program].is_none()) else {
                continue;
            };
            if self.scans[program].period_ns == 0.0 {
                self.begin(sim, program);
            }
            // The first scan comes after a delay of one period from the start of the process: its memory was filled since.
            if sim.now_ns < started_ns + FIRST_PERIOD_NS - self.scans[program].before_ns {
                continue;
            }
            let scan = &mut self.scans[program];
            scan.budget += SCAN_PAGES.min(pages_of(sim, program)) * step_ns / scan.period_ns;
            self.scan(sim, program, &users);
            if sim.now_ns >= self.scans[program].end_ns {
                self.end_period(sim, program);
            }
        }
    }

    fn begin(&mut self, sim: &Sim, program: usize) {
        let scans = libm::ceil(pages_of(sim, program) / SCAN_PAGES).max(1.0);
        let early = !sim.world.programs[program].fills;
        let before_ns = if early { sim.fill_ns(program, None).min(FIRST_PERIOD_NS) } else { 0.0 };
        let scan = &mut self.scans[program];
        scan.least_ns = (FIRST_PERIOD_NS / scans).max(LEAST_PERIOD_NS);
        scan.period_ns = scan.least_ns;
        scan.before_ns = before_ns;
        scan.end_ns = sim.now_ns - before_ns + FIRST_PERIOD_NS + scan.period_ns;
        scan.region = sim.world.programs[program].regions.start;
    }

    /// Scans group after group while the budget lasts.
    fn scan(&mut self, sim: &mut Sim, program: usize, users: &[Vec<(usize, f64)>]) {
        let regions = sim.world.programs[program].regions.clone();
        if regions.is_empty() {
            return;
        }
        loop {
            let Scan { region, group, budget, .. } = self.scans[program];
            let pages = sim.world.regions[region].pages_of_group(group) as f64;
            if budget < pages {
                return;
            }
            self.scans[program].budget -= pages;
            self.fault(sim, program, (region, group), &users[region]);
            let scan = &mut self.scans[program];
            scan.group += 1;
            if scan.group == sim.world.regions[region].groups() {
                (scan.group, scan.region) = (0, region + 1);
                if scan.region == regions.end {
                    scan.region = regions.start;
                }
            }
        }
    }

    /// The hint faults of one group.
    fn fault(&mut self, sim: &mut Sim, program: usize, (region, group): (usize, usize), users: &[(usize, f64)]) {
        let all: f64 = users.iter().map(|user| user.1).sum();
        if all <= 0.0 {
            return;
        }
        let on = sim.regions[region].groups[group].clone();
        let last = std::mem::take(&mut self.last[region][group]);
        let early = self.scans[program].scans <= EARLY_SCANS && last.is_empty();
        let last_of = |thread: usize| last.iter().find(|entry| entry.0 == thread).map_or(0.0, |entry| entry.1);
        let mut last_from = vec![0.0; sim.machine.nodes()];
        last.iter().for_each(|&(thread, share)| last_from[sim.threads[thread].node] += share);
        for &(thread, rate) in users {
            let (share, to) = (rate / all, sim.threads[thread].node);
            let memory_to = sim.machine.memory_at(to);
            let private = last_of(thread);
            for &(from, pages) in &on {
                let faults = pages * share;
                sim.owe(thread, faults * sim.machine.moves.hint_fault_ns);
                let shared = (last_from[to] - private).max(0.0);
                let follows = if early {
                    1.0
                } else {
                    private + if self.is_worth_sharing(program, from, memory_to) { shared } else { 0.0 }
                };
                let wanted = if from == memory_to { 0.0 } else { faults * follows };
                let moved = sim.move_pages(region, group, from, memory_to, wanted);
                if moved > 0.0 {
                    sim.owe(thread, moved * sim.machine.page_move_ns(from, memory_to));
                }
                // A fault after which the page moved counts for where it went.
                self.count(program, thread, (to, from), faults - moved, private);
                self.count(program, thread, (to, memory_to), moved, private);
            }
        }
        self.last[region][group] = users.iter().map(|&(thread, rate)| (thread, rate / all)).collect();
    }

    fn count(&mut self, program: usize, thread: usize, (cpu, memory): (usize, usize), faults: f64, private: f64) {
        self.faults[thread][memory] += faults;
        let scan = &mut self.scans[program];
        scan.by_cpu[cpu] += faults;
        scan.by_memory[memory] += faults;
        scan.faults += faults;
        scan.private += faults * private;
        scan.local += if cpu == memory { faults } else { 0.0 };
    }

    /// Whether a shared page follows: the node's use, by what it has, exceeds that of the page's node by a third.
    fn is_worth_sharing(&self, program: usize, from: usize, to: usize) -> bool {
        let Scan { by_cpu, by_memory, .. } = &self.scans[program];
        by_cpu[to] * by_memory[from] * 3.0 > by_memory[to] * by_cpu[from] * 4.0
    }

    /// Threads go to the nodes they prefer, and the period is set anew.
    fn end_period(&mut self, sim: &mut Sim, program: usize) {
        for thread in sim.world.programs[program].threads.clone() {
            if sim.threads[thread].status == Status::Active {
                self.go_to_preferred(sim, thread);
            }
            self.faults[thread].iter_mut().for_each(|faults| *faults /= 2.0);
        }
        let scan = &mut self.scans[program];
        scan.scans += 1;
        scan.by_cpu.iter_mut().chain(&mut scan.by_memory).for_each(|faults| *faults /= 2.0);
        let change = if scan.faults > 0.0 {
            let (private, local) = (SLOTS * scan.private / scan.faults, SLOTS * scan.local / scan.faults);
            if private >= THRESHOLD {
                (private - THRESHOLD).max(1.0)
            } else if local >= THRESHOLD {
                (local - THRESHOLD).max(1.0)
            } else {
                private.max(local) - THRESHOLD
            }
        } else {
            SLOTS
        };
        scan.period_ns = (scan.period_ns * (1.0 + change / SLOTS)).clamp(scan.least_ns, GREATEST_PERIOD_NS);
        (scan.faults, scan.private, scan.local) = (0.0, 0.0, 0.0);
        scan.end_ns = sim.now_ns + scan.period_ns;
    }

    fn go_to_preferred(&self, sim: &mut Sim, thread: usize) {
        let faults = &self.faults[thread];
        let now_on = sim.threads[thread].node;
        let best = (0..faults.len()).fold(now_on, |best, node| if faults[node] > faults[best] { node } else { best });
        if best == now_on || sim.machine.cpus(best) == 0 {
            return;
        }
        if sim.load()[best] < sim.machine.cpus(best) {
            sim.move_thread(thread, best, None);
            return;
        }
        let gain = |other: usize| {
            let theirs = &self.faults[other];
            faults[best] - faults[now_on] + theirs[now_on] - theirs[best]
        };
        let there = sim.active.iter().copied().filter(|&other| sim.threads[other].node == best);
        let partner = there.map(|other| (other, gain(other))).filter(|entry| entry.1 > 0.0);
        if let Some((other, _)) = partner.reduce(|best, next| if next.1 > best.1 { next } else { best }) {
            sim.move_thread(thread, best, None);
            sim.move_thread(other, now_on, None);
        }
    }
}

/// The active users of each region, with their accesses per ns.
fn users(sim: &Sim) -> Vec<Vec<(usize, f64)>> {
    let mut users = vec![Vec::new(); sim.world.regions.len()];
    for (at, &thread) in sim.active.iter().enumerate() {
        for one in sim.uses(thread) {
            if let Target::Memory { region, .. } = one.target {
                add(&mut users[region], thread, sim.rates.accesses_per_ns[at] * one.share);
            }
        }
    }
    users
}

fn pages_of(sim: &Sim, program: usize) -> f64 {
    sim.world.programs[program].regions.clone().map(|region| sim.world.regions[region].pages as f64).sum()
}
