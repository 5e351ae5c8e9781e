// SPDX-License-Identifier: GPL-2.0-only
//! Workloads: what is asked of `tandem-load`, and what it reports.
//!
//! A workload is named `NAME` or `NAME:OPTIONS`, its options (sizes) separated by spaces as `tandem-load NAME` takes them,
//! with commas in them written `\,`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::arm::{Arm, Placement};
use crate::list;
use crate::statistics::Better;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// As it was written, options included.
    pub text: String,
    /// The name alone.
    pub name: String,
    /// Options for `tandem-load`.
    pub options: Vec<String>,
    /// Programs of other projects that it starts, by name.
    pub needs: Vec<String>,
}

/// The last line of what `tandem-load` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// Name of the metric, as `seconds` or `p99_ns`.
    pub metric: String,
    /// Unit of the metric.
    pub unit: String,
    /// Which way it is better.
    pub better: Better,
    /// The metric's value.
    pub value: f64,
    /// Length of the timed part in s.
    pub seconds: f64,
    /// What was done, the same in every run; 0: not told.
    #[serde(default)]
    pub work: u64,
    /// In what that is counted.
    #[serde(default)]
    pub work_unit: String,
    /// Its own check of its result.
    pub check: String,
    /// Ids of the nodes that the two lists below are by.
    #[serde(default)]
    pub node_ids: Vec<u32>,
    /// Pages on each node at the end of the timed part.
    #[serde(default)]
    pub pages_per_node: Vec<u64>,
    /// Threads on each node at the end of the timed part.
    #[serde(default)]
    pub threads_per_node: Vec<u64>,
    /// Changes of node by threads during the timed part.
    #[serde(default)]
    pub thread_moves: Option<u64>,
    /// Time in ns that each thread was runnable but did not run.
    #[serde(default)]
    pub run_delay_ns: Vec<u64>,
}

/// One entry of `tandem-load list --json`.
#[derive(Deserialize)]
struct Listed {
    name: String,
    /// Nothing for what cannot place itself.
    best: Option<String>,
    needs: Vec<String>,
}

/// The workloads of comma-separated lists, in their order. What they need is not known yet.
pub fn parse_lists(lists: &[String]) -> Vec<Workload> {
    let workload = |text: String| {
        let (name, options) = text.split_once(':').unwrap_or((&text, ""));
        let (name, options) = (name.to_owned(), options.split_whitespace().map(list::plain).collect());
        Workload { text, name, options, needs: Vec::new() }
    };
    list::split(lists).into_iter().map(workload).collect()
}

/// Asks the program `load` what `workloads` need, and refuses what it does not have or what cannot be run under `arms`.
///
/// # Errors
/// An unknown workload, or one that cannot place itself as an arm asks it to; `load` does not run or does not list its
/// workloads.
pub fn look_up(workloads: &mut [Workload], arms: &[Arm], load: &Path) -> Result<()> {
    let output = Command::new(load)
        .args(["list", "--json"])
        .output()
        .with_context(|| format!("{} does not start: build it by ./run build", load.display()))?;
    let listed: Vec<Listed> = serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{} does not list its workloads ({})", load.display(), said.trim())
    })?;
    fit(workloads, arms, &listed)
}

/// Fills in what `workloads` need by what is `listed`, or refuses as [`look_up`] does.
fn fit(workloads: &mut [Workload], arms: &[Arm], listed: &[Listed]) -> Result<()> {
    let mut previous: Option<&str> = None;
    for workload in workloads {
        let Some(known) = listed.iter().find(|known| known.name == workload.name) else {
            let names: Vec<&str> = listed.iter().map(|known| known.name.as_str()).collect();
            let hint = list::hint(previous);
            bail!("the workload '{}' is unknown: choose of {}{hint}", workload.name, names.join(", "));
        };
        let placing = arms.iter().find(|arm| matches!(arm.placement, Placement::Oracle | Placement::Worst));
        if let (None, Some(arm)) = (&known.best, placing) {
            bail!(
                "{} does not place itself, as the arm {arm} asks it to: compare with direct and interleave",
                workload.name
            );
        }
        workload.needs.clone_from(&known.needs);
        previous = Some(&workload.text);
    }
    Ok(())
}

