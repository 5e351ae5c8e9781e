// SPDX-License-Identifier: GPL-2.0-only
//! The managed set: whose threads and pages the agent may place. Everything else is scheduled by `scx_tandem` too, but not assigned.

mod control_groups;
mod process_memory;
mod processes;
mod programs;

use std::collections::{BTreeMap, BTreeSet};

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
    include: Vec<Selector>,
    /// and none of these does.
    exclude: Vec<Selector>,
    /// When the process at the root of each tree began that is chosen by its number, since it was there first: when it has ended,
    /// its number may be that of another one, which nobody chose.
    roots: BTreeMap<u32, u64>,
}

impl ManagedSet {
    /// What `include` chooses, without what `exclude` does.
    pub fn new(include: Vec<Selector>, exclude: Vec<Selector>) -> Self {
        Self { include, exclude, roots: BTreeMap::new() }
    }

    /// The same, where `before` has chosen until now: a number that both name is that of the process that it knows.
    pub fn after(mut self, before: &Self) -> Self {
        self.roots = self.named_roots().filter_map(|root| Some((root, *before.roots.get(&root)?))).collect();
        self
    }

    /// The numbers at the roots of trees.
    fn named_roots(&self) -> impl Iterator<Item = u32> {
        let root = |selector: &Selector| if let Selector::Tree(root) = selector { Some(*root) } else { None };
        self.include.iter().chain(&self.exclude).filter_map(root)
    }

    /// The processes it chooses among `tasks`. Never the kernel's threads, nor the process `own`.
    pub fn select(&mut self, tasks: &[TaskRecord], own: u32) -> BTreeSet<u32> {
        self.select_by(Processes::default(), tasks, own)
    }

    fn select_by(&mut self, mut processes: Processes, tasks: &[TaskRecord], own: u32) -> BTreeSet<u32> {
        let gone = self.roots_gone(&mut processes);
        let is_gone = |selector: &Selector| matches!(selector, Selector::Tree(root) if gone.contains(root));
        let candidates = || tasks.iter().filter(|task| !task.kernel_thread && task.process != own);
        let mut chosen = |selectors: &[Selector]| -> BTreeSet<u32> {
            let chosen =
                candidates().filter(|task| selectors.iter().any(|s| !is_gone(s) && processes.matches(s, task)));
            chosen.map(|task| task.process).collect()
        };
        let (included, excluded) = (chosen(&self.include), chosen(&self.exclude));
        &included - &excluded
    }

    /// The roots of trees whose numbers are other processes' by now.
    fn roots_gone(&mut self, processes: &mut Processes) -> BTreeSet<u32> {
        let starts: Vec<_> = self.named_roots().filter_map(|root| Some((root, processes.start_ticks(root)?))).collect();
        let is_gone = |&(root, start): &(u32, u64)| *self.roots.entry(root).or_insert(start) != start;
        starts.into_iter().filter(is_gone).map(|(root, _)| root).collect()
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
        ManagedSet::new(selectors(include), selectors(exclude))
    }

    #[test]
    fn a_number_that_another_process_has_by_now_chooses_nothing() {
        let tasks = [task(10, "root", false), task(11, "child", false), task(12, "other", false)];
        for (words, chosen, without_root) in
            [((&["pid=10"][..], &[][..]), vec![10, 11], vec![]), ((&["all"], &["pid=10"]), vec![12], vec![10, 11, 12])]
        {
            let mut set = set(words.0, words.1);
            let mut select = |root_start: u64| {
                let starts = [(10, (1, root_start)), (11, (10, 5)), (12, (1, 5))];
                Vec::from_iter(set.select_by(Processes::with_parents_and_starts(&starts), &tasks, 1))
            };
            let selected = [select(4), select(4), select(7)];
            assert_eq!(selected, [chosen.clone(), chosen.clone(), without_root.clone()], "{words:?}");
            let starts = [(10, (1, 7)), (11, (10, 5)), (12, (1, 5))];
            let now = || Processes::with_parents_and_starts(&starts);
            let again = || self::set(words.0, words.1);
            let next = again().after(&set).select_by(now(), &tasks, 1);
            assert_eq!(Vec::from_iter(next), without_root, "nor by another agent");
            let named_anew = again().after(&self::set(&["all"], &[]).after(&set)).select_by(now(), &tasks, 1);
            assert_eq!(Vec::from_iter(named_anew), chosen, "unless it is named anew");
        }
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
