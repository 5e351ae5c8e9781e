// SPDX-License-Identifier: GPL-2.0-only
//! The command line of external programs.

use crate::affinity::Affinity;
use crate::external::{External, Setting, session};
use crate::frame::command::{WHOLE_MACHINE, option, sched_ext, size_options, values, whole_machine};
use crate::frame::report::Report;
use crate::topology::Topology;
use anyhow::{Context, Result};
use clap::{ArgMatches, Command, value_parser};

/// The subcommand of an external program.
pub fn command(external: &External) -> Command {
    let command = Command::new(external.name)
        .about(external.summary)
        .after_help(match external.needs {
            [] => "It places nothing itself.".to_owned(),
            needs => format!("Starts {}, found by PATH. It places nothing itself.", needs.join(", ")),
        })
        .arg(option("placement", "none: it places nothing itself", "none").value_parser(["none"]))
        .arg(
            option("seed", "varies random choices, where the program has any", "0")
                .value_parser(value_parser!(u64).range(..1 << 32)),
        );
    size_options(command.args([whole_machine(), sched_ext()]), external.sizes)
}

/// Runs it to its end and prints what it gave.
pub fn run(external: &External, matches: &ArgMatches) -> Result<()> {
    let sizes = values(external.sizes, matches);
    let topology =
        Topology::read()?.restricted_to(&Affinity::of_this_thread()?.cpus(), matches.get_flag(WHOLE_MACHINE));
    let seed = *matches.get_one::<u64>("seed").expect("it has a default");
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let setting = Setting {
        sizes: &sizes,
        cpus: topology.counted_cpus() as u64,
        nodes: topology.counted_nodes() as u64,
        seed,
        folder: folder.path(),
    };
    let outcome = session::run(&(external.session)(&setting)?, folder.path())?;
    Report::of_external(external, seed, &outcome, &topology).print()
}
