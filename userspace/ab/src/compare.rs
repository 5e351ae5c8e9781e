// SPDX-License-Identifier: GPL-2.0-only
//! Two saved experiments, arm by arm: did a change help?

use anyhow::{Result, bail};
use serde::Serialize;

use crate::experiment::Experiment;
use crate::statistics::{Comparison, Verdict};

/// Two experiments' common arms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What is compared.
    pub title: String,
    /// Arms that both have measured.
    pub arms: Vec<ComparedArm>,
    /// What differs besides, a sentence each.
    pub notes: Vec<String>,
}

/// One arm in both experiments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedArm {
    /// Its name.
    pub name: String,
    /// Its medians in the first and the second.
    pub medians: [f64; 2],
    /// Second / first.
    pub ratio: f64,
    /// 95 % interval of that ratio.
    pub interval: [f64; 2],
    /// What the second is compared with the first.
    pub verdict: Verdict,
}

/// Compares what `first` and `second` have in common; and for what is compared with nothing why, a sentence each.
pub fn all(first: &[Experiment], second: &[Experiment]) -> (Vec<Compared>, Vec<String>) {
    let name = |experiment: &Experiment| format!("{} on {}", experiment.workload, experiment.machine);
    let find = |wanted: &Experiment, among: &'_ [Experiment]| {
        among.iter().position(|other| (&other.workload, &other.machine) == (&wanted.workload, &wanted.machine))
    };
    let (mut compared, mut notes) = (Vec::new(), Vec::new());
    for experiment in first {
        let Some(at) = find(experiment, second) else {
            notes.push(format!("{} is in A only", name(experiment)));
            continue;
        };
        match Compared::of(experiment, &second[at]) {
            Ok(one) => compared.push(one),
            Err(why) => notes.push(format!("{}: {why}", name(experiment))),
        }
    }
    let alone = second.iter().filter(|experiment| find(experiment, first).is_none());
    notes.extend(alone.map(|experiment| format!("{} is in B only", name(experiment))));
    (compared, notes)
}

impl Compared {
    /// Compares `second` with `first`.
    ///
    /// # Errors
    /// They measured different things or nothing, or have no arm in common.
    pub fn of(first: &Experiment, second: &Experiment) -> Result<Self> {
        let measured = |experiment: &Experiment| experiment.arms.iter().any(|arm| arm.sample().is_some());
        match (measured(first), measured(second)) {
            (true, true) => {}
            (false, false) => bail!("nothing was measured in either"),
            (false, true) => bail!("nothing was measured in A"),
            (true, false) => bail!("nothing was measured in B"),
        }
        let what = |experiment: &Experiment| {
            format!("{} ({}) on {}", experiment.workload, experiment.metric, experiment.machine)
        };
        if what(first) != what(second) {
            bail!("{} and {} cannot be compared: they are different experiments", what(first), what(second));
        }
        let mut arms = Vec::new();
        for before in &first.arms {
            let after = second.arm(&before.name).and_then(crate::experiment::ArmResult::sample);
            let (Some(before_sample), Some(after_sample)) = (before.sample(), after) else { continue };
            let comparison = Comparison::of(&after_sample, &before_sample);
            arms.push(ComparedArm {
                name: before.name.clone(),
                medians: [before_sample.median(), after_sample.median()],
                ratio: comparison.ratio,
                interval: comparison.interval.into(),
                verdict: comparison.verdict(first.better),
            });
        }
        if arms.is_empty() {
            bail!("no arm was measured in both");
        }
        Ok(Self { title: what(first), arms, notes: notes(first, second) })
    }
}

