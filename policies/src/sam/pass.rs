// SPDX-License-Identifier: GPL-2.0-only
//! One decision of `sam`.
//!
//! Every step works on the mapping as the steps before it left it, and no thread moves twice.

use std::cmp::Reverse;

use super::{State, Trial};
use crate::capacity::{self, Room};
use crate::model::{Move, NodeIndex, Snapshot, Thread};
use crate::registry::Parameters;
use crate::relocation;

/// What a thread suffers from or may be displaced for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Gets lines from other nodes' caches.
    Sharer,
    /// Gets lines from its own node's caches: it is with its group.
    Grouped,
    MemoryBound,
    CpuBound,
    /// Lacks a signal that others have.
    Unknown,
}

/// A busy thread, as the counters show it.
struct Task<'a> {
    thread: &'a Thread,
    class: Class,
    /// Transfers in lines per cycle.
    within: f64,
    across: f64,
    cycles_per_s: f64,
    /// What it takes of its node's room.
    demand: u64,
    /// Lines from memory as counted, else accesses to it as sampled; `None` without either.
    memory_per_s: Option<f64>,
    /// Its node by the plan so far.
    node: usize,
    moved: bool,
}

impl Task<'_> {
    /// Accesses per second to memory of other nodes if it ran on `node`, by samples: counters know only where it ran.
    fn remote_per_s(&self, node: usize) -> f64 {
        let sampled = self.thread.accesses_per_s.as_ref().filter(|row| row.total().is_finite());
        sampled.map_or(0.0, |row| row.total() - row[NodeIndex(node)])
    }

    /// The same where it ran, as counted, else as sampled. A count of a time in which it ran elsewhere says nothing.
    fn remote_here_per_s(&self) -> f64 {
        let node = self.thread.node;
        let ran_here = 2 * self.thread.run_ns[node] >= self.thread.run_ns.values().sum();
        let counted = self.thread.memory_lines_per_s.remote.filter(|remote| ran_here && remote.is_finite());
        counted.unwrap_or_else(|| self.remote_per_s(node.0))
    }
}

/// The decision so far.
pub(super) struct Pass<'a> {
    snapshot: &'a Snapshot,
    parameters: &'a Parameters,
    state: &'a mut State,
    tasks: Vec<Task<'a>>,
    /// Room by node, and what its threads take of it.
    rooms: Vec<Room>,
    loads: Vec<u64>,
    pub(super) moves: Vec<Move>,
}

