// SPDX-License-Identifier: GPL-2.0-only
//! Simulated annealing of a mapping of threads to nodes, with O(1) changes of score.
//!
//! The part of the score that depends on who else is on a node (q1) is a sum by node of the room taken
//! ([`Room::points`]), so a step changes it by what joins and what leaves.

mod prune;

use std::ops::{Index, IndexMut};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::capacity::Room;
use crate::score::FREE;

/// Differences of score below this are rounding.
pub const ROUNDING: f64 = 1e-9;
/// Where cooling ends: nothing is worse by so little that it would still be taken below, and numbers smaller yet are slow
/// to reckon with.
const COLDEST: f64 = 1e-305;
/// e to the power of this is less than the least number.
const NO_CHANCE: f64 = -746.0;

/// Rows by thread, then by node, in one piece of memory: a step looks at four of them.
pub struct Rows<T> {
    nodes: usize,
    cells: Vec<T>,
}

impl<T> FromIterator<Vec<T>> for Rows<T> {
    fn from_iter<I: IntoIterator<Item = Vec<T>>>(rows: I) -> Self {
        let (mut nodes, mut cells) = (0, Vec::new());
        for row in rows {
            nodes = row.len();
            cells.extend(row);
        }
        Self { nodes, cells }
    }
}

impl<T> Index<usize> for Rows<T> {
    type Output = [T];

    fn index(&self, thread: usize) -> &[T] {
        &self.cells[thread * self.nodes..][..self.nodes]
    }
}

impl<T> IndexMut<usize> for Rows<T> {
    fn index_mut(&mut self, thread: usize) -> &mut [T] {
        &mut self.cells[thread * self.nodes..][..self.nodes]
    }
}

/// What may go where, and what that is worth. All rows are by thread, then by node.
pub struct Problem {
    /// Room by node; a node without is no destination.
    pub rooms: Vec<Room>,
    /// What each thread takes of it.
    pub demands: Vec<u64>,
    /// Node by thread to start from and to compare with.
    pub present: Vec<usize>,
    /// q2 + q3.
    pub value: Rows<f64>,
    /// Whether the thread may go there (false everywhere if it must stay).
    pub allowed: Rows<bool>,
}

/// How long and how hot.
pub struct Schedule {
    pub start_temperature: f64,
    pub cooling: f64,
    pub iterations: u64,
    pub no_improvement: u64,
    pub restarts: u64,
    /// Steps in all, over every start.
    pub steps: u64,
}

/// A mapping with its residents by node, and what they take.
#[derive(Clone)]
pub struct Mapping {
    pub place: Vec<usize>,
    residents: Vec<Vec<usize>>,
    loads: Vec<u64>,
    position: Vec<usize>,
    pub score: f64,
}

enum Step {
    Move { thread: usize, to: usize },
    Exchange { first: usize, second: usize },
}

impl Problem {
    /// The present mapping.
    pub fn start(&self) -> Mapping {
        self.mapping(&self.present)
    }

    /// The mapping that puts each thread at `place`.
    pub fn mapping(&self, place: &[usize]) -> Mapping {
        let nodes = self.rooms.len();
        let (mut residents, mut loads) = (vec![Vec::new(); nodes], vec![0; nodes]);
        let mut position = Vec::with_capacity(place.len());
        for (thread, &node) in place.iter().enumerate() {
            position.push(residents[node].len());
            residents[node].push(thread);
            loads[node] += self.demands[thread];
        }
        let mut mapping = Mapping { place: place.to_vec(), residents, loads, position, score: 0.0 };
        mapping.score = self.score(&mapping);
        mapping
    }

    /// S_sys (eq. 3.18), from scratch.
    fn score(&self, mapping: &Mapping) -> f64 {
        let free = |(room, &load): (&Room, &u64)| room.points(load);
        let own = |(thread, &node): (usize, &usize)| self.value[thread][node];
        self.rooms.iter().zip(&mapping.loads).map(free).sum::<f64>()
            + mapping.place.iter().enumerate().map(own).sum::<f64>()
    }

    fn is_free(&self, mapping: &Mapping, node: usize) -> bool {
        self.rooms[node].is_free(mapping.loads[node])
    }

    /// A random thread to a random other node, or in exchange with a random resident if that is full.
    fn neighbour(&self, mapping: &Mapping, rng: &mut Pcg64) -> Option<Step> {
        let thread = below(rng, self.place_count());
        let nodes = self.rooms.len();
        let shifted = mapping.place[thread] + 1 + below(rng, nodes - 1);
        let to = if shifted < nodes { shifted } else { shifted - nodes };
        if !self.allowed[thread][to] {
            return None;
        }
        if self.is_free(mapping, to) {
            return Some(Step::Move { thread, to });
        }
        let residents = &mapping.residents[to];
        let second = *residents.get(below(rng, residents.len().max(1)))?;
        self.allowed[second][mapping.place[thread]].then_some(Step::Exchange { first: thread, second })
    }

