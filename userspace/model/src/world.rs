// SPDX-License-Identifier: GPL-2.0-only
//! A scenario on a machine: every thread, region and program with its numbers.
//!
//! Threads, regions, programs and sets of lines are counted from 0 over the whole scenario. What depends on where threads
//! start (the homes of regions) is decided when a program starts, by [`World::home`].

use crate::machine::Machine;
use crate::placement::Spread;
use crate::rates::{Target, Use};
use crate::scenario::{self, Home, Metric, Of, Per, Place, Scenario};

/// When a program starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// At this time.
    At(f64),
    /// When this program has ended.
    After(usize),
}

/// A process.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of its kind.
    pub name: String,
    /// When it starts, in ns.
    pub start: Start,
    /// Its threads.
    pub threads: std::ops::Range<usize>,
    /// Its regions.
    pub regions: std::ops::Range<usize>,
    /// Whether its threads wait for each other.
    pub barrier: bool,
    /// Whether its memory is filled within its time.
    pub fills: bool,
}

/// What a thread does until it has made so many accesses of the phase.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Accesses in it; infinite if there is only one.
    pub accesses: f64,
    /// Where they go.
    pub uses: Vec<Use>,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Number of its program.
    pub program: usize,
    /// Number within its program.
    pub rank: usize,
    /// Node on which it starts; `None`: the scheduler's choice.
    pub place: Option<usize>,
    /// Computing between two accesses.
    pub compute_ns: f64,
    /// Misses in flight.
    pub overlap: f64,
    /// Accesses that it makes in all.
    pub accesses: f64,
    /// Its phases, in turn; at least one.
    pub phases: Vec<Phase>,
}

/// Memory.
#[derive(Clone, Debug)]
pub struct Region {
    /// Number of its program.
    pub program: usize,
    /// Its size in base pages.
    pub pages: u64,
    /// Pages of a group; the last one may have fewer.
    pub group_pages: u64,
    /// Virtual address of its first byte.
    pub start: u64,
    home: Home,
    /// First thread that it is for, and its number among regions of its name.
    owner: usize,
    rank: usize,
}

/// Base pages of a group: 2 MiB.
const GROUP_PAGES: u64 = 512;
/// Groups of a region at most; beyond that they are larger.
const MOST_GROUPS: u64 = 256;
/// Address of a program's first region, and what regions begin at a multiple of.
const FIRST_ADDRESS: u64 = 1 << 32;
const GROUP_BYTES: u64 = 2 << 20;

impl Region {
    /// Its page groups.
    pub fn groups(&self) -> usize {
        self.pages.div_ceil(self.group_pages) as usize
    }

    /// Pages of one of its groups.
    pub fn pages_of_group(&self, group: usize) -> u64 {
        self.group_pages.min(self.pages - group as u64 * self.group_pages)
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct World {
    /// Programs, by number.
    pub programs: Vec<Program>,
    /// Threads, by number.
    pub threads: Vec<Thread>,
    /// Regions, by number.
    pub regions: Vec<Region>,
    /// Sets of lines.
    pub sets: usize,
    /// What counts.
    pub metric: Metric,
    /// Share of each node's memory that others hold.
    pub occupied: f64,
    /// Nodes with CPUs from the one at which this run begins.
    pub tour: Vec<usize>,
}

/// What a program's kinds of regions became: per kind, the numbers of its regions or sets, in the order of their owners.
type Kinds = Vec<Vec<usize>>;

struct Builder<'a> {
    machine: &'a Machine,
    world: World,
    /// Threads placed so far by node; `fill` and `scatter` take what is left.
    taken: Vec<usize>,
    seconds: f64,
}

impl World {
    /// The name of a program that has more memory than `machine` at all has for it, alone or with those that may run at the
    /// same time, as the name says then; and how many pages both have.
    pub fn too_large(&self, machine: &Machine) -> Option<(String, u64, u64)> {
        let all: u64 = (0..machine.nodes()).map(|node| machine.memory_pages(node)).sum();
        let free = (all as f64 * (1.0 - self.occupied)) as u64;
        let pages = |program: &Program| self.regions[program.regions.clone()].iter().map(|region| region.pages).sum();
        let sizes: Vec<u64> = self.programs.iter().map(pages).collect();
        let largest = (0..sizes.len()).max_by_key(|&program| sizes[program])?;
        let name = &self.programs[largest].name;
        if sizes[largest] > free {
            return Some((name.clone(), sizes[largest], free));
        }
        let together = self.most_at_a_time(&sizes);
        (together > free).then(|| (format!("{name} with those that may run beside it"), together, free))
    }

