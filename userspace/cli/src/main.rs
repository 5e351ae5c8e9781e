// SPDX-License-Identifier: GPL-2.0-only
//! `tandem`: the toolbox.

mod ab;
mod advise;
mod config;
mod doctor;
mod explain;
mod generate;
mod machines;
mod map;
mod observe;
mod policies;
mod profile;
mod replay;
mod report_files;
mod run;
mod signals;
mod sim;
mod top;
mod topo;
mod tune;

use std::process::ExitCode;
use tandem_ab::say::say_line;

use clap::{CommandFactory, Parser, Subcommand};
use tandem_policies::foreign::printable_lines;

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
    /// Name the nodes on which a program of a known size should be started
    Advise(advise::Arguments),
    /// Check a configuration file of scx_tandem, or show every option's value and where it comes from
    Config(config::Arguments),
    /// Tell what keeps scx_tandem from running here, what works against it, and which samplers and counters work
    Doctor(doctor::Arguments),
    /// Say why threads are where they are, what was moved and what that brought
    Explain(explain::Arguments),
    /// Write manual pages and completions, for packages
    #[command(hide = true)]
    Generate(generate::Arguments),
    /// Find the node each thread should run on, from what the threads share
    Map(map::Arguments),
    /// List the placement policies, what they need and what can be set
    Policies(policies::Arguments),
    /// See who shares memory with whom and who uses which pages, and where threads should run
    Profile(Box<profile::Arguments>),
    /// Decide again from a recording of scx_tandem, with its policies or others, and compare
    Replay(replay::Arguments),
    /// Run a program under scx_tandem, which comes and goes with it, and say what that brought
    Run(run::Arguments),
    /// Judge placement policies on a model of a machine, of any size
    Sim(sim::Arguments),
    /// Watch nodes, processes, threads and moves live, of a running scx_tandem or without one
    Top(top::Arguments),
    /// Show nodes, CPUs, memory and distances of this machine or of a machine file
    Topo(topo::Arguments),
    /// Carry out one request of `tandem tune --executor` on this machine
    #[command(hide = true)]
    Trial(tune::trial::Arguments),
    /// Find the best numbers and places of threads and pages for a program, by running it
    Tune(Box<tune::Arguments>),
}

/// Exit code of anything the caller asked wrongly (clap uses the same).
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Ab(arguments) => ab::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Config(arguments) => config::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Generate(arguments) => generate::run(&arguments, Arguments::command()).map(|()| ExitCode::SUCCESS),
        Command::Map(arguments) => map::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Policies(arguments) => policies::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Top(arguments) => top::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Topo(arguments) => topo::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Trial(arguments) => tune::trial::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say_line(format_args!("tandem: {}", printable_lines(&format!("{error:#}"))));
            ExitCode::from(BAD_INPUT)
        }
    }
}
