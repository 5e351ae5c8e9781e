// SPDX-License-Identifier: GPL-2.0-only
//! What the command line and the configuration file mean for this process.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use tandem_agent::{AgentConfig, ManagedSet, MoverKind};
use tandem_config::{Cli, MoverName, Options, SamplerName};
use tandem_machine::Calibration;
use tandem_policies::model::Topology;
use tandem_sense::{AffinityConfig, SamplerChoice, SamplerError, SamplerKind, Sensor, SensorConfig};
use tandem_trace::{CannotRecord, Recorder};
use tandem_view::Board;

use crate::{preflight, refusal, service};

/// What this process was told, with what the configuration file says now.
///
/// # Errors
/// What is wrong, in a sentence; what clap refuses knows how to show itself.
pub fn read() -> Result<Cli, tandem_config::Error> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (cli, effective) = tandem_config::parse::<Cli>(&arguments)?;
    cli.check_alone(&effective)?;
    Ok(cli)
}

/// Begins to record, if that is wanted.
pub fn recorder(cli: &Cli) -> Result<Option<Recorder>> {
    cli.options.record.as_deref().map(Recorder::create).transpose().map_err(|error| {
        let lasts = match &error {
            CannotRecord::Exists(_) => true,
            CannotRecord::Io { error, .. } => refusal::forbids(error),
        };
        if lasts { refusal::lasting(error) } else { error.into() }
    })
}

/// What the agent shall do, on a machine of `cpus` CPUs that is calibrated so.
pub fn agent_config(
    cli: &Cli,
    calibration: &Calibration,
    cpus: usize,
    recorder: Option<Recorder>,
    board: &Board,
) -> Result<AgentConfig> {
    let options = &cli.options;
    let policies = options.policies_on(&calibration.parameters).map_err(anyhow::Error::msg)?;
    Ok(AgentConfig {
        interval: options.interval(),
        lease: options.lease(),
        cooldown: Duration::from_secs(options.cooldown_s),
        policies,
        managed: ManagedSet::new(options.manage.clone(), options.exclude.clone()),
        sampler_budget: sampler_budget(options, cpus),
        mover: match options.mover {
            MoverName::MovePages => MoverKind::MovePages,
            MoverName::Kernel => MoverKind::Kernel,
        },
        page_rate_bytes_per_s: options.page_rate << 20,
        mover_budget: options.mover_budget / 100.0,
        dry_run: options.dry_run,
        seed: options.seed,
        stats_interval: options.stats.map(Duration::from_secs),
        recorder,
        board: Some(board.clone()),
        alive,
    })
}

/// Once a second while the agent is alive.
fn alive() {
    service::alive();
    preflight::warn_of_rivals();
}

/// CPU time for sampling, as a share of one CPU of `cpus`.
fn sampler_budget(options: &Options, cpus: usize) -> f64 {
    options.sampler_budget.unwrap_or(cpus as f64 / 8.0) / 100.0
}

/// Begins to see what threads access.
///
/// # Errors
/// The sampler cannot be used, and what to do about it.
pub fn sensor(options: &Options, topology: &Topology) -> Result<Sensor, SamplerError> {
    let sampler = match options.sampler {
        SamplerName::Auto => SamplerChoice::Auto,
        SamplerName::Lookahead => SamplerChoice::Named(SamplerKind::Lookahead),
        SamplerName::Pmu => SamplerChoice::Named(SamplerKind::Pmu),
        SamplerName::Device => SamplerChoice::Named(SamplerKind::Device),
        SamplerName::Fault => SamplerChoice::Named(SamplerKind::Fault),
    };
    let cpus: Vec<_> = topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let budget = sampler_budget(options, cpus.len());
    let kept = options.page_groups as usize;
    let affinity = AffinityConfig { max_groups: kept, max_pages: kept, ..AffinityConfig::default() };
    let (hint_faults, counters) = (options.partial, options.counters);
    let config = SensorConfig { sampler, budget, hint_faults, counters, affinity, ..SensorConfig::default() };
    Sensor::open(config, topology, &cpus)
}
