// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `imar2`: a lottery for lagging threads, with a period that adapts and migrations that are undone.
//!
//! Problem: moves are guesses; some make matters worse. Mechanism (Thanos thesis, Alg. 3.3), every T:
//! 1. P_sys, the sum of P over all threads, is compared with that of T before. Higher: the migrations stay and T is
//!    halved. Below delta_g of it: all migrations of the last T are undone, T is doubled, nothing else. Else both stay.
//! 2. The threads with the lowest P_rel, below delta_r, at most m, may go to every CPU of every other node. Points
//!    ([`crate::score`]): q1 the CPU hosts nobody, q2 flat, q3, and q4 if the partner of an exchange lags as well.
//! 3. Each of these candidates draws a number between 0 and its points; the m highest are carried out.
//!
//! Parameters: [`PARAMETERS`]. P and P_rel: `crate::standing`.
//!
//! A policy cannot change the interval of whoever asks it: between two T it answers with an empty plan. It is asked again
//! if what is left of T is less than half an interval.
//!
//! What the source leaves unclear: Alg. 3.3 line 12 adds q1 twice if S has it; we add it once. P_sys is compared over
//! the threads seen both times (ours: else a thread that ends looks like a bad migration). Noise would halve T for ever;
//! P_sys counts as higher from `hysteresis_percent` on (ours). What is undone are the moves that were made: a thread that
//! is no longer where it was sent stays. One on cooldown goes back when that ends, and nothing else is decided until
//! then.

use std::collections::BTreeMap;

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use crate::board::{Board, Relocation, judged, lottery, planned};
use crate::cimar;
use crate::model::{Plan, Snapshot, Thread, ThreadId};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation::may_run;
use crate::standing::Standing;

/// Thread policy `imar2`.
///
/// A thread that gets much less done than others lags, and draws lots to change places:
///
/// ```
/// use tandem_policies::{example, imar2};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads[0].operations_per_s = Some(1e8);
/// snapshot.threads[0].latency_ns = Some(400.0);
/// let moves = example::decided(&imar2::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: drew "));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "imar2",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses, Signal::ThreadPerformance],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.3, eq. 3.13, 3.14, 3.23",
    decide: |inputs: &mut Inputs| {
        decide(inputs.snapshot, inputs.parameters, inputs.memory.of::<Controller>(), inputs.seed)
    },
    explores: true,
    ..Policy::PLAIN
};

/// Parameters of `imar2`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("threads_per_interval", 5.0, "threads", 1.0, 1024.0),
    Parameter::real("lagging_below", 0.8, "P_rel", 0.0, 10.0),
    Parameter::real("undo_below", 0.9, "share of the P_sys before", 0.0, 1.0),
    Parameter::real("hysteresis_percent", 5.0, "% of the P_sys before", 0.0, 100.0),
    Parameter::whole("period_min_ms", 1000.0, "ms", 1.0, 1e6),
    Parameter::whole("period_max_ms", 4000.0, "ms, the least period if below it", 1.0, 1e6),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// What `imar2` remembers from one decision to the next.
#[derive(Default)]
pub struct Controller {
    /// T; `None` before the first decision.
    period_ns: Option<u64>,
    /// When the last T ended.
    acted_ns: u64,
    /// P by thread at that time.
    performance: BTreeMap<ThreadId, f64>,
    /// Migrations planned then: one thread, or two that changed places.
    migrations: Vec<Vec<Relocation>>,
    /// Migrations still to be undone.
    to_undo: Vec<Vec<Relocation>>,
}

/// What P_sys says about the last T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Rose,
    Same,
    Fell,
}

/// The winners of a lottery, or the undoing of the last one's; empty while T has not passed.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`, or none a performance.
pub fn decide(
    snapshot: &Snapshot,
    parameters: &Parameters,
    controller: &mut Controller,
    seed: u64,
) -> Result<Plan, MissingSignal> {
    if !controller.to_undo.is_empty() {
        return Ok(controller.undo(snapshot));
    }
    if !controller.is_due(snapshot) {
        return Ok(Plan::default());
    }
    let Some((threads, standing)) = judged("imar2", snapshot, parameters.get("min_cpu_percent"))? else {
        return Ok(Plan::default());
    };
    let performance: BTreeMap<ThreadId, f64> =
        threads.iter().enumerate().filter_map(|(at, thread)| Some((thread.id, standing.performance(at)?))).collect();
    let verdict = verdict(&controller.performance, &performance, parameters);
    controller.performance = performance;
    controller.adapt(verdict, parameters);
    controller.acted_ns = snapshot.time_ns;
    let last = std::mem::take(&mut controller.migrations);
    if verdict == Verdict::Fell {
        controller.to_undo = last;
        return Ok(controller.undo(snapshot));
    }
    let (plan, migrations) = draw(snapshot, threads, &standing, parameters, seed);
    controller.migrations = migrations;
    Ok(plan)
}

