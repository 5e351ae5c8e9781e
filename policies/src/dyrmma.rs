// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `dyrmma`: simulated annealing of the mapping of threads to nodes by predicted performance.
//!
//! Problem: points for being near to memory (`sma`) do not say how much performance a mapping brings. Mechanism (Thanos
//! thesis, Alg. 3.7, eq. 3.25 to 3.27): for every thread and node the performance there is predicted,
//!
//! ```text
//! latency  l = sum over n of A(n) L(node, n) / A       A(n): accesses to the memory of node n, A: all accesses
//! P          = O (L_now / l) I / l, I = O / (A S)        O: operations, L_now: its latency, S: bytes of a cache line
//! ```
//!
//! and the sum over all threads is maximised by the annealer of `sma`, under the same gate: more than one percent a
//! migrated thread. The present mapping is judged by the same prediction. Parameters: [`PARAMETERS`].
//!
//! O also changes as the capacities of the nodes' CPUs say, from where the thread is to where it would be (ours; all alike
//! unless CPUs are slow). L(node, n) is what CPUs of node got from the memory of n this interval, where that was measured; else the topology's
//! latency, times how much slower the memory of n served than the topology says, where that was seen. A thread without a latency of its own has
//! the predicted one.
//!
//! What the source leaves unclear: eq. 3.29 gates on S_sys, the pseudo-code on P_sys; we follow the pseudo-code. T0 = 0.3
//! suits scores of order 1 to 10, raw P is many orders larger, which makes annealing a greedy ascent: P is divided by the
//! mean of the present mapping. That changes neither the order of mappings nor the gate. P_sys has no term for free
//! nodes: room is only a limit, and an over-full node stays so if nothing else speaks against it.

use crate::anneal::Problem;
use crate::capacity;
use crate::model::{NodeIndex, PerNode, Plan, Snapshot, Thread, Topology};
use crate::placing::{self, Placing};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation::{self, may_go, may_run};
use crate::standing::LINE_BYTES;

/// Thread policy `dyrmma`.
///
/// Threads change places where both are nearer to their memory then:
///
/// ```
/// use tandem_policies::{dyrmma, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&dyrmma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: 1: an access from node 1 would take 100 ns"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "dyrmma",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses, Signal::ThreadOperations],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.7, eq. 3.25 to 3.27",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.seed, inputs.steps),
    ..Policy::PLAIN
};

