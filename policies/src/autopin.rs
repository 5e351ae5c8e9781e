// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `autopin`: tries mappings and keeps the one with the most instructions per cycle.
//!
//! Problem: which mapping is good is hard to tell from signals, but easy to see once it is there. Mechanism (Autopin, as
//! Diener et al. compare with it, 2015): compact and four random mappings are put in place one after the other. Each has a
//! warm-up of 500 ms, then the instructions per cycle (IPC) of all threads are measured for 150 ms. The mapping with the
//! highest IPC is put back, and stays. Parameters: [`PARAMETERS`].
//!
//! A policy is asked once an interval: it measures whole intervals that begin after the warm-up, so that each mapping takes
//! that long at least. What is kept is where the threads really were while they were measured: some may not have followed.
//! The next mapping waits until no thread is on cooldown.
//!
//! What the source leaves unclear: it does not say when to try again. Here it is when more than half of the busy threads
//! are not those that were mapped (ours). A change of phase is not noticed. Compact is that of [`crate::compact`]; a
//! random mapping draws for each thread one of the nodes that has room ([`crate::capacity`]).

use std::collections::BTreeMap;

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::anneal::below;
use crate::capacity;
use crate::compact;
use crate::model::{NodeIndex, Plan, Snapshot, Thread, ThreadId};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation::{self, may_go, may_run};

/// Thread policy `autopin`.
///
/// The first mapping that is tried is `compact`; thread 2 left a CPU of node 0 idle:
///
/// ```
/// use tandem_policies::{autopin, example};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads.remove(1);
/// let moves = example::decided(&autopin::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 3: node 1 -> 0: "));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "autopin",
    kind: Kind::Thread,
    needs: &[Signal::ThreadOperations, Signal::ThreadCycles],
    parameters: PARAMETERS,
    source: "Autopin, as Diener, Cruz, Pilla, Dupros and Navaux compare with it: Performance Evaluation, 2015",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.memory.of::<Trial>(), inputs.seed),
    explores: true,
    ..Policy::PLAIN
};

/// Parameters of `autopin`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("random_mappings", 4.0, "mappings", 0.0, 1000.0),
    Parameter::whole("warm_up_ms", 500.0, "ms", 0.0, 1e6),
    Parameter::whole("measure_ms", 150.0, "ms", 1.0, 1e6),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Node by thread.
type Places = BTreeMap<ThreadId, usize>;

/// What is going on.
#[derive(Clone, Copy, Default)]
enum Phase {
    /// A mapping is to be put in place: compact first, then the random ones, the best one last.
    #[default]
    Due,
    /// It is there since `since_ns`, and was measured for `measured_ns`.
    Measuring { since_ns: u64, measured_ns: u64, operations: f64, cycles: f64 },
    /// The best one is there.
    Settled,
}

/// What `autopin` remembers from one decision to the next.
#[derive(Default)]
pub struct Trial {
    phase: Phase,
    /// Mappings tried.
    tried: u64,
    /// The best of them, with its IPC.
    best: Option<(f64, Places)>,
    /// The mapping that was asked for last.
    wanted: Places,
}

/// The moves to the next mapping to be tried, or to the best one; empty while one is measured and ever after.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has operations, or none cycles.
pub fn decide(
    snapshot: &Snapshot,
    parameters: &Parameters,
    trial: &mut Trial,
    seed: u64,
) -> Result<Plan, MissingSignal> {
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.is_empty() {
        return Ok(Plan::default());
    }
    let missing = |signal| MissingSignal { policy: "autopin", signal };
    if threads.iter().all(|thread| thread.operations_per_s.is_none()) {
        return Err(missing(Signal::ThreadOperations));
    }
    if threads.iter().all(|thread| thread.cycles_per_s.is_none()) {
        return Err(missing(Signal::ThreadCycles));
    }
    let strangers = threads.iter().filter(|thread| !trial.wanted.contains_key(&thread.id)).count();
    if !trial.wanted.is_empty() && 2 * strangers > threads.len() {
        *trial = Trial::default();
    }
    trial.measure(snapshot, &threads, parameters);
    let cooling = threads.iter().any(|thread| thread.on_cooldown);
    if !matches!(trial.phase, Phase::Due) || cooling {
        return Ok(Plan::default());
    }
    Ok(trial.put_next(snapshot, &threads, parameters, seed))
}

