// SPDX-License-Identifier: GPL-2.0-only
//! The one currency: stall in ns per second.
//!
//! A thread costs, per second, the sum over memory nodes of its accesses there times the latency from
//! the node it runs on. A page group costs the sum over accessing nodes of their accesses times the
//! mean latency to its pages, weighted by where they are resident. The two look at the same accesses
//! from two sides: never add them.

use crate::model::{NodeIndex, PageGroup, Snapshot, Thread, Topology};

/// Stall of `thread` if it ran on `run`, in ns per second; `None` without the accesses signal.
pub fn thread_stall_ns_per_s(topology: &Topology, thread: &Thread, run: NodeIndex) -> Option<f64> {
    let accesses = thread.accesses_per_s.as_ref()?;
    Some(accesses.iter().map(|(memory, rate)| rate * topology.latency_ns(run, memory)).sum())
}

/// Stall saved when `thread` goes from its node to `to`, in ns per second; negative if it costs.
pub fn thread_gain_ns_per_s(topology: &Topology, thread: &Thread, to: NodeIndex) -> Option<f64> {
    Some(thread_stall_ns_per_s(topology, thread, thread.node)? - thread_stall_ns_per_s(topology, thread, to)?)
}

/// Stall of all accesses to `group` where its pages are, in ns per second; `None` if none is resident.
pub fn group_stall_ns_per_s(topology: &Topology, group: &PageGroup) -> Option<f64> {
    // Most groups are on one node and used from few: nodes times nodes would be dear on large machines.
    let mut homes = group.resident_pages.iter().filter(|home| *home.1 > 0);
    let first = homes.next()?.0;
    if homes.next().is_none() {
        return Some(group_stall_at_ns_per_s(topology, group, first));
    }
    let resident: u64 = group.resident_pages.values().sum();
    let stall = |run: NodeIndex| -> f64 {
        let weighted = |(memory, &pages): (NodeIndex, &u64)| pages as f64 * topology.latency_ns(run, memory);
        group.resident_pages.iter().map(weighted).sum::<f64>() / resident as f64
    };
    Some(group.accesses_per_s.iter().filter(|&(_, &rate)| rate != 0.0).map(|(run, rate)| rate * stall(run)).sum())
}

/// Stall of all accesses to `group` if all its pages were on `memory`, in ns per second.
pub fn group_stall_at_ns_per_s(topology: &Topology, group: &PageGroup, memory: NodeIndex) -> f64 {
    let accesses = group.accesses_per_s.iter().filter(|&(_, &rate)| rate != 0.0);
    accesses_stall_ns_per_s(topology, accesses.map(|(run, &rate)| (run, rate)), memory)
}

/// Stall of accesses per second by node to memory of `memory`, in ns per second.
pub fn accesses_stall_ns_per_s(
    topology: &Topology,
    accesses: impl Iterator<Item = (NodeIndex, f64)>,
    memory: NodeIndex,
) -> f64 {
    accesses.map(|(run, rate)| rate * topology.latency_ns(run, memory)).sum()
}

/// Stall saved when all pages of `group` go to `to`, in ns per second; negative if it costs.
pub fn group_gain_ns_per_s(topology: &Topology, group: &PageGroup, to: NodeIndex) -> Option<f64> {
    Some(group_stall_ns_per_s(topology, group)? - group_stall_at_ns_per_s(topology, group, to))
}

/// Stall of all threads where they are, in ns per second; threads without the signal are left out.
pub fn threads_stall_ns_per_s(snapshot: &Snapshot) -> f64 {
    let stall = |thread: &Thread| thread_stall_ns_per_s(&snapshot.topology, thread, thread.node);
    snapshot.threads.iter().filter_map(stall).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SnapshotBuilder, two_nodes};

    /// Distances 10/21 give 100 and 210 ns.
    #[test]
    fn a_thread_costs_its_accesses_times_the_latency_from_its_node() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(0, 0, Some(&[10.0, 30.0])).build();
        let thread = &snapshot.threads[0];
        assert_eq!(thread_stall_ns_per_s(&snapshot.topology, thread, NodeIndex(0)), Some(1000.0 + 6300.0));
        assert_eq!(thread_gain_ns_per_s(&snapshot.topology, thread, NodeIndex(1)), Some(7300.0 - 5100.0));
        assert_eq!(threads_stall_ns_per_s(&snapshot), 7300.0);
    }

    #[test]
    fn a_thread_without_the_signal_has_no_price() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).thread(0, 0, None).build();
        assert_eq!(thread_gain_ns_per_s(&snapshot.topology, &snapshot.threads[0], NodeIndex(1)), None);
    }

    #[test]
    fn a_group_costs_by_accessor_and_by_where_its_pages_are() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).group(&[384, 128], &[0.0, 8.0]).build();
        let group = &snapshot.groups[0];
        assert_eq!(group_stall_ns_per_s(&snapshot.topology, group), Some(8.0 * (0.75 * 210.0 + 0.25 * 100.0)));
        assert_eq!(group_gain_ns_per_s(&snapshot.topology, group, NodeIndex(1)), Some(1460.0 - 800.0));
    }

    #[test]
    fn a_group_without_resident_pages_has_no_price() {
        let snapshot = SnapshotBuilder::new(two_nodes(2)).group(&[0, 0], &[0.0, 8.0]).build();
        assert_eq!(group_gain_ns_per_s(&snapshot.topology, &snapshot.groups[0], NodeIndex(1)), None);
    }
}
