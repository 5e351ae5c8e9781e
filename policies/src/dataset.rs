// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `dataset`: each array cut into as many chunks as threads, each chunk by its thread.
//!
//! Problem: a parallel loop splits its arrays among its threads by position; samples of single pages are scarce, but the
//! split is regular. Mechanism (Popov et al., ICS 2019, page placement *dataset*): the pages of one allocation are a
//! dataset. It is cut into as many equal chunks as threads, and chunk i goes to the node of thread i. Blocks of one
//! page dealt out in turn instead of chunks are interleaving. Parameters: [`PARAMETERS`].
//!
//! The source knows allocations by their call. We see addresses: a dataset is a contiguous run of groups of one process.
//! Arrays without a gap between them become one dataset, and one that is not sampled everywhere becomes several. Thread i
//! is the i-th of the threads that use the dataset, by thread id, which is the order in which they were started. A
//! thread counts until it has not been seen to use the dataset for `forget_s`, because samples miss threads: each one
//! that comes or goes cuts anew. A group is in the chunk of its middle byte. No group is judged by its own
//! samples: those of the dataset count. The source's page NUMA degree is `page_nodes`: with n there are n chunks, one for
//! each of the first n nodes with memory.

use std::collections::BTreeMap;

use crate::model::{GroupId, NodeIndex, PageGroup, Plan, Snapshot, ThreadId};
use crate::page_moves::{self, PageMoves, follows};
use crate::registry::{Inputs, Kind, Memory, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::{self, Users};

/// Page policy `dataset`.
///
/// Each chunk of a dataset goes near the thread that works on it:
///
/// ```
/// use tandem_policies::{dataset, example};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&dataset::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: chunk 1 of 4"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "dataset",
    kind: Kind::Page,
    needs: &[Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Popov, Jimborean, Black-Schaffer, ICS 2019: page placement 'dataset'",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.memory),
    ..Policy::PLAIN
};

/// Parameters of `dataset`.
pub const PARAMETERS: &[Parameter] = &[
    users::PAGE_NODES,
    Parameter::whole("block_groups", 0.0, "page groups in turn; 0: equal chunks", 0.0, 1e6),
    Parameter::real("forget_s", 30.0, "s without a sample of the thread", 0.0, 86_400.0),
    page_moves::MIN_SAMPLES,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// When threads were last seen to use datasets, by the first group of these.
#[derive(Debug, Default)]
struct Seen(BTreeMap<GroupId, BTreeMap<ThreadId, u64>>);

impl Seen {
    /// Takes out who used what lies in `dataset`, whose bounds may have changed.
    fn take(&mut self, dataset: &[PageGroup]) -> BTreeMap<ThreadId, u64> {
        let starts: Vec<GroupId> =
            self.0.range(dataset[0].id..=dataset[dataset.len() - 1].id).map(|(&start, _)| start).collect();
        let mut threads: BTreeMap<ThreadId, u64> = BTreeMap::new();
        for (thread, time_ns) in starts.iter().filter_map(|start| self.0.remove(start)).flatten() {
            let last_ns = threads.entry(thread).or_insert(time_ns);
            *last_ns = time_ns.max(*last_ns);
        }
        threads
    }
}

/// Who gets a chunk.
#[derive(Clone, Copy)]
struct Taker {
    node: NodeIndex,
    /// The thread that it is for; none where nodes are given.
    thread: Option<ThreadId>,
}

/// Moves of groups to the threads of their chunks, or to the nodes that were given.
///
/// # Errors
/// [`MissingSignal`] if no group knows its users.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, memory: &mut Memory) -> Result<Plan, MissingSignal> {
    page_moves::require(snapshot, POLICY.name, Signal::GroupUsers, |group| !group.users.is_empty())?;
    let seen = memory.of::<Seen>();
    let users = Users::of(snapshot);
    let serving = match parameters.get("page_nodes") {
        0.0 => Vec::new(),
        count => page_moves::memory_nodes(&snapshot.topology, count),
    };
    let mut moves = PageMoves::new(snapshot, parameters);
    let mut seen_now = Seen::default();
    for dataset in snapshot.groups.chunk_by(follows) {
        let mut threads = seen.take(dataset);
        for (thread, ..) in dataset.iter().flat_map(|group| users.present(group)) {
            threads.insert(thread, snapshot.time_ns);
        }
        let since = |last_ns: u64| snapshot.time_ns.saturating_sub(last_ns) as f64 / 1e9;
        threads.retain(|&thread, &mut last_ns| {
            users.node(thread).is_some() && since(last_ns) <= parameters.get("forget_s")
        });
        let samples: f64 = dataset.iter().map(|group| group.samples).sum();
        if samples >= parameters.get("min_samples") {
            let by_thread = |&thread| users.node(thread).map(|node| Taker { node, thread: Some(thread) });
            let takers: Vec<Taker> = if serving.is_empty() {
                threads.keys().filter_map(by_thread).collect()
            } else {
                serving.iter().map(|&node| Taker { node, thread: None }).collect()
            };
            cut(&mut moves, dataset, &takers, parameters.get("block_groups") as usize);
        }
        seen_now.0.insert(dataset[0].id, threads);
    }
    *seen = seen_now;
    Ok(moves.plan())
}

/// Sends each group of `dataset` to the node of its taker.
fn cut(moves: &mut PageMoves, dataset: &[PageGroup], takers: &[Taker], block_groups: usize) {
    if takers.is_empty() {
        return;
    }
    let start = dataset[0].id.start;
    let bytes: u64 = dataset.iter().map(|group| group.bytes).sum();
    for (at, group) in dataset.iter().enumerate() {
        let middle = u128::from(group.id.start - start + group.bytes / 2);
        let chunk = match at.checked_div(block_groups) {
            Some(block) => block % takers.len(),
            None => (middle * takers.len() as u128 / u128::from(bytes.max(1))) as usize,
        };
        let taker = takers[chunk.min(takers.len() - 1)];
        let Some(to) = moves.destination(taker.node) else { continue };
        let id = moves.snapshot.topology.nodes[to].id;
        let reason = |_: &PageMoves| {
            let chunk = format!("chunk {} of {} of the dataset at {start:#x}", chunk + 1, takers.len());
            match taker.thread {
                Some(thread) => format!("{chunk} is by thread {thread} near node {id}"),
                None => format!("{chunk} is for node {id}"),
            }
        };
        moves.send(group, to, reason);
    }
}

#[cfg(test)]
mod tests;
