// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `sma`: simulated annealing of the mapping of threads to nodes.
//!
//! Problem: threads run far from the memory they access, and full nodes leave only exchanges.
//! Mechanism: maximise S_sys, the sum of [`crate::score`] over all threads, from the present mapping
//! (Thanos thesis, Alg. 3.6, eq. 3.18), and apply the result only if it gains more than one percent
//! per migrated thread. Parameters: [`PARAMETERS`].
//!
//! Where the source is unclear: eq. 3.22 gates on P_sys, the pseudo-code on S_sys; we gate on S_sys.
//! Iterations and the limit without improvement are not stated; ours grow with the number of threads.
//! Restarts, the slots of [`crate::score`] and the pruning of moves that gain nothing are ours. If the
//! best mapping fails the gate, the next best is tried. A thread that may no longer run on its node is
//! moved whatever the gate says.
//!
//! The gate is relative to the score of the whole machine, so its price grows with the number of threads:
//!
//! | start | gain | passes with at most |
//! |---|---|---|
//! | every thread on the wrong one of two nodes (10/21) | 35.5 % | 35 threads |
//! | every thread one ring neighbour away (10/12) | 9.09 % | 9 threads |
//! | one misplaced thread (10/21) and a free CPU by its memory | 1 % | 26 threads in all |
//!
//! On larger machines lower `gate_percent_per_thread`.

use std::collections::BTreeMap;

use crate::anneal::{Mapping, Problem, ROUNDING, Schedule};
use crate::cost::thread_gain_ns_per_s;
use crate::model::{Action, Move, NodeIndex, Plan, Snapshot, Thread};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::score::{self, BETTER, Slots};

/// Thread policy `sma`.
pub static POLICY: Policy = Policy {
    name: "sma",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.6, eq. 3.17, 3.18",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.seed, inputs.steps),
};

