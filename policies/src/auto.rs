// SPDX-License-Identifier: GPL-2.0-only
//! Joint policy `auto`: takes the pair of a thread and a page policy that brought most, of those whose signals there are.
//!
//! Problem: which policies suit depends on the program, the machine and what the sampler can see. Mechanism:
//! 1. A pair of [`PAIRS`] is open once every signal that both need was seen. The first open one is at work.
//! 2. It is judged when it rests: `rest_decisions` times in a row it had no plan while memory was accessed and nothing was on
//!    cooldown; or after `most_decisions`. Its result is the mean latency of an access over those decisions.
//! 3. If that is within `near_percent` of what it would be with all memory local, there is nothing to win: it stays.
//! 4. Else the next open pair goes on from there. When all were tried the one with the lowest latency stays, the earlier one
//!    unless a later one is lower by more than `min_gain_percent`.
//! 5. When under the one that stays the latency is `reopen_percent` above its result for `rest_decisions` in a row, or a
//!    pair opens, everything is tried anew.
//!
//! The latency is that which threads measured, if all with accesses did; else what the topology says of where they ran and
//! where their memory is ([`crate::stall`]). Without either there is no result, and the pair stays until there is one. As everywhere
//! threads come first, and pages only when there is no thread to move. Parameters: [`PARAMETERS`].

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Plan, Snapshot, Unmovable};
use crate::registry::{Inputs, Kind, Memory, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::stall::{self, is_worth_a_trial};
use crate::{kmaf, kmaf_pages, lmma, locality, nimar, sam, sma, tmma};

/// Joint policy `auto`.
///
/// It asks the first pair of policies that the signals are enough for:
///
/// ```
/// use tandem_policies::{auto, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&auto::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: sma+tmma (the first of 4 with signals)"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "auto",
    kind: Kind::Joint,
    needs: &[Signal::GroupResidency],
    needs_one_of: &[
        &[Signal::ThreadAccesses, Signal::GroupAccesses],
        &[Signal::ThreadAccesses, Signal::ThreadPerformance, Signal::GroupAccesses, Signal::GroupLatency],
        &[Signal::ThreadSharing, Signal::GroupAccesses],
        &[Signal::ThreadTransfers, Signal::GroupUsers],
    ],
    parameters: PARAMETERS,
    source: "ours; the pairs are those of the papers",
    decide,
    statement: |memory| memory.peek::<State>().map(|state| state.statement.clone()),
    ..Policy::PLAIN
};

/// Parameters of `auto`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("rest_decisions", 3.0, "decisions", 1.0, 1000.0),
    Parameter::whole("most_decisions", 60.0, "decisions of one pair", 1.0, 1e6),
    Parameter::real("near_percent", 2.0, "% above all memory local", 0.0, 1000.0),
    Parameter::real("min_gain_percent", 2.0, "% of the latency", 0.0, 100.0),
    Parameter::real("reopen_percent", 20.0, "% of the latency", 0.0, 1e6),
];

/// A thread and a page policy that are asked together, with their defaults.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Asked first.
    pub threads: &'static Policy,
    /// Asked when there is no thread to move.
    pub pages: &'static Policy,
}

/// The pairs, in the order in which they are tried: those that look at memory, which won most in the papers, then those
/// that look at sharing.
pub static PAIRS: [Pair; 4] = [
    Pair { threads: &sma::POLICY, pages: &tmma::POLICY },
    Pair { threads: &nimar::POLICY, pages: &lmma::POLICY },
    Pair { threads: &kmaf::POLICY, pages: &kmaf_pages::POLICY },
    Pair { threads: &sam::POLICY, pages: &locality::POLICY },
];

impl Pair {
    fn name(self) -> String {
        format!("{}+{}", self.threads.name, self.pages.name)
    }

    fn needs(self) -> impl Iterator<Item = Signal> {
        self.threads.needs.iter().chain(self.pages.needs).copied()
    }

    /// What both say; a policy without its signal says nothing. `memories` are those of the threads' and the pages' one.
    fn ask(self, inputs: &Inputs, memories: &mut [Memory; 2]) -> Plan {
        let snapshot = inputs.snapshot;
        for (policy, memory) in [self.threads, self.pages].into_iter().zip(memories) {
            let (parameters, seed, steps) = (&policy.defaults(), inputs.seed, inputs.steps);
            let answer = policy.decide(&mut Inputs { snapshot, parameters, memory, seed, steps });
            if let Ok(plan) = answer
                && !plan.is_empty()
                && is_worth_a_trial(&plan, snapshot)
            {
                return plan;
            }
        }
        Plan::default()
    }
}

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// One of the pairs is tried.
    Trying { decisions: u64 },
    /// One stays, with its result; how often in a row it was worse since.
    Staying { latency_ns: Option<f64>, worse: u64 },
}

