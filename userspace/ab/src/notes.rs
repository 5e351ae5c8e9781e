// SPDX-License-Identifier: GPL-2.0-only
//! What a reader of an experiment must know besides its numbers: checks of the numbers against each other, in words.

use crate::experiment::{ArmResult, Experiment};
use crate::run::Run;
use crate::statistics::Comparison;

/// Pinned arms repeat within this share of their median, or something disturbs the runs.
pub const PINNED_SPREAD: f64 = 0.005;

/// Fewer boots than this give an interval that is too narrow for its 95 %.
const ENOUGH_BOOTS: usize = 6;

/// A thread that waited for a CPU for more than this share of the timed part explains a slow run.
const WAITED_SHARE: f64 = 0.05;

/// Pages moved, or hint faults, explain a slow run if they are more than this for each second of its timed part: at some us
/// each they cost about what pinned runs differ by.
const MANY_PER_S: f64 = 1000.0;

/// They must also be more than so many times those under `worst`.
const MANY_TIMES_WORST: f64 = 2.0;

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
            let better = |ratio: f64, than: f64| experiment.better.times_worse(ratio, 1.0) < than;
            better(comparison.ratio, 1.0 - PINNED_SPREAD) && better(low, 1.0) && better(high, 1.0)
        })
        .map(|(arm, comparison)| {
            let why = if arm.name.ends_with("-thp") {
                "which runs without huge pages"
            } else {
                "so oracle is not the best placement of this workload"
            };
            format!("{}: better than oracle (ratio {:.3}), {why}", arm.name, comparison.ratio)
        })
        .collect()
}

fn slower_than_worst(experiment: &Experiment) -> Vec<String> {
    let Some((worst, bound)) = bound(experiment, "worst") else { return Vec::new() };
    let Some(worst_run) = worst.typical_boot() else { return Vec::new() };
    let note = |arm: &ArmResult| {
        let times = experiment.better.times_worse(arm.median?, bound.median());
        if arm.name == worst.name || times <= 1.0 + PINNED_SPREAD {
            return None;
        }
        let why = explanation(arm.typical_boot()?, worst_run);
        Some(format!("{}: worse than worst by {:.1} %: {why}", arm.name, (times - 1.0) * 100.0))
    };
    experiment.arms.iter().filter_map(note).collect()
}

fn bound<'a>(experiment: &'a Experiment, name: &str) -> Option<(&'a ArmResult, crate::statistics::Sample)> {
    let arm = experiment.arm(name)?;
    Some((arm, arm.sample()?))
}

/// Why `run` is slower than `worst`, a run with the worst placement of threads and memory, as far as both tell.
fn explanation(run: &Run, worst: &Run) -> String {
    let causes: Vec<String> = waited(run).into_iter().chain(balanced(run, worst)).collect();
    if !causes.is_empty() {
        return causes.join("; ");
    }
    let waits = run.longest_run_delay_s().map_or_else(
        || "how long its threads waited for a CPU was not told".to_owned(),
        |delay_s| format!("no thread waited more than {delay_s:.2} s for a CPU"),
    );
    format!("the cause is not known ({waits}; it moved few pages and took few hint faults, or about as many as worst)")
}

/// That threads shared a CPU, if one waited long.
fn waited(run: &Run) -> Option<String> {
    let (delay_s, seconds) = (run.longest_run_delay_s()?, run.report.seconds);
    (delay_s > WAITED_SHARE * seconds)
        .then(|| format!("threads shared a CPU, one waited {delay_s:.2} s of {seconds:.2} s"))
}

/// That it moved many pages or took many hint faults. They are counted with initialisation.
fn balanced(run: &Run, worst: &Run) -> Option<String> {
    let seconds = run.report.seconds;
    let many = |count: u64, of_worst: u64| {
        count as f64 > MANY_PER_S * seconds && count as f64 > MANY_TIMES_WORST * of_worst as f64
    };
    let (counts, least) = (&run.counts, &worst.counts);
    let mut words = Vec::new();
    if many(counts.page_moves, least.page_moves) {
        let pages: u64 = run.report.pages_per_node.iter().sum();
        let share = counts.page_moves as f64 / pages as f64 * 100.0;
        let share = if pages > 0 { format!(" ({share:.0} % of its pages)") } else { String::new() };
        words.push(format!("moved {} pages{share}", counts.page_moves));
    }
    if many(counts.numa_hint_faults, least.numa_hint_faults) {
        words.push(format!("took {} hint faults", counts.numa_hint_faults));
    }
    (!words.is_empty()).then(|| format!("it {} in {seconds:.1} s", words.join(" and ")))
}

