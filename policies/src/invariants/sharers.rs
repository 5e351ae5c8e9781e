// SPDX-License-Identifier: GPL-2.0-only
//! The same for the policies that look at what threads share, and for those that look at nothing.

use super::*;
use crate::model::{CpuId, Move, PerNode, ProcessId, Transfers};
use crate::registry::{Memory, Policy};
use crate::testing::{decided_with, two_nodes};
use crate::{compact, contiguous, direct, kmaf, opt, sam, scatter};

static ALL: [&Policy; 7] = [
    &compact::POLICY,
    &contiguous::POLICY,
    &direct::POLICY,
    &kmaf::POLICY,
    &opt::POLICY,
    &sam::POLICY,
    &scatter::POLICY,
];

/// What a thread gets from caches within and across nodes and the memory it accesses, in 100 k lines per second, if
/// known; and its process.
type CountersDraw = (Option<(u8, u8)>, bool, u8, u8);
/// Two threads and what they share.
type SharingDraw = (usize, usize, u16);

fn counted(mut snapshot: Snapshot, counters: &[CountersDraw], sharing: &[SharingDraw]) -> Snapshot {
    let ids: Vec<ThreadId> = snapshot.threads.iter().map(|thread| thread.id).collect();
    for (thread, &(transfers, cycles, accesses, process)) in snapshot.threads.iter_mut().zip(counters) {
        let lines = |hundred_thousands: u8| 1e5 * f64::from(hundred_thousands);
        thread.transfers_per_s =
            transfers.map(|(within, across)| Transfers { within_node: lines(within), across_nodes: lines(across) });
        thread.cycles_per_s = cycles.then_some(1e9);
        thread.process = ProcessId(u32::from(process));
        if let Some(row) = &mut thread.accesses_per_s {
            *row = PerNode::from_fn(row.len(), |node| row[node] * f64::from(accesses));
        }
    }
    for &(one, other, per_s) in sharing.iter().filter(|draw| draw.0.max(draw.1) < ids.len() && draw.0 != draw.1) {
        for (at, partner) in [(one, other), (other, one)] {
            let row = &mut snapshot.threads[at].sharing;
            row.retain(|cell| cell.0 != ids[partner]);
            row.push((ids[partner], f64::from(per_s)));
            row.sort_by_key(|cell| cell.0);
        }
    }
    snapshot
}

fn counted_snapshot() -> impl Strategy<Value = Snapshot> {
    let transfers = proptest::option::weighted(0.9, (0u8..30, 0u8..30));
    let counters = proptest::collection::vec((transfers, any::<bool>(), 0u8..60, 1u8..4), 14);
    let sharing = proptest::collection::vec((0usize..14, 0usize..14, 0u16..2000), 0..40);
    (snapshot(), counters, sharing).prop_map(|(snapshot, counters, sharing)| counted(snapshot, &counters, &sharing))
}

/// The plan; empty without the signal.
fn planned(policy: &Policy, snapshot: &Snapshot, memory: &mut Memory) -> Plan {
    decided_with(policy, snapshot, memory).unwrap_or_default()
}

fn check(policy: &Policy, snapshot: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let moves = thread_moves(plan);
    for &(id, from, to) in &moves {
        let thread = snapshot.thread(id).unwrap();
        prop_assert!(may_run(snapshot, thread, to), "{}: thread {id} to {to:?}", policy.name);
        prop_assert!(from == thread.node && to != from && !thread.on_cooldown, "{}: {id}", policy.name);
    }
    let distinct: BTreeSet<ThreadId> = moves.iter().map(|&(id, ..)| id).collect();
    prop_assert_eq!(distinct.len(), moves.len(), "{}: no thread moves twice", policy.name);
    let busy: BTreeSet<ThreadId> = busy(snapshot).iter().map(|thread| thread.id).collect();
    prop_assert!(distinct.is_subset(&busy), "{}: no idle thread moves", policy.name);
    let sound = |planned: &Move| !planned.reason.is_empty() && planned.gain_ns_per_s.is_none_or(f64::is_finite);
    prop_assert!(plan.moves.iter().all(sound), "{}: {plan:?}", policy.name);
    Ok(())
}

/// What a snapshot becomes one second after `plan`.
fn later(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let mut later = snapshot.after_thread_moves(plan);
    later.time_ns += 1_000_000_000;
    later
}

