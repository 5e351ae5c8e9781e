// SPDX-License-Identifier: GPL-2.0-only
//! Moving what is queued, as far as the machine's memory allows.

use tandem_act::MemoryNotice;
use tandem_sense::monotonic_ns;
use tandem_view::Superseding;
use tracing::{info, warn};

use super::Agent;
use crate::report::Report;

impl Agent {
    /// Looks at the machine's memory and moves pages.
    pub(super) fn move_pages(&mut self, report: &mut Report) {
        let notices = self.memory.look(self.mover.as_mut(), monotonic_ns());
        tell(notices, report);
        let outcomes = self.mover.run(monotonic_ns(), &mut self.cooldowns);
        self.note_outcomes(outcomes, report);
    }

    /// Whether no page would move now, for memory pressure: plans are for threads alone meanwhile.
    pub(super) fn is_pressed(&mut self, report: &mut Report) -> bool {
        let notices = self.memory.look_ahead(self.mover.as_mut(), monotonic_ns());
        tell(notices, report);
        self.mover.is_paused()
    }

    /// Gives up what is queued, and the plan that it belongs to: leases ran out, so threads are elsewhere than it counts on.
    pub(super) fn give_up_moves(&mut self, report: &mut Report) {
        // What is on its way back is better off there wherever its threads are.
        let cancelled = self.mover.stop_plans(monotonic_ns(), &mut self.cooldowns);
        let queued = cancelled.len();
        let is_any_on_trial = self.trials.is_any_on_trial();
        self.trials.give_up(Superseding::LeasesRanOut, report);
        if queued == 0 && !is_any_on_trial {
            return;
        }
        report.lost_leases += 1;
        warn!(
            event = "leases_ran_out",
            queued_groups = queued,
            "leases ran out because scx_tandem was stopped or got no CPU: {queued} page moves that were queued are given up"
        );
        self.note_outcomes(cancelled, report);
    }
}

/// Says what became of the machine's memory.
fn tell(notices: Vec<MemoryNotice>, report: &mut Report) {
    for notice in notices {
        match notice {
            MemoryNotice::PressureBegan { .. } => {
                report.mover.pressure_pauses += 1;
                warn!("{notice}");
            }
            MemoryNotice::PressureEnded => info!("{notice}"),
            MemoryNotice::PressureUnknown { .. }
            | MemoryNotice::RoomUnknown { .. }
            | MemoryNotice::BlocksUnknown { .. } => warn!("{notice}"),
        }
    }
}