impl Trial {
    /// Adds the interval to what is measured if it began after the warm-up.
    fn measure(&mut self, snapshot: &Snapshot, threads: &[&Thread], parameters: &Parameters) {
        let ns = |name| parameters.get(name) as u64 * 1_000_000;
        let Phase::Measuring { since_ns, measured_ns, operations, cycles } = &mut self.phase else { return };
        if snapshot.time_ns.saturating_sub(snapshot.interval_ns) < *since_ns + ns("warm_up_ms") {
            return;
        }
        *measured_ns += snapshot.interval_ns;
        for thread in threads {
            if let (Some(own_operations), Some(own_cycles)) = (thread.operations_per_s, thread.cycles_per_s)
                && (own_operations + own_cycles).is_finite()
            {
                *operations += own_operations * snapshot.interval_ns as f64;
                *cycles += own_cycles * snapshot.interval_ns as f64;
            }
        }
        if *measured_ns < ns("measure_ms") {
            return;
        }
        let per_cycle = if *cycles > 0.0 { *operations / *cycles } else { 0.0 };
        if self.best.as_ref().is_none_or(|(most, _)| per_cycle > *most) {
            self.best = Some((per_cycle, threads.iter().map(|thread| (thread.id, thread.node.0)).collect()));
        }
        self.phase = Phase::Due;
    }

    /// The moves to the next mapping, or to the best one when all were tried.
    fn put_next(&mut self, snapshot: &Snapshot, threads: &[&Thread], parameters: &Parameters, seed: u64) -> Plan {
        let all = 1 + parameters.get("random_mappings") as u64;
        let (place, reason) = if self.tried == all {
            self.phase = Phase::Settled;
            let (per_cycle, best) = self.best.clone().unwrap_or_default();
            let at = |thread: &&Thread| best.get(&thread.id).copied().filter(|&node| goes(snapshot, thread, node));
            let place: Vec<usize> = threads.iter().map(|thread| at(thread).unwrap_or(thread.node.0)).collect();
            (place, format!("best of {all} mappings tried: {per_cycle:.3} instructions per cycle"))
        } else {
            self.phase = Phase::Measuring { since_ns: snapshot.time_ns, measured_ns: 0, operations: 0.0, cycles: 0.0 };
            self.tried += 1;
            let (name, place) = if self.tried == 1 {
                ("compact", compact::mapping(snapshot, threads))
            } else {
                let mut rng = Pcg64::seed_from_u64(seed.wrapping_add(self.tried));
                ("random", random_mapping(snapshot, threads, &mut rng))
            };
            (place, format!("tries mapping {} of {all}, {name}", self.tried))
        };
        self.wanted = threads.iter().zip(&place).map(|(thread, &node)| (thread.id, node)).collect();
        relocation::plan(snapshot, threads, &place, |_, _| reason.clone())
    }
}

fn goes(snapshot: &Snapshot, thread: &Thread, node: usize) -> bool {
    may_go(snapshot, thread, NodeIndex(node))
}

/// Node by thread: one drawn from those that have room; where there is none, the present one if the thread may run
/// there, else the first that it may run on.
fn random_mapping(snapshot: &Snapshot, threads: &[&Thread], rng: &mut Pcg64) -> Vec<usize> {
    let demands = capacity::demands(snapshot, threads);
    let rooms = capacity::rooms(&snapshot.topology, &demands);
    let mut loads = vec![0; rooms.len()];
    let mut place = |(thread, demand): (&&Thread, &u64)| {
        let allowed = |&node: &usize| goes(snapshot, thread, node);
        let has_room = |&node: &usize| rooms[node].is_free(loads[node]);
        let free: Vec<usize> = (0..rooms.len()).filter(allowed).filter(has_room).collect();
        let here = may_run(snapshot, thread, thread.node).then_some(thread.node.0);
        let chosen = match free[..] {
            [] => here.or_else(|| (0..rooms.len()).find(allowed)).unwrap_or(thread.node.0),
            _ => free[below(rng, free.len())],
        };
        loads[chosen] += demand;
        chosen
    };
    threads.iter().zip(&demands).map(&mut place).collect()
}

#[cfg(test)]
mod tests;
