// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `kmaf`: the NUMA-vector rule.
//!
//! Problem: pages are on a node other than the one that uses them most, and moving them before the threads are
//! placed moves them twice. Mechanism (kMAF, PACT 2014): each page counts accesses by node, NV. It goes to the
//! arg-max node iff max(NV) > 2 max2(NV) + 1 and it is not already there; then all its counters are halved. No page
//! moves before the first thread mapping has been applied. Parameters: [`PARAMETERS`].
//!
//! Our unit is the page group (2 MiB); its counts are the samples of the group, by the shares of the nodes in its
//! accesses. The sampler lets them age, which the source does only by halving. The half that a migration takes is
//! remembered and ages as the counts do, with `half_life_s`. A migration counts when the group is seen to have arrived.
//!
//! The first thread mapping of a process counts as applied when one of its threads was seen to change node, or, as a
//! mapping may be right from the start, when the process was seen for `wait_decisions` decisions without.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use crate::model::{GroupId, NodeIndex, PageGroup, PerNode, Plan, ProcessId, Snapshot, ThreadId};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Memory, Parameter, Parameters, Policy, Signal};

/// Page policy `kmaf`.
///
/// Groups go to the node that clearly uses them most, once threads have had time to find their places:
///
/// ```
/// use tandem_policies::{example, kmaf_pages, registry::Memory};
///
/// let (mut snapshot, mut memory) = (example::crossed(), Memory::default());
/// for _ in 0..5 {
///     assert!(example::decided_again(&kmaf_pages::POLICY, &snapshot, &mut memory)?.is_empty());
///     snapshot.time_ns += snapshot.interval_ns;
/// }
/// let moves = example::decided_again(&kmaf_pages::POLICY, &snapshot, &mut memory)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: node 0 accessed it 100.0 times"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "kmaf",
    kind: Kind::Page,
    needs: &[Signal::GroupAccesses, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Diener, Cruz, Navaux, Busse, Heiss, kMAF, PACT 2014: data affinity",
    decide: |inputs: &mut Inputs| Ok(decide(inputs.snapshot, inputs.parameters, inputs.memory)),
    ..Policy::PLAIN
};

/// Parameters of `kmaf`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::whole("wait_decisions", 5.0, "decisions without a thread move", 0.0, 1e6),
    page_moves::HALF_LIFE_S,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Differences of counts below this are rounding.
const ROUNDING: f64 = 1e-9;
/// A remembered count below this is forgotten.
const FAINTEST: f64 = 0.01;

/// What `kmaf` remembers. Lists ascend by group.
#[derive(Debug, Default)]
struct Remembered {
    time_ns: u64,
    threads: BTreeMap<ThreadId, NodeIndex>,
    /// Decisions by process since it was first seen.
    waited: BTreeMap<ProcessId, u64>,
    /// Processes whose first thread mapping was applied.
    mapped: BTreeSet<ProcessId>,
    /// Where groups were sent in the last decision.
    sent: Vec<(GroupId, NodeIndex)>,
    /// What halving took from the counts.
    taken: Vec<(GroupId, PerNode<f64>)>,
}

/// The node that the counts `vector` send a page to, wherever it is.
pub fn destination(vector: &PerNode<f64>) -> Option<NodeIndex> {
    let (mut node, mut most, mut second) = (None, 0.0, 0.0);
    for (at, &count) in vector.iter() {
        if count > most {
            (node, most, second) = (Some(at), count, most);
        } else if count > second {
            second = count;
        }
    }
    node.filter(|_| most > 2.0 * second + 1.0 + ROUNDING)
}

