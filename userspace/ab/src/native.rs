// SPDX-License-Identifier: GPL-2.0-only
//! Experiments on the real machine: the same script as in the lab, run here, one run at a time.
//!
//! Times are real, so the machine is asked what disturbs them (`conditions.rs`), at first and before each run, and there is no model to calibrate and no
//! ground truth of accesses; the load of nodes is what the kernel says. The script puts back the settings it changed;
//! `settings.rs` sees to it even if it was killed.

mod beside;
mod conditions;
mod cpu_time;
mod energy_course;
mod inputs;
mod load;
mod lock;
mod settings;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tandem_machine::{RunningMachine, read_running};

pub use conditions::Conditions;
use conditions::loaded_scheduler;
use energy_course::EnergyWatch;
use load::{FIRST_INTERVAL, Watch};
use lock::{LOCK, MachineLock};
use settings::KernelSettings;

use crate::arm::Arm;
use crate::calibration::Calibration;
use crate::energy;
use crate::experiment::Experiment;
use crate::plan::{Plan, Scene};
use crate::programs::{Places, SCRIPT};
use crate::run::{Collected, Identity, Run, failure, hex};
use crate::runner::{Job, Runner};
use crate::stop::run_to_end;
use crate::truth::Placement;

/// What is known of this machine before anything runs.
struct Here {
    /// The node that the arm `direct` uses.
    direct_node: u32,
    /// Numbers of the CPUs of each node.
    cpus_per_node: Vec<Vec<u32>>,
    /// The settings that arms change.
    settings: KernelSettings,
}

/// Runs on this machine; one experiment per workload.
///
/// # Errors
/// The machine cannot run the arms, a program is missing, or the store fails. A failed run is no error.
pub fn run(plan: &Plan, places: &Places, runner: &Runner<'_>) -> Result<Vec<Experiment>> {
    needs_root()?;
    let _machine_is_ours = MachineLock::take(Path::new(LOCK))?;
    check(&plan.arms)?;
    let machine = read_running()?;
    let name = word_of("/proc/sys/kernel/hostname")?;
    let kernel = word_of("/proc/sys/kernel/osrelease")?;
    let machine_sha256 = fingerprint(&machine)?;
    let first_node = machine.topology.nodes.values().find(|node| !node.cpus.is_empty() && node.memory_pages > 0);
    let direct_node = first_node.map_or(0, |node| node.id.0);
    let jobs = plan.jobs(places, &|arm, workload, programs, seed| {
        let words = programs.arguments(arm, workload, seed, Path::new(""), direct_node);
        Ok(Identity {
            machine: name.clone(),
            machine_sha256: machine_sha256.clone(),
            kernel: kernel.clone(),
            workload: workload.text.clone(),
            arm: arm.name.clone(),
            seed,
            programs_sha256: inputs::fingerprint(programs, arm, &words)?,
        })
    })?;
    inputs::check_words(&jobs, runner.store.directory())?;
    let conditions = Conditions::read(Path::new("/"))?;
    for noise in &conditions.noise {
        (runner.say)(&format!("noise: {noise}"));
    }
    let cpus = machine.topology.nodes.values().map(|node| node.cpus.iter().map(|cpu| cpu.0).collect());
    let here = Here { direct_node, cpus_per_node: cpus.collect(), settings: KernelSettings::read(Path::new("/"))? };
    let make = |job: &Job, folder: &Path| one(job, folder, &here, runner);
    let outcomes = Runner { side_by_side: 1, ..*runner }.run(&jobs, &make)?;
    let calibration = Calibration::not_needed();
    let scene = Scene { machine: name, kernel, calibration, native: Some(conditions) };
    Ok(plan.experiments(&scene, &jobs, &outcomes))
}

fn needs_root() -> Result<()> {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("--native sets kernel settings: run it as root");
    }
    Ok(())
}

