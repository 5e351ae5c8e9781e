// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `kmaf`: threads that share memory go to one node, or to near ones.
//!
//! Problem: threads that share lines run on different nodes, so that their lines travel between caches of different
//! nodes. Mechanism (kMAF, PACT 2014): sharing events are added up in a matrix by pair of threads; every 100 ms the
//! matrix is mapped onto the hierarchy of nodes, and then aged (M loses a quarter). Parameters: [`PARAMETERS`].
//!
//! The events are what a sampler reports of sharing, in accesses per second; kMAF counts page faults instead. Time is
//! the snapshot's: with longer intervals there is one mapping for each, and the matrix ages by as many periods as
//! have passed. The mapper is [`crate::mapping`] in place of Scotch; a node takes as many threads as it has CPUs,
//! where Scotch would spread threads evenly and split pairs for it. Threads that share nothing stay, unless their
//! place is wanted. `min_gain_percent` is ours: the source does not say what a mapping must gain, and with sampled
//! events some pair always looks a little heavier than before. Whether nobody shares or no sampler tells cannot be
//! known from a snapshot: as long as no sharing was ever seen the signal counts as missing.

use crate::model::Plan;
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Policy, Signal};
use crate::relocation;
use crate::sharing::{Effort, Remapping, SharingHistory};

/// Thread policy `kmaf`.
///
/// Threads that share come together; 1 shares with 3, 2 with 4:
///
/// ```
/// use tandem_policies::{example, kmaf};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&kmaf::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 2 and 3: nodes 0 <-> 1: 2: 100 % of what it shares will be within node 1"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "kmaf",
    kind: Kind::Thread,
    needs: &[Signal::ThreadSharing],
    parameters: PARAMETERS,
    source: "Diener, Cruz, Navaux, Busse, Heiss: kMAF, PACT 2014, thread affinity",
    decide,
    ..Policy::PLAIN
};

/// Parameters of `kmaf`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("period_ms", 100.0, "ms between mappings", 0.0, 1e6),
    Parameter::real("ageing", 0.75, "factor per period", 0.0, 1.0),
    Parameter::real("min_gain_percent", 10.0, "% of the sharing across nodes", 0.0, 100.0),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// What is kept between decisions.
#[derive(Debug, Default)]
struct State {
    history: SharingHistory,
    mapped_ns: Option<u64>,
    /// Periods since the last mapping, without that of the mapping itself, by which the matrix has aged.
    aged_periods: f64,
}

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    let effort = Effort { steps: inputs.steps, seed: inputs.seed };
    let state = inputs.memory.of::<State>();
    let period_ns = parameters.get("period_ms") * 1e6;
    let since_ns = state.mapped_ns.map(|mapped_ns| (snapshot.time_ns - mapped_ns) as f64);
    if let Some(since_ns) = since_ns {
        // One period's ageing came with the mapping itself.
        let passed = if period_ns > 0.0 { (libm::floor(since_ns / period_ns) - 1.0).max(0.0) } else { 0.0 };
        state.history.age(libm::pow(parameters.get("ageing"), passed - state.aged_periods));
        state.aged_periods = passed;
    }
    state.history.add(snapshot);
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.len() < 2 {
        return Ok(Plan::default());
    }
    if state.history.is_empty() && state.mapped_ns.is_none() {
        return Err(MissingSignal { policy: "kmaf", signal: Signal::ThreadSharing });
    }
    if since_ns.is_some_and(|since_ns| since_ns < period_ns) {
        return Ok(Plan::default());
    }
    let sharing = state.history.matrix(&threads);
    let plan = Remapping::new(snapshot, &threads, &sharing, effort).plan(parameters.get("min_gain_percent"));
    (state.mapped_ns, state.aged_periods) = (Some(snapshot.time_ns), 0.0);
    state.history.age(parameters.get("ageing"));
    Ok(plan)
}

#[cfg(test)]
mod tests;
