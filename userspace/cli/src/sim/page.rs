// SPDX-License-Identifier: GPL-2.0-only
//! What a simulation gave as one HTML page, in the look of tandem-ab's reports.

use std::fmt::Write as _;

use anyhow::Result;
use tandem_ab::charts::{Row, dots};
use tandem_ab::page::{Page, STYLE, escaped, figure, head};

use super::{ArmReport, Report, metric_in_words, table};

/// The page of `reports`, a section a scenario.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(reports: &[Report]) -> Result<Page> {
    let titles: Vec<String> = reports.iter().map(|one| format!("{} on {}", one.scenario, one.machine)).collect();
    let mut page = head(&format!("tandem sim: {}", titles.join(", ")), STYLE);
    for report in reports {
        section(&mut page, report)?;
    }
    Ok(page)
}

fn section(page: &mut Page, report: &Report) -> Result<()> {
    page.begin_section(&format!("{} on {}", report.scenario, report.machine));
    writeln!(page, "<pre>{}</pre>", escaped(&table(report)?))?;
    let oracle_s = report.arms.iter().find(|arm| arm.name == "oracle").and_then(|arm| arm.time_s);
    let caption = format!(
        "The {}. Dots: seeds. Tick: their mean. The line from top to bottom is the oracle's. Arms without a dot were given up.",
        metric_in_words(report.metric)
    );
    figure(page, "Seconds per arm", &caption, &dots(&times(report), "time [s]", oracle_s)?, &[])?;
    let remote = rows(report, |arm| arm.remote_share * 100.0);
    let caption = "Accesses to memory of other nodes, of all that reach memory; mean of the seeds.";
    figure(page, "Remote share of memory accesses", caption, &dots(&remote, "remote [%]", None)?, &[])?;
    let moved = rows(report, |arm| arm.page_moves * 4.0 / 1024.0);
    let caption = "Memory that changed node; mean of the seeds. Moving costs time, which is in the times above.";
    figure(page, "Moved memory", caption, &dots(&moved, "moved [MiB]", None)?, &[])?;
    *page += "</section>\n";
    Ok(())
}

fn times(report: &Report) -> Vec<Row> {
    let row = |arm: &ArmReport| Row {
        name: arm.name.clone(),
        values: arm.times_s.iter().copied().flatten().collect(),
        tick: arm.time_s,
        bar: None,
    };
    report.arms.iter().map(row).collect()
}

/// One dot an arm.
fn rows(report: &Report, value: impl Fn(&ArmReport) -> f64) -> Vec<Row> {
    let row = |arm: &ArmReport| Row { name: arm.name.clone(), values: vec![value(arm)], tick: None, bar: None };
    report.arms.iter().map(row).collect()
}
