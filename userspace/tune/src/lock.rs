// SPDX-License-Identifier: GPL-2.0-only
//! What one session at a time may use.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

/// Held as long as this lives; the kernel lets it go whatever ends the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the file at `path`, which is made if it is not there and left behind, as another session may wait at it; `None` if
    /// another process has it.
    ///
    /// # Errors
    /// It cannot be made or locked.
    pub fn try_hold(path: &Path) -> Result<Option<Self>> {
        let in_words = || format!("{}: cannot be locked", path.display());
        let file = File::create(path).with_context(in_words)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(in_words),
        }
    }
}
