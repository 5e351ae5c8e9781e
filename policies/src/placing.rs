// SPDX-License-Identifier: GPL-2.0-only
//! The search of the policies that anneal a mapping of threads to nodes, for one whose gain pays for its moves.

use crate::anneal::{Problem, ROUNDING, Schedule};
use crate::capacity;
use crate::model::{NodeIndex, Plan, Snapshot, Thread};
use crate::registry::Parameters;
use crate::relocation::{self, may_run};

/// Share of a score that sums of roundings stay below.
const SLACK: f64 = 1e-6;

/// The annealing schedule for `threads` threads and at most `steps` steps.
pub fn schedule(parameters: &Parameters, threads: usize, steps: u64) -> Schedule {
    Schedule {
        start_temperature: parameters.get("start_temperature"),
        cooling: parameters.get("cooling"),
        iterations: parameters.get("iterations_per_thread") as u64 * threads as u64,
        no_improvement: parameters.get("no_improvement_per_thread") as u64 * threads as u64,
        restarts: parameters.get("restarts") as u64,
        steps,
    }
}

/// Whether going from score `before` to `after` pays for `moved` migrated threads (Alg. 3.6).
pub fn gate(before: f64, after: f64, moved: usize, percent_per_thread: f64) -> bool {
    100.0 * (after / before - 1.0) > percent_per_thread * moved as f64 + ROUNDING
}

/// Whether a mapping of score `score` or more passes the gate when as few threads are moved as could reach that.
/// `reach` is what so many threads can gain at most, from one thread on; each adds no more than the one before, so that
/// what more threads gain pays even less.
fn could_pass(reach: &[f64], before: f64, score: f64, percent_per_thread: f64) -> bool {
    let slack = SLACK * (1.0 + before.abs());
    let fewest = reach.partition_point(|&gain| gain < score - before - slack).min(reach.len().saturating_sub(1));
    let passes = |gain: &f64| gate(before, before + gain + slack, fewest + 1, percent_per_thread);
    reach.get(fewest).is_none_or(|gain| !gain.is_finite() || passes(gain))
}

/// Puts each thread that may no longer run on its node on the best one that is free for it, or on the
/// best one. There is nothing to gain or lose for it where it was, so that the search starts from here.
pub fn settle_strays(problem: &mut Problem, snapshot: &Snapshot, threads: &[&Thread]) {
    let mut loads = capacity::loads(snapshot, threads, &problem.demands);
    let strays = (0..threads.len()).filter(|&at| !may_run(snapshot, threads[at], threads[at].node));
    for at in strays {
        let demand = problem.demands[at];
        let points = |node: usize| problem.rooms[node].joining(loads[node], demand) + problem.value[at][node];
        let worth = |node: usize| (problem.rooms[node].is_free(loads[node]), points(node));
        let mut best = None;
        for node in (0..loads.len()).filter(|&node| problem.allowed[at][node]) {
            if best.is_none_or(|(_, most)| worth(node) > most) {
                best = Some((node, worth(node)));
            }
        }
        let (node, _) = best.expect("a thread without a place is not in the problem");
        problem.present[at] = node;
        loads[node] += demand;
    }
}

/// Threads to be placed, and how a move of one is explained.
pub struct Placing<'a> {
    pub snapshot: &'a Snapshot,
    pub threads: &'a [&'a Thread],
    /// Why a thread goes to a node, in words.
    pub reason: &'a dyn Fn(&Thread, NodeIndex) -> String,
}

impl Placing<'_> {
    /// The moves to the best mapping whose gain is more than `percent` a migrated thread; those of strays alone if
    /// there is none.
    pub fn search(&self, problem: &Problem, schedule: &Schedule, percent: f64, seed: u64) -> Plan {
        let start = problem.start();
        let reach = problem.reach(&start);
        // On large machines there is often nothing that could pass.
        let found = if could_pass(&reach, start.score, start.score, percent) {
            problem.anneal(schedule, seed)
        } else {
            Vec::new()
        };
        for mut mapping in found {
            if mapping.score <= start.score + ROUNDING {
                break;
            }
            if !could_pass(&reach, start.score, mapping.score, percent) {
                continue;
            }
            problem.prune(&mut mapping);
            let moved = mapping.place.iter().zip(&problem.present).filter(|(then, now)| then != now).count();
            if moved > 0 && gate(start.score, mapping.score, moved, percent) {
                return self.plan(&mapping.place);
            }
        }
        self.plan(&start.place)
    }

    fn plan(&self, place: &[usize]) -> Plan {
        relocation::plan(self.snapshot, self.threads, place, self.reason)
    }
}
