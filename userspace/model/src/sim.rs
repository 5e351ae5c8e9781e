// SPDX-License-Identifier: GPL-2.0-only
//! The state of a run, and how time passes in it.
//!
//! Between two events nothing changes but how far threads are: so a step costs little unless something moved. Threads of a
//! node share its CPUs evenly. A *debt* is CPU time that a thread owes (moves, faults) before it gets on.

use crate::machine::Machine;
use crate::placement::Spread;
use crate::rates::{Rates, Runner, Target, Use};
use crate::world::{Program, Start, World};

mod pages;
mod passing;

pub use pages::RegionState;

/// Where a thread is in its life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    /// Its program has not started.
    Waiting,
    /// It runs, or waits for a CPU.
    Active,
    /// It has ended.
    Done,
}

/// A thread's state.
#[derive(Clone, Debug)]
pub struct ThreadState {
    /// Where it is in its life.
    pub status: Status,
    /// Node on which it runs.
    pub node: usize,
    /// CPU of that node, by position.
    pub cpu: usize,
    /// Node to which it is assigned. The scheduler takes it away only while that node is overfull.
    pub lease: Option<usize>,
    /// Whether the scheduler may not move it at all.
    pub pinned: bool,
    /// Accesses made.
    pub done: f64,
    /// The phase it is in, and the accesses at which that ends.
    pub phase: usize,
    pub(crate) phase_end: f64,
    pub(crate) debt_ns: f64,
    /// Since the last [`Sim::start_interval`]: accesses by phase, and CPU time by node.
    pub(crate) recent: Vec<(usize, f64)>,
    pub(crate) ran_ns: Vec<(usize, f64)>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Lines from memory, and those of them from other nodes' memory.
    pub memory_accesses: f64,
    /// Of them from another node than the thread's.
    pub remote_accesses: f64,
    /// Threads that changed node.
    pub thread_moves: u64,
    /// Base pages that changed node.
    pub page_moves: f64,
    /// When a thread changed node last, and a page; 0 if none did.
    pub last_thread_move_ns: f64,
    /// See `last_thread_move_ns`.
    pub last_page_move_ns: f64,
    /// CPU time that moves and faults took from threads.
    pub overhead_ns: f64,
    /// Steps of the model.
    pub steps: u64,
}

/// A run.
pub struct Sim<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// What runs on it.
    pub world: &'a World,
    /// Model time since the start.
    pub now_ns: f64,
    /// By number.
    pub threads: Vec<ThreadState>,
    /// By number.
    pub regions: Vec<RegionState>,
    /// Of each region, shares of its pages by node; nowhere before its program starts and after it has ended.
    pub spreads: Vec<Spread>,
    /// Pages that are free on each node.
    pub free_pages: Vec<f64>,
    /// Speeds of the active threads.
    pub rates: Rates,
    /// Numbers of the active threads, ascending; [`Rates`] are in this order.
    pub active: Vec<usize>,
    /// When programs ended.
    pub ended_ns: Vec<Option<f64>>,
    /// When programs started.
    pub started_ns: Vec<Option<f64>>,
    /// What was counted.
    pub counts: Counts,
    /// Whether speeds are those of a state that is no more.
    dirty: bool,
    /// Main threads of programs that are about to start, with their nodes: each occupies a CPU until all have begun.
    mains: Vec<(usize, usize)>,
    /// Events (starts, ends, phases) so far.
    pub events: u64,
    /// By active thread: share of a CPU; lines from memory, and of them remote, per access.
    cpu_share: Vec<f64>,
    memory_per_access: Vec<(f64, f64)>,
}

impl<'a> Sim<'a> {
    /// Nothing has started.
    pub fn new(machine: &'a Machine, world: &'a World) -> Self {
        let thread = |thread: &crate::world::Thread| ThreadState {
            status: Status::Waiting,
            node: thread.place.unwrap_or(world.tour[0]),
            cpu: 0,
            lease: None,
            pinned: false,
            done: 0.0,
            phase: 0,
            phase_end: thread.phases[0].accesses,
            debt_ns: 0.0,
            recent: Vec::new(),
            ran_ns: Vec::new(),
        };
        let free = |node: usize| libm::floor(machine.memory_pages(node) as f64 * (1.0 - world.occupied));
        Self {
            machine,
            world,
            now_ns: 0.0,
            threads: world.threads.iter().map(thread).collect(),
            regions: vec![RegionState::default(); world.regions.len()],
            spreads: vec![Spread::default(); world.regions.len()],
            free_pages: (0..machine.nodes()).map(free).collect(),
            rates: Rates::new(machine),
            active: Vec::new(),
            ended_ns: vec![None; world.programs.len()],
            started_ns: vec![None; world.programs.len()],
            counts: Counts::default(),
            dirty: true,
            mains: Vec::new(),
            events: 0,
            cpu_share: Vec::new(),
            memory_per_access: Vec::new(),
        }
    }

