// SPDX-License-Identifier: GPL-2.0-only
//! How well each thread did on each node, remembered and faded (Thanos thesis, eqs. 3.6 and 3.7).
//!
//! The thesis has P = O*I/L from hardware counters: operations, operations per byte, latency. Without counters the
//! thread's share of a CPU stands for O*I, without measured latencies the mean that the topology's latencies predict for
//! where it ran stands for L. P is then comparable between nodes for one thread, not between threads.

use std::collections::BTreeMap;

use tandem_policies::model::{NodeIndex, PerNode, ThreadId};

/// Memories fainter than this are dropped.
const FAINTEST: f64 = 1e-3;
const FADE_POWER: i32 = 3;
const FADE_SCALE: f64 = 30.0;

/// f(t) of eq. 3.7 with p = 3, d = 30; 1 below one second.
pub fn fading(age_s: f64) -> f64 {
    if age_s < 1.0 { 1.0 } else { (-age_s.powi(FADE_POWER) / FADE_SCALE).exp() }
}

/// P by thread and node, with the time it was seen.
#[derive(Default)]
pub struct PerformanceMemory {
    seen: BTreeMap<(ThreadId, NodeIndex), (f64, u64)>,
}

impl PerformanceMemory {
    /// `thread` got `done` (O*I) done on `node` with a mean access latency of `latency_ns`.
    pub fn record(&mut self, thread: ThreadId, node: NodeIndex, done: f64, latency_ns: f64, now_ns: u64) {
        if latency_ns > 0.0 && done > 0.0 {
            self.seen.insert((thread, node), (done / latency_ns, now_ns));
        }
    }

    /// What is remembered of `thread`, faded by age, for each of `nodes` nodes.
    pub fn recall(&self, thread: ThreadId, nodes: usize, now_ns: u64) -> PerNode<Option<f64>> {
        PerNode::from_fn(nodes, |node| {
            let (performance, seen_ns) = self.seen.get(&(thread, node))?;
            let fading = fading(now_ns.saturating_sub(*seen_ns) as f64 * 1e-9);
            (fading >= FAINTEST).then_some(performance * fading)
        })
    }

    /// Forgets threads that are gone.
    pub fn retain(&mut self, alive: impl Fn(ThreadId) -> bool) {
        self.seen.retain(|(thread, _), _| alive(*thread));
    }

    /// Forgets what has faded and the threads that are gone.
    pub fn prune(&mut self, now_ns: u64, alive: impl Fn(ThreadId) -> bool) {
        self.retain(alive);
        self.seen.retain(|_, (_, seen_ns)| fading(now_ns.saturating_sub(*seen_ns) as f64 * 1e-9) >= FAINTEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fades_as_the_thesis_says() {
        for (age_s, expected) in [(0.5, 1.0), (1.0, 0.967), (2.0, 0.766), (3.0, 0.407), (4.0, 0.118), (5.0, 0.016)] {
            assert!((fading(age_s) - expected).abs() < 5e-4, "f({age_s}) = {}", fading(age_s));
        }
    }

    #[test]
    fn remembers_by_node_until_faded() {
        let thread = ThreadId { tid: 1, start_boottime_ns: 2 };
        let mut memory = PerformanceMemory::default();
        memory.record(thread, NodeIndex(1), 0.5, 200.0, 1_000_000_000);
        let recalled = memory.recall(thread, 2, 3_000_000_000);
        assert_eq!(recalled[NodeIndex(0)], None);
        assert!((recalled[NodeIndex(1)].unwrap() - 0.0025 * 0.766).abs() < 1e-5);
        assert_eq!(memory.recall(thread, 2, 11_000_000_000)[NodeIndex(1)], None);
        memory.prune(11_000_000_000, |_| true);
        assert!(memory.seen.is_empty());
    }
}
