// SPDX-License-Identifier: GPL-2.0-only
//! How long accesses wait for a memory that is busy, and what moving some of them elsewhere saves.
//!
//! A memory serves an access in s ns, one after the other; at a rate of a per ns one waits (M/D/1)
//!
//! ```text
//! w(a) = s u / (2 (1 - u)),  u = s a           solved for s:  s = sqrt(w^2 + 2 w / a) - w
//! ```
//!
//! s comes from the wait that was measured: the latency that the node served, less that of the idle machine. A memory that
//! served nothing is taken to be like the slowest that did. Beyond [`MOST_BUSY`] the wait goes on as a straight line: threads
//! that wait ask for less, and do not meet the formula's infinity. Those of a memory that is busier than that ask for more
//! once they wait less: service times are taken as if they asked for as much as all memories together can give. Then the formula
//! gives more than was measured, and more than threads can wait in a second; all waits are less by as much, so that they can be
//! compared with CPUs that are wanted.
//!
//! Without hardware nobody knows how long accesses wait, nor how many there are in a second: code that walks along pointers and code
//! that streams look alike. [`Knee::assumed`] takes every thread for one that streams, as much as all memories together can
//! give. That is too much to take anything away from its users for, and tells which memory would be waited for first.
//!
//! All accesses to a memory wait, so that what one more costs includes what it makes the others wait. That keeps a plan
//! from sending everything to the memory that is idle now.

use crate::model::{NodeIndex, Snapshot};
use crate::signals::sound;

/// Busy share up to which the formula holds.
const MOST_BUSY: f64 = 0.85;
/// Busy share of all memories together up to which loads are assumed. Less than the formula holds for: loads that are alike
/// but for what chance makes of few samples must not seem to wait differently.
const MOST_ASSUMED: f64 = 0.7;
/// Waits below this share of the latency do not matter anywhere.
const FAINTEST_WAIT: f64 = 0.05;

/// Accesses per second to a memory: as counted, and in the share that their threads wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// As counted.
    pub per_s: f64,
    /// Of them, as many as are waited for one after the other.
    pub waited_per_s: f64,
}

/// The memories' service times.
#[derive(Clone, Debug, PartialEq)]
pub struct Knee {
    service_ns: Vec<f64>,
    /// What of the waits by these counts.
    share: f64,
}

impl Knee {
    /// What the waits tell of the memories. `loads` are those of now, `idle_ns` the mean latency that the accesses to each
    /// memory would have on an idle machine. `None` if nobody waits, or the signal is absent.
    pub fn of(snapshot: &Snapshot, loads: &[Load], idle_ns: &[f64]) -> Option<Self> {
        let wait_ns = |node: usize| -> Option<f64> {
            let served_ns = sound(snapshot.nodes.get(NodeIndex(node))?.served_latency_ns?);
            (loads[node].per_s > 0.0).then_some((served_ns - idle_ns[node]).max(0.0))
        };
        let is_felt = |node: usize| wait_ns(node).is_some_and(|wait_ns| wait_ns > FAINTEST_WAIT * idle_ns[node]);
        if !(0..loads.len()).any(is_felt) {
            return None;
        }
        let service_ns = |node: usize| {
            let (wait_ns, per_ns) = (wait_ns(node)?, loads[node].per_s * 1e-9);
            Some(libm::sqrt(wait_ns * wait_ns + 2.0 * wait_ns / per_ns) - wait_ns)
        };
        let known: Vec<Option<f64>> = (0..loads.len()).map(service_ns).collect();
        let slowest = known.iter().flatten().copied().fold(0.0, f64::max);
        let service_ns: Vec<f64> = known.iter().map(|known| known.unwrap_or(slowest)).collect();
        let busy = |node: usize| service_ns[node] * loads[node].per_s * 1e-9;
        let busiest = (0..loads.len()).map(busy).fold(0.0, f64::max);
        let mean = (0..loads.len()).map(busy).sum::<f64>() / memories(snapshot);
        let faster = if busiest > MOST_BUSY { (MOST_BUSY / mean).max(1.0) } else { 1.0 };
        let service_ns = service_ns.into_iter().map(|service_ns| faster * service_ns).collect();
        let knee = Self { service_ns, share: 1.0 };
        let waits = (0..loads.len()).filter_map(|node| {
            let per_s = loads[node].per_s;
            wait_ns(node).map(|wait_ns| (per_s * wait_ns, per_s * knee.wait_ns(node, per_s)))
        });
        let (measured, told) = waits.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Some(Self { share: if told > 0.0 { measured / told } else { 1.0 }, ..knee })
    }