/// What is kept between decisions. Pairs are positions in [`PAIRS`].
#[derive(Debug)]
struct State {
    seen: BTreeSet<Signal>,
    stage: Stage,
    pair: usize,
    /// Latencies of the decisions in which it rested, the last in a row.
    resting_ns: Vec<f64>,
    /// Pairs that were judged, with their latencies.
    results: Vec<(usize, f64)>,
    memories: BTreeMap<usize, [Memory; 2]>,
    /// Why this pair, in words.
    why: String,
    statement: String,
}

impl Default for State {
    fn default() -> Self {
        Self {
            seen: BTreeSet::new(),
            stage: Stage::Trying { decisions: 0 },
            pair: 0,
            resting_ns: Vec::new(),
            results: Vec::new(),
            memories: BTreeMap::new(),
            why: String::new(),
            statement: "nothing is taken yet: no pair has its signals".to_owned(),
        }
    }
}

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    // Taken out so that the pair can be asked with the same inputs.
    let mut state = std::mem::take(inputs.memory.of::<State>());
    state.see(snapshot);
    let first = state.open().next();
    let answer = match first {
        None => Err(MissingSignal { policy: "auto", signal: state.first_missing() }),
        Some(_) => {
            let pair = state.pair;
            let memories = state.memories.entry(pair).or_default();
            let mut plan = PAIRS[pair].ask(inputs, memories);
            let who = format!("{} ({}): ", PAIRS[pair].name(), state.why);
            plan.moves.iter_mut().for_each(|planned| planned.reason.insert_str(0, &who));
            state.judge(snapshot, plan.is_empty(), parameters);
            Ok(plan)
        }
    };
    *inputs.memory.of::<State>() = state;
    answer
}

