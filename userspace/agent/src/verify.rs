// SPDX-License-Identifier: GPL-2.0-only
//! Whether a plan paid: the mean latency of an access, before the plan and after it was carried out.
//!
//! A plan is kept no sooner than in the second interval after its last page has moved. Until then each interval but the first tells
//! whether it can still pay: with what is left on its way already where it goes. One that cannot is undone at once, and in the
//! third one that made things worse, though its last page has only just moved. What takes long is given up, so that it is
//! planned anew with all that happened since, and so is what memory pressure holds up; the latter is undone if what it did made
//! things worse.
//!
//! What is known of accesses is mostly of before the plan until that has lost half its weight ([`KNOWN_NS`]). A plan that was kept
//! until then is judged once more, unless another one has been made since.
//!
//! A plan of a policy that weighs CPUs may expect a higher latency: threads leave a crowded node and their memory stays.
//! It has made things worse if the latency rose beyond what it expected, not by that. Whether it gained its CPUs is not judged.
//!
//! The latency is [`tandem_policies::stall::latency_ns`]. Where it rose, that may be the plan's doing, or the program does something
//! else by now. So what it would be without the plan, for what the program does now, must be lower too
//! ([`tandem_policies::stall::localities_without`]): else there is nothing to be had from undoing it. Both must be so beyond what
//! chance makes of samples ([`tandem_policies::stall::latency_errors_ns`]).
//!
//! So is what the plan changed of each process ([`crate::parts`]), which goes back alone where the others are better off; the rest is
//! judged once that is back, anew: its three intervals begin then. Once a process of which it changed something turned to other memory, or a quarter of all threads did,
//! the plan is judged by its other parts only.

use std::collections::BTreeSet;

use tandem_act::Generation;
use tandem_policies::model::{GroupId, NodeIndex, ProcessId, Snapshot, ThreadId};
use tandem_policies::stall::{
    Changed, Locality, accesses_per_s, latency_errors_ns, localities, localities_once_moved, localities_without,
};
use tandem_sense::AffinityConfig;
use tandem_view::Superseding;

use crate::moves::Moves;
use crate::parts::{Parts, Turned};

/// Rise of the latency that is still taken for noise, however many samples there are; and standard errors that are.
const NOISE: f64 = 0.02;
const ERRORS: f64 = 2.0;
/// Intervals between the end of the last move, or the plan, and a verdict: the first holds moves itself.
const SETTLE_INTERVALS: u32 = 2;
/// The interval in which a plan that made things worse goes though its last page has only just moved.
const LAST_INTERVAL: u32 = 3;

/// Time after which at least half of what is known of accesses is of after a plan.
pub const KNOWN_NS: u64 = AffinityConfig::DEFAULT_HALF_LIFE_NS;

/// A plan that was carried out and is watched.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The plan.
    pub generation: Generation,
    /// When it was decided, on CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// Latency when it was decided.
    pub before_ns: Option<f64>,
    /// The higher one that it expects for a gain elsewhere, if it does.
    accepted_ns: Option<f64>,
    /// What it changed.
    pub changed: Changed,
    /// The threads that it keeps where they were, which nothing kept there before.
    pub held: Vec<ThreadId>,
    /// Whether it stays whatever it brings: its policy tries things out ([`tandem_policies::registry::Policy::explores`]).
    explores: bool,
    /// What it changed of each process.
    parts: Parts,
    /// Whether all of it together is judged.
    is_whole: bool,
    /// Whether something of it went back alone.
    is_parted: bool,
    intervals: u32,
    settled_intervals: u32,
}

/// What accesses are like some time after a plan.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Now.
    pub after: Option<Locality>,
    /// Accesses per second.
    pub accesses_per_s: f64,
    /// Latency once what is still on its way is where it goes.
    pub once_moved_ns: Option<f64>,
    /// Latency without the plan.
    pub without_ns: Option<f64>,
    /// Standard error of both.
    pub error_ns: f64,
    /// Processes that it slowed down, and of which what it changed may go back alone.
    pub worse: BTreeSet<ProcessId>,
}

