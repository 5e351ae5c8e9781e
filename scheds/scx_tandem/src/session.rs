// SPDX-License-Identifier: GPL-2.0-only
//! One run of scx_tandem: load or take over, run the agent, unload.
//!
//! When CPUs or nodes come or go the scheduler goes on, and the agent begins anew over it with the machine as it is. Only a CPU of a
//! node that was not there makes the scheduler leave and ask for a restart, since its tables do not have it: then it is
//! loaded anew.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tandem_agent::{Agent, Ended, Handover, Order, Report};
use tandem_bpf::{Pins, Scheduler};
use tandem_config::{Cli, Options};
use tandem_machine::Calibration;
use tandem_policies::model::{NodeId, Topology};
use tandem_sense::Sensor;
use tandem_trace::Recorder;
use tandem_view::{Board, SOCKET, Server};
use tracing::{info, warn};

use crate::cli;
use crate::exit::Exit;
use crate::load::{self, LoadOptions, Loaded};
use crate::metrics;
use crate::preflight;
use crate::refusal::{lasting, lasting_if_forbidden};
use crate::service;
use crate::tables::Tables;

const LOCK: &str = "/run/scx_tandem.lock";
const SLICE_NS: u64 = 5_000_000;
/// For so long it is tried to begin anew on a machine that changed, so often: shorter than the unit's watchdog waits.
const UNSETTLED: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// An agent that fails again within this time is not begun anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Metrics older than this (and than a lease) are not given out. As WatchdogSec of the unit.
const HANGS: Duration = Duration::from_secs(30);

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

/// Runs until it is told to stop or the scheduler leaves for good. What was done goes into `report` in every case.
pub fn run(cli: &Cli, recorder: Option<Recorder>, orders: &Receiver<Order>, report: &mut Report) -> Result<()> {
    let pins = Pins::default();
    let board = Board::default();
    let _server = offer(cli, &board).map_err(|error| give_up(&pins, error))?;
    preflight::warn_of_rights();
    preflight::warn_of_rivals();
    // An agent that was killed may have left its scheduler behind.
    let begun = judged(cli.clone()).and_then(|told| Ok((begin(&told, &pins)?, told)));
    let (mut begun, mut told) = begun.map_err(|error| give_up(&pins, error))?;
    service::ready(&mode(cli));
    let mut before = Before::default();
    loop {
        let sinks = Sinks { recorder: recorder.clone(), board: &board, report };
        let ended = serve(begun, &mut told, sinks, orders, &mut before);
        match ended {
            Ok(Left::Stopped) => {
                service::stopping();
                load::unload(&pins)?;
                info!("unloaded");
                return Ok(());
            }
            Ok(Left::MachineChanged) => info!("CPUs or nodes came or went: going on with the machine as it is now"),
            Ok(Left::Reconfigured) => {
                info!("going on with the new configuration");
                service::ready(&mode(&told.cli));
            }
            Ok(Left::Scheduler(exit)) => {
                let unloaded = load::unload(&pins);
                if !exit.should_restart() {
                    return exit.report(std::io::stderr()).and(unloaded);
                }
                unloaded?;
                info!("a CPU came that this machine did not have: starting again");
            }
            // What could not be read once is no reason to take the scheduler away from the machine.
            Err(error) if before.handover.is_some() => {
                warn!("the agent begins anew: {error:#}");
                before.failed = Some(Instant::now());
            }
            Err(error) => return Err(give_up(&pins, error)),
        }
        begun = begin_anew(&told, &pins).map_err(|error| give_up(&pins, error))?;
    }
}

/// Offers what is known, and refuses what needs no scheduler to be refused.
fn offer(cli: &Cli, board: &Board) -> Result<Server> {
    let server = Server::start(Path::new(SOCKET), board.clone()).context("the socket of statistics cannot be made")?;
    if let Some(address) = cli.options.metrics {
        let started = metrics::start(address, board.clone(), cli.options.lease().max(HANGS));
        let address = started.map_err(lasting_if_forbidden)?;
        info!("metrics at http://{address}/metrics");
    }
    preflight::check_mover(cli.options.mover)?;
    Ok(server)
}

