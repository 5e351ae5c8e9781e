// SPDX-License-Identifier: GPL-2.0-only
//! Signals that this process catches. What was ignored when it began stays ignored, as under `nohup`.

use std::io::Error;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use tandem_ab::stop::Stop;

/// Signals that do not end this process any more.
pub type Caught = SignalsInfo<WithRawSiginfo>;

/// Catches those of `signals` that are not ignored.
///
/// # Errors
/// Signals cannot be handled.
pub fn catch(signals: &[i32]) -> Result<Caught> {
    let mut heeded = Vec::new();
    for &signal in signals {
        if !is_ignored(signal)? {
            heeded.push(signal);
        }
    }
    SignalsInfo::new(heeded).context("signals cannot be handled")
}

/// The wish to stop, which Ctrl-C, SIGTERM and SIGHUP are from now on.
///
/// # Errors
/// Signals cannot be handled.
pub fn stop() -> Result<Stop> {
    let mut caught = catch(&[SIGHUP, SIGINT, SIGTERM])?;
    let stop = Stop::default();
    let wish = stop.clone();
    std::thread::spawn(move || caught.forever().for_each(|_| wish.wish()));
    Ok(stop)
}

fn is_ignored(signal: i32) -> Result<bool> {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call, which changes nothing else.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } != 0 {
        return Err(Error::last_os_error()).context("signals cannot be handled");
    }
    Ok(action.sa_sigaction == libc::SIG_IGN)
}
