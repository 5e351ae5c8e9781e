// SPDX-License-Identifier: GPL-2.0-only
//! `tandem`: the toolbox.

mod policies;
mod topo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Threads beside their memory on NUMA machines: the toolbox.
#[derive(Parser)]
#[command(name = "tandem", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the placement policies, what they need and what can be set
    Policies(policies::Arguments),
    /// Show nodes, CPUs, memory and distances of this machine or of a machine file
    Topo(topo::Arguments),
}

/// Exit code of anything the caller asked wrongly (clap uses the same).
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Policies(arguments) => policies::run(&arguments),
        Command::Topo(arguments) => topo::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandem: {error:#}");
            ExitCode::from(BAD_INPUT)
        }
    }
}
