// SPDX-License-Identifier: GPL-2.0-only
//! Workloads: what is asked of `tandem-load`, and what it reports.
//!
//! A workload is named `NAME` or `NAME:OPTIONS`, its options (sizes) separated by spaces as `tandem-load NAME` takes them,
//! with commas in them written `\,`. They are checked before anything runs, as far as `tandem-load list --json` tells of
//! them: that there is such an option and that a size is a number, but not its limits.

use std::collections::BTreeSet;
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
    /// Time in ns that each thread was runnable but did not run; `None` where the kernel does not count it.
    #[serde(default)]
    pub run_delay_ns: Vec<Option<u64>>,
    /// What it tells besides, such as `work_per_s` and `p99_ns`.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// What `tandem-load` is told by the arm and the boot, so that a workload cannot be.
const TOLD: [&str; 4] = ["placement", "seed", "whole-machine", "sched-ext"];

/// The one option besides sizes, which only workloads have that can place themselves, and its values.
const PAGE_SIZE: &str = "page-size";
const PAGE_SIZES: [&str; 3] = ["system", "base", "huge"];

/// A size that a workload takes as `--NAME NUMBER`.
#[derive(Deserialize)]
struct Size {
    name: String,
}

/// One entry of `tandem-load list --json`.
#[derive(Deserialize)]
struct Listed {
    name: String,
    sizes: Vec<Size>,
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
/// An unknown workload or option, a workload that cannot place itself as an arm asks it to; `load` does not run or does
/// not list its workloads.
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
        check_options(workload, known)?;
        workload.needs.clone_from(&known.needs);
        previous = Some(&workload.text);
    }
    Ok(())
}

/// Refuses options that the workload does not have, that have no such value, or that are given twice.
fn check_options(workload: &Workload, known: &Listed) -> Result<()> {
    let mut given = BTreeSet::new();
    let mut words = workload.options.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (option, value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        let name = option.strip_prefix("--").unwrap_or_default();
        if TOLD.contains(&name) {
            bail!("the workload '{}': {option} follows from the arm and the boot: leave it out", workload.text);
        }
        if !known.options().any(|known| known == name) {
            let names: Vec<String> = known.options().map(|name| format!("--{name}")).collect();
            bail!("the workload {} has no option '{option}': choose of {}", workload.name, names.join(", "));
        }
        if !given.insert(name) {
            bail!("the workload '{}': {option} is given twice", workload.text);
        }
        let value = value.or_else(|| words.next()).unwrap_or_default();
        if name == PAGE_SIZE && !PAGE_SIZES.contains(&value) {
            bail!("the workload '{}': {option} is one of {}, not '{value}'", workload.text, PAGE_SIZES.join(", "));
        }
        if name != PAGE_SIZE && value.parse::<u64>().is_err() {
            bail!("the workload '{}': {option} takes a whole number, not '{value}'", workload.text);
        }
    }
    Ok(())
}

impl Listed {
    /// Names of the options that may follow the workload's name.
    fn options(&self) -> impl Iterator<Item = &str> {
        let page_size = self.best.as_ref().map(|_| PAGE_SIZE);
        self.sizes.iter().map(|size| size.name.as_str()).chain(page_size)
    }
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
    fn a_report_is_kept_as_it_is() {
        let said = LINE
            .replace('\n', "")
            .replace(r#""run_delay_ns":[1]"#, r#""run_delay_ns":[1,null],"work_per_s":0.25,"p99_ns":7"#);
        let said = said.replace(r#""work":1"#, r#""work":1,"work_unit":"lines""#);
        let report = WorkloadReport::parse(&said).unwrap();
        assert_eq!(report.run_delay_ns, [Some(1), None]);
        let (said, kept): (serde_json::Value, _) =
            (serde_json::from_str(&said).unwrap(), serde_json::to_value(report).unwrap());
        assert_eq!(kept, said);
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

    /// Looks up `list` where there is a workload and a program of others.
    fn look_up_in_a_list(list: &str) -> Result<()> {
        let sizes = |names: &[&str]| names.iter().map(|name| Size { name: (*name).to_owned() }).collect();
        let best = Some("near".to_owned());
        let listed = [
            Listed { name: "crossed".into(), sizes: sizes(&["nodes", "passes"]), best, needs: Vec::new() },
            Listed { name: "hackbench".into(), sizes: sizes(&["groups"]), best: None, needs: vec!["hackbench".into()] },
        ];
        fit(&mut parse_lists(&[list.to_owned()]), &[], &listed)
    }

    #[test]
    fn options_that_there_are_pass() {
        for list in
            ["crossed:--nodes 2 --passes=3 --page-size huge", "crossed", "hackbench:--groups 2,crossed:--passes 1"]
        {
            look_up_in_a_list(list).unwrap_or_else(|error| panic!("{list}: {error}"));
        }
    }

    #[test]
    fn other_options_and_values_are_refused_with_those_that_there_are() {
        for (list, sentence) in [
            ("crossed:--bad", "the workload crossed has no option '--bad': choose of --nodes, --passes, --page-size"),
            (
                "crossed:passes 3",
                "the workload crossed has no option 'passes': choose of --nodes, --passes, --page-size",
            ),
            ("hackbench:--page-size huge", "the workload hackbench has no option '--page-size': choose of --groups"),
            (
                "crossed:--passes many",
                "the workload 'crossed:--passes many': --passes takes a whole number, not 'many'",
            ),
            ("crossed:--passes=-1", "the workload 'crossed:--passes=-1': --passes takes a whole number, not '-1'"),
            ("crossed:--passes", "the workload 'crossed:--passes': --passes takes a whole number, not ''"),
            (
                "crossed:--page-size 4k",
                "the workload 'crossed:--page-size 4k': --page-size is one of system, base, huge, not '4k'",
            ),
            ("crossed:--nodes 1 --nodes 2", "the workload 'crossed:--nodes 1 --nodes 2': --nodes is given twice"),
            (
                "crossed:--seed 4",
                "the workload 'crossed:--seed 4': --seed follows from the arm and the boot: leave it out",
            ),
        ] {
            assert_eq!(look_up_in_a_list(list).unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn what_may_be_a_part_of_options_is_refused_with_how_to_write_it() {
        let refusal = |list: &str| look_up_in_a_list(list).unwrap_err().to_string();
        let start = "the workload '1' is unknown: choose of crossed, hackbench";
        let end = r"; if it belongs to the options of 'crossed:--nodes 0', write the comma between them as '\,'";
        assert_eq!(refusal("crossed:--nodes 0,1"), format!("{start}{end}"));
        assert_eq!(refusal("crossed,1"), start);
    }
}
