// SPDX-License-Identifier: GPL-2.0-only
//! A clock that goes back is another recording: every policy starts anew.

use super::wrong_input::{anything_but_well_placed, carried_out};
use crate::model::{Plan, Snapshot};
use crate::registry::{Memory, Policy, policies};
use crate::testing::{decided_with, two_nodes};

/// Plans for `snapshot` and what becomes of it, from `start_s` on.
fn recorded(policy: &Policy, snapshot: &Snapshot, start_s: u64, memory: &mut Memory) -> Vec<Option<Plan>> {
    let mut now = Snapshot { time_ns: start_s * 1_000_000_000, ..snapshot.clone() };
    (0..12)
        .map(|decision: u64| {
            // Touched now and then, so that policies that look at the touches have something to see.
            now.groups.iter_mut().for_each(|group| group.samples += (decision % 3) as f64);
            let plan = decided_with(policy, &now, memory).ok();
            now = carried_out(&now, plan.as_ref().unwrap_or(&Plan::default()));
            plan
        })
        .collect()
}

#[test]
fn an_earlier_snapshot_starts_anew() {
    let snapshot = anything_but_well_placed(two_nodes(2), 6);
    for &policy in policies() {
        let mut memory = Memory::default();
        recorded(policy, &snapshot, 100_000, &mut memory);
        let later = recorded(policy, &snapshot, 1, &mut memory);
        assert_eq!(later, recorded(policy, &snapshot, 1, &mut Memory::default()), "{} {}", policy.kind, policy.name);
    }
}