    fn place_count(&self) -> usize {
        self.present.len()
    }

    fn change(&self, mapping: &Mapping, step: &Step) -> f64 {
        match *step {
            Step::Move { thread, to } => self.move_change(mapping, thread, to),
            Step::Exchange { first, second } => self.exchange_change(mapping, first, second),
        }
    }

    /// Change of score when `thread` goes to `to`.
    pub fn move_change(&self, mapping: &Mapping, thread: usize, to: usize) -> f64 {
        let from = mapping.place[thread];
        let demand = self.demands[thread];
        let (joins, leaves) = (self.joining(mapping, to, demand), self.leaving(mapping, from, demand));
        self.value[thread][to] - self.value[thread][from] + joins - leaves
    }

    fn joining(&self, mapping: &Mapping, node: usize, demand: u64) -> f64 {
        self.rooms[node].joining(mapping.loads[node], demand)
    }

    fn leaving(&self, mapping: &Mapping, node: usize, demand: u64) -> f64 {
        self.rooms[node].joining(mapping.loads[node] - demand, demand)
    }

    /// Change of score when two threads change places.
    pub fn exchange_change(&self, mapping: &Mapping, first: usize, second: usize) -> f64 {
        let (a, b) = (mapping.place[first], mapping.place[second]);
        let own = self.value[first][b] - self.value[first][a] + self.value[second][a] - self.value[second][b];
        let (one, two) = (self.demands[first], self.demands[second]);
        if one == two {
            return own;
        }
        let change = |node: usize, leaves: u64, joins: u64| {
            let load = mapping.loads[node];
            self.rooms[node].points(load - leaves + joins) - self.rooms[node].points(load)
        };
        own + change(a, one, two) + change(b, two, one)
    }

    /// By how much the score of `start` can rise at most when one thread is moved, when two are, and so on.
    pub fn reach(&self, start: &Mapping) -> Vec<f64> {
        let gain = |(thread, &here): (usize, &usize)| {
            let own = &self.value[thread];
            let open = (0..own.len()).filter(|&node| self.allowed[thread][node]);
            open.map(|node| own[node] - own[here]).fold(0.0, f64::max)
        };
        let mut gains: Vec<f64> = start.place.iter().enumerate().map(gain).collect();
        gains.sort_unstable_by(|a, b| b.total_cmp(a));
        let points = |(room, &load): (&Room, &u64)| room.most_points() - room.points(load);
        let mut free: f64 = self.rooms.iter().zip(&start.loads).map(points).sum();
        let mut sum = 0.0;
        let add = |gain: f64| {
            let room = free.min(FREE);
            free -= room;
            sum += gain + room;
            sum
        };
        gains.into_iter().map(add).collect()
    }

    /// Best mappings of every start, the best first; equal ones in the order found.
    pub fn anneal(&self, schedule: &Schedule, seed: u64) -> Vec<Mapping> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut found: Vec<Mapping> = vec![self.start()];
        if self.rooms.len() < 2 || self.present.is_empty() {
            return found;
        }
        let mut steps_left = schedule.steps;
        for start in 0..=schedule.restarts {
            // The first start and every second later one go on from the best (a reheat), the others
            // from a scrambled mapping: full nodes are crossed by cycles no reheat at T0 gets through.
            let mut from = found[0].clone();
            if start % 2 == 1 {
                self.scramble(&mut from, &mut steps_left, &mut rng);
            }
            let best = self.run(from, schedule, &mut steps_left, &mut rng);
            let at = found.partition_point(|known| known.score >= best.score - ROUNDING);
            found.insert(at, best);
            if steps_left == 0 {
                break;
            }
        }
        found
    }

    /// Takes steps at random, whatever they cost.
    fn scramble(&self, mapping: &mut Mapping, steps_left: &mut u64, rng: &mut Pcg64) {
        for _ in 0..(4 * self.place_count() as u64).min(*steps_left) {
            *steps_left -= 1;
            if let Some(step) = self.neighbour(mapping, rng) {
                let change = self.change(mapping, &step);
                mapping.take(&self.demands, &step, change);
            }
        }
    }

    /// One start: Alg. 3.6 without the gate.
    fn run(&self, mut mapping: Mapping, schedule: &Schedule, steps_left: &mut u64, rng: &mut Pcg64) -> Mapping {
        let mut best = mapping.clone();
        let mut most = best.score;
        // Whether the present mapping is the best and not copied yet: most are followed by a better one at once.
        let mut unsaved = false;
        let mut temperature = Temperature(schedule.start_temperature);
        let mut since_best = 0;
        for _ in 0..schedule.iterations.min(*steps_left) {
            *steps_left -= 1;
            since_best += 1;
            if let Some(step) = self.neighbour(&mapping, rng) {
                let change = self.change(&mapping, &step);
                if temperature.accepts(change, rng) {
                    if unsaved && mapping.score + change <= most + ROUNDING {
                        best.clone_from(&mapping);
                        unsaved = false;
                    }
                    mapping.take(&self.demands, &step, change);
                }
            }
            temperature.fall(schedule.cooling);
            if mapping.score > most + ROUNDING {
                (most, unsaved) = (mapping.score, true);
                since_best = 0;
            }
            if since_best >= schedule.no_improvement {
                break;
            }
        }
        if unsaved { mapping } else { best }
    }
}

