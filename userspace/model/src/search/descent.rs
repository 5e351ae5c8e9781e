// SPDX-License-Identifier: GPL-2.0-only
//! From one choice to a better one: by every change of one or two of its parts, and by annealing.

use rand_core::Rng;
use rand_pcg::Pcg64;

use super::{Choice, Goal, Home, Judged, Problem};

/// Temperatures at the beginning and at the end, as shares of the cost.
const FIRST_TEMPERATURE: f64 = 0.05;
const LAST_TEMPERATURE: f64 = 1e-4;

/// One thing that a choice may have otherwise.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A thread, by position, goes to a node.
    Thread(usize, usize),
    /// So does a thread with the regions that only it uses.
    WithRegions(usize, usize),
    /// A region, by position, goes somewhere.
    Region(usize, Home),
}

impl Problem<'_, '_> {
    /// Where a region may go, quarters left out.
    pub(super) fn homes(&self) -> Vec<Home> {
        let all = self.memory.iter().map(|&node| Home::Node(node));
        if self.memory.len() > 1 { all.chain([Home::Everywhere, Home::Users]).collect() } else { all.collect() }
    }

    /// Takes every change of one part, and then of two, that makes it better, until there is none or `budget`, the number
    /// of choices that may be judged, is used up. Pairs begin anywhere; where there are too many they are drawn.
    pub(super) fn descend(&mut self, now: &mut Judged, budget: &mut usize, random: &mut Pcg64) {
        let changes = self.changes(random);
        let pairs = changes.len() * changes.len();
        loop {
            self.descend_by_single(now, &changes, budget);
            let draws = pairs > *budget;
            let first = below(random, pairs);
            let mut tried = 0;
            loop {
                if *budget == 0 || tried == pairs {
                    return;
                }
                let pair = if draws { below(random, pairs) } else { (first + tried) % pairs };
                tried += 1;
                let (one, other) = (pair / changes.len(), pair % changes.len());
                // Each pair once: of changes that differ, in their order.
                if one < other && self.takes(now, &[changes[one], changes[other]], budget) {
                    break;
                }
            }
        }
    }

    /// Goes round the single changes until a whole round has brought nothing.
    fn descend_by_single(&mut self, now: &mut Judged, changes: &[Change], budget: &mut usize) {
        let mut idle = 0;
        for change in changes.iter().cycle() {
            if idle == changes.len() || *budget == 0 {
                return;
            }
            idle = if self.takes(now, &[*change], budget) { 0 } else { idle + 1 };
        }
    }

    /// Whether these changes make it better; then they are made.
    fn takes(&mut self, now: &mut Judged, changes: &[Change], budget: &mut usize) -> bool {
        let mut next = now.choice.clone();
        changes.iter().for_each(|change| self.make(&mut next, *change));
        if next == now.choice || !self.has_room(&next.nodes) {
            return false;
        }
        *budget = budget.saturating_sub(1);
        self.take_better(now, next)
    }

    /// All changes of one part, in a random order: where there are too many to try, each has its chance.
    fn changes(&self, random: &mut Pcg64) -> Vec<Change> {
        let mut homes = self.homes();
        homes.extend(self.halves());
        let nodes: Vec<usize> = (0..self.room.len()).filter(|&node| self.room[node] > 0).collect();
        let mut owns = vec![false; self.runners.len()];
        self.users.iter().filter(|users| users.len() == 1).for_each(|users| owns[users[0].0] = true);
        let mut changes = Vec::new();
        for (thread, &owns) in owns.iter().enumerate() {
            changes.extend(nodes.iter().map(|&node| Change::Thread(thread, node)));
            if owns {
                changes.extend(nodes.iter().map(|&node| Change::WithRegions(thread, node)));
            }
        }
        for region in 0..self.regions.len() {
            changes.extend(homes.iter().map(|&home| Change::Region(region, home)));
        }
        for at in (1..changes.len()).rev() {
            changes.swap(at, below(random, at + 1));
        }
        changes
    }

    /// Half of a region on each of two nodes, where there are few nodes, and these are not all.
    fn halves(&self) -> Vec<Home> {
        let memory = &self.memory;
        if !(3..=4).contains(&memory.len()) {
            return Vec::new();
        }
        let pairs =
            memory.iter().enumerate().flat_map(|(at, &one)| memory[at + 1..].iter().map(move |&other| (one, other)));
        pairs.map(|(one, other)| Home::Quarters([one, one, other, other])).collect()
    }

    fn make(&self, choice: &mut Choice, change: Change) {
        match change {
            Change::Thread(thread, node) => choice.nodes[thread] = node,
            Change::WithRegions(thread, node) => {
                choice.nodes[thread] = node;
                self.take_along(choice, thread, node);
            }
            Change::Region(region, home) => choice.homes[region] = home,
        }
    }

    /// Anneals for so many evaluations, and keeps the best that it met.
    pub(super) fn anneal(&mut self, best: &mut Judged, evaluations: usize, random: &mut Pcg64) {
        let homes = self.homes();
        let mut now = best.clone();
        let cooling = libm::pow(LAST_TEMPERATURE / FIRST_TEMPERATURE, 1.0 / evaluations.max(1) as f64);
        let mut temperature = FIRST_TEMPERATURE * best.cost.abs();
        for _ in 0..evaluations {
            temperature *= cooling;
            let Some(choice) = self.neighbour(&now.choice, &homes, random) else { continue };
            let cost = self.cost(&choice);
            let accepted = cost <= now.cost || chance(random) < libm::exp((now.cost - cost) / temperature);
            if accepted && cost.is_finite() {
                now = Judged { cost, choice };
                if now.cost < best.cost {
                    *best = now.clone();
                }
            }
        }
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

/// A random number below `limit`, 0 for 0.
fn below(random: &mut Pcg64, limit: usize) -> usize {
    ((u128::from(random.next_u64()) * limit as u128) >> 64) as usize
}

/// A random number from 0 to 1.
fn chance(random: &mut Pcg64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
