// SPDX-License-Identifier: GPL-2.0-only
//! What a choice costs: the time until the last thread has done what it has left (the sum of the programs' times, where
//! that is what counts), and a hundredth of the mean, which tells choices with the same last thread apart.

use super::{Choice, Goal, Home, Problem};
use crate::placement::Spread;
use crate::scenario::Metric;

/// Weight of the mean beside the last.
const MEAN_WEIGHT: f64 = 0.01;
/// Ends of threads that a cost foresees, at most and times the threads, and how much later one may end and still count as
/// one of the first.
const MOST_ROUNDS: usize = 8;
const FORESEEN: usize = 64;
const ALIKE: f64 = 1.01;
/// Pages by which a node may be overfull from rounding.
const LEAST_LACK: f64 = 1e-3;

impl Problem<'_, '_> {
    /// Pages as a choice has them.
    pub(super) fn spread(&self, choice: &Choice, at: usize) -> Spread {
        match choice.homes[at] {
            Home::AsItIs => self.sim.spreads[self.regions[at]].clone(),
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
    pub(super) fn cost(&mut self, choice: &Choice) -> f64 {
        let mut pages = self.free_pages.clone();
        for at in 0..self.regions.len() {
            let spread = self.spread(choice, at);
            let size = self.sim.world.regions[self.regions[at]].pages as f64;
            spread.iter().for_each(|(node, share)| pages[node] -= size * share);
            self.spreads[self.regions[at]] = spread;
        }
        if pages.iter().any(|&left| left < -LEAST_LACK) {
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
        let rounds = (FORESEEN / left.len()).clamp(1, MOST_ROUNDS);
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
}
