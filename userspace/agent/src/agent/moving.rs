// SPDX-License-Identifier: GPL-2.0-only
//! Moving what is queued, as far as the machine's memory allows.

use tandem_act::MemoryNotice;
use tandem_sense::monotonic_ns;
use tracing::{info, warn};

use super::Agent;
use crate::report::Report;

impl Agent {
    /// Looks at the machine's memory and moves pages.
    pub(super) fn move_pages(&mut self, report: &mut Report) {
        for notice in self.memory.look(&mut self.mover, monotonic_ns()) {
            match notice {
                MemoryNotice::PressureBegan { .. } => {
                    report.mover.pressure_pauses += 1;
                    warn!("{notice}");
                }
                MemoryNotice::PressureEnded => info!("{notice}"),
                MemoryNotice::PressureUnknown { .. } | MemoryNotice::RoomUnknown { .. } => warn!("{notice}"),
            }
        }
        let outcomes = self.mover.run(monotonic_ns(), &mut self.cooldowns);
        self.note_outcomes(outcomes, report);
    }
}
