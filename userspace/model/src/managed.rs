// SPDX-License-Identifier: GPL-2.0-only
//! Policies at work, as the agent of `scx_tandem` lets them: threads first, pages only when there is no thread to move.
//!
//! After a plan nothing is decided until its pages have moved and two intervals have passed. A plan that moves threads
//! leases every active one to its node. What was moved rests. Pages go in order, to several nodes at the same time, within a
//! rate and a share of a CPU of which what was not used is saved, as `tandem_act`'s mover does. Left out is what the agent
//! does when a plan did not pay: it undoes it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use tandem_policies::model::{Action, CpuId, NodeIndex, Plan, Snapshot};
use tandem_policies::registry::{Inputs, Memory, Parameters, Policy};

use crate::run::Settings;
use crate::sense::{Sensor, group_of, thread_of};
use crate::sim::Sim;

/// Intervals after a plan's last move in which nothing is decided.
const SETTLE_INTERVALS: u32 = 2;
/// Nodes to which pages are moved at the same time, each by a CPU of its own.
const LANES: usize = 4;
/// Seconds for which the mover's unused CPU time is saved, and its unused pages.
const SAVED_CPU_S: f64 = 30.0;
const SAVED_PAGES_S: f64 = 1.0;
/// Less of a page than this is rounding.
const LEAST_PAGES: f64 = 1e-6;

struct Seat {
    policy: &'static Policy,
    parameters: Parameters,
    memory: Memory,
}

struct PageMove {
    region: usize,
    group: usize,
}

/// Two policies and what carries their plans out.
pub struct Managed {
    seats: [Seat; 2],
    settings: Settings,
    seed: u64,
    sensor: Sensor,
    /// By the node that the pages go to.
    queue: BTreeMap<usize, VecDeque<PageMove>>,
    /// Pages and CPU time that may be used now.
    pages: f64,
    call_ns: f64,
    thread_rests_until_ns: Vec<f64>,
    group_rests_until_ns: BTreeMap<(usize, usize), f64>,
    next_ns: f64,
    settling: u32,
    /// What the page that was moved last cost.
    page_move_ns: Option<f64>,
    /// Decisions made.
    pub decisions: u64,
    /// Of them with moves.
    pub plans: u64,
    /// Time the policies took.
    pub policy_time: Duration,
    /// The longest of them.
    pub longest_decision: Duration,
    /// The first signal that one lacked.
    pub missing: Option<String>,
}