impl Seen {
    /// What a snapshot tells of a plan with these parts that changed something, with groups still on their way.
    pub fn of(snapshot: &Snapshot, changed: &Changed, parts: &Parts, on_their_way: &[(GroupId, NodeIndex)]) -> Self {
        let now = localities(snapshot);
        let once_moved =
            if on_their_way.is_empty() { now.clone() } else { localities_once_moved(snapshot, on_their_way) };
        let without = localities_without(snapshot, changed);
        let errors_ns = latency_errors_ns(snapshot);
        Self {
            after: now.all,
            accesses_per_s: accesses_per_s(snapshot),
            once_moved_ns: once_moved.all.map(|then| then.latency_ns),
            without_ns: without.all.map(|without| without.latency_ns),
            error_ns: errors_ns.all.unwrap_or(0.0),
            worse: parts.worse(snapshot, changed, [&once_moved, &without], &errors_ns),
        }
    }
}

/// What is to be done about a watched plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Too early to say.
    Wait,
    /// It stays.
    Keep {
        /// Latency now.
        after_ns: Option<f64>,
    },
    /// It goes.
    Undo {
        /// Latency now, or once all had moved.
        after_ns: f64,
    },
    /// What it changed of these processes goes; the rest goes on as it is.
    UndoParts(BTreeSet<ProcessId>),
    /// Nothing is said of it: before and after are of different phases, or it was not carried out. What is still on its way need
    /// not go there any more.
    Superseded(Superseding),
}

impl Trial {
    /// Watches a plan from now on; one of a policy that explores stays whatever it brings.
    pub fn new(
        generation: Generation,
        since_ns: u64,
        before_ns: Option<f64>,
        changed: Changed,
        explores: bool,
    ) -> Self {
        let (accepted_ns, held, [intervals, settled_intervals]) = (None, Vec::new(), [0; 2]);
        let (parts, [is_whole, is_parted]) = (Parts::default(), [true, false]);
        Self {
            generation,
            since_ns,
            before_ns,
            accepted_ns,
            changed,
            held,
            explores,
            parts,
            is_whole,
            is_parted,
            intervals,
            settled_intervals,
        }
    }

