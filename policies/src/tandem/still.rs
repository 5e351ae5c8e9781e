// SPDX-License-Identifier: GPL-2.0-only
//! Programs of which something stays where it is, since what a plan would have gained may be chance.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Action, Plan, ProcessId, Snapshot, ThreadId};

/// What stays of a program. What threads gain that go alone, and what pages gain that go to threads which stay, is known as well as
/// their accesses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Memory,
    Threads,
    All,
}

/// What stays of which programs.
#[derive(Clone, Debug, Default)]
pub struct Still(BTreeMap<ProcessId, What>);

impl Still {
    /// Takes in a plan that was made with this, and programs of which it may move something by chance: their memory stays; if they are
    /// in doubt again, or none of their threads is worth a move, their threads instead; then both. Returns those whose threads
    /// stay from now on, or `None` if the plan needs no other.
    pub fn after(
        &mut self,
        plan: &Plan,
        doubtful: &BTreeSet<ProcessId>,
        snapshot: &Snapshot,
    ) -> Option<BTreeSet<ProcessId>> {
        let process_of = |id: ThreadId| snapshot.thread(id).map(|thread| thread.process);
        let mut moved = BTreeSet::new();
        for planned in &plan.moves {
            match planned.action {
                Action::MoveThread { thread, .. } => moved.extend(process_of(thread)),
                Action::Interchange { first, second, .. } => {
                    moved.extend([first, second].into_iter().filter_map(process_of))
                }
                Action::MovePages { .. } => {}
            }
        }
        let idle = self.0.iter().filter(|(program, what)| **what == What::Memory && !moved.contains(program));
        let next: BTreeSet<ProcessId> = idle.map(|(&program, _)| program).chain(doubtful.iter().copied()).collect();
        let mut stay = BTreeSet::new();
        for &program in &next {
            let what = match self.0.get(&program) {
                None => What::Memory,
                Some(What::Memory) => What::Threads,
                Some(What::Threads | What::All) => What::All,
            };
            if what == What::Threads {
                stay.insert(program);
            }
            self.0.insert(program, what);
        }
        (!next.is_empty()).then_some(stay)
    }

    /// All of what any plan was in doubt of stays.
    pub fn hold_all(&mut self) {
        self.0.values_mut().for_each(|what| *what = What::All);
    }

    /// Whether the memory of a program stays.
    pub fn memory(&self, program: ProcessId) -> bool {
        matches!(self.0.get(&program), Some(What::Memory | What::All))
    }

    /// Whether its threads do.
    pub fn threads(&self, program: ProcessId) -> bool {
        matches!(self.0.get(&program), Some(What::Threads | What::All))
    }
}
