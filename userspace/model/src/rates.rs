// SPDX-License-Identifier: GPL-2.0-only
//! How fast threads run where they are: the equations of docs/machine-model.md, solved.
//!
//! Problem: a thread's speed depends on the latency of its accesses, that on how busy memories and links are, and that
//! on all threads' speeds. Mechanism: a fixed point. An iteration takes the waits of the last one, computes all speeds,
//! from them the load of every server (a node's memory, a link), and from the loads new waits. A server's step assumes
//! that its load falls with its wait as that of threads which wait for nothing else would, so that threads which are
//! alike, or saturate one server, need few iterations.
//!
//! The wait is that of the timing lab: service x u / (2 (1 - u)) for a busy share u (M/D/1) up to [`MAX_BUSY`], and as
//! much more as brings the load down to 1 where threads would ask for more.

use crate::machine::Machine;
use crate::placement::Spread;

/// The formula's wait is that of this busy share at most.
const MAX_BUSY: f64 = 0.9;
/// Relative change of the speeds at which they are solved.
const TOLERANCE: f64 = 1e-7;
const MOST_ITERATIONS: usize = 200;

/// What a share of a thread's accesses goes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Pages of a region, evenly.
    Memory {
        /// Number of the region.
        region: usize,
        /// Share of them that no cache holds.
        miss: f64,
        /// Share of the missing lines that are written back later.
        write: f64,
    },
    /// Lines that stay in caches and are written by all their users.
    Lines {
        /// Number of the set of lines.
        set: usize,
    },
}

/// A share of a thread's accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// Where they go.
    pub target: Target,
    /// Of all its accesses, 0 to 1.
    pub share: f64,
}

/// A thread that runs.
#[derive(Clone, Copy, Debug)]
pub struct Runner<'a> {
    /// Its node.
    pub node: usize,
    /// Share of a CPU that it gets, 0 to 1.
    pub cpu_share: f64,
    /// Time between two accesses in which it computes.
    pub compute_ns: f64,
    /// Misses it has in flight.
    pub overlap: f64,
    /// Where its accesses go.
    pub uses: &'a [Use],
    /// Number of the group of threads that wait for each other and so advance at one speed.
    pub group: Option<usize>,
}

/// Accesses that runners of one node make to one region.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    node: usize,
    region: usize,
    latency_ns: f64,
    /// Lines per ns, write-backs included, and how much they fall for each ns of wait.
    flow: f64,
    slope: f64,
}

/// The speeds, and what they were solved with; waits are kept as the next solution's first guess.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Accesses per ns of each runner.
    pub accesses_per_ns: Vec<f64>,
    /// Time of one access with its computing, of each runner, in ns of its CPU.
    pub access_ns: Vec<f64>,
    nodes: usize,
    /// Waits in ns: of memories, and of links (from x nodes + to).
    memory_wait_ns: Vec<f64>,
    link_wait_ns: Vec<f64>,
    /// Lines per ns from a node to a memory, write-backs included, and their slope.
    flow: Vec<f64>,
    slope: Vec<f64>,
    cells: Vec<Cell>,
    /// By node x regions + region: number of the cell + 1.
    cell_of: Vec<u32>,
    /// Cells of the runners' uses, one after the other; [`NO_CELL`] for lines.
    use_cells: Vec<u32>,
    /// Accesses per ns to each set of lines by node: set x nodes + node.
    line_rates: Vec<f64>,
    group_least: Vec<f64>,
}

const NO_CELL: u32 = u32::MAX;

impl Rates {
    /// Nothing solved yet.
    pub fn new(machine: &Machine) -> Self {
        let nodes = machine.nodes();
        let (memory_wait_ns, link_wait_ns) = (vec![0.0; nodes], vec![0.0; nodes * nodes]);
        Self { nodes, memory_wait_ns, link_wait_ns, ..Self::default() }
    }

    /// Solves the speeds of `runners` with the regions' pages where `spreads` says. `sets` is the number of sets of lines.
    pub fn solve(&mut self, machine: &Machine, runners: &[Runner], spreads: &[Spread], sets: usize) {
        self.prepare(runners, spreads.len(), sets);
        for iteration in 0..MOST_ITERATIONS {
            self.find_latencies(machine, spreads);
            let change = self.find_speeds(machine, runners);
            let moved = self.find_waits(machine, spreads);
            // The first pass has no speeds of lines to go by.
            if change < TOLERANCE && moved < TOLERANCE && iteration > 0 {
                return;
            }
        }
    }

    /// Mean latency of an access from `node` to pages spread so, waits included, in ns.
    pub fn latency_ns(&self, machine: &Machine, node: usize, spread: &Spread) -> f64 {
        spread.iter().map(|(memory, share)| share * self.line_ns(machine, node, memory)).sum()
    }

    /// Latency of a line of `memory` fetched from `node`, waits included, in ns.
    pub fn line_ns(&self, machine: &Machine, node: usize, memory: usize) -> f64 {
        let wait_ns = self.memory_wait_ns[memory] + self.link_wait_ns[node * self.nodes + memory];
        machine.latency_ns[node][memory] + wait_ns
    }

