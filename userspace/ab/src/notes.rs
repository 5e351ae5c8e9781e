// SPDX-License-Identifier: GPL-2.0-only
//! What a reader of an experiment must know besides its numbers: checks of the numbers against each other, in words.

use crate::experiment::{ArmResult, Experiment};
use crate::statistics::Comparison;

/// Pinned arms repeat within this share of their median, or something disturbs the runs.
pub const PINNED_SPREAD: f64 = 0.005;

/// Fewer boots than this give an interval that is too narrow for its 95 %.
const ENOUGH_BOOTS: usize = 6;

/// A thread that waited for a CPU for more than this share of the timed part explains a slow run.
const WAITED_SHARE: f64 = 0.05;

/// All notes of `experiment`, a sentence each.
pub fn notes(experiment: &Experiment) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(experiment.calibration.reason.iter().map(|reason| format!("void: {reason}")));
    for arm in &experiment.arms {
        notes.extend(arm.failures.iter().map(|failure| format!("{}: {failure}", arm.name)));
    }
    notes.extend(pinned_spread(experiment));
    notes.extend(faster_than_oracle(experiment));
    notes.extend(slower_than_worst(experiment));
    let fewest = experiment.arms.iter().map(|arm| arm.runs.len()).filter(|&runs| runs > 0).min();
    if let Some(runs) = fewest.filter(|&runs| runs < ENOUGH_BOOTS) {
        notes.push(format!(
            "with {runs} boots an arm an interval is at most the range of the runs: below {ENOUGH_BOOTS} it is narrower than 95 %"
        ));
    }
    notes
}

fn pinned_spread(experiment: &Experiment) -> Vec<String> {
    let pinned = ["oracle", "worst"].iter().filter_map(|name| experiment.arm(name));
    pinned
        .filter_map(|arm| Some((arm, arm.sample()?.spread())))
        .filter(|(_, spread)| *spread > PINNED_SPREAD)
        .map(|(arm, spread)| {
            format!(
                "{}: its boots spread by {:.2} % although it is pinned (expected: below {:.1} %)",
                arm.name,
                spread * 100.0,
                PINNED_SPREAD * 100.0
            )
        })
        .collect()
}

fn faster_than_oracle(experiment: &Experiment) -> Vec<String> {
    let Some((oracle, bound)) = bound(experiment, "oracle") else { return Vec::new() };
    let others = experiment.arms.iter().filter(|arm| arm.name != oracle.name);
    others
        .filter_map(|arm| Some((arm, Comparison::of(&arm.sample()?, &bound))))
        .filter(|(_, comparison)| {
            let (low, high) = comparison.interval;
            experiment.better.times_worse(low.max(high), 1.0) < 1.0
                && experiment.better.times_worse(low.min(high), 1.0) < 1.0
        })
        .map(|(arm, comparison)| {
            format!(
                "{}: better than oracle (ratio {:.3}), so oracle is not the best placement of this workload",
                arm.name, comparison.ratio
            )
        })
        .collect()
}

fn slower_than_worst(experiment: &Experiment) -> Vec<String> {
    let Some((worst, bound)) = bound(experiment, "worst") else { return Vec::new() };
    let limit = bound.median() * (1.0 + PINNED_SPREAD);
    let slow = |arm: &&ArmResult| {
        arm.name != worst.name && arm.median.is_some_and(|median| experiment.better.times_worse(median, limit) > 1.0)
    };
    experiment.arms.iter().filter(slow).map(explain).collect()
}

fn bound<'a>(experiment: &'a Experiment, name: &str) -> Option<(&'a ArmResult, crate::statistics::Sample)> {
    let arm = experiment.arm(name)?;
    Some((arm, arm.sample()?))
}

/// Why an arm is slower than the worst placement of threads and memory.
fn explain(arm: &ArmResult) -> String {
    let Some(run) = arm.typical_boot() else { return format!("{}: worse than worst", arm.name) };
    match run.longest_run_delay_s() {
        Some(delay_s) if delay_s > WAITED_SHARE * run.report.seconds => format!(
            "{}: worse than worst because threads shared a CPU: one waited {delay_s:.2} s of {:.2} s",
            arm.name, run.report.seconds
        ),
        Some(delay_s) => format!(
            "{}: worse than worst, and not because threads shared a CPU: none waited more than {delay_s:.2} s",
            arm.name
        ),
        None => format!("{}: worse than worst; how long its threads waited for a CPU is not known", arm.name),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::experiment;

    #[test]
    fn a_sound_experiment_has_no_note_but_of_few_boots() {
        let result = experiment(&[("stock-nb1", &[4.9, 4.8]), ("oracle", &[4.0, 4.001]), ("worst", &[8.0, 8.001])]);
        assert_eq!(result.notes.len(), 1, "{:?}", result.notes);
        assert!(result.notes[0].starts_with("with 2 boots"));
        let many = experiment(&[("stock-nb1", &[4.9; 6])]);
        assert_eq!(many.notes, [""; 0]);
    }

    #[test]
    fn pinned_arms_that_spread_are_noted() {
        let result = experiment(&[("oracle", &[4.0, 4.03, 4.0, 4.0, 4.0, 4.0])]);
        assert!(result.notes[0].starts_with("oracle: its boots spread by 0.75 %"), "{:?}", result.notes);
    }

    #[test]
    fn an_arm_better_than_oracle_is_noted() {
        let result = experiment(&[("oracle", &[4.0; 6]), ("stock-nb1", &[3.9; 6])]);
        assert!(result.notes[0].starts_with("stock-nb1: better than oracle"), "{:?}", result.notes);
    }

    #[test]
    fn an_arm_slower_than_worst_is_explained() {
        let arms: &[(&str, &[f64])] = &[("worst", &[8.0; 6]), ("scx_rusty", &[8.8; 6])];
        let result = experiment(arms);
        assert!(result.notes[0].contains("not because threads shared a CPU"), "{:?}", result.notes);
        let mut delayed = result;
        for run in &mut delayed.arms[1].boots {
            run.report.run_delay_ns = vec![0, 4_400_000_000];
        }
        let notes = super::notes(&delayed);
        assert!(notes[0].contains("because threads shared a CPU: one waited 4.40 s of 8.80 s"), "{notes:?}");
    }
}
