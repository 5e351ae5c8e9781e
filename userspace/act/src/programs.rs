// SPDX-License-Identifier: GPL-2.0-only
//! Which programs the processes run whose pages may move.
//!
//! Problem: a process is named by its number, and addresses mean something in its address space only. While moves are queued, can be
//! undone or are held, the process may end and another one get its number, or it may execute another program: root would
//! move pages of a program that nobody looked at. Mechanism: whoever has pages moved says at each look at the processes
//! which program each of them runs. All that is known of one that is gone from there, or runs another one now, is dropped; and right before
//! pages go a mover asks once more, so that what changes between two looks is seen as well.

use std::collections::{BTreeMap, BTreeSet};

use tandem_machine::ProgramId;
use tandem_policies::model::ProcessId;

use crate::{Ended, MovePages, Outcome, UndoLog};

/// The program of each process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs(BTreeMap<ProcessId, ProgramId>);

impl Programs {
    /// The program of a process, if it is among these.
    pub fn get(&self, process: ProcessId) -> Option<ProgramId> {
        self.0.get(&process).copied()
    }

    /// The processes that are not among `later` ones, or run another program there.
    pub fn gone_in(&self, later: &Self) -> BTreeSet<ProcessId> {
        let gone = self.0.iter().filter(|&(process, program)| later.0.get(process) != Some(program));
        gone.map(|(process, _)| *process).collect()
    }
}

impl FromIterator<(ProcessId, ProgramId)> for Programs {
    fn from_iter<T: IntoIterator<Item = (ProcessId, ProgramId)>>(programs: T) -> Self {
        Self(programs.into_iter().collect())
    }
}

/// Programs as a mover was told of them.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<Programs>);

impl Told {
    /// These are all from now on. Of processes of which nothing counts any more, if there are any, nothing can be undone or is held.
    pub(crate) fn replace(&mut self, programs: &Programs, log: &mut UndoLog) -> Option<Gone> {
        let before = self.0.replace(programs.clone()).unwrap_or_default();
        let processes = before.gone_in(programs);
        if processes.is_empty() {
            return None;
        }
        log.forget(|process| processes.contains(&process));
        Some(Gone { before, processes })
    }

    /// Whether pages of the process may move: of any before something was told.
    pub(crate) fn may_move(&self, process: ProcessId) -> bool {
        self.0.as_ref().is_none_or(|programs| programs.get(process).is_some())
    }

    /// The program that its pages are of.
    pub(crate) fn get(&self, process: ProcessId) -> Option<ProgramId> {
        self.0.as_ref()?.get(process)
    }
}

/// Processes of which nothing counts any more, and what was known of programs before.
pub(crate) struct Gone {
    before: Programs,
    processes: BTreeSet<ProcessId>,
}

impl Gone {
    /// Whether moves of the process end.
    pub(crate) fn has(&self, process: ProcessId) -> bool {
        self.processes.contains(&process)
    }

    /// Ends these moves of theirs, each as its process ended.
    pub(crate) fn end<J>(
        &self,
        system: &impl MovePages,
        moves: Vec<J>,
        process_of: impl Fn(&J) -> ProcessId,
        finish: impl Fn(J, Ended) -> Outcome,
    ) -> Vec<Outcome> {
        let how = how_left(system, &self.before, moves.iter().map(&process_of));
        let end = |one: J| {
            let how = how[&process_of(&one)];
            finish(one, how)
        };
        moves.into_iter().map(end).collect()
    }
}

/// How moves of processes end that run no program any more which may be moved: each is gone, unless it runs the one of `before`.
fn how_left(
    system: &impl MovePages,
    before: &Programs,
    processes: impl IntoIterator<Item = ProcessId>,
) -> BTreeMap<ProcessId, Ended> {
    let still_runs = |process| system.program(process).is_some_and(|program| before.get(process) == Some(program));
    let how = |process| if still_runs(process) { Ended::Cancelled } else { Ended::ProcessGone };
    let processes: BTreeSet<ProcessId> = processes.into_iter().collect();
    processes.into_iter().map(|process| (process, how(process))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A program that differs from others by its number.
    pub(crate) fn program(number: u64) -> ProgramId {
        ProgramId { start_ticks: 1, code_start: 1, stack_start: number }
    }

    /// Of processes and the numbers of their programs.
    pub(crate) fn programs(numbers: &[(u32, u64)]) -> Programs {
        numbers.iter().map(|&(process, number)| (ProcessId(process), program(number))).collect()
    }

    #[test]
    fn who_is_not_there_later_and_who_runs_another_program_is_gone() {
        let before = programs(&[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(before.gone_in(&programs(&[(1, 1), (2, 2), (4, 1)])), [2, 3].map(ProcessId).into());
    }

    #[test]
    fn pages_move_of_any_process_until_something_is_told_and_of_those_told_from_then_on() {
        let mut told = Told::default();
        assert_eq!((told.may_move(ProcessId(1)), told.get(ProcessId(1))), (true, None));
        let mut log = UndoLog::new(1);
        assert!(told.replace(&programs(&[(1, 1)]), &mut log).is_none());
        assert_eq!((told.may_move(ProcessId(1)), told.may_move(ProcessId(2))), (true, false));
        let gone = told.replace(&Programs::default(), &mut log).expect("one is");
        assert_eq!((gone.before, gone.processes), (programs(&[(1, 1)]), [ProcessId(1)].into()));
        assert!(!told.may_move(ProcessId(1)));
    }
}
