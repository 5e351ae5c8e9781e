// SPDX-License-Identifier: GPL-2.0-only
//! For how long moves may be expected to pay: as long as placements have been lasting.
//!
//! The horizon doubles each time that nothing had to be moved for as long as it is, and becomes the time that a placement
//! lasted when half of a plan's moves take back what an earlier plan did, or when a quarter of the threads at work turn to other memory
//! ([`Thread::turned_ns`]): a program that has gone through one phase in two seconds will hardly stay in the next one for ten. Threads
//! are remembered one by one, page groups by process and nodes.

use std::collections::BTreeMap;

use super::cold::Cold;
use crate::model::{Action, NodeIndex, Plan, ProcessId, Snapshot, Thread, ThreadId};
use crate::phases;
use crate::registry::Parameters;

/// What moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mover {
    Thread(ThreadId),
    Pages(ProcessId, NodeIndex),
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
    horizon_s: Option<f64>,
    /// When the present phase began, as far as known, and up to when threads that turned were looked at.
    phase_ns: u64,
    looked_ns: u64,
    /// When the last plan was made, or the horizon last grew.
    since_ns: u64,
    /// Where movers came from (pages: where they went), and when.
    moved: BTreeMap<Mover, (NodeIndex, u64)>,
}

impl History {
    /// The horizon at the time of a snapshot, of which the threads `active` are at work.
    pub fn horizon_s(&mut self, time_ns: u64, active: &[&Thread], parameters: &Parameters) -> f64 {
        let (least_s, most_s) = (parameters.get("least_horizon_s"), parameters.get("most_horizon_s"));
        let mut horizon_s = match self.horizon_s {
            Some(horizon_s) => horizon_s,
            None => {
                (self.since_ns, self.phase_ns) = (time_ns, time_ns);
                parameters.get("first_horizon_s")
            }
        };
        if let Some(lasted_ns) = self.phase_ended(active) {
            horizon_s = horizon_s.min(lasted_ns as f64 / 1e9);
            self.since_ns = time_ns;
        }
        self.looked_ns = time_ns;
        if (time_ns - self.since_ns) as f64 >= horizon_s * 1e9 {
            horizon_s *= 2.0;
            self.since_ns = time_ns;
        }
        *self.horizon_s.insert(horizon_s.min(most_s).max(least_s))
    }

    /// How long the last phase was, if it ended since the last look.
    fn phase_ended(&mut self, active: &[&Thread]) -> Option<u64> {
        let turned =
            || active.iter().filter_map(|thread| thread.turned_ns).filter(|&turned_ns| turned_ns > self.looked_ns);
        let (count, began_ns) = (turned().count(), turned().min()?);
        let together = began_ns.saturating_sub(self.phase_ns) < TOGETHER_NS;
        if together || !phases::threads_turned(count, active.len()) {
            return None;
        }
        Some(began_ns - std::mem::replace(&mut self.phase_ns, began_ns))
    }

    /// Remembers a plan.
    pub fn note(&mut self, snapshot: &Snapshot, plan: &Plan, parameters: &Parameters) {
        if plan.is_empty() {
            return;
        }
        let now_ns = snapshot.time_ns;
        let (mut moves, mut back, mut lasted_ns) = (0usize, 0usize, 0u64);
        let mut moved: BTreeMap<Mover, (NodeIndex, u64)> = BTreeMap::new();
        let mut meet = |mover: Mover, from: NodeIndex, to: NodeIndex| {
            // Pages are told apart by where they come from, so that those that come back meet those that left.
            let earlier = match mover {
                Mover::Thread(_) => self.moved.get(&mover).filter(|earlier| earlier.0 == to),
                Mover::Pages(process, _) => self.moved.get(&Mover::Pages(process, to)).filter(|gone| gone.0 == from),
            };
            moves += 1;
            if let Some(&(_, when_ns)) = earlier {
                back += 1;
                lasted_ns = lasted_ns.max(now_ns.saturating_sub(when_ns));
            }
            let kept = if matches!(mover, Mover::Thread(_)) { from } else { to };
            moved.insert(mover, (kept, now_ns));
        };
        let mut homes: BTreeMap<(ProcessId, NodeIndex), NodeIndex> = BTreeMap::new();
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { thread, from, to, .. } => meet(Mover::Thread(thread), from, to),
                Action::Interchange { first, second, first_node, second_node } => {
                    meet(Mover::Thread(first), first_node, second_node);
                    meet(Mover::Thread(second), second_node, first_node);
                }
                Action::MovePages { group, to, .. } => {
                    let at = snapshot.groups.binary_search_by_key(&group, |known| known.id);
                    if let Some(home) = at.ok().and_then(|at| snapshot.groups[at].home()) {
                        homes.insert((group.process, home), to);
                    }
                }
            }
        }
        homes.into_iter().for_each(|((process, from), to)| meet(Mover::Pages(process, from), from, to));
        if 2 * back >= moves && back > 0 {
            let limits = (parameters.get("least_horizon_s"), parameters.get("most_horizon_s"));
            self.horizon_s = Some((lasted_ns as f64 / 1e9).min(limits.1).max(limits.0));
        }
        self.moved.append(&mut moved);
        self.since_ns = now_ns;
        let forgotten_ns = (2e9 * parameters.get("most_horizon_s")) as u64;
        self.moved.retain(|_, &mut (_, when_ns)| now_ns.saturating_sub(when_ns) <= forgotten_ns);
    }
}
