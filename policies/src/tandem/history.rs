// SPDX-License-Identifier: GPL-2.0-only
//! For how long moves may be expected to pay: as long as placements have been lasting.
//!
//! The horizon doubles each time that nothing had to be moved for as long as it is, and becomes the time that a placement
//! lasted when half of a plan's moves take back what an earlier plan did. Threads are remembered one by one, page groups by
//! process and nodes.

use std::collections::BTreeMap;

use crate::model::{Action, NodeIndex, Plan, ProcessId, Snapshot, ThreadId};
use crate::registry::Parameters;

/// What moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mover {
    Thread(ThreadId),
    Pages(ProcessId, NodeIndex),
}

/// What became of plans.
#[derive(Debug, Default)]
pub struct History {
    horizon_s: Option<f64>,
    /// When the last plan was made, or the horizon last grew.
    since_ns: u64,
    /// Where movers came from (pages: where they went), and when.
    moved: BTreeMap<Mover, (NodeIndex, u64)>,
}

impl History {
    /// The horizon at this time.
    pub fn horizon_s(&mut self, time_ns: u64, parameters: &Parameters) -> f64 {
        let (least_s, most_s) = (parameters.get("least_horizon_s"), parameters.get("most_horizon_s"));
        let mut horizon_s = match self.horizon_s {
            Some(horizon_s) => horizon_s,
            None => {
                self.since_ns = time_ns;
                parameters.get("first_horizon_s")
            }
        };
        if (time_ns - self.since_ns) as f64 >= horizon_s * 1e9 {
            horizon_s *= 2.0;
            self.since_ns = time_ns;
        }
        *self.horizon_s.insert(horizon_s.min(most_s).max(least_s))
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