    /// Pages of all programs at a time at most, each having so many: what comes after another program has the memory of that.
    fn most_at_a_time(&self, sizes: &[u64]) -> u64 {
        let (mut all, mut after) = (0, vec![0; sizes.len()]);
        // Programs stand behind those that they come after.
        for (program, size) in sizes.iter().enumerate().rev() {
            let most = after[program].max(*size);
            match self.programs[program].start {
                Start::At(_) => all += most,
                Start::After(before) => after[before] += most,
            }
        }
        all
    }

    /// The scenario on this machine; `seed` says at which node the tour begins.
    pub fn new(machine: &Machine, scenario: &Scenario, seed: u64) -> Self {
        let mut tour = machine.tour.clone();
        let first = seed as usize % tour.len().max(1);
        tour.rotate_left(first);
        let world = Self {
            programs: vec![],
            threads: vec![],
            regions: vec![],
            sets: 0,
            metric: scenario.metric,
            occupied: scenario.occupied,
            tour,
        };
        let taken = vec![0; machine.nodes()];
        let mut builder = Builder { machine, world, taken, seconds: scenario.seconds };
        let mut copies_of: Vec<Vec<usize>> = Vec::new();
        for kind in &scenario.programs {
            let position = |name: &String| scenario.programs.iter().position(|other| other.name == *name);
            let before = kind.after.as_ref().and_then(position).map(|at| copies_of[at].clone());
            copies_of.push(builder.add(kind, before.as_deref()));
        }
        builder.world
    }

    /// Where the pages of a region are when its program starts, its main thread being on `main` if that is no thread of
    /// its own, and its threads on `node_of`.
    pub fn home(
        &self,
        machine: &Machine,
        region: usize,
        main: Option<usize>,
        node_of: impl Fn(usize) -> usize,
    ) -> Spread {
        let Region { home, owner, program, rank, .. } = self.regions[region];
        let threads = &self.programs[program].threads;
        let partner = (threads.start + ((owner - threads.start) | 1)).min(threads.end - 1);
        let after = |node: usize, steps: usize| {
            let at = self.tour.iter().position(|&other| other == node).unwrap_or(0);
            Spread::on(machine.memory_at(self.tour[(at + steps) % self.tour.len()]))
        };
        match home {
            Home::Local => Spread::on(machine.memory_at(node_of(owner))),
            Home::HalfAway if rank.is_multiple_of(2) => Spread::on(machine.memory_at(node_of(owner))),
            Home::Far => Spread::on(machine.far_from(node_of(owner))),
            Home::First => Spread::on(machine.memory_at(main.unwrap_or_else(|| node_of(threads.start)))),
            Home::Before => {
                let before = if owner == threads.start { threads.end } else { owner } - 1;
                Spread::on(machine.memory_at(node_of(before)))
            }
            Home::Next | Home::HalfAway => after(node_of(partner), 1),
            Home::NextButOne => after(node_of(partner), 2),
            Home::Interleaved => Spread::over(&memory_nodes(machine)),
        }
    }

    /// Ideal time of an access of a thread: alone, all memory local.
    pub fn ideal_access_ns(machine: &Machine, compute_ns: f64, overlap: f64, uses: &[Use]) -> f64 {
        let of = |one: &Use| match one.target {
            Target::Memory { miss, .. } => {
                one.share * (miss * machine.best_latency_ns() / overlap + (1.0 - miss) * machine.cache_hit_ns)
            }
            Target::Lines { .. } => 0.0,
        };
        compute_ns + uses.iter().map(of).sum::<f64>()
    }
}

/// The nodes that have memory.
pub fn memory_nodes(machine: &Machine) -> Vec<usize> {
    (0..machine.nodes()).filter(|&node| machine.memory_pages(node) > 0).collect()
}

impl Builder<'_> {
    /// Adds all copies of a kind of program; returns their numbers.
    fn add(&mut self, kind: &scenario::Program, before: Option<&[usize]>) -> Vec<usize> {
        let threads = self.threads_of(kind);
        let nodes = self.world.tour.len().saturating_sub(kind.first_node).div_ceil(kind.node_step);
        let copies = if kind.copies_per_node > 0 { kind.copies_per_node * nodes } else { kind.copies };
        let places = self.places(kind.place, threads * copies);
        (0..copies)
            .map(|copy| {
                let start = match before {
                    Some(programs) if !programs.is_empty() => Start::After(programs[copy % programs.len()]),
                    // One that comes after what this machine has no node for waits for nobody.
                    _ => Start::At(kind.start_s * 1e9),
                };
                self.add_copy(kind, start, &places[copy * threads..][..threads])
            })
            .collect()
    }

