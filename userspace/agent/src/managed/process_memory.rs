// SPDX-License-Identifier: GPL-2.0-only
//! Which nodes' memory each process may use.
//!
//! The kernel refuses to move pages to a node outside of the process's cpuset (`cpuset.mems.effective`, `Mems_allowed_list`
//! in /proc/PID/status), so no plan is to count on it. Cpusets change, and nothing tells: they are read again every
//! [`RENEWAL_NS`], and at once when the kernel refused a node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tandem_machine::{parse_cpu_list, process_text};
use tandem_policies::model::{PerNode, ProcessId, ProcessMemory, Topology};

/// How long what was read of a process counts.
const RENEWAL_NS: u64 = 60_000_000_000;

/// What was read last of each process.
#[derive(Debug)]
pub struct ProcessMemories {
    proc: PathBuf,
    known: BTreeMap<ProcessId, (u64, ProcessMemory)>,
}

impl ProcessMemories {
    /// Nothing is known yet. `proc` is /proc but for tests.
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), known: BTreeMap::new() }
    }

    /// Forgets all other processes, and reads of these what is not known or too old (`now_ns` on CLOCK_MONOTONIC).
    pub fn keep(&mut self, managed: impl Iterator<Item = ProcessId>, topology: &Topology, now_ns: u64) {
        let mut before = std::mem::take(&mut self.known);
        for process in managed {
            let fresh = |&(read_ns, _): &(u64, ProcessMemory)| now_ns.saturating_sub(read_ns) < RENEWAL_NS;
            let known = before.remove(&process).filter(fresh);
            // One that has ended is forgotten with its threads.
            let known = known.unwrap_or_else(|| (now_ns, self.read(process, topology).unwrap_or_default()));
            self.known.insert(process, known);
        }
    }

    /// Something was not as it was read: the process is read again the next time.
    pub fn doubt(&mut self, process: ProcessId) {
        self.known.remove(&process);
    }

    /// What is not as it is for most processes: those that may not use all nodes.
    pub fn told(&self) -> BTreeMap<ProcessId, ProcessMemory> {
        let usual = ProcessMemory::default();
        let told = self.known.iter().filter(|(_, (_, memory))| *memory != usual);
        told.map(|(process, (_, memory))| (*process, memory.clone())).collect()
    }

    /// `None` if the process has ended.
    fn read(&self, process: ProcessId, topology: &Topology) -> Option<ProcessMemory> {
        let of = self.proc.join(process.0.to_string());
        let status = process_text(&of.join("status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        // A kernel without cpusets has no such line, and then all nodes may be used.
        let nodes = list.and_then(|list| parse_cpu_list(list).ok()).filter(|nodes| !nodes.is_empty());
        let allowed = nodes.map_or_else(PerNode::default, |nodes| allowed(&nodes, topology));
        Some(ProcessMemory { allowed })
    }
}

/// By node whether it is among these; empty if all are.
fn allowed(nodes: &[u32], topology: &Topology) -> PerNode<bool> {
    let allowed: Vec<bool> = topology.nodes.values().map(|node| nodes.contains(&node.id.0)).collect();
    if allowed.iter().all(|allowed| *allowed) { PerNode::default() } else { allowed.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PROCESS: ProcessId = ProcessId(7);

    /// A /proc with one process.
    fn proc(status: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        fs::write(proc.path().join("7/status"), status).unwrap();
        proc
    }

    fn two_nodes() -> Topology {
        crate::testing::snapshot(&[]).topology
    }

    #[test]
    fn the_memory_nodes_of_its_cpuset_are_those_that_a_process_may_use() {
        let proc = proc("Name:\tworker\nMems_allowed:\t2\nMems_allowed_list:\t1\n");
        let mut memories = ProcessMemories::new(proc.path());
        memories.keep([PROCESS].into_iter(), &two_nodes(), 0);
        assert_eq!(memories.told()[&PROCESS].allowed, vec![false, true].into());
        fs::write(proc.path().join("7/status"), "Mems_allowed_list:\t0-1\n").unwrap();
        memories.keep([PROCESS].into_iter(), &two_nodes(), RENEWAL_NS - 1);
        assert_eq!(memories.told().len(), 1, "it is not read again yet");
        memories.keep([PROCESS].into_iter(), &two_nodes(), RENEWAL_NS);
        assert_eq!(memories.told(), BTreeMap::new(), "nothing is to be said of one that may use all");
    }

    #[test]
    fn a_process_that_the_kernel_refused_a_node_is_read_at_once() {
        let proc = proc("Mems_allowed_list:\t0-1\n");
        let mut memories = ProcessMemories::new(proc.path());
        memories.keep([PROCESS].into_iter(), &two_nodes(), 0);
        fs::write(proc.path().join("7/status"), "Mems_allowed_list:\t0\n").unwrap();
        memories.doubt(PROCESS);
        memories.keep([PROCESS].into_iter(), &two_nodes(), 1);
        assert_eq!(memories.told()[&PROCESS].allowed, vec![true, false].into());
    }

    #[test]
    fn a_process_that_is_managed_no_longer_and_one_that_ended_are_not_told() {
        let proc = proc("Mems_allowed_list:\t0\n");
        let mut memories = ProcessMemories::new(proc.path());
        memories.keep([PROCESS, ProcessId(8)].into_iter(), &two_nodes(), 0);
        assert_eq!(memories.told().len(), 1);
        memories.keep(std::iter::empty(), &two_nodes(), 1);
        assert_eq!(memories.told(), BTreeMap::new());
    }
}
