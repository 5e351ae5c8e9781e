// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler tells of tasks, and what the agent holds of them from then on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use tandem_act::{Contested, Cooldowns, Stuck};
use tandem_bpf::TaskRecord;
use tandem_policies::model::{CpuId, NodeId, NodeIndex, PerNode, ProcessId, ThreadId};
use tandem_sense::{TaskAccount, monotonic_ns};
use tracing::info;

use super::Agent;
use crate::report::Report;
use crate::rest::Rest;

/// No thread runs longer than time passes; what is accounted a little later than it ran may come on top.
const MOST_OF_ELAPSED: u64 = 2;

impl Agent {
    /// Whether CPUs or nodes came or went.
    pub(super) fn machine_changed(&self) -> Result<bool> {
        let nodes = &self.topology.nodes;
        let cpus: BTreeSet<CpuId> = nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
        let ids: BTreeSet<NodeId> = nodes.values().map(|node| node.id).collect();
        let online: BTreeSet<CpuId> = tandem_machine::online_cpus()?.into_iter().collect();
        Ok(online != cpus || tandem_machine::online_nodes()? != ids)
    }

    /// What every task did since the last call, and which processes are managed.
    pub(super) fn observe_tasks(&mut self, report: &mut Report) -> Result<Vec<TaskAccount>> {
        self.tasks_made = self.scheduler.statistics()?.tasks_made();
        let tasks = self.scheduler.tasks()?;
        let now_ns = monotonic_ns();
        let elapsed_ns = now_ns - std::mem::replace(&mut self.observed_ns, now_ns);
        let managed = self.config.managed.select(&tasks, std::process::id());
        self.sensor.set_managed(managed.iter().copied().map(ProcessId).collect());
        self.follow_programs(&tasks, &managed, report);
        let (mut ran_ns, mut partners) = (BTreeMap::new(), BTreeMap::new());
        let mut accounts = Vec::new();
        for task in &tasks {
            let id = id_of(task);
            if managed.contains(&task.process) {
                let since = ran_since(&task.run_ns, self.ran_ns.get(&id), elapsed_ns);
                accounts.push(self.account(id, task, PerNode::from(since)));
            }
            ran_ns.insert(id, task.run_ns.clone());
            partners.extend(task.partner.map(|partner| (id, partner)));
        }
        let ids: BTreeSet<ThreadId> = accounts.iter().map(|account| account.id).collect();
        self.assignments.keep(|thread| ids.contains(&thread), self.generation);
        self.ran_ns = ran_ns;
        self.partners = partners;
        self.control_groups.keep(|process| managed.contains(&process));
        self.process_memories.keep(managed.iter().copied().map(ProcessId), &self.topology, self.observed_ns);
        Ok(accounts)
    }

    /// Drops what is known of processes that are not managed any more, have ended or run another program, and gives up moves of
    /// their pages.
    fn follow_programs(&mut self, tasks: &[TaskRecord], managed: &BTreeSet<u32>, report: &mut Report) {
        let ran_ns = &self.ran_ns;
        let gone = self.programs.look(tasks, managed, |task| ran_ns.get(&id_of(task)) != Some(&task.run_ns));
        let stopped = self.mover.follow(self.programs.known());
        if !stopped.is_empty() {
            info!(
                "{} page moves are given up: their processes ended, run other programs or are not managed any more",
                stopped.len()
            );
        }
        self.note_outcomes(stopped, report);
        if gone.is_empty() {
            return;
        }
        self.with_trials(report, |trials, by, report| trials.leave_gone(&gone, by, report));
        report.moved_of.retain(|process, _| !gone.contains(process));
        forget(&gone, &mut self.cooldowns, (&mut self.stuck, &mut self.contested), &mut self.rest);
        self.contest_talk.forget(&gone);
        self.sensor.forget(&gone);
        self.control_groups.keep(|process| !gone.contains(&ProcessId(process)));
        gone.into_iter().for_each(|process| self.process_memories.doubt(process));
    }

    fn account(&mut self, id: ThreadId, task: &TaskRecord, run_ns: PerNode<u64>) -> TaskAccount {
        let most = run_ns.values().max().copied().unwrap_or(0);
        let ran_most = run_ns.iter().find(|&(_, &ns)| ns == most && most > 0).map(|(node, _)| node);
        let assigned = self.assignments.node_of(id);
        TaskAccount {
            id,
            process: ProcessId(task.process),
            cgroup: self.control_groups.number(task.process, self.observed_ns),
            command: task.command.clone(),
            node: assigned.or(ran_most).unwrap_or(NodeIndex(task.home as usize)),
            cpu: CpuId(task.cpu),
            allowed: PerNode::from_fn(self.topology.len(), |node| task.allowed_nodes & (1 << node.0) != 0),
            run_ns,
            on_cooldown: self.cooldowns.is_thread_cooling(id, monotonic_ns()),
            woken_by: task.woken_since(self.partners.get(&id).copied()),
        }
    }

