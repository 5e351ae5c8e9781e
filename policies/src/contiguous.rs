// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `contiguous`: equal consecutive blocks of seats.
//!
//! Problem: something to compare with; neighbours are together and yet all nodes are used. Mechanism: equal consecutive
//! blocks, in proportion to the nodes' capacities. Seats, the order of nodes, parameters and what is ours:
//! `crate::placement`. Source: Popov et al., ICS 2019, with their NUMA degree as parameter `nodes`.

use crate::placement::{self, SEATED, Used};
use crate::registry::{Inputs, Policy};

/// Thread policy `contiguous`.
///
/// Thread 2 left a CPU of node 0 idle:
///
/// ```
/// use tandem_policies::{contiguous, example};
///
/// let mut snapshot = example::crossed();
/// snapshot.threads.remove(1);
/// let moves = example::decided(&contiguous::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 3: node 1 -> 0: contiguous: seat 2 of 3 is on node 0"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "contiguous",
    source: "Popov, Jimborean, Black-Schaffer: Thread/Page/Parallelism Autotuning, ICS 2019, contiguous",
    decide: |inputs: &mut Inputs| placement::decide(inputs, "contiguous", seats),
    ..SEATED
};

/// For each of `count` seats, the position of its node in `nodes`: in equal blocks.
fn seats(nodes: &[Used], count: usize) -> Vec<usize> {
    let ends = nodes.iter().scan(0, |end, used| {
        *end += used.capacity;
        Some(*end)
    });
    let ends: Vec<u64> = ends.collect();
    let all = ends.last().copied().unwrap_or(0);
    let node_at = |start: u64| ends.partition_point(|&end| end <= start);
    (0..count as u64).map(|seat| node_at(seat * all / count as u64)).collect()
}
