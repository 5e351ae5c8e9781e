// SPDX-License-Identifier: GPL-2.0-only
//! Two CPUs that serve one queue and switch at the same moments.

use super::{SLICE_NS, linked_credit_ns, linked_vtime_entering, linked_weight, vtime_after};

/// CPU time, in ticks, of tasks of these weights on two CPUs with the same ticks, of which one is always the first. What
/// that one stops running at a tick is not in the queue yet when the other one looks for its next task. A slice ends with
/// the second tick; one in twenty ends with the first, so that the CPUs get out of step and into it again.
fn ticks_on_two_cpus(weights: [u32; 4], ticks: usize) -> [u32; 4] {
    const TICK_NS: u64 = 4_000_000;
    let credit_ns = |task: usize| linked_credit_ns(true, linked_weight(weights[task]), SLICE_NS);
    let (mut vtimes, mut ran, mut queue_vtime) = ([1 << 40; 4], [0; 4], 1 << 40);
    let (mut running, mut left, mut waiting) = ([0, 1], [2, 2], vec![2, 3]);
    let mut random = 1u32;
    for _ in 0..ticks {
        let mut stopped = vec![];
        for cpu in 0..2 {
            let task = running[cpu];
            vtimes[task] = vtime_after(vtimes[task], TICK_NS, weights[task]);
            ran[task] += 1;
            left[cpu] -= 1;
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if left[cpu] > 0 && random >> 16 >= (1 << 16) / 20 {
                continue;
            }
            left[cpu] = 2;
            vtimes[task] = linked_vtime_entering(vtimes[task], queue_vtime, credit_ns(task));
            let first = (0..2 - stopped.len()).min_by_key(|&at| vtimes[waiting[at]]).expect("one of two still waits");
            if vtimes[task] < vtimes[waiting[first]] {
                continue;
            }
            running[cpu] = waiting.remove(first);
            stopped.push(task);
            queue_vtime = queue_vtime.max(vtimes[running[cpu]]);
        }
        waiting.extend(stopped);
    }
    ran
}

#[test]
fn weights_hold_on_cpus_that_switch_at_the_same_moment() {
    for weights in [[50, 50, 150, 150], [25, 25, 75, 75], [20, 100, 100, 60]] {
        let ran = ticks_on_two_cpus(weights, 40_000);
        for (ran, weight) in ran.into_iter().zip(weights) {
            let (share, fair) = (f64::from(ran) / 80_000.0, f64::from(weight) / f64::from(weights.iter().sum::<u32>()));
            assert!((share / fair - 1.0).abs() < 0.05, "{weights:?}: {share:.4} for {fair:.4}");
        }
    }
}
