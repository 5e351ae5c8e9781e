// SPDX-License-Identifier: GPL-2.0-only
//! `tandem-load`: workloads whose access pattern is known, and an observer that judges placement
//! against that ground truth. It shares no code with the scheduler it judges.

mod affinity;
mod external;
mod frame;
mod measures;
mod observe;
mod page_homes;
mod process_files;
mod scheduling_class;
mod topology;
mod truth;
mod truth_of;
mod workloads;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use external::{External, forks, redis_clients, wake_ups};
use frame::spec::{Listed, Spec};
use std::io::Write;
use std::process::ExitCode;

fn command() -> Command {
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("as JSON, with sizes");
    let observe =
        Command::new("observe").about("Record every interval where the threads and pages of a truth document are");
    let truth_of = Command::new("truth-of")
        .about("Write the truth document of processes whose threads all use the process's large mappings");
    let redis_clients = Command::new(redis_clients::COMMAND).hide(true).about("The clients of one server of `redis`");
    let starters = Command::new(forks::COMMAND).hide(true).about("The starters of `forks`");
    let program = Command::new(forks::PROGRAM).hide(true).about("One program of `forks`");
    let wake_ups = Command::new(wake_ups::COMMAND).hide(true).about("The process of `wake-ups`");
    Command::new("tandem-load")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Workloads of known access pattern, and an observer of where their threads and pages are")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(workloads::ALL.iter().map(frame::command::command))
        .subcommands(external::ALL.iter().map(external::command))
        .subcommand(Command::new("list").about("List the workloads").arg(json))
        .subcommand(observe::Options::augment_args(observe))
        .subcommand(truth_of::Options::augment_args(truth_of))
        .subcommand(redis_clients::Options::augment_args(redis_clients))
        .subcommand(forks::Options::augment_args(starters))
        .subcommand(forks::Program::augment_args(program))
        .subcommand(wake_ups::Options::augment_args(wake_ups))
}

fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => {
            // clap adds usage and tips; what is wrong stands in the first paragraph.
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text);
            let sentence = first.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("tandem-load: {}; see --help", sentence.trim_start_matches("error: "));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    match run(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandem-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(matches: &ArgMatches) -> Result<()> {
    match matches.subcommand().expect("clap requires a subcommand") {
        ("list", matches) => list(matches.get_flag("json")),
        ("observe", matches) => observe::run(&observe::Options::from_arg_matches(matches)?),
        ("truth-of", matches) => truth_of::run(&truth_of::Options::from_arg_matches(matches)?),
        (redis_clients::COMMAND, matches) => redis_clients::run(&redis_clients::Options::from_arg_matches(matches)?),
        (forks::COMMAND, matches) => forks::start(&forks::Options::from_arg_matches(matches)?),
        (forks::PROGRAM, matches) => forks::run(&forks::Program::from_arg_matches(matches)?),
        (wake_ups::COMMAND, matches) => wake_ups::run(&wake_ups::Options::from_arg_matches(matches)?),
        (name, matches) => {
            if matches.get_flag(frame::command::SCHED_EXT) {
                scheduling_class::enter_sched_ext()?;
            }
            match workloads::ALL.iter().find(|spec| spec.name == name) {
                Some(spec) => frame::command::run(spec, matches),
                None => {
                    let found = external::ALL.iter().find(|external| external.name == name);
                    external::run(found.expect("clap knows only these names"), matches)
                }
            }
        }
    }
}

fn list(as_json: bool) -> Result<()> {
    let own = workloads::ALL.iter().map(Spec::listed);
    let all: Vec<Listed> = own.chain(external::ALL.iter().map(External::listed)).collect();
    let text = if as_json {
        serde_json::to_string(&all)?
    } else {
        let lines = all.iter().map(|listed| format!("{:16} {}", listed.name, listed.summary));
        lines.collect::<Vec<_>>().join("\n")
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the list")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_of_every_workload_is_consistent() {
        super::command().debug_assert();
    }
}
