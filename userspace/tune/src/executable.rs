// SPDX-License-Identifier: GPL-2.0-only
//! The file of a program while it is tuned: built anew it is another program, whose runs do not count together with those of before.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::subject::find;

/// Which file a program was. Its content is not read again.
#[derive(Debug)]
pub struct Executable {
    path: PathBuf,
    was: Option<Identity>,
}

/// Device, inode, bytes, and when it was written: seconds and nanoseconds.
type Identity = (u64, u64, u64, i64, i64);

impl Executable {
    /// The file of the program of `command` as it is now.
    ///
    /// # Errors
    /// There is none.
    pub fn of(command: &[String]) -> Result<Self> {
        let path = find(command.first().context("there is no program to run")?)?;
        Ok(Self { was: identity(&path), path })
    }

    /// Whether it is the file that it was.
    pub fn is_the_same(&self) -> bool {
        self.was.is_some() && self.was == identity(&self.path)
    }
}

/// `None` if there is no file.
fn identity(path: &Path) -> Option<Identity> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}
