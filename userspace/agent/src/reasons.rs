// SPDX-License-Identifier: GPL-2.0-only
//! Why pages move, from when their move is queued until it has ended.

use std::collections::BTreeMap;

use tandem_act::{Generation, Outcome, Purpose};
use tandem_policies::model::GroupId;

/// What is said of pages that go back, and of threads.
pub const UNDONE: &str = "undone: the plan did not pay";

/// Reasons of the moves under way, by plan and group. Processes may have groups at the same address.
#[derive(Debug, Default)]
pub struct Reasons(BTreeMap<(Generation, GroupId), String>);

impl Reasons {
    /// The group moves under this plan, for this reason.
    pub fn note(&mut self, generation: Generation, group: GroupId, reason: String) {
        self.0.insert((generation, group), reason);
    }

    /// The reason of a move that has ended; it is forgotten.
    pub fn take(&mut self, outcome: &Outcome) -> String {
        match outcome.purpose {
            Purpose::Plan => self.0.remove(&(outcome.generation, outcome.group)).unwrap_or_default(),
            Purpose::Undo { .. } => UNDONE.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{NodeId, ProcessId};

    use super::*;
    use crate::testing::outcome;

    fn group(process: u32) -> GroupId {
        GroupId { process: ProcessId(process), start: 4096 }
    }

    #[test]
    fn each_process_has_its_own_reason_for_the_same_address() {
        let mut reasons = Reasons::default();
        for process in [1, 2] {
            reasons.note(Generation(7), group(process), format!("of {process}"));
        }
        let mut taken = |process| reasons.take(&outcome(group(process), Generation(7), Purpose::Plan));
        assert_eq!([taken(1), taken(2), taken(1)], ["of 1", "of 2", ""].map(str::to_owned));
    }

    #[test]
    fn pages_that_go_back_say_so_and_leave_the_plans_reason() {
        let mut reasons = Reasons::default();
        reasons.note(Generation(7), group(1), "of the plan".to_owned());
        let undo = Purpose::Undo { from: NodeId(1) };
        assert_eq!(reasons.take(&outcome(group(1), Generation(7), undo)), UNDONE);
        assert_eq!(reasons.take(&outcome(group(1), Generation(7), Purpose::Plan)), "of the plan");
    }
}
