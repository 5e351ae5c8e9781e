// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `tmma`: threshold migration of page groups to the node that accesses them.
//!
//! Problem: pages are on a node other than the threads that access them. Mechanism (Thanos thesis,
//! Alg. 3.9): a group goes to its preferred node (most accesses, by accessor) if it is not there
//! already and r_pref (eq. 3.30) exceeds delta = min(2/3, 2/N) (eq. 3.31), N nodes with memory; up to
//! 8 following contiguous groups go along while theirs is the same or unknown. Parameters: [`PARAMETERS`].
//!
//! Our unit is the page group (2 MiB) where the thesis has a 4 KiB page. Where the source is unclear:
//! Alg. 3.9 appends the list only when the preload breaks off; we append after the loop as well. Unknown
//! is a group without samples: one sample from elsewhere already disagrees. A group that may not move,
//! or is there already, is passed over without ending the preload. Our judgement: `min_samples` (a few
//! samples a second reach a 2 MiB group, and they age), `home_share`, `reserve_percent`; and `min_gain_percent`, which
//! the thesis has not: a group that two nodes use alike is above delta now for one and now for the other, and would
//! go back and forth for nothing.

use crate::model::{Plan, Snapshot};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Parameter, Parameters, Policy, Signal};

/// Page policy `tmma`.
///
/// Each group goes to the node that accesses it, and takes its neighbour along:
///
/// ```
/// use tandem_policies::{example, tmma};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&tmma::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: 100 % of its accesses come from node 0"));
/// assert!(moves[1].starts_with("pages at 0x400000 of process 1 (2048 KiB) -> node 0: follows 0x200000"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "tmma",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Laso Rodriguez, PhD thesis, USC, 2023: Alg. 3.9, eq. 3.30, 3.31",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters)),
    ..Policy::PLAIN
};

/// Parameters of `tmma`.
pub const PARAMETERS: &[Parameter] = &[
    page_moves::PRELOAD_GROUPS,
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
    page_moves::MIN_GAIN_PERCENT,
];

/// delta (eq. 3.31): the share of accesses above which a group goes to its preferred node.
pub fn threshold(nodes_with_memory: usize) -> f64 {
    (2.0f64 / 3.0).min(2.0 / nodes_with_memory as f64)
}

/// Moves of page groups towards their accessors; empty if nothing pays.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters) -> Plan {
    let mut moves = PageMoves::new(snapshot, parameters);
    let threshold = threshold(page_moves::memory_nodes(&snapshot.topology, 0.0).len());
    let min_samples = parameters.get("min_samples");
    let mut at = 0;
    while at < snapshot.groups.len() {
        at = examine(&mut moves, at, threshold, min_samples);
    }
    moves.plan()
}

/// Examines the group at `at` and its preload; the next group to examine.
fn examine(moves: &mut PageMoves, at: usize, threshold: f64, min_samples: f64) -> usize {
    let group = &moves.snapshot.groups[at];
    let Some(accessor) = group.accesses_per_s.argmax() else { return at + 1 };
    let Some(to) = moves.destination(accessor) else { return at + 1 };
    let share = group.accesses_per_s[accessor] / group.accesses_per_s.total();
    let enough = group.samples >= min_samples && share > threshold;
    if !enough || !moves.is_away(group, to) {
        return at + 1;
    }
    let goes = moves.send_if_it_pays(group, to, |moves| moves.reason(group, accessor));
    if goes { moves.preload(at, to) } else { at + 1 }
}

#[cfg(test)]
mod tests;
