// SPDX-License-Identifier: GPL-2.0-only
//! Experiments as one HTML page: it needs no network and no script, and follows the reader's choice of light or dark.

use std::fmt::Write as _;

use anyhow::Result;

use crate::charts::{self, Line};
use crate::experiment::{ArmResult, Experiment};
use crate::page::{Page, STYLE, cell, escaped, figure, head, write_legend};
use crate::table;
use crate::truth::Point;

/// The page of `experiments`.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(experiments: &[Experiment]) -> Result<Page> {
    let titles: Vec<String> = experiments.iter().map(|one| format!("{} on {}", one.workload, one.machine)).collect();
    let mut page = head(&format!("tandem ab: {}", titles.join(", ")), STYLE);
    for experiment in experiments {
        section(&mut page, experiment)?;
    }
    Ok(page)
}

fn section(page: &mut Page, experiment: &Experiment) -> Result<()> {
    page.begin_section(&format!("{} on {}", experiment.workload, experiment.machine));
    let meta = format!("kernel {}; {} boots an arm", experiment.kernel, experiment.boots_per_arm);
    writeln!(page, "<p>{}</p>", escaped(&meta))?;
    if !experiment.calibration.valid {
        let reason = experiment.calibration.reason.as_deref().unwrap_or("the calibration gives no reason");
        writeln!(page, "<p class=\"void\">This experiment is void: {}</p>", escaped(reason))?;
    }
    writeln!(page, "<pre>{}</pre>", escaped(&table::experiment(experiment)))?;
    let unit = format!("{} per arm", experiment.metric);
    figure(page, &unit, VALUES_CAPTION, &charts::values(experiment)?, &[])?;
    remote_share(page, experiment)?;
    load(page, experiment)?;
    *page += "</section>\n";
    Ok(())
}

const VALUES_CAPTION: &str = "Dots: boots. Tick: median. Bar: 95 % interval of the ratio to the best stock arm, times \
    that arm's median, which is the line from top to bottom.";

fn remote_share(page: &mut Page, experiment: &Experiment) -> Result<()> {
    let mut lines = Vec::new();
    let mut legend = Vec::new();
    for (colour, arm) in experiment.arms.iter().enumerate() {
        let points = course(arm, |point| point.remote_share);
        if !points.is_empty() {
            legend.push((colour, arm.name.clone()));
            lines.push(Line { colour, points });
        }
    }
    let plot = charts::over_time(&lines, "remote share", (860, 320))?;
    figure(page, "Remote share of memory accesses over time", &typical_caption(experiment), &plot, &legend)
}

fn typical_caption(experiment: &Experiment) -> String {
    let what = if experiment.native.is_some() { "workload" } else { "timed part" };
    format!("Of each arm, the boot whose result is nearest to the median; time since the {what} began.")
}

const LOAD: &str = "Load per node over time";

/// A plot of every arm, a line a node.
fn load(page: &mut Page, experiment: &Experiment) -> Result<()> {
    let nodes = experiment.arms.iter().flat_map(series).map(|point| point.load.len()).max().unwrap_or(0);
    if nodes == 0 {
        return Ok(());
    }
    let legend: Vec<(usize, String)> =
        (0..nodes).map(|node| (node, format!("node {}", node_id(experiment, node)))).collect();
    writeln!(page, "<h2>{LOAD}</h2>\n<div class=\"grid\">")?;
    for arm in &experiment.arms {
        let line = |node: usize| Line { colour: node, points: course(arm, |point| point.load.get(node).copied()) };
        let plot = charts::over_time(&(0..nodes).map(line).collect::<Vec<_>>(), "busy CPUs", (420, 220))?;
        cell(page, LOAD, &arm.name, &plot, &legend)?;
    }
    *page += "</div>\n";
    write_legend(page, &legend)?;
    writeln!(
        page,
        "<p class=\"caption\">Time the node's CPUs were busy, as a share. {}</p>",
        typical_caption(experiment)
    )?;
    Ok(())
}

