// SPDX-License-Identifier: GPL-2.0-only
//! What disturbs measurements on a real machine, as far as it tells: clock rates that change, CPUs that are busy, a
//! hypervisor below.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cpu_time::CpuTime;

/// How long the machine is watched for what else it does.
const WATCHED: Duration = Duration::from_secs(1);
/// A busier machine than this share of its CPU time is not quiet.
const QUIET_SHARE: f64 = 0.02;

/// The state of the real machine before it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The CPUs' frequency governors, each once; empty where the system does not set clock rates.
    pub governors: Vec<String>,
    /// Whether clock rates above the nominal one are allowed; `None` where the system does not say.
    pub boost: Option<bool>,
    /// Share of CPU time that other work took before the experiment, 0 to 1.
    pub busy_share: f64,
    /// What of this disturbs, a sentence each.
    pub noise: Vec<String>,
}

impl Conditions {
    /// Reads them below `root`, watching for a second.
    ///
    /// # Errors
    /// /proc/stat or /proc/cpuinfo cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let stat = || fs::read_to_string(root.join("proc/stat")).context("/proc/stat cannot be read");
        let before = stat()?;
        std::thread::sleep(WATCHED);
        let busy_share = busy_share(&before, &stat()?).context("/proc/stat has no line 'cpu'")?;
        let governors = governors(&root.join("sys/devices/system/cpu"));
        let boost = boost(&root.join("sys/devices/system/cpu"));
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).context("/proc/cpuinfo cannot be read")?;
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let hypervisor = flags.split_whitespace().any(|flag| flag == "hypervisor");
        let noise = noise(&governors, boost, busy_share, hypervisor);
        Ok(Self { governors, boost, busy_share, noise })
    }

    /// As lines.
    pub fn words(&self) -> String {
        self.noise.iter().map(|line| format!("noise: {line}\n")).collect()
    }
}

fn noise(governors: &[String], boost: Option<bool>, busy_share: f64, hypervisor: bool) -> Vec<String> {
    let mut noise = Vec::new();
    if governors.iter().any(|governor| governor != "performance") {
        noise
            .push(format!("CPU clock rates change with the load (governor {}): set performance", governors.join(", ")));
    }
    if boost == Some(true) {
        noise
            .push("CPU clock rates above the nominal one are allowed, and depend on heat: switch boost off".to_owned());
    }
    if busy_share > QUIET_SHARE {
        noise.push(format!("other work took {:.1} % of the CPU time before the experiment", busy_share * 100.0));
    }
    if hypervisor {
        noise
            .push("this machine is virtual: its host may take CPU time away, and its nodes may not be real".to_owned());
    }
    noise
}

/// Busy share of all CPUs between two readings of /proc/stat.
fn busy_share(before: &str, after: &str) -> Option<f64> {
    let time = |stat: &str| CpuTime::parse(stat.lines().find_map(|line| line.strip_prefix("cpu "))?);
    Some(time(after)?.busy_share_since(time(before)?))
}

fn governors(cpus: &Path) -> Vec<String> {
    let entries = fs::read_dir(cpus).into_iter().flatten().filter_map(Result::ok);
    let files = entries.map(|entry| entry.path().join("cpufreq/scaling_governor"));
    let found: BTreeSet<String> =
        files.filter_map(|file| fs::read_to_string(file).ok()).map(|text| text.trim().to_owned()).collect();
    found.into_iter().collect()
}

fn boost(cpus: &Path) -> Option<bool> {
    let switch = |file: &str| fs::read_to_string(cpus.join(file)).ok().map(|text| text.trim() == "1");
    switch("intel_pstate/no_turbo").map(|off| !off).or_else(|| switch("cpufreq/boost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(governor: &str, flags: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/stat", "cpu  10 0 0 90 0 0 0 0 0 0\n");
        write("proc/cpuinfo", &format!("processor : 0\nflags\t\t: fpu {flags}\n"));
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", &format!("{governor}\n"));
        write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
        write("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
        root
    }

    #[test]
    fn a_quiet_machine_has_nothing_to_report() {
        let conditions = Conditions::read(root("performance", "sse").path()).unwrap();
        assert_eq!((conditions.noise, conditions.governors), (vec![], vec!["performance".to_owned()]));
        assert_eq!((conditions.boost, conditions.busy_share), (Some(false), 0.0));
    }

    #[test]
    fn one_cpu_with_another_governor_and_a_hypervisor_are_reported() {
        let conditions = Conditions::read(root("powersave", "hypervisor").path()).unwrap();
        assert_eq!(conditions.noise.len(), 2, "{:?}", conditions.noise);
        assert!(conditions.noise[0].contains("performance, powersave"));
        assert!(conditions.noise[1].contains("virtual"));
    }

    #[test]
    fn busy_cpus_are_reported() {
        let before = "cpu  10 0 0 90 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n";
        let after = "cpu  14 0 2 180 1 0 0 3 99 0\n";
        assert_eq!(busy_share(before, after), Some(0.09));
        assert!(noise(&[], Some(true), 0.09, false)[1].contains("9.0 %"));
        assert_eq!(busy_share("intr 1\n", after), None);
    }
}
