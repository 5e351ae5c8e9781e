// SPDX-License-Identifier: GPL-2.0-only
//! Any thread policy combines with any page policy: all pairs decide on one snapshot.

use super::wrong_input::{carried_out, check, with_all_signals};
use crate::decider::{Decider, PolicyChoice};
use crate::model::Snapshot;
use crate::registry::{Kind, find, policies};
use crate::testing::{SnapshotBuilder, two_nodes};

fn names(kind: Kind) -> Vec<&'static str> {
    policies().iter().filter(|policy| policy.kind == kind && policy.name != "none").map(|policy| policy.name).collect()
}

/// Six threads on two nodes, each with its memory and the pages that it uses on the other one.
fn crossed() -> Snapshot {
    let thread =
        |all: SnapshotBuilder, k: u32| all.thread_with_memory_on(k, k as usize / 2 % 2, (k as usize / 2 + 1) % 2);
    let builder = (0..6).fold(SnapshotBuilder::new(two_nodes(8)), thread);
    let group = |all: SnapshotBuilder, k: u32| {
        let pages = if (k / 2).is_multiple_of(2) { [0, 512] } else { [512, 0] };
        all.group_used_by(&pages, &[(k, 1e6)])
    };
    with_all_signals((0..6).fold(builder, group).build())
}

#[test]
fn every_thread_policy_decides_beside_every_page_policy() {
    let (threads, pages) = (names(Kind::Thread), names(Kind::Page));
    assert_eq!((threads.len(), pages.len()), (15, 11));
    for thread in threads {
        for &page in &pages {
            let pair = format!("{thread}+{page}");
            let both = [find(Kind::Thread, thread).unwrap(), find(Kind::Page, page).unwrap()];
            let mut decider = Decider::new(PolicyChoice::of_both(&pair).unwrap());
            let mut now = crossed();
            let mut moves = 0;
            for decision in 0..12 {
                // Touched now and then, so that policies that look at the touches have something to see.
                now.groups.iter_mut().for_each(|group| group.samples += f64::from(decision % 3));
                let decided = decider.decide(&now, decision as u64, 2000);
                for (policy, answer) in both.into_iter().zip(&decided.answers) {
                    let plan = answer.as_ref().unwrap_or_else(|missing| panic!("{pair}: {missing}"));
                    check(policy, &now, plan).unwrap();
                    moves += plan.moves.len();
                }
                let plan = decided.plan().cloned().unwrap_or_default();
                now = carried_out(&now, &plan);
            }
            assert!(moves > 0, "{pair} never has a plan");
        }
    }
}
