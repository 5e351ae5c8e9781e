// SPDX-License-Identifier: GPL-2.0-only
//! The accesses of threads with a signal, from where they ran, by node of the memory: of all of them, and of those of each process.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{ByProcess, Locality};
use crate::knee::Load;
use crate::model::{NodeIndex, ProcessId, Snapshot, Thread};
use crate::signals::sound;

/// Accesses of some threads.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) loads: Vec<Load>,
    /// Accesses x latency of the idle machine, in ns per second.
    pub(super) stall_ns_per_s: Vec<f64>,
    /// Accesses per second x square of that latency.
    squares: f64,
    /// Accesses to other nodes' memory.
    remote_per_s: f64,
}

impl Traffic {
    fn none(nodes: usize) -> Self {
        let (loads, stall_ns_per_s) = (vec![Load::default(); nodes], vec![0.0; nodes]);
        Self { loads, stall_ns_per_s, squares: 0.0, remote_per_s: 0.0 }
    }

    pub(super) fn of<'a>(snapshot: &Snapshot, threads: impl Iterator<Item = Cow<'a, Thread>>) -> Self {
        let mut all = Self::none(snapshot.topology.len());
        threads.for_each(|thread| all.add(snapshot, &thread));
        all
    }

    /// Of all threads, and of each process's.
    pub(super) fn by_process<'a>(
        snapshot: &Snapshot,
        threads: impl Iterator<Item = Cow<'a, Thread>>,
    ) -> (Self, BTreeMap<ProcessId, Self>) {
        let nodes = snapshot.topology.len();
        let (mut all, mut of) = (Self::none(nodes), BTreeMap::new());
        threads.for_each(|thread| {
            all.add(snapshot, &thread);
            of.entry(thread.process).or_insert_with(|| Self::none(nodes)).add(snapshot, &thread);
        });
        (all, of)
    }

    fn add(&mut self, snapshot: &Snapshot, thread: &Thread) {
        let (Some(accesses), ran_ns) = (&thread.accesses_per_s, thread.run_ns.values().sum::<u64>()) else { return };
        if ran_ns == 0 {
            return;
        }
        for (memory, &rate) in accesses.iter() {
            self.loads[memory.0] = self.loads[memory.0].plus(Load { per_s: rate, waited_per_s: rate }, 1.0);
            for (run, &on_node_ns) in thread.run_ns.iter() {
                let (from_here, far_ns) =
                    (rate * on_node_ns as f64 / ran_ns as f64, snapshot.topology.latency_ns(run, memory));
                self.stall_ns_per_s[memory.0] += from_here * far_ns;
                self.squares += from_here * far_ns * far_ns;
                self.remote_per_s += if run == memory { 0.0 } else { from_here };
            }
        }
    }

    pub(super) fn per_s(&self) -> f64 {
        self.loads.iter().map(|load| load.per_s).sum()
    }

    /// Mean latency of the accesses to each memory, on an idle machine; 0 where there are none.
    pub(super) fn idle_ns(&self) -> Vec<f64> {
        let mean = |(load, stall_ns): (&Load, &f64)| if load.per_s > 0.0 { stall_ns / load.per_s } else { 0.0 };
        self.loads.iter().zip(&self.stall_ns_per_s).map(mean).collect()
    }

    /// What each memory was measured to take longer than on an idle machine, if this is all traffic; 0 where nothing was measured.
    pub(super) fn measured_waits_ns(&self, snapshot: &Snapshot) -> Vec<f64> {
        let wait = |(node, idle_ns): (usize, f64)| {
            let served_ns = snapshot.nodes.get(NodeIndex(node)).and_then(|node| node.served_latency_ns);
            served_ns.map_or(0.0, |served_ns| (sound(served_ns) - idle_ns).max(0.0))
        };
        self.idle_ns().into_iter().enumerate().map(wait).collect()
    }

    /// With these waits at the memories; `None` without accesses.
    pub(super) fn locality(&self, waits_ns: &[f64]) -> Option<Locality> {
        let per_s = self.per_s();
        let waits: f64 = self.loads.iter().zip(waits_ns).map(|(load, wait_ns)| load.per_s * wait_ns).sum();
        (per_s > 0.0).then(|| Locality {
            latency_ns: (self.stall_ns_per_s.iter().sum::<f64>() + waits) / per_s,
            remote_share: self.remote_per_s / per_s,
        })
    }

    /// Standard error of the mean latency, on an idle machine, that so many samples tell; 0 where there are none.
    pub(super) fn error_ns(&self, samples: f64) -> f64 {
        let per_s = self.per_s();
        if samples == 0.0 || per_s == 0.0 {
            return 0.0;
        }
        let mean_ns = self.stall_ns_per_s.iter().sum::<f64>() / per_s;
        (self.squares / per_s - mean_ns * mean_ns).max(0.0).sqrt() / samples.sqrt()
    }
}

/// What accesses are like, of all threads together and of each process's, with these waits at the memories.
pub(super) fn localities((all, of): &(Traffic, BTreeMap<ProcessId, Traffic>), waits_ns: &[f64]) -> ByProcess<Locality> {
    let of_one = |(&process, traffic): (&ProcessId, &Traffic)| Some((process, traffic.locality(waits_ns)?));
    ByProcess { all: all.locality(waits_ns), of: of.iter().filter_map(of_one).collect() }
}
