// SPDX-License-Identifier: GPL-2.0-only
//! What a workload says about itself: name, sizes, measure, best and worst placement, and how it is built.

use crate::frame::plan::{Plan, Request};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// A size that a workload takes as `--name VALUE`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Its option, without the dashes.
    pub name: &'static str,
    /// Value when nothing is said.
    pub default: u64,
    /// Unit of the value.
    pub unit: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Least value that makes sense.
    #[serde(skip)]
    pub least: u64,
}

/// Short form of a [`Size`] of at least 1.
pub const fn size(name: &'static str, default: u64, unit: &'static str, help: &'static str) -> Size {
    Size { name, default, unit, help, least: 1 }
}

/// The number of threads, for workloads that use the whole machine.
pub const THREADS: Size = Size {
    name: "threads",
    default: 0,
    unit: "threads",
    help: "threads; 0: one for each CPU that may be used",
    least: 0,
};

/// The number of threads, for workloads that fit one node.
pub const THREADS_OF_A_NODE: Size =
    Size { name: "threads", default: 0, unit: "threads", help: "threads; 0: as many as one node has CPUs", least: 0 };

/// The values of a workload's sizes.
#[derive(Clone, Debug, Default)]
pub struct Values(pub BTreeMap<&'static str, u64>);

impl Values {
    /// The value of size `name`, which the workload declares.
    pub fn of(&self, name: &str) -> u64 {
        self.0[name]
    }

    /// The value of a size in MiB, as bytes.
    pub fn mib(&self, name: &str) -> usize {
        (self.of(name) as usize) << 20
    }
}

/// What a workload is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Length of the timed part in seconds.
    Seconds,
    /// The sum of the programs' own lengths, arrival to end, in seconds.
    AccumulatedSeconds,
    /// The 99th percentile of the time that a request took, in ns.
    P99Ns,
    /// What STREAM's triad gets, all processes running it at the same time, in GB/s per process.
    TriadGbPerS,
}

impl Metric {
    /// Unit of the value.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Seconds | Self::AccumulatedSeconds => "s",
            Self::P99Ns => "ns",
            Self::TriadGbPerS => "GB/s",
        }
    }

    /// Which way it is better.
    pub fn better(self) -> &'static str {
        match self {
            Self::Seconds | Self::AccumulatedSeconds | Self::P99Ns => "lower",
            Self::TriadGbPerS => "higher",
        }
    }
}

/// A workload.
pub struct Spec {
    /// What one types.
    pub name: &'static str,
    /// Who touches what, in one sentence.
    pub summary: &'static str,
    /// Its sizes.
    pub sizes: &'static [Size],
    /// What it is measured by.
    pub metric: Metric,
    /// What its work is counted in.
    pub work_unit: &'static str,
    /// The best placement it knows, in words.
    pub best: &'static str,
    /// The worst placement it knows, in words.
    pub worst: &'static str,
    /// Whether it can run for a time instead of a fixed amount of work, and write a truth document.
    pub timed: bool,
    /// Builds it for a machine.
    pub plan: fn(&Request) -> Result<Plan>,
}

/// A workload as `list --json` has it.
#[derive(Serialize)]
pub struct Listed {
    /// What one types.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    sizes: &'static [Size],
    metric: Metric,
    unit: &'static str,
    better: &'static str,
    /// `null` for what cannot place itself.
    best: Option<&'static str>,
    worst: Option<&'static str>,
    /// Programs of other projects that it starts.
    needs: &'static [&'static str],
}

impl Listed {
    /// What is said of a program of another project.
    pub fn of_external(
        name: &'static str,
        summary: &'static str,
        sizes: &'static [Size],
        metric: Metric,
        needs: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            summary,
            sizes,
            metric,
            unit: metric.unit(),
            better: metric.better(),
            best: None,
            worst: None,
            needs,
        }
    }
}

impl Spec {
    /// What is said of it in lists.
    pub fn listed(&self) -> Listed {
        let listed = Listed::of_external(self.name, self.summary, self.sizes, self.metric, &[]);
        Listed { best: Some(self.best), worst: Some(self.worst), ..listed }
    }
}
