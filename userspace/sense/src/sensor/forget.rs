// SPDX-License-Identifier: GPL-2.0-only
//! What is forgotten with the program that it was seen of.

use std::collections::BTreeSet;

use tandem_policies::model::{ProcessId, ThreadId};

use super::Sensor;

impl Sensor {
    /// Drops what was seen of processes that have ended or run another program since, and of their threads: exec(2) leaves a thread
    /// its id and its memory policy, but what it does from then on has nothing to do with what it did.
    pub fn forget(&mut self, gone: &BTreeSet<ProcessId>) {
        let stays = |process| !gone.contains(&process);
        let of_gone = self.processes.iter().filter(|(_, process)| gone.contains(process));
        let threads: BTreeSet<ThreadId> = of_gone.map(|(thread, _)| *thread).collect();
        let others = |thread| !threads.contains(&thread);
        self.sampler.forget(gone, &threads);
        self.known_homes.retain_processes(stays);
        self.drop_pending(stays);
        self.watch.forget(gone, &threads);
        self.table.retain(stays, others);
        self.regions.retain(stays);
        self.rates.retain(others);
        self.performance.retain(others);
        if let Some(frames) = &mut self.frames {
            frames.retain(others);
        }
        self.turned_ns.retain(|thread, _| others(*thread));
        self.known_ns.retain(|thread, _| others(*thread));
        self.hardly_seen.retain(|thread| others(*thread));
    }
}

#[cfg(test)]
#[path = "forget_tests.rs"]
mod tests;
