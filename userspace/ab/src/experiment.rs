// SPDX-License-Identifier: GPL-2.0-only
//! The result of an experiment: one workload on one machine under several arms.
//!
//! This is the JSON that is written, saved and compared; docs/ab.md describes every field.

use serde::{Deserialize, Serialize};

use crate::arm;
use crate::calibration::Calibration;
use crate::native::Conditions;
use crate::run::Run;
use crate::runner::{Job, Outcome};
use crate::statistics::{Better, Comparison, Sample, Verdict, median};

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// One workload on one machine under several arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the machine.
    pub machine: String,
    /// Kernel release.
    pub kernel: String,
    /// Workload with its options.
    pub workload: String,
    /// Name of the metric; empty when nothing was measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which way it is better.
    pub better: Better,
    /// Boots of each arm that were asked for.
    pub boots_per_arm: u64,
    /// The arms in the order in which they were named.
    pub arms: Vec<ArmResult>,
    /// Whether times mean anything.
    pub calibration: Calibration,
    /// The real machine's worst state before any of the runs; `None` in the lab.
    pub native: Option<Conditions>,
    /// What a reader must know, a sentence each.
    pub notes: Vec<String>,
}

/// What is known of one arm. Numbers are medians over its finished boots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    /// As it was written.
    pub name: String,
    /// The metric of each finished boot, by boot.
    pub runs: Vec<f64>,
    /// Its median.
    pub median: Option<f64>,
    /// The least and the greatest.
    pub range: Option<[f64; 2]>,
    /// Median / median of the best stock arm.
    pub ratio_to_best_stock: Option<f64>,
    /// 95 % interval of that ratio.
    pub interval: Option<[f64; 2]>,
    /// What the interval says; `None` for the best stock arm itself.
    pub verdict: Option<Verdict>,
    /// Share of boots worse than 1.25 times the best boot.
    pub bad_boot_share: Option<f64>,
    /// Instructions of all CPUs in the timed part; `None` on a real machine.
    pub instructions: Option<f64>,
    /// Instructions / those of the best stock arm.
    pub instructions_ratio: Option<f64>,
    /// 95 % interval of that ratio.
    pub instructions_interval: Option<[f64; 2]>,
    /// Accesses to other nodes / all.
    pub remote_share: Option<f64>,
    /// When 90 % of accesses were local first, in s of the timed part; `None` if half of the boots or more never got there.
    #[serde(default)]
    pub local_after_s: Option<f64>,
    /// Pages that anything moved.
    pub page_moves: Option<f64>,
    /// Changes of node by threads.
    pub thread_moves: Option<f64>,
    /// Page table entries that NUMA balancing made fault.
    pub numa_pte_updates: Option<f64>,
    /// Faults on them.
    pub numa_hint_faults: Option<f64>,
    /// Pages that NUMA balancing moved.
    pub numa_pages_migrated: Option<f64>,
    /// Energy of all packages in J.
    pub energy_j: Option<f64>,
    /// Whether every boot finished and proved its result.
    pub valid: bool,
    /// Why not, a sentence for each boot that failed.
    pub failures: Vec<String>,
    /// The boots with all that is known of them.
    pub boots: Vec<Run>,
}

/// What all arms have in common.
pub struct Frame {
    /// Name of the machine.
    pub machine: String,
    /// Kernel release.
    pub kernel: String,
    /// Workload with its options.
    pub workload: String,
    /// Boots of each arm.
    pub boots_per_arm: u64,
    /// The experiment's calibration.
    pub calibration: Calibration,
    /// The real machine's state before all runs.
    pub native: Option<Conditions>,
}

