// SPDX-License-Identifier: GPL-2.0-only
//! The command line, checked as far as it can be without touching the machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use tandem_agent::{AgentConfig, ManagedSet};
use tandem_config::Options;
use tandem_trace::Recorder;
use tandem_view::Board;

use crate::service;

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

impl Cli {
    /// What this process was told, with what the configuration file says now.
    ///
    /// # Errors
    /// What is wrong, in a sentence; a [`clap::Error`] knows how to show itself.
    pub fn read() -> Result<Self, tandem_config::Error> {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        tandem_config::parse(&arguments).map(|(cli, _)| cli)
    }

    /// Begins to record, if that is wanted.
    pub fn recorder(&self) -> Result<Option<Recorder>> {
        Ok(self.options.record.as_deref().map(Recorder::create).transpose()?)
    }

    /// What the agent shall do, on a machine of `cpus` CPUs.
    pub fn agent_config(&self, cpus: usize, recorder: Option<Recorder>, board: &Board) -> Result<AgentConfig> {
        let options = &self.options;
        let (thread_policy, page_policy) = options.policies().map_err(anyhow::Error::msg)?;
        Ok(AgentConfig {
            interval: options.interval(),
            lease: options.lease(),
            cooldown: Duration::from_secs(options.cooldown_s),
            thread_policy,
            page_policy,
            managed: ManagedSet { include: options.manage.clone(), exclude: options.exclude.clone() },
            sampler_budget: options.sampler_budget.unwrap_or(cpus as f64 / 8.0) / 100.0,
            page_rate_bytes_per_s: options.page_rate << 20,
            mover_budget: options.mover_budget / 100.0,
            dry_run: options.dry_run,
            seed: options.seed,
            stats_interval: options.stats.map(Duration::from_secs),
            recorder,
            board: Some(board.clone()),
            alive: service::alive,
        })
    }
}
