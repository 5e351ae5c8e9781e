// SPDX-License-Identifier: GPL-2.0-only
//! `tandem-load`: workloads whose access pattern is known, and an observer that judges placement
//! against that ground truth. It shares no code with the scheduler it judges.

mod affinity;
mod buffer;
mod child;
mod crossed;
mod measures;
mod observe;
mod page_homes;
mod placement;
mod process;
mod process_files;
mod topology;
mod truth;
mod truth_of;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Workloads of known access pattern, and an observer of where their threads and pages are.
#[derive(Parser)]
#[command(name = "tandem-load", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run threads whose memory was first touched on another node than they run on.
    Crossed(crossed::Options),
    /// Record every interval where the threads and pages of a truth document are.
    Observe(observe::Options),
    /// Write the truth document of processes whose threads all use the process's large mappings.
    TruthOf(truth_of::Options),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
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
    let result = match arguments.command {
        Command::Crossed(options) => crossed::run(&options),
        Command::Observe(options) => observe::run(&options),
        Command::TruthOf(options) => truth_of::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandem-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