proptest! {
    #[test]
    fn plans_are_valid_one_after_the_other(first in counted_snapshot(), others in proptest::collection::vec(
        (proptest::collection::vec((proptest::option::of((0u8..30, 0u8..30)), any::<bool>(), 0u8..60, 1u8..4), 14),
         proptest::collection::vec((0usize..14, 0usize..14, 0u16..2000), 0..40)), 0..4)) {
        for policy in ALL {
            let (mut memory, mut snapshot) = (Memory::default(), first.clone());
            for (counters, sharing) in &others {
                let plan = planned(policy, &snapshot, &mut memory);
                check(policy, &snapshot, &plan)?;
                snapshot = counted(later(&snapshot, &plan), counters, sharing);
            }
            check(policy, &snapshot, &planned(policy, &snapshot, &mut memory))?;
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_plan(snapshot in counted_snapshot()) {
        for policy in ALL {
            let plan = || decided(policy, &snapshot, 3, 100);
            prop_assert_eq!(plan(), plan());
        }
    }

    /// `sam` is left out: its plans change the transfers that it decides by.
    #[test]
    fn the_plan_after_a_plan_is_empty(snapshot in counted_snapshot()) {
        for policy in ALL.into_iter().filter(|policy| policy.name != "sam") {
            let mut memory = Memory::default();
            let plan = planned(policy, &snapshot, &mut memory);
            let next = planned(policy, &later(&snapshot, &plan), &mut memory);
            prop_assert!(next.is_empty(), "{}: {next:?} after {plan:?}", policy.name);
        }
    }

    #[test]
    fn threads_that_vanish_are_forgotten(snapshot in counted_snapshot(), left in 0usize..14) {
        for policy in ALL {
            let mut memory = Memory::default();
            let mut fewer = later(&snapshot, &planned(policy, &snapshot, &mut memory));
            fewer.threads.truncate(left);
            check(policy, &fewer, &planned(policy, &fewer, &mut memory))?;
            // Of a machine of two nodes now: nodes went offline.
            let small = SnapshotBuilder::new(two_nodes(1)).thread(0, 0, None).thread(1, 1, None).build();
            check(policy, &small, &planned(policy, &small, &mut memory))?;
        }
    }
}

/// Everything a policy could trip over.
fn odd_snapshots() -> Vec<Snapshot> {
    let pair = |nodes| SnapshotBuilder::new(nodes).thread(0, 0, Some(&[0.0; 2])).thread(1, 1, Some(&[0.0; 2]));
    let with = |change: fn(&mut Thread)| {
        let mut snapshot = pair(two_nodes(2)).shared(0, 1, 1e6).build();
        snapshot.threads.iter_mut().for_each(change);
        snapshot
    };
    let nan = Some(Transfers { within_node: f64::NAN, across_nodes: f64::NAN });
    let endless = with(|thread| thread.sharing.iter_mut().for_each(|cell| cell.1 = f64::INFINITY));
    let mut no_interval =
        with(|thread| thread.transfers_per_s = Some(Transfers { within_node: 1e6, across_nodes: 1e6 }));
    no_interval.interval_ns = 0;
    let mut not_a_number = with(|thread| thread.accesses_per_s = Some(vec![f64::NAN; 2].into()));
    for thread in &mut not_a_number.threads {
        thread.transfers_per_s = nan;
        thread.cycles_per_s = Some(f64::NAN);
        thread.sharing.iter_mut().for_each(|cell| cell.1 = f64::NAN);
    }
    vec![
        SnapshotBuilder::new(two_nodes(2)).build(),
        pair(two_nodes(2)).build(),
        with(|thread| thread.transfers_per_s = Some(Transfers::default())),
        with(|thread| thread.cpu = CpuId(999)),
        with(|thread| thread.sharing.iter_mut().for_each(|cell| cell.1 = 0.0)),
        with(|thread| thread.sharing = vec![(thread.id, 1e6)]),
        with(|thread| thread.sharing.iter_mut().for_each(|cell| cell.1 = f64::MAX)),
        endless,
        no_interval,
        not_a_number,
    ]
}

#[test]
fn odd_snapshots_give_valid_plans_and_no_panic() {
    for policy in ALL {
        for snapshot in odd_snapshots() {
            let mut memory = Memory::default();
            for _ in 0..3 {
                check(policy, &snapshot, &planned(policy, &snapshot, &mut memory)).unwrap();
            }
        }
    }
}

#[test]
fn on_one_node_nothing_moves() {
    let topology = machine_with_ids(&[3], &[2], &[&[10]]);
    let builder = (0..5).fold(SnapshotBuilder::new(topology), |all, tid| all.thread(tid, 0, Some(&[1e9])));
    let mut snapshot = builder.shared(0, 1, 1e6).build();
    let transfers = Some(Transfers { within_node: 1e6, across_nodes: 1e6 });
    snapshot.threads.iter_mut().for_each(|thread| thread.transfers_per_s = transfers);
    for policy in ALL {
        assert!(decided(policy, &snapshot, 1, 1).unwrap().is_empty(), "{}", policy.name);
    }
}