    /// Mean latency of the lines that `memory` serves; `None` if it serves none.
    pub fn served_ns(&self, machine: &Machine, memory: usize) -> Option<f64> {
        let from = |node: usize| self.flow[node * self.nodes + memory];
        let lines: f64 = (0..self.nodes).map(from).sum();
        let stall: f64 = (0..self.nodes).map(|node| from(node) * self.line_ns(machine, node, memory)).sum();
        (lines > 0.0).then(|| stall / lines)
    }

    fn prepare(&mut self, runners: &[Runner], regions: usize, sets: usize) {
        self.cell_of.clear();
        self.cell_of.resize(self.nodes * regions, 0);
        self.cells.clear();
        self.use_cells.clear();
        for runner in runners {
            for one in runner.uses {
                let Target::Memory { region, .. } = one.target else {
                    self.use_cells.push(NO_CELL);
                    continue;
                };
                let slot = &mut self.cell_of[runner.node * regions + region];
                if *slot == 0 {
                    self.cells.push(Cell { node: runner.node, region, ..Cell::default() });
                    *slot = self.cells.len() as u32;
                }
                self.use_cells.push(*slot - 1);
            }
        }
        let groups = runners.iter().filter_map(|runner| runner.group).max().map_or(0, |last| last + 1);
        self.group_least.clear();
        self.group_least.resize(groups, f64::INFINITY);
        self.line_rates.clear();
        self.line_rates.resize(sets * self.nodes, 0.0);
        self.accesses_per_ns.clear();
        self.accesses_per_ns.resize(runners.len(), 0.0);
        self.access_ns.clear();
        self.access_ns.resize(runners.len(), 0.0);
        self.flow.resize(self.nodes * self.nodes, 0.0);
        self.slope.resize(self.nodes * self.nodes, 0.0);
    }

    fn find_latencies(&mut self, machine: &Machine, spreads: &[Spread]) {
        for at in 0..self.cells.len() {
            let Cell { node, region, .. } = self.cells[at];
            let latency_ns = self.latency_ns(machine, node, &spreads[region]);
            self.cells[at] = Cell { node, region, latency_ns, flow: 0.0, slope: 0.0 };
        }
    }

    /// Speeds under the latencies there are; returns the greatest relative change.
    fn find_speeds(&mut self, machine: &Machine, runners: &[Runner]) -> f64 {
        let mut change: f64 = 0.0;
        let mut first_use = 0;
        self.group_least.fill(f64::INFINITY);
        for (at, runner) in runners.iter().enumerate() {
            let access_ns = self.access_ns(machine, runner, first_use, self.accesses_per_ns[at]);
            first_use += runner.uses.len();
            let before = std::mem::replace(&mut self.access_ns[at], access_ns);
            change = change.max((access_ns - before).abs() / access_ns);
            if let Some(group) = runner.group {
                self.group_least[group] = self.group_least[group].min(runner.cpu_share / access_ns);
            }
        }
        self.line_rates.fill(0.0);
        first_use = 0;
        for (at, runner) in runners.iter().enumerate() {
            let alone = runner.cpu_share / self.access_ns[at];
            let speed = runner.group.map_or(alone, |group| self.group_least[group]);
            self.accesses_per_ns[at] = speed;
            self.add_load(runner, at, first_use);
            first_use += runner.uses.len();
        }
        change
    }

    /// Time of one access of a runner whose speed was `speed`.
    fn access_ns(&self, machine: &Machine, runner: &Runner, first_use: usize, speed: f64) -> f64 {
        let mut access_ns = runner.compute_ns;
        for (one, &cell) in runner.uses.iter().zip(&self.use_cells[first_use..]) {
            access_ns += one.share
                * match one.target {
                    Target::Memory { miss, .. } => {
                        let latency_ns = self.cells[cell as usize].latency_ns;
                        miss * latency_ns / runner.overlap + (1.0 - miss) * machine.cache_hit_ns
                    }
                    Target::Lines { set } => self.transfer_ns(machine, set, runner.node, speed * one.share),
                };
        }
        access_ns
    }

    /// Mean time to get a line of a set. Threads go round its lines in one order, so one that another used meanwhile is
    /// that thread's; only a thread that is faster than all others together meets lines that it used last itself.
    fn transfer_ns(&self, machine: &Machine, set: usize, node: usize, own: f64) -> f64 {
        let others = self.others(set, node, own);
        let all: f64 = others.clone().map(|(_, rate)| rate).sum();
        if all <= 0.0 {
            return 0.0;
        }
        let stall: f64 = others.map(|(other, rate)| rate * machine.transfer_ns(other, node)).sum();
        stall / all.max(own)
    }