/// The kernel's id of the node at this position, as the workload reported it.
fn node_id(experiment: &Experiment, position: usize) -> u32 {
    let reported = experiment.arms.iter().flat_map(|arm| &arm.boots).find_map(|run| run.report.node_ids.get(position));
    reported.copied().unwrap_or(position as u32)
}

/// (time, value) of an arm's typical boot. A point tells of the stretch before it, so the first one is also the begin.
fn course(arm: &ArmResult, value: impl Fn(&Point) -> Option<f64>) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> = series(arm).iter().filter_map(|point| Some((point.at_s, value(point)?))).collect();
    points.first().map(|&(_, first)| (0.0, first)).into_iter().chain(points.iter().copied()).collect()
}

fn series(arm: &ArmResult) -> &[Point] {
    arm.typical_boot().and_then(|run| run.placement.as_ref()).map_or(&[], |placement| &placement.series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{experiment, failed};

    fn page() -> String {
        let result = experiment(&[
            ("stock-nb0", &[8.0, 8.1]),
            ("stock-nb1", &[4.9, 4.8]),
            ("/opt/scx_<b>&co", &[6.0, 6.5]),
            ("oracle", &[4.0, 4.0]),
        ]);
        super::page(&[result]).unwrap().into_html()
    }

    #[test]
    fn the_page_has_all_plots_and_every_arm() {
        let page = page();
        // Values, remote share, and the load of four arms.
        assert_eq!(page.matches("<svg").count(), 6, "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for text in
            ["Remote share of memory accesses over time", "Load per node over time", "seconds per arm", "node 1"]
        {
            assert!(page.contains(text), "{text}");
        }
        for arm in ["stock-nb0", "stock-nb1", "oracle"] {
            assert!(page.matches(arm).count() >= 4, "{arm} in the tables, the values' plot, a legend and its load");
        }
        // Every boot is a dot.
        assert_eq!(page.matches("<circle").count(), 8);
    }

    #[test]
    fn a_real_machine_has_the_load_of_its_nodes_and_no_remote_share() {
        let mut result = experiment(&[("stock-nb0", &[8.0]), ("oracle", &[4.0])]);
        result.native = Some(crate::native::Conditions::default());
        let placements = result.arms.iter_mut().flat_map(|arm| &mut arm.boots).filter_map(|run| run.placement.as_mut());
        placements.flat_map(|placement| &mut placement.series).for_each(|point| point.remote_share = None);
        let page = super::page(&[result]).unwrap();
        let first = &page.plots()[0].title;
        assert!(first.starts_with("crossed on ") && first.ends_with(": seconds per arm"), "{first}");
        let page = page.into_html();
        // Values, and the load of two arms.
        assert_eq!(page.matches("<svg").count(), 3, "{page}");
        assert!(page.contains("Load per node over time") && !page.contains("Remote share of memory"));
        assert!(page.contains("since the workload began") && !page.contains("since the timed part"));
    }

    #[test]
    fn the_page_needs_no_network_and_no_script() {
        let page = page().replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn the_page_is_for_light_and_dark() {
        let page = page();
        assert!(page.contains("content=\"light dark\"") && page.contains("prefers-color-scheme: dark"));
        // The style sheet names the ink and grid colours that the plots use.
        for colour in ["#000000", "#DDDDDD"] {
            assert!(STYLE.contains(colour) && page.split("</style>").nth(1).unwrap().contains(colour), "{colour}");
        }
    }

    #[test]
    fn names_cannot_break_the_page() {
        assert!(!page().contains("scx_<b"));
        assert!(page().contains("scx_&lt;b&gt;&amp;co"));
    }

    #[test]
    fn a_void_experiment_says_so_and_still_renders() {
        let mut result = failed(&[("oracle", &[])], "oracle", "panic");
        result.calibration = crate::calibration::Calibration::failed("no lab".into());
        let page = super::page(&[result]).unwrap().into_html();
        assert!(page.contains("This experiment is void: no lab") && page.contains("INVALID"));
        assert_eq!(page.matches("<svg").count(), 0);
    }
}
