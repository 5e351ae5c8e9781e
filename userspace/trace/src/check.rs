// SPDX-License-Identifier: GPL-2.0-only
//! Whether an interval fits together, so that what reads it may index by node without asking.

use tandem_policies::model::{Node, NodeIndex, PageGroup, Snapshot, Thread, Topology};

use crate::coder::Malformed;
use crate::interval::Interval;

/// Checks the lengths of rows, node indices, and that everything ascends.
pub(crate) fn interval(interval: &Interval) -> Result<(), Malformed> {
    snapshot(&interval.snapshot).map_err(Malformed::Snapshot)
}

fn snapshot(snapshot: &Snapshot) -> Result<(), String> {
    let nodes = snapshot.topology.len();
    let machine: Vec<Node> = snapshot.topology.nodes.values().cloned().collect();
    Topology::new(machine, snapshot.topology.latency_source).map_err(|error| error.to_string())?;
    row("the machine", "loads", snapshot.nodes.len(), nodes)?;
    snapshot.threads.iter().try_for_each(|one| thread(one, nodes))?;
    snapshot.groups.iter().try_for_each(|one| group(one, nodes))?;
    ascends("threads", snapshot.threads.iter().map(|thread| thread.id))?;
    ascends("page groups", snapshot.groups.iter().map(|group| group.id))
}

fn thread(thread: &Thread, nodes: usize) -> Result<(), String> {
    let NodeIndex(node) = thread.node;
    let whose = || format!("thread {}", thread.id);
    if node >= nodes {
        return Err(format!("{} is on node {node} of {nodes}", whose()));
    }
    row(&whose(), "allowed nodes", thread.allowed.len(), nodes)?;
    row(&whose(), "run times", thread.run_ns.len(), nodes)?;
    row(&whose(), "performances", thread.performance.len(), nodes)?;
    if let Some(accesses) = &thread.accesses_per_s {
        row(&whose(), "accesses", accesses.len(), nodes)?;
    }
    ascends("threads it shares with", thread.sharing.iter().map(|(other, _)| other))
}

fn group(group: &PageGroup, nodes: usize) -> Result<(), String> {
    let whose = || format!("the page group at {:#x}", group.id.start);
    row(&whose(), "resident pages", group.resident_pages.len(), nodes)?;
    row(&whose(), "accesses", group.accesses_per_s.len(), nodes)?;
    ascends("users of a page group", group.users.iter().map(|(user, _)| user))
}

fn row(whose: &str, what: &str, found: usize, nodes: usize) -> Result<(), String> {
    if found == nodes { Ok(()) } else { Err(format!("{whose} has {found} {what}, the machine has {nodes} nodes")) }
}

fn ascends<T: PartialOrd>(what: &str, ids: impl Iterator<Item = T>) -> Result<(), String> {
    if ids.is_sorted_by(|one, next| one < next) { Ok(()) } else { Err(format!("{what} do not ascend by id")) }
}
