// SPDX-License-Identifier: GPL-2.0-only
//! The best and the worst placement known: what the arms `oracle` and `worst` hold threads and pages to.
//!
//! Problem: a node for every active thread, no node getting more of them than its share of the CPUs, and for every region
//! in use a spread: on a node, on all nodes, on the nodes of its users, in quarters on four nodes, or as it is. The cost of
//! such a choice comes from the model's own equations (`search/cost.rs`).
//!
//! Mechanism: what there is and some built placements (`search/starts.rs`) are the starts. Where there are few choices all
//! but those of quarters are tried. From the best few starts the search descends: any change of one thread or region,
//! and of two at once, that makes it better is taken. Then the best of these is annealed and descends again
//! (`search/descent.rs`). The search runs anew whenever a thread, phase or program begins or ends; as what there is is
//! one of the starts, a later search never undoes what an earlier one foresaw. What is found is put in place free of charge.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::placement::Spread;
use crate::rates::{Rates, Runner, Target};
use crate::sim::Sim;
use crate::world::memory_nodes;

mod cost;
mod descent;
mod starts;

/// Choices up to which all are tried.
const EXACT: f64 = 4_000.0;
/// Evaluations of a search: so much work, a thread's use in an iteration being 1.
const SEARCH_WORK: f64 = 4e7;
const LEAST_EVALUATIONS: usize = 200;
const MOST_EVALUATIONS: usize = 6_000;
/// Least relative gain that counts.
const LEAST_GAIN: f64 = 1e-6;
/// Starts from which the search descends.
const DESCENTS: usize = 3;
/// Share of the active threads that must have changed for a new search.
const CHANGE_SHARE: f64 = 0.02;

/// Which placement is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The one with the least cost.
    Best,
    /// The one with the greatest.
    Worst,
}

/// Where a region's pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Node(usize),
    Everywhere,
    Users,
    /// A quarter of them on each of these, some of which may be the same.
    Quarters([usize; 4]),
    /// They stay.
    AsItIs,
}

/// A placement of the active threads and the regions that they use.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// By position in [`Sim::active`].
    nodes: Vec<usize>,
    /// By position in [`Problem::regions`].
    homes: Vec<Home>,
}

/// A choice with its cost.
#[derive(Clone, Debug)]
struct Judged {
    cost: f64,
    choice: Choice,
}

/// The search of a run.
pub struct Search {
    goal: Goal,
    random: Pcg64,
    events: u64,
    active: Vec<(usize, usize)>,
}

/// What is placed.
struct Problem<'s, 'a> {
    sim: &'s Sim<'a>,
    goal: Goal,
    runners: Vec<Runner<'a>>,
    /// Regions in use, and by position there their users, as positions of active threads, with their weight.
    regions: Vec<usize>,
    users: Vec<Vec<(usize, f64)>>,
    /// Threads that a node may hold.
    room: Vec<usize>,
    memory: Vec<usize>,
    /// Pages that may be used on each node by the regions that are placed.
    free_pages: Vec<f64>,
    rates: Rates,
    spreads: Vec<Spread>,
}

impl Search {
    /// Nothing placed yet.
    pub fn new(goal: Goal, seed: u64) -> Self {
        Self { goal, random: Pcg64::seed_from_u64(seed), events: 0, active: Vec::new() }
    }

    /// Places everything anew if enough has changed.
    pub fn place(&mut self, sim: &mut Sim) {
        if sim.events == self.events || sim.active.is_empty() {
            return;
        }
        self.events = sim.events;
        let now: Vec<(usize, usize)> = sim.active.iter().map(|&thread| (thread, sim.threads[thread].phase)).collect();
        let same = now.iter().filter(|entry| self.active.binary_search(entry).is_ok()).count();
        let changed = now.len().max(self.active.len()) - same;
        if (changed as f64) < CHANGE_SHARE * now.len() as f64 || changed == 0 {
            return;
        }
        self.active = now;
        let mut problem = Problem::new(sim, self.goal);
        let choice = problem.solve(&mut self.random);
        let homes: Vec<(usize, Spread)> =
            (0..problem.regions.len()).map(|at| (problem.regions[at], problem.spread(&choice, at))).collect();
        let threads: Vec<usize> = sim.active.clone();
        threads.iter().zip(&choice.nodes).for_each(|(&thread, &node)| sim.place_thread(thread, node));
        // All leave before any comes, or there would be no room.
        homes.iter().for_each(|(region, _)| sim.lift_region(*region));
        homes.iter().for_each(|(region, spread)| sim.fill_evenly(*region, spread));
    }
}

