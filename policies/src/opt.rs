// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `opt`: one mapping of the sharing matrix for each phase of a program.
//!
//! Problem: mapping threads again and again costs more than it brings while a program goes on sharing as it did.
//! Mechanism (OPT, Performance Evaluation 2015): C_H, how unevenly the threads share, is taken of every slice. A phase
//! starts when its mean over the last n slices differs from that over the n before by at least `min_change`. Threads
//! migrate only if all five hold: 1. the phase changed; 2. C_H of the new phase is above `min_heterogeneity`; 3. the
//! last migration was `min_between_s` ago; 4. there are more than `min_events_per_s` sharing events per second; 5. the
//! mapping differs from the present one. Parameters: [`PARAMETERS`].
//!
//! A slice is a snapshot, 10 ms in the source; n is as many as fill `window_ms`, at least one. When a phase starts is in
//! [`crate::phases`]. Ours, where the source is unclear: a change is seen while the window still holds slices of the
//! phase before, so that C_H and the matrix are taken n slices later, of the new phase alone. A change
//! stays due until conditions 2 to 4 hold. "Differs" is `min_gain_percent` less sharing across nodes; 0 is the source.
//! The diagonal is left out of C_H ([`Diagonal`]): counted, pairs and all-to-all have the same C_H, and the source's
//! own example of a phase would go unseen.
//!
//! Blind spots of the source, kept: C_H does not change when only *which* threads share changes, so that a program
//! whose threads pair up anew is never mapped again; and `min_heterogeneity` = 100 rejects threads that share in pure
//! pairs when there are more than 98 of them.

use crate::model::{Plan, Snapshot};
use crate::phases::{PhaseWatch, Start};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation;
use crate::sharing::{Diagonal, Effort, Remapping, SharingHistory, SharingMatrix};

/// Thread policy `opt`.
///
/// Threads that share come together when a phase begins; 1 shares with 3, 2 with 4:
///
/// ```
/// use tandem_policies::{example, opt};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&opt::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 2 and 3: nodes 0 <-> 1: phase 1 (C_H 1667)"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "opt",
    kind: Kind::Thread,
    needs: &[Signal::ThreadSharing],
    parameters: PARAMETERS,
    source: "Diener, Cruz, Pilla, Dupros, Navaux: Characterizing Communication and Page Usage, Perf. Eval. 2015",
    decide,
    ..Policy::PLAIN
};

/// Parameters of `opt`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("window_ms", 500.0, "ms of slices compared", 0.0, 1e6),
    Parameter::real("min_change", 0.2, "share of C_H", 0.0, 1e6),
    Parameter::real("min_heterogeneity", 100.0, "C_H", 0.0, 1e4),
    Parameter::real("min_between_s", 1.0, "s between migrations", 0.0, 1e6),
    Parameter::real("min_events_per_s", 150.0, "events per second", 0.0, 1e12),
    Parameter::real("min_gain_percent", 10.0, "% of the sharing across nodes", 0.0, 100.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// Slices of a window, whatever the interval.
const MOST_SLICES: f64 = 10_000.0;

/// A time in which C_H stays about the same.
#[derive(Debug)]
struct Phase {
    /// Counted from 1.
    number: u64,
    /// Slices since it was noticed.
    slices: usize,
    /// Threads were mapped for it.
    mapped: bool,
}

/// What is kept between decisions.
#[derive(Debug, Default)]
struct State {
    /// C_H of the latest slices.
    heterogeneity: PhaseWatch,
    phase: Option<Phase>,
    /// Sharing in this phase.
    history: SharingHistory,
    migrated_ns: Option<u64>,
    shared_once: bool,
}

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    let effort = Effort { steps: inputs.steps, seed: inputs.seed };
    let state = inputs.memory.of::<State>();
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.len() < 2 {
        return Ok(Plan::default());
    }
    let seen = SharingMatrix::seen(&threads);
    state.shared_once |= !seen.is_zero();
    if !state.shared_once {
        return Err(MissingSignal { policy: "opt", signal: Signal::ThreadSharing });
    }
    let window = window_slices(snapshot, parameters.get("window_ms"));
    state.watch(snapshot, seen.communication_heterogeneity(Diagonal::LeftOut), window, parameters.get("min_change"));
    let Some(heterogeneity) = state.due(snapshot, window, parameters) else { return Ok(Plan::default()) };
    let sharing = state.history.matrix(&threads);
    let events: f64 = sharing.pairs().map(|pair| pair.2).sum();
    if events <= parameters.get("min_events_per_s") * state.history.observed_s() {
        return Ok(Plan::default());
    }
    let mut plan = Remapping::new(snapshot, &threads, &sharing, effort).plan(parameters.get("min_gain_percent"));
    let phase = state.phase.as_mut().expect("a mapping is due in a phase");
    // A thread on cooldown may be what the mapping waits for.
    phase.mapped = !plan.is_empty() || threads.iter().all(|thread| !thread.on_cooldown);
    if !plan.is_empty() {
        state.migrated_ns = Some(snapshot.time_ns);
    }
    for planned in &mut plan.moves {
        planned.reason = format!("phase {} (C_H {heterogeneity:.0}): {}", phase.number, planned.reason);
    }
    Ok(plan)
}

/// n: slices that fill a window.
fn window_slices(snapshot: &Snapshot, window_ms: f64) -> usize {
    let slices = window_ms * 1e6 / snapshot.interval_ns.max(1) as f64;
    libm::round(slices).clamp(1.0, MOST_SLICES) as usize
}

impl State {
    /// One more slice of `window` slices a window: whether a phase starts with it.
    fn watch(&mut self, snapshot: &Snapshot, heterogeneity: f64, window: usize, min_change: f64) {
        let start = self.heterogeneity.add(heterogeneity, window, min_change);
        if start != Start::Nothing {
            let number = self.phase.as_ref().map_or(1, |phase| phase.number + 1);
            // The first phase has been there all the time.
            let slices = if start == Start::First { window } else { 1 };
            if start == Start::Change {
                self.history = SharingHistory::default();
            }
            self.phase = Some(Phase { number, slices, mapped: false });
        } else if let Some(phase) = &mut self.phase {
            phase.slices = phase.slices.saturating_add(1);
        }
        self.history.add(snapshot);
    }

    /// C_H of the phase if conditions 1 to 3 hold.
    fn due(&self, snapshot: &Snapshot, window: usize, parameters: &Parameters) -> Option<f64> {
        self.phase.as_ref().filter(|phase| !phase.mapped && phase.slices >= window)?;
        let heterogeneity = self.heterogeneity.mean(window);
        let between_ns = parameters.get("min_between_s") * 1e9;
        let rested = |migrated_ns| (snapshot.time_ns - migrated_ns) as f64 >= between_ns;
        let due = heterogeneity > parameters.get("min_heterogeneity") && self.migrated_ns.is_none_or(rested);
        due.then_some(heterogeneity)
    }
}

#[cfg(test)]
mod tests;