#[cfg(test)]
mod tests {
    use crate::run::Run;
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
        assert!(result.notes[0].ends_with("not the best placement of this workload"), "{:?}", result.notes);
        let huge = experiment(&[("oracle", &[4.0; 6]), ("stock-nb1-thp", &[3.9; 6])]);
        assert!(huge.notes[0].ends_with("which runs without huge pages"), "{:?}", huge.notes);
        let within_spread = experiment(&[("oracle", &[4.0; 6]), ("stock-nb1", &[3.99; 6])]);
        assert_eq!(within_spread.notes, [""; 0]);
    }

    /// The note on an arm that is slower than worst, whose runs `change` has changed.
    fn note_on_a_slow_arm(change: &dyn Fn(&mut Run)) -> String {
        let mut result = experiment(&[("worst", &[8.0; 6]), ("scx_rusty", &[8.8; 6])]);
        result.arms[1].boots.iter_mut().for_each(change);
        super::notes(&result).remove(0)
    }

    #[test]
    fn an_arm_slower_than_worst_is_explained_by_what_it_did() {
        let waited = note_on_a_slow_arm(&|run| run.report.run_delay_ns = vec![None, Some(4_400_000_000)]);
        assert_eq!(waited, "scx_rusty: worse than worst by 10.0 %: threads shared a CPU, one waited 4.40 s of 8.80 s");
        let balanced = |run: &mut Run| {
            run.report.pages_per_node = vec![20_000, 20_000];
            (run.counts.page_moves, run.counts.numa_hint_faults) = (30_000, 34_350);
        };
        assert_eq!(
            note_on_a_slow_arm(&balanced),
            "scx_rusty: worse than worst by 10.0 %: it moved 30000 pages (75 % of its pages) and took 34350 hint faults in 8.8 s"
        );
        let both = note_on_a_slow_arm(&|run| {
            run.report.run_delay_ns = vec![None, Some(4_400_000_000)];
            (run.counts.numa_hint_faults, run.counts.page_moves) = (34_350, 8_000);
        });
        assert!(both.ends_with("of 8.80 s; it took 34350 hint faults in 8.8 s"), "{both}");
    }

    #[test]
    fn a_cause_that_is_not_known_is_said_to_be_so() {
        let said = note_on_a_slow_arm(&|_| ());
        let start = "scx_rusty: worse than worst by 10.0 %: the cause is not known (no thread waited more than 0.00 s for a CPU; it";
        assert!(said.starts_with(start), "{said}");
        let untold = note_on_a_slow_arm(&|run| run.report.run_delay_ns.clear());
        assert!(untold.contains("not known (how long its threads waited for a CPU was not told;"), "{untold}");
    }

    #[test]
    fn what_worst_did_as_well_explains_nothing() {
        let mut result = experiment(&[("worst", &[8.0; 6]), ("scx_rusty", &[8.8; 6])]);
        for run in result.arms.iter_mut().flat_map(|arm| &mut arm.boots) {
            run.counts.page_moves = 30_000;
        }
        assert!(super::notes(&result)[0].contains("the cause is not known"), "{:?}", super::notes(&result));
    }

    #[test]
    fn of_rates_the_lower_one_is_worse() {
        let mut result = experiment(&[("worst", &[8.0; 6]), ("scx_rusty", &[7.0; 6]), ("direct", &[8.0; 6])]);
        result.better = crate::statistics::Better::Higher;
        let notes = super::notes(&result);
        assert!(notes[0].starts_with("scx_rusty: worse than worst by 14.3 %") && notes.len() == 1, "{notes:?}");
    }
}