impl Managed {
    /// Nothing decided yet.
    pub fn new(sim: &Sim, chosen: [(&'static Policy, Parameters); 2], settings: &Settings, seed: u64) -> Self {
        Self {
            seats: chosen.map(|(policy, parameters)| Seat { policy, parameters, memory: Memory::default() }),
            settings: *settings,
            seed,
            sensor: Sensor::new(sim, settings.sense, seed),
            queue: BTreeMap::new(),
            pages: settings.pages_per_s * SAVED_PAGES_S,
            call_ns: settings.mover_ns_per_s * SAVED_CPU_S,
            thread_rests_until_ns: vec![0.0; sim.threads.len()],
            group_rests_until_ns: BTreeMap::new(),
            next_ns: settings.interval_ns,
            settling: 0,
            page_move_ns: None,
            decisions: 0,
            plans: 0,
            policy_time: Duration::ZERO,
            longest_decision: Duration::ZERO,
            missing: None,
        }
    }

    /// Time to the next decision.
    pub fn step_ns(&self, sim: &Sim) -> f64 {
        self.next_ns - sim.now_ns
    }

    /// What happens in and after a step.
    pub fn pass(&mut self, sim: &mut Sim, step_ns: f64) {
        self.move_pages(sim, step_ns);
        // A nanosecond before is then: steps are no shorter.
        if sim.now_ns + 1.0 < self.next_ns {
            return;
        }
        self.next_ns += self.settings.interval_ns;
        // Starts and phases since the last step have not been solved yet, and latencies are of the present.
        sim.solve();
        let snapshot = self.snapshot(sim);
        sim.start_interval();
        if !self.queue.is_empty() {
            return;
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        if !snapshot.threads.is_empty() {
            let plan = self.decide(&snapshot);
            self.act(sim, &plan);
        }
    }

    fn snapshot(&mut self, sim: &Sim) -> Snapshot {
        let (threads, groups) = (&self.thread_rests_until_ns, &self.group_rests_until_ns);
        let rests = |until: Option<&f64>| until.is_some_and(|&ns| sim.now_ns < ns);
        let mut snapshot = self.sensor.snapshot(
            sim,
            self.settings.interval_ns,
            |thread| rests(threads.get(thread)),
            |region, group| rests(groups.get(&(region, group))),
        );
        snapshot.page_move_ns = self.page_move_ns;
        snapshot
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        self.decisions += 1;
        let seed = self.seed.wrapping_add(self.plans);
        for Seat { policy, parameters, memory } in &mut self.seats {
            let began = Instant::now();
            let decided = policy.decide(&mut Inputs { snapshot, parameters, memory, seed, steps: u64::MAX });
            let took = began.elapsed();
            self.policy_time += took;
            self.longest_decision = self.longest_decision.max(took);
            match decided {
                Ok(plan) if plan.is_empty() => {}
                Ok(plan) => return plan,
                Err(missing) => {
                    self.missing.get_or_insert(missing.to_string());
                }
            }
        }
        Plan::default()
    }

    fn act(&mut self, sim: &mut Sim, plan: &Plan) {
        if plan.is_empty() {
            return;
        }
        self.plans += 1;
        self.settling = SETTLE_INTERVALS;
        let moves_threads = plan.moves.iter().any(|planned| !matches!(planned.action, Action::MovePages { .. }));
        if moves_threads {
            for at in 0..sim.active.len() {
                let state = &mut sim.threads[sim.active[at]];
                state.lease.get_or_insert(state.node);
            }
        }
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { thread, to, cpu, .. } => self.move_thread(sim, thread_of(thread), to.0, cpu),
                Action::Interchange { first, second, first_node, second_node } => {
                    let (first, second) = (thread_of(first), thread_of(second));
                    let cpus = [first, second].map(|thread| sim.threads[thread].cpu);
                    self.move_to_place(sim, first, second_node.0, Some(cpus[1]));
                    self.move_to_place(sim, second, first_node.0, Some(cpus[0]));
                }
                Action::MovePages { group, to, .. } => {
                    if let Some((region, group)) = group_of(sim, group) {
                        self.queue.entry(to.0).or_default().push_back(PageMove { region, group });
                    }
                }
            }
        }
    }

    fn move_thread(&mut self, sim: &mut Sim, thread: usize, to: usize, cpu: Option<CpuId>) {
        let cpus = &sim.machine.topology.nodes[NodeIndex(to)].cpus;
        let place = cpu.and_then(|cpu| cpus.iter().position(|&other| other == cpu));
        self.move_to_place(sim, thread, to, place);
    }

    fn move_to_place(&mut self, sim: &mut Sim, thread: usize, to: usize, place: Option<usize>) {
        if sim.machine.cpus(to) == 0 {
            return;
        }
        let place = place.filter(|&cpu| cpu < sim.machine.cpus(to));
        sim.threads[thread].lease = Some(to);
        sim.move_thread(thread, to, place);
        self.thread_rests_until_ns[thread] = sim.now_ns + self.settings.cooldown_ns;
    }

    /// Moves as many pages as a step's budget allows.
    fn move_pages(&mut self, sim: &mut Sim, step_ns: f64) {
        let Settings { pages_per_s, mover_ns_per_s, .. } = self.settings;
        self.pages = (self.pages + pages_per_s * step_ns * 1e-9).min(pages_per_s * SAVED_PAGES_S);
        self.call_ns = (self.call_ns + mover_ns_per_s * step_ns * 1e-9).min(mover_ns_per_s * SAVED_CPU_S);
        let nodes: Vec<usize> = self.queue.keys().copied().take(LANES).collect();
        nodes.into_iter().for_each(|to| self.move_to_node(sim, to, step_ns));
        self.queue.retain(|_, moves| !moves.is_empty());
    }

    /// Moves pages to one node for so long at most.
    fn move_to_node(&mut self, sim: &mut Sim, to: usize, mut left_ns: f64) {
        while let Some(&PageMove { region, group }) = self.queue.get(&to).and_then(VecDeque::front) {
            // The program may have ended meanwhile.
            let on = sim.regions[region].groups.get(group);
            let from = on.and_then(|on| on.iter().find(|entry| entry.0 != to)).copied();
            let Some((from, here)) = from.filter(|_| sim.free_pages[to] >= 1.0) else {
                self.group_rests_until_ns.insert((region, group), sim.now_ns + self.settings.cooldown_ns);
                self.queue.entry(to).or_default().pop_front();
                continue;
            };
            let cost_ns = sim.machine.page_move_ns(from, to);
            let affordable = if cost_ns > 0.0 { self.call_ns.min(left_ns) / cost_ns } else { f64::INFINITY };
            let pages = self.pages.min(affordable).min(here);
            if pages < LEAST_PAGES.min(here) {
                return;
            }
            let moved = sim.move_pages(region, group, from, to, pages);
            self.pages -= moved;
            self.call_ns -= moved * cost_ns;
            left_ns -= moved * cost_ns;
            sim.charge_node(to, moved * cost_ns);
            self.page_move_ns = Some(cost_ns);
        }
    }
}
