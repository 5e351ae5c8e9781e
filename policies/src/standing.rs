// SPDX-License-Identifier: GPL-2.0-only
//! How well each thread performs now, and against the other threads of its process.
//!
//! P = O*I/L (Thanos thesis, eq. 3.6) with I = O/(A*S): operations per second O, memory accesses per second A, bytes of
//! a cache line S and mean latency L. Where a snapshot has O, A and L of any busy thread, P comes from those. Else it is
//! what is remembered of the thread's present node, which a sampler without counters infers from the share of a CPU and
//! the predicted latency (ours). The two are never mixed in one snapshot.
//!
//! P_rel = P / mean P of the process (eq. 3.13, 3.14), so that processes of unlike intensity compare fairly. A thread alone
//! in its process has 1. For P_rel, P is divided by the capacity of the thread's CPU (ours): a thread on a slow core lags
//! because of its core, not of its memory, and no other node would help it.

use std::collections::BTreeMap;

use crate::model::{FULL_CAPACITY, ProcessId, Thread, Topology};

/// S: bytes of a cache line (eq. 3.1).
pub const LINE_BYTES: f64 = 64.0;

/// P by thread, in the order of the threads; `None` where it is not known.
pub struct Standing {
    performance: Vec<Option<f64>>,
    relative: Vec<Option<f64>>,
}

impl Standing {
    /// The standing of `threads` on a machine; `None` if the snapshot has neither O, A and L nor a remembered P of any.
    pub fn of(topology: &Topology, threads: &[&Thread]) -> Option<Self> {
        let measured = threads.iter().any(|thread| is_measured(thread));
        if !measured && threads.iter().all(|thread| thread.performance[thread.node].is_none()) {
            return None;
        }
        let own =
            |thread: &&Thread| if measured { measured_performance(thread) } else { thread.performance[thread.node] };
        let sound = |performance: &f64| performance.is_finite() && *performance > 0.0;
        let performance: Vec<Option<f64>> = threads.iter().map(|thread| own(thread).filter(sound)).collect();
        let mut sums: BTreeMap<ProcessId, (f64, f64)> = BTreeMap::new();
        let for_its_cpu =
            |(thread, known): (&&Thread, &Option<f64>)| known.map(|own| own / relative_capacity(topology, thread));
        let comparable: Vec<Option<f64>> = threads.iter().zip(&performance).map(for_its_cpu).collect();
        for (thread, known) in threads.iter().zip(&comparable) {
            if let Some(known) = known {
                let (sum, count) = sums.entry(thread.process).or_default();
                *sum += known;
                *count += 1.0;
            }
        }
        let relative = |(thread, known): (&&Thread, &Option<f64>)| {
            let (sum, count) = sums.get(&thread.process)?;
            Some((*known)? * count / sum)
        };
        let relative = threads.iter().zip(&comparable).map(relative).collect();
        Some(Self { performance, relative })
    }

    /// P of the thread at `at`.
    pub fn performance(&self, at: usize) -> Option<f64> {
        self.performance[at]
    }

    /// P_rel of the thread at `at`.
    pub fn relative(&self, at: usize) -> Option<f64> {
        self.relative[at]
    }

    /// Whether the thread at `at` has P_rel below `limit`.
    pub fn lags(&self, at: usize, limit: f64) -> bool {
        self.relative[at].is_some_and(|relative| relative < limit)
    }

    /// Threads with P_rel below `limit`, the lowest first, in their order on a tie.
    pub fn lagging(&self, limit: f64) -> Vec<usize> {
        let mut lagging: Vec<usize> = (0..self.relative.len()).filter(|&at| self.lags(at, limit)).collect();
        lagging.sort_by(|&a, &b| self.relative[a].unwrap_or(0.0).total_cmp(&self.relative[b].unwrap_or(0.0)));
        lagging
    }
}

/// Capacity of the CPU that `thread` ran on last, as a share of that of the fastest; the mean of its node if it was on
/// another node then.
fn relative_capacity(topology: &Topology, thread: &Thread) -> f64 {
    let node = &topology.nodes[thread.node];
    let own = node.cpus.binary_search(&thread.cpu).map(|_| node.cpu_capacity(thread.cpu) as f64);
    own.unwrap_or_else(|_| node.mean_cpu_capacity()) / FULL_CAPACITY as f64
}

fn is_measured(thread: &Thread) -> bool {
    thread.operations_per_s.is_some() && thread.accesses_per_s.is_some() && thread.latency_ns.is_some()
}