/// Begins again. That fails where CPUs go on coming and going meanwhile, so it is tried for a while.
fn begin_anew(told: &Told, pins: &Pins) -> Result<Begun> {
    let since = Instant::now();
    loop {
        match begin(told, pins) {
            Err(error) if since.elapsed() < UNSETTLED => {
                warn!("not yet, the machine may be changing still: {error:#}");
                std::thread::sleep(RETRY_AFTER);
            }
            result => return result,
        }
    }
}

/// What it is doing, in a line.
fn mode(cli: &Cli) -> String {
    let managed: Vec<String> = cli.options.manage.iter().map(ToString::to_string).collect();
    let doing = if cli.options.dry_run { "observing (dry run)" } else { "placing" };
    format!("{doing} {}", managed.join(", "))
}

/// What it was told, and has judged: what is in the files later on counts only from a reload on.
struct Told {
    cli: Cli,
    /// What was measured of this machine before; nothing if no file is named.
    calibration: Calibration,
}

/// What an agent works with.
struct Begun {
    scheduler: Scheduler,
    topology: Topology,
    sensor: Sensor,
}

/// Reads the machine, begins to sample, and loads the scheduler or takes over the one that is loaded.
fn begin(told: &Told, pins: &Pins) -> Result<Begun> {
    let options = &told.cli.options;
    preflight::warn_of_control_groups(options);
    let mut machine = tandem_machine::read_running().context("the machine's topology cannot be read")?;
    calibrate(told, &mut machine.topology)?;
    let tables = Tables::new(&machine, options.queue, SLICE_NS, options.lease().as_nanos() as u64 * 2);
    let tables = tables.map_err(lasting)?;
    // Nothing is loaded for a sampler that does not work.
    let sensor = cli::sensor(options, &machine.topology)?;
    let scheduler = load_or_take_over(&told.cli, &tables, &machine.topology, pins)?;
    Ok(Begun { scheduler, topology: machine.topology, sensor })
}

/// Judges the calibration that is named: refused is one of another machine.
fn judged(cli: Cli) -> Result<Told> {
    let Some(path) = &cli.options.calibration else { return Ok(Told { cli, calibration: Calibration::default() }) };
    let calibration = calibration(path, &cli.options).map_err(lasting)?;
    let mut topology = tandem_machine::read_running().context("the machine's topology cannot be read")?.topology;
    let applied = calibration.apply(&mut topology, &tandem_sense::cpu_model());
    applied.with_context(|| path.display().to_string()).map_err(lasting)?;
    Ok(Told { cli, calibration })
}

fn calibration(path: &Path, options: &Options) -> Result<Calibration> {
    let calibration = Calibration::parse(path, &tandem_config::read_roots(path)?)?;
    options.policies_on(&calibration.parameters).map_err(anyhow::Error::msg)?;
    Ok(calibration)
}

/// Puts into `topology` what was measured of it. Nodes that came since were not: they keep what firmware tells.
fn calibrate(told: &Told, topology: &mut Topology) -> Result<()> {
    let Some(path) = &told.cli.options.calibration else { return Ok(()) };
    let path = path.display();
    let new = told.calibration.apply(topology, &tandem_sense::cpu_model());
    let new = new.with_context(|| path.to_string())?;
    info!("latencies between nodes are those measured in {path}");
    for NodeId(node) in new {
        warn!(
            "node {node} was not there when {path} was made: its latencies follow from its distances until the file is made \
             anew (`tandem doctor --calibrate FILE`)"
        );
    }
    Ok(())
}

/// Unloads after an error: the machine must not stay with a scheduler that nobody looks after.
pub fn give_up(pins: &Pins, error: anyhow::Error) -> anyhow::Error {
    match load::unload(pins) {
        Ok(()) => error,
        Err(left) => error.context(format!("the scheduler is still loaded ({left:#}) after an error")),
    }
}

/// Why an agent ended.
enum Left {
    /// The user stopped it.
    Stopped,
    /// CPUs or nodes came or went; the scheduler is still loaded.
    MachineChanged,
    /// There is a new configuration; the scheduler is still loaded.
    Reconfigured,
    /// The scheduler left, for this reason.
    Scheduler(Exit),
}

/// What is left of agents before.
#[derive(Default)]
struct Before {
    /// What the next one goes on with.
    handover: Option<Handover>,
    /// When one failed last.
    failed: Option<Instant>,
}