    /// The same with what it changed of each process.
    pub fn in_parts(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// What a snapshot tells of it, with groups still on their way.
    pub fn seen(&self, snapshot: &Snapshot, on_their_way: &[(GroupId, NodeIndex)]) -> Seen {
        Seen::of(snapshot, &self.changed, &self.parts, on_their_way)
    }

    /// Takes what it changed of these processes out of it, with the threads of theirs that it holds, or all that it holds if it changed
    /// nothing else. The rest is judged from the second interval after that on.
    pub fn take_parts(&mut self, processes: &BTreeSet<ProcessId>) -> (Changed, Vec<ThreadId>) {
        let [(theirs, mut their_held), (changed, held)] = self.parts.split(&self.changed, &self.held, processes);
        (self.changed, self.held) = (changed, held);
        self.parts.leave(processes);
        self.is_parted = true;
        (self.intervals, self.settled_intervals) = (0, 0);
        if self.changed.is_empty() {
            their_held.append(&mut self.held);
        }
        (theirs, their_held)
    }

    /// Whether something of it went back alone.
    pub fn is_parted(&self) -> bool {
        self.is_parted
    }

    /// Whether nothing of it is left to be judged.
    pub fn is_done(&self) -> bool {
        (self.is_parted && self.changed.is_empty()) || (!self.is_whole && self.parts.is_empty())
    }

    /// These processes are gone. Returns the threads that it holds no more: theirs, or all if it changed nothing else.
    pub fn forget(&mut self, gone: &BTreeSet<ProcessId>) -> Vec<ThreadId> {
        let [(theirs, mut their_held), (changed, held)] = self.parts.split(&self.changed, &self.held, gone);
        (self.changed, self.held) = (changed, held);
        if self.changed.is_empty() {
            their_held.append(&mut self.held);
        }
        // Where nothing was known of anybody there are no parts to judge it by.
        self.is_whole &= theirs.is_empty() || (self.parts.is_empty() && !self.changed.is_empty());
        self.parts.leave(gone);
        their_held
    }

    /// These turned to other memory: what became of their parts cannot be told, nor of the whole. Returns whose parts they were.
    pub fn leave(&mut self, turned: &Turned) -> BTreeSet<ProcessId> {
        let left = self.parts.leave(&turned.processes);
        self.is_whole &= left.is_empty() && !turned.is_new_phase;
        left
    }

    /// The same for a plan that keeps these threads where they were, which nothing kept there before.
    pub fn holding(self, held: Vec<ThreadId>) -> Self {
        Self { held, ..self }
    }

    /// The same for a plan that expects this latency, and to save so much in all, CPUs included (`None` if that is not told): if
    /// this is positive though the latency is higher than before, it counts on CPUs.
    pub fn expecting(self, expected_ns: Option<f64>, gain_ns_per_s: Option<f64>) -> Self {
        Self { accepted_ns: expected_ns.filter(|_| gain_ns_per_s.is_some_and(|gain| gain > 0.0)), ..self }
    }

    /// One interval later: how far its `moves` are. Without a signal before or after, nothing speaks against the plan. What is still on
    /// its way after a final verdict is the caller's to stop.
    pub fn judge(&mut self, moves: Moves, seen: &Seen) -> Verdict {
        if self.is_done() {
            return Verdict::Superseded(Superseding::Turned);
        }
        let go_on = moves.go_on();
        self.intervals += 1;
        self.settled_intervals += u32::from(!go_on);
        if self.intervals < SETTLE_INTERVALS {
            return Verdict::Wait;
        }
        let is_settled = self.settled_intervals >= SETTLE_INTERVALS;
        let now_ns = seen.after.map(|after| after.latency_ns);
        let after_ns = if go_on { seen.once_moved_ns } else { now_ns };
        match self.undoing(after_ns, seen) {
            Some(undo) if is_settled || go_on || self.intervals == LAST_INTERVAL => undo,
            // Neither was carried out, so they say nothing of what plans bring.
            _ if moves == Moves::Overdue => Verdict::Superseded(Superseding::TookLong),
            _ if is_settled && moves == Moves::HeldUp => Verdict::Superseded(Superseding::MemoryPressure),
            _ if is_settled => Verdict::Keep { after_ns: now_ns },
            _ => Verdict::Wait,
        }
    }

    /// The verdict on a plan that was kept, from what is known of accesses by now: mostly what was seen under it.
    pub fn judge_again(&self, seen: &Seen) -> Verdict {
        let after_ns = seen.after.map(|after| after.latency_ns);
        self.undoing(after_ns, seen).unwrap_or(Verdict::Keep { after_ns })
    }

    /// What has to go, if anything has: where the whole made things worse, and parts can be told to have done so that may go back
    /// alone, these.
    fn undoing(&self, after_ns: Option<f64>, seen: &Seen) -> Option<Verdict> {
        let whole = after_ns.filter(|&after_ns| self.is_whole && self.made_worse(after_ns, seen));
        let worse = if self.explores { &BTreeSet::new() } else { &seen.worse };
        match whole {
            Some(after_ns) if worse.is_empty() || self.parts.are(worse) => Some(Verdict::Undo { after_ns }),
            _ if worse.is_empty() => None,
            _ => Some(Verdict::UndoParts(worse.clone())),
        }
    }

    /// Whether what is known of accesses at `now_ns` is mostly of after the plan.
    pub fn is_known(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= KNOWN_NS
    }

    /// Whether this latency is more than before the plan and than without it.
    fn made_worse(&self, after_ns: f64, seen: &Seen) -> bool {
        let rose_from = |lower_ns: f64| rose(after_ns, lower_ns, ERRORS * seen.error_ns);
        let before_ns = self.before_ns.map(|before_ns| self.accepted_ns.map_or(before_ns, |ns| ns.max(before_ns)));
        !self.explores && before_ns.is_some_and(rose_from) && seen.without_ns.is_some_and(rose_from)
    }
}

/// Whether a latency is more than another one, beyond noise and so much that chance explains.
pub fn rose(after_ns: f64, lower_ns: f64, chance_ns: f64) -> bool {
    after_ns > lower_ns + (NOISE * lower_ns).max(chance_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan, and the latency before it.
    fn watched(before_ns: Option<f64>) -> Trial {
        Trial::new(Generation(1), 0, before_ns, Changed::default(), false)
    }

    /// The verdict on a plan without which all would be as before.
    fn judged(before_ns: Option<f64>, after_ns: Option<f64>) -> Verdict {
        judge(watched(before_ns), after_ns, before_ns)
    }

    /// Threads of these processes turned to other memory, and those of nobody else are at work.
    fn turned(processes: &[u32]) -> Turned {
        Turned { processes: processes.iter().copied().map(ProcessId).collect(), is_new_phase: true }
    }

    fn after(latency_ns: Option<f64>) -> Option<Locality> {
        latency_ns.map(|latency_ns| Locality { latency_ns, remote_share: 0.0 })
    }

    fn judge(mut trial: Trial, after_ns: Option<f64>, without_ns: Option<f64>) -> Verdict {
        let bad = seen(Some(1e9), Some(1.0));
        assert_eq!(trial.judge(Moves::UnderWay, &bad), Verdict::Wait, "the interval of the plan");
        assert_eq!(trial.judge(Moves::Over, &bad), Verdict::Wait, "the interval of the last moves");
        trial.judge(Moves::Over, &Seen { error_ns: 1.0, ..seen(after_ns, without_ns) })
    }

    /// Certain, and the same once all has moved.
    fn seen(after_ns: Option<f64>, without_ns: Option<f64>) -> Seen {
        Seen { after: after(after_ns), once_moved_ns: after_ns, without_ns, ..Seen::default() }
    }

    #[test]
    fn a_plan_that_paid_stays() {
        assert_eq!(judged(Some(200.0), Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), Some(101.0)), Verdict::Keep { after_ns: Some(101.0) }, "noise");
    }

    #[test]
    fn a_plan_that_made_it_worse_goes() {
        assert_eq!(judged(Some(100.0), Some(103.0)), Verdict::Undo { after_ns: 103.0 });
    }

    #[test]
    fn a_rise_that_chance_explains_is_none() {
        let trial = || watched(Some(10.0));
        assert_eq!(
            judge(trial(), Some(11.9), Some(10.0)),
            Verdict::Keep { after_ns: Some(11.9) },
            "19 %, and two errors"
        );
        assert_eq!(judge(trial(), Some(12.1), Some(10.0)), Verdict::Undo { after_ns: 12.1 });
    }

    #[test]
    fn a_plan_of_a_policy_that_explores_stays_whatever_it_brings() {
        let trial = Trial::new(Generation(1), 0, Some(100.0), Changed::default(), true);
        assert_eq!(judge(trial, Some(300.0), Some(100.0)), Verdict::Keep { after_ns: Some(300.0) });
    }

    /// From a run of `lubench`: a thread left a crowded node, and its memory stayed.
    #[test]
    fn a_plan_that_gains_cpus_goes_only_if_latency_rises_beyond_what_it_expected() {
        let judged = |gain_ns_per_s, after_ns| {
            let trial = watched(Some(100.0));
            judge(trial.expecting(Some(125.6), gain_ns_per_s), Some(after_ns), Some(100.0))
        };
        assert_eq!(judged(Some(1.9e8), 125.9), Verdict::Keep { after_ns: Some(125.9) });
        assert_eq!(judged(Some(1.9e8), 131.0), Verdict::Undo { after_ns: 131.0 });
        assert_eq!(judged(Some(-1.9e8), 125.9), Verdict::Undo { after_ns: 125.9 }, "it gains nothing else");
        assert_eq!(judged(None, 125.9), Verdict::Undo { after_ns: 125.9 }, "nobody knows");
        let nearer = watched(Some(100.0)).expecting(Some(80.0), Some(1.0));
        assert_eq!(
            judge(nearer, Some(101.0), Some(80.0)),
            Verdict::Keep { after_ns: Some(101.0) },
            "no better, and no worse"
        );
    }

    #[test]
    fn a_plan_stays_if_it_would_be_no_better_without_it() {
        let judged = |without_ns| {
            let trial = watched(Some(100.0));
            judge(trial, Some(130.0), Some(without_ns))
        };
        assert_eq!(judged(150.0), Verdict::Keep { after_ns: Some(130.0) }, "the program does something else now");
        assert_eq!(judged(130.0), Verdict::Keep { after_ns: Some(130.0) }, "nothing of it is left");
        assert_eq!(judged(120.0), Verdict::Undo { after_ns: 130.0 });
    }

    #[test]
    fn a_plan_that_was_kept_is_judged_again_by_what_was_seen_under_it() {
        let trial = Trial { since_ns: 7, ..watched(Some(100.0)) };
        assert!(!trial.is_known(7 + KNOWN_NS - 1) && trial.is_known(7 + KNOWN_NS));
        assert_eq!(trial.judge_again(&seen(Some(90.0), Some(100.0))), Verdict::Keep { after_ns: Some(90.0) });
        assert_eq!(trial.judge_again(&seen(Some(110.0), Some(100.0))), Verdict::Undo { after_ns: 110.0 });
        assert_eq!(trial.judge_again(&seen(Some(110.0), Some(110.0))), Verdict::Keep { after_ns: Some(110.0) });
    }

    #[test]
    fn a_plan_of_another_phase_is_superseded_wherever_its_pages_are() {
        let worse = seen(Some(300.0), Some(100.0));
        for moves in [Moves::UnderWay, Moves::Overdue, Moves::HeldUp, Moves::Over] {
            let mut trial = watched(Some(100.0));
            trial.leave(&turned(&[1]));
            assert_eq!(trial.judge(moves, &worse), Verdict::Superseded(Superseding::Turned));
        }
    }

    #[test]
    fn a_plan_that_cannot_pay_any_more_goes_while_its_pages_move() {
        let trial = || watched(Some(100.0));
        let half_way = |once_moved_ns| Seen { once_moved_ns: Some(once_moved_ns), ..seen(Some(150.0), Some(100.0)) };
        let (mut worse, mut better) = (trial(), trial());
        assert_eq!(worse.judge(Moves::UnderWay, &half_way(130.0)), Verdict::Wait);
        assert_eq!(worse.judge(Moves::UnderWay, &half_way(130.0)), Verdict::Undo { after_ns: 130.0 });
        for _ in 0..10 {
            let verdict = better.judge(Moves::UnderWay, &half_way(80.0));
            assert_eq!(verdict, Verdict::Wait, "threads went ahead of their pages");
        }
    }

    #[test]
    fn what_made_it_worse_goes_in_the_third_interval_though_the_last_page_has_only_just_moved() {
        let judged = |after_ns| {
            let mut trial = watched(Some(100.0));
            let after = seen(Some(after_ns), Some(100.0));
            for _ in 0..2 {
                assert_eq!(trial.judge(Moves::UnderWay, &seen(Some(90.0), Some(100.0))), Verdict::Wait);
            }
            [trial.judge(Moves::Over, &after), trial.judge(Moves::Over, &after)]
        };
        assert_eq!(judged(130.0)[0], Verdict::Undo { after_ns: 130.0 });
        assert_eq!(judged(90.0), [Verdict::Wait, Verdict::Keep { after_ns: Some(90.0) }], "to stay takes one more");
    }

    #[test]
    fn what_takes_long_is_planned_anew_unless_it_cannot_pay() {
        let half_way = |once_moved_ns| Seen { once_moved_ns: Some(once_moved_ns), ..seen(Some(150.0), Some(100.0)) };
        let judged = |once_moved_ns| {
            let mut trial = watched(Some(100.0));
            assert_eq!(trial.judge(Moves::UnderWay, &half_way(once_moved_ns)), Verdict::Wait);
            trial.judge(Moves::Overdue, &half_way(once_moved_ns))
        };
        assert_eq!(judged(80.0), Verdict::Superseded(Superseding::TookLong));
        assert_eq!(judged(130.0), Verdict::Undo { after_ns: 130.0 });
    }

    #[test]
    fn what_pressure_holds_up_does_not_hold_up_the_verdict() {
        let judged = |after_ns| {
            let mut trial = watched(Some(100.0));
            assert_eq!(trial.judge(Moves::HeldUp, &seen(Some(after_ns), Some(100.0))), Verdict::Wait);
            trial.judge(Moves::HeldUp, &seen(Some(after_ns), Some(100.0)))
        };
        assert_eq!(
            judged(90.0),
            Verdict::Superseded(Superseding::MemoryPressure),
            "nor does it count as one that brought what it did"
        );
        assert_eq!(judged(120.0), Verdict::Undo { after_ns: 120.0 });
    }

    /// A plan that moved memory of processes 1 and 2, the latency of which was 100 ns each.
    fn in_two_parts() -> Trial {
        let latencies = [(ProcessId(1), 100.0), (ProcessId(2), 100.0)];
        let group = |process| (GroupId { process: ProcessId(process), start: 0 }, vec![1, 0].into());
        let changed = Changed { threads: vec![], groups: [group(1), group(2)].into() };
        Trial::new(Generation(1), 0, Some(100.0), changed, false).in_parts(Parts::accepting(latencies.into()))
    }

    /// What is seen of it once it is settled, with this latency of all, if these processes are worse off.
    fn judged_in_parts(trial: &mut Trial, all_ns: f64, worse: &[u32]) -> Verdict {
        let worse = worse.iter().copied().map(ProcessId).collect();
        let seen = Seen { worse, ..seen(Some(all_ns), Some(100.0)) };
        assert_eq!(trial.judge(Moves::Over, &seen), Verdict::Wait);
        trial.judge(Moves::Over, &seen)
    }

    #[test]
    fn what_slowed_one_process_down_goes_alone_whether_all_is_better_or_worse() {
        for all_ns in [90.0, 110.0] {
            let verdict = judged_in_parts(&mut in_two_parts(), all_ns, &[2]);
            assert_eq!(verdict, Verdict::UndoParts([ProcessId(2)].into()));
        }
        assert_eq!(judged_in_parts(&mut in_two_parts(), 110.0, &[1, 2]), Verdict::Undo { after_ns: 110.0 });
        assert_eq!(judged_in_parts(&mut in_two_parts(), 110.0, &[]), Verdict::Undo { after_ns: 110.0 });
        let explores = Trial { explores: true, ..in_two_parts() };
        assert_eq!(judged_in_parts(&mut { explores }, 90.0, &[2]), Verdict::Keep { after_ns: Some(90.0) });
    }

    #[test]
    fn the_rest_of_a_plan_is_judged_from_the_second_interval_after_a_part_of_it_went_back() {
        let mut trial = in_two_parts();
        judged_in_parts(&mut trial, 110.0, &[2]);
        let (theirs, _) = trial.take_parts(&[ProcessId(2)].into());
        assert_eq!((theirs.groups.len(), trial.changed.groups.len(), trial.is_done()), (1, 1, false));
        assert_eq!(judged_in_parts(&mut trial, 110.0, &[]), Verdict::Undo { after_ns: 110.0 });
    }

    #[test]
    fn a_plan_of_which_everything_went_back_holds_nobody() {
        let held = ThreadId { tid: 1, start_boottime_ns: 1 };
        let mut trial = in_two_parts().holding(vec![held]);
        assert_eq!(trial.take_parts(&[ProcessId(2)].into()).1, []);
        assert_eq!((trial.take_parts(&[ProcessId(1)].into()).1, trial.is_done()), (vec![held], true));
    }

    #[test]
    fn a_process_that_turned_leaves_and_the_others_are_judged() {
        let mut trial = in_two_parts();
        let bystander = Turned { processes: [ProcessId(3)].into(), is_new_phase: false };
        assert_eq!((trial.leave(&bystander), trial.is_whole), ([].into(), true), "it changed nothing of that one");
        let one = Turned { processes: [ProcessId(1)].into(), is_new_phase: false };
        assert_eq!(trial.leave(&one), [ProcessId(1)].into());
        assert_eq!(judged_in_parts(&mut trial, 200.0, &[2]), Verdict::UndoParts([ProcessId(2)].into()));
        trial.leave(&turned(&[2]));
        let seen = seen(Some(90.0), Some(100.0));
        assert_eq!(trial.judge(Moves::Over, &seen), Verdict::Superseded(Superseding::Turned));
    }

    #[test]
    fn a_process_that_is_gone_leaves_and_the_others_are_judged() {
        let mut trial = in_two_parts();
        trial.forget(&[ProcessId(1), ProcessId(3)].into());
        assert_eq!((trial.changed.groups.len(), trial.is_done()), (1, false));
        assert_eq!(judged_in_parts(&mut trial, 200.0, &[]), Verdict::Keep { after_ns: Some(200.0) });
        trial.forget(&[ProcessId(2)].into());
        assert!(trial.is_done());
    }

    #[test]
    fn without_a_signal_nothing_is_undone() {
        assert_eq!(judged(None, Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), None), Verdict::Keep { after_ns: None });
    }
}
