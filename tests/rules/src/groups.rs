// SPDX-License-Identifier: GPL-2.0-only
//! Control groups: weights against proportional shares of the hierarchy, quotas over many periods.

use proptest::prelude::*;

use super::{linked_refilled, linked_weight, linked_weight_in_group};

/// A control group of the model: its weight, the weights of its runnable tasks, its subgroups.
#[derive(Clone, Debug)]
struct Group {
    weight: u32,
    tasks: Vec<u32>,
    groups: Vec<Group>,
}

impl Group {
    fn is_active(&self) -> bool {
        !self.tasks.is_empty() || self.groups.iter().any(Group::is_active)
    }

    /// What its runnable tasks and subgroups weigh together.
    fn active(&self) -> u64 {
        let groups = self.groups.iter().filter(|group| group.is_active()).map(|group| group.weight);
        self.tasks.iter().copied().chain(groups).map(u64::from).sum()
    }

    /// Share of `mine` that each task below has, depth first: proportional shares, level by level.
    fn shares(&self, mine: f64) -> Vec<f64> {
        let part = |weight: u32| mine * f64::from(weight) / self.active() as f64;
        let groups = self.groups.iter().filter(|group| group.is_active());
        let below = groups.flat_map(|group| group.shares(part(group.weight)));
        self.tasks.iter().map(|&task| part(task)).chain(below).collect()
    }

    /// The weights that the rules leave each task below, in the same order; `above` are the groups on the way up.
    fn weights<'a>(&'a self, above: &[&'a Group]) -> Vec<u32> {
        let up = |weight: u32| {
            above.iter().rev().fold(weight, |weight, group| {
                linked_weight_in_group(u64::from(weight), group.weight, group.active() as i64)
            })
        };
        let tasks = self.tasks.iter().map(|&task| up(linked_weight(task)));
        let groups = self.groups.iter().filter(|group| group.is_active());
        tasks.chain(groups.flat_map(|group| group.weights(&[above, &[group]].concat()))).collect()
    }
}

fn groups() -> impl Strategy<Value = Group> {
    let tasks = || prop::collection::vec(10..=1_000u32, 0..4);
    let leaf = (10..=1_000u32, tasks()).prop_map(|(weight, tasks)| Group { weight, tasks, groups: Vec::new() });
    leaf.prop_recursive(3, 24, 3, move |inner| {
        (10..=1_000u32, tasks(), prop::collection::vec(inner, 0..3)).prop_map(|(weight, tasks, groups)| Group {
            weight,
            tasks,
            groups,
        })
    })
}

#[test]
fn a_group_has_its_weight_however_many_tasks_it_has() {
    let of_a_task = |tasks: i64| linked_weight_in_group(u64::from(linked_weight(100)), 300, tasks * 100);
    assert_eq!(of_a_task(1), linked_weight(300));
    assert_eq!(of_a_task(3), linked_weight(100));
    assert_eq!(of_a_task(0), linked_weight(300), "a sum that is being changed leaves no more than all");
    assert_eq!(of_a_task(-1), linked_weight(300));
    assert_eq!(linked_weight_in_group(1, 1, 1_000_000), 1, "never nothing");
}

proptest! {
    /// A group that always wants to run, and is stopped up to `excess_ns` too late: over many periods it gets its quota.
    #[test]
    fn a_quota_holds_in_the_long_run(quota_ns in 1_000_000..1_000_000_000u64, excess_ns in 0..5_000_000u64) {
        const PERIODS: u64 = 1_000;
        let (mut left_ns, mut ran_ns) = (quota_ns as i64, 0);
        for _ in 0..PERIODS {
            if left_ns > 0 {
                let ran = left_ns as u64 + excess_ns;
                ran_ns += ran;
                left_ns -= ran as i64;
            }
            left_ns = linked_refilled(left_ns, quota_ns, 0, 1);
        }
        prop_assert!(ran_ns <= PERIODS * quota_ns + excess_ns, "{ran_ns} ns");
        prop_assert!(ran_ns + quota_ns + excess_ns >= PERIODS * quota_ns, "{ran_ns} ns");
    }

    #[test]
    fn what_is_saved_is_a_burst_at_most(
        left_ns in -1_000_000_000_000i64..1_000_000_000, quota_ns in 0..1_000_000_000u64,
        burst_ns in 0..1_000_000_000u64, periods: u64,
    ) {
        let refilled = linked_refilled(left_ns, quota_ns, burst_ns, periods);
        prop_assert!(refilled <= (quota_ns + burst_ns) as i64);
        prop_assert!(refilled >= left_ns.min((quota_ns + burst_ns) as i64), "time takes nothing away");
    }

    #[test]
    fn flattened_weights_are_the_shares_of_the_hierarchy(root in groups()) {
        let (shares, weights) = (root.shares(1.0), root.weights(&[]));
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        for (share, weight) in shares.iter().zip(&weights) {
            // Each level rounds down by less than one part.
            let bound = 0.02 * share + 4.0 / total;
            let found = f64::from(*weight) / total;
            prop_assert!((found - share).abs() <= bound, "{found} of the CPU, {share} by the hierarchy");
        }
    }
}
