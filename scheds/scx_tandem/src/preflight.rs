// SPDX-License-Identifier: GPL-2.0-only
//! What must hold before anything is touched. Every refusal is one sentence: what is wrong, and what to do.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use scx_utils::compat;
use tandem_config::MoverName;
use tandem_machine::{RivalChange, RivalWatch};
use tracing::{info, warn};

use crate::load::{Loaded, loaded};

/// Time between two looks for those who work against it.
const RIVALS_EVERY: Duration = Duration::from_secs(60);
/// Kernel functions that the scheduler cannot do without, and what they stand for.
const NEEDED_KFUNCS: [(&str, &str); 3] = [
    ("scx_bpf_pick_idle_cpu_node", "idle CPUs by node"),
    ("scx_bpf_get_idle_smtmask_node", "idle cores by node"),
    ("bpf_iter_scx_dsq_new", "walking a dispatch queue"),
];

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
    for (kfunc, meaning) in NEEDED_KFUNCS {
        if !compat::ksym_exists(kfunc)? {
            bail!("the running kernel's sched_ext lacks {kfunc} ({meaning}): boot a newer kernel");
        }
    }
    check_isolation(&fs::read_to_string("/proc/cmdline").context("the kernel's command line cannot be read")?)
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

/// Refuses CPUs that the kernel's command line takes out of all scheduling domains: then the kernel loads no scheduler.
fn check_isolation(command_line: &str) -> Result<()> {
    const FLAGS: [&str; 3] = ["domain", "nohz", "managed_irq"];
    let Some(given) = command_line.split_whitespace().rev().find_map(|word| word.strip_prefix("isolcpus=")) else {
        return Ok(());
    };
    let mut flags = given.split(',').take_while(|word| FLAGS.contains(word)).peekable();
    if flags.peek().is_none() || flags.any(|flag| flag == "domain") {
        bail!(
            "the kernel was booted with isolcpus={given}, with which it loads no sched_ext scheduler: boot without it, and keep \
             tasks off CPUs by cpusets"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_outside_of_all_domains_are_refused_with_what_the_kernel_was_told() {
        for given in
            ["isolcpus=3", "isolcpus=domain,3", "isolcpus=nohz,domain,2-3", "isolcpus=nohz,1 quiet isolcpus=2,3"]
        {
            let said = check_isolation(&format!("root=/dev/vda {given} quiet\n")).unwrap_err().to_string();
            assert!(said.contains(given.rsplit(' ').next().unwrap()) && said.contains("boot without it"), "{said}");
        }
    }

    #[test]
    fn other_kinds_of_isolation_are_fine() {
        for given in ["", "nohz_full=3 rcu_nocbs=3", "isolcpus=nohz,3", "isolcpus=managed_irq,nohz,3", "noisolcpus=3"] {
            check_isolation(given).unwrap();
        }
    }
}
