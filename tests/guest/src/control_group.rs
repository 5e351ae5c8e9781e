// SPDX-License-Identifier: GPL-2.0-only
//! A control group of the test's own, with the controllers cpu, cpuset and memory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::read;

const ROOT: &str = "/sys/fs/cgroup";

/// Removed when dropped; its threads go back to the group above.
pub struct ControlGroup {
    dir: PathBuf,
}

impl ControlGroup {
    /// Makes one below the root, for threads of this process.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn new(name: &str) -> Self {
        enable_controllers(Path::new(ROOT));
        Self::make(Path::new(ROOT).join(name))
    }

    /// Makes one below this one.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn below(&self, name: &str) -> Self {
        enable_controllers(&self.dir);
        Self::make(self.dir.join(name))
    }

    fn make(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        Self { dir }
    }

    /// Takes the controller of CPU sets away from it and its siblings, until another group is made.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn without_cpusets(&self) {
        let above = self.dir.parent().expect("the root is above");
        write(&above.join("cgroup.subtree_control"), "-cpuset");
    }

    /// Writes one of its files.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn set(&self, file: &str, value: &str) {
        write(&self.dir.join(file), value);
    }

    /// Reads one of its files.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn get(&self, file: &str) -> String {
        read(&self.dir.join(file).display().to_string())
    }

    /// Moves a process here.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn take(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let above = self.dir.parent().expect("the root is above");
        // Only a group without controllers for its children, or the root, may have processes.
        for pid in read(&self.dir.join("cgroup.procs").display().to_string()).lines() {
            write(&Path::new(ROOT).join("cgroup.procs"), pid);
        }
        fs::remove_dir(&self.dir)
            .unwrap_or_else(|error| panic!("{} below {}: {error}", self.dir.display(), above.display()));
    }
}

fn enable_controllers(dir: &Path) {
    write(&dir.join("cgroup.subtree_control"), "+cpu +cpuset +memory");
}

fn write(file: &Path, value: &str) {
    fs::write(file, value).unwrap_or_else(|error| panic!("{value} to {}: {error}", file.display()));
}
