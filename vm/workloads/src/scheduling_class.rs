// SPDX-License-Identifier: GPL-2.0-only
//! The class in which a run is scheduled.

use std::io;

use anyhow::{Context, Result};

/// From linux/sched.h; libc lacks it.
const SCHED_EXT: libc::c_int = 7;

/// Puts this process into the class of sched_ext, and with it what it starts.
///
/// # Errors
/// The kernel has no such class.
pub fn enter_sched_ext() -> Result<()> {
    // SAFETY: all zeros is a valid value.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the parameters.
    let set = unsafe { libc::sched_setscheduler(0, SCHED_EXT, &raw const parameters) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()).context("--sched-ext: the kernel has no class SCHED_EXT")
    }
}
