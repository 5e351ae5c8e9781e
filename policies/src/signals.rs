// SPDX-License-Identifier: GPL-2.0-only
//! Which signals a snapshot has, and which of its numbers can be true.

use crate::model::Snapshot;
use crate::registry::Signal;

/// Rates above this are nonsense.
const GREATEST: f64 = 1e15;

/// A number from a sampler: 0 if it is none, or negative.
pub(crate) fn sound(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, GREATEST) } else { 0.0 }
}

impl Signal {
    /// Whether any thread or page group of `snapshot` has it.
    pub fn is_in(self, snapshot: &Snapshot) -> bool {
        let (mut threads, mut groups) = (snapshot.threads.iter(), snapshot.groups.iter());
        match self {
            Signal::ThreadAccesses => threads.any(|thread| thread.accesses_per_s.is_some()),
            Signal::ThreadOperations => threads.any(|thread| thread.operations_per_s.is_some()),
            Signal::ThreadCycles => threads.any(|thread| thread.cycles_per_s.is_some()),
            Signal::ThreadPerformance => threads.any(|thread| {
                let measured =
                    thread.operations_per_s.and(thread.latency_ns).is_some() && thread.accesses_per_s.is_some();
                measured || thread.performance[thread.node].is_some()
            }),
            Signal::ThreadTransfers => threads.any(|thread| thread.transfers_per_s.is_some()),
            Signal::ThreadSharing => threads.any(|thread| !thread.sharing.is_empty()),
            Signal::ThreadLatency => threads.any(|thread| thread.latency_ns.is_some()),
            Signal::GroupAccesses => groups.any(|group| group.accesses_per_s.total() > 0.0),
            Signal::GroupResidency => groups.any(|group| group.home().is_some()),
            Signal::GroupUsers => groups.any(|group| !group.users.is_empty()),
            Signal::GroupLatency => groups.any(|group| group.latency_ns.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Transfers;
    use crate::testing::{SnapshotBuilder, two_nodes};

    const ALL: [Signal; 11] = [
        Signal::ThreadAccesses,
        Signal::ThreadOperations,
        Signal::ThreadCycles,
        Signal::ThreadPerformance,
        Signal::ThreadTransfers,
        Signal::ThreadSharing,
        Signal::ThreadLatency,
        Signal::GroupAccesses,
        Signal::GroupResidency,
        Signal::GroupUsers,
        Signal::GroupLatency,
    ];

    #[test]
    fn a_signal_is_there_as_soon_as_one_thread_or_group_has_it() {
        let blank =
            || SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).thread(2, 1, None).group(&[0, 0], &[0.0, 0.0]);
        assert!(ALL.iter().all(|signal| !signal.is_in(&blank().build())));
        let with = |signal: Signal| {
            let mut snapshot = blank().build();
            let other = snapshot.threads[0].id;
            let (thread, group) = (&mut snapshot.threads[1], &mut snapshot.groups[0]);
            match signal {
                Signal::ThreadAccesses => thread.accesses_per_s = Some(vec![1.0, 0.0].into()),
                Signal::ThreadOperations => thread.operations_per_s = Some(1.0),
                Signal::ThreadCycles => thread.cycles_per_s = Some(1.0),
                Signal::ThreadPerformance => thread.performance = vec![None, Some(1.0)].into(),
                Signal::ThreadTransfers => thread.transfers_per_s = Some(Transfers::default()),
                Signal::ThreadSharing => thread.sharing = vec![(other, 1.0)],
                Signal::ThreadLatency => thread.latency_ns = Some(1.0),
                Signal::GroupAccesses => group.accesses_per_s = vec![1.0, 0.0].into(),
                Signal::GroupResidency => group.resident_pages = vec![1, 0].into(),
                Signal::GroupUsers => group.users = [(other, 1.0)].into(),
                Signal::GroupLatency => group.latency_ns = Some(1.0),
            }
            snapshot
        };
        for signal in ALL {
            let there: Vec<&Signal> = ALL.iter().filter(|other| other.is_in(&with(signal))).collect();
            assert_eq!(there, [&signal]);
        }
    }
}