    fn threads_of(&self, kind: &scenario::Program) -> usize {
        let cpus = self.machine.all_cpus() as f64;
        let of_node = cpus / self.world.tour.len() as f64;
        // A little more than nothing, so that shares like 1/3 do not lose a thread to rounding.
        let share = (kind.cpus * cpus).max(kind.node_cpus * of_node);
        let of_cpus = if kind.round_up { libm::ceil(share - 1e-9) } else { libm::floor(share + 1e-9) };
        let threads = kind.threads.max(of_cpus as usize);
        (threads / kind.multiple * kind.multiple).max(kind.multiple)
    }

    fn add_copy(&mut self, kind: &scenario::Program, start: Start, places: &[Option<usize>]) -> usize {
        let (program, first) = (self.world.programs.len(), self.world.threads.len());
        let first_region = self.world.regions.len();
        let kinds = self.add_regions(kind, program, first, places.len());
        let overlap = kind.overlap.min(self.machine.outstanding_misses);
        for (rank, &place) in places.iter().enumerate() {
            let uses = |uses: &[scenario::Use]| self.uses(kind, &kinds, rank, places.len(), uses);
            let ideal = |uses: &[Use]| World::ideal_access_ns(self.machine, kind.compute_ns, overlap, uses);
            let phases: Vec<Phase> = if kind.phases.is_empty() {
                vec![Phase { accesses: f64::INFINITY, uses: uses(&kind.uses) }]
            } else {
                let phase = |phase: &scenario::Phase| {
                    let uses = uses(&phase.uses);
                    Phase { accesses: phase.seconds * 1e9 / ideal(&uses), uses }
                };
                kind.phases.iter().map(phase).collect()
            };
            let accesses = accesses_in(&phases, self.seconds * kind.work * 1e9, ideal);
            let compute_ns = kind.compute_ns;
            self.world.threads.push(Thread { program, rank, place, compute_ns, overlap, accesses, phases });
        }
        self.world.programs.push(Program {
            name: kind.name.clone(),
            start,
            threads: first..first + places.len(),
            regions: first_region..self.world.regions.len(),
            barrier: kind.barrier,
            fills: kind.fills,
        });
        program
    }

    /// Start nodes of so many threads.
    fn places(&mut self, place: Place, threads: usize) -> Vec<Option<usize>> {
        let tour = self.world.tour.clone();
        let cpus: Vec<usize> = tour.iter().map(|&node| self.machine.cpus(node)).collect();
        let seats: Vec<usize> = tour.iter().zip(&cpus).flat_map(|(&node, &cpus)| vec![node; cpus]).collect();
        let blocks = |count: usize| (0..count).map(|at| seats[at * seats.len() / count]).collect::<Vec<usize>>();
        let nodes: Vec<usize> = match place {
            Place::Free => return vec![None; threads],
            Place::Blocks => blocks(threads),
            Place::First => vec![tour[0]; threads],
            Place::PairsApart => {
                let apart = usize::from(tour.len() > 2);
                (0..threads).map(|at| tour[(at / 2 + apart * (at % 2)) % tour.len()]).collect()
            }
            Place::HalvesApart => {
                let half = blocks(threads.div_ceil(2));
                let far = half.iter().map(|&node| self.machine.far_seat(node));
                half.iter().copied().chain(far).take(threads).collect()
            }
            Place::TwoBlocks => {
                let far = self.machine.far_seat(tour[0]);
                (0..threads).map(|at| if at < threads.div_ceil(2) { tour[0] } else { far }).collect()
            }
            Place::Fill => (0..threads).map(|_| self.take_seat(&tour, &cpus, 0)).collect(),
            Place::Scatter => (0..threads).map(|at| self.take_seat(&tour, &cpus, at)).collect(),
        };
        if !matches!(place, Place::Fill | Place::Scatter) {
            nodes.iter().for_each(|&node| self.taken[node] += 1);
        }
        nodes.into_iter().map(Some).collect()
    }

    /// A seat on the `first`-th node of the tour, or the next one that has any left; when all are taken, on the one with
    /// the fewest threads for its CPUs.
    fn take_seat(&mut self, tour: &[usize], cpus: &[usize], first: usize) -> usize {
        let in_turn = (0..tour.len()).map(|step| (first + step) % tour.len());
        let free = in_turn.clone().find(|&at| self.taken[tour[at]] < cpus[at]);
        let load = |at: &usize| self.taken[tour[*at]] * 1000 / cpus[*at].max(1);
        let node = tour[free.or_else(|| in_turn.min_by_key(load)).unwrap_or(0)];
        self.taken[node] += 1;
        node
    }

