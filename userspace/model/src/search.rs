// SPDX-License-Identifier: GPL-2.0-only
//! The best and the worst placement known: what the arms `oracle` and `worst` hold threads and pages to.
//!
//! Cost of a placement: the time until the last thread has done what it has left (the sum of the programs' times, where
//! that is what counts), and a hundredth of the mean. A choice is a node for every
//! active thread, no node getting more of them than its share of the CPUs, and for every region in use a node, all nodes,
//! the nodes of its users, or a quarter on each of four nodes. Where there are few choices all but those of quarters are
//! tried; then, or else from the best of some built starts, it is annealed.
//! The search runs anew whenever a thread, phase or program begins or ends; what it finds is put in place free of charge.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::placement::Spread;
use crate::rates::{Rates, Runner, Target};
use crate::scenario::Metric;
use crate::sim::Sim;
use crate::world::memory_nodes;

mod starts;

/// Choices up to which all are tried.
const EXACT: f64 = 4_000.0;
/// Evaluations of an annealing: so much work, a thread's use in an iteration being 1.
const ANNEALING_WORK: f64 = 4e7;
const LEAST_EVALUATIONS: usize = 200;
const MOST_EVALUATIONS: usize = 4_000;
/// Temperatures at the beginning and at the end, as shares of the cost.
const FIRST_TEMPERATURE: f64 = 0.05;
const LAST_TEMPERATURE: f64 = 1e-4;
/// Weight of the mean beside the last.
const MEAN_WEIGHT: f64 = 0.01;
/// Ends of threads that a cost foresees, for how many threads, and how much later one may end and still count as one of the
/// first.
const ROUNDS: usize = 4;
const MOST_FORESEEN: usize = 32;
const ALIKE: f64 = 1.01;
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
}