/// Parameters of `sma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("start_temperature", 0.3, "points", 0.001, 100.0),
    Parameter::real("cooling", 0.97, "factor per step", 0.5, 1.0),
    Parameter::whole("iterations_per_thread", 500.0, "steps per thread and start", 1.0, 1e6),
    Parameter::whole("no_improvement_per_thread", 100.0, "steps per thread", 1.0, 1e6),
    Parameter::whole("restarts", 15.0, "starts after the first", 0.0, 1000.0),
    Parameter::real("gate_percent_per_thread", 1.0, "% of the score", 0.0, 100.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// The annealing schedule for `threads` threads and at most `steps` steps.
pub(crate) fn schedule(parameters: &Parameters, threads: usize, steps: u64) -> Schedule {
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

/// Moves and interchanges that raise the score of the whole machine; empty if nothing pays.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64, steps: u64) -> Result<Plan, MissingSignal> {
    let busy_ns = parameters.get("min_cpu_percent") / 100.0 * snapshot.interval_ns as f64;
    let counts = |thread: &&Thread| thread.cpu_time_ns as f64 >= busy_ns && has_a_place(snapshot, thread);
    let threads: Vec<&Thread> = snapshot.threads.iter().filter(counts).collect();
    if threads.is_empty() {
        return Ok(Plan::default());
    }
    if threads.iter().all(|thread| thread.accesses_per_s.is_none()) {
        return Err(MissingSignal { policy: "sma", signal: Signal::ThreadAccesses });
    }
    let problem = problem(snapshot, &threads);
    let start = problem.start();
    let percent = parameters.get("gate_percent_per_thread");
    for mut mapping in problem.anneal(&schedule(parameters, threads.len(), steps), seed) {
        if mapping.score <= start.score + ROUNDING {
            break;
        }
        problem.prune(&mut mapping);
        let moved = mapping.place.iter().zip(&problem.present).filter(|(then, now)| then != now).count();
        if moved > 0 && gate(start.score, mapping.score, moved, percent) {
            return Ok(plan(snapshot, &threads, &problem.slots, &mapping));
        }
    }
    Ok(plan(snapshot, &threads, &problem.slots, &start))
}

fn problem(snapshot: &Snapshot, threads: &[&Thread]) -> Problem {
    let topology = &snapshot.topology;
    let all_cpus = topology.nodes.values().map(|node| node.cpus.len()).sum();
    let nodes = || (0..topology.len()).map(NodeIndex);
    let value = |t: &Thread, node| score::preferred(topology, t, node) + score::remembered(t, node);
    let mut problem = Problem {
        slots: topology.nodes.values().map(|node| Slots::of(node.cpus.len(), all_cpus, threads.len())).collect(),
        present: threads.iter().map(|thread| thread.node.0).collect(),
        value: threads.iter().map(|t| nodes().map(|node| value(t, node)).collect()).collect(),
        allowed: threads.iter().map(|t| nodes().map(|node| may_go(snapshot, t, node)).collect()).collect(),
    };
    settle_strays(&mut problem, snapshot, threads);
    problem
}

fn may_run(snapshot: &Snapshot, thread: &Thread, node: NodeIndex) -> bool {
    thread.allowed[node] && !snapshot.topology.nodes[node].cpus.is_empty()
}

/// Whether a plan may move `thread` to `node`.
fn may_go(snapshot: &Snapshot, thread: &Thread, node: NodeIndex) -> bool {
    !thread.on_cooldown && may_run(snapshot, thread, node)
}

/// Whether `thread` can run where it is or be moved to where it can; else it would hold a slot for nothing.
fn has_a_place(snapshot: &Snapshot, thread: &Thread) -> bool {
    let nodes = || (0..snapshot.topology.len()).map(NodeIndex);
    may_run(snapshot, thread, thread.node) || nodes().any(|node| may_go(snapshot, thread, node))
}

/// Puts each thread that may no longer run on its node on the best one that is free for it, or on the
/// best one. There is nothing to gain or lose for it where it was, so that the search starts from here.
fn settle_strays(problem: &mut Problem, snapshot: &Snapshot, threads: &[&Thread]) {
    let mut hosted = hosted(problem.slots.len(), snapshot, threads);
    let strays = (0..threads.len()).filter(|&at| !may_run(snapshot, threads[at], threads[at].node));
    for at in strays {
        let points = |node: usize| problem.slots[node].joining(hosted[node]) + problem.value[at][node];
        let worth = |node: usize| (hosted[node] < problem.slots[node].count(), points(node));
        let mut best = None;
        for node in (0..hosted.len()).filter(|&node| problem.allowed[at][node]) {
            if best.is_none_or(|(_, most)| worth(node) > most) {
                best = Some((node, worth(node)));
            }
        }
        let (node, _) = best.expect("a thread without a place is not in the problem");
        problem.present[at] = node;
        hosted[node] += 1;
    }
}

/// Threads by node that really can run there.
fn hosted(nodes: usize, snapshot: &Snapshot, threads: &[&Thread]) -> Vec<usize> {
    let mut hosted = vec![0; nodes];
    for thread in threads.iter().filter(|thread| may_run(snapshot, thread, thread.node)) {
        hosted[thread.node.0] += 1;
    }
    hosted
}

/// Opposite moves as interchanges first, then the rest, the most gainful first as far as no node gets
/// over-full in between.
fn plan(snapshot: &Snapshot, threads: &[&Thread], slots: &[Slots], mapping: &Mapping) -> Plan {
    let mut routes: BTreeMap<(usize, usize), Vec<&Thread>> = BTreeMap::new();
    for (thread, &to) in threads.iter().zip(&mapping.place) {
        if to != thread.node.0 {
            routes.entry((thread.node.0, to)).or_default().push(thread);
        }
    }
    let mut moves = Vec::new();
    let mut single = Vec::new();
    for (&(from, to), going) in &routes {
        let back = routes.get(&(to, from)).map_or(&[][..], Vec::as_slice);
        let pairs = going.len().min(back.len());
        if from < to {
            moves.extend(going.iter().zip(back).map(|(first, second)| interchange(snapshot, first, second)));
        }
        single.extend(going[pairs..].iter().map(|&thread| (thread, to)));
    }
    moves.sort_by(|a, b| gain_order(b).total_cmp(&gain_order(a)));
    let hosted = hosted(slots.len(), snapshot, threads);
    for (thread, to) in in_order(snapshot, single, slots, hosted) {
        moves.push(single_move(snapshot, thread, NodeIndex(to)));
    }
    Plan { moves }
}

/// The moves in an order that overfills no node in between, if there is one.
fn in_order<'a>(
    snapshot: &Snapshot,
    mut moves: Vec<(&'a Thread, usize)>,
    slots: &[Slots],
    mut hosted: Vec<usize>,
) -> Vec<(&'a Thread, usize)> {
    let gain = |&(thread, to): &(&Thread, usize)| {
        thread_gain_ns_per_s(&snapshot.topology, thread, NodeIndex(to)).unwrap_or(f64::NEG_INFINITY)
    };
    moves.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    let mut ordered = Vec::new();
    while !moves.is_empty() {
        let fits = moves.iter().position(|&(_, to)| hosted[to] < slots[to].count());
        let (thread, to) = moves.remove(fits.unwrap_or(0));
        if may_run(snapshot, thread, thread.node) {
            hosted[thread.node.0] -= 1;
        }
        hosted[to] += 1;
        ordered.push((thread, to));
    }
    ordered
}

fn gain_order(planned: &Move) -> f64 {
    planned.gain_ns_per_s.unwrap_or(f64::NEG_INFINITY)
}

fn single_move(snapshot: &Snapshot, thread: &Thread, to: NodeIndex) -> Move {
    Move {
        action: Action::MoveThread { thread: thread.id, from: thread.node, to, cpu: None },
        gain_ns_per_s: thread_gain_ns_per_s(&snapshot.topology, thread, to),
        reason: reason(snapshot, thread, to),
    }
}

fn interchange(snapshot: &Snapshot, first: &Thread, second: &Thread) -> Move {
    let gain = |thread, to| thread_gain_ns_per_s(&snapshot.topology, thread, to);
    // What is not known is left out; nothing known is no gain of zero.
    let known = [gain(first, second.node), gain(second, first.node)];
    let gain_ns_per_s = known.into_iter().flatten().reduce(|one, other| one + other);
    let (here, there) = (first.node, second.node);
    let reason =
        format!("{}: {}; {}: {}", first.id, reason(snapshot, first, there), second.id, reason(snapshot, second, here));
    let action =
        Action::Interchange { first: first.id, second: second.id, first_node: first.node, second_node: second.node };
    Move { action, gain_ns_per_s, reason }
}

/// Why `thread` goes to `to`, in words.
fn reason(snapshot: &Snapshot, thread: &Thread, to: NodeIndex) -> String {
    let topology = &snapshot.topology;
    let id = |node: NodeIndex| topology.nodes[node].id;
    let now = id(thread.node);
    if topology.nodes[thread.node].cpus.is_empty() {
        return format!("node {now} has no CPU");
    }
    if !thread.allowed[thread.node] {
        return format!("may not run on node {now} any more");
    }
    if let (Some(accesses), Some(memory)) = (&thread.accesses_per_s, thread.preferred_node())
        && topology.distance(to, memory) < topology.distance(thread.node, memory)
    {
        let percent = 100.0 * accesses[memory] / accesses.total();
        let nearer = if to == memory { String::new() } else { format!(", node {} is nearer", id(to)) };
        return format!("memory on node {}: {percent:.0} % of its accesses; runs on node {now}{nearer}", id(memory));
    }
    if score::remembered(thread, to) == BETTER {
        return format!("performed better on node {} than on node {now}", id(to));
    }
    format!("node {now} is wanted by others more; node {} has room for it", id(to))
}

#[cfg(test)]
mod tests;
