// SPDX-License-Identifier: GPL-2.0-only
//! Groups that the kernel did not move, so that no plan counts on them for a while.
//!
//! Problem: nothing tells beforehand that pages are pinned for a device (RDMA, VFIO, io_uring), are a device's own, or are
//! still shared with a child after fork; a plan that moves them fails, and so does the next one. Mechanism: when more
//! than half of the pages that were tried and not there yet stayed for one of these reasons, or the kernel refused the call (the
//! process may not use that node, or may not be touched), the group is kept out of plans.

use tandem_policies::model::{GroupId, ProcessId, Unmovable};

use crate::{Cooldowns, Ended, Outcome, Purpose};

/// The groups, by reason.
#[derive(Debug)]
pub struct Stuck {
    pinned: Cooldowns,
    shared: Cooldowns,
    refused: Cooldowns,
    hold_ns: u64,
}

impl Stuck {
    /// No group; room for `capacity` of each reason, each kept out for `hold_ns`.
    pub fn new(capacity: usize, hold_ns: u64) -> Self {
        let [pinned, shared, refused] = [(); 3].map(|()| Cooldowns::new(capacity));
        Self { pinned, shared, refused, hold_ns }
    }

    /// Takes in what became of a move that ended at `now_ns`.
    pub fn note(&mut self, outcome: &Outcome, now_ns: u64) {
        let reason = match why(outcome) {
            Some(Unmovable::Shared) => &mut self.shared,
            Some(Unmovable::Bound) => &mut self.refused,
            Some(_) => &mut self.pinned,
            None => return,
        };
        reason.start_group(outcome.group, outcome.bytes, now_ns, self.hold_ns);
    }

    /// Forgets the groups of processes that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        [&mut self.pinned, &mut self.shared, &mut self.refused].into_iter().for_each(|kept| kept.forget(&is_gone));
    }

    /// Why the kernel would not move the group's `bytes`.
    pub fn why(&self, group: GroupId, bytes: u64, now_ns: u64) -> Option<Unmovable> {
        if self.pinned.is_group_cooling(group, bytes, now_ns) {
            return Some(Unmovable::Pinned);
        }
        if self.shared.is_group_cooling(group, bytes, now_ns) {
            return Some(Unmovable::Shared);
        }
        self.refused.is_group_cooling(group, bytes, now_ns).then_some(Unmovable::Bound)
    }
}

/// Why most of the pages stayed, if that is for what they are or where they may be.
fn why(outcome: &Outcome) -> Option<Unmovable> {
    // An undo of some pages says little of the group.
    if outcome.purpose != Purpose::Plan {
        return None;
    }
    match outcome.ended {
        Ended::Done => {}
        Ended::NotPermitted | Ended::NodeNotAllowed | Ended::NoSuchNode | Ended::NoThreadToLend | Ended::Failed(_) => {
            return Some(Unmovable::Bound);
        }
        // Of the moment, or gone.
        Ended::TargetFull
        | Ended::TargetFragmented
        | Ended::ProcessGone
        | Ended::NotUsed
        | Ended::Cooldown
        | Ended::Cancelled => return None,
    }
    let pinned = outcome.busy_pages + outcome.invalid_pages + outcome.other_pages.values().sum::<u64>();
    let half = (outcome.moved_pages + pinned + outcome.shared_pages) / 2;
    if outcome.shared_pages > half {
        return Some(Unmovable::Shared);
    }
    (pinned > half).then_some(Unmovable::Pinned)
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{NodeId, PAGE_BYTES};

    use super::*;
    use crate::Generation;

    const GROUP: GroupId = GroupId { process: ProcessId(9), start: 8 * PAGE_BYTES };
    const HOLD_NS: u64 = 60;

    fn outcome() -> Outcome {
        Outcome::new(GROUP, GROUP.start, 8, NodeId(1), Generation(1), Purpose::Plan)
    }

    fn found(outcome: &Outcome) -> Option<Unmovable> {
        let mut stuck = Stuck::new(4, HOLD_NS);
        stuck.note(outcome, 100);
        stuck.why(GROUP, 8 * PAGE_BYTES, 100 + HOLD_NS - 1)
    }

    #[test]
    fn most_of_what_was_tried_decides() {
        let moved = Outcome { moved_pages: 8, ..outcome() };
        let half = Outcome { moved_pages: 4, busy_pages: 4, ..outcome() };
        let elsewhere = Outcome { already_there_pages: 4, absent_pages: 4, ..outcome() };
        assert_eq!([moved, half, elsewhere].map(|outcome| found(&outcome)), [None; 3]);
        let busy = Outcome { already_there_pages: 6, busy_pages: 2, ..outcome() };
        let devices = Outcome { invalid_pages: 5, moved_pages: 3, ..outcome() };
        let odd = Outcome { other_pages: [(libc::EIO, 8)].into(), ..outcome() };
        assert_eq!([busy, devices, odd].map(|outcome| found(&outcome)), [Some(Unmovable::Pinned); 3]);
        let shared = Outcome { shared_pages: 5, busy_pages: 3, ..outcome() };
        assert_eq!(found(&shared), Some(Unmovable::Shared));
    }

    #[test]
    fn what_the_kernel_refuses_is_not_asked_for_again_and_what_is_of_the_moment_is() {
        let of_the_moment = [
            Ended::Cancelled,
            Ended::TargetFull,
            Ended::TargetFragmented,
            Ended::ProcessGone,
            Ended::NotUsed,
            Ended::Cooldown,
        ];
        for ended in of_the_moment {
            assert_eq!(found(&Outcome { ended, busy_pages: 8, ..outcome() }), None);
        }
        for ended in [
            Ended::NodeNotAllowed,
            Ended::NotPermitted,
            Ended::NoSuchNode,
            Ended::NoThreadToLend,
            Ended::Failed(libc::EFAULT),
        ] {
            assert_eq!(found(&Outcome { ended, ..outcome() }), Some(Unmovable::Bound));
        }
        let purpose = Purpose::Undo { from: NodeId(1) };
        assert_eq!(found(&Outcome { purpose, busy_pages: 8, ..outcome() }), None);
    }

    #[test]
    fn groups_of_a_process_that_is_gone_are_not_kept_out() {
        for outcome in [
            Outcome { shared_pages: 8, ..outcome() },
            Outcome { busy_pages: 8, ..outcome() },
            Outcome { ended: Ended::NotPermitted, ..outcome() },
        ] {
            let mut stuck = Stuck::new(4, HOLD_NS);
            stuck.note(&outcome, 100);
            stuck.forget(|process| process != GROUP.process);
            assert!(stuck.why(GROUP, PAGE_BYTES, 101).is_some(), "another one is gone");
            stuck.forget(|process| process == GROUP.process);
            assert_eq!(stuck.why(GROUP, PAGE_BYTES, 101), None);
        }
    }

    #[test]
    fn a_group_may_be_tried_again_after_its_time() {
        let mut stuck = Stuck::new(4, HOLD_NS);
        stuck.note(&Outcome { shared_pages: 8, ..outcome() }, 100);
        let why = |start, now_ns| stuck.why(GroupId { start, ..GROUP }, PAGE_BYTES, now_ns);
        assert_eq!(why(GROUP.start + 7 * PAGE_BYTES, 159), Some(Unmovable::Shared));
        assert_eq!(why(GROUP.start + 8 * PAGE_BYTES, 159), None, "its neighbour");
        assert_eq!(why(GROUP.start, 160), None);
    }
}