    fn add_regions(&mut self, kind: &scenario::Program, program: usize, first: usize, threads: usize) -> Kinds {
        let mut start = FIRST_ADDRESS;
        let mut kinds = Vec::new();
        for region in &kind.regions {
            let count = match region.per {
                Per::Thread => threads,
                Per::Pair | Per::HalfPair => threads.div_ceil(2),
                Per::Half => threads.min(2),
                Per::Program => 1,
            };
            let mut numbers = Vec::new();
            for rank in 0..count {
                if region.lines {
                    numbers.push(self.world.sets);
                    self.world.sets += 1;
                    continue;
                }
                let owner = match region.per {
                    Per::Half => rank * threads.div_ceil(2),
                    Per::Pair => (2 * rank + region.shift) % threads,
                    _ => rank,
                };
                let pages = ((region.mb * (1 << 20) as f64 / 4096.0).ceil() as u64).max(1);
                let mut group_pages = GROUP_PAGES;
                while pages.div_ceil(group_pages) > MOST_GROUPS {
                    group_pages *= 2;
                }
                numbers.push(self.world.regions.len());
                let (home, owner) = (region.home, first + owner);
                self.world.regions.push(Region { program, pages, group_pages, start, home, owner, rank });
                start += (pages * 4096).div_ceil(GROUP_BYTES) * GROUP_BYTES;
            }
            kinds.push(numbers);
        }
        kinds
    }

    /// The uses of a program's `rank`-th thread of `threads`.
    fn uses(
        &self,
        kind: &scenario::Program,
        kinds: &Kinds,
        rank: usize,
        threads: usize,
        uses: &[scenario::Use],
    ) -> Vec<Use> {
        let all: f64 = uses.iter().map(|one| one.share).sum();
        let mut found: Vec<Use> = Vec::new();
        for one in uses.iter().filter(|one| one.share > 0.0) {
            let Some(at) = kind.regions.iter().position(|region| region.name == one.region) else { continue };
            let ranks = ranks(&kind.regions[at], one.of, rank, threads);
            for &of in &ranks {
                let number = kinds[at][of];
                let target = if kind.regions[at].lines {
                    Target::Lines { set: number }
                } else {
                    Target::Memory { region: number, miss: one.miss, write: one.write }
                };
                let share = one.share / all / ranks.len() as f64;
                match found.iter_mut().find(|known| known.target == target) {
                    Some(known) => known.share += share,
                    None => found.push(Use { target, share }),
                }
            }
        }
        found
    }
}

/// Which of a region's kind a thread uses.
fn ranks(region: &scenario::Region, of: Of, rank: usize, threads: usize) -> Vec<usize> {
    match (region.per, of) {
        (Per::Program, _) => vec![0],
        (Per::Pair, _) => vec![(rank + threads - region.shift) % threads / 2],
        (Per::HalfPair, _) => vec![rank % threads.div_ceil(2)],
        (Per::Half, _) => {
            let half = usize::from(rank >= threads.div_ceil(2));
            vec![if of == Of::Opposite && threads > 1 { 1 - half } else { half }]
        }
        (Per::Thread, Of::Own) => vec![rank],
        (Per::Thread, Of::All) => (0..threads).collect(),
        (Per::Thread, Of::Neighbours) => vec![(rank + threads - 1) % threads, (rank + 1) % threads],
        (Per::Thread, Of::Opposite) => vec![(rank + threads / 2) % threads],
        (Per::Thread, Of::Grid) => {
            let width = (1..=threads).take_while(|w| w * w <= threads).filter(|w| threads.is_multiple_of(*w)).last();
            let step = threads / width.unwrap_or(1);
            vec![
                (rank + threads - 1) % threads,
                (rank + 1) % threads,
                (rank + step) % threads,
                (rank + threads - step) % threads,
            ]
        }
    }
}

/// Accesses of a thread that would compute for `ideal_ns`, going through its phases in turn.
fn accesses_in(phases: &[Phase], ideal_ns: f64, ideal: impl Fn(&[Use]) -> f64) -> f64 {
    if let [only] = phases {
        return ideal_ns / ideal(&only.uses).max(f64::MIN_POSITIVE);
    }
    let cycle_ns: f64 = phases.iter().map(|phase| phase.accesses * ideal(&phase.uses)).sum();
    let cycle: f64 = phases.iter().map(|phase| phase.accesses).sum();
    let whole = libm::floor(ideal_ns / cycle_ns);
    let (mut accesses, mut left_ns) = (whole * cycle, ideal_ns - whole * cycle_ns);
    for phase in phases {
        let access_ns = ideal(&phase.uses);
        let here = phase.accesses.min(left_ns / access_ns);
        accesses += here;
        left_ns -= here * access_ns;
    }
    accesses
}

#[cfg(test)]
mod tests;
