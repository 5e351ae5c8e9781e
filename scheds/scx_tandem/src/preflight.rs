// SPDX-License-Identifier: GPL-2.0-only
//! What must hold before anything is touched. Every refusal is one sentence: what is wrong, and what to do.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tandem_config::{MoverName, Options, Selector};
use tandem_machine::{Capabilities, Capability, RivalChange, RivalWatch};
use tracing::{info, warn};

use crate::load::{Loaded, loaded};

/// Time between two looks for those who work against it.
const RIVALS_EVERY: Duration = Duration::from_secs(60);
/// The namespace of control groups in which their paths begin at the root of the hierarchy; the kernel made it, by this number.
const FIRST_CONTROL_GROUPS: &str = "cgroup:[4026531835]";

/// Refuses to run as anybody but root.
pub fn check_root() -> Result<()> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("loading a scheduler needs root: run scx_tandem as root");
    }
    Ok(())
}

/// Refuses a kernel that cannot run the scheduler.
pub fn check_kernel() -> Result<()> {
    if !Path::new("/sys/kernel/sched_ext").exists() {
        bail!(
            "the running kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT): boot a kernel of version 6.15 or later that is built with it"
        );
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "the running kernel has no type information (/sys/kernel/btf/vmlinux): boot a kernel built with CONFIG_DEBUG_INFO_BTF"
        );
    }
    let missing = tandem_machine::missing_functions(Path::new("/"))
        .context("the kernel's type information (/sys/kernel/btf/vmlinux) cannot be read")?;
    if let Some((function, meaning)) = missing.first() {
        bail!("the running kernel's sched_ext lacks {function} ({meaning}): boot a kernel of version 6.15 or later");
    }
    let command_line = fs::read_to_string("/proc/cmdline").context("the kernel's command line cannot be read")?;
    if let Some(given) = tandem_machine::forbidding_isolation(&command_line) {
        bail!(
            "the kernel was booted with isolcpus={given}, with which it loads no sched_ext scheduler: boot without it, and keep \
             tasks off CPUs by cpusets"
        );
    }
    Ok(())
}

/// Says what it does without, where a service or container has not all rights of root.
pub fn warn_of_rights() {
    let held = Capabilities::read(Path::new("/"));
    for (capability, without) in Capability::TO_PLACE.into_iter().filter(|&(one, _)| !held.has(one)) {
        warn!("without {}: {without}", capability.name());
    }
}

/// Says that paths of control groups mean something else here, if any is chosen by one and they do.
pub fn warn_of_control_groups(options: &Options) {
    let chosen = options.manage.iter().chain(&options.exclude);
    let by_path = chosen.into_iter().find(|selector| matches!(selector, Selector::ControlGroup(_)));
    let own = fs::read_link("/proc/self/ns/cgroup");
    let Some(selector) = by_path.filter(|_| own.is_ok_and(|own| own.as_os_str() != FIRST_CONTROL_GROUPS)) else {
        return;
    };
    warn!(
        "{selector} counts from the control group of this container: it chooses nothing outside of it (container=all chooses \
         what is in other containers)"
    );
}

/// Refuses to leave moving pages to a kernel that moves none.
pub fn check_mover(mover: MoverName) -> Result<()> {
    if mover == MoverName::Kernel && !tandem_machine::kernel_balances(Path::new("/")) {
        bail!(
            "mover kernel leaves moving pages to the kernel's NUMA balancing, which is off: sysctl kernel.numa_balancing=1"
        );
    }
    Ok(())
}

/// Looks for those who work against it, if it is time, and says what has changed since the last look, with the remedy.
pub fn warn_of_rivals() {
    // One for as long as the program runs: agents come and go.
    static WATCH: Mutex<(RivalWatch, Option<Instant>)> = Mutex::new((RivalWatch::new(), None));
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if watch.1.is_some_and(|looked| looked.elapsed() < RIVALS_EVERY) {
        return;
    }
    watch.1 = Some(Instant::now());
    for change in watch.0.look(tandem_machine::rivals(Path::new("/"), parent_id())) {
        match change {
            RivalChange::Came(_) => warn!("{change}"),
            RivalChange::Gone(_) => info!("{change}"),
        }
    }
}

/// Refuses while somebody else's scheduler is loaded.
pub fn check_no_other_scheduler() -> Result<()> {
    if let Loaded::Other(name) = loaded()? {
        bail!("another sched_ext scheduler ({name}) is loaded: stop it first");
    }
    Ok(())
}
