// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `sam`: sharing-aware mapping from counters that say how much threads share, not with whom.
//!
//! Problem: threads that share lines run on different nodes; bringing them together displaces others, which then are
//! far from their memory or crowd one node's memory. Mechanism (SAM, ATC 2015), in this order at each decision:
//! 0. a move of an earlier decision is validated: the transfers within the node must have risen and those across nodes
//!    fallen, or it is undone;
//! 1. threads with transfers across nodes above a threshold are brought to one node, as far as they fit: to a free
//!    slot, else for a CPU-bound thread, else reluctantly for a memory-bound one, whose origin is remembered; never for
//!    a thread with many transfers within its node, which is with its group;
//! 2. threads that were moved reluctantly and access memory elsewhere return to their origin;
//! 3. memory-bound threads leave nodes above the bandwidth threshold for nodes below it.
//!
//! Rates are normalised by unhalted cycles; where those are not counted, by CPU time at `clock_ghz`. Lines from memory
//! and from remote memory are those that were counted, else accesses as sampled. Without either, every thread that
//! shares little counts as CPU-bound, and 2 and 3 do nothing.
//! Parameters: [`PARAMETERS`].
//!
//! Ours, where the source is unclear: sharers of one other node at a time are brought in, all of them or none, and a
//! node takes threads as long as it has room ([`crate::capacity`]). A thread is memory-bound above its CPU's even
//! share of the bandwidth threshold. A rise is `min_rise_percent` of what was transferred across nodes before. What
//! was undone is not tried again for `retry_s`. A returning thread displaces a memory-bound one only if both together
//! then access less remote memory, else the two would change places for ever. Once above the threshold, a node's
//! memory-bound threads are spread until that evens nothing any more.

mod pass;

use std::collections::BTreeMap;

use crate::model::{NodeIndex, Plan, ThreadId};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Policy, Signal};
use crate::relocation;
use pass::Pass;

/// Thread policy `sam`.
///
/// Threads that get many lines from another node come together:
///
/// ```
/// use tandem_policies::model::{PerNode, Transfers};
/// use tandem_policies::{example, sam};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads.retain(|thread| thread.id.tid % 2 == 1);
/// for thread in &mut snapshot.threads {
///     thread.transfers_per_s = Some(Transfers { within_node: 0.0, across_nodes: 5e6 });
///     thread.accesses_per_s = Some(PerNode::filled(2, 0.0));
/// }
/// let moves = example::decided(&sam::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 3: node 1 -> 0: 2.50 lines per 1000 cycles come from other nodes' caches"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "sam",
    kind: Kind::Thread,
    needs: &[Signal::ThreadTransfers],
    parameters: PARAMETERS,
    source: "Srikanthan, Dwarkadas, Shen: Data Sharing or Resource Contention, USENIX ATC 2015",
    decide,
    ..Policy::PLAIN
};

/// Parameters of `sam`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("coherence_per_cycle", 2.5e-4, "lines per cycle", 0.0, 1.0),
    Parameter::real("remote_per_cycle", 2.5e-4, "accesses per cycle", 0.0, 1.0),
    Parameter::real("bandwidth_per_s", 75e6, "accesses per second and node", 0.0, 1e12),
    Parameter::real("clock_ghz", 2.2, "GHz, where cycles are not counted", 0.1, 100.0),
    Parameter::real("min_rise_percent", 10.0, "% of the transfers across nodes before", 0.0, 100.0),
    Parameter::real("retry_s", 10.0, "s", 0.0, 1e6),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
];

/// A move whose effect is still to be seen.
#[derive(Clone, Debug)]
struct Trial {
    from: NodeIndex,
    to: NodeIndex,
    /// Who went the other way.
    displaced: Option<ThreadId>,
    /// Transfers within the node and across nodes before, in lines per cycle.
    within: f64,
    across: f64,
}

/// What is kept between decisions.
#[derive(Debug, Default)]
struct State {
    /// Nodes that threads were moved from reluctantly.
    origins: BTreeMap<ThreadId, NodeIndex>,
    trials: BTreeMap<ThreadId, Trial>,
    /// Moves that were undone, and until when they are not tried again.
    refused: BTreeMap<(ThreadId, NodeIndex), u64>,
}

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    let threads = relocation::busy(snapshot, parameters.get("min_cpu_percent"));
    if threads.is_empty() {
        return Ok(Plan::default());
    }
    if threads.iter().all(|thread| thread.transfers_per_s.is_none()) {
        return Err(MissingSignal { policy: "sam", signal: Signal::ThreadTransfers });
    }
    let state = inputs.memory.of::<State>();
    let nodes = snapshot.topology.len();
    let there = |id: ThreadId, node: NodeIndex| node.0 < nodes && snapshot.thread(id).is_some();
    state.origins.retain(|&id, &mut node| there(id, node));
    state.trials.retain(|&id, trial| there(id, trial.from) && snapshot.thread(id).is_some_and(|t| t.node == trial.to));
    state.refused.retain(|&(id, node), &mut until_ns| there(id, node) && snapshot.time_ns < until_ns);
    let mut pass = Pass::new(snapshot, parameters, threads, state);
    pass.validate();
    pass.gather_sharers();
    pass.return_to_origins();
    pass.balance_bandwidth();
    Ok(Plan { moves: pass.moves })
}

#[cfg(test)]
mod tests;