    /// Accesses per ns to a set of lines by node, those of one thread of `node` left out, which makes `own` of them.
    fn others(&self, set: usize, node: usize, own: f64) -> impl Iterator<Item = (usize, f64)> + Clone + '_ {
        let rates = self.line_rates[set * self.nodes..][..self.nodes].iter().enumerate();
        rates.map(move |(other, rate)| (other, if other == node { (rate - own).max(0.0) } else { *rate }))
    }

    /// Lines per ns that a thread of `node` which makes `own` accesses to a set gets from each node's caches.
    pub fn transfers(&self, set: usize, node: usize, own: f64) -> impl Iterator<Item = (usize, f64)> + '_ {
        let others = self.others(set, node, own);
        let all: f64 = others.clone().map(|(_, rate)| rate).sum();
        let share = if all > 0.0 { own / all.max(own) } else { 0.0 };
        others.map(move |(other, rate)| (other, rate * share))
    }

    fn add_load(&mut self, runner: &Runner, at: usize, first_use: usize) {
        let (speed, access_ns) = (self.accesses_per_ns[at], self.access_ns[at]);
        let misses = |one: &Use| match one.target {
            Target::Memory { miss, .. } => one.share * miss,
            Target::Lines { .. } => 0.0,
        };
        // How much slower it gets for each ns that all its lines wait longer.
        let slowing = runner.uses.iter().map(misses).sum::<f64>() / runner.overlap / access_ns;
        for (one, &cell) in runner.uses.iter().zip(&self.use_cells[first_use..]) {
            match one.target {
                Target::Memory { miss, write, .. } => {
                    let lines = speed * one.share * miss * (1.0 + write);
                    self.cells[cell as usize].flow += lines;
                    self.cells[cell as usize].slope += lines * slowing;
                }
                Target::Lines { set } => self.line_rates[set * self.nodes + runner.node] += speed * one.share,
            }
        }
    }

    /// Waits under the loads there are; returns the greatest change in shares of the fastest latency.
    fn find_waits(&mut self, machine: &Machine, spreads: &[Spread]) -> f64 {
        self.flow.fill(0.0);
        self.slope.fill(0.0);
        for cell in &self.cells {
            for (memory, share) in spreads[cell.region].iter() {
                self.flow[cell.node * self.nodes + memory] += cell.flow * share;
                self.slope[cell.node * self.nodes + memory] += cell.slope * share;
            }
        }
        let (nodes, scale) = (self.nodes, machine.best_latency_ns());
        let mut moved: f64 = 0.0;
        for memory in 0..nodes {
            let sum = |rows: &[f64]| (0..nodes).map(|node| rows[node * nodes + memory]).sum::<f64>();
            let (flow, slope) = (sum(&self.flow), sum(&self.slope));
            let wait_ns = next_wait_ns(self.memory_wait_ns[memory], machine.memory_service_ns, flow, slope);
            let before_ns = std::mem::replace(&mut self.memory_wait_ns[memory], wait_ns);
            moved = moved.max((wait_ns - before_ns).abs() / scale);
            for node in 0..nodes {
                let (link, service_ns) = (node * nodes + memory, machine.link_service_ns[node][memory]);
                let wait_ns = next_wait_ns(self.link_wait_ns[link], service_ns, self.flow[link], self.slope[link]);
                let before_ns = std::mem::replace(&mut self.link_wait_ns[link], wait_ns);
                moved = moved.max((wait_ns - before_ns).abs() / scale);
            }
        }
        moved
    }
}

/// The wait at which a server and its threads agree, if the load, now `flow` lines per ns at `wait_ns`, falls to
/// flow x D / (D + rise) when the wait rises, where D = flow / slope.
fn next_wait_ns(wait_ns: f64, service_ns: f64, flow: f64, slope: f64) -> f64 {
    let busy = service_ns * flow;
    if busy <= 0.0 || slope <= 0.0 {
        return mean_wait_ns(service_ns, busy);
    }
    let give_ns = flow / slope;
    let load = busy * give_ns;
    let busy_at = |wait: f64| load / (give_ns + wait - wait_ns);
    // Where the load is all that the server can do.
    let full_ns = wait_ns - give_ns + load;
    let knee_ns = mean_wait_ns(service_ns, MAX_BUSY);
    if full_ns >= knee_ns {
        return full_ns;
    }
    if give_ns + knee_ns - wait_ns > 0.0 && busy_at(knee_ns) >= MAX_BUSY {
        return knee_ns;
    }
    // wait = s u / (2 (1 - u)) with u = load / x, x = D + wait - wait_ns: a quadratic equation in x.
    let offset = wait_ns - give_ns;
    let (b, c) = (offset - load, -offset * load - service_ns * load / 2.0);
    let x = (-b + libm::sqrt((b * b - 4.0 * c).max(0.0))) / 2.0;
    (x + offset).max(0.0)
}

/// Mean wait at a server with constant service time that is busy for this share of the time (M/D/1).
fn mean_wait_ns(service_ns: f64, busy: f64) -> f64 {
    let busy = busy.clamp(0.0, MAX_BUSY);
    service_ns * busy / (2.0 * (1.0 - busy))
}

#[cfg(test)]
mod tests;