impl State {
    /// Pairs all of whose signals were seen.
    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..PAIRS.len()).filter(|&at| PAIRS[at].needs().all(|signal| self.seen.contains(&signal)))
    }

    /// The first signal that the first pair lacks, as long as no pair is open.
    fn first_missing(&self) -> Signal {
        PAIRS[0].needs().find(|signal| !self.seen.contains(signal)).unwrap_or(Signal::ThreadAccesses)
    }

    /// Notes the signals that there are; a pair that opens begins everything anew.
    fn see(&mut self, snapshot: &Snapshot) {
        let before = self.open().count();
        let missing: BTreeSet<Signal> =
            PAIRS.iter().flat_map(|pair| pair.needs()).filter(|signal| !self.seen.contains(signal)).collect();
        self.seen.extend(missing.into_iter().filter(|signal| signal.is_in(snapshot)));
        let open = self.open().count();
        if open > before {
            self.begin(format!("the first of {open} with signals"));
        }
    }

    /// Tries all pairs from the first.
    fn begin(&mut self, why: String) {
        self.results.clear();
        let first = self.open().next();
        if let Some(first) = first {
            self.take(first, Stage::Trying { decisions: 0 }, why);
        }
    }

    fn take(&mut self, pair: usize, stage: Stage, why: String) {
        let verb = if matches!(stage, Stage::Trying { .. }) { "tries" } else { "stays with" };
        self.statement = format!("{verb} {}: {why}", PAIRS[pair].name());
        (self.pair, self.stage, self.why) = (pair, stage, why);
        self.resting_ns.clear();
    }

    /// What follows from one more decision, in which the pair had no plan if it `rests`.
    fn judge(&mut self, snapshot: &Snapshot, rests: bool, parameters: &Parameters) {
        let latency_ns = latency_ns(snapshot);
        let rest = parameters.get("rest_decisions") as u64;
        match &mut self.stage {
            Stage::Trying { decisions } => {
                *decisions += 1;
                let is_over = *decisions >= parameters.get("most_decisions") as u64;
                if !rests {
                    self.resting_ns.clear();
                } else if !is_cooling(snapshot) {
                    self.resting_ns.extend(latency_ns);
                }
                if is_over || self.resting_ns.len() as u64 >= rest {
                    self.conclude(snapshot, latency_ns, parameters);
                }
            }
            Stage::Staying { latency_ns: Some(result_ns), worse } => {
                let limit_ns = *result_ns * (1.0 + parameters.get("reopen_percent") / 100.0);
                let is_worse = latency_ns.is_some_and(|now_ns| now_ns > limit_ns);
                *worse = if is_worse { *worse + 1 } else { 0 };
                if *worse >= rest {
                    let (was_ns, now_ns) = (*result_ns, latency_ns.unwrap_or(*result_ns));
                    self.begin(format!(
                        "an access takes {now_ns:.0} ns, {was_ns:.0} ns when {} was taken",
                        PAIRS[self.pair].name()
                    ));
                }
            }
            Stage::Staying { latency_ns: None, .. } => {
                if latency_ns.is_some() {
                    self.begin("memory is accessed now".to_owned());
                }
            }
        }
    }

    /// The pair was tried: the next one, or the best.
    fn conclude(&mut self, snapshot: &Snapshot, now_ns: Option<f64>, parameters: &Parameters) {
        let known = &self.resting_ns;
        let mean_ns = if known.is_empty() { now_ns } else { Some(known.iter().sum::<f64>() / known.len() as f64) };
        let stay = |latency_ns| Stage::Staying { latency_ns, worse: 0 };
        let Some(result_ns) = mean_ns else {
            return self.take(self.pair, stay(None), "nothing tells how long an access takes".to_owned());
        };
        self.results.push((self.pair, result_ns));
        let near = 1.0 + parameters.get("near_percent") / 100.0;
        if let Some(local_ns) = local_ns(snapshot).filter(|local_ns| result_ns <= local_ns * near) {
            let why = format!("an access takes {result_ns:.0} ns, {local_ns:.0} ns if all were local");
            return self.take(self.pair, stay(Some(result_ns)), why);
        }
        let next = self.open().find(|at| self.results.iter().all(|tried| tried.0 != *at));
        if let Some(next) = next {
            let why = format!("an access took {result_ns:.0} ns under {}", PAIRS[self.pair].name());
            return self.take(next, Stage::Trying { decisions: 0 }, why);
        }
        let least = 1.0 - parameters.get("min_gain_percent") / 100.0;
        let better = |best: (usize, f64), next: (usize, f64)| if next.1 < best.1 * least { next } else { best };
        let (best, best_ns) = self.results.iter().copied().reduce(better).unwrap_or((self.pair, result_ns));
        let why = format!("{best_ns:.0} ns an access, the least of {} tried", self.results.len());
        self.take(best, stay(Some(best_ns)), why);
    }
}

/// Whether something was moved so recently that a policy may want to move it and cannot.
fn is_cooling(snapshot: &Snapshot) -> bool {
    let pages = snapshot.groups.iter().any(|group| group.unmovable == Some(Unmovable::Cooldown));
    pages || snapshot.threads.iter().any(|thread| thread.on_cooldown)
}

/// Mean latency of an access, as measured if every thread that accesses memory did; `None` without accesses.
fn latency_ns(snapshot: &Snapshot) -> Option<f64> {
    let (mut accesses, mut stall_ns) = (0.0, Some(0.0));
    for thread in &snapshot.threads {
        let own = thread.accesses_per_s.as_ref().map_or(0.0, |row| row.total());
        if own > 0.0 {
            accesses += own;
            stall_ns = stall_ns.zip(thread.latency_ns).map(|(sum, latency_ns)| sum + own * latency_ns);
        }
    }
    let measured_ns = stall_ns.filter(|_| accesses > 0.0).map(|stall_ns| stall_ns / accesses);
    let sound = |latency_ns: &f64| latency_ns.is_finite() && *latency_ns > 0.0;
    measured_ns.filter(sound).or_else(|| stall::latency_ns(snapshot).filter(sound))
}

/// The same if every access were to the memory of the thread's node, by the topology; `None` without accesses.
fn local_ns(snapshot: &Snapshot) -> Option<f64> {
    let (mut accesses, mut stall_ns) = (0.0, 0.0);
    for thread in &snapshot.threads {
        let own = thread.accesses_per_s.as_ref().map_or(0.0, |row| row.total());
        accesses += own;
        stall_ns += own * snapshot.topology.latency_ns(thread.node, thread.node);
    }
    Some(stall_ns / accesses).filter(|latency_ns| latency_ns.is_finite())
}

#[cfg(test)]
mod tests;
