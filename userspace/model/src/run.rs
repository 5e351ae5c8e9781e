// SPDX-License-Identifier: GPL-2.0-only
//! One run of one scenario under one arm.

use std::time::Duration;

use serde::Serialize;
use tandem_policies::registry::{Parameters, Policy};

use crate::arm::Arm;
use crate::autonuma::AutoNuma;
use crate::balance::balance;
use crate::gather::Gathering;
use crate::machine::Machine;
use crate::managed::Managed;
use crate::placement::Spread;
use crate::scenario::{Metric, Scenario};
use crate::search::{Goal, Search};
use crate::sense::SenseSettings;
use crate::sim::Sim;
use crate::world::{World, memory_nodes};

/// What can be chosen about a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Longest step.
    pub step_ns: f64,
    /// Time between decisions of policies.
    pub interval_ns: f64,
    /// How long a thread or group rests after a plan moved it.
    pub cooldown_ns: f64,
    /// Pages that plans may move in a second.
    pub pages_per_s: f64,
    /// Time of a CPU that moving them may take in a second.
    pub mover_ns_per_s: f64,
    /// What samplers see.
    pub sense: SenseSettings,
    /// Model time at which a run is given up, as a multiple of what the scenario takes ideally.
    pub patience: f64,
}

impl Default for Settings {
    /// As `scx_tandem` has it: decisions each second, 10 s of rest, 256 MiB/s and 10 % of a CPU for moves. Steps of 10 ms, 1000
    /// samples per second and thread, patience 100.
    fn default() -> Self {
        Self {
            step_ns: 10e6,
            interval_ns: 1e9,
            cooldown_ns: 10e9,
            pages_per_s: 65_536.0,
            mover_ns_per_s: 100e6,
            sense: SenseSettings { samples_per_s: 1000.0 },
            patience: 100.0,
        }
    }
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario's metric in seconds; `None` if the run was given up.
    pub time_s: Option<f64>,
    /// Accesses to memory of other nodes / all to memory.
    pub remote_share: f64,
    /// Threads that changed node.
    pub thread_moves: u64,
    /// Base pages that changed node.
    pub page_moves: u64,
    /// When a thread changed node last, in seconds since the start; 0 if none did.
    pub last_thread_move_s: f64,
    /// The same of pages.
    pub last_page_move_s: f64,
    /// CPU time of threads that moves and faults took.
    pub overhead_s: f64,
    /// Decisions of policies, and of them those with moves.
    pub decisions: u64,
    /// Of them with moves.
    pub plans: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Threads of all programs.
    pub threads: usize,
    /// Signals that a policy lacked, in words.
    pub missing: Option<String>,
    /// Time that this computer took for the policies' decisions. The only field that two runs alike differ in.
    #[serde(skip)]
    pub policy_time: Duration,
    /// The longest of them.
    #[serde(skip)]
    pub longest_decision: Duration,
}

/// What an arm does as time passes.
enum Driver {
    Nothing,
    Kernel(AutoNuma),
    Search(Box<Search>),
    Managed(Box<Managed>),
}

