// SPDX-License-Identifier: GPL-2.0-only
//! Signals that this process catches. What was ignored when it began stays ignored, as under `nohup`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use tandem_ab::stop::Stop;
use tandem_tune::inherited::is_ignored;

/// Signals that do not end this process any more.
pub type Caught = SignalsInfo<WithRawSiginfo>;

/// Catches those of `signals` that are not ignored.
///
/// # Errors
/// Signals cannot be handled.
pub fn catch(signals: &[i32]) -> Result<Caught> {
    let mut heeded = Vec::new();
    for &signal in signals {
        if !is_ignored(signal).context("signals cannot be handled")? {
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
