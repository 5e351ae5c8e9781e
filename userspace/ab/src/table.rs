// SPDX-License-Identifier: GPL-2.0-only
//! An experiment, and the comparison of two, as text for a terminal.

use crate::compare::Compared;
use crate::experiment::{ArmResult, Experiment};
use crate::statistics::Better;

/// What stands where nothing is known.
const UNKNOWN: &str = "-";

/// The experiment as tables: times, then placement facts, then notes.
pub fn experiment(experiment: &Experiment) -> String {
    let better = match experiment.better {
        Better::Lower => "lower",
        Better::Higher => "higher",
    };
    let metric = match experiment.metric.as_str() {
        "" => "nothing was measured".to_owned(),
        metric => format!("{metric} in {}, {better} is better", experiment.unit),
    };
    let (workload, machine, kernel) = (&experiment.workload, &experiment.machine, &experiment.kernel);
    let mut text =
        format!("{workload} on {machine}, kernel {kernel}: {metric}, {} boots an arm\n", experiment.boots_per_arm);
    for walk in &experiment.calibration.walks {
        text += &format!(
            "calibration: {}: {:.2} ns a line, expected {:.2} ({:+.2} %)\n",
            walk.name(),
            walk.measured_ns,
            walk.expected_ns,
            walk.deviation() * 100.0
        );
    }
    text += &experiment.native.iter().map(crate::native::Conditions::words).collect::<String>();
    text.push('\n');
    let mut times = vec![row(["arm", "median", "range", "of best stock", "95 % interval", "", "bad boots"])];
    let mut facts = vec![row([
        "arm",
        "remote",
        "local after",
        "pages/node",
        "threads/node",
        "moves",
        "pages moved",
        "pte updates",
        "hint faults",
        "by balancing",
    ])];
    for arm in &experiment.arms {
        times.push(time_row(arm));
        facts.push(fact_row(arm));
    }
    text += &aligned(&times);
    text.push('\n');
    text += &aligned(&facts);
    if experiment.arms.iter().any(|arm| arm.instructions.is_some()) {
        text.push('\n');
        let header = row(["arm", "million instructions", "of best stock", "95 % interval"]);
        let rows = experiment.arms.iter().map(instructions_row);
        text += &aligned(&std::iter::once(header).chain(rows).collect::<Vec<_>>());
    }
    if experiment.arms.iter().any(|arm| arm.energy_j.is_some()) {
        text.push('\n');
        let energy = experiment.arms.iter().map(|arm| row([&arm.name, &number(arm.energy_j, 1)]));
        text += &aligned(&std::iter::once(row(["arm", "energy J"])).chain(energy).collect::<Vec<_>>());
    }
    text + &notes(&experiment.notes)
}

/// Two experiments arm by arm.
pub fn comparison(compared: &Compared) -> String {
    let mut rows = vec![row(["arm", "A", "B", "B / A", "95 % interval", ""])];
    for arm in &compared.arms {
        rows.push(row([
            &arm.name,
            &number(Some(arm.medians[0]), 4),
            &number(Some(arm.medians[1]), 4),
            &format!("{:.3}", arm.ratio),
            &interval(Some(arm.interval)),
            &arm.verdict.to_string(),
        ]));
    }
    format!("{}\n\n{}{}", compared.title, aligned(&rows), notes(&compared.notes))
}

fn time_row(arm: &ArmResult) -> Vec<String> {
    let verdict = match (arm.verdict, arm.ratio_to_best_stock) {
        _ if !arm.valid && arm.failures.is_empty() => "incomplete".to_owned(),
        _ if !arm.valid => "INVALID".to_owned(),
        (Some(verdict), _) => verdict.to_string(),
        (None, Some(_)) => "best stock".to_owned(),
        (None, None) => String::new(),
    };
    row([
        &arm.name,
        &number(arm.median, 4),
        &arm.range.map_or(UNKNOWN.to_owned(), |[least, greatest]| format!("{least:.4}..{greatest:.4}")),
        &number(arm.ratio_to_best_stock, 3),
        &interval(arm.interval),
        &verdict,
        &arm.bad_boot_share.map_or(UNKNOWN.to_owned(), |share| format!("{:.0} %", share * 100.0)),
    ])
}

