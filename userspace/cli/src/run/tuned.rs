// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run --tuned`: a program under the configuration that `tandem tune` found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;
use tandem_machine::{format_cpu_list, online_cpus};
use tandem_policies::model::Topology;
use tandem_tune::births;
use tandem_tune::chance::main_cpus;
use tandem_tune::launch::{End, Limit, Program, Streams};
use tandem_tune::placer::ThreadsBy;
use tandem_tune::places::Places;
use tandem_tune::plan::Plan;
use tandem_tune::rights;
use tandem_tune::seat::CpuSet;
use tandem_tune::shell;
use tandem_tune::space::Configuration;
use tandem_tune::subject::Subject;
use tandem_tune::surroundings::kernel_release;
use tandem_tune::tuned::Tuned;

use super::signals::Forwarding;
use crate::tune::movers::{self, Beside};
use crate::tune::trial::describe;

/// Runs `command` as `file` says; the exit code is the program's.
///
/// # Errors
/// The file is no result, or the program cannot be started.
pub fn run(file: &Path, command: &[OsString]) -> Result<ExitCode> {
    let tuned = Tuned::read(file)?;
    let topology = describe()?.topology;
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let warn = |words: &str| say_line(format_args!("tandem: warning: {}: {words}", file.display()));
    let here = Subject::of(&words, input(), &topology)?.with_code_of(&tuned.subject)?;
    tuned.check(&here, &topology).with_context(|| file.display().to_string())?;
    warn_of_differences(&tuned, &here, &topology, &warn)?;
    if let Some(other) = tuned.other_kernel(kernel_release().as_deref()) {
        say_line(format_args!("tandem: note: {}: {other}", file.display()));
    }
    let plan = tuned.plan();
    if plan.is_none() {
        say_line(format_args!("tandem: {}: {}", file.display(), tuned.in_words()));
    }
    let (places, base) = places(&tuned, plan.as_ref(), &topology, &warn).with_context(|| no_result(file))?;
    let command = crate::tune::trial::words(command, plan.as_ref());
    let program = Program { command, streams: Streams::Ours, functions: tuned.subject.functions.clone() };
    let forwarding = Forwarding::begin()?;
    let started = |pid: i32| forwarding.to(pid);
    let assigned = plan.as_ref().map_or(ThreadsBy::Affinity, |_| tuned.subject.threads_by);
    let beside = Beside { moves_by: base.as_ref(), threads_by: assigned };
    let ran = movers::run(&program, &beside, &places, Limit::default(), &Stop::default(), started)?;
    forwarding.close();
    if let Some(Err(why)) = &ran.moved_pages {
        warn(&format!("it was not placed to the end: {why}"));
    }
    if let Some(misfit) = ran.seen.map_use.as_ref().and_then(births::MapUse::in_words) {
        warn(&misfit);
    }
    let code = match ran.seen.end {
        End::Code(code) => code,
        End::Signal(signal) => 128 + signal,
        End::TooLong | End::Stopped | End::Measured | End::WantsTerminal => 1,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn no_result(file: &Path) -> String {
    format!("{}: is no result of tandem tune", file.display())
}

/// Warns of what is not as it was tuned.
fn warn_of_differences(tuned: &Tuned, here: &Subject, topology: &Topology, warn: &dyn Fn(&str)) -> Result<()> {
    let differences = tuned.subject.differences(here);
    differences.iter().for_each(|difference| warn(difference));
    let all = online_cpus().context("the machine's CPUs cannot be read")?.len();
    let allowed: Vec<u32> = topology.nodes.values().flat_map(|node| &node.cpus).map(|cpu| cpu.0).collect();
    if tuned.subject.machine != here.machine && allowed.len() < all {
        let cpus = format_cpu_list(&allowed);
        warn(&format!("only the CPUs {cpus} may be used here (taskset, a cpuset): threads have seats on no others"));
    }
    if let Some(withheld) = rights::withheld(Path::new(&here.program), movers::is_root()) {
        warn(&withheld);
    }
    if !differences.is_empty() {
        warn("it may not be the fastest any more: `tandem tune` finds out");
    }
    Ok(())
}

/// Where threads and pages go, and the configuration that pages are moved by, if they are.
fn places(
    tuned: &Tuned,
    plan: Option<&Plan>,
    topology: &Topology,
    warn: &dyn Fn(&str),
) -> Result<(Places, Option<Configuration>)> {
    let as_it_is = || Places { main: main_place(tuned, topology, warn), ..Places::default() };
    let places = plan.map_or_else(as_it_is, |plan| Places::of(plan, topology));
    let base = plan.map(|plan| plan.base);
    let Some(map) = tuned.page_map.clone() else { return Ok((places, base)) };
    let has_node = |run: &births::Run| topology.nodes.values().any(|node| node.id.0 == run.node);
    if map.by_name()?.values().flat_map(|one| &one.1).all(has_node) {
        return Ok((Places { page_map: Some(Arc::new(map)), ..places }, base));
    }
    warn("its map of pages names nodes that are not here: pages are where they are touched first");
    Ok((places, None))
}

/// Where the main thread is at first, if it is bound and there are CPUs.
fn main_place(tuned: &Tuned, topology: &Topology, warn: &dyn Fn(&str)) -> Option<CpuSet> {
    let node = tuned.main_node()?;
    let cpus = main_cpus(topology, node);
    if cpus.is_none() {
        warn(&format!("node {node} has no CPUs here: its main thread begins wherever it happens to"));
    }
    cpus
}

/// Where `tandem tune` puts what it finds about this program, if that is there.
///
/// # Errors
/// It is not.
pub fn result_here(command: &[OsString]) -> Result<PathBuf> {
    let name = Path::new(command.first().context("there is no program to run")?).file_name().unwrap_or_default();
    let file = PathBuf::from(format!("{}.tandem.toml", name.to_string_lossy()));
    if !file.is_file() {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        bail!(
            "--tuned: there is no {} here: make it with `tandem tune -- {}`, or name a file",
            file.display(),
            shell::in_words(words.iter().map(|word| &**word))
        );
    }
    Ok(file)
}

/// What the program will read, if that is a file: a terminal or a pipe cannot be looked at beforehand.
fn input() -> Option<&'static Path> {
    let path = Path::new("/proc/self/fd/0");
    std::fs::metadata(path).is_ok_and(|file| file.is_file()).then_some(path)
}
