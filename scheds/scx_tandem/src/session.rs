// SPDX-License-Identifier: GPL-2.0-only
//! One run of scx_tandem: load or take over, run the agent, unload.
//!
//! The kernel ejects the scheduler when CPUs come or go, since the tables were made for the machine as it was, and asks
//! for a restart: then all of this is done again with the machine as it is.

use std::fs::{File, TryLockError};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail};
use scx_utils::UserExitInfo;
use tandem_agent::{Agent, AgentConfig, Ended, Report};
use tandem_bpf::{Pins, Scheduler};
use tandem_policies::model::Topology;
use tracing::{info, warn};

use crate::cli::Cli;
use crate::load::{self, LoadOptions, Loaded};
use crate::preflight;
use crate::tables::Tables;

const LOCK: &str = "/run/scx_tandem.lock";
const SLICE_NS: u64 = 5_000_000;

/// Refuses to run beside another agent. The lock goes with the process, however it ends.
pub fn lock() -> Result<File> {
    let file = File::create(LOCK).with_context(|| format!("{LOCK} cannot be made"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another scx_tandem is running: stop it first (SIGTERM), it will unload the scheduler")
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("{LOCK} cannot be locked")),
    }
}

/// Runs until `stop` says so or the scheduler leaves for good. What was done goes into `report` in every case.
pub fn run(cli: &Cli, config: &AgentConfig, stop: &Receiver<()>, report: &mut Report) -> Result<()> {
    let pins = Pins::default();
    loop {
        let topology = tandem_machine::read_running().context("the machine's topology cannot be read")?.topology;
        let tables = Tables::new(&topology, SLICE_NS, cli.lease().as_nanos() as u64 * 2)?;
        let scheduler = load_or_take_over(cli, &tables, &topology, &pins)?;
        let ended = serve(scheduler, topology, config.clone(), stop, report);
        match ended {
            Ok(None) => {
                load::unload(&pins)?;
                info!("unloaded");
                return Ok(());
            }
            Ok(Some(exit)) => {
                load::unload(&pins)?;
                if !exit.should_restart() {
                    return exit.report();
                }
                info!("CPUs came or went: starting again with the machine as it is now");
            }
            Err(error) => {
                // The machine must not stay with a scheduler that nobody looks after.
                load::unload(&pins)?;
                return Err(error);
            }
        }
    }
}

/// `None`: stopped by the user; else why the scheduler left.
fn serve(
    scheduler: Scheduler,
    topology: Topology,
    config: AgentConfig,
    stop: &Receiver<()>,
    report: &mut Report,
) -> Result<Option<UserExitInfo>> {
    let mut agent = Agent::new(config, topology, scheduler)?;
    let ended = agent.run(stop, report)?;
    match ended {
        Ended::Stopped => Ok(None),
        Ended::SchedulerLeft => {
            let exit = load::exit_info(agent.scheduler())?;
            Ok(Some(exit.context("the scheduler left without a reason")?))
        }
    }
}

fn load_or_take_over(cli: &Cli, tables: &Tables, topology: &Topology, pins: &Pins) -> Result<Scheduler> {
    preflight::check_no_other_scheduler()?;
    let identity = load::identity_of(tables);
    if load::loaded()? == Loaded::Tandem {
        if pins.exist() {
            match Scheduler::open(pins, topology.len()).and_then(|scheduler| Ok((scheduler.identity()?, scheduler))) {
                Ok((found, scheduler)) if found == identity => {
                    info!("took over the scheduler that is loaded");
                    return Ok(scheduler);
                }
                Ok(_) => warn!("the loaded scheduler was made for another version or machine: loading anew"),
                Err(error) => warn!("the loaded scheduler cannot be used ({error}): loading anew"),
            }
        }
        load::unload(pins)?;
    }
    if cli.partial {
        warn!("partial mode: tasks of the class SCHED_EXT starve beside normal tasks; use it on dedicated CPUs only");
    }
    load::load(tables, LoadOptions { partial: cli.partial, verbose: cli.verbose > 1 }, pins)?;
    let scheduler = Scheduler::open(pins, topology.len())?;
    scheduler.set_identity(identity)?;
    info!("loaded");
    Ok(scheduler)
}
