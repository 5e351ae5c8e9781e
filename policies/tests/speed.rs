// SPDX-License-Identifier: GPL-2.0-only
//! Decisions are quick enough, and grow no faster than what they are about. Prints the tables of docs/policies-speed.md:
//! `cargo test --release -p tandem-policies --test speed -- --nocapture`

#[path = "../benches/decisions/snapshots.rs"]
mod snapshots;

use snapshots::{SIZES, Size, later, parameters, snapshot};
use tandem_policies::model::Snapshot;
use tandem_policies::registry::{Inputs, Kind, Memory, Policy, policies};

/// Decided groups in all runs, of which the quickest counts: others take caches and memory away from the rest. Five runs of
/// the largest size.
const GROUPS_OF_RUNS: usize = 500_000;
/// Most time of a decision, by size.
const LIMITS_MS: [Option<f64>; 3] = [Some(5.0), None, Some(100.0)];
/// The same of joint policies, which decide about threads and pages at once: they are close to the goal, which a busy machine
/// misses, and must not get slower.
const JOINT_LIMITS_MS: [Option<f64>; 3] = [Some(6.0), None, Some(140.0)];

/// CPU time of this thread so far. By the clock, a decision takes longer when others want the CPU.
fn cpu_ms() -> f64 {
    // The kernel counts up to here when a thread gives way.
    std::thread::yield_now();
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the run time of threads");
    let ns = counts.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
    ns.expect("the first count is the run time in ns") as f64 / 1e6
}

/// CPU times of a first decision and of the next one.
fn times_ms(policy: &Policy, both: &[Snapshot; 2]) -> [f64; 2] {
    let parameters = parameters(policy);
    let mut memory = Memory::default();
    both.each_ref().map(|snapshot| {
        let inputs = &mut Inputs { snapshot, parameters: &parameters, memory: &mut memory, seed: 1, steps: u64::MAX };
        let start_ms = cpu_ms();
        let plan = policy.decide(inputs);
        let took_ms = cpu_ms() - start_ms;
        assert!(plan.is_ok(), "{} {}: {plan:?}", policy.kind, policy.name);
        took_ms
    })
}

/// By policy, the least times of both decisions at one size.
fn least_ms(size: Size) -> Vec<[f64; 2]> {
    let first = snapshot(size, 1);
    let both = [first.clone(), later(&first)];
    let least = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].min(b[1])];
    let of = |policy: &&Policy| {
        (0..GROUPS_OF_RUNS / size.groups).map(|_| times_ms(policy, &both)).reduce(least).expect("there are runs")
    };
    policies().iter().map(of).collect()
}

/// The exponent of growth of the dearer decision: with the threads of thread policies, with the groups of page policies.
fn exponent(policy: &Policy, smallest: [f64; 2], largest: [f64; 2]) -> f64 {
    let count = |size: Size| (if policy.kind == Kind::Page { size.groups } else { size.threads }) as f64;
    let dearer = |both: [f64; 2]| both[0].max(both[1]);
    (dearer(largest) / dearer(smallest)).ln() / (count(SIZES[2]) / count(SIZES[0])).ln()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "the limits are those of release builds")]
fn a_decision_takes_less_than_5_ms_for_64_threads_and_100_ms_for_1024() {
    let times = SIZES.map(least_ms);
    println!("| policy | 64 threads | 256 threads | 1024 threads | growth |\n|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (at, policy) in policies().iter().enumerate().filter(|(_, policy)| policy.name != "none") {
        let name = format!("{} `{}`", policy.kind, policy.name);
        let own = [0, 1, 2].map(|size| times[size][at]);
        let cells = own.map(|[first, next]| format!("{first:.2} / {next:.2}")).join(" | ");
        println!("| {name} | {cells} | {:.1} |", exponent(policy, own[0], own[2]));
        let limits_ms = if policy.kind == Kind::Joint { JOINT_LIMITS_MS } else { LIMITS_MS };
        for (both, limit_ms) in own.into_iter().zip(limits_ms) {
            let is_over = |ms: &f64| limit_ms.is_some_and(|limit_ms| *ms >= limit_ms);
            missed.extend(both.into_iter().filter(is_over).map(|ms| format!("{name}: {ms:.1} ms")));
        }
    }
    assert!(missed.is_empty(), "too slow: {missed:?}");
}

/// Threads alone grow, then groups alone: what the agent may meet on one machine.
fn growing() -> [(&'static str, Vec<Size>); 2] {
    let threads = [8, 64, 512, 4096].map(|threads| Size { threads, nodes: 8, groups: 10_000 });
    let groups = [1000, 10_000, 100_000, 1_000_000].map(|groups| Size { threads: 64, nodes: 4, groups });
    [("threads", threads.into()), ("groups", groups.into())]
}

/// Exponent at the end. n log n has less than 1.2 at these sizes; caches that are too small for a million groups add to that. The
/// square has 2.
const MOST_GROWTH: f64 = 1.5;

#[test]
#[cfg_attr(debug_assertions, ignore = "the limits are those of release builds")]
fn decisions_of_the_joint_policy_grow_with_threads_and_with_groups_hardly_faster_than_these() {
    let tandem = policies().iter().find(|policy| policy.name == "tandem").expect("the default policy");
    for (what, sizes) in growing() {
        let mut rows = Vec::new();
        for size in &sizes {
            let first = snapshot(*size, 1);
            let both = [first.clone(), later(&first)];
            let runs = (0..5).map(|_| times_ms(tandem, &both));
            let [first, next] = runs.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1])]).expect("there are runs");
            println!(
                "| {} threads, {} nodes, {} groups | {first:.2} | {next:.2} |",
                size.threads, size.nodes, size.groups
            );
            rows.push(next);
        }
        let count = |size: &Size| (if what == "groups" { size.groups } else { size.threads }) as f64;
        let (n, last) = (rows.len(), sizes.len() - 1);
        let growth = (rows[n - 1] / rows[0]).ln() / (count(&sizes[last]) / count(&sizes[0])).ln();
        let end = (rows[n - 1] / rows[n - 2]).ln() / (count(&sizes[last]) / count(&sizes[last - 1])).ln();
        println!("with {what}: exponent {growth:.2}, at the end {end:.2}");
        assert!(end < MOST_GROWTH, "{what}: {rows:?} ms");
    }
}
