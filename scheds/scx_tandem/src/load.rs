// SPDX-License-Identifier: GPL-2.0-only
//! Loading and unloading the scheduler.
//!
//! Loaded means pinned: the scheduler outlives the process that loaded it, until its pins go or
//! the kernel ejects it.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::mem::MaybeUninit;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{OpenObject, ProgramInput};
use scx_utils::{compat, scx_ops_attach, scx_ops_load, scx_ops_open};
use tandem_bpf::skeleton::{OpenTandemSkel, TandemSkel, TandemSkelBuilder};
use tandem_bpf::{FLAGS, Identity, Pins, Scheduler};
use tracing::info;

use crate::exit::Exit;
use crate::tables::Tables;

const STATE: &str = "/sys/kernel/sched_ext/state";
/// Name of the loaded scheduler.
const OPS: &str = "/sys/kernel/sched_ext/root/ops";
/// The kernel answers within milliseconds; on a machine that swaps it may take longer.
const UNLOAD_LIMIT: Duration = Duration::from_secs(20);

/// What is loaded in the kernel now.
#[derive(Debug, PartialEq, Eq)]
pub enum Loaded {
    /// No sched_ext scheduler.
    Nothing,
    /// Ours.
    Tandem,
    /// Somebody else's, with its name.
    Other(String),
}

/// Asks the verifier for what it did (the kernel's BPF_LOG_STATS), beside what is wrong.
const VERIFIER_STATISTICS: u32 = 4;

/// Asks the kernel what is loaded.
pub fn loaded() -> Result<Loaded> {
    let state = fs::read_to_string(STATE).with_context(|| format!("{STATE} cannot be read"))?;
    if state.trim() == "disabled" {
        return Ok(Loaded::Nothing);
    }
    let name = fs::read_to_string(OPS).unwrap_or_else(|_| "of unknown name".to_owned());
    let name = name.trim();
    Ok(if name == "tandem" || name.starts_with("tandem_") { Loaded::Tandem } else { Loaded::Other(name.to_owned()) })
}

/// What is loaded, apart from the machine's tables.
#[derive(Clone, Copy, Debug, Hash)]
pub struct LoadOptions {
    /// Take only tasks of the class SCHED_EXT.
    pub partial: bool,
    /// Honour cpu.weight of control groups.
    pub cgroup_weights: bool,
}

/// Loads the scheduler and pins it.
///
/// With `verbose` what the verifier says is printed.
pub fn load(tables: &Tables, options: LoadOptions, verbose: bool, pins: &Pins) -> Result<()> {
    let mut storage: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let mut builder = TandemSkelBuilder::default();
    builder.obj_builder.debug(verbose);
    let mut open = scx_ops_open!(builder, &mut storage, tandem_ops, None)?;
    let constants = open.maps.rodata_data.as_mut().context("the object has no constants")?;
    tables.write(constants);
    constants.cgroup_weights = options.cgroup_weights.into();
    let partial = options.partial.then_some("SCX_OPS_SWITCH_PARTIAL");
    for name in FLAGS.into_iter().chain(partial) {
        open.struct_ops.tandem_ops_mut().flags |= compat::read_enum("scx_ops_flags", name)?;
    }
    if verbose {
        for mut program in open.open_object_mut().progs_mut() {
            program.set_log_level(VERIFIER_STATISTICS);
        }
    }
    leave_out_unknown_operations(&mut open)?;

    let mut skel = scx_ops_load!(open, tandem_ops, uei)?;
    find_node_table(&skel)?;
    let mut link = scx_ops_attach!(skel, tandem_ops)?;

    pins.remove().context("old pins cannot be removed")?;
    pins.create()
        .with_context(|| format!("{} cannot be made: is the BPF file system mounted?", pins.dir().display()))?;
    let tasks = skel.links.tandem_tasks.as_mut().context("the task iterator was not attached")?;
    tasks.pin(pins.tasks()).context("the task iterator cannot be pinned")?;
    skel.progs.tandem_assign.pin(pins.assign()).context("the assignment program cannot be pinned")?;
    let maps = &mut skel.maps;
    for (name, map) in [
        ("batches", &mut maps.batches),
        ("statistics", &mut maps.statistics),
        ("identity", &mut maps.identity),
        ("data", &mut maps.data),
        ("dump", &mut maps.data_uei_dump),
        // The kernel stops the timers in a map when nobody in user space has it any more.
        ("timers", &mut maps.queue_timers),
    ] {
        map.pin(pins.map(name)).with_context(|| format!("the map {name} cannot be pinned"))?;
    }
    // Last: from here on the scheduler stays without us.
    link.pin(pins.scheduler()).context("the scheduler cannot be pinned")?;
    Ok(())
}

