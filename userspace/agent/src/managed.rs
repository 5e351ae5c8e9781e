// SPDX-License-Identifier: GPL-2.0-only
//! The managed set: whose threads and pages the agent may place. Everything else is scheduled neutrally.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::str::FromStr;

use tandem_bpf::TaskRecord;
use thiserror::Error;

/// Chooses processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All processes.
    All,
    /// Processes with a thread of this command name.
    Command(String),
    /// A process and its descendants.
    Tree(u32),
}

/// A text that chooses nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--manage {0}: expected all, comm=NAME or pid=PID")]
pub struct SelectorError(String);

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let bad = || SelectorError(text.to_owned());
        match text.split_once('=') {
            None if text == "all" => Ok(Self::All),
            Some(("comm", name)) if !name.is_empty() => Ok(Self::Command(name.to_owned())),
            Some(("pid", pid)) => pid.parse().map(Self::Tree).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

/// The processes that `selectors` choose among `tasks`. Never chooses the kernel's threads, nor the process `own`.
pub fn select(selectors: &[Selector], tasks: &[TaskRecord], own: u32) -> BTreeSet<u32> {
    let parents = if selectors.iter().any(|selector| matches!(selector, Selector::Tree(_))) {
        parents_of(tasks)
    } else {
        BTreeMap::new()
    };
    tasks
        .iter()
        .filter(|task| !task.kernel_thread && task.process != own)
        .filter(|task| selectors.iter().any(|selector| matches(selector, task, &parents)))
        .map(|task| task.process)
        .collect()
}

fn matches(selector: &Selector, task: &TaskRecord, parents: &BTreeMap<u32, u32>) -> bool {
    match selector {
        Selector::All => true,
        Selector::Command(name) => task.command == *name,
        Selector::Tree(root) => {
            let mut process = task.process;
            // A process that is gone may leave a number that is used again: never go round in circles.
            for _ in 0..=parents.len() {
                if process == *root {
                    return true;
                }
                match parents.get(&process) {
                    Some(&parent) => process = parent,
                    None => return false,
                }
            }
            false
        }
    }
}

/// Parent of each process. Those that ended meanwhile have none.
fn parents_of(tasks: &[TaskRecord]) -> BTreeMap<u32, u32> {
    let processes: BTreeSet<u32> = tasks.iter().map(|task| task.process).collect();
    processes
        .into_iter()
        .filter_map(|process| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            // The command may hold spaces and brackets; the fields start after its last bracket.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((process, parent))
        })
        .collect()
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

    #[test]
    fn selectors_are_read_from_text() {
        assert_eq!("all".parse(), Ok(Selector::All));
        assert_eq!("comm=a b".parse(), Ok(Selector::Command("a b".to_owned())));
        assert_eq!("pid=12".parse(), Ok(Selector::Tree(12)));
        for bad in ["", "comm", "comm=", "pid=x", "uid=1", "everything"] {
            assert!(bad.parse::<Selector>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kernel_threads_and_the_agent_are_never_chosen() {
        let tasks = [task(2, "kthreadd", true), task(10, "scx_tandem", false), task(11, "work", false)];
        assert_eq!(select(&[Selector::All], &tasks, 10), BTreeSet::from([11]));
    }

    #[test]
    fn any_selector_suffices() {
        let tasks = [task(10, "a", false), task(11, "b", false), task(12, "c", false)];
        let selectors = [Selector::Command("a".to_owned()), Selector::Command("c".to_owned())];
        assert_eq!(select(&selectors, &tasks, 1), BTreeSet::from([10, 12]));
    }

    #[test]
    fn a_tree_holds_descendants_and_nobody_else() {
        let parents = BTreeMap::from([(11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        let in_tree = |process| matches(&Selector::Tree(10), &task(process, "x", false), &parents);
        assert!(in_tree(10) && in_tree(11) && in_tree(12));
        assert!(!in_tree(20));
        assert!(!in_tree(30), "a circle of parents ends");
    }

    #[test]
    fn this_process_is_a_descendant_of_its_parent() {
        let own = std::process::id();
        let parent = std::os::unix::process::parent_id();
        let tasks = [task(own, "test", false), task(parent, "cargo", false)];
        assert!(select(&[Selector::Tree(parent)], &tasks, 0).contains(&own));
    }
}