impl Experiment {
    /// The finished runs of all arms.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.arms.iter().flat_map(|arm| &arm.boots)
    }

    /// Puts together what became of the jobs of one workload; `arms` gives the order.
    pub fn of(frame: Frame, arms: &[String], jobs: &[(&Job, &Outcome)]) -> Self {
        let mut results: Vec<ArmResult> = arms.iter().map(|name| ArmResult::of(name, jobs)).collect();
        refuse_other_work(&mut results);
        let report = results.iter().flat_map(|arm| &arm.boots).map(|run| &run.report).next();
        let better = report.map_or(Better::Lower, |report| report.better);
        let (metric, unit) = report.map(|report| (report.metric.clone(), report.unit.clone())).unwrap_or_default();
        let before_runs: Vec<&Conditions> =
            results.iter().flat_map(|arm| &arm.boots).filter_map(|run| run.conditions.as_ref()).collect();
        let worst = |before: Conditions| before_runs.iter().fold(before, |worst, &run| worst.or_worse(run));
        let native = frame.native.map(worst);
        let mut experiment = Self {
            schema: SCHEMA,
            machine: frame.machine,
            kernel: frame.kernel,
            workload: frame.workload,
            metric,
            unit,
            better,
            boots_per_arm: frame.boots_per_arm,
            arms: results,
            calibration: frame.calibration,
            native,
            notes: Vec::new(),
        };
        experiment.renew();
        experiment
    }

    /// Compares and writes the notes anew, as this version does: those of a saved result are of the version that saved it.
    pub fn renew(&mut self) {
        judge(&mut self.arms, self.better);
        self.notes = crate::notes::notes(self);
    }

    /// The arm of this name.
    pub fn arm(&self, name: &str) -> Option<&ArmResult> {
        self.arms.iter().find(|arm| arm.name == name)
    }

    /// The stock arm with the best median.
    pub fn best_stock(&self) -> Option<&ArmResult> {
        best_stock(&self.arms, self.better).map(|index| &self.arms[index])
    }

    /// Whether the calibration and every arm are valid.
    pub fn is_valid(&self) -> bool {
        self.calibration.valid && self.arms.iter().all(|arm| arm.valid)
    }
}

impl ArmResult {
    fn of(name: &str, jobs: &[(&Job, &Outcome)]) -> Self {
        let (mut boots, mut failures, mut complete) = (Vec::new(), Vec::new(), true);
        for (job, outcome) in jobs.iter().filter(|(job, _)| job.arm.name == name) {
            match outcome {
                Outcome::Done(run) => boots.push(Run::clone(run)),
                Outcome::Failed(reason) => failures.push(format!("boot {}: {reason}", job.boot)),
                Outcome::NotRun => complete = false,
            }
        }
        boots.sort_by_key(|run| run.identity.seed);
        let runs: Vec<f64> = boots.iter().map(|run| run.report.value).collect();
        let middle = |value: &dyn Fn(&Run) -> Option<f64>| median(boots.iter().filter_map(value));
        let sample = Sample::new(&runs);
        let better = boots.first().map_or(Better::Lower, |run| run.report.better);
        Self {
            name: name.to_owned(),
            median: sample.as_ref().map(Sample::median),
            range: sample.as_ref().map(|sample| sample.range().into()),
            ratio_to_best_stock: None,
            interval: None,
            verdict: None,
            bad_boot_share: sample.as_ref().map(|sample| sample.bad_boot_share(better)),
            instructions: middle(&|run| run.instructions()),
            instructions_ratio: None,
            instructions_interval: None,
            remote_share: middle(&|run| run.placement.as_ref()?.remote_share),
            local_after_s: median_local_after_s(&boots),
            page_moves: middle(&|run| Some(run.counts.page_moves as f64)),
            thread_moves: middle(&|run| run.report.thread_moves.map(|moves| moves as f64)),
            numa_pte_updates: middle(&|run| Some(run.counts.numa_pte_updates as f64)),
            numa_hint_faults: middle(&|run| Some(run.counts.numa_hint_faults as f64)),
            numa_pages_migrated: middle(&|run| Some(run.counts.numa_pages_migrated as f64)),
            energy_j: middle(&|run| run.energy_j),
            valid: complete && failures.is_empty() && !boots.is_empty(),
            failures,
            runs,
            boots,
        }
    }

    /// Its runs as a sample; `None` when there is none.
    pub fn sample(&self) -> Option<Sample> {
        Sample::new(&self.runs)
    }

    /// The instructions of its boots as a sample; `None` when they are not known.
    fn instructions_sample(&self) -> Option<Sample> {
        Sample::new(&self.boots.iter().filter_map(Run::instructions).collect::<Vec<_>>())
    }

    /// The boot whose value is nearest to the median: the one that is shown where only one can be.
    pub fn typical_boot(&self) -> Option<&Run> {
        let median = self.median?;
        let distance = |run: &&Run| (run.report.value - median).abs();
        self.boots.iter().min_by(|first, second| distance(first).total_cmp(&distance(second)))
    }
}

