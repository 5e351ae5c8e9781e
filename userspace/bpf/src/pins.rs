// SPDX-License-Identifier: GPL-2.0-only
//! Where a loaded scheduler is kept in the BPF file system.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directory with the pins of one loaded scheduler.
#[derive(Clone, Debug)]
pub struct Pins {
    dir: PathBuf,
}

impl Default for Pins {
    fn default() -> Self {
        Self::at("/sys/fs/bpf/scx_tandem")
    }
}

impl Pins {
    /// Pins below `dir`, which must be on a BPF file system.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The struct_ops link: the scheduler is loaded as long as this is there.
    pub fn scheduler(&self) -> PathBuf {
        self.dir.join("scheduler")
    }

    /// The link of the task iterator.
    pub fn tasks(&self) -> PathBuf {
        self.dir.join("tasks")
    }

    /// The program that takes assignments.
    pub fn assign(&self) -> PathBuf {
        self.dir.join("assign")
    }

    /// A map, by its name in the object.
    pub fn map(&self, name: &str) -> PathBuf {
        self.dir.join(format!("map_{name}"))
    }

    /// Whether a scheduler was pinned here.
    pub fn exist(&self) -> bool {
        self.scheduler().exists()
    }

    /// Makes the directory.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)
    }

    /// Removes all pins, the scheduler first. The kernel unloads it when nobody else holds it. Pins that are not
    /// there are no error.
    pub fn remove(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        match fs::remove_file(self.scheduler()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for entry in entries {
            let path = entry?.path();
            if path != self.scheduler() {
                fs::remove_file(path)?;
            }
        }
        fs::remove_dir(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_pins_that_are_not_there_is_no_error() {
        let pins = Pins::at(std::env::temp_dir().join("tandem-no-such-pins"));
        assert!(!pins.exist());
        pins.remove().unwrap();
    }

    #[test]
    fn removing_leaves_nothing_behind() {
        let pins = Pins::at(std::env::temp_dir().join(format!("tandem-pins-{}", std::process::id())));
        pins.create().unwrap();
        for path in [pins.scheduler(), pins.tasks(), pins.map("batches")] {
            fs::write(path, "").unwrap();
        }
        assert!(pins.exist());
        pins.remove().unwrap();
        assert!(!pins.dir().exists());
    }
}