fn instructions_row(arm: &ArmResult) -> Vec<String> {
    row([
        &arm.name,
        &number(arm.instructions.map(|instructions| instructions / 1e6), 2),
        &number(arm.instructions_ratio, 3),
        &interval(arm.instructions_interval),
    ])
}

fn fact_row(arm: &ArmResult) -> Vec<String> {
    let report = arm.typical_boot().map(|run| &run.report);
    let list = |values: Option<&Vec<u64>>| {
        let words: Vec<String> = values.into_iter().flatten().map(u64::to_string).collect();
        if words.is_empty() { UNKNOWN.to_owned() } else { words.join("/") }
    };
    row([
        &arm.name,
        &arm.remote_share.map_or(UNKNOWN.to_owned(), |share| format!("{:.1} %", share * 100.0)),
        &arm.local_after_s.map_or(UNKNOWN.to_owned(), |after_s| format!("{after_s:.1} s")),
        &list(report.map(|report| &report.pages_per_node)),
        &list(report.map(|report| &report.threads_per_node)),
        &number(arm.thread_moves, 0),
        &number(arm.page_moves, 0),
        &number(arm.numa_pages_migrated, 0),
        &number(arm.numa_pte_updates, 0),
        &number(arm.numa_hint_faults, 0),
    ])
}

fn notes(notes: &[String]) -> String {
    let lines: Vec<String> = notes.iter().map(|note| format!("note: {note}\n")).collect();
    if lines.is_empty() { String::new() } else { format!("\n{}", lines.concat()) }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(UNKNOWN.to_owned(), |value| format!("{value:.digits$}"))
}

fn interval(interval: Option<[f64; 2]>) -> String {
    interval.map_or(UNKNOWN.to_owned(), |[low, high]| format!("{low:.3}..{high:.3}"))
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Rows of equal length as columns: the first to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::testing::{experiment, failed};

    #[test]
    fn every_arm_has_its_time_its_verdict_and_its_facts() {
        let nb1 = [4.9, 4.8, 4.9, 4.8];
        let result = experiment(&[("stock-nb0", &[8.0; 4]), ("stock-nb1", &nb1), ("oracle", &[4.0; 4])]);
        let text = super::experiment(&result);
        let line = |start: &str| text.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
        assert!(line("oracle")[0].contains("4.0000") && line("oracle")[0].contains("better"), "{text}");
        assert!(line("stock-nb1")[0].contains("best stock"), "{text}");
        assert!(line("stock-nb0")[0].contains("worse"), "{text}");
        assert!(
            line("stock-nb1")[1].contains("25.0 %        0.9 s") && line("stock-nb1")[1].contains("1000/1000"),
            "{text}"
        );
        assert!(text.contains("calibration: node 0 to node 1: 186.40 ns a line, expected 186.40 (+0.00 %)"), "{text}");
        let instructions: Vec<&str> = line("oracle")[2].split_whitespace().collect();
        assert_eq!(instructions, ["oracle", "4000.00", "0.825", "0.816..0.833"], "{text}");
        assert!(text.contains("note: with 4 boots"), "{text}");
    }

    #[test]
    fn an_invalid_arm_is_never_shown_as_a_result() {
        let text = super::experiment(&failed(&[("stock-nb1", &[4.9]), ("worst", &[])], "worst", "kernel panic"));
        assert!(text.lines().any(|line| line.starts_with("worst") && line.contains("INVALID")), "{text}");
        assert!(text.contains("note: worst: boot 1: kernel panic"), "{text}");
    }

    #[test]
    fn a_real_machine_has_no_column_of_instructions() {
        let mut result = experiment(&[("stock-nb0", &[8.0])]);
        assert!(super::experiment(&result).contains("million instructions"));
        result.arms.iter_mut().for_each(|arm| arm.instructions = None);
        assert!(!super::experiment(&result).contains("instructions"));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [super::row(["a", "bb", "c"]), super::row(["aaa", "b", ""])];
        assert_eq!(super::aligned(&rows), "a    bb  c\naaa   b\n");
    }
}
