// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `compact`: a node is filled before the next one begins.
//!
//! Problem: something to compare with; neighbours share more often than not, and are near to each other so. Mechanism: seats
//! in order of nodes, one for each CPU of a node; when all nodes are full, from the first again. Seats, the order of nodes,
//! parameters and what is ours: `crate::placement`. Source: the comparison of kMAF (PACT 2014), which places threads on
//! processing units; here nodes decide, and the scheduler picks the CPU.

use crate::model::{Snapshot, Thread};
use crate::placement::{self, SEATED, Seats, Used};
use crate::registry::{Inputs, Policy};

/// Thread policy `compact`.
///
/// Thread 2 left a CPU of node 0 idle:
///
/// ```
/// use tandem_policies::{compact, example};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads.remove(1);
/// let moves = example::decided(&compact::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 3: node 1 -> 0: compact: seat 2 of 3 is on node 0"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "compact",
    source: "Diener et al.: kMAF, PACT 2014, mapping Compact",
    decide: |inputs: &mut Inputs| placement::decide(inputs, "compact", seats),
    ..SEATED
};

/// For each of `count` seats, the position of its node in `nodes`.
fn seats(nodes: &[Used], count: usize) -> Vec<usize> {
    let filled: Vec<usize> = nodes.iter().enumerate().flat_map(|(at, used)| vec![at; used.cpus]).collect();
    filled.into_iter().cycle().take(count).collect()
}

/// The mapping `compact` of `threads` that have no seats yet, over all nodes: node by thread. One that may not be moved
/// stays.
pub fn mapping(snapshot: &Snapshot, threads: &[&Thread]) -> Vec<usize> {
    let mut seats = Seats::default();
    seats.update(snapshot, threads);
    let nodes = placement::nodes_used(&snapshot.topology, 0, threads.len());
    let at = self::seats(&nodes, seats.count());
    let node_of = |thread: &Thread| placement::from_seat(snapshot, &nodes, at[seats.0[&thread.id]], thread);
    placement::places(snapshot, threads, node_of)
}
