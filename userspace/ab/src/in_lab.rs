// SPDX-License-Identifier: GPL-2.0-only
//! Experiments in the lab: every run in a machine booted for it, in virtual time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tandem_machine::{MachineFile, MachineFileError};

use crate::arm::Arm;
use crate::calibration::Calibration;
use crate::experiment::Experiment;
use crate::lab::{Boot, Lab};
use crate::plan::{Plan, Scene};
use crate::programs::{Places, Programs, SCRIPT};
use crate::run::{Collected, Identity, Run, failure, hex};
use crate::runner::{Job, Outcome, Runner};
use crate::stop::Stop;
use crate::workload::Workload;

/// Where programs lie in the guest, and where it leaves files.
const GUEST_PROGRAMS: &str = "/bin";
const GUEST_OUT: &str = "/out";
const GUEST_SCRIPT: &str = "/bin/ab-arm.sh";

const INTERRUPTED: &str = "interrupted before the calibration ended";

/// What to compare, and where.
#[derive(Clone, Debug)]
pub struct Request {
    /// Machine file.
    pub machine: PathBuf,
    /// Kernel release.
    pub kernel: String,
    /// Workloads, arms and boots.
    pub plan: Plan,
    /// Limit of one run, in time of this machine.
    pub limit: Duration,
}

/// The file of the machine `asked`: a path, or the name of one of the lab's.
///
/// # Errors
/// There is no such file; the sentence lists those that there are.
pub fn machine_file(asked: &Path, lab: &Lab) -> Result<PathBuf> {
    let folder = lab.folder().join("machines");
    match MachineFile::find(asked, &folder) {
        Err(MachineFileError::NoNames { .. }) => bail!(
            "the lab {} has no machines: there is no folder {}; give the path of lab.py by --lab",
            lab.program().display(),
            folder.display()
        ),
        found => Ok(found?),
    }
}

/// Calibrates and runs; one experiment per workload. What a stop left out is missing in them.
///
/// # Errors
/// The machine file is bad, a program is missing, or the store fails. A failed run is no error.
pub fn run(request: &Request, lab: &Lab, places: &Places, runner: &Runner<'_>) -> Result<Vec<Experiment>> {
    let machine = MachineFile::load(&request.machine)?;
    // With what is derived where the file says nothing.
    let machine_sha256 = hex(&Sha256::digest(serde_json::to_string(&machine)?));
    let lab_sha256 = lab.fingerprint()?;
    let identity = |workload: &str, arm: &str, seed: u64, programs_sha256: String| Identity {
        machine: machine.name.clone(),
        machine_sha256: machine_sha256.clone(),
        kernel: request.kernel.clone(),
        workload: workload.to_owned(),
        arm: arm.to_owned(),
        seed,
        programs_sha256,
    };
    let direct_node = node_of_direct(&machine)?;
    let jobs = request.plan.jobs(places, &|arm, workload, programs, seed| {
        let words = guest_arguments(programs, arm, workload, seed, direct_node);
        let hashes = format!("{lab_sha256}{}", programs.fingerprint(&words)?);
        Ok(identity(&workload.text, &arm.name, seed, hex(&Sha256::digest(hashes))))
    })?;
    let of_calibration = identity("", "calibration", request.plan.first_seed, lab_sha256.clone());
    let calibration = calibrate(request, lab, &of_calibration, runner)?;
    let outcomes = if calibration.valid {
        runner.run(&jobs, &|job, folder| boot(job, folder, request, lab, direct_node, runner.stop))?
    } else {
        vec![Outcome::NotRun; jobs.len()]
    };
    let scene = Scene { machine: machine.name.clone(), kernel: request.kernel.clone(), calibration, native: None };
    Ok(request.plan.experiments(&scene, &jobs, &outcomes))
}

/// The words for the arm's script in the guest.
fn guest_arguments(programs: &Programs, arm: &Arm, workload: &Workload, seed: u64, direct_node: u32) -> Vec<String> {
    programs.moved_to(Path::new(GUEST_PROGRAMS)).arguments(arm, workload, seed, Path::new(GUEST_OUT), direct_node)
}

