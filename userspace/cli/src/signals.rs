// SPDX-License-Identifier: GPL-2.0-only
//! Signals that this process catches. What was ignored when it began stays ignored, as under `nohup`.

use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
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

/// Whether this process stood still for a while: Ctrl-Z, SIGSTOP, or a batch system that suspends its jobs.
#[derive(Debug)]
pub struct Suspension(Arc<AtomicBool>);

impl Suspension {
    /// Notes it from now on.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn noted() -> Result<Self> {
        let noted = Arc::new(AtomicBool::new(false));
        // Whatever stopped a process, it goes on by this signal.
        signal_hook::flag::register(SIGCONT, Arc::clone(&noted)).context("signals cannot be handled")?;
        Ok(Self(noted))
    }

    /// Whether it did since this was asked last.
    pub fn was_there(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
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