/// Lets the scheduler find out where the kernel keeps account of its nodes' memory. Without, all memory counts as free.
fn find_node_table(skel: &TandemSkel<'_>) -> Result<()> {
    let done = skel.progs.tandem_find_node_table.test_run(ProgramInput::default());
    let error =
        done.context("the program that looks for the kernel's table of nodes cannot be run")?.return_value as i32;
    if error < 0 {
        let error = std::io::Error::from_raw_os_error(-error);
        let remedy = if error.raw_os_error() == Some(libc::EPERM) { "; CAP_SYSLOG shows it" } else { "" };
        tracing::warn!("free memory of nodes is not shown ({error}{remedy}): new processes start without regard to it");
    }
    Ok(())
}

/// Leaves out what the running kernel does not tell schedulers: about control groups, and (some day) about CPUs taken by
/// threads of higher classes, which 7.3.4 calls deprecated.
fn leave_out_unknown_operations(open: &mut OpenTandemSkel<'_>) -> Result<()> {
    let ops = open.struct_ops.tandem_ops_mut();
    let progs = &mut open.progs;
    for (name, operation, program) in [
        ("cpu_release", &mut ops.cpu_release, &mut progs.tandem_cpu_release),
        ("cgroup_init", &mut ops.cgroup_init, &mut progs.tandem_cgroup_init),
        ("cgroup_exit", &mut ops.cgroup_exit, &mut progs.tandem_cgroup_exit),
        ("cgroup_move", &mut ops.cgroup_move, &mut progs.tandem_cgroup_move),
        ("cgroup_set_weight", &mut ops.cgroup_set_weight, &mut progs.tandem_cgroup_set_weight),
        ("cgroup_set_bandwidth", &mut ops.cgroup_set_bandwidth, &mut progs.tandem_cgroup_set_bandwidth),
    ] {
        if !compat::struct_has_field("sched_ext_ops", name)? {
            *operation = ptr::null_mut();
            program.set_autoload(false);
        }
    }
    Ok(())
}

/// What a scheduler is made of: one that is loaded can be taken over by who would load the same.
pub fn identity_of(tables: &Tables, options: LoadOptions) -> Identity {
    let mut hasher = DefaultHasher::new();
    (tables.hash(), options).hash(&mut hasher);
    Identity { object_hash: tandem_bpf::object_hash(), tables_hash: hasher.finish() }
}

/// Whether the kernel is still busy with letting a scheduler go; its name is gone before that.
fn leaving() -> Result<bool> {
    Ok(fs::read_to_string(STATE).with_context(|| format!("{STATE} cannot be read"))?.trim() == "disabling")
}

/// Unloads our scheduler, if it is loaded, and waits until the kernel is done.
pub fn unload(pins: &Pins) -> Result<()> {
    pins.remove().with_context(|| format!("{} cannot be removed", pins.dir().display()))?;
    let start = Instant::now();
    while leaving()? || loaded()? == Loaded::Tandem {
        if start.elapsed() > UNLOAD_LIMIT {
            bail!("the kernel did not unload scx_tandem within {} s: look at the kernel log", UNLOAD_LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Unloads what a killed scx_tandem left behind, and says what there was.
///
/// # Errors
/// It cannot be unloaded, or what is loaded is not ours.
pub fn unload_what_was_left(pins: &Pins) -> Result<()> {
    let found = loaded()?;
    unload(pins)?;
    match (found, loaded()?) {
        (_, Loaded::Other(name)) => {
            bail!(
                "another sched_ext scheduler ({name}) is loaded, which is not scx_tandem's: stop it by what started it"
            )
        }
        (Loaded::Nothing, _) => info!("nothing was loaded"),
        (Loaded::Tandem | Loaded::Other(_), _) => info!("unloaded"),
    }
    Ok(())
}

/// Why the scheduler left, `None` while it is loaded.
pub fn exit_info(scheduler: &Scheduler) -> Result<Option<Exit>> {
    Ok(scheduler.exit(Exit::read)?)
}
