// SPDX-License-Identifier: GPL-2.0-only
//! The managed set: whose threads and pages the agent may place. Everything else is scheduled by `scx_tandem` too, but not assigned.

mod control_groups;
mod process_memory;
mod processes;
mod programs;

use std::collections::BTreeSet;

use tandem_bpf::TaskRecord;
use tandem_config::Selector;

pub use control_groups::ControlGroups;
pub use process_memory::ProcessMemories;
use processes::Processes;
pub use programs::ProgramWatch;

/// Whose threads and pages the agent may place: what one list chooses, without what the other does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedSet {
    /// A process is managed if any of these chooses it,
    pub include: Vec<Selector>,
    /// and none of these does.
    pub exclude: Vec<Selector>,
}

impl ManagedSet {
    /// The processes it chooses among `tasks`. Never the kernel's threads, nor the process `own`.
    pub fn select(&self, tasks: &[TaskRecord], own: u32) -> BTreeSet<u32> {
        let mut processes = Processes::default();
        let candidates = || tasks.iter().filter(|task| !task.kernel_thread && task.process != own);
        let mut chosen = |selectors: &[Selector]| -> BTreeSet<u32> {
            let chosen = candidates().filter(|task| selectors.iter().any(|s| processes.matches(s, task)));
            chosen.map(|task| task.process).collect()
        };
        let (included, excluded) = (chosen(&self.include), chosen(&self.exclude));
        &included - &excluded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn task(process: u32, command: &str, kernel_thread: bool) -> TaskRecord {
        TaskRecord {
            tid: process,
            process,
            start_boottime_ns: 1,
            command: command.to_owned(),
            run_ns: vec![],
            wait_ns: 0,
            switches: 0,
            node_changes: 0,
            partner: None,
            home: 0,
            assigned: None,
            generation: 0,
            allowed_nodes: 1,
            weight: 100,
            cpu: 0,
            kernel_thread,
        }
    }

    fn set(include: &[&str], exclude: &[&str]) -> ManagedSet {
        let selectors = |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect();
        ManagedSet { include: selectors(include), exclude: selectors(exclude) }
    }

    #[test]
    fn wake_ups_count_from_the_last_look_at_the_same_partner_on() {
        let task = TaskRecord { partner: Some((7, 30)), ..task(11, "client", false) };
        assert_eq!(task.woken_since(None), Some((7, 30)));
        assert_eq!(task.woken_since(Some((7, 10))), Some((7, 20)));
        assert_eq!(task.woken_since(Some((8, 10))), Some((7, 30)), "another one");
        assert_eq!(task.woken_since(Some((7, 40))), Some((7, 30)), "another one in between");
    }

    #[test]
    fn kernel_threads_and_the_agent_are_never_chosen() {
        let tasks = [task(2, "kthreadd", true), task(10, "scx_tandem", false), task(11, "work", false)];
        assert_eq!(set(&["all"], &[]).select(&tasks, 10), BTreeSet::from([11]));
    }

    #[test]
    fn any_selector_suffices_and_exclusion_is_stronger() {
        let tasks = [task(10, "a", false), task(11, "b", false), task(12, "c", false)];
        assert_eq!(set(&["comm=a", "comm=c"], &[]).select(&tasks, 1), BTreeSet::from([10, 12]));
        assert_eq!(set(&["comm=a", "all"], &["comm=a"]).select(&tasks, 1), BTreeSet::from([11, 12]));
    }

    #[test]
    fn a_process_is_excluded_with_all_its_threads() {
        let thread = TaskRecord { process: 10, ..task(11, "helper", false) };
        let tasks = [task(10, "main", false), thread];
        assert_eq!(set(&["all"], &["comm=helper"]).select(&tasks, 1), BTreeSet::new());
    }

    #[test]
    fn this_process_is_known_by_its_parent_user_and_control_group() {
        let own = std::process::id();
        let parent = std::os::unix::process::parent_id();
        let tasks = [task(own, "test", false), task(parent, "cargo", false)];
        let chosen = |word: &str| set(&[word], &[]).select(&tasks, 0).contains(&own);
        assert!(chosen(&format!("pid={parent}")));
        let uid = Processes::default().user(own).unwrap();
        assert!(chosen(&format!("uid={uid}")) && !chosen(&format!("uid={}", uid + 1)));
        if let Some(group) = Processes::default().control_group(own) {
            assert!(chosen(&format!("cgroup={group}")) && chosen("cgroup=/"));
        }
        assert!(!chosen("cgroup=/no/such/group"));
        let namespace = Processes::default().pid_namespace(own).expect("a process may look at itself");
        assert!(chosen(&format!("pidns={namespace}")) && !chosen(&format!("pidns={}", namespace + 1)));
        assert!(!chosen("container=all"), "it is in the namespace of who asks");
        assert!(!chosen("vm=all") && !chosen("vm=guest"));
    }
}
