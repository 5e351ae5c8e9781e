// SPDX-License-Identifier: GPL-2.0-only
//! One run: what identifies it, and what it left.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::native::Conditions;
use crate::truth::{Placement, Truth};
use crate::vmstat::KernelCounts;
use crate::workload::WorkloadReport;

/// Everything that a run's result depends on. Two runs of the same identity are the same run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the machine.
    pub machine: String,
    /// SHA-256 of what the machine file says, and of what is derived where it says nothing.
    pub machine_sha256: String,
    /// Kernel release.
    pub kernel: String,
    /// Workload with its options.
    pub workload: String,
    /// Arm with its options.
    pub arm: String,
    /// Seed of the boot and of the workload.
    pub seed: u64,
    /// SHA-256 of what runs it: lab, plugin, script, workload, scheduler.
    pub programs_sha256: String,
}

impl Identity {
    /// The name of its file in a store: a hash of all fields.
    pub fn file_name(&self) -> String {
        let text = serde_json::to_string(self).expect("strings and numbers are JSON");
        format!("{}.json", hex(&Sha256::digest(text)))
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What it is a run of.
    pub identity: Identity,
    /// What the workload reported.
    pub report: WorkloadReport,
    /// What the kernel counted.
    pub counts: KernelCounts,
    /// What the machine model counted; on a real machine, what the kernel says of it. `None` in what
    /// older versions measured there.
    pub placement: Option<Placement>,
    /// The report of a scheduler that writes one.
    pub scheduler_report: Option<serde_json::Value>,
    /// Energy of all packages during the workload in J; `None` where the machine does not tell.
    pub energy_j: Option<f64>,
    /// The real machine's state before it; `None` in the lab and of older versions.
    #[serde(default)]
    pub conditions: Option<Conditions>,
    /// Time it took on the machine that ran it, in s.
    pub host_s: f64,
}

impl Run {
    /// Instructions of all CPUs in the timed part, where they are known.
    pub fn instructions(&self) -> Option<f64> {
        Some(self.placement.as_ref()?.instructions? as f64)
    }

    /// The longest time in s that one of its threads was runnable but did not run.
    pub fn longest_run_delay_s(&self) -> Option<f64> {
        self.report.run_delay_ns.iter().flatten().max().map(|&ns| ns as f64 / 1e9)
    }
}

/// What a run's directory holds, but for what only its runner knows.
pub struct Collected {
    /// What the workload reported.
    pub report: WorkloadReport,
    /// What the kernel counted.
    pub counts: KernelCounts,
    /// What the machine model counted.
    pub placement: Option<Placement>,
    /// The report of a scheduler that writes one.
    pub scheduler_report: Option<serde_json::Value>,
    /// Energy of all packages in J, where the machine tells.
    pub energy_j: Option<f64>,
}

impl Collected {
    /// Reads what a run left in `out`; with `truth`, the lab's ground truth must be there too. `energy` are readings of the
    /// energy counters while it ran.
    ///
    /// # Errors
    /// A file is missing or says nothing usable.
    pub fn read(out: &Path, truth: bool, energy: &[String]) -> Result<Self> {
        let placement = if truth {
            let parsed = Truth::parse(&read(out, "truth.json")?).context("truth.json");
            Some(parsed.and_then(|truth| truth.timed_part())?)
        } else {
            None
        };
        let scheduler_report = match std::fs::read_to_string(out.join(SCHEDULER_REPORT)) {
            Ok(text) => Some(serde_json::from_str(&text).context(SCHEDULER_REPORT)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).context(SCHEDULER_REPORT),
        };
        Ok(Self {
            report: WorkloadReport::parse(&read(out, "workload.out")?)?,
            counts: KernelCounts::between(&read(out, "vmstat.before")?, &read(out, "vmstat.after")?)?,
            energy_j: crate::energy::over(&read(out, "energy.before")?, energy, &read(out, "energy.after")?)?,
            placement,
            scheduler_report,
        })
    }
}

/// Where scx_tandem is told to write its report, in the run's directory.
pub const SCHEDULER_REPORT: &str = "scheduler.json";

/// The sentence that the arm's script left when it failed.
pub fn failure(out: &Path) -> Option<String> {
    let said = std::fs::read_to_string(out.join("failure")).ok()?;
    Some(said.trim().to_owned())
}

fn read(out: &Path, name: &str) -> Result<String> {
    std::fs::read_to_string(out.join(name)).with_context(|| format!("the run left no usable {name}"))
}