/// Runs a scenario under an arm; `progress` is told the share of the work that is done.
pub fn run(
    machine: &Machine,
    scenario: &Scenario,
    arm: Arm,
    settings: &Settings,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Outcome {
    run_with(machine, scenario, arm, &Policy::defaults, settings, seed, progress)
}

/// The same with parameters of the arm's policies that are not all defaults: `parameters` gives them by policy.
pub fn run_with(
    machine: &Machine,
    scenario: &Scenario,
    arm: Arm,
    parameters: &dyn Fn(&'static Policy) -> Parameters,
    settings: &Settings,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Outcome {
    let world = World::new(machine, scenario, seed);
    let mut sim = Sim::new(machine, &world);
    let mut driver = match arm {
        Arm::Eevdf | Arm::GatheringEevdf | Arm::Direct | Arm::DirectFar | Arm::Interleave => Driver::Nothing,
        Arm::AutoNuma | Arm::GatheringAutoNuma => Driver::Kernel(AutoNuma::new(&sim)),
        Arm::Oracle => Driver::Search(Box::new(Search::new(Goal::Best, seed))),
        Arm::Worst => Driver::Search(Box::new(Search::new(Goal::Worst, seed))),
        Arm::Policies(threads, pages) => {
            let chosen = [threads, pages].map(|policy| (policy, parameters(policy)));
            Driver::Managed(Box::new(Managed::new(&sim, chosen, settings, seed)))
        }
    };
    let end_ns = settings.patience * ideal_ns(&world, scenario);
    let mut gathering = arm.gathers().then(|| Gathering::new(matches!(arm, Arm::GatheringAutoNuma)));
    while !sim.is_over() && sim.now_ns < end_ns {
        start_due(&mut sim, arm);
        if let Some(gathering) = &mut gathering {
            gathering.pass(&mut sim);
        }
        if let Driver::Search(search) = &mut driver {
            search.place(&mut sim);
        }
        if !arm.pins() && sim.is_dirty() {
            balance(&mut sim);
        }
        sim.solve();
        let most_ns = match &driver {
            Driver::Managed(managed) => managed.step_ns(&sim).min(settings.step_ns),
            _ => settings.step_ns,
        };
        let most_ns = gathering.as_ref().map_or(most_ns, |gathering| most_ns.min(gathering.step_ns(&sim)));
        let step_ns = sim.step_ns(most_ns);
        sim.advance(step_ns);
        match &mut driver {
            Driver::Kernel(kernel) => kernel.pass(&mut sim, step_ns),
            Driver::Managed(managed) => managed.pass(&mut sim, step_ns),
            Driver::Nothing | Driver::Search(_) => {}
        }
        if sim.counts.steps.is_multiple_of(64) {
            progress(done(&sim));
        }
    }
    progress(1.0);
    outcome(&sim, &driver)
}

/// What the scenario takes when everything is ideal and programs follow each other.
fn ideal_ns(world: &World, scenario: &Scenario) -> f64 {
    let last_s = scenario.programs.iter().map(|program| program.start_s).fold(0.0, f64::max);
    let work: f64 = scenario.programs.iter().map(|program| program.work).sum();
    let crowd = world.threads.len() as f64 / world.tour.len() as f64;
    (last_s + scenario.seconds * work * crowd.max(1.0)) * 1e9
}

fn start_due(sim: &mut Sim, arm: Arm) {
    let due = sim.due();
    due.iter().for_each(|&program| sim.fork(program));
    for program in due {
        let tour = &sim.world.tour;
        let node = tour[program % tour.len()];
        match arm {
            Arm::DirectFar => sim.start(program, Some(node), Some(&Spread::on(sim.machine.far_from(node)))),
            Arm::Direct => sim.start(program, Some(node), Some(&Spread::on(sim.machine.memory_at(node)))),
            Arm::Interleave => sim.start(program, None, Some(&Spread::over(&memory_nodes(sim.machine)))),
            _ => sim.start(program, None, None),
        }
    }
    sim.end_start();
}

/// Share of the work that is done.
fn done(sim: &Sim) -> f64 {
    let all: f64 = sim.world.threads.len() as f64;
    let of = |thread: usize| sim.threads[thread].done / sim.world.threads[thread].accesses;
    (0..sim.threads.len()).map(of).sum::<f64>() / all
}

fn outcome(sim: &Sim, driver: &Driver) -> Outcome {
    let counts = &sim.counts;
    let (decisions, plans, missing, policy_time, longest_decision) = match driver {
        Driver::Managed(managed) => {
            (managed.decisions, managed.plans, managed.missing.clone(), managed.policy_time, managed.longest_decision)
        }
        _ => (0, 0, None, Duration::ZERO, Duration::ZERO),
    };
    Outcome {
        time_s: sim.is_over().then(|| time_ns(sim) * 1e-9),
        remote_share: if counts.memory_accesses > 0.0 { counts.remote_accesses / counts.memory_accesses } else { 0.0 },
        thread_moves: counts.thread_moves,
        page_moves: libm::round(counts.page_moves) as u64,
        last_thread_move_s: counts.last_thread_move_ns * 1e-9,
        last_page_move_s: counts.last_page_move_ns * 1e-9,
        overhead_s: counts.overhead_ns * 1e-9,
        decisions,
        plans,
        steps: counts.steps,
        threads: sim.threads.len(),
        missing,
        policy_time,
        longest_decision,
    }
}

fn time_ns(sim: &Sim) -> f64 {
    let ended = sim.ended_ns.iter().flatten().copied();
    match sim.world.metric {
        Metric::Makespan => ended.fold(0.0, f64::max),
        Metric::Accumulated => ended.enumerate().map(|(program, ns)| ns - sim.due_ns(program).unwrap_or(0.0)).sum(),
    }
}

#[cfg(test)]
mod migration;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rest;
#[cfg(test)]
mod tests;