impl WorkloadReport {
    /// The report on the last line of what the workload printed.
    ///
    /// # Errors
    /// There is none, its check failed, or its value is no number above 0.
    pub fn parse(printed: &str) -> Result<Self> {
        let Some(last) = printed.lines().rev().find(|line| !line.trim().is_empty()) else {
            bail!("the workload printed nothing");
        };
        let report: Self = serde_json::from_str(last)
            .with_context(|| format!("the last line that the workload printed is no report: {last:.120}"))?;
        if report.check != "ok" {
            bail!("the workload's check of its own result says '{}'", report.check);
        }
        if !(report.value.is_finite() && report.value > 0.0) {
            bail!("the workload reports {} {}, which is no measurement", report.value, report.unit);
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"workload":"crossed","metric":"seconds","unit":"s","better":"lower","value":4.5,"seconds":4.5,
        "work":1,"check":"ok","node_ids":[0,1],"pages_per_node":[5,6],"threads_per_node":[4,4],"thread_moves":3,"run_delay_ns":[1]}"#;

    #[test]
    fn the_report_is_the_last_line() {
        let printed = format!("starting\n{}\n\n", LINE.replace('\n', ""));
        let report = WorkloadReport::parse(&printed).unwrap();
        assert_eq!((report.value, report.better, report.thread_moves), (4.5, Better::Lower, Some(3)));
    }

    #[test]
    fn a_report_that_proves_nothing_is_refused() {
        let line = LINE.replace('\n', "");
        assert!(WorkloadReport::parse("").unwrap_err().to_string().contains("printed nothing"));
        assert!(WorkloadReport::parse("done").unwrap_err().to_string().contains("no report: done"));
        let wrong = line.replace(r#""check":"ok""#, r#""check":"sum differs""#);
        assert!(WorkloadReport::parse(&wrong).unwrap_err().to_string().contains("'sum differs'"));
        let none = line.replace(r#""value":4.5"#, r#""value":0.0"#);
        assert!(WorkloadReport::parse(&none).unwrap_err().to_string().contains("no measurement"));
    }

    #[test]
    fn options_are_for_the_workload() {
        let workloads = parse_lists(&["crossed:--threads 8 --mib 4,ring".to_owned()]);
        assert_eq!(workloads[0].options, ["--threads", "8", "--mib", "4"]);
        assert_eq!((workloads[0].name.as_str(), workloads[1].name.as_str()), ("crossed", "ring"));
    }

    #[test]
    fn options_may_hold_marked_commas() {
        let workloads = parse_lists(&[r"truth:--nodes 0\,1 --mib 4,ring".to_owned()]);
        assert_eq!(workloads[0].options, ["--nodes", "0,1", "--mib", "4"]);
        assert_eq!((workloads[0].text.as_str(), workloads[1].text.as_str()), (r"truth:--nodes 0\,1 --mib 4", "ring"));
    }

    #[test]
    fn what_may_be_a_part_of_options_is_refused_with_how_to_write_it() {
        let listed = [Listed { name: "crossed".into(), best: Some("near".into()), needs: Vec::new() }];
        let refusal = |list: &str| fit(&mut parse_lists(&[list.to_owned()]), &[], &listed).unwrap_err().to_string();
        let start = "the workload '1' is unknown: choose of crossed";
        let end = r"; if it belongs to the options of 'crossed:--nodes 0', write the comma between them as '\,'";
        assert_eq!(refusal("crossed:--nodes 0,1"), format!("{start}{end}"));
        assert_eq!(refusal("crossed,1"), start);
    }
}
