// SPDX-License-Identifier: GPL-2.0-only
//! The command line of scx_tandem. It is here so that the toolbox can show it and make manual pages of it.

use std::path::PathBuf;

use clap::Parser;

use crate::options::Options;

/// A NUMA scheduler for Linux: places threads and their memory together.
///
/// Loads the sched_ext scheduler, then watches who touches which memory, assigns threads to nodes and moves pages, until
/// it is interrupted. Then the machine is as before, except that moved pages stay where they are. If this process is
/// killed, the loaded scheduler goes on without assignments until a new scx_tandem takes over or `--unload`.
///
/// Every option can stand in a configuration file (`page_rate = 64`) and in the environment (`TANDEM_PAGE_RATE=64`) as
/// well. Flags come before the environment, the environment before the file. SIGHUP reads the file again.
#[derive(Clone, Debug, Parser)]
#[command(name = "scx_tandem", version)]
pub struct Cli {
    /// Unload the scheduler that a killed scx_tandem left behind, and exit
    #[arg(long)]
    pub unload: bool,

    /// Read options from FILE, which only root may be able to write
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print a line of a running scx_tandem's statistics every SECONDS, and load nothing
    #[arg(long, value_name = "SECONDS", conflicts_with = "unload", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub monitor: Option<u64>,

    /// Say what each statistic is that can be read from the socket, and exit
    #[arg(long)]
    pub help_stats: bool,

    /// What can be chosen, and stand in FILE as well.
    #[command(flatten)]
    pub options: Options,

    /// Say more (-vv: what the BPF verifier says too)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}
