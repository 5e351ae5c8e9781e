// SPDX-License-Identifier: GPL-2.0-only
//! Threads.

use tandem_policies::model::{NodeIndex, PageGroup, PerNode, Thread, ThreadId, Transfers};

use super::groups::{Rules, aged};
use super::{People, floats_per_node, numbers_per_node, per_node};
use crate::blank;
use crate::coder::{Coder, Malformed};
use crate::columns::Column;
use crate::scales::Scale;

/// Passes all threads but what they share and their accesses by node.
pub(super) fn threads(coder: &mut impl Coder, now: &mut Vec<Thread>, before: &[Thread]) -> Result<(), Malformed> {
    let count = coder.count::<Thread>(Column::ThreadCount, now.len(), before.len())?;
    now.resize_with(count, blank::thread);
    let nothing = blank::thread();
    let mut expected = 0;
    let mut last = blank::THREAD_ID;
    for thread in now.iter_mut() {
        let found = before.binary_search_by_key(&thread.id, |old| old.id).ok();
        let row = coder.row(Column::ThreadRow, found, expected, before.len())?;
        match row {
            Some(row) => {
                thread.id = before[row].id;
                expected = row + 1;
            }
            None => {
                coder.number(Column::ThreadTid, &mut thread.id.tid, last.tid)?;
                coder.number(Column::ThreadStart, &mut thread.id.start_boottime_ns, last.start_boottime_ns)?;
            }
        }
        last = thread.id;
        fields(coder, thread, row.map_or(&nothing, |row| &before[row]))?;
    }
    Ok(())
}

/// Passes what threads share.
pub(super) fn sharing(
    coder: &mut impl Coder,
    now: &mut [Thread],
    before: &[Thread],
    rules: &Rules,
) -> Result<(), Malformed> {
    for at in 0..now.len() {
        let old = earlier(before, now[at].id).map_or(&[][..], |old| &old.sharing);
        shared_by(coder, now, at, old, rules)?;
    }
    Ok(())
}

fn earlier(before: &[Thread], id: ThreadId) -> Option<&Thread> {
    before.binary_search_by_key(&id, |old| old.id).ok().map(|row| &before[row])
}

fn fields(coder: &mut impl Coder, now: &mut Thread, before: &Thread) -> Result<(), Malformed> {
    coder.number(Column::ThreadProcess, &mut now.process, before.process)?;
    coder.text(Column::ThreadCommand, &mut now.command, &before.command)?;
    coder.number(Column::ThreadNode, &mut now.node, before.node)?;
    coder.number(Column::ThreadCpu, &mut now.cpu, before.cpu)?;
    let count = Column::ThreadAllowedCount;
    per_node(
        coder,
        count,
        &mut now.allowed,
        &before.allowed,
        || true,
        |coder, flag, &before| coder.flag(Column::ThreadAllowed, flag, before),
    )?;
    numbers_per_node(coder, Column::ThreadRunCount, Column::ThreadRun, &mut now.run_ns, &before.run_ns)?;
    let ran_ns = now.run_ns.values().fold(0_u64, |sum, &ns| sum.wrapping_add(ns));
    coder.number(Column::ThreadCpuTime, &mut now.cpu_time_ns, ran_ns)?;
    coder.optional(Column::ThreadLatency, &mut now.latency_ns, before.latency_ns)?;
    coder.optional(Column::ThreadOperations, &mut now.operations_per_s, before.operations_per_s)?;
    coder.optional(Column::ThreadCycles, &mut now.cycles_per_s, before.cycles_per_s)?;
    transfers(coder, &mut now.transfers_per_s, before.transfers_per_s)?;
    let (lines, old) = (&mut now.memory_lines_per_s, before.memory_lines_per_s);
    coder.optional(Column::ThreadMemoryLines, &mut lines.all, old.all)?;
    coder.optional(Column::ThreadRemoteLines, &mut lines.remote, old.remote)?;
    let count = Column::ThreadPerformanceCount;
    per_node(
        coder,
        count,
        &mut now.performance,
        &before.performance,
        || None,
        |coder, value, &before| coder.optional(Column::ThreadPerformance, value, before),
    )?;
    coder.flag(Column::ThreadCooldown, &mut now.on_cooldown, before.on_cooldown)?;
    // A clock that runs since the machine started is never at 0.
    let mut turned_ns = now.turned_ns.unwrap_or(0);
    coder.number(Column::ThreadTurned, &mut turned_ns, before.turned_ns.unwrap_or(0))?;
    now.turned_ns = Some(turned_ns).filter(|&turned_ns| turned_ns > 0);
    let mut in_step_ns = now.in_step_ns.unwrap_or(0);
    coder.number(Column::ThreadInStep, &mut in_step_ns, before.in_step_ns.unwrap_or(0))?;
    now.in_step_ns = Some(in_step_ns).filter(|&in_step_ns| in_step_ns > 0);
    // The kernel's numbers begin at 1.
    let mut cgroup = now.cgroup.unwrap_or(0);
    coder.number(Column::ThreadControlGroup, &mut cgroup, before.cgroup.unwrap_or(0))?;
    now.cgroup = Some(cgroup).filter(|&cgroup| cgroup > 0);
    woken_by(coder, &mut now.woken_by, before.woken_by)
}