/// The median of when boots became local; who never did comes after all others.
fn median_local_after_s(boots: &[Run]) -> Option<f64> {
    let placements = boots.iter().filter_map(|run| run.placement.as_ref());
    median(placements.map(|placement| placement.local_after_s.unwrap_or(f64::INFINITY)))
        .filter(|after_s| after_s.is_finite())
}

/// Makes arms invalid that did not do as much work as the first one: their times compare nothing.
fn refuse_other_work(arms: &mut [ArmResult]) {
    let first = arms.iter().find_map(|arm| arm.boots.first().map(|run| (arm.name.clone(), run.report.work)));
    let Some((reference, right)) = first else { return };
    for arm in arms {
        let other = |run: &&Run| run.report.work != right;
        if let Some(run) = arm.boots.iter().find(other) {
            let (work, unit) = (run.report.work, &run.report.work_unit);
            arm.failures.push(format!(
                "seed {}: it did {work} {unit}, {reference} did {right}: the two cannot be compared; give sizes that do not follow from \
                 the CPUs",
                run.identity.seed
            ));
            arm.valid = false;
        }
    }
}

/// Compares every arm with the best stock arm.
fn judge(arms: &mut [ArmResult], better: Better) {
    for arm in &mut *arms {
        (arm.ratio_to_best_stock, arm.interval, arm.verdict) = (None, None, None);
        (arm.instructions_ratio, arm.instructions_interval) = (None, None);
    }
    let Some(best) = best_stock(arms, better) else { return };
    let Some(reference) = arms[best].sample() else { return };
    let instructions_reference = arms[best].instructions_sample();
    for (index, arm) in arms.iter_mut().enumerate() {
        let Some(sample) = arm.sample() else { continue };
        if let (Some(sample), Some(reference)) = (arm.instructions_sample(), &instructions_reference) {
            let comparison = Comparison::of(&sample, reference);
            arm.instructions_ratio = Some(comparison.ratio);
            arm.instructions_interval = Some(if index == best { [1.0, 1.0] } else { comparison.interval.into() });
        }
        if index == best {
            (arm.ratio_to_best_stock, arm.interval) = (Some(1.0), Some([1.0, 1.0]));
            continue;
        }
        let comparison = Comparison::of(&sample, &reference);
        arm.ratio_to_best_stock = Some(comparison.ratio);
        arm.interval = Some(comparison.interval.into());
        arm.verdict = Some(comparison.verdict(better));
    }
}