/// O*I/L; `None` without the signals, and for a thread that accesses no memory.
fn measured_performance(thread: &Thread) -> Option<f64> {
    let operations = thread.operations_per_s?;
    let accesses = thread.accesses_per_s.as_ref()?.total();
    Some(operations * operations / (accesses * LINE_BYTES) / thread.latency_ns?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeIndex, Snapshot};
    use crate::testing::{SnapshotBuilder, throttled, two_nodes};

    fn of(snapshot: &Snapshot) -> Option<Standing> {
        Standing::of(&snapshot.topology, &snapshot.threads.iter().collect::<Vec<_>>())
    }

    fn measured(operations: f64, latency_ns: f64, process: u32) -> impl FnOnce(&mut Thread) {
        move |thread| {
            thread.operations_per_s = Some(operations);
            thread.latency_ns = Some(latency_ns);
            thread.process = ProcessId(process);
        }
    }

    #[test]
    fn performance_is_operations_times_intensity_by_latency_and_halves_when_the_latency_doubles() {
        let builder =
            SnapshotBuilder::new(two_nodes(2)).thread(1, 0, Some(&[1e6, 1e6])).with_thread(measured(8e8, 100.0, 1));
        let snapshot = builder.thread(2, 0, Some(&[2e6, 0.0])).with_thread(measured(8e8, 200.0, 1)).build();
        let standing = of(&snapshot).unwrap();
        assert_eq!(standing.performance(0), Some(8e8 * (8e8 / (2e6 * 64.0)) / 100.0));
        assert_eq!(standing.performance(1), standing.performance(0).map(|first| first / 2.0));
    }

    /// A public copy of the source's tool keeps latencies by the node of the data and reads them by the node of the thread: a
    /// thread all of whose memory is remote looks fast there.
    #[test]
    fn the_same_thread_performs_worse_when_all_its_memory_is_remote() {
        let topology = two_nodes(1);
        let placed = |memory: usize| {
            let latency_ns = topology.latency_ns(NodeIndex(0), NodeIndex(memory));
            let builder = SnapshotBuilder::new(topology.clone()).thread_with_memory_on(1, 0, memory);
            let seen = builder.with_thread(measured(8e8, latency_ns, 1)).build();
            let remembered = |thread: &mut Thread| thread.performance[NodeIndex(0)] = Some(1.0 / latency_ns);
            let builder = SnapshotBuilder::new(topology.clone()).thread_with_memory_on(1, 0, memory);
            [seen, builder.with_thread(remembered).build()]
                .map(|snapshot| of(&snapshot).unwrap().performance(0).unwrap())
        };
        let (local, remote) = (placed(0), placed(1));
        for (local, remote) in local.into_iter().zip(remote) {
            assert!((local / remote - 2.1).abs() < 1e-9, "{local} locally, {remote} remotely");
        }
    }

    #[test]
    fn a_thread_is_compared_with_its_own_process_only() {
        let builder =
            SnapshotBuilder::new(two_nodes(4)).thread(1, 0, Some(&[1e6, 0.0])).with_thread(measured(1e9, 1.0, 1));
        let builder = builder.thread(2, 0, Some(&[1e6, 0.0])).with_thread(measured(1e9, 3.0, 1));
        let snapshot = builder.thread(3, 0, Some(&[1e9, 0.0])).with_thread(measured(1e6, 90.0, 2)).build();
        let standing = of(&snapshot).unwrap();
        let relative: Vec<f64> = (0..3).map(|at| standing.relative(at).unwrap()).collect();
        assert!((relative[0] - 1.5).abs() < 1e-12 && (relative[1] - 0.5).abs() < 1e-12 && relative[2] == 1.0);
        assert_eq!(standing.lagging(0.8), [1]);
        assert_eq!(standing.lagging(2.0), [1, 2, 0]);
    }

    #[test]
    fn a_thread_on_a_core_of_half_the_speed_does_not_lag_with_half_the_performance() {
        let builder = SnapshotBuilder::new(throttled(two_nodes(2), 1, 512));
        let builder = builder.thread(1, 0, Some(&[1e6, 0.0])).with_thread(measured(1e9, 1.0, 1));
        let builder = builder.thread(2, 1, Some(&[0.0, 1e6])).with_thread(measured(1e9, 2.0, 1));
        let snapshot = builder.thread(3, 1, Some(&[0.0, 1e6])).with_thread(measured(1e9, 4.0, 1)).build();
        let standing = of(&snapshot).unwrap();
        let relative: Vec<f64> = (0..3).map(|at| standing.relative(at).unwrap()).collect();
        assert!((relative[0] - 1.2).abs() < 1e-12 && (relative[1] - 1.2).abs() < 1e-12, "{relative:?}");
        assert!((relative[2] - 0.6).abs() < 1e-12, "its memory is what slows it down");
        assert_eq!(
            standing.performance(1),
            standing.performance(0).map(|first| first / 2.0),
            "P itself is as measured"
        );
    }

    #[test]
    fn remembered_performance_stands_in_where_nothing_is_measured() {
        let remembered = |own: f64| move |thread: &mut Thread| thread.performance = vec![Some(own), Some(9.0)].into();
        let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).with_thread(remembered(1.0));
        let snapshot = builder.thread(2, 0, None).with_thread(remembered(3.0)).build();
        let standing = of(&snapshot).unwrap();
        assert_eq!([standing.performance(0), standing.performance(1)], [Some(1.0), Some(3.0)]);
        assert_eq!([standing.relative(0), standing.relative(1)], [Some(0.5), Some(1.5)]);
    }

    #[test]
    fn measured_and_remembered_performance_do_not_mix() {
        let builder =
            SnapshotBuilder::new(two_nodes(2)).thread(1, 0, Some(&[1e6, 0.0])).with_thread(measured(1e9, 1.0, 1));
        let only_remembered = |thread: &mut Thread| thread.performance = vec![Some(1.0), None].into();
        let standing = of(&builder.thread(2, 0, None).with_thread(only_remembered).build()).unwrap();
        assert_eq!((standing.relative(0), standing.relative(1)), (Some(1.0), None));
    }

    #[test]
    fn no_performance_is_known_of_a_thread_without_accesses_or_with_a_latency_that_is_no_number() {
        let builder =
            SnapshotBuilder::new(two_nodes(2)).thread(1, 0, Some(&[0.0, 0.0])).with_thread(measured(1e9, 1.0, 1));
        let snapshot = builder.thread(2, 0, Some(&[1.0, 0.0])).with_thread(measured(1e9, f64::NAN, 1)).build();
        let standing = of(&snapshot).unwrap();
        assert_eq!([standing.performance(0), standing.relative(0), standing.performance(1)], [None; 3]);
        assert!(standing.lagging(2.0).is_empty());
    }

    #[test]
    fn nothing_seen_of_any_thread_is_a_missing_signal() {
        assert!(of(&SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build()).is_none());
    }
}