    /// Whether all programs have ended.
    pub fn is_over(&self) -> bool {
        self.ended_ns.iter().all(Option::is_some)
    }

    /// Numbers of the programs that are due and have not started.
    pub fn due(&self) -> Vec<usize> {
        let programs = 0..self.world.programs.len();
        programs
            .filter(|&at| self.started_ns[at].is_none() && self.due_ns(at).is_some_and(|ns| ns <= self.now_ns))
            .collect()
    }

    /// When a program is due; `None` while that is not known.
    pub fn due_ns(&self, program: usize) -> Option<f64> {
        match self.world.programs[program].start {
            Start::At(ns) => Some(ns),
            Start::After(before) => self.ended_ns[before],
        }
    }

    /// Begins a program's process, if the scheduler chooses its places: its main thread goes where most CPUs are idle.
    /// There it fills the memory that is to be with the first thread, and there it starts the threads.
    pub fn fork(&mut self, program: usize) {
        let mut threads = self.world.programs[program].threads.clone();
        if threads.all(|thread| self.world.threads[thread].place.is_none()) {
            let node = self.idlest_node(None);
            self.mains.push((program, node));
        }
    }

    /// Starts a program: its threads that have no place go where most CPUs are idle, of equal nodes to the main thread's,
    /// then its regions get their pages. `threads_at` and `pages_at` may decide both instead.
    pub fn start(&mut self, program: usize, threads_at: Option<usize>, pages_at: Option<&Spread>) {
        self.started_ns[program] = Some(self.now_ns);
        let main = self.mains.iter().find(|main| main.0 == program).map(|main| main.1);
        for thread in self.world.programs[program].threads.clone() {
            let node = threads_at.or(self.world.threads[thread].place).unwrap_or_else(|| self.idlest_node(main));
            self.threads[thread].status = Status::Active;
            self.threads[thread].pinned = threads_at.is_some();
            self.settle(thread, node, None);
            self.refresh_active();
        }
        for region in self.world.programs[program].regions.clone() {
            let home = match pages_at {
                Some(spread) => spread.clone(),
                None => self.world.home(self.machine, region, main, |thread| self.threads[thread].node),
            };
            self.fill(region, &home);
        }
        if self.world.programs[program].fills {
            let fill_ns = self.fill_ns(program, main);
            let threads = self.world.programs[program].threads.clone();
            threads.for_each(|thread| self.threads[thread].debt_ns += fill_ns);
        }
        self.events += 1;
        self.dirty = true;
    }

    /// Time in which a program's main thread, on `main` or with the first of its threads, fills its memory.
    pub fn fill_ns(&self, program: usize, main: Option<usize>) -> f64 {
        let Program { threads, regions, .. } = &self.world.programs[program];
        let main = main.unwrap_or(self.threads[threads.start].node);
        let of = |region: usize| -> f64 {
            let on = self.pages_of(region).iter().enumerate().filter(|on| *on.1 > 0.0);
            on.map(|(memory, pages)| pages * self.machine.page_fill_ns(main, memory)).sum()
        };
        regions.clone().map(of).sum()
    }

    fn refresh_active(&mut self) {
        let threads = &self.threads;
        self.active.clear();
        self.active.extend((0..threads.len()).filter(|&at| threads[at].status == Status::Active));
    }

    /// Active threads on each node.
    pub fn load(&self) -> Vec<usize> {
        let mut load = vec![0; self.machine.nodes()];
        self.active.iter().for_each(|&thread| load[self.threads[thread].node] += 1);
        load
    }

    /// Programs that were begun have started: their main threads wait for their ends now.
    pub fn end_start(&mut self) {
        self.mains.clear();
    }

    /// The node with the lowest load for its CPUs; of equal ones `near`, else the first of the tour.
    fn idlest_node(&self, near: Option<usize>) -> usize {
        let mut load = self.load();
        self.mains.iter().for_each(|&(_, node)| load[node] += 1);
        let crowd = |&node: &usize| load[node] as f64 / self.machine.cpus(node) as f64;
        let in_order = near.into_iter().chain(self.world.tour.iter().copied());
        in_order.reduce(|best, next| if crowd(&next) < crowd(&best) { next } else { best }).unwrap_or(0)
    }

    /// Puts a thread on a node, on the CPU named or the one with the fewest threads.
    fn settle(&mut self, thread: usize, node: usize, cpu: Option<usize>) {
        let mut on = vec![0; self.machine.cpus(node).max(1)];
        for &other in &self.active {
            let state = &self.threads[other];
            if other != thread && state.node == node {
                on[state.cpu] += 1;
            }
        }
        let least = (0..on.len()).min_by_key(|&cpu| on[cpu]).unwrap_or(0);
        self.threads[thread].node = node;
        self.threads[thread].cpu = cpu.unwrap_or(least);
        self.dirty = true;
    }