    /// What the waits would be if a node's memory gave `cpu_lines_per_s` for each of its CPUs, and threads asked for `loads`,
    /// or as much as all memories can give. `None` if nothing is asked for, memory has no limit (0), or memories have as much to
    /// do as far as can be told: each load is in doubt by `doubt_per_s`, and two that differ by less than both doubts together
    /// (the root of their squares) are alike.
    pub fn assumed(snapshot: &Snapshot, loads: &[Load], doubt_per_s: &[f64], cpu_lines_per_s: f64) -> Option<Self> {
        let nodes = &snapshot.topology.nodes;
        let fewest = nodes.values().map(|node| node.cpus.len()).filter(|&cpus| cpus > 0).min()?;
        let line_ns = |node: usize| {
            // Memory without CPUs is taken for that of the least node.
            let cpus = nodes[NodeIndex(node)].cpus.len().max(fewest);
            1e9 / (cpu_lines_per_s * cpus as f64)
        };
        let busy = |node: usize| line_ns(node) * loads[node].per_s * 1e-9;
        let mean = (0..loads.len()).map(busy).sum::<f64>() / memories(snapshot);
        let slower = if mean > MOST_ASSUMED { MOST_ASSUMED / mean } else { 1.0 };
        let is_limited = cpu_lines_per_s > 0.0 && mean > 0.0;
        let holds = |node: &usize| nodes[NodeIndex(*node)].memory_pages > 0;
        let doubt = |node: usize| line_ns(node) * doubt_per_s[node] * 1e-9;
        let memories: Vec<usize> = (0..loads.len()).filter(holds).collect();
        let are_apart = |one: usize, other: usize| busy(one) - busy(other) > libm::hypot(doubt(one), doubt(other));
        let differ = memories.iter().any(|&one| memories.iter().any(|&other| are_apart(one, other)));
        (is_limited && differ)
            .then(|| Self { service_ns: (0..loads.len()).map(|node| slower * line_ns(node)).collect(), share: 1.0 })
    }

    /// The same memories, of whose waits so much counts that all accesses of `loads` wait for `ns_per_s`.
    pub fn scaled_to(mut self, loads: &[Load], ns_per_s: f64) -> Self {
        let told: f64 = loads.iter().enumerate().map(|(node, &load)| self.cost(node, load)).sum();
        self.share *= if told > 0.0 { ns_per_s / told } else { 0.0 };
        self
    }

    /// Mean wait of an access.
    pub fn wait_ns(&self, node: usize, per_s: f64) -> f64 {
        let service_ns = self.service_ns[node];
        let busy = service_ns * per_s.max(0.0) * 1e-9;
        let within = busy.min(MOST_BUSY);
        let slope = service_ns / (2.0 * (1.0 - MOST_BUSY) * (1.0 - MOST_BUSY));
        self.share * (service_ns * within / (2.0 * (1.0 - within)) + slope * (busy - within))
    }

    /// Waiting of all accesses to a memory, in ns per second.
    pub fn cost(&self, node: usize, load: Load) -> f64 {
        load.waited_per_s.max(0.0) * self.wait_ns(node, load.per_s)
    }
}

/// Number of nodes that have memory.
fn memories(snapshot: &Snapshot) -> f64 {
    snapshot.topology.nodes.values().filter(|node| node.memory_pages > 0).count().max(1) as f64
}

impl Load {
    /// Both together, of the other so many times.
    pub fn plus(self, other: Self, times: f64) -> Self {
        Self { per_s: self.per_s + times * other.per_s, waited_per_s: self.waited_per_s + times * other.waited_per_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeLoad, PerNode};
    use crate::testing::{SnapshotBuilder, two_nodes};

    /// The knee of a machine whose node 0 serves `per_s` accesses in 100 ns and a wait.
    fn knee(per_s: f64, wait_ns: f64) -> Knee {
        let mut snapshot = SnapshotBuilder::new(two_nodes(4)).thread(1, 0, Some(&[per_s, 0.0])).build();
        let served = NodeLoad { served_latency_ns: Some(100.0 + wait_ns), ..NodeLoad::default() };
        snapshot.nodes = PerNode::from_fn(2, |node| if node.0 == 0 { served.clone() } else { NodeLoad::default() });
        let loads = [Load { per_s, waited_per_s: per_s }, Load::default()];
        Knee::of(&snapshot, &loads, &[100.0, 100.0]).expect("it waits")
    }

    #[test]
    fn what_is_measured_is_what_the_present_loads_wait() {
        for (per_s, wait_ns) in [(1e7, 20.0), (5e7, 20.0), (9e7, 300.0), (2e8, 300.0)] {
            let now_ns = knee(per_s, wait_ns).wait_ns(0, per_s);
            assert!((now_ns - wait_ns).abs() < 1e-6 * wait_ns, "{wait_ns} at {per_s}: {now_ns}");
        }
    }

    #[test]
    fn with_half_the_accesses_they_wait_less_than_half_as_long() {
        let knee = knee(9e7, 300.0);
        let [all_ns, half_ns] = [1.0, 0.5].map(|share| knee.wait_ns(0, share * 9e7));
        assert!(half_ns < 0.5 * all_ns, "{half_ns} of {all_ns}");
        assert_eq!(knee.wait_ns(1, 4.5e7), half_ns, "the other memory is taken to be alike");
    }
}
