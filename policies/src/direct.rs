// SPDX-License-Identifier: GPL-2.0-only
//! Thread policy `direct`: all threads of a process on one node.
//!
//! Problem: something to compare with; what an administrator does by hand. Mechanism: a process is bound, once, to the node
//! with the fewest of our threads for its capacity ([`crate::capacity`]). Source: numactl's binding to one node, as the
//! Thanos thesis compares with.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{NodeIndex, Plan, ProcessId, Thread};
use crate::placement::{MIN_CPU_PERCENT, busy, plan};
use crate::registry::{Inputs, MissingSignal, Policy};
use crate::relocation;

/// Thread policy `direct`.
///
/// The whole process goes to one node:
///
/// ```
/// use tandem_policies::{direct, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&direct::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("thread 3: node 1 -> 0: direct: process 1 is bound to node 0"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "direct",
    parameters: &[MIN_CPU_PERCENT],
    source: "Laso Rodriguez, PhD thesis, USC, 2023: comparison Direct (numactl, one node)",
    decide,
    ..Policy::PLAIN
};

/// The node of each process.
#[derive(Debug, Default)]
struct Bindings(BTreeMap<ProcessId, NodeIndex>);

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let snapshot = inputs.snapshot;
    let threads = busy(snapshot, inputs.parameters);
    let Bindings(bound) = inputs.memory.of::<Bindings>();
    let nodes: Vec<NodeIndex> = snapshot.topology.nodes_with_cpus().collect();
    let alive: BTreeSet<ProcessId> = snapshot.threads.iter().map(|thread| thread.process).collect();
    bound.retain(|process, node| alive.contains(process) && nodes.contains(node));
    let mut by_process: BTreeMap<ProcessId, Vec<&Thread>> = BTreeMap::new();
    for &thread in &threads {
        by_process.entry(thread.process).or_default().push(thread);
    }
    let mut bound_threads = vec![0; snapshot.topology.len()];
    for (process, node) in bound.iter() {
        bound_threads[node.0] += by_process.get(process).map_or(0, Vec::len);
    }
    for (&process, own) in &by_process {
        if bound.contains_key(&process) {
            continue;
        }
        let load = |node: NodeIndex| bound_threads[node.0] as f64 / snapshot.topology.nodes[node].capacity() as f64;
        let barred = |node: NodeIndex| own.iter().filter(|t| !relocation::may_run(snapshot, t, node)).count();
        let elsewhere = |node: NodeIndex| own.iter().filter(|thread| thread.node != node).count();
        let rank = |&a: &NodeIndex, &b: &NodeIndex| {
            (barred(a).cmp(&barred(b))).then(load(a).total_cmp(&load(b))).then(elsewhere(a).cmp(&elsewhere(b)))
        };
        if let Some(node) = nodes.iter().copied().min_by(rank) {
            bound.insert(process, node);
            bound_threads[node.0] += own.len();
        }
    }
    let node_of = |thread: &Thread| bound.get(&thread.process).copied();
    let reason = |thread: &Thread, to: NodeIndex| {
        format!("direct: process {} is bound to node {}", thread.process.0, snapshot.topology.nodes[to].id)
    };
    Ok(plan(snapshot, &threads, node_of, reason))
}
