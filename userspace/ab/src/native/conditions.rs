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

/// The state of the real machine before a run, or the worst before any of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The CPUs' frequency governors, each once; empty where the system does not set clock rates.
    pub governors: Vec<String>,
    /// Whether clock rates above the nominal one are allowed; `None` where the system does not say.
    pub boost: Option<bool>,
    /// Share of CPU time that other work took, 0 to 1.
    pub busy_share: f64,
    /// Whether a hypervisor is below.
    #[serde(default)]
    pub hypervisor: bool,
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
        Ok(Self { governors, boost, busy_share, hypervisor, noise })
    }

    /// The worse one of `self` and `other` in every respect.
    #[must_use]
    pub fn or_worse(&self, other: &Self) -> Self {
        let governors: BTreeSet<&String> = self.governors.iter().chain(&other.governors).collect();
        let governors: Vec<String> = governors.into_iter().cloned().collect();
        let (boost, busy_share) = (self.boost.max(other.boost), self.busy_share.max(other.busy_share));
        let hypervisor = self.hypervisor || other.hypervisor;
        let noise = noise(&governors, boost, busy_share, hypervisor);
        Self { governors, boost, busy_share, hypervisor, noise }
    }

    /// A sentence about other work, if there was more than a little.
    pub fn other_work(&self) -> Option<String> {
        other_work(self.busy_share)
    }

    /// As lines.
    pub fn words(&self) -> String {
        self.noise.iter().map(|line| format!("noise: {line}\n")).collect()
    }
}

/// The sched_ext scheduler that is loaded on the machine below `root`: stock arms would be measured under it.
///
/// # Errors
/// The kernel's file cannot be read.
pub fn loaded_scheduler(root: &Path) -> Result<Option<String>> {
    let folder = root.join("sys/kernel/sched_ext");
    if !folder.exists() {
        return Ok(None);
    }
    let state = fs::read_to_string(folder.join("state")).context("/sys/kernel/sched_ext/state cannot be read")?;
    if state.trim() == "disabled" {
        return Ok(None);
    }
    // While one is being loaded or unloaded it has no name there.
    let name = fs::read_to_string(folder.join("root/ops")).unwrap_or_default();
    Ok(Some(if name.trim().is_empty() { "a scheduler without a name" } else { name.trim() }.to_owned()))
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
    noise.extend(other_work(busy_share));
    if hypervisor {
        noise
            .push("this machine is virtual: its host may take CPU time away, and its nodes may not be real".to_owned());
    }
    noise
}

fn other_work(busy_share: f64) -> Option<String> {
    (busy_share > QUIET_SHARE)
        .then(|| format!("other work took {:.1} % of the CPU time before a run", busy_share * 100.0))
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
    fn a_sched_ext_scheduler_is_told_by_name_while_one_is_loaded() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(loaded_scheduler(root.path()).unwrap(), None);
        let folder = root.path().join("sys/kernel/sched_ext");
        fs::create_dir_all(folder.join("root")).unwrap();
        assert!(loaded_scheduler(root.path()).unwrap_err().to_string().contains("state cannot be read"));
        fs::write(folder.join("state"), "disabled\n").unwrap();
        assert_eq!(loaded_scheduler(root.path()).unwrap(), None);
        fs::write(folder.join("state"), "enabling\n").unwrap();
        assert_eq!(loaded_scheduler(root.path()).unwrap().as_deref(), Some("a scheduler without a name"));
        fs::write(folder.join("state"), "enabled\n").unwrap();
        fs::write(folder.join("root/ops"), "tandem\n").unwrap();
        assert_eq!(loaded_scheduler(root.path()).unwrap().as_deref(), Some("tandem"));
    }

    #[test]
    fn the_worst_before_any_run_is_what_counts() {
        let quiet = Conditions::read(root("performance", "sse").path()).unwrap();
        let busy = Conditions { busy_share: 0.3, boost: Some(true), ..quiet.clone() };
        let slow = Conditions { busy_share: 0.1, boost: None, governors: vec!["powersave".into()], ..quiet.clone() };
        assert_eq!((quiet.other_work(), quiet.or_worse(&quiet)), (None, quiet.clone()));
        let (one, other) = (busy.or_worse(&slow), quiet.or_worse(&slow).or_worse(&busy));
        assert_eq!(
            (one.busy_share, one.boost, one.governors.join(" ")),
            (0.3, Some(true), "performance powersave".into())
        );
        assert_eq!(one.noise.len(), 3, "{:?}", one.noise);
        assert_eq!((one.noise[2].as_str(), &one), ("other work took 30.0 % of the CPU time before a run", &other));
        let below = quiet.or_worse(&Conditions { hypervisor: true, ..quiet.clone() });
        assert!(below.hypervisor && below.noise[0].contains("virtual"), "{below:?}");
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