fn best_stock(arms: &[ArmResult], better: Better) -> Option<usize> {
    let stock = arms.iter().enumerate().filter(|(_, arm)| arm::is_stock(&arm.name) && arm.failures.is_empty());
    let medians: Vec<(usize, f64)> = stock.filter_map(|(index, arm)| Some((index, arm.median?))).collect();
    let best = medians.iter().map(|&(_, median)| median).reduce(|first, second| better.best(first, second))?;
    medians.iter().find(|&&(_, median)| median == best).map(|&(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Verdict;
    use crate::testing::{experiment, experiment_of_rates, failed, frame, job, run};

    #[test]
    fn an_arm_that_did_other_work_than_the_rest_is_invalid_and_no_reference() {
        let jobs = |work: &dyn Fn(&str) -> u64| {
            let mut result =
                experiment(&[("oracle", &[4.0, 4.0]), ("stock-nb0", &[8.0, 8.0]), ("stock-nb1", &[2.0, 2.0])]);
            for arm in &mut result.arms {
                let work = work(&arm.name);
                arm.boots.iter_mut().for_each(|run| run.report.work = work);
            }
            refuse_other_work(&mut result.arms);
            result
        };
        assert!(jobs(&|_| 7).is_valid());
        let halved = jobs(&|name| if name == "stock-nb1" { 3 } else { 7 });
        let arm = halved.arm("stock-nb1").unwrap();
        assert!(!arm.valid && arm.failures.len() == 1, "{:?}", arm.failures);
        assert!(
            arm.failures[0].contains("it did 3 ") && arm.failures[0].contains("oracle did 7"),
            "{:?}",
            arm.failures
        );
        assert_eq!(halved.best_stock().unwrap().name, "stock-nb0");
    }

    #[test]
    fn arms_are_compared_with_the_best_stock_arm() {
        let result = experiment(&[
            ("stock-nb0", &[8.0, 8.1, 7.9, 8.0]),
            ("stock-nb1", &[4.9, 4.8, 5.0, 4.9]),
            ("oracle", &[4.0, 4.01, 4.0, 4.0]),
            ("worst", &[8.2, 8.2, 8.2, 8.2]),
        ]);
        assert_eq!(result.best_stock().unwrap().name, "stock-nb1");
        let reference = result.arm("stock-nb1").unwrap();
        assert_eq!((reference.ratio_to_best_stock, reference.interval), (Some(1.0), Some([1.0, 1.0])));
        let oracle = result.arm("oracle").unwrap();
        assert!((oracle.ratio_to_best_stock.unwrap() - 4.0 / 4.9).abs() < 1e-12);
        assert_eq!((oracle.verdict, reference.verdict), (Some(Verdict::Better), None));
        assert_eq!(result.arm("worst").unwrap().verdict, Some(Verdict::Worse));
        assert!(result.is_valid());
    }

    #[test]
    fn of_rates_the_highest_stock_arm_is_the_reference_and_less_is_worse() {
        let slow_once = [30.0, 30.0, 30.0, 30.0, 10.0];
        let result = experiment_of_rates(&[
            ("stock-nb0", &[10.0; 5]),
            ("stock-nb1", &[20.0; 5]),
            ("scx_tandem", &slow_once),
            ("worst", &[5.0; 5]),
        ]);
        assert_eq!(result.best_stock().unwrap().name, "stock-nb1");
        let verdict = |name: &str| result.arm(name).unwrap().verdict;
        assert_eq!((verdict("stock-nb0"), verdict("worst")), (Some(Verdict::Worse), Some(Verdict::Worse)));
        assert_eq!(result.arm("scx_tandem").unwrap().ratio_to_best_stock, Some(1.5));
        assert_eq!(result.arm("scx_tandem").unwrap().bad_boot_share, Some(0.2));
        let faster = experiment_of_rates(&[("stock-nb1", &[20.0; 5]), ("scx_tandem", &[30.0; 5])]);
        assert_eq!(faster.arm("scx_tandem").unwrap().verdict, Some(Verdict::Better));
    }

    #[test]
    fn a_verdict_of_another_version_is_made_anew() {
        let mut result = experiment(&[("stock-nb1", &[4.9; 5]), ("oracle", &[4.0; 5]), ("worst", &[8.0; 3])]);
        let anew = result.clone();
        for (arm, verdict) in
            result.arms.iter_mut().zip([Some(Verdict::Better), Some(Verdict::Worse), Some(Verdict::Worse)])
        {
            (arm.verdict, arm.interval) = (verdict, Some([3.0, 4.0]));
        }
        assert_ne!(result, anew);
        result.renew();
        assert_eq!(result, anew);
    }

    #[test]
    fn instructions_are_compared_with_those_of_the_stock_arm_that_is_best_by_its_value() {
        let values: [(&str, &[f64]); 3] = [("stock-nb0", &[8.0]), ("stock-nb1", &[4.0]), ("oracle", &[2.0])];
        let jobs: Vec<(Job, Outcome)> = (values.iter().zip([1, 5, 6]))
            .map(|((arm, values), millions)| {
                let mut run = run(arm, 1, values[0]);
                run.placement.as_mut().unwrap().instructions = Some(millions * 1_000_000);
                (job(arm, &run), Outcome::Done(Box::new(run)))
            })
            .collect();
        let jobs: Vec<(&Job, &Outcome)> = jobs.iter().map(|(job, outcome)| (job, outcome)).collect();
        let names = values.map(|(name, _)| name.to_owned());
        let result = Experiment::of(frame(1, None), &names, &jobs);
        let of = |name: &str| {
            let arm = result.arm(name).unwrap();
            (arm.instructions.unwrap(), arm.instructions_ratio.unwrap(), arm.instructions_interval.unwrap())
        };
        assert_eq!(of("stock-nb1"), (5e6, 1.0, [1.0, 1.0]));
        assert_eq!(of("stock-nb0"), (1e6, 0.2, [0.2, 0.2]));
        assert_eq!(of("oracle"), (6e6, 1.2, [1.2, 1.2]));
    }

    #[test]
    fn what_was_saved_without_instructions_can_be_read_and_has_none() {
        let mut document = serde_json::to_value(experiment(&[("stock-nb1", &[4.0])])).unwrap();
        let arm = &mut document["arms"][0];
        for key in ["instructions", "instructions_ratio", "instructions_interval"] {
            assert!(arm.as_object_mut().unwrap().remove(key).is_some_and(|value| !value.is_null()), "{key}");
        }
        arm["boots"][0]["placement"].as_object_mut().unwrap().remove("instructions");
        let read: Experiment = serde_json::from_value(document).unwrap();
        assert_eq!((read.arms[0].instructions, read.arms[0].instructions_sample()), (None, None));
    }

    #[test]
    fn the_worst_state_before_any_run_is_that_of_the_experiment() {
        let state = |busy_share: f64| Conditions { busy_share, ..Conditions::default() };
        let jobs: Vec<(Job, Outcome)> = [0.01, 0.4, 0.2]
            .into_iter()
            .zip(1..)
            .map(|(busy_share, boot)| {
                let run = Run { conditions: Some(state(busy_share)), ..run("oracle", boot, 4.0) };
                (job("oracle", &run), Outcome::Done(Box::new(run)))
            })
            .collect();
        let jobs: Vec<(&Job, &Outcome)> = jobs.iter().map(|(job, outcome)| (job, outcome)).collect();
        let native = Experiment::of(frame(3, Some(state(0.3))), &["oracle".to_owned()], &jobs).native.unwrap();
        assert_eq!(native.busy_share, 0.4);
        assert_eq!(native.noise, ["other work took 40.0 % of the CPU time before a run"]);
        assert!(experiment(&[("oracle", &[4.0])]).native.is_none());
    }

    #[test]
    fn without_a_stock_arm_there_is_no_ratio() {
        let result = experiment(&[("oracle", &[4.0]), ("worst", &[8.0])]);
        assert!(result.arms.iter().all(|arm| arm.ratio_to_best_stock.is_none() && arm.interval.is_none()));
    }

    #[test]
    fn a_failed_boot_makes_its_arm_invalid_and_no_other() {
        let result = failed(&[("stock-nb1", &[4.9, 4.8]), ("worst", &[8.0])], "worst", "kernel panic: oops");
        let worst = result.arm("worst").unwrap();
        assert!(!worst.valid && result.arm("stock-nb1").unwrap().valid && !result.is_valid());
        assert_eq!(worst.failures, ["boot 2: kernel panic: oops"]);
        assert_eq!(worst.median, Some(8.0), "what did finish still counts");
    }

    #[test]
    fn an_arm_without_a_finished_boot_has_no_numbers() {
        let result = failed(&[("stock-nb1", &[4.9]), ("scx_rusty", &[])], "scx_rusty", "ejected");
        let arm = result.arm("scx_rusty").unwrap();
        assert_eq!((arm.median, arm.ratio_to_best_stock, arm.valid), (None, None, false));
        assert!(arm.typical_boot().is_none());
    }

    #[test]
    fn a_boot_that_never_became_local_counts_as_later_than_any() {
        let after = |times_s: &[Option<f64>]| {
            let runs: Vec<Run> = times_s
                .iter()
                .map(|&local_after_s| {
                    let mut run = run("stock-nb1", 1, 4.9);
                    run.placement.as_mut().unwrap().local_after_s = local_after_s;
                    run
                })
                .collect();
            median_local_after_s(&runs)
        };
        assert_eq!(after(&[Some(0.4), None, Some(0.8)]), Some(0.8));
        assert_eq!(after(&[None, Some(0.4)]), None);
        assert_eq!(after(&[]), None);
    }

    #[test]
    fn placement_facts_are_medians_of_the_boots() {
        let arm = experiment(&[("stock-nb1", &[4.9, 4.8, 5.0])]).arms.remove(0);
        assert_eq!(
            (arm.remote_share, arm.numa_pte_updates, arm.numa_pages_migrated),
            (Some(0.25), Some(400.0), Some(200.0))
        );
        assert_eq!((arm.page_moves, arm.thread_moves, arm.numa_hint_faults), (Some(201.0), Some(2.0), Some(300.0)));
        assert_eq!(arm.typical_boot().unwrap().report.value, 4.9);
    }
}