/// Parameters of `dyrmma`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("start_temperature", 0.3, "present mean P of a thread", 0.001, 100.0),
    Parameter::real("cooling", 0.97, "factor per step", 0.5, 1.0),
    Parameter::whole("iterations_per_thread", 500.0, "steps per thread and start", 1.0, 1e6),
    Parameter::whole("no_improvement_per_thread", 100.0, "steps per thread", 1.0, 1e6),
    Parameter::whole("restarts", 15.0, "starts after the first", 0.0, 1000.0),
    Parameter::whole("most_steps", 1e6, "steps over all starts", 1.0, 1e9),
    Parameter::real("gate_percent_per_thread", 1.0, "% of the predicted P_sys", 0.0, 100.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Moves and interchanges that raise the predicted P_sys; empty if nothing pays.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`, or none `operations_per_s`.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, seed: u64, steps: u64) -> Result<Plan, MissingSignal> {
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.is_empty() {
        return Ok(Plan::default());
    }
    let missing = |signal| MissingSignal { policy: "dyrmma", signal };
    if threads.iter().all(|thread| thread.accesses_per_s.is_none()) {
        return Err(missing(Signal::ThreadAccesses));
    }
    if threads.iter().all(|thread| thread.operations_per_s.is_none()) {
        return Err(missing(Signal::ThreadOperations));
    }
    let latency_ns = latencies_ns(snapshot);
    let problem = problem(snapshot, &threads, &latency_ns);
    let reason = |thread: &Thread, to| reason(snapshot, &latency_ns, thread, to);
    let placing = Placing { snapshot, threads: &threads, reason: &reason };
    let steps = steps.min(parameters.get("most_steps") as u64);
    let schedule = placing::schedule(parameters, threads.len(), steps);
    Ok(placing.search(&problem, &schedule, parameters.get("gate_percent_per_thread"), seed))
}

/// L by node of the thread, then of the memory.
fn latencies_ns(snapshot: &Snapshot) -> PerNode<PerNode<f64>> {
    let topology = &snapshot.topology;
    let nodes = topology.len();
    let slower = PerNode::from_fn(nodes, |memory| slower(snapshot, memory).unwrap_or(1.0));
    let seen = |run, memory: NodeIndex| snapshot.nodes[memory].latency_ns_from.get(run).copied().flatten();
    let sound = |ns: &f64| ns.is_finite() && *ns > 0.0;
    let latency_ns = |run, memory| {
        seen(run, memory).filter(sound).unwrap_or_else(|| topology.latency_ns(run, memory) * slower[memory])
    };
    PerNode::from_fn(nodes, |run| PerNode::from_fn(nodes, |memory| latency_ns(run, memory)))
}

/// By how much the memory of a node served slower than the topology says, for the threads that access it.
fn slower(snapshot: &Snapshot, memory: NodeIndex) -> Option<f64> {
    let served_ns = snapshot.nodes[memory].served_latency_ns?;
    let (mut expected_ns, mut all) = (0.0, 0.0);
    for thread in &snapshot.threads {
        let rate = thread.accesses_per_s.as_ref().map_or(0.0, |accesses| accesses[memory]);
        expected_ns += rate * snapshot.topology.latency_ns(thread.node, memory);
        all += rate;
    }
    Some(served_ns * all / expected_ns).filter(|slower| slower.is_finite() && *slower > 0.0)
}

/// Mean latency of `thread` if it ran on `run` (eq. 3.25); `None` without accesses.
fn predicted_latency_ns(latency_ns: &PerNode<PerNode<f64>>, thread: &Thread, run: NodeIndex) -> Option<f64> {
    let accesses = thread.accesses_per_s.as_ref()?;
    let sum: f64 = accesses.iter().map(|(memory, rate)| rate * latency_ns[run][memory]).sum();
    Some(sum / accesses.total()).filter(|mean| mean.is_finite() && *mean > 0.0)
}

/// Performance of `thread` if it ran on `run` (its term of eq. 3.27); `None` without operations or accesses.
fn predicted_performance(
    topology: &Topology,
    latency_ns: &PerNode<PerNode<f64>>,
    thread: &Thread,
    run: NodeIndex,
) -> Option<f64> {
    let then_ns = predicted_latency_ns(latency_ns, thread, run)?;
    let now_ns = match thread.latency_ns {
        Some(measured_ns) => measured_ns,
        None => predicted_latency_ns(latency_ns, thread, thread.node)?,
    };
    let capacity = |node: NodeIndex| topology.nodes[node].mean_cpu_capacity();
    let operations = thread.operations_per_s?;
    let intensity = operations / (thread.accesses_per_s.as_ref()?.total() * LINE_BYTES);
    let faster = capacity(run) / capacity(thread.node);
    let performance = operations * faster * (now_ns / then_ns) * intensity / then_ns;
    (performance.is_finite() && performance > 0.0).then_some(performance)
}

/// The mapping problem. Threads whose performance cannot be predicted have no say, and stay unless they are strays.
fn problem(snapshot: &Snapshot, threads: &[&Thread], latency_ns: &PerNode<PerNode<f64>>) -> Problem {
    let nodes = || (0..snapshot.topology.len()).map(NodeIndex);
    let predicted =
        |t: &&Thread| nodes().map(|node| predicted_performance(&snapshot.topology, latency_ns, t, node)).collect();
    let predicted: Vec<Option<Vec<f64>>> = threads.iter().map(predicted).collect();
    let now = threads.iter().zip(&predicted).filter_map(|(t, row)| Some(row.as_ref()?[t.node.0]));
    let (sum, count) = now.fold((0.0, 0.0), |(sum, count), own| (sum + own, count + 1.0));
    let mean = if sum > 0.0 { sum / count } else { 1.0 };
    let value = |row: &Option<Vec<f64>>| match row {
        Some(row) => row.iter().map(|own| own / mean).collect(),
        None => vec![0.0; snapshot.topology.len()],
    };
    let may_leave = |t: &Thread, row: &Option<Vec<f64>>| row.is_some() || !may_run(snapshot, t, t.node);
    let allowed = |(t, row): (&&Thread, &Option<Vec<f64>>)| {
        nodes().map(|node| may_leave(t, row) && may_go(snapshot, t, node)).collect()
    };
    let demands = capacity::demands(snapshot, threads);
    let mut problem = Problem {
        rooms: capacity::rooms(&snapshot.topology, &demands).into_iter().map(|room| room.unscored()).collect(),
        demands,
        present: threads.iter().map(|thread| thread.node.0).collect(),
        value: predicted.iter().map(value).collect(),
        allowed: threads.iter().zip(&predicted).map(allowed).collect(),
    };
    placing::settle_strays(&mut problem, snapshot, threads);
    problem
}

/// Why `thread` goes to `to`, in words.
fn reason(snapshot: &Snapshot, latency_ns: &PerNode<PerNode<f64>>, thread: &Thread, to: NodeIndex) -> String {
    let id = |node: NodeIndex| snapshot.topology.nodes[node].id;
    let latency = |node| predicted_latency_ns(latency_ns, thread, node);
    if let Some(why) = relocation::pulled_out(snapshot, thread) {
        return why;
    }
    match (latency(thread.node), latency(to)) {
        (Some(now_ns), Some(then_ns)) if then_ns < now_ns => {
            format!(
                "an access from node {} would take {then_ns:.0} ns on average, {now_ns:.0} ns from node {}",
                id(to),
                id(thread.node)
            )
        }
        (Some(now_ns), Some(then_ns)) => {
            let (here, there) = (id(thread.node), id(to));
            format!("makes room on node {here}; an access takes {then_ns:.0} ns from node {there}, {now_ns:.0} ns now")
        }
        _ => format!("node {} has room for it", id(to)),
    }
}

#[cfg(test)]
mod tests;
