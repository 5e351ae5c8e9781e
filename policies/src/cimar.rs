// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `cimar`: lagging threads to better CPUs, as far as that scores more than now.
//!
//! Problem: some threads of a process fall behind because they run far from their memory. Mechanism (Thanos thesis,
//! Alg. 3.4): candidates are the threads with the lowest P_rel, below delta_r, at most m; each may go to every CPU of every
//! other node, free or in exchange with a resident. Points ([`crate::score`]): q1 the CPU hosts nobody, q2 flat, q3, and q4
//! if the partner lags as well. What scores no more than the present state is dropped (eq. 3.15, 3.16); the m candidates
//! with the most points are carried out. Parameters: [`PARAMETERS`]. P_rel: `crate::standing`.
//!
//! What the source leaves unclear: whether q4 counts in eq. 3.16; it must not, or two lagging threads that want the
//! same place change for ever. For the same reason a move is dropped whose way back would score more as well: q3 is judged
//! from where a thread is, and 4/2/1 favours the journey. The present CPU counts as free for the thread that has it
//! alone. A change that earlier ones of the same plan make worthless is dropped.

use crate::board::{Board, Candidate, judged};
use crate::model::{NodeIndex, Plan, Snapshot, Thread, Topology};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::score;
use crate::standing::Standing;

/// Thread policy `cimar`.
///
/// A thread that gets much less done than others lags, and changes places:
///
/// ```
/// use tandem_policies::{cimar, example};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads[0].operations_per_s = Some(1e8);
/// snapshot.threads[0].latency_ns = Some(400.0);
/// let moves = example::decided(&cimar::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 1 and 3: nodes 0 <-> 1: 12.0 points there"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "cimar",
    kind: Kind::Thread,
    needs: &[Signal::ThreadAccesses, Signal::ThreadPerformance],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.4, eq. 3.13 to 3.16",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters),
    ..Policy::PLAIN
};

/// Parameters of `cimar`; `nimar` has the same.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("threads_per_interval", 5.0, "threads", 1.0, 1024.0),
    Parameter::real("lagging_below", 0.8, "P_rel", 0.0, 10.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Moves and exchanges of lagging threads that score more than the present state; empty if none does.
///
/// # Errors
/// [`MissingSignal`] if no busy thread has `accesses_per_s`, or none a performance.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Result<Plan, MissingSignal> {
    let Some((threads, standing)) = judged("cimar", snapshot, parameters.get("min_cpu_percent"))? else {
        return Ok(Plan::default());
    };
    let board = Board::of_cpus(snapshot, threads, |thread| thread.accesses_per_s.is_some(), worth);
    Ok(best(board, &standing, parameters))
}

/// Points of a thread on a CPU of `node` but for q1 and q4.
pub(crate) fn worth(_: &Topology, thread: &Thread, present: NodeIndex, node: NodeIndex) -> f64 {
    score::preferred_flat(thread, node) + score::remembered_from(thread, present, node)
}

/// The most valued moves and exchanges of `board` that score more than the present state.
pub(crate) fn best(board: Board, standing: &Standing, parameters: &Parameters) -> Plan {
    let (most, limit) = (parameters.get("threads_per_interval") as usize, parameters.get("lagging_below"));
    let mut board = board.with_lagging(|thread| standing.lags(thread, limit));
    let mut candidates: Vec<Candidate> = Vec::new();
    for thread in standing.lagging(limit).into_iter().filter(|&thread| board.is_movable(thread)).take(most) {
        board.candidates(thread, &mut candidates);
    }
    candidates.sort_by(|a, b| b.points.total_cmp(&a.points));
    let mut plan = Plan::default();
    for candidate in candidates {
        if board.gains(&candidate) {
            let relative = standing.relative(candidate.thread).unwrap_or(f64::NAN);
            let why = format!("{:.1} points there, P_rel {relative:.2} here", candidate.points);
            plan.moves.extend(board.take(&candidate, &why).into_iter().flat_map(|(moves, _)| moves));
        }
    }
    plan
}

#[cfg(test)]
mod tests;
