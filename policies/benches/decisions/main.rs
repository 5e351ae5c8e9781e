// SPDX-License-Identifier: GPL-2.0-only
//! Time of a decision, for every policy and three sizes.
//!
//! Each policy decides about a snapshot and, a second later, about the next; both are timed. At the second it has
//! something to remember; some act at the first only.

mod snapshots;

use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, SamplingMode};
use snapshots::{SIZES, later, snapshot};
use tandem_policies::model::{Plan, Snapshot};
use tandem_policies::registry::{Inputs, Memory, Parameters, Policy, policies};

fn decide(policy: &Policy, parameters: &Parameters, snapshot: &Snapshot, memory: &mut Memory) -> Plan {
    let inputs = &mut Inputs { snapshot, parameters, memory, seed: 1, steps: u64::MAX };
    policy.decide(inputs).expect("snapshots have every signal")
}

fn decisions(criterion: &mut Criterion) {
    for size in SIZES {
        let first = snapshot(size, 1);
        let next = later(&first);
        let name = format!("{} threads, {} nodes, {} groups", size.threads, size.nodes, size.groups);
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(500));
        for &policy in policies().iter().filter(|policy| policy.name != "none") {
            let parameters = snapshots::parameters(policy);
            let id = |when| BenchmarkId::new(format!("{} {}", policy.kind, policy.name), when);
            group.bench_function(id("first"), |bencher| {
                let decide = |mut memory: Memory| decide(policy, &parameters, &first, &mut memory);
                bencher.iter_batched(Memory::default, decide, BatchSize::PerIteration);
            });
            group.bench_function(id("next"), |bencher| {
                let after_the_first = || {
                    let mut memory = Memory::default();
                    decide(policy, &parameters, &first, &mut memory);
                    memory
                };
                let decide = |mut memory: Memory| decide(policy, &parameters, &next, &mut memory);
                bencher.iter_batched(after_the_first, decide, BatchSize::PerIteration);
            });
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    decisions(&mut criterion);
    criterion.final_summary();
}