fn woken_by(
    coder: &mut impl Coder,
    now: &mut Option<(ThreadId, f64)>,
    before: Option<(ThreadId, f64)>,
) -> Result<(), Malformed> {
    let mut present = now.is_some();
    coder.flag(Column::ThreadWoken, &mut present, before.is_some())?;
    if !present {
        *now = None;
        return Ok(());
    }
    let nobody = (blank::THREAD_ID, 0.0);
    let ((waker, wakes_per_s), (old, old_per_s)) = (now.get_or_insert(nobody), before.unwrap_or(nobody));
    coder.number(Column::ThreadWakerTid, &mut waker.tid, old.tid)?;
    coder.number(Column::ThreadWakerStart, &mut waker.start_boottime_ns, old.start_boottime_ns)?;
    coder.float(Column::ThreadWakes, wakes_per_s, old_per_s)
}

fn transfers(coder: &mut impl Coder, now: &mut Option<Transfers>, before: Option<Transfers>) -> Result<(), Malformed> {
    let mut present = now.is_some();
    coder.flag(Column::ThreadTransfers, &mut present, before.is_some())?;
    if !present {
        *now = None;
        return Ok(());
    }
    let (now, before) = (now.get_or_insert_default(), before.unwrap_or_default());
    coder.float(Column::ThreadTransfersWithin, &mut now.within_node, before.within_node)?;
    coder.float(Column::ThreadTransfersAcross, &mut now.across_nodes, before.across_nodes)
}

/// Passes what the thread at `at` shares with others.
fn shared_by(
    coder: &mut impl Coder,
    now: &mut [Thread],
    at: usize,
    before: &[(ThreadId, f64)],
    rules: &Rules,
) -> Result<(), Malformed> {
    let (passed, rest) = now.split_at_mut(at);
    let Thread { id, sharing, .. } = &mut rest[0];
    let count = coder.count::<(ThreadId, f64)>(Column::ThreadSharingCount, sharing.len(), before.len())?;
    sharing.resize(count, (blank::THREAD_ID, 0.0));
    let (mut expected, mut next) = (0, 0);
    for (with, value) in sharing.iter_mut() {
        let found = before.binary_search_by_key(with, |old| old.0).ok();
        let row = coder.row(Column::ThreadSharingRow, found, expected, before.len())?;
        match row {
            Some(row) => (*with, expected) = (before[row].0, row + 1),
            None => rules.people.pass(coder, Column::ThreadSharingWith, with, next)?,
        }
        let place = rules.people.place(*with);
        next = place.map_or(next, |place| place + 1);
        let old = row.map_or(0.0, |row| before[row].1);
        match place.and_then(|place| passed.get(place)).and_then(|partner| share_with(partner, *id)) {
            // Both of a pair usually say the same.
            Some(same) => coder.float(Column::ThreadSharing, value, same)?,
            None => share(coder, value, old, [rules.scale(Some(at)), rules.scale(place)])?,
        }
    }
    Ok(())
}

fn share_with(thread: &Thread, other: ThreadId) -> Option<f64> {
    let place = thread.sharing.binary_search_by_key(&other, |share| share.0).ok()?;
    Some(thread.sharing[place].1)
}

/// Passes what two threads share: it goes on as the accesses of the one do that has less on the page.
fn share(coder: &mut impl Coder, value: &mut f64, before: f64, scales: [Scale; 2]) -> Result<(), Malformed> {
    let off = |scale: Scale| (*value - scale.after(before, scale.new_samples(before, *value))).abs();
    let mut whose = usize::from(off(scales[1]) < off(scales[0]));
    coder.number(Column::ThreadSharingWhose, &mut whose, 0)?;
    let scale = *scales.get(whose).ok_or(Malformed::Column(Column::ThreadSharingWhose))?;
    aged(coder, (Column::ThreadSharing, Column::ThreadSharingNew), value, before, scale, 0)?;
    Ok(())
}

/// Passes the threads' accesses by node of the memory: those to groups, by where the pages of these are.
pub(super) fn accesses(
    coder: &mut impl Coder,
    now: &mut [Thread],
    before: &[Thread],
    groups: &[PageGroup],
    people: &People,
) -> Result<(), Malformed> {
    let nodes = groups.first().map_or(0, |group| group.resident_pages.len());
    let mut rows = vec![PerNode::filled(nodes, 0.0); now.len()];
    for group in groups {
        let pages = group.resident_pages.values().fold(0_u64, |sum, &pages| sum.wrapping_add(pages));
        for &(user, value) in group.users.iter().filter(|_| pages > 0) {
            let Some(row) = people.place(user).and_then(|place| rows.get_mut(place)) else { continue };
            for (node, &here) in group.resident_pages.iter().filter(|(node, _)| node.0 < nodes) {
                row[node] += value * here as f64 / pages as f64;
            }
        }
    }
    for (thread, predicted) in now.iter_mut().zip(&rows) {
        let old = earlier(before, thread.id).and_then(|old| old.accesses_per_s.as_ref());
        let mut present = thread.accesses_per_s.is_some();
        coder.flag(Column::ThreadAccesses, &mut present, old.is_some())?;
        if !present {
            thread.accesses_per_s = None;
            continue;
        }
        let row = thread.accesses_per_s.get_or_insert_default();
        floats_per_node(coder, Column::ThreadAccessesCount, Column::ThreadAccessesByNode, row, predicted)?;
    }
    Ok(())
}

/// Nodes of the threads of `users`, with their values summed up.
pub(super) fn by_node(users: &[(ThreadId, f64)], nodes: usize, people: &People) -> PerNode<f64> {
    let mut sums = PerNode::filled(nodes, 0.0);
    for &(user, value) in users {
        if let Some(NodeIndex(node)) = people.place(user).map(|place| people.nodes[place])
            && node < nodes
        {
            sums[NodeIndex(node)] += value;
        }
    }
    sums
}
