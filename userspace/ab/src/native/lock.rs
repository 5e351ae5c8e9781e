// SPDX-License-Identifier: GPL-2.0-only
//! One experiment on this machine at a time: two would measure each other, and the second would take the settings of an arm of
//! the first for those of the machine.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Where the machine's lock is.
pub const LOCK: &str = "/run/tandem-ab-native.lock";

/// The machine is nobody else's as long as this lives. The kernel lets it go whatever ends the process.
#[derive(Debug)]
pub struct MachineLock {
    _file: File,
}

impl MachineLock {
    /// Takes the lock that is the file `path`, which stays.
    ///
    /// # Errors
    /// Another process has it, or the file cannot be made.
    pub fn take(path: &Path) -> Result<Self> {
        let in_words = || format!("{} cannot be locked", path.display());
        // Not cut short, and not removed: whoever has it must stay the only one.
        let file = File::options().create(true).write(true).truncate(false).open(path).with_context(in_words)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => {
                bail!("another `tandem ab --native` measures on this machine now: start this one when that has ended")
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(in_words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the lock becomes free: a child that another test starts has it until it is a program of its own.
    fn is_free(path: &Path) -> bool {
        (0..200).any(|_| {
            MachineLock::take(path).is_ok() || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                false
            }
        })
    }

    #[test]
    fn a_machine_is_measured_on_by_one_experiment_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = MachineLock::take(&path).unwrap();
        let said = MachineLock::take(&path).unwrap_err().to_string();
        assert!(said.starts_with("another `tandem ab --native` measures on this machine now"), "{said}");
        drop(first);
        assert!(is_free(&path), "the file stays, the lock does not");
    }

    #[test]
    fn what_an_arm_starts_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = MachineLock::take(&path).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        drop(lock);
        assert!(is_free(&path));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_made_is_named() {
        let said = MachineLock::take(Path::new("/no/such/lock")).unwrap_err().to_string();
        assert_eq!(said, "/no/such/lock cannot be locked");
    }
}
