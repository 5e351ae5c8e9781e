// SPDX-License-Identifier: GPL-2.0-only
//! For how long moves may be expected to pay: as long as placements have been lasting, of each process.
//!
//! The horizon of a process doubles each time that nothing of it had to be moved for as long as it is, and becomes the time that a
//! placement lasted when half of its moves in a plan take back what an earlier one did, or when a quarter of its threads at work
//! turn to other memory ([`Thread::turned_ns`]): a program that has gone through one phase in two seconds will hardly stay in the
//! next one for ten, whatever others do beside it. Threads are remembered one by one, page groups by process and nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::cold::Cold;
use crate::model::{Action, NodeIndex, Plan, ProcessId, Snapshot, Thread, ThreadId};
use crate::phases;
use crate::registry::Parameters;
use crate::stay::Stay;

/// What moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mover {
    Thread(ThreadId),
    /// From one node to another.
    Pages(ProcessId, NodeIndex, NodeIndex),
}

/// Threads that turn within this time do so together.
const TOGETHER_NS: u64 = 1_000_000_000;

/// What became of plans.
#[derive(Debug, Default)]
pub struct History {
    /// Memory that nobody uses.
    pub cold: Cold,
    /// With which of the movable threads the next search begins.
    pub next_thread: usize,
    /// Threads that the last decision left away from the memory that they use most, and why.
    pub stays: Vec<Stay>,
    lasting: BTreeMap<ProcessId, Lasting>,
    /// Up to when threads that turned were looked at.
    looked_ns: u64,
    /// Where movers came from, and when.
    moved: BTreeMap<Mover, (NodeIndex, u64)>,
}

/// How long placements of a process last.
#[derive(Clone, Copy, Debug)]
struct Lasting {
    horizon_s: f64,
    /// When its present phase began, as far as known.
    phase_ns: u64,
    /// When something of it was last moved, or the horizon last grew.
    since_ns: u64,
}

/// The moves of one process in a plan: all, those that take back what an earlier one did, and how long that lasted.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    all: usize,
    back: usize,
    lasted_ns: u64,
}

/// The time over which a move must pay, by process.
#[derive(Clone, Debug)]
pub struct Horizons {
    of: BTreeMap<ProcessId, f64>,
    first_s: f64,
}

impl Horizons {
    /// The same one for all processes.
    #[cfg(test)]
    pub fn all(horizon_s: f64) -> Self {
        Self { of: BTreeMap::new(), first_s: horizon_s }
    }

    /// That of a process; of one that is not known, the first one.
    pub fn of_s(&self, process: Option<ProcessId>) -> f64 {
        process.and_then(|process| self.of.get(&process).copied()).unwrap_or(self.first_s)
    }
}

impl History {
    /// The horizons at the time of a snapshot, of which the threads `active` are at work.
    pub fn horizons(&mut self, snapshot: &Snapshot, active: &[&Thread], parameters: &Parameters) -> Horizons {
        let time_ns = snapshot.time_ns;
        let first_s = parameters.get("first_horizon_s");
        let limits = (parameters.get("least_horizon_s"), parameters.get("most_horizon_s"));
        let mut threads: BTreeMap<ProcessId, Vec<&Thread>> = BTreeMap::new();
        active.iter().for_each(|thread| threads.entry(thread.process).or_default().push(thread));
        for (process, its) in threads {
            let new = Lasting { horizon_s: first_s, phase_ns: time_ns, since_ns: time_ns };
            let lasting = self.lasting.entry(process).or_insert(new);
            if let Some(lasted_ns) = lasting.phase_ended(&its, self.looked_ns) {
                lasting.horizon_s = lasting.horizon_s.min(lasted_ns as f64 / 1e9);
                lasting.since_ns = time_ns;
            }
            if time_ns.saturating_sub(lasting.since_ns) as f64 >= lasting.horizon_s * 1e9 {
                lasting.horizon_s *= 2.0;
                lasting.since_ns = time_ns;
            }
            lasting.horizon_s = lasting.horizon_s.min(limits.1).max(limits.0);
        }
        self.looked_ns = time_ns;
        let there: BTreeSet<ProcessId> = snapshot.threads.iter().map(|thread| thread.process).collect();
        self.lasting.retain(|process, _| there.contains(process));
        Horizons { of: self.lasting.iter().map(|(&process, lasting)| (process, lasting.horizon_s)).collect(), first_s }
    }