impl Mapping {
    fn take(&mut self, demands: &[u64], step: &Step, change: f64) {
        match *step {
            Step::Move { thread, to } => self.put(demands, thread, to),
            Step::Exchange { first, second } => {
                let (a, b) = (self.place[first], self.place[second]);
                self.put(demands, first, b);
                self.put(demands, second, a);
            }
        }
        self.score += change;
    }

    fn put(&mut self, demands: &[u64], thread: usize, to: usize) {
        let from = self.place[thread];
        self.loads[from] -= demands[thread];
        self.loads[to] += demands[thread];
        self.residents[from].swap_remove(self.position[thread]);
        if let Some(&moved) = self.residents[from].get(self.position[thread]) {
            self.position[moved] = self.position[thread];
        }
        self.position[thread] = self.residents[to].len();
        self.residents[to].push(thread);
        self.place[thread] = to;
    }
}

/// How much worse a step may make the score: by this much with a chance of 1 / e.
struct Temperature(f64);

impl Temperature {
    /// Draws whether a step is taken that changes the score by `change`.
    fn accepts(&self, change: f64, rng: &mut Pcg64) -> bool {
        change >= 0.0 || uniform(rng) <= chance(change / self.0)
    }

    /// One step later.
    fn fall(&mut self, cooling: f64) {
        if self.0 > COLDEST {
            self.0 *= cooling;
        }
    }
}

/// e to the power of `exponent`, where most are so low that it is 0.
fn chance(exponent: f64) -> f64 {
    if exponent < NO_CHANCE { 0.0 } else { libm::exp(exponent) }
}

/// A number below `count` (at least 1).
pub fn below(rng: &mut Pcg64, count: usize) -> usize {
    ((u128::from(rng.next_u64()) * count as u128) >> 64) as usize
}

