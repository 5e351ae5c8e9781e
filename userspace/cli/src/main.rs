// SPDX-License-Identifier: GPL-2.0-only
//! `tandem`: the toolbox.

mod ab;
mod doctor;
mod map;
mod policies;
mod profile;
mod replay;
mod sim;
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
    /// Compare ways of scheduling and placing a workload, in the lab or on this machine
    Ab(Box<ab::Arguments>),
    /// Tell which samplers and counters work on this machine, and why others do not
    Doctor(doctor::Arguments),
    /// Find the node each thread should run on, from what the threads share
    Map(map::Arguments),
    /// List the placement policies, what they need and what can be set
    Policies(policies::Arguments),
    /// See who shares memory with whom and who uses which pages, and where threads should run
    Profile(Box<profile::Arguments>),
    /// Decide again from a recording of scx_tandem, with its policies or others, and compare
    Replay(replay::Arguments),
    /// Judge placement policies on a model of a machine, of any size
    Sim(sim::Arguments),
    /// Show nodes, CPUs, memory and distances of this machine or of a machine file
    Topo(topo::Arguments),
}

/// Exit code of anything the caller asked wrongly (clap uses the same).
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Ab(arguments) => ab::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Map(arguments) => map::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Policies(arguments) => policies::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Topo(arguments) => topo::run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tandem: {error:#}");
            ExitCode::from(BAD_INPUT)
        }
    }
}