impl<'s, 'a> Problem<'s, 'a> {
    fn new(sim: &'s Sim<'a>, goal: Goal) -> Self {
        let mut users: Vec<Vec<(usize, f64)>> = vec![Vec::new(); sim.world.regions.len()];
        for (at, &thread) in sim.active.iter().enumerate() {
            for one in sim.uses(thread) {
                if let Target::Memory { region, miss, .. } = one.target {
                    users[region].push((at, one.share * miss));
                }
            }
        }
        let regions: Vec<usize> = (0..users.len()).filter(|&region| !users[region].is_empty()).collect();
        let mut free_pages = sim.free_pages.clone();
        for &region in &regions {
            sim.pages_of(region).iter().enumerate().for_each(|(node, pages)| free_pages[node] += pages);
        }
        Self {
            sim,
            goal,
            runners: sim.runners(),
            users: regions.iter().map(|&region| std::mem::take(&mut users[region])).collect(),
            regions,
            room: room(sim),
            memory: memory_nodes(sim.machine),
            free_pages,
            rates: Rates::new(sim.machine),
            spreads: sim.spreads.clone(),
        }
    }

    fn solve(&mut self, random: &mut Pcg64) -> Choice {
        let homes = self.homes().len();
        let nodes = self.room.iter().filter(|&&room| room > 0).count();
        let choices =
            libm::pow(nodes as f64, self.runners.len() as f64) * libm::pow(homes as f64, self.regions.len() as f64);
        let mut found = self.best_starts();
        if choices <= EXACT {
            found[0] = self.try_all(found[0].clone());
        }
        let mut budget = self.evaluations();
        let of_each = budget / 4;
        for start in &mut found {
            let mut part = of_each.min(budget);
            budget -= part;
            self.descend(start, &mut part, random);
            budget += part;
        }
        let best = found.into_iter().reduce(|best, next| if next.cost < best.cost { next } else { best });
        let mut best = best.expect("there is always a start");
        self.anneal(&mut best, budget / 2, random);
        self.descend(&mut best, &mut (budget / 2), random);
        best.choice
    }

    /// Of the starts the best few that differ in where threads are, the best first.
    fn best_starts(&mut self) -> Vec<Judged> {
        let mut judged: Vec<Judged> = Vec::new();
        for choice in self.starts() {
            let cost = self.cost(&choice);
            match judged.iter_mut().find(|other| other.choice.nodes == choice.nodes) {
                Some(other) if cost >= other.cost => {}
                Some(other) => *other = Judged { cost, choice },
                None => judged.push(Judged { cost, choice }),
            }
        }
        judged.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        judged.truncate(DESCENTS);
        judged
    }

    /// How often a search may solve the speeds for a whole choice.
    fn evaluations(&self) -> usize {
        let uses: usize = self.runners.iter().map(|runner| runner.uses.len()).sum();
        let work = (uses + self.room.len() * self.room.len()) as f64 * 10.0;
        ((SEARCH_WORK / work) as usize).clamp(LEAST_EVALUATIONS, MOST_EVALUATIONS)
    }

    fn try_all(&mut self, mut best: Judged) -> Judged {
        let nodes: Vec<usize> = (0..self.room.len()).filter(|&node| self.room[node] > 0).collect();
        let homes = self.homes();
        let threads = self.runners.len();
        let mut digits = vec![0; threads + self.regions.len()];
        loop {
            let (of_nodes, of_homes) = digits.split_at(threads);
            let choice = Choice {
                nodes: of_nodes.iter().map(|&digit| nodes[digit]).collect(),
                homes: of_homes.iter().map(|&digit| homes[digit]).collect(),
            };
            self.take_better(&mut best, choice);
            let limit = |at: usize| if at < threads { nodes.len() } else { homes.len() };
            let Some(at) = (0..digits.len()).find(|&at| digits[at] + 1 < limit(at)) else { return best };
            digits[at] += 1;
            digits[..at].fill(0);
        }
    }

    /// Replaces a choice by another if that is better; whether it was.
    fn take_better(&mut self, best: &mut Judged, choice: Choice) -> bool {
        if !self.has_room(&choice.nodes) {
            return false;
        }
        let cost = self.cost(&choice);
        // What solving leaves undecided is no gain.
        let is_better = cost < best.cost - LEAST_GAIN * best.cost.abs() || best.cost.is_infinite() && cost.is_finite();
        if is_better {
            *best = Judged { cost, choice };
        }
        is_better
    }

    fn has_room(&self, nodes: &[usize]) -> bool {
        let mut load = vec![0; self.room.len()];
        nodes.iter().for_each(|&node| load[node] += 1);
        load.iter().zip(&self.room).all(|(load, room)| load <= room)
    }
}

/// Threads that each node may hold: all its CPUs, and more in proportion if there are more threads than CPUs.
fn room(sim: &Sim) -> Vec<usize> {
    let (threads, cpus) = (sim.active.len(), sim.machine.all_cpus().max(1));
    (0..sim.machine.nodes()).map(|node| sim.machine.cpus(node) * threads.div_ceil(cpus)).collect()
}