/// Refuses what this machine cannot do, before anything is changed.
fn check(arms: &[Arm]) -> Result<()> {
    nothing_is_loaded()?;
    let needs = |what: &str, path: &str, arm: Option<&Arm>| match arm {
        Some(arm) if !Path::new(path).exists() => {
            bail!("the arm {arm} needs {what}, which this kernel does not have ({path})")
        }
        _ => Ok(()),
    };
    let first = |needs: &dyn Fn(&Arm) -> bool| arms.iter().find(|arm| needs(arm));
    needs("NUMA balancing", settings::NUMA_BALANCING, first(&|arm| arm.settings.numa_balancing))?;
    needs("transparent huge pages", settings::HUGE_PAGES, first(&|arm| arm.settings.huge_pages))?;
    needs("sched_ext", "/sys/kernel/sched_ext", first(&|arm| arm.scheduler.is_some()))
}

/// Refuses a machine on which a sched_ext scheduler is loaded already.
fn nothing_is_loaded() -> Result<()> {
    match loaded_scheduler(Path::new("/"))? {
        Some(name) => {
            bail!("the sched_ext scheduler {name} is loaded, so stock arms would run under it: unload it first")
        }
        None => Ok(()),
    }
}

/// One run of one arm, its files in `folder`.
fn one(job: &Job, folder: &Path, here: &Here, runner: &Runner<'_>) -> Result<Run> {
    nothing_is_loaded()?;
    let script = folder.join("arm.sh");
    fs::write(&script, SCRIPT).context("the arm's script cannot be written")?;
    let arguments = job.programs.arguments(&job.arm, &job.workload, job.identity.seed, folder, here.direct_node);
    let conditions = Conditions::read(Path::new("/"))?;
    if let Some(sentence) = conditions.other_work() {
        (runner.say)(&format!("noise: {}, boot {}: {sentence}", job.arm, job.boot));
    }
    let begun = Instant::now();
    let mut command = Command::new("/bin/sh");
    inputs::without_settings(&mut command, std::env::vars_os().map(|(name, _)| name));
    let watch = Watch {
        proc: Path::new("/proc"),
        cpus_per_node: &here.cpus_per_node,
        begun: folder.join("workload.out"),
        ended: folder.join("energy.after"),
        interval: FIRST_INTERVAL,
    };
    let energy_watch = EnergyWatch {
        powercap: Path::new(energy::POWERCAP),
        begun: watch.begun.clone(),
        ended: watch.ended.clone(),
        every: energy_course::EVERY,
    };
    let run = || run_to_end(command.arg(&script).args(arguments), &folder.join("log"), runner.stop);
    let ended = energy_watch.during(|| watch.during(run));
    here.settings.put_back()?;
    let (watched, energy_readings) = ended?;
    let (status, series) = watched?;
    let status = status?;
    let files = || format!("its files are in {}", folder.display());
    if !status.success() {
        bail!("{}; {}", failure(folder).unwrap_or_else(|| format!("the arm's script failed: {status}")), files());
    }
    let collected = Collected::read(folder, false, &energy_readings).with_context(files)?;
    Ok(Run {
        identity: job.identity.clone(),
        report: collected.report,
        counts: collected.counts,
        placement: Some(Placement {
            remote_share: None,
            accesses: None,
            coherence: None,
            instructions: None,
            local_after_s: None,
            third_quarter_pace: None,
            series,
        }),
        scheduler_report: collected.scheduler_report,
        energy_j: collected.energy_j,
        conditions: Some(conditions),
        host_s: begun.elapsed().as_secs_f64(),
    })
}

/// A hash of what the machine is made of, but for how much of its memory is free.
fn fingerprint(machine: &RunningMachine) -> Result<String> {
    let mut hash = Sha256::new();
    for node in machine.topology.nodes.values() {
        hash.update(serde_json::to_string(&(node.id, &node.cpus, &node.llcs, node.memory_pages, &node.distance))?);
    }
    let cpus = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo cannot be read")?;
    hash.update(cpus.lines().find(|line| line.starts_with("model name")).unwrap_or_default());
    Ok(hex(&hash.finalize()))
}

fn word_of(path: &str) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("{path} cannot be read"))?.trim().to_owned())
}