impl Before {
    /// Takes over from an agent whose scheduler left, or that failed, if another one is to go on.
    fn leave(&mut self, mut agent: Agent, exit: Result<Exit>, report: &mut Report) -> Result<Left> {
        let goes_on = match &exit {
            Ok(exit) => exit.should_restart(),
            Err(_) => self.failed.is_none_or(|at| at.elapsed() >= FORGOTTEN_AFTER),
        };
        if goes_on {
            self.handover = Some(agent.hand_over(true, report));
        } else {
            agent.give_up(report);
        }
        exit.map(Left::Scheduler)
    }
}

/// Where an agent says what it does.
struct Sinks<'a> {
    recorder: Option<Recorder>,
    board: &'a Board,
    report: &'a mut Report,
}

/// Runs an agent. When there is a new configuration, it is in `told` afterwards.
fn serve(
    begun: Begun,
    told: &mut Told,
    sinks: Sinks<'_>,
    orders: &Receiver<Order>,
    before: &mut Before,
) -> Result<Left> {
    let Begun { scheduler, topology, sensor } = begun;
    let Sinks { recorder, board, report } = sinks;
    let cpus = topology.nodes.values().map(|node| node.cpus.len()).sum();
    let handover = before.handover.take();
    let config = cli::agent_config(&told.cli, &told.calibration, cpus, recorder, board)?;
    let mut agent = Agent::new(config, topology, scheduler, sensor, handover);
    loop {
        let ended = match agent.run(orders, report) {
            Ok(ended) => ended,
            Err(error) => {
                let exit = load::exit_info(agent.scheduler()).ok().flatten();
                return before.leave(agent, exit.ok_or(error), report);
            }
        };
        match ended {
            Ended::Stopped => return Ok(Left::Stopped),
            Ended::MachineChanged => {
                before.handover = Some(agent.hand_over(true, report));
                return Ok(Left::MachineChanged);
            }
            Ended::Reload => match reread(&told.cli) {
                Ok(new) => {
                    // Who only observes brings nothing back.
                    let moves_on = new.cli.options.mover == told.cli.options.mover && !new.cli.options.dry_run;
                    before.handover = Some(agent.hand_over(moves_on, report));
                    *told = new;
                    return Ok(Left::Reconfigured);
                }
                Err(error) => {
                    warn!("the configuration stays as it is: {error:#}");
                    service::status(&format!("{}; a new configuration was refused: {error:#}", mode(&told.cli)));
                }
            },
            Ended::SchedulerLeft => {
                let exit = load::exit_info(agent.scheduler());
                let exit = exit.and_then(|exit| exit.context("the scheduler left without a reason"));
                return before.leave(agent, exit, report);
            }
        }
    }
}

/// The configuration as it is now, if it can take effect while the scheduler is loaded.
fn reread(running: &Cli) -> Result<Told> {
    let cli = cli::read()?;
    if let Some(name) = cli.options.needs_restart(&running.options) {
        bail!("{name} takes effect only when scx_tandem starts: restart it, or take back that change");
    }
    preflight::check_mover(cli.options.mover)?;
    let new = judged(cli)?;
    let options = &new.cli.options;
    if (options.sampler, options.counters) != (running.options.sampler, running.options.counters) {
        // Only to see whether it can be used: the next agent opens its own.
        cli::sensor(options, &tandem_machine::read_running()?.topology)?;
    }
    Ok(new)
}

fn load_or_take_over(cli: &Cli, tables: &Tables, topology: &Topology, pins: &Pins) -> Result<Scheduler> {
    preflight::check_no_other_scheduler()?;
    let options = LoadOptions { partial: cli.options.partial, cgroup_weights: !cli.options.no_cgroup_weight };
    let identity = load::identity_of(tables, options);
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
    if cli.options.partial {
        warn!("partial mode: tasks of the class SCHED_EXT starve beside normal tasks; use it on dedicated CPUs only");
    }
    load::load(tables, options, cli.verbose > 1, pins)?;
    let scheduler = Scheduler::open(pins, topology.len())?;
    scheduler.set_identity(identity)?;
    info!("loaded");
    Ok(scheduler)
}
