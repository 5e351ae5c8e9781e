// SPDX-License-Identifier: GPL-2.0-only
//! One builder of runs for all tests.

use crate::calibration::{Calibration, Walk};
use crate::experiment::{Experiment, Frame};
use crate::native::Conditions;
use crate::programs::Programs;
use crate::run::{Identity, Run};
use crate::runner::{Job, Outcome};
use crate::statistics::Better;
use crate::truth::{Coherence, Placement, Point};
use crate::vmstat::KernelCounts;
use crate::workload::WorkloadReport;
use crate::{arm, workload};

/// A run of `arm` on two nodes that took `seconds`.
pub fn run(arm: &str, seed: u64, seconds: f64) -> Run {
    let point = |at_s: f64, share: f64| Point { at_s, remote_share: Some(share), load: vec![1.0, 0.5] };
    Run {
        identity: Identity {
            machine: "2node".into(),
            machine_sha256: "m".into(),
            kernel: "7.3.4".into(),
            workload: "crossed".into(),
            arm: arm.into(),
            seed,
            programs_sha256: "p".into(),
        },
        report: WorkloadReport {
            metric: "seconds".into(),
            work: 1000,
            work_unit: "visits".into(),
            unit: "s".into(),
            better: Better::Lower,
            value: seconds,
            seconds,
            check: "ok".into(),
            node_ids: vec![0, 1],
            pages_per_node: vec![1000, 1000],
            threads_per_node: vec![4, 4],
            thread_moves: Some(2),
            run_delay_ns: vec![Some(1_000_000), Some(2_000_000)],
            rest: serde_json::Map::new(),
        },
        counts: KernelCounts {
            numa_pte_updates: 400,
            numa_hint_faults: 300,
            numa_pages_migrated: 200,
            page_moves: 201,
        },
        placement: Some(Placement {
            remote_share: Some(0.25),
            accesses: Some(1_000_000),
            coherence: Some(Coherence::default()),
            instructions: Some((seconds * 1e9) as u64),
            local_after_s: Some(0.9),
            third_quarter_pace: None,
            series: vec![point(1.0, 0.9), point(2.0, 0.1)],
        }),
        scheduler_report: None,
        energy_j: None,
        conditions: None,
        host_s: 60.0,
    }
}

/// An experiment whose arms had these runs.
pub fn experiment(arms: &[(&str, &[f64])]) -> Experiment {
    build(arms, Better::Lower, None)
}

/// The same of rates, of which the higher is the better one.
pub fn experiment_of_rates(arms: &[(&str, &[f64])]) -> Experiment {
    build(arms, Better::Higher, None)
}

/// The same, with one more boot of `arm` that failed for `reason`.
pub fn failed(arms: &[(&str, &[f64])], arm: &str, reason: &str) -> Experiment {
    build(arms, Better::Lower, Some((arm, reason)))
}

fn build(arms: &[(&str, &[f64])], better: Better, failure: Option<(&str, &str)>) -> Experiment {
    let mut jobs = Vec::new();
    let boots = arms.iter().map(|(_, values)| values.len()).max().unwrap_or(0) as u64;
    for (name, values) in arms {
        for (boot, &value) in (1..).zip(*values) {
            let mut run = run(name, boot, value);
            run.report.better = better;
            jobs.push((job(name, &run), Outcome::Done(Box::new(run))));
        }
        if let Some((_, reason)) = failure.filter(|(failed, _)| failed == name) {
            let run = run(name, values.len() as u64 + 1, 1.0);
            jobs.push((job(name, &run), Outcome::Failed(reason.to_owned())));
        }
    }
    let names: Vec<String> = arms.iter().map(|(name, _)| (*name).to_owned()).collect();
    let jobs: Vec<(&Job, &Outcome)> = jobs.iter().map(|(job, outcome)| (job, outcome)).collect();
    Experiment::of(frame(boots, None), &names, &jobs)
}

/// What the arms of an experiment of `crossed` have in common.
pub fn frame(boots_per_arm: u64, native: Option<Conditions>) -> Frame {
    let walk = |to: u32, ns: f64| Walk { from: 0, to, measured_ns: ns, expected_ns: ns };
    Frame {
        machine: "2node".into(),
        kernel: "7.3.4".into(),
        workload: "crossed".into(),
        boots_per_arm,
        calibration: Calibration::of(vec![walk(0, 96.2), walk(1, 186.4)]),
        native,
    }
}

/// The job that `run` is a run of.
pub fn job(arm: &str, run: &Run) -> Job {
    Job {
        identity: run.identity.clone(),
        arm: arm::parse_lists(&[arm.to_owned()]).expect("a known arm").remove(0),
        workload: workload::parse_lists(&["crossed".to_owned()]).remove(0),
        programs: Programs { load: "load".into(), scheduler: None, numactl: None, tools: vec![] },
        boot: run.identity.seed,
    }
}
