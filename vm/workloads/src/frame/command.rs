// SPDX-License-Identifier: GPL-2.0-only
//! The command line of workloads: options from a workload's sizes, a run, and one line of JSON.

use crate::affinity::Affinity;
use crate::frame::memory::PageSize;
use crate::frame::plan::{Placement, Plan, Request};
use crate::frame::program::Setting;
use crate::frame::report::Report;
use crate::frame::run;
use crate::frame::spec::{Size, Spec, Values};
use crate::frame::stop::stop_at_signal;
use crate::topology::Topology;
use anyhow::{Result, bail};
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The subcommand of a workload.
pub fn command(spec: &Spec) -> Command {
    let mut command = Command::new(spec.name)
        .about(spec.summary)
        .after_help(format!("oracle: {}\nworst: {}", spec.best, spec.worst))
        .arg(
            option("placement", "who decides where threads and pages are", "none")
                .value_parser(value_parser!(Placement)),
        )
        .arg(
            option("seed", "varies where things start and every random sequence", "0")
                .value_parser(value_parser!(u64).range(..1 << 32)),
        )
        .arg(option("page-size", "page size asked for", "system").value_parser(value_parser!(PageSize)))
        .args([whole_machine(), sched_ext()]);
    command = size_options(command, spec.sizes);
    if spec.timed {
        let limit = Arg::new("seconds").long("seconds").value_parser(value_parser!(u64).range(1..1 << 32));
        let limit = limit.help("run so long instead of for a fixed amount of work; SIGTERM ends it early");
        let truth = Arg::new("truth").long("truth").value_name("FILE").value_parser(value_parser!(PathBuf));
        let truth = truth.help("write who touches what there, once everything is filled");
        command = command.arg(limit.conflicts_with("passes")).arg(truth);
    }
    command
}

/// `command` with an option for each size.
pub fn size_options(command: Command, sizes: &[Size]) -> Command {
    sizes.iter().fold(command, |command, size| {
        let parser = value_parser!(u64).range(size.least..1 << 40);
        let help = format!("{} ({})", size.help, size.unit);
        command.arg(option(size.name, help, size.default.to_string()).value_parser(parser))
    })
}

/// The values that were given for `sizes`, or their defaults.
pub fn values(sizes: &[Size], matches: &ArgMatches) -> Values {
    Values(sizes.iter().map(|size| (size.name, *value(matches, size.name))).collect())
}

/// Name of [`whole_machine`].
pub const WHOLE_MACHINE: &str = "whole-machine";

/// The option that keeps the amount of work when a run is bound to a part of the machine.
pub fn whole_machine() -> Arg {
    Arg::new(WHOLE_MACHINE)
        .long(WHOLE_MACHINE)
        .action(clap::ArgAction::SetTrue)
        .help("sizes that follow from the CPUs count all that are online, not only those that this process may use")
}

/// Name of [`sched_ext`].
pub const SCHED_EXT: &str = "sched-ext";

/// The option that puts a run into the class of sched_ext, which a scheduler in partial mode asks for.
pub fn sched_ext() -> Arg {
    Arg::new(SCHED_EXT)
        .long(SCHED_EXT)
        .action(clap::ArgAction::SetTrue)
        .help("run in the class SCHED_EXT, as a scheduler in partial mode wants it")
}

/// An option with a default.
pub fn option(name: &'static str, help: impl Into<String>, default: impl Into<clap::builder::OsStr>) -> Arg {
    Arg::new(name).long(name).help(help.into()).default_value(default)
}

/// Runs a workload to its end and prints what it gave.
pub fn run(spec: &Spec, matches: &ArgMatches) -> Result<()> {
    let sizes = values(spec.sizes, matches);
    let (placement, seed) = (*value::<Placement>(matches, "placement"), *value::<u64>(matches, "seed"));
    let affinity = Affinity::of_this_thread()?;
    let topology = Topology::read()?.restricted_to(&affinity.cpus(), matches.get_flag(WHOLE_MACHINE));
    let plan = (spec.plan)(&Request { topology: &topology, sizes: &sizes, placement, seed })?;
    check_memory(&plan)?;
    let seconds = spec.timed.then(|| matches.get_one::<u64>("seconds").copied()).flatten();
    let truth = spec.timed.then(|| matches.get_one::<PathBuf>("truth")).flatten();
    let never = AtomicBool::new(false);
    let setting = Setting {
        topology: &topology,
        affinity: &affinity,
        placement,
        pages: *value(matches, "page-size"),
        time_limit: seconds.map(Duration::from_secs),
        stop: if seconds.is_some() { stop_at_signal()? } else { &never },
    };
    let outcome = run::run(spec.name, &plan, &setting, truth.map(PathBuf::as_path))?;
    Report::new(spec, placement, seed, &outcome, &topology)?.print()
}

fn value<'a, T: Clone + Send + Sync + 'static>(matches: &'a ArgMatches, name: &str) -> &'a T {
    matches.get_one(name).expect("every option has a default")
}

/// Fails if the programs that start together need more memory than there is.
fn check_memory(plan: &Plan) -> Result<()> {
    let together = plan.programs.iter().filter(|program| program.start == crate::frame::plan::Start::Together);
    let bytes = together.flat_map(|program| &program.regions).map(|region| region.bytes as u128);
    let needed_mib = bytes.sum::<u128>() >> 20;
    let available_mib = crate::process_files::available_memory_mib()?;
    if needed_mib > u128::from(available_mib) {
        bail!(
            "{} threads need {needed_mib} MiB, more than the {available_mib} MiB available; use smaller sizes or fewer threads",
            plan.thread_count()
        );
    }
    Ok(())
}
