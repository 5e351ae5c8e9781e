// SPDX-License-Identifier: GPL-2.0-only
//! What one agent leaves to the next one.
//!
//! Problem: with a new configuration, when CPUs come or go and after an error another agent begins. If it knew nothing of the
//! one before, what was on its way back of a plan that made things worse would stay where it was by then, and what was undone a
//! moment ago would be tried again. Mechanism: whoever moves pages goes on, with what is on its way back, what is held and what
//! a page costs, and what moved goes on resting. The plan on trial and what is queued of it are given up: they count on a
//! configuration and on a machine that may be others now. So may what the kernel refused to move, and who else moves pages: that is
//! found out anew.

use std::path::Path;

use tandem_act::{Cooldowns, KernelMover, LinuxMovePages, Mover, MoverConfig, Outcome, PageMover};
use tandem_bpf::{Loans, Purpose};
use tandem_policies::model::Topology;
use tandem_sense::monotonic_ns;
use tandem_view::Superseding;

use super::{Agent, COOLDOWNS};
use crate::config::MoverKind;
use crate::managed::{ManagedSet, ProgramWatch};
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
    pub(super) managed: ManagedSet,
}

impl Handover {
    /// For an agent that has pages moved by `kind`, as the one `before` may have or not.
    pub(super) fn adapted(before: Option<Self>, kind: MoverKind, topology: &Topology, config: MoverConfig) -> Self {
        let Some(mut before) = before else { return Self::nothing(kind, topology, config) };
        if before.kind != kind {
            return Self { kind, mover: mover(kind, topology, config), ..before };
        }
        before.mover.adapt(topology, config);
        before
    }

    fn nothing(kind: MoverKind, topology: &Topology, config: MoverConfig) -> Self {
        let (cooldowns, programs) = (Cooldowns::new(COOLDOWNS), ProgramWatch::new(Path::new("/proc")));
        let (trials, managed) = (Trials::default(), ManagedSet::new(vec![], vec![]));
        Self { kind, mover: mover(kind, topology, config), cooldowns, programs, trials, managed }
    }
}

/// Who moves pages, and has nothing to do yet.
fn mover(kind: MoverKind, topology: &Topology, config: MoverConfig) -> Box<dyn PageMover> {
    let system = LinuxMovePages::new(topology);
    match kind {
        MoverKind::MovePages => Box::new(Mover::new(system, config)),
        MoverKind::Kernel => Box::new(KernelMover::new(system, Loans::new(Purpose::Pages), config)),
    }
}

impl Agent {
    /// Ends, and leaves what another agent goes on with; what is on its way back as well if that one `moves_on`.
    pub fn hand_over(mut self, moves_on: bool, report: &mut Report) -> Handover {
        let now_ns = monotonic_ns();
        let cancelled = match moves_on {
            true => self.mover.stop_plans(now_ns, &mut self.cooldowns),
            false => self.mover.cancel_all(now_ns, &mut self.cooldowns),
        };
        self.end(cancelled, report);
        let Self { mover, cooldowns, programs, trials, config, .. } = self;
        Handover { kind: config.mover, mover, cooldowns, programs, trials, managed: config.managed }
    }

    /// Gives up all moves that are queued, ways back too, and the plan on trial: no other agent follows.
    pub fn give_up(&mut self, report: &mut Report) {
        let cancelled = self.mover.cancel_all(monotonic_ns(), &mut self.cooldowns);
        self.end(cancelled, report);
    }

    fn end(&mut self, cancelled: Vec<Outcome>, report: &mut Report) {
        self.note_outcomes(cancelled, report);
        self.trials.give_up(Superseding::BeganAnew, report);
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
        for (before, now) in [
            (MoverKind::MovePages, MoverKind::MovePages),
            (MoverKind::Kernel, MoverKind::Kernel),
            (MoverKind::Kernel, MoverKind::MovePages),
        ] {
            let next = Handover::adapted(Some(left(before)), now, &machine(), MoverConfig::default());
            let queued = usize::from(before == now);
            assert_eq!((next.kind, next.mover.queued_groups(), next.cooldowns.len()), (now, queued, 1), "{before:?}");
        }
    }
}