impl<'a> Pass<'a> {
    /// Nothing decided yet about `threads`.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        parameters: &'a Parameters,
        threads: Vec<&'a Thread>,
        state: &'a mut State,
    ) -> Self {
        let demands = capacity::demands(snapshot, &threads);
        let rooms = capacity::rooms(&snapshot.topology, &demands);
        let loads = capacity::loads(snapshot, &threads, &demands);
        let memory_known = threads.iter().any(|thread| memory_per_s(thread).is_some());
        let task = |(thread, demand)| classified(snapshot, parameters, thread, demand, memory_known);
        let tasks = threads.into_iter().zip(demands).map(task).collect();
        Self { snapshot, parameters, state, tasks, rooms, loads, moves: Vec::new() }
    }

    /// Undoes moves after which the transfers within the node did not rise, or those across nodes did not fall.
    pub(super) fn validate(&mut self) {
        for (id, trial) in self.state.trials.clone() {
            let Some(at) = self.tasks.iter().position(|task| task.thread.id == id) else { continue };
            let task = &self.tasks[at];
            let ran_ns: u64 = task.thread.run_ns.values().sum();
            if task.class == Class::Unknown || 2 * task.thread.run_ns[trial.to] < ran_ns {
                continue;
            }
            let (rise, fall) = (task.within - trial.within, trial.across - task.across);
            if fall > 0.0 && rise > 0.0 && rise >= self.parameters.get("min_rise_percent") / 100.0 * trial.across {
                self.state.trials.remove(&id);
            } else {
                self.undo(at, &trial, rise, fall);
            }
        }
    }

    fn undo(&mut self, at: usize, trial: &Trial, rise: f64, fall: f64) {
        let (to, id) = (trial.from.0, self.tasks[at].thread.id);
        let why = format!(
            "undone: of {:.2} lines per 1000 cycles across nodes {:.2} went, transfers within node {} rose by {:.2}",
            1000.0 * trial.across,
            1000.0 * fall,
            self.id(trial.to.0),
            1000.0 * rise
        );
        let displaced = (0..self.tasks.len()).find(|&other| Some(self.tasks[other].thread.id) == trial.displaced);
        let back = displaced.filter(|&other| self.can_change_places(at, other) && self.tasks[other].node == to);
        let done = self.can_go(at, to)
            && match back {
                Some(other) => self.exchange(at, other, &why),
                None => self.take_free_slot(at, to, &why) || self.displace(at, to, Class::CpuBound, &why).is_some(),
            };
        if done {
            let retry_ns = (self.parameters.get("retry_s") * 1e9) as u64;
            self.state.trials.remove(&id);
            self.state.refused.insert((id, trial.to), self.snapshot.time_ns.saturating_add(retry_ns));
        }
    }

    /// Brings threads that share across nodes to one node, the node with most of them first.
    pub(super) fn gather_sharers(&mut self) {
        let sharers: Vec<Vec<usize>> = (0..self.rooms.len()).map(|node| self.of_class(node, Class::Sharer)).collect();
        let mut nodes: Vec<usize> = (0..sharers.len()).filter(|&node| !sharers[node].is_empty()).collect();
        nodes.sort_by_key(|&node| (Reverse(sharers[node].len()), node));
        let mut done = vec![false; sharers.len()];
        for &to in &nodes {
            if done[to] {
                continue;
            }
            let taken = |sharers: &[usize]| sharers.iter().map(|&at| self.tasks[at].demand).sum::<u64>();
            let mut there = taken(&sharers[to]);
            for &from in nodes.iter().filter(|&&from| from != to) {
                let may_join = |&at: &usize| self.may_join(at, to);
                let coming: Vec<usize> = sharers[from].iter().copied().filter(may_join).collect();
                let all = there + coming.iter().map(|&at| self.tasks[at].demand).sum::<u64>();
                let last = coming.iter().map(|&at| self.tasks[at].demand).min().unwrap_or(0);
                if done[from] || coming.is_empty() || !self.rooms[to].is_free(all - last) {
                    continue;
                }
                for at in coming {
                    if self.bring(at, to) {
                        there += self.tasks[at].demand;
                        (done[from], done[to]) = (true, true);
                    }
                }
            }
        }
    }

    fn may_join(&self, at: usize, to: usize) -> bool {
        let id = self.tasks[at].thread.id;
        self.can_go(at, to)
            && !self.state.trials.contains_key(&id)
            && !self.state.refused.contains_key(&(id, NodeIndex(to)))
    }

    /// Brings a sharer to a free slot, or for a CPU-bound thread, or reluctantly for a memory-bound one.
    fn bring(&mut self, at: usize, to: usize) -> bool {
        let (from, id) = (self.tasks[at].thread.node, self.tasks[at].thread.id);
        let Task { within, across, .. } = self.tasks[at];
        let why = format!("{:.2} lines per 1000 cycles come from other nodes' caches", 1000.0 * across);
        let displaced = if self.take_free_slot(at, to, &why) {
            None
        } else if let Some(other) = self.displace(at, to, Class::CpuBound, &why) {
            Some(other)
        } else if let Some(other) = self.displace(at, to, Class::MemoryBound, &why) {
            self.remember_origin(other, to);
            Some(other)
        } else {
            return false;
        };
        let displaced = displaced.map(|other| self.tasks[other].thread.id);
        self.state.trials.insert(id, Trial { from, to: NodeIndex(to), displaced, within, across });
        true
    }

    fn remember_origin(&mut self, at: usize, node: usize) {
        self.state.origins.entry(self.tasks[at].thread.id).or_insert(NodeIndex(node));
    }

    /// Sends threads that were moved reluctantly and now access remote memory back to where they came from.
    pub(super) fn return_to_origins(&mut self) {
        for at in 0..self.tasks.len() {
            let task = &self.tasks[at];
            let Some(&NodeIndex(origin)) = self.state.origins.get(&task.thread.id) else { continue };
            if task.node == origin {
                self.state.origins.remove(&task.thread.id);
                continue;
            }
            let remote = task.remote_here_per_s() / task.cycles_per_s;
            let suffers = remote > self.parameters.get("remote_per_cycle");
            if suffers && matches!(task.class, Class::MemoryBound | Class::CpuBound) && self.can_go(at, origin) {
                let why = format!("returns: {:.2} remote accesses per 1000 cycles", 1000.0 * remote);
                self.send_home(at, origin, &why);
            }
        }
    }

    fn send_home(&mut self, at: usize, origin: usize, why: &str) {
        let here = self.tasks[at].node;
        let moved_the_other_way = |&other: &usize| {
            let task = &self.tasks[other];
            task.node == origin && self.state.origins.get(&task.thread.id) == Some(&NodeIndex(here))
        };
        let fewer_remote = |&other: &usize| {
            let (one, two) = (&self.tasks[at], &self.tasks[other]);
            two.remote_per_s(here) + one.remote_per_s(origin) < two.remote_per_s(origin) + one.remote_per_s(here)
        };
        let partner =
            (0..self.tasks.len()).filter(moved_the_other_way).find(|&other| self.can_change_places(at, other));
        let memory_bound = self.of_class(origin, Class::MemoryBound).into_iter();
        let memory_bound =
            memory_bound.filter(|&other| self.can_change_places(at, other)).find(|other| fewer_remote(other));
        if let Some(partner) = partner {
            self.exchange(at, partner, why);
        } else if !self.take_free_slot(at, origin, why)
            && self.displace(at, origin, Class::CpuBound, why).is_none()
            && let Some(other) = memory_bound
        {
            self.exchange(at, other, why);
            self.remember_origin(other, origin);
        }
    }

    /// Spreads memory-bound threads of nodes above the bandwidth threshold over nodes below it.
    pub(super) fn balance_bandwidth(&mut self) {
        let most = self.parameters.get("bandwidth_per_s");
        let mut load = vec![0.0; self.rooms.len()];
        for task in &self.tasks {
            load[task.node] += task.memory_per_s.unwrap_or(0.0);
        }
        let crowded: Vec<usize> = (0..load.len()).filter(|&node| load[node] > most).collect();
        for from in crowded {
            let mut leaving = self.of_class(from, Class::MemoryBound);
            let rate = |at: usize| self.tasks[at].memory_per_s.unwrap_or(0.0);
            leaving.sort_by(|&a, &b| rate(b).total_cmp(&rate(a)));
            for at in leaving {
                self.spread(at, &mut load, most);
            }
        }
    }

    /// Moves one thread to the node with the lowest load where it overloads nothing, if there is one.
    fn spread(&mut self, at: usize, load: &mut [f64], most: f64) {
        let from = self.tasks[at].node;
        let rate = self.tasks[at].memory_per_s.unwrap_or(0.0);
        let mut nodes: Vec<usize> = (0..load.len()).filter(|&to| self.can_go(at, to)).collect();
        nodes.sort_by(|&a, &b| load[a].total_cmp(&load[b]));
        for to in nodes {
            if load[to] + rate > most.min(load[from] - rate) {
                return;
            }
            let why = format!(
                "{:.1} million accesses per second on node {}, {:.1} on node {}",
                load[from] / 1e6,
                self.id(from),
                load[to] / 1e6,
                self.id(to)
            );
            let other = self.displace_if_full(at, to, &why);
            if self.tasks[at].moved {
                let back = other.and_then(|other| self.tasks[other].memory_per_s).unwrap_or(0.0);
                load[from] += back - rate;
                load[to] += rate - back;
                return;
            }
        }
    }

    fn displace_if_full(&mut self, at: usize, to: usize, why: &str) -> Option<usize> {
        if self.take_free_slot(at, to, why) { None } else { self.displace(at, to, Class::CpuBound, why) }
    }

    fn of_class(&self, node: usize, class: Class) -> Vec<usize> {
        let is = |&at: &usize| self.tasks[at].node == node && self.tasks[at].class == class;
        (0..self.tasks.len()).filter(is).collect()
    }

    /// Whether a thread may be moved from its node to another one, `to`.
    fn can_go(&self, at: usize, to: usize) -> bool {
        let task = &self.tasks[at];
        !task.moved && task.node != to && relocation::may_go(self.snapshot, task.thread, NodeIndex(to))
    }

    fn can_change_places(&self, at: usize, other: usize) -> bool {
        self.can_go(at, self.tasks[other].node) && self.can_go(other, self.tasks[at].node)
    }

    fn take_free_slot(&mut self, at: usize, to: usize, why: &str) -> bool {
        if !self.rooms[to].is_free(self.loads[to]) {
            return false;
        }
        let thread = self.tasks[at].thread;
        self.moves.push(relocation::single_move(self.snapshot, thread, NodeIndex(to), why.to_owned()));
        if relocation::may_run(self.snapshot, thread, thread.node) {
            self.loads[thread.node.0] -= self.tasks[at].demand;
        }
        self.loads[to] += self.tasks[at].demand;
        self.placed(at, to);
        true
    }

    /// Exchanges a thread with one of `class` on node `to`; who that was.
    fn displace(&mut self, at: usize, to: usize, class: Class, why: &str) -> Option<usize> {
        let other = self.of_class(to, class).into_iter().find(|&other| self.can_change_places(at, other))?;
        self.exchange(at, other, why);
        Some(other)
    }

    fn exchange(&mut self, at: usize, other: usize, why: &str) -> bool {
        let (one, two) = (self.tasks[at].thread, self.tasks[other].thread);
        let reason = |thread: &Thread, _| if thread.id == one.id { why.to_owned() } else { "makes room".to_owned() };
        self.moves.push(relocation::interchange(self.snapshot, one, two, reason));
        let (here, there) = (one.node.0, two.node.0);
        let (leaves, comes) = (self.tasks[at].demand, self.tasks[other].demand);
        if relocation::may_run(self.snapshot, one, one.node) {
            self.loads[here] -= leaves;
        }
        if relocation::may_run(self.snapshot, two, two.node) {
            self.loads[there] -= comes;
        }
        self.loads[here] += comes;
        self.loads[there] += leaves;
        self.placed(at, there);
        self.placed(other, here);
        true
    }

    fn placed(&mut self, at: usize, node: usize) {
        let task = &mut self.tasks[at];
        task.node = node;
        task.moved = true;
        if self.state.origins.get(&task.thread.id) == Some(&NodeIndex(node)) {
            self.state.origins.remove(&task.thread.id);
        }
    }

    fn id(&self, node: usize) -> crate::model::NodeId {
        self.snapshot.topology.nodes[NodeIndex(node)].id
    }
}

