// SPDX-License-Identifier: GPL-2.0-only
//! What one agent leaves to the next one.
//!
//! Problem: with a new configuration, when CPUs come or go and after an error another agent begins. If it knew nothing of the
//! one before, what was on its way back of a plan that made things worse would stay where it was by then, and what was undone a
//! moment ago would be tried again. Mechanism: whoever moves pages goes on, with what is on its way back, what is held and what
//! a page costs, and those who rest go on resting. The plan on trial and what is queued of it are given up: they count on a
//! configuration and on a machine that may be others now.

use std::path::Path;

use tandem_act::{Cooldowns, KernelMover, LinuxMovePages, Mover, MoverConfig, PageMover};
use tandem_bpf::{Loans, Purpose};
use tandem_policies::model::Topology;
use tandem_sense::monotonic_ns;
use tandem_view::Superseding;

use super::{Agent, COOLDOWNS};
use crate::config::MoverKind;
use crate::managed::ProgramWatch;
use crate::report::Report;
use crate::trials::Trials;

/// What an agent goes on with that was another one's.
pub struct Handover {
    pub(super) kind: MoverKind,
    pub(super) mover: Box<dyn PageMover>,
    pub(super) cooldowns: Cooldowns,
    /// So that what has ended or runs another program by then is noticed.
    pub(super) programs: ProgramWatch,
    pub(super) trials: Trials,
}

impl Handover {
    /// For an agent that has pages moved by `kind`: of the one before as far as that did too, or else nothing.
    pub(super) fn adapted(before: Option<Self>, kind: MoverKind, topology: &Topology, config: MoverConfig) -> Self {
        let Some(mut before) = before.filter(|before| before.kind == kind) else {
            return Self::nothing(kind, topology, config);
        };
        before.mover.adapt(topology, config);
        before
    }

    fn nothing(kind: MoverKind, topology: &Topology, config: MoverConfig) -> Self {
        let system = LinuxMovePages::new(topology);
        let mover: Box<dyn PageMover> = match kind {
            MoverKind::MovePages => Box::new(Mover::new(system, config)),
            MoverKind::Kernel => Box::new(KernelMover::new(system, Loans::new(Purpose::Pages), config)),
        };
        let (cooldowns, programs) = (Cooldowns::new(COOLDOWNS), ProgramWatch::new(Path::new("/proc")));
        Self { kind, mover, cooldowns, programs, trials: Trials::default() }
    }
}

impl Agent {
    /// Ends; leaves to another agent what that can go on with, if one `goes_on`.
    pub fn end(mut self, goes_on: bool, report: &mut Report) -> Option<Handover> {
        if goes_on {
            return Some(self.hand_over(report));
        }
        self.give_up(report);
        None
    }

    fn hand_over(mut self, report: &mut Report) -> Handover {
        let cancelled = self.mover.stop_plans(monotonic_ns(), &mut self.cooldowns);
        self.note_outcomes(cancelled, report);
        self.trials.give_up(Superseding::BeganAnew, report);
        let Self { mover, cooldowns, programs, trials, config, .. } = self;
        Handover { kind: config.mover, mover, cooldowns, programs, trials }
    }
}

#[cfg(test)]
mod tests {
    use tandem_act::{Generation, PageMove};
    use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};

    use super::*;

    /// Of an agent that had a move queued.
    fn left(kind: MoverKind) -> Handover {
        let mut left = Handover::nothing(kind, &machine(), MoverConfig::default());
        let group = GroupId { process: ProcessId(1), start: 0 };
        let (huge, to, generation, cooldown_ns) = (false, NodeId(1), Generation(1), 1);
        let wanted = PageMove { group, bytes: PAGE_BYTES, huge, to, generation, cooldown_ns };
        left.mover.enqueue(wanted, 0, &left.cooldowns).expect("there is room");
        left.cooldowns.start_group(group, PAGE_BYTES, 0, 1);
        left
    }

    fn machine() -> Topology {
        crate::testing::snapshot(&[]).topology
    }

    #[test]
    fn an_agent_goes_on_with_what_the_one_before_had_begun_if_the_same_one_moves_pages() {
        for kind in [MoverKind::MovePages, MoverKind::Kernel] {
            let before = Handover::adapted(Some(left(kind)), kind, &machine(), MoverConfig::default());
            assert_eq!((before.mover.queued_groups(), before.cooldowns.len()), (1, 1), "{kind:?}");
        }
        let other =
            Handover::adapted(Some(left(MoverKind::Kernel)), MoverKind::MovePages, &machine(), MoverConfig::default());
        assert_eq!((other.kind, other.mover.queued_groups()), (MoverKind::MovePages, 0));
    }
}