    /// Goes on with what an agent before this one assigned to threads that are managed still.
    pub(super) fn adopt_leases(&mut self) -> Result<()> {
        if self.config.dry_run {
            return Ok(());
        }
        let tasks = self.scheduler.tasks()?;
        let managed = self.config.managed.select(&tasks, std::process::id());
        for task in tasks.iter().filter(|task| managed.contains(&task.process)) {
            if let Some(node) = task.assigned {
                self.assignments.set(id_of(task), NodeIndex(node as usize), self.generation);
            }
        }
        Ok(())
    }
}

/// Pages of processes that are gone neither rest nor are stuck or contested.
fn forget(
    gone: &BTreeSet<ProcessId>,
    cooldowns: &mut Cooldowns,
    (stuck, contested): (&mut Stuck, &mut Contested),
    rest: &mut Rest,
) {
    let is_gone = |process| gone.contains(&process);
    cooldowns.forget(is_gone);
    stuck.forget(is_gone);
    contested.forget(is_gone);
    rest.forget(is_gone);
}

pub(super) fn id_of(task: &TaskRecord) -> ThreadId {
    ThreadId { tid: task.tid, start_boottime_ns: task.start_boottime_ns }
}

/// What a thread ran on each node since it had run so long `before`; nothing where that cannot be: a thread that calls `exec`
/// gets the id and the start of its process's first one, and then totals are those of another task.
fn ran_since(total_ns: &[u64], before: Option<&Vec<u64>>, elapsed_ns: u64) -> Vec<u64> {
    let Some(before) = before else { return total_ns.to_vec() };
    let since: Option<Vec<u64>> =
        total_ns.iter().zip(before).map(|(total, before)| total.checked_sub(*before)).collect();
    let is_possible = |since: &Vec<u64>| since.iter().sum::<u64>() <= MOST_OF_ELAPSED * elapsed_ns;
    since.filter(is_possible).unwrap_or_else(|| vec![0; total_ns.len()])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tandem_act::{Ended, Generation, Outcome, Purpose};
    use tandem_policies::model::{Action, GroupId, Move, PAGE_BYTES, Plan};

    use super::*;
    use crate::testing::{SECOND_NS, outcome};

    #[test]
    fn what_kept_pages_of_a_program_where_they_are_keeps_those_of_the_next_one_no_longer() {
        let group = GroupId { process: ProcessId(1), start: 0 };
        let action = Action::MovePages { group, bytes: PAGE_BYTES, to: NodeIndex(1) };
        let plan = Plan { moves: vec![Move { action, gain_ns_per_s: None, reason: String::new() }] };
        let kept_after = |gone: u32| {
            let (mut cooldowns, mut stuck) = (Cooldowns::new(4), Stuck::new(4, SECOND_NS));
            let mut contested = Contested::new(4, SECOND_NS);
            let mut rest = Rest::new(Duration::from_secs(10), true, 4);
            cooldowns.start_group(group, PAGE_BYTES, 0, SECOND_NS);
            stuck.note(&Outcome { ended: Ended::NotPermitted, ..outcome(group, Generation(1), Purpose::Plan) }, 0);
            contested.note(&outcome(group, Generation(1), Purpose::Plan), 0);
            let first_ns = rest.of(&plan, |_| None, 0);
            forget(&[ProcessId(gone)].into(), &mut cooldowns, (&mut stuck, &mut contested), &mut rest);
            let is_kept = cooldowns.is_group_cooling(group, PAGE_BYTES, 1);
            let is_watched = contested.watched(group, PAGE_BYTES).is_some();
            (is_kept, stuck.why(group, PAGE_BYTES, 1).is_some(), is_watched, rest.of(&plan, |_| None, 1) > first_ns)
        };
        assert_eq!((kept_after(2), kept_after(1)), ((true, true, true, true), (false, false, false, false)));
    }

    #[test]
    fn a_thread_ran_what_was_added_since_the_last_look_and_a_new_one_all() {
        assert_eq!(ran_since(&[7, 9], Some(&vec![7, 4]), SECOND_NS), [0, 5]);
        assert_eq!(ran_since(&[7, 9], None, SECOND_NS), [7, 9]);
    }

    #[test]
    fn totals_of_another_task_with_the_same_id_count_for_nothing() {
        assert_eq!(ran_since(&[3, 9], Some(&vec![7, 4]), SECOND_NS), [0, 0], "it ran less before");
        assert_eq!(ran_since(&[3 * SECOND_NS, 0], Some(&vec![0, 0]), SECOND_NS), [0, 0], "more than time passed");
    }
}