/// What a thread asks of memory: lines as counted, else accesses as sampled.
fn memory_per_s(thread: &Thread) -> Option<f64> {
    let sampled = || thread.accesses_per_s.as_ref().map(|row| row.total());
    thread.memory_lines_per_s.all.filter(|all| all.is_finite()).or_else(sampled).filter(|total| total.is_finite())
}

fn classified<'a>(
    snapshot: &Snapshot,
    parameters: &Parameters,
    thread: &'a Thread,
    demand: u64,
    memory_known: bool,
) -> Task<'a> {
    let at_clock = || thread.cpu_time_ns as f64 / snapshot.interval_ns as f64 * parameters.get("clock_ghz") * 1e9;
    let cycles_per_s = thread.cycles_per_s.filter(|&cycles| cycles > 0.0).unwrap_or_else(at_clock);
    let transfers = thread.transfers_per_s.filter(|t| t.within_node.is_finite() && t.across_nodes.is_finite());
    let per_cycle = |lines_per_s: f64| lines_per_s / cycles_per_s;
    let within = per_cycle(transfers.map_or(0.0, |transfers| transfers.within_node));
    let across = per_cycle(transfers.map_or(0.0, |transfers| transfers.across_nodes));
    let memory_per_s = memory_per_s(thread);
    let cpus = snapshot.topology.nodes[thread.node].cpus.len().max(1);
    let threshold = parameters.get("coherence_per_cycle");
    let class = match (transfers, memory_per_s) {
        (None, _) => Class::Unknown,
        _ if across > threshold => Class::Sharer,
        _ if within > threshold => Class::Grouped,
        (_, None) if memory_known => Class::Unknown,
        (_, Some(rate)) if rate > parameters.get("bandwidth_per_s") / cpus as f64 => Class::MemoryBound,
        _ => Class::CpuBound,
    };
    Task { thread, class, within, across, cycles_per_s, demand, memory_per_s, node: thread.node.0, moved: false }
}
