// SPDX-License-Identifier: GPL-2.0-only
//! The command line, checked as far as it can be without touching the machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tandem_agent::{AgentConfig, Selector};
use tandem_policies::decider::PolicyChoice;
use tandem_policies::registry::Kind;
use tandem_trace::Recorder;

use crate::tables::QueueSharing;

/// Intervals that an assignment outlives its last renewal.
const LEASE_INTERVALS: u32 = 3;

/// A NUMA scheduler for Linux: places threads and their memory together.
///
/// Loads the sched_ext scheduler, then watches who touches which memory, assigns threads to nodes and moves pages, until
/// it is interrupted. Then the machine is as before, except that moved pages stay where they are. If this process is
/// killed, the loaded scheduler goes on without assignments until a new scx_tandem takes over or `--unload`.
#[derive(Debug, Parser)]
#[command(name = "scx_tandem", version)]
pub struct Cli {
    /// Unload the scheduler that a killed scx_tandem left behind, and exit
    #[arg(long)]
    pub unload: bool,

    /// Length of an interval: observe, decide, act [ms, at least 100]
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval_ms: u64,

    /// Thread and page policy in one, as THREAD+PAGE
    #[arg(long, value_name = "THREAD+PAGE", conflicts_with_all = ["thread_policy", "page_policy"])]
    pub policy: Option<String>,

    /// Policy that places threads (`tandem policies` lists them)
    #[arg(long, value_name = "NAME", default_value = "sma")]
    pub thread_policy: String,

    /// Policy that places pages
    #[arg(long, value_name = "NAME", default_value = "tmma")]
    pub page_policy: String,

    /// Set a policy's parameter (repeatable)
    #[arg(long = "parameter", value_name = "POLICY.NAME=VALUE")]
    pub parameters: Vec<String>,

    /// What to manage: comm=NAME, pid=PID (with its descendants) or all (repeatable); everything else is scheduled
    /// neutrally
    #[arg(long = "manage", value_name = "WHAT", default_value = "all")]
    pub manage: Vec<String>,

    /// CPU time for sampling, in percent of one CPU [default: 1 per 8 CPUs]
    #[arg(long, value_name = "PERCENT")]
    pub sampler_budget: Option<f64>,

    /// Memory moved per second at most
    #[arg(long, value_name = "MIB_PER_S", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub page_rate: u64,

    /// Time in system calls that move pages, in percent of one CPU
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub mover_budget: f64,

    /// How long a thread or page that was moved stays where it is
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub cooldown_s: u64,

    /// Which CPUs share a queue
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = QueueSharing::Auto)]
    pub queue: QueueSharing,

    /// Observe and decide, but change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Schedule only tasks of the class SCHED_EXT. They starve beside normal tasks: for dedicated CPUs only
    #[arg(long)]
    pub partial: bool,

    /// Print a line of statistics every SECONDS
    #[arg(long, value_name = "SECONDS")]
    pub stats: Option<u64>,

    /// Write what was seen and done to FILE on exit, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Record what is seen and decided to FILE, which must not exist yet; `tandem replay` reads it
    #[arg(long, value_name = "FILE", conflicts_with = "unload")]
    pub record: Option<PathBuf>,

    /// Seed of the policies' random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Say more (-vv: what the BPF verifier says too)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Cli {
    /// Length of an interval.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// Length of an assignment's lease.
    pub fn lease(&self) -> Duration {
        self.interval() * LEASE_INTERVALS
    }

    /// Begins to record, if that is wanted.
    pub fn recorder(&self) -> Result<Option<Recorder>> {
        Ok(self.record.as_deref().map(Recorder::create).transpose()?)
    }

    /// What the agent shall do, on a machine of `cpus` CPUs.
    pub fn agent_config(&self, cpus: usize) -> Result<AgentConfig> {
        let (thread_policy, page_policy) = self.policies()?;
        let sampler_budget_percent = self.sampler_budget.unwrap_or(cpus as f64 / 8.0);
        for (option, percent) in [("--sampler-budget", sampler_budget_percent), ("--mover-budget", self.mover_budget)] {
            if !(0.01..=100.0).contains(&percent) {
                bail!("{option} {percent}: must be between 0.01 and 100 percent of one CPU");
            }
        }
        Ok(AgentConfig {
            interval: self.interval(),
            lease: self.lease(),
            cooldown: Duration::from_secs(self.cooldown_s),
            thread_policy,
            page_policy,
            managed: self.manage.iter().map(|what| what.parse()).collect::<Result<Vec<Selector>, _>>()?,
            sampler_budget: sampler_budget_percent / 100.0,
            page_rate_bytes_per_s: self.page_rate << 20,
            mover_budget: self.mover_budget / 100.0,
            dry_run: self.dry_run,
            seed: self.seed,
            stats_interval: self.stats.map(Duration::from_secs),
            recorder: None,
        })
    }

    fn policies(&self) -> Result<(PolicyChoice, PolicyChoice)> {
        let (thread, page) = match &self.policy {
            Some(both) => both
                .split_once('+')
                .with_context(|| format!("--policy {both}: expected THREAD+PAGE, for example sma+tmma"))?,
            None => (self.thread_policy.as_str(), self.page_policy.as_str()),
        };
        let mut choices = [PolicyChoice::new(Kind::Thread, thread)?, PolicyChoice::new(Kind::Page, page)?];
        for given in &self.parameters {
            set_parameter(&mut choices, given)?;
        }
        let [thread, page] = choices;
        Ok((thread, page))
    }
}

fn set_parameter(choices: &mut [PolicyChoice], given: &str) -> Result<()> {
    let (policy, name, value) = given
        .split_once('=')
        .and_then(|(key, value)| key.split_once('.').map(|(policy, name)| (policy, name, value)))
        .with_context(|| format!("--parameter {given}: expected POLICY.NAME=VALUE, for example sma.gate_percent=1"))?;
    let value: f64 = value.parse().with_context(|| format!("--parameter {given}: {value} is no number"))?;
    let chosen = choices.iter_mut().find(|choice| choice.name() == policy).with_context(|| {
        format!("--parameter {given}: the policy {policy} is not in use; `tandem policies` lists them all")
    })?;
    chosen.set(name, value).with_context(|| format!("--parameter {given}"))
}