/// A placement of the active threads and the regions that they use.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// By position in [`Sim::active`].
    nodes: Vec<usize>,
    /// By position in [`Problem::regions`].
    homes: Vec<Home>,
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
        homes.iter().for_each(|(region, spread)| sim.fill(*region, spread));
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
        let homes = self.memory.len() + if self.memory.len() > 1 { 2 } else { 0 };
        let nodes = self.room.iter().filter(|&&room| room > 0).count();
        let choices =
            libm::pow(nodes as f64, self.runners.len() as f64) * libm::pow(homes as f64, self.regions.len() as f64);
        let starts = self.starts();
        let mut best: Option<(f64, Choice)> = None;
        for start in starts {
            let cost = self.cost(&start);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, start));
            }
        }
        let (cost, start) = best.expect("there is always a start");
        let (cost, start) = if choices <= EXACT { self.try_all(cost, start) } else { (cost, start) };
        self.anneal(cost, start, random)
    }

    /// Pages as a choice has them.
    fn spread(&self, choice: &Choice, at: usize) -> Spread {
        match choice.homes[at] {
            Home::Node(node) => Spread::on(node),
            Home::Everywhere => Spread::over(&self.memory),
            Home::Quarters(nodes) => {
                let on = |node: usize| nodes.iter().filter(|&&quarter| quarter == node).count() as f64;
                Spread::of_pages((0..self.room.len()).map(on))
            }
            Home::Users => {
                let of = |&(user, _): &(usize, f64)| self.sim.machine.memory_at(choice.nodes[user]);
                let mut nodes: Vec<usize> = self.users[at].iter().map(of).collect();
                nodes.sort_unstable();
                nodes.dedup();
                Spread::over(&nodes)
            }
        }
    }

    /// Cost in ns; infinite if there is not enough memory. For [`Goal::Worst`] its negative.
    fn cost(&mut self, choice: &Choice) -> f64 {
        let mut pages = self.free_pages.clone();
        for at in 0..self.regions.len() {
            let spread = self.spread(choice, at);
            let size = self.sim.world.regions[self.regions[at]].pages as f64;
            spread.iter().for_each(|(node, share)| pages[node] -= size * share);
            self.spreads[self.regions[at]] = spread;
        }
        if pages.iter().any(|&left| left < 0.0) {
            return f64::INFINITY;
        }
        let mut load = vec![0; self.room.len()];
        choice.nodes.iter().for_each(|&node| load[node] += 1);
        for (runner, &node) in self.runners.iter_mut().zip(&choice.nodes) {
            runner.node = node;
            runner.cpu_share = (self.sim.machine.cpus(node) as f64 / load[node] as f64).min(1.0);
        }
        self.rates.solve(self.sim.machine, &self.runners, &self.spreads, self.sim.world.sets);
        let cost = self.time_ns();
        if self.goal == Goal::Best { cost } else { -cost }
    }

    /// Time for what is left. When the first threads have ended the others get what CPUs are left, wherever those are: they
    /// will be placed anew. After some rounds, or with many threads at once, the speeds there are go on.
    fn time_ns(&mut self) -> f64 {
        let sim = self.sim;
        let mut runners = self.runners.clone();
        let mut left: Vec<(usize, f64)> = sim.active.iter().map(|&thread| (thread, sim.left(thread))).collect();
        let rounds = if left.len() <= MOST_FORESEEN { ROUNDS } else { 1 };
        let mut of_program = vec![0.0_f64; sim.world.programs.len()];
        let (mut sum, mut passed_ns) = (0.0, 0.0);
        for round in 1..=rounds {
            let times_ns: Vec<f64> =
                left.iter().zip(&self.rates.accesses_per_ns).map(|(&(_, left), speed)| left / speed).collect();
            let first_ns = times_ns.iter().copied().fold(f64::INFINITY, f64::min);
            let ends = |at: usize| round == rounds || times_ns[at] <= first_ns * ALIKE;
            for at in (0..left.len()).filter(|&at| ends(at)) {
                let program = sim.world.threads[left[at].0].program;
                of_program[program] = of_program[program].max(passed_ns + times_ns[at]);
                sum += passed_ns + times_ns[at];
            }
            let stay: Vec<usize> = (0..left.len()).filter(|&at| !ends(at)).collect();
            if stay.is_empty() {
                break;
            }
            let speeds = &self.rates.accesses_per_ns;
            left = stay.iter().map(|&at| (left[at].0, left[at].1 - speeds[at] * first_ns)).collect();
            runners = stay.iter().map(|&at| runners[at]).collect();
            let cpu_share = (sim.machine.all_cpus() as f64 / runners.len() as f64).min(1.0);
            runners.iter_mut().for_each(|runner| runner.cpu_share = cpu_share);
            passed_ns += first_ns;
            self.rates.solve(sim.machine, &runners, &self.spreads, sim.world.sets);
        }
        let last = match sim.world.metric {
            Metric::Makespan => of_program.iter().copied().fold(0.0, f64::max),
            Metric::Accumulated => of_program.iter().sum(),
        };
        last + MEAN_WEIGHT * sum / sim.active.len() as f64
    }

    fn try_all(&mut self, mut least: f64, mut best: Choice) -> (f64, Choice) {
        let nodes: Vec<usize> = (0..self.room.len()).filter(|&node| self.room[node] > 0).collect();
        let homes = self.homes();
        let mut digits = vec![0; best.nodes.len() + best.homes.len()];
        loop {
            let (of_nodes, of_homes) = digits.split_at(best.nodes.len());
            let choice = Choice {
                nodes: of_nodes.iter().map(|&digit| nodes[digit]).collect(),
                homes: of_homes.iter().map(|&digit| homes[digit]).collect(),
            };
            if self.has_room(&choice.nodes) {
                let cost = self.cost(&choice);
                if cost < least {
                    (least, best) = (cost, choice);
                }
            }
            let limit = |at: usize| if at < best.nodes.len() { nodes.len() } else { homes.len() };
            let Some(at) = (0..digits.len()).find(|&at| digits[at] + 1 < limit(at)) else { return (least, best) };
            digits[at] += 1;
            digits[..at].fill(0);
        }
    }

    fn homes(&self) -> Vec<Home> {
        let all = self.memory.iter().map(|&node| Home::Node(node));
        if self.memory.len() > 1 { all.chain([Home::Everywhere, Home::Users]).collect() } else { all.collect() }
    }

    fn has_room(&self, nodes: &[usize]) -> bool {
        let mut load = vec![0; self.room.len()];
        nodes.iter().for_each(|&node| load[node] += 1);
        load.iter().zip(&self.room).all(|(load, room)| load <= room)
    }

    fn anneal(&mut self, cost: f64, start: Choice, random: &mut Pcg64) -> Choice {
        let uses: usize = self.runners.iter().map(|runner| runner.uses.len()).sum();
        let work = (uses + self.room.len() * self.room.len()) as f64 * 10.0;
        let evaluations = ((ANNEALING_WORK / work) as usize).clamp(LEAST_EVALUATIONS, MOST_EVALUATIONS);
        let homes = self.homes();
        let (mut now, mut now_cost) = (start.clone(), cost);
        let (mut best, mut best_cost) = (start, cost);
        let cooling = libm::pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, 1.0 / evaluations as f64);
        let mut temperature = FIRST_TEMPERATURE * cost.abs();
        for _ in 0..evaluations {
            temperature *= cooling;
            let Some(next) = self.neighbour(&now, &homes, random) else { continue };
            let next_cost = self.cost(&next);
            let accepted = next_cost <= now_cost || chance(random) < libm::exp((now_cost - next_cost) / temperature);
            if accepted && next_cost.is_finite() {
                (now, now_cost) = (next, next_cost);
                if now_cost < best_cost {
                    (best, best_cost) = (now.clone(), now_cost);
                }
            }
        }
        best
    }

    /// Another choice nearby: a thread moves, alone or with its regions; two change places; or a region moves.
    fn neighbour(&self, now: &Choice, homes: &[Home], random: &mut Pcg64) -> Option<Choice> {
        let mut next = now.clone();
        let thread = below(random, now.nodes.len());
        match below(random, 4) {
            0 | 1 if self.room.len() > 1 => {
                let to = below(random, self.room.len());
                let load = now.nodes.iter().filter(|&&node| node == to).count();
                if load < self.room[to] {
                    next.nodes[thread] = to;
                } else {
                    let there: Vec<usize> = (0..now.nodes.len()).filter(|&at| now.nodes[at] == to).collect();
                    let other = *there.get(below(random, there.len().max(1)))?;
                    next.nodes.swap(thread, other);
                    self.take_along(&mut next, other, now.nodes[thread]);
                }
                if below(random, 2) == 0 {
                    self.take_along(&mut next, thread, to);
                }
            }
            _ if !self.regions.is_empty() => {
                let at = below(random, self.regions.len());
                next.homes[at] = match now.homes[at] {
                    Home::Node(node) if below(random, 2) == 0 => self.with_another_quarter([node; 4], random),
                    Home::Quarters(nodes) if below(random, 2) == 0 => self.with_another_quarter(nodes, random),
                    _ => homes[below(random, homes.len())],
                };
            }
            _ => return None,
        }
        (next != *now).then_some(next)
    }

    fn with_another_quarter(&self, mut nodes: [usize; 4], random: &mut Pcg64) -> Home {
        nodes[below(random, nodes.len())] = self.memory[below(random, self.memory.len())];
        Home::Quarters(nodes)
    }

    /// The regions that only this thread uses go to memory near `node` (for [`Goal::Worst`] far from it).
    fn take_along(&self, choice: &mut Choice, thread: usize, node: usize) {
        for (at, users) in self.users.iter().enumerate() {
            if let [(only, _)] = users[..]
                && only == thread
            {
                choice.homes[at] = Home::Node(match self.goal {
                    Goal::Best => self.sim.machine.memory_at(node),
                    Goal::Worst => self.sim.machine.far_from(node),
                });
            }
        }
    }
}

/// Threads that each node may hold: all its CPUs, and more in proportion if there are more threads than CPUs.
fn room(sim: &Sim) -> Vec<usize> {
    let (threads, cpus) = (sim.active.len(), sim.machine.all_cpus().max(1));
    (0..sim.machine.nodes()).map(|node| sim.machine.cpus(node) * threads.div_ceil(cpus)).collect()
}

/// A random number below `limit`, 0 for 0.
fn below(random: &mut Pcg64, limit: usize) -> usize {
    ((u128::from(random.next_u64()) * limit as u128) >> 64) as usize
}

/// A random number from 0 to 1.
fn chance(random: &mut Pcg64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
