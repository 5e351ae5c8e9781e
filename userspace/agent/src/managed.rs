// SPDX-License-Identifier: GPL-2.0-only
//! The managed set: whose threads and pages the agent may place. Everything else is scheduled neutrally.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tandem_bpf::TaskRecord;
use tandem_config::Selector;

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

/// What /proc says about processes, read when it is asked for the first time.
#[derive(Default)]
struct Processes(BTreeMap<u32, Process>);

/// `None` for what cannot be known any more, because the process ended.
#[derive(Default)]
struct Process {
    parent: Option<Option<u32>>,
    user: Option<Option<u32>>,
    control_group: Option<Option<String>>,
}

impl Processes {
    fn matches(&mut self, selector: &Selector, task: &TaskRecord) -> bool {
        match selector {
            Selector::All => true,
            Selector::Command(name) => task.command == *name,
            Selector::Tree(root) => self.is_below(task.process, *root),
            Selector::User(uid) => self.user(task.process) == Some(*uid),
            Selector::ControlGroup(path) => self.control_group(task.process).is_some_and(|of| is_in(of, path)),
        }
    }

    fn is_below(&mut self, mut process: u32, root: u32) -> bool {
        // A process that is gone may leave a number that is used again: never go round in circles.
        let mut seen = BTreeSet::new();
        while process != root {
            match self.parent(process) {
                Some(parent) if seen.insert(process) => process = parent,
                _ => return false,
            }
        }
        true
    }

    fn parent(&mut self, process: u32) -> Option<u32> {
        *self.0.entry(process).or_default().parent.get_or_insert_with(|| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            // The command may hold spaces and brackets; the fields start after its last bracket.
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
        })
    }

    fn user(&mut self, process: u32) -> Option<u32> {
        *self.0.entry(process).or_default().user.get_or_insert_with(|| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
        })
    }

    fn control_group(&mut self, process: u32) -> Option<&str> {
        let read = || control_group(&fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?);
        self.0.entry(process).or_default().control_group.get_or_insert_with(read).as_deref()
    }
}

/// The path in the unified hierarchy, out of /proc/PID/cgroup.
fn control_group(text: &str) -> Option<String> {
    Some(text.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned())
}

/// Whether the control group `group` is `path` or below it; the root's path is empty.
fn is_in(group: &str, path: &str) -> bool {
    group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(process: u32, command: &str, kernel_thread: bool) -> TaskRecord {
        TaskRecord {
            tid: process,
            process,
            start_boottime_ns: 1,
            command: command.to_owned(),
            run_ns: vec![],
            wait_ns: 0,
            switches: 0,
            node_changes: 0,
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
    fn a_tree_holds_descendants_and_nobody_else() {
        let parents = [(11, 10), (12, 11), (20, 1), (1, 0), (30, 31), (31, 30)];
        let known = |&(process, parent)| (process, Process { parent: Some(Some(parent)), ..Process::default() });
        let mut processes = Processes(parents.iter().map(known).collect());
        processes.0.insert(0, Process { parent: Some(None), ..Process::default() });
        assert!([10, 11, 12].iter().all(|&process| processes.is_below(process, 10)));
        assert!(!processes.is_below(20, 10));
        assert!(!processes.is_below(30, 10), "a circle of parents ends");
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
    }

    #[test]
    fn a_control_group_holds_those_below_and_not_those_of_a_longer_name() {
        assert_eq!(control_group("1:name=systemd:/x\n0::/a/b\n").as_deref(), Some("/a/b"));
        assert!(is_in("/a/b", "/a") && is_in("/a", "/a") && is_in("/a", "") && is_in("/", ""));
        assert!(!is_in("/ab", "/a") && !is_in("/a", "/a/b"));
    }
}
