// SPDX-License-Identifier: GPL-2.0-only
//! The files of a program while it is tuned: built anew it is another program, whose runs do not count together with those of before.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::subject::find;

/// Which files a program was. Their content is not read again.
#[derive(Debug, Default)]
pub struct Executable {
    files: Vec<(PathBuf, Option<Identity>)>,
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
        Ok(Self { files: vec![(path.clone(), identity(&path))] })
    }

    /// The same with these files of code as they are now.
    pub fn with<'a>(mut self, code: impl IntoIterator<Item = &'a str>) -> Self {
        self.files.extend(code.into_iter().map(|name| (name.into(), identity(name.as_ref()))));
        self
    }

    /// One that is not the file that it was.
    pub fn changed(&self) -> Option<&Path> {
        let is_the_same = |was: &Option<Identity>, path: &Path| was.is_some() && *was == identity(path);
        self.files.iter().find(|(path, was)| !is_the_same(was, path)).map(|(path, _)| path.as_path())
    }
}

/// `None` if there is no file.
fn identity(path: &Path) -> Option<Identity> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}
