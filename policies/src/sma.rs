// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `sma`: simulated annealing of the mapping of threads to nodes.
//!
//! Problem: threads run far from the memory they access, and full nodes leave only exchanges.
//! Mechanism: maximise S_sys, the sum of [`crate::score`] over all threads, from the present mapping
//! (Thanos thesis, Alg. 3.6, eq. 3.18), and apply the result only if it gains more than one percent
//! per migrated thread. Parameters: [`PARAMETERS`].
//!
//! Where the source is unclear: eq. 3.22 gates on P_sys, the pseudo-code on S_sys; we gate on S_sys.
//! Iterations and the limit without improvement are not stated; ours grow with the number of threads, up to
//! `most_steps`. Restarts, the room of [`crate::capacity`] and the pruning of moves that gain nothing are ours. If the
//! best mapping fails the gate, the next best is tried. A thread that may no longer run on its node is
//! moved whatever the gate says. As 4/2/1 of q3 favours the journey, a thread could go to and fro between its memory and where
//! it performed better: a node from which its present one would look better counts as no better than that (ours).
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

use crate::anneal::{Problem, ROUNDING};
use crate::capacity;
use crate::model::{NodeIndex, Plan, Snapshot, Thread, Topology};
use crate::placing::{self, Placing};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation::{self, may_go};
use crate::score::{self, BETTER};

/// Thread policy `sma`.
///
/// Each thread goes to the node that has its memory:
///
/// ```
/// use tandem_policies::{example, sma};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&sma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: 1: memory on node 1: 100 % of its accesses"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "sma",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.6, eq. 3.17, 3.18",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.seed, inputs.steps),
    ..Policy::PLAIN
};

/// Parameters of `sma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("start_temperature", 0.3, "points", 0.001, 100.0),
    Parameter::real("cooling", 0.97, "factor per step", 0.5, 1.0),
    Parameter::whole("iterations_per_thread", 500.0, "steps per thread and start", 1.0, 1e6),
    Parameter::whole("no_improvement_per_thread", 100.0, "steps per thread", 1.0, 1e6),
    Parameter::whole("restarts", 15.0, "starts after the first", 0.0, 1000.0),
    Parameter::whole("most_steps", 3e6, "steps over all starts", 1.0, 1e9),
    Parameter::real("gate_percent_per_thread", 1.0, "% of the score", 0.0, 100.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Moves and interchanges that raise the score of the whole machine; empty if nothing pays.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64, steps: u64) -> Result<Plan, MissingSignal> {
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.is_empty() {
        return Ok(Plan::default());
    }
    if threads.iter().all(|thread| thread.accesses_per_s.is_none()) {
        return Err(MissingSignal { policy: "sma", signal: Signal::ThreadAccesses });
    }
    let steps = steps.min(parameters.get("most_steps") as u64);
    let schedule = placing::schedule(parameters, threads.len(), steps);
    let percent = parameters.get("gate_percent_per_thread");
    let placing = Placing { snapshot, threads: &threads, reason: &|thread, to| reason(snapshot, thread, to) };
    Ok(placing.search(&problem(snapshot, &threads), &schedule, percent, seed))
}

fn problem(snapshot: &Snapshot, threads: &[&Thread]) -> Problem {
    let topology = &snapshot.topology;
    let nodes = || (0..topology.len()).map(NodeIndex);
    let values = |t: &Thread| {
        let stays = points(topology, t, t.node, t.node);
        let may_stay = relocation::may_run(snapshot, t, t.node);
        let value = |node| {
            let goes = points(topology, t, t.node, node);
            if may_stay && is_torn(topology, t, node, goes - stays) { stays } else { goes }
        };
        nodes().map(value).collect()
    };
    let demands = capacity::demands(snapshot, threads);
    let mut problem = Problem {
        rooms: capacity::rooms(topology, &demands),
        demands,
        present: threads.iter().map(|thread| thread.node.0).collect(),
        value: threads.iter().map(|t| values(t)).collect(),
        allowed: threads.iter().map(|t| nodes().map(|node| may_go(snapshot, t, node)).collect()).collect(),
    };
    placing::settle_strays(&mut problem, snapshot, threads);
    problem
}

/// q2 + q3 of `thread` on `node`, as it sees them from `present`.
fn points(topology: &Topology, thread: &Thread, present: NodeIndex, node: NodeIndex) -> f64 {
    score::preferred(topology, thread, node) + score::remembered_from(thread, present, node)
}

/// Whether `node` looks better to `thread` by `gain` from where it is, and its present node would from there.
fn is_torn(topology: &Topology, thread: &Thread, node: NodeIndex, gain: f64) -> bool {
    let back = || points(topology, thread, node, thread.node) - points(topology, thread, node, node);
    gain > ROUNDING && back() > ROUNDING
}

/// Why `thread` goes to `to`, in words.
fn reason(snapshot: &Snapshot, thread: &Thread, to: NodeIndex) -> String {
    let topology = &snapshot.topology;
    let id = |node: NodeIndex| topology.nodes[node].id;
    let now = id(thread.node);
    if let Some(why) = relocation::pulled_out(snapshot, thread) {
        return why;
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