    /// Moves a thread, which pays for it. Changes of the CPU alone cost nothing.
    pub fn move_thread(&mut self, thread: usize, node: usize, cpu: Option<usize>) {
        let from = self.threads[thread].node;
        if from == node {
            self.threads[thread].cpu = cpu.unwrap_or(self.threads[thread].cpu);
            return;
        }
        self.settle(thread, node, cpu);
        let cost_ns = self.machine.moves.thread_call_ns + self.refill_ns(thread, node);
        self.owe(thread, cost_ns);
        self.counts.thread_moves += 1;
        self.counts.last_thread_move_ns = self.now_ns;
    }

    /// Time to fetch again what its second-level cache held, from where its pages are.
    fn refill_ns(&self, thread: usize, node: usize) -> f64 {
        let spec = &self.world.threads[thread];
        let line_ns = |one: &Use| match one.target {
            Target::Memory { region, .. } => {
                let on = self.spreads[region].iter();
                one.share * on.map(|(memory, share)| share * self.machine.latency_ns[node][memory]).sum::<f64>()
            }
            Target::Lines { .. } => 0.0,
        };
        let line_ns: f64 = self.uses(thread).iter().map(line_ns).sum();
        self.machine.moves.refill_lines * line_ns / spec.overlap
    }

    /// Puts a thread on a node and holds it there, free of charge.
    pub fn place_thread(&mut self, thread: usize, node: usize) {
        self.threads[thread].pinned = true;
        if self.threads[thread].node != node {
            self.settle(thread, node, None);
        }
    }

    /// The uses of a thread in its present phase.
    pub fn uses(&self, thread: usize) -> &'a [Use] {
        let world: &'a World = self.world;
        &world.threads[thread].phases[self.threads[thread].phase].uses
    }

    /// A thread has to spend so much CPU time before it gets on.
    pub fn owe(&mut self, thread: usize, ns: f64) {
        self.threads[thread].debt_ns += ns;
        self.counts.overhead_ns += ns;
    }

    /// Work of so much CPU time is done on a node for nobody in particular: threads pay only if no CPU is idle.
    pub fn charge_node(&mut self, node: usize, ns: f64) {
        let here: Vec<usize> =
            self.active.iter().copied().filter(|&thread| self.threads[thread].node == node).collect();
        if here.len() >= self.machine.cpus(node) && !here.is_empty() {
            here.iter().for_each(|&thread| self.owe(thread, ns / here.len() as f64));
        }
    }

    /// Makes the speeds those of the present state.
    pub fn solve(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let load = self.load();
        let shares: Vec<f64> =
            (0..load.len()).map(|node| (self.machine.cpus(node) as f64 / load[node].max(1) as f64).min(1.0)).collect();
        self.cpu_share = self.active.iter().map(|&thread| shares[self.threads[thread].node]).collect();
        let runners: Vec<Runner> =
            self.active.iter().zip(&self.cpu_share).map(|(&at, &share)| self.runner(at, share)).collect();
        self.rates.solve(self.machine, &runners, &self.spreads, self.world.sets);
        let lines = runners.iter().map(|runner| memory_per_access(runner, &self.spreads));
        self.memory_per_access = lines.collect();
    }

    fn runner(&self, thread: usize, cpu_share: f64) -> Runner<'a> {
        let world: &'a World = self.world;
        let spec = &world.threads[thread];
        Runner {
            node: self.threads[thread].node,
            cpu_share,
            compute_ns: spec.compute_ns,
            overlap: spec.overlap,
            uses: self.uses(thread),
            group: world.programs[spec.program].barrier.then_some(spec.program),
        }
    }

    /// The active threads as the solver sees them.
    pub fn runners(&self) -> Vec<Runner<'a>> {
        self.active.iter().map(|&thread| self.runner(thread, 1.0)).collect()
    }

    /// Whether speeds are no more those of the present state.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Accesses that a thread has left.
    pub fn left(&self, thread: usize) -> f64 {
        (self.world.threads[thread].accesses - self.threads[thread].done).max(0.0)
    }

    /// Forgets what was counted for [`ThreadState::recent`] and [`ThreadState::ran_ns`].
    pub fn start_interval(&mut self) {
        for thread in &mut self.threads {
            thread.recent.clear();
            thread.ran_ns.clear();
        }
    }
}

/// Lines from memory, and from other nodes' memory, that one access of a runner takes.
fn memory_per_access(runner: &Runner, spreads: &[Spread]) -> (f64, f64) {
    let of = |one: &Use| match one.target {
        Target::Memory { region, miss, .. } => {
            (one.share * miss, one.share * miss * (1.0 - spreads[region].on_node(runner.node)))
        }
        Target::Lines { .. } => (0.0, 0.0),
    };
    runner.uses.iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Adds to the entry of `key` in a short list.
pub(crate) fn add(list: &mut Vec<(usize, f64)>, key: usize, amount: f64) {
    match list.iter_mut().find(|entry| entry.0 == key) {
        Some(entry) => entry.1 += amount,
        None => list.push((key, amount)),
    }
}