/// The first node that has CPUs and memory.
fn node_of_direct(machine: &MachineFile) -> Result<u32> {
    let nodes = machine.cpus_per_node.iter().zip(&machine.memory_mb).zip(&machine.node_ids);
    let first = nodes.filter(|((cpus, memory_mb), _)| **cpus > 0 && **memory_mb > 0).map(|(_, id)| *id).next();
    first.with_context(|| format!("{} has no node with both CPUs and memory", machine.name))
}

fn calibrate(request: &Request, lab: &Lab, identity: &Identity, runner: &Runner<'_>) -> Result<Calibration> {
    let stored = || if runner.again { Ok(None) } else { runner.store.read(&identity.file_name()) };
    if let Some(calibration) = stored()? {
        (runner.say)("calibration: in the store already");
        return Ok(calibration);
    }
    let attempt = match runner.attempt(identity, "calibration") {
        Err(_) if runner.stop.wished() => return Ok(Calibration::failed(INTERRUPTED.to_owned())),
        attempt => attempt?,
    };
    if let Some(calibration) = stored()? {
        (runner.say)("calibration: of another `tandem ab`");
        attempt.done()?;
        return Ok(calibration);
    }
    (runner.say)("calibration: pinned walks from every node to every memory");
    let calibration = match lab.calibrate(
        &request.machine,
        &request.kernel,
        request.plan.first_seed,
        &attempt.folder().join("lab.log"),
        request.limit,
        runner.stop,
    ) {
        Ok(walks) => Calibration::of(walks),
        Err(_) if runner.stop.wished() => Calibration::failed(INTERRUPTED.to_owned()),
        Err(error) => Calibration::failed(format!("the calibration failed: {error:#}")),
    };
    for walk in &calibration.walks {
        let (measured, deviation) = (walk.measured_ns, walk.deviation() * 100.0);
        (runner.say)(&format!("calibration: {}: {measured:.2} ns a line ({deviation:+.2} %)", walk.name()));
    }
    if calibration.valid {
        runner.store.write(&identity.file_name(), &calibration)?;
        attempt.done()?;
    }
    Ok(calibration)
}

/// One run of one arm in a machine booted for it, its files in `folder`.
fn boot(job: &Job, folder: &Path, request: &Request, lab: &Lab, direct_node: u32, stop: &Stop) -> Result<Run> {
    let (out, log, script) = (folder.join("out"), folder.join("lab.log"), folder.join("arm.sh"));
    fs::write(&script, SCRIPT).and_then(|()| make_executable(&script)).context("the arm's script cannot be written")?;
    let guest = job.programs.moved_to(Path::new(GUEST_PROGRAMS));
    let mut additions: Vec<(PathBuf, PathBuf)> = job.programs.all().cloned().zip(guest.all().cloned()).collect();
    additions.extend(job.programs.tools.iter().cloned());
    additions.push((script, GUEST_SCRIPT.into()));
    let mut command = vec![GUEST_SCRIPT.to_owned()];
    command.extend(guest_arguments(&job.programs, &job.arm, &job.workload, job.identity.seed, direct_node));
    let begun = Instant::now();
    let asked = Boot {
        machine: &request.machine,
        kernel: &request.kernel,
        seed: job.identity.seed,
        out: &out,
        log: &log,
        limit: request.limit,
        additions,
        command,
    };
    let ran = lab.run(&asked, stop).map_err(|error| match failure(&out) {
        // The script knows more than its exit code tells the lab; the lab knows why the kernel did what it did.
        Some(sentence) => anyhow::anyhow!("{sentence}; {error:#}"),
        None => error,
    });
    let collected = ran.and_then(|()| Collected::read(&out, true, &[]));
    let collected = collected.map_err(|error| anyhow::anyhow!("{error:#}; its files are in {}", folder.display()))?;
    Ok(Run {
        identity: job.identity.clone(),
        report: collected.report,
        counts: collected.counts,
        placement: collected.placement,
        scheduler_report: collected.scheduler_report,
        energy_j: collected.energy_j,
        conditions: None,
        host_s: begun.elapsed().as_secs_f64(),
    })
}

fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}
