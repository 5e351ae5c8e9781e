// SPDX-License-Identifier: GPL-2.0-only
//! Child processes that can be stopped: by Ctrl-C, and by the death of this process.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// How often what is waited for, as a child's end, and the wish to stop are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The wish to stop, shared by all that work.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Wishes it. To be called from a signal's thread.
    pub fn wish(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether anybody wished it.
    pub fn wished(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `command` to its end, its output to the file `log`. When a stop is wished it gets SIGTERM, on which it must end.
///
/// # Errors
/// It does not start, or the log cannot be made.
pub fn run_to_end(command: &mut Command, log: &Path, stop: &Stop) -> Result<ExitStatus> {
    let output = File::create(log).with_context(|| format!("{} cannot be made", log.display()))?;
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    // A group of its own: Ctrl-C reaches this process only, which then ends the child in order.
    command.process_group(0);
    let child = start(command).with_context(|| format!("{name} does not start"))?;
    wait(child, stop)
}

/// Starts `command`, which gets SIGTERM when the calling thread dies.
///
/// # Errors
/// It does not start.
pub fn start(command: &mut Command) -> std::io::Result<Child> {
    // SAFETY: prctl is async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.spawn()
}

/// Waits for the end of `child`, which gets SIGTERM when a stop is wished.
///
/// # Errors
/// The child cannot be waited for.
pub fn wait(mut child: Child, stop: &Stop) -> Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.wished() && !told {
            told = true;
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_to_stop_and_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (log, stop) = (directory.path().join("log"), Stop::default());
        let wisher = stop.clone();
        let seen = log.clone();
        let waiter = std::thread::spawn(move || {
            while !std::fs::read_to_string(&seen).unwrap_or_default().contains("ready") {
                std::thread::sleep(LOOK_EVERY);
            }
            wisher.wish();
        });
        let script = "trap 'echo stopped; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
        let status = run_to_end(Command::new("sh").args(["-c", script]), &log, &stop).unwrap();
        waiter.join().unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "ready\nstopped\n");
    }
}
