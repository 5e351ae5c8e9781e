// SPDX-License-Identifier: GPL-2.0-only
//! What must hold before anything is touched. Every refusal is one sentence: what is wrong, and what to do.

use std::os::unix::process::parent_id;
use std::path::Path;

use anyhow::{Result, bail};
use scx_utils::compat;
use tracing::warn;

use crate::load::{Loaded, loaded};

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
    Ok(())
}

/// Names those who would work against it, each with its remedy.
pub fn warn_of_rivals() {
    for rival in tandem_machine::rivals(Path::new("/"), parent_id()) {
        warn!("{rival}");
    }
}

/// Refuses while somebody else's scheduler is loaded.
pub fn check_no_other_scheduler() -> Result<()> {
    if let Loaded::Other(name) = loaded()? {
        bail!("another sched_ext scheduler ({name}) is loaded: stop it first");
    }
    Ok(())
}