fn notes(first: &Experiment, second: &Experiment) -> Vec<String> {
    let mut notes = Vec::new();
    if first.kernel != second.kernel {
        notes.push(format!("A ran on kernel {}, B on {}", first.kernel, second.kernel));
    }
    for (name, experiment, other) in [("A", first, second), ("B", second, first)] {
        if !experiment.calibration.valid {
            let reason = experiment.calibration.reason.as_deref().unwrap_or("no reason is given");
            notes.push(format!("{name} is void: {reason}"));
        }
        for arm in &experiment.arms {
            if other.arm(&arm.name).is_none() {
                notes.push(format!("{} is in {name} only", arm.name));
            }
            if !arm.valid {
                notes.push(format!("{} is not valid in {name}", arm.name));
            }
        }
    }
    let machine_file = |experiment: &Experiment| {
        experiment.arms.iter().flat_map(|arm| &arm.boots).map(|run| run.identity.machine_sha256.clone()).next()
    };
    if machine_file(first) != machine_file(second) {
        notes.push(format!("the machine file {} differs between A and B", first.machine));
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::testing::{experiment, experiment_of_rates, failed};

    #[test]
    fn the_results_of_the_documents_can_be_compared() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() > 2, "{files:?}");
        for file in files {
            let read: Experiment = serde_json::from_str(&fs::read_to_string(&file).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let compared = Compared::of(&read, &read).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(compared.arms.len(), read.arms.len(), "{}", file.display());
            let alike = |arm: &ComparedArm| matches!(arm.verdict, Verdict::NoDifference | Verdict::TooFewRuns);
            assert!(compared.arms.iter().all(alike), "{}", file.display());
        }
    }

    #[test]
    fn arms_are_compared_with_themselves_earlier() {
        let before = experiment(&[("scx_tandem", &[5.0, 5.1, 5.0, 5.0]), ("oracle", &[4.0; 4]), ("worst", &[8.0; 4])]);
        let after = experiment(&[("scx_tandem", &[4.5, 4.6, 4.5, 4.5]), ("oracle", &[4.0; 4])]);
        let compared = Compared::of(&before, &after).unwrap();
        assert_eq!(compared.arms.len(), 2);
        assert_eq!((compared.arms[0].verdict, compared.arms[1].verdict), (Verdict::Better, Verdict::NoDifference));
        assert!((compared.arms[0].ratio - 0.9).abs() < 1e-12);
        assert_eq!(compared.notes, ["worst is in A only"]);
    }

    #[test]
    fn a_higher_rate_than_earlier_is_better() {
        let (before, after) = ([5.0, 5.1, 5.0, 5.0], [4.5, 4.6, 4.5, 4.5]);
        let verdict = |before: &[f64], after: &[f64]| {
            let [before, after] = [before, after].map(|rates| experiment_of_rates(&[("scx_tandem", rates)]));
            Compared::of(&before, &after).unwrap().arms[0].verdict
        };
        assert_eq!((verdict(&before, &after), verdict(&after, &before)), (Verdict::Worse, Verdict::Better));
    }

    #[test]
    fn different_experiments_are_refused() {
        let first = experiment(&[("oracle", &[4.0])]);
        let other = Experiment { workload: "ring".into(), ..first.clone() };
        assert!(Compared::of(&first, &other).unwrap_err().to_string().contains("different experiments"));
        let disjoint = experiment(&[("worst", &[8.0])]);
        assert!(Compared::of(&first, &disjoint).unwrap_err().to_string().contains("no arm was measured in both"));
    }

    #[test]
    fn a_workload_of_which_nothing_was_measured_does_not_keep_the_others_from_being_compared() {
        let named = |workload: &str, experiment: Experiment| Experiment { workload: workload.into(), ..experiment };
        let measured = || experiment(&[("oracle", &[4.0, 4.0])]);
        let nothing = || failed(&[("oracle", &[])], "oracle", "panic");
        let first = [named("x", measured()), named("y", nothing()), named("z", measured()), named("a", measured())];
        let second = [named("y", measured()), named("x", measured()), named("z", nothing()), named("b", measured())];
        let (compared, notes) = all(&first, &second);
        assert_eq!(compared.len(), 1);
        assert!(compared[0].title.starts_with("x ("), "{}", compared[0].title);
        let machine = &first[0].machine;
        let expected = [
            format!("y on {machine}: nothing was measured in A"),
            format!("z on {machine}: nothing was measured in B"),
            format!("a on {machine} is in A only"),
            format!("b on {machine} is in B only"),
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn what_makes_a_comparison_doubtful_is_noted() {
        let before = experiment(&[("worst", &[8.0, 8.0])]);
        let after = Experiment { kernel: "6.18".into(), ..failed(&[("worst", &[8.0])], "worst", "panic") };
        let notes = Compared::of(&before, &after).unwrap().notes;
        assert_eq!(notes, ["A ran on kernel 7.3.4, B on 6.18", "worst is not valid in B"]);
    }
}