/// A number in [0, 1).
pub fn uniform(rng: &mut Pcg64) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FULL_CAPACITY;

    /// A problem of up to 8 threads on up to 4 nodes, drawn from `seed`: ring or pair distances.
    fn problem(seed: u64) -> Problem {
        let mut rng = Pcg64::seed_from_u64(seed ^ 0xabcd);
        let nodes = 2 + below(&mut rng, 3);
        let ring =
            [[10.0, 12.0, 20.0, 12.0], [12.0, 10.0, 12.0, 20.0], [20.0, 12.0, 10.0, 12.0], [12.0, 20.0, 12.0, 10.0]];
        let threads = 1 + below(&mut rng, 8);
        let cpus: Vec<usize> = (0..nodes).map(|_| 1 + below(&mut rng, 3)).collect();
        let demands: Vec<u64> =
            (0..threads).map(|_| [FULL_CAPACITY, FULL_CAPACITY, 300, 700][below(&mut rng, 4)]).collect();
        let capacity = |cpus: usize| cpus as u64 * FULL_CAPACITY;
        let (all, demand) = (capacity(cpus.iter().sum()), demands.iter().sum());
        let rooms = cpus.iter().map(|&own| Room::of(capacity(own), all, demand)).collect();
        let present: Vec<usize> = (0..threads).map(|_| below(&mut rng, nodes)).collect();
        let row = |thread: usize, rng: &mut Pcg64| {
            let memory = below(rng, nodes);
            let q3 = |node: usize, rng: &mut Pcg64| {
                if node == present[thread] { 2.0 } else { [4.0, 2.0, 1.0][below(rng, 3)] }
            };
            (0..nodes).map(|node| 40.0 / ring[node][memory] + q3(node, rng)).collect()
        };
        let value = (0..threads).map(|thread| row(thread, &mut rng)).collect();
        let allowed = std::iter::repeat_n(vec![true; nodes], threads).collect();
        Problem { rooms, demands, allowed, present, value }
    }

    /// Best score over all mappings in which every node has room for the last of its residents, or bears no more than now.
    fn optimum(problem: &Problem) -> f64 {
        let nodes = problem.rooms.len();
        let fits = |mapping: &Mapping, node: usize| {
            let lightest = mapping.residents[node].iter().map(|&thread| problem.demands[thread]).min();
            let load = mapping.loads[node];
            load <= problem.start().loads[node] || problem.rooms[node].is_free(load - lightest.unwrap_or(0))
        };
        let mut best = f64::MIN;
        for code in 0..nodes.pow(problem.present.len() as u32) {
            let place: Vec<usize> =
                (0..problem.present.len()).map(|thread| code / nodes.pow(thread as u32) % nodes).collect();
            let mapping = problem.mapping(&place);
            if (0..nodes).all(|node| mapping.residents[node].is_empty() || fits(&mapping, node)) {
                best = best.max(mapping.score);
            }
        }
        best
    }

    fn schedule(problem: &Problem) -> Schedule {
        crate::placing::schedule(&crate::sma::POLICY.defaults(), problem.present.len(), u64::MAX)
    }

    #[test]
    fn annealing_finds_the_exhaustive_optimum_in_95_percent_of_200_seeds() {
        let hit = |seed: &u64| {
            let problem = problem(*seed);
            problem.anneal(&schedule(&problem), *seed)[0].score > optimum(&problem) - 1e-6
        };
        let hits = (0..200).filter(hit).count();
        assert!(hits >= 190, "{hits} of 200");
    }

    #[test]
    fn changes_of_score_add_up_to_the_score_from_scratch() {
        for seed in 0..50 {
            let problem = problem(seed);
            for mapping in problem.anneal(&schedule(&problem), seed) {
                assert!((mapping.score - problem.mapping(&mapping.place).score).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn pruning_never_lowers_the_score_and_never_moves_more() {
        for seed in 0..200 {
            let problem = problem(seed);
            let away = |mapping: &Mapping| mapping.place.iter().zip(&problem.present).filter(|(a, b)| a != b).count();
            let mut mapping = problem.anneal(&schedule(&problem), seed).remove(0);
            let before = mapping.clone();
            problem.prune(&mut mapping);
            assert!(problem.mapping(&mapping.place).score >= before.score - 1e-6);
            assert!(away(&mapping) <= away(&before));
        }
    }

    /// 0.3 * 0.97^k: a loss of .3 is taken once in e times at first, once in e^21 times after a hundred steps.
    #[test]
    fn losses_are_taken_at_first_and_hardly_later_as_the_temperature_falls() {
        let mut rng = Pcg64::seed_from_u64(1);
        let mut temperature = Temperature(0.3);
        let mut taken = |temperature: &Temperature| {
            (0..10_000).filter(|_| temperature.accepts(-0.3, &mut rng)).count() as f64 / 10_000.0
        };
        assert!((taken(&temperature) - (-1f64).exp()).abs() < 0.02);
        for k in 1..=100 {
            temperature.fall(0.97);
            assert!((temperature.0 / (0.3 * 0.97f64.powi(k)) - 1.0).abs() < 1e-12, "after {k} steps");
        }
        assert_eq!(taken(&temperature), 0.0);
        assert!(temperature.accepts(0.0, &mut Pcg64::seed_from_u64(1)), "what loses nothing is always taken");
    }

    /// From so hot a start a temperature that does not fall leaves a walk at random.
    #[test]
    fn cooling_is_what_finds_good_mappings() {
        let mean = |cooling: f64| {
            let of = |seed: u64| {
                let problem = problem(seed);
                let hot = Schedule {
                    start_temperature: 100.0,
                    cooling,
                    iterations: 60,
                    no_improvement: 60,
                    restarts: 0,
                    steps: 60,
                };
                problem.anneal(&hot, seed)[0].score / optimum(&problem)
            };
            (0..200).map(of).sum::<f64>() / 200.0
        };
        let (falling, constant) = (mean(0.8), mean(1.0));
        assert!(falling > constant + 0.01, "{falling} of the optimum, {constant} at one temperature");
    }

    #[test]
    fn a_step_budget_is_kept() {
        let problem = problem(3);
        let frozen = Schedule { steps: 0, ..schedule(&problem) };
        assert_eq!(problem.anneal(&frozen, 1)[0].place, problem.present);
    }
}