/// Compares P_sys over the threads known both times.
fn verdict(before: &BTreeMap<ThreadId, f64>, now: &BTreeMap<ThreadId, f64>, parameters: &Parameters) -> Verdict {
    let both = before.iter().filter_map(|(id, then)| Some((then, now.get(id)?)));
    let (then, now) = both.fold((0.0, 0.0), |(a, b), (then, now)| (a + then, b + now));
    if now < parameters.get("undo_below") * then {
        Verdict::Fell
    } else if now > (1.0 + parameters.get("hysteresis_percent") / 100.0) * then {
        Verdict::Rose
    } else {
        Verdict::Same
    }
}

impl Controller {
    /// Whether T has passed, give or take half an interval.
    fn is_due(&self, snapshot: &Snapshot) -> bool {
        let passed_ns = snapshot.time_ns.saturating_sub(self.acted_ns).saturating_add(snapshot.interval_ns / 2);
        self.period_ns.is_none_or(|period_ns| passed_ns >= period_ns)
    }

    fn adapt(&mut self, verdict: Verdict, parameters: &Parameters) {
        let least_ns = parameters.get("period_min_ms") as u64 * 1_000_000;
        let most_ns = (parameters.get("period_max_ms") as u64 * 1_000_000).max(least_ns);
        let period_ns = self.period_ns.unwrap_or(least_ns);
        let next_ns = match verdict {
            Verdict::Rose => period_ns / 2,
            Verdict::Same => period_ns,
            Verdict::Fell => period_ns * 2,
        };
        self.period_ns = Some(next_ns.clamp(least_ns, most_ns));
    }

    /// The undoing of what can be undone now; what is on cooldown stays for later.
    fn undo(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::default();
        let mut later = Vec::new();
        for relocated in std::mem::take(&mut self.to_undo) {
            let is_where_sent = |thread: &Thread, one: &Relocation| {
                thread.node == one.to.node && may_run(snapshot, thread, one.from.node)
            };
            let back: Vec<Relocation> = relocated
                .iter()
                .filter(|one| snapshot.thread(one.thread).is_some_and(|thread| is_where_sent(thread, one)))
                .map(|one| Relocation { from: one.to, to: one.from, ..*one })
                .collect();
            if back.iter().any(|one| snapshot.thread(one.thread).is_some_and(|thread| thread.on_cooldown)) {
                later.push(relocated);
            } else {
                plan.moves.extend(planned(snapshot, &back, "undone, P_sys fell"));
            }
        }
        self.to_undo = later;
        plan
    }
}

/// The winners, and what goes where by that.
fn draw(
    snapshot: &Snapshot,
    threads: Vec<&Thread>,
    standing: &Standing,
    parameters: &Parameters,
    seed: u64,
) -> (Plan, Vec<Vec<Relocation>>) {
    let (most, limit) = (parameters.get("threads_per_interval") as usize, parameters.get("lagging_below"));
    let board = Board::of_cpus(snapshot, threads, |thread| thread.accesses_per_s.is_some(), cimar::worth);
    let mut board = board.with_lagging(|thread| standing.lags(thread, limit));
    let mut candidates = Vec::new();
    for thread in standing.lagging(limit).into_iter().filter(|&thread| board.is_movable(thread)).take(most) {
        board.candidates(thread, &mut candidates);
    }
    let (mut plan, mut migrations) = (Plan::default(), Vec::new());
    for (drawn, candidate) in lottery(candidates, &mut Pcg64::seed_from_u64(seed)) {
        let relative = standing.relative(candidate.thread).unwrap_or(f64::NAN);
        let why = format!("drew {drawn:.1} of {:.1} points, P_rel {relative:.2} here", candidate.points);
        if let Some((moves, relocated)) = board.take(&candidate, &why) {
            plan.moves.extend(moves);
            migrations.push(relocated);
        }
    }
    (plan, migrations)
}

#[cfg(test)]
mod tests;
