// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `scatter`: seats are dealt to the nodes round robin.
//!
//! Problem: something to compare with; threads that need bandwidth get that of all nodes. Mechanism: round robin over nodes
//! that have a CPU left; when all are full, from the first again. Seats, the order of nodes, parameters and what is ours:
//! `crate::placement`. Source: Popov et al., ICS 2019, with their NUMA degree as parameter `nodes`.

use crate::placement::{self, SEATED, Used};
use crate::registry::{Inputs, Policy};

/// Thread policy `scatter`.
///
/// Threads sit on the nodes by turns:
///
/// ```
/// use tandem_policies::{example, scatter};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&scatter::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 2 and 3: nodes 0 <-> 1: 2: scatter: seat 2 of 4 is on node 1"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "scatter",
    source: "Popov, Jimborean, Black-Schaffer: Thread/Page/Parallelism Autotuning, ICS 2019, scatter",
    decide: |inputs: &mut Inputs| placement::decide(inputs, "scatter", seats),
    ..SEATED
};

/// For each of `count` seats, the position of its node in `nodes`: round robin.
fn seats(nodes: &[Used], count: usize) -> Vec<usize> {
    let most = nodes.iter().map(|used| used.cpus).max().unwrap_or(0);
    let with_cpu = |round: usize| (0..nodes.len()).filter(move |&at| nodes[at].cpus > round);
    let dealt: Vec<usize> = (0..most).flat_map(with_cpu).collect();
    dealt.into_iter().cycle().take(count).collect()
}