    /// Remembers a plan.
    pub fn note(&mut self, snapshot: &Snapshot, plan: &Plan, parameters: &Parameters) {
        if plan.is_empty() {
            return;
        }
        let now_ns = snapshot.time_ns;
        let mut moves: BTreeMap<ProcessId, Moved> = BTreeMap::new();
        let mut moved: BTreeMap<Mover, (NodeIndex, u64)> = BTreeMap::new();
        for (process, mover, from, to) in movers(snapshot, plan) {
            let left = if let Mover::Pages(process, ..) = mover { Mover::Pages(process, to, from) } else { mover };
            let earlier = self.moved.get(&left).filter(|earlier| earlier.0 == to);
            let its = moves.entry(process).or_default();
            its.all += 1;
            if let Some(&(_, when_ns)) = earlier {
                its.back += 1;
                its.lasted_ns = its.lasted_ns.max(now_ns.saturating_sub(when_ns));
            }
            moved.insert(mover, (from, now_ns));
        }
        let limits = (parameters.get("least_horizon_s"), parameters.get("most_horizon_s"));
        for (process, Moved { all, back, lasted_ns }) in moves {
            let Some(lasting) = self.lasting.get_mut(&process) else { continue };
            lasting.since_ns = now_ns;
            if 2 * back >= all && back > 0 {
                lasting.horizon_s = (lasted_ns as f64 / 1e9).min(limits.1).max(limits.0);
            }
        }
        self.moved.append(&mut moved);
        let forgotten_ns = (2e9 * parameters.get("most_horizon_s")) as u64;
        self.moved.retain(|_, &mut (_, when_ns)| now_ns.saturating_sub(when_ns) <= forgotten_ns);
    }
}

impl Lasting {
    /// How long its last phase was, if it ended since threads were last looked at.
    fn phase_ended(&mut self, active: &[&Thread], looked_ns: u64) -> Option<u64> {
        let turned = || active.iter().filter_map(|thread| thread.turned_ns).filter(|&turned_ns| turned_ns > looked_ns);
        let (count, began_ns) = (turned().count(), turned().min()?);
        let together = began_ns.saturating_sub(self.phase_ns) < TOGETHER_NS;
        if together || !phases::threads_turned(count, active.len()) {
            return None;
        }
        Some(began_ns - std::mem::replace(&mut self.phase_ns, began_ns))
    }
}

/// What a plan moves, with its process, from where and where to.
fn movers(snapshot: &Snapshot, plan: &Plan) -> Vec<(ProcessId, Mover, NodeIndex, NodeIndex)> {
    let mut found = Vec::new();
    let mut pages: BTreeSet<(ProcessId, NodeIndex, NodeIndex)> = BTreeSet::new();
    let mut add_thread = |thread: ThreadId, from: NodeIndex, to: NodeIndex| {
        let process = snapshot.thread(thread).map(|known| known.process);
        found.extend(process.map(|process| (process, Mover::Thread(thread), from, to)));
    };
    for planned in &plan.moves {
        match planned.action {
            Action::MoveThread { thread, from, to, .. } => add_thread(thread, from, to),
            Action::Interchange { first, second, first_node, second_node } => {
                add_thread(first, first_node, second_node);
                add_thread(second, second_node, first_node);
            }
            Action::MovePages { group, to, .. } => {
                let at = snapshot.groups.binary_search_by_key(&group, |known| known.id);
                if let Some(home) = at.ok().and_then(|at| snapshot.groups[at].home()) {
                    pages.insert((group.process, home, to));
                }
            }
        }
    }
    let mover = |(process, from, to)| (process, Mover::Pages(process, from, to), from, to);
    found.extend(pages.into_iter().map(mover));
    found
}