/// Moves of groups that one node uses more than twice as much as any other.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, memory: &mut Memory) -> Plan {
    let memory = memory.of::<Remembered>();
    memory.note_thread_moves(snapshot);
    let left = page_moves::aged(parameters, snapshot.time_ns.saturating_sub(memory.time_ns));
    memory.time_ns = snapshot.time_ns;
    let mut sent_before = std::mem::take(&mut memory.sent).into_iter().peekable();
    let mut taken_before = std::mem::take(&mut memory.taken).into_iter().peekable();
    let wait_decisions = parameters.get("wait_decisions");
    let mut moves = PageMoves::new(snapshot, parameters);
    let mut vector = PerNode::filled(snapshot.topology.len(), 0.0);
    for of_process in snapshot.groups.chunk_by(|one, next| one.id.process == next.id.process) {
        let may_follow = memory.may_follow(of_process[0].id.process, wait_decisions);
        for group in of_process {
            let sent = entry_of(&mut sent_before, group.id);
            let taken = entry_of(&mut taken_before, group.id).and_then(|taken| faded(taken, left));
            let has_arrived = sent.is_some_and(|to| group.home() == Some(to));
            let (seen, taken) = count(group, taken, has_arrived, &mut vector);
            memory.taken.extend(taken.map(|taken| (group.id, taken)));
            if !seen || !may_follow {
                continue;
            }
            if let Some(to) = send(&mut moves, group, &vector) {
                memory.sent.push((group.id, to));
            }
        }
    }
    memory.waited.values_mut().for_each(|waited| *waited += 1);
    moves.plan()
}

/// Sends `group` where its counts say; where it goes.
fn send(moves: &mut PageMoves, group: &PageGroup, vector: &PerNode<f64>) -> Option<NodeIndex> {
    let accessor = destination(vector)?;
    let to = moves.destination(accessor)?;
    let reason = |moves: &PageMoves| {
        format!(
            "node {} accessed it {:.1} times, no other more than half as often{}",
            moves.snapshot.topology.nodes[accessor].id,
            vector[accessor],
            moves.home_in_words(group)
        )
    };
    moves.send(group, to, reason).then_some(to)
}

/// What an ascending list holds for `id`, of which nothing was asked before that comes after it.
fn entry_of<T>(list: &mut Peekable<impl Iterator<Item = (GroupId, T)>>, id: GroupId) -> Option<T> {
    while list.next_if(|entry| entry.0 < id).is_some() {}
    list.next_if(|entry| entry.0 == id).map(|entry| entry.1)
}

/// What was taken, of which `left` is left; `None` if that is next to nothing.
fn faded(mut taken: PerNode<f64>, left: f64) -> Option<PerNode<f64>> {
    taken.values_mut().for_each(|count| *count *= left);
    taken.values().any(|&count| count >= FAINTEST).then_some(taken)
}

/// Puts NV of `group` into `vector`, less what was `taken`, halved if it arrived since the last decision; whether there
/// are samples, and what is taken then.
fn count(
    group: &PageGroup,
    taken: Option<PerNode<f64>>,
    has_arrived: bool,
    vector: &mut PerNode<f64>,
) -> (bool, Option<PerNode<f64>>) {
    let total = group.accesses_per_s.total();
    if !(group.samples > 0.0 && total > 0.0 && total.is_finite()) {
        return (false, taken);
    }
    // Most nodes access a group not at all.
    let count = |rate: f64| if rate == 0.0 { 0.0 } else { group.samples * rate / total };
    for ((node, &rate), left) in group.accesses_per_s.iter().zip(vector.values_mut()) {
        *left = (count(rate) - taken.as_ref().map_or(0.0, |taken| taken[node])).max(0.0);
    }
    if !has_arrived {
        return (true, taken);
    }
    vector.values_mut().for_each(|count| *count /= 2.0);
    let taken = |node| count(group.accesses_per_s[node]) - vector[node];
    (true, Some(PerNode::from_fn(vector.len(), taken)))
}

impl Remembered {
    /// Looks for threads that changed node and for new processes, and forgets processes that are gone.
    fn note_thread_moves(&mut self, snapshot: &Snapshot) {
        let same_process = |one: &PageGroup, next: &PageGroup| one.id.process == next.id.process;
        let here: BTreeSet<ProcessId> =
            snapshot.groups.chunk_by(same_process).map(|of_process| of_process[0].id.process).collect();
        self.waited.retain(|process, _| here.contains(process));
        self.mapped.retain(|process| here.contains(process));
        for &process in &here {
            self.waited.entry(process).or_insert(0);
        }
        for thread in &snapshot.threads {
            if self.threads.get(&thread.id).is_some_and(|&node| node != thread.node) {
                self.mapped.insert(thread.process);
            }
        }
        self.threads = snapshot.threads.iter().map(|thread| (thread.id, thread.node)).collect();
    }

    fn may_follow(&self, process: ProcessId, wait_decisions: f64) -> bool {
        let waited = self.waited.get(&process).copied().unwrap_or(0);
        self.mapped.contains(&process) || waited as f64 >= wait_decisions
    }
}

#[cfg(test)]
mod tests;
