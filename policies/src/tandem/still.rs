// SPDX-License-Identifier: GPL-2.0-only
//! Programs of which something stays where it is, since what a plan would have gained may be chance.

use std::collections::BTreeSet;

use crate::model::ProcessId;

/// What stays of which programs.
#[derive(Clone, Debug, Default)]
pub struct Still {
    memory: BTreeSet<ProcessId>,
    threads: BTreeSet<ProcessId>,
}

impl Still {
    /// Takes in programs that are in doubt: at first their memory stays, since what a thread gains by itself is known as well as its
    /// accesses are; if they still are, their threads stay too.
    pub fn doubt(&mut self, programs: &BTreeSet<ProcessId>) {
        for &program in programs {
            if !self.memory.insert(program) {
                self.threads.insert(program);
            }
        }
    }

    /// Whether the memory of a program stays.
    pub fn memory(&self, program: ProcessId) -> bool {
        self.memory.contains(&program)
    }

    /// Whether its threads do.
    pub fn threads(&self, program: ProcessId) -> bool {
        self.threads.contains(&program)
    }
}
