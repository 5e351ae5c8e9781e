// SPDX-License-Identifier: GPL-2.0-only
//! From how many shared lines a second on it matters whether two threads run on one node or on two.
//!
//! Two threads add to the same counters, each in a line of its own, one after the other, and compute for a while before each
//! addition. The more they compute, the less the way of the lines matters. SAM's threshold is the rate at which two nodes cost
//! more than 5 % (SAM, ATC 2015, section on calibration). Without a PMU the additions are counted: of two threads that go
//! through the same lines at the same pace nearly each one fetches its line from the other.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tandem_policies::model::CpuId;

use crate::topo::memory::on_cpus;

/// Lines that are shared, and additions between looks at the clock.
const LINES: usize = 64;
/// Two lines apart: hardware fetches neighbours in pairs.
#[repr(align(128))]
struct Line(AtomicU64);
/// What two nodes may cost.
const COST: f64 = 1.05;
/// Steps of computing before an addition: none, and from 1 doubled so often.
const DOUBLINGS: u32 = 18;

/// Additions per second of each of the two, with so many steps of computing before each.
fn rate_per_s(cpus: [CpuId; 2], steps: u32, length: Duration) -> Result<f64> {
    let lines: Vec<Line> = (0..LINES).map(|_| Line(AtomicU64::new(0))).collect();
    let rates = on_cpus(&cpus, |_| {
        let (begun, mut done) = (Instant::now(), 0_u64);
        while begun.elapsed() < length {
            for line in &lines {
                for step in 0..steps {
                    black_box(step);
                }
                line.0.fetch_add(1, Ordering::Relaxed);
            }
            done += LINES as u64;
        }
        done as f64 / begun.elapsed().as_secs_f64()
    })?;
    Ok(rates.iter().sum::<f64>() / 2.0)
}

/// The threshold in lines per second of a thread, with `near` two CPUs of a node and `far` of two; `None` if two nodes cost no
/// more than one, however much is shared.
///
/// # Errors
/// A CPU cannot be used.
pub fn threshold_per_s(near: [CpuId; 2], far: [CpuId; 2], each: Duration) -> Result<Option<f64>> {
    let mut measured = Vec::new();
    for steps in std::iter::once(0).chain((0..DOUBLINGS).map(|doubling| 1 << doubling)) {
        let (on_one, on_two) = (rate_per_s(near, steps, each)?, rate_per_s(far, steps, each)?);
        measured.push((on_two, on_one / on_two));
        // Noise may hide a cost once.
        if let [.., before, last] = measured[..]
            && before.1 < COST
            && last.1 < COST
        {
            break;
        }
    }
    Ok(crossing(&measured))
}

/// The rate at which the cost falls below [`COST`] for good, between the two measurements around it (rates and costs, from
/// the highest rate on).
fn crossing(measured: &[(f64, f64)]) -> Option<f64> {
    let last_above = measured.iter().rposition(|&(_, cost)| cost >= COST)?;
    let (rate, cost) = measured[last_above];
    let Some(&(rate_below, cost_below)) = measured.get(last_above + 1) else { return Some(rate) };
    // Costs are about in proportion to rates.
    let part = (COST - cost_below) / (cost - cost_below);
    Some(rate_below + (rate - rate_below) * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_lies_where_two_nodes_begin_to_cost_five_percent() {
        let measured = [(1e7, 2.5), (4e6, 1.3), (1e6, 1.07), (5e5, 1.03), (2e5, 1.01)];
        let found = crossing(&measured).unwrap();
        assert!((found - 7.5e5).abs() < 1.0, "{found}");
    }

    #[test]
    fn one_measurement_below_among_those_above_is_noise() {
        let measured = [(1e7, 2.5), (4e6, 1.0), (1e6, 1.06), (5e5, 1.04)];
        let found = crossing(&measured).unwrap();
        assert!((5e5..1e6).contains(&found), "{found}");
    }

    #[test]
    fn where_two_nodes_cost_nothing_there_is_no_threshold_and_where_always_it_is_the_lowest_rate() {
        assert_eq!(crossing(&[(1e7, 1.0), (4e6, 1.01)]), None);
        assert_eq!(crossing(&[(1e7, 2.0), (4e6, 1.2)]), Some(4e6));
    }

    #[test]
    fn computing_lowers_the_rate() {
        let cpus = [CpuId(0), CpuId(0)];
        let rate = |steps| rate_per_s(cpus, steps, Duration::from_millis(5)).unwrap();
        assert!(rate(0) > 10.0 * rate(10_000));
    }
}
