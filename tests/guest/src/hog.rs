// SPDX-License-Identifier: GPL-2.0-only
//! A process that uses all the CPU it gets.

use std::process::{Child, Command};

use crate::set_affinity;

/// Killed when dropped.
pub struct Hog {
    child: Child,
}

impl Hog {
    /// Starts one that may use these CPUs.
    ///
    /// # Panics
    /// If there is no shell.
    pub fn on(cpus: &[u32]) -> Self {
        let child =
            Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell is in the guest");
        set_affinity(child.id(), cpus);
        Self { child }
    }

    /// Its process id, which is its only thread's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.child.kill().expect("it runs until now");
        self.child.wait().expect("a child can be waited for");
    }
}
