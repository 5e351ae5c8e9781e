// SPDX-License-Identifier: GPL-2.0-only
//! Two processes of which a plan brought a thread each from node 1 to node 0, and a page group each from node 0 to node 1.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tandem_act::{Call, Ended, MovePages, Mover, MoverConfig, PageMove};
use tandem_machine::ProgramId;
use tandem_policies::model::{NodeId, PAGE_BYTES, PerNode};
use tandem_policies::stall::localities;

use super::*;
use crate::parts::Parts;
use crate::testing::{SECOND_NS, id, plan_result, two_processes};
use crate::verify::KNOWN_NS;

const PLAN: Generation = Generation(5);
const EARLY_NS: u64 = KNOWN_NS - 1;

fn processes(numbers: &[u32]) -> BTreeSet<ProcessId> {
    numbers.iter().copied().map(ProcessId).collect()
}

/// Where pages are that were moved; all others are on node 0.
#[derive(Default)]
struct Pages(Mutex<BTreeMap<(ProcessId, u64), NodeId>>);

impl MovePages for Pages {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        let mut homes = self.0.lock().unwrap();
        for (address, status) in addresses.iter().zip(status) {
            if let Some(node) = to {
                homes.insert((process, *address), node);
            }
            *status = homes.get(&(process, *address)).map_or(0, |node| node.0 as i32);
        }
        Call { result: Ok(0), time_ns: 1000 }
    }
}

fn turned(processes: &[u32]) -> Turned {
    Turned { processes: self::processes(processes), is_new_phase: false }
}

fn group(process: u32) -> GroupId {
    GroupId { process: ProcessId(process), start: 0 }
}

/// Threads 1 and 3 at work on node 0, with the memory of these processes on node 1: 100 ns near, 200 ns far.
fn snapshot(far: &[u32]) -> Snapshot {
    let mut snapshot = two_processes([0, 0, 0, 1]);
    for (at, process) in [(0, 1), (2, 2)] {
        let accesses_per_s = if far.contains(&process) { [0.0, 1e6] } else { [1e6, 0.0] };
        snapshot.threads[at].accesses_per_s = Some(accesses_per_s.to_vec().into());
        snapshot.threads[at].run_ns = vec![SECOND_NS, 0].into();
    }
    [1, 3].into_iter().for_each(|at| snapshot.threads[at].cpu_time_ns = 0);
    snapshot
}

/// What the plan is carried out with, and watched.
struct Stage {
    trials: Trials,
    mover: Mover<Pages>,
    assignments: Assignments,
    cooldowns: Cooldowns,
    generation: Generation,
    notes: Notes,
    report: Report,
    ended: Vec<Outcome>,
}

impl Stage {
    /// The plan has begun, at 0: threads 1 and 3 are assigned to node 0, 2 and 4 are held where they are, pages are queued.
    fn begun() -> Self {
        let budget = MoverConfig { pages_per_s: 1 << 40, call_ns_per_s: 1 << 40, ..MoverConfig::default() };
        let mut stage = Self {
            trials: Trials::default(),
            mover: Mover::new(Pages::default(), budget),
            assignments: Assignments::new(SECOND_NS),
            cooldowns: Cooldowns::new(16),
            generation: PLAN,
            notes: Notes::new(None),
            report: Report::default(),
            ended: vec![],
        };
        for (tid, node) in [(1, 0), (2, 0), (3, 0), (4, 1)] {
            stage.assignments.set(id(tid), NodeIndex(node), PLAN);
        }
        [1, 2].into_iter().for_each(|process| stage.queue(process));
        stage.report.plans.push(plan_result(PLAN.0, PlanVerdict::Trial));
        let before = localities(&snapshot(&[]));
        let groups = [1, 2].map(|process| (group(process), PerNode::from(vec![1, 0])));
        let changed = Changed { threads: [1, 3].map(|tid| (id(tid), NodeIndex(1))).into(), groups: groups.into() };
        let held = vec![id(2), id(4)];
        let parts = Parts::of(&snapshot(&[]), (&changed, &held), &before, &before);
        stage.trials.begin(Trial::new(PLAN, 0, Some(100.0), changed, false).holding(held).in_parts(parts));
        stage
    }

    /// The same once its pages have moved.
    fn moved() -> Self {
        let mut stage = Self::begun();
        assert_eq!(stage.move_pages(), [(1, 1), (2, 1)]);
        stage
    }

    fn queue(&mut self, process: u32) {
        let (group, bytes, huge, to) = (group(process), PAGE_BYTES, false, NodeId(1));
        let wanted = PageMove { group, bytes, huge, to, generation: PLAN, cooldown_ns: SECOND_NS };
        self.mover.enqueue(wanted, 0, &self.cooldowns).unwrap();
    }

    /// Moves what is queued; returns the processes whose pages moved, and where to.
    fn move_pages(&mut self) -> Vec<(u32, u32)> {
        let mut moved = vec![];
        while self.mover.queued_groups() > 0 {
            let ended = self.mover.run(0, &mut self.cooldowns).into_iter().filter(|outcome| outcome.moved_pages == 1);
            moved.extend(ended.map(|outcome| (outcome.group.process.0, outcome.to.0)));
        }
        moved.sort_unstable();
        moved
    }

    fn with<T>(&mut self, now_ns: u64, act: impl FnOnce(&mut Trials, &mut Actuators, &mut Report) -> T) -> T {
        let topology = snapshot(&[]).topology;
        let mut by = Actuators {
            now_ns,
            topology: &topology,
            mover: &mut self.mover,
            assignments: &mut self.assignments,
            cooldowns: &mut self.cooldowns,
            generation: &mut self.generation,
            notes: &mut self.notes,
            hold_ns: SECOND_NS,
            ended: vec![],
        };
        let done = act(&mut self.trials, &mut by, &mut self.report);
        self.ended.append(&mut by.ended);
        done
    }

    /// One interval later, with the memory of these processes far from their threads.
    fn verify(&mut self, now_ns: u64, far: &[u32]) -> bool {
        self.verify_turned(now_ns, far, &Turned::default())
    }

    /// The same where somebody turned to other memory.
    fn verify_turned(&mut self, now_ns: u64, far: &[u32], turned: &Turned) -> bool {
        self.with(now_ns, |trials, by, report| trials.verify(&snapshot(far), turned, by, report))
    }

    /// Kept after two intervals in which all went well.
    fn keep(&mut self) {
        assert!(!self.verify(EARLY_NS, &[]) && !self.verify(EARLY_NS, &[]));
        assert_eq!((self.verdict(), self.trials.is_any_on_trial()), (PlanVerdict::Kept, false));
    }

    fn verdict(&self) -> PlanVerdict {
        self.report.plans.iter().last().unwrap().verdict
    }

    /// Where threads 1 to 4 are assigned to.
    fn nodes(&self) -> [Option<usize>; 4] {
        [1, 2, 3, 4].map(|tid| self.assignments.node_of(id(tid)).map(|node| node.0))
    }
}

#[test]
fn what_made_things_worse_goes_back_threads_and_pages_and_holds_nobody() {
    let mut stage = Stage::moved();
    assert!(!stage.verify(1, &[1, 2]) && stage.verify(2, &[1, 2]));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Undone, false));
    assert_eq!(stage.nodes(), [Some(1), None, Some(1), None]);
    let moves: Vec<_> = stage.report.thread_moves.iter().map(|moved| (moved.thread, moved.from, moved.to)).collect();
    assert_eq!(moves, [(id(1), 0, 1), (id(3), 0, 1)]);
    assert!(stage.cooldowns.is_thread_cooling(id(1), 2) && !stage.cooldowns.is_thread_cooling(id(2), 2));
    assert_eq!(stage.move_pages(), [(1, 0), (2, 0)]);
}

#[test]
fn what_is_kept_early_is_judged_again_once_enough_is_known() {
    let mut stage = Stage::moved();
    stage.keep();
    assert!(!stage.verify(EARLY_NS, &[1, 2]), "mostly what was seen before it");
    assert!(stage.verify(KNOWN_NS, &[1, 2]));
    assert_eq!((stage.verdict(), stage.report.undone_plans), (PlanVerdict::Undone, 1));
    assert_eq!((stage.nodes(), stage.move_pages()), ([Some(1), None, Some(1), None], vec![(1, 0), (2, 0)]));
    assert!(!stage.verify(KNOWN_NS, &[1, 2]), "once");
}

#[test]
fn what_is_kept_late_is_not_judged_again_and_cannot_be_undone_any_more() {
    let mut stage = Stage::moved();
    assert!(!stage.verify(KNOWN_NS, &[]) && !stage.verify(KNOWN_NS, &[]));
    assert!(!stage.verify(2 * KNOWN_NS, &[1, 2]));
    assert_eq!((stage.verdict(), stage.mover.undo_log().len()), (PlanVerdict::Kept, 0));
}

#[test]
fn a_plan_that_was_kept_is_not_looked_at_again_once_another_one_has_begun() {
    let mut stage = Stage::moved();
    stage.keep();
    stage.trials.begin(Trial::new(Generation(6), 0, Some(100.0), Changed::default(), false));
    assert!(!stage.verify(KNOWN_NS, &[]) && !stage.verify(KNOWN_NS, &[]), "the other one is kept for good");
    assert!(!stage.verify(KNOWN_NS, &[1, 2]));
    assert_eq!(stage.nodes(), [Some(0), Some(0), Some(0), Some(1)]);
}

#[test]
fn a_part_goes_back_alone_and_the_rest_is_judged_once_it_is_there() {
    let mut stage = Stage::moved();
    assert!(!stage.verify(1, &[2]) && stage.verify(2, &[2]));
    assert_eq!(stage.nodes(), [Some(0), Some(0), Some(1), None]);
    let result = stage.report.plans.iter().last().unwrap();
    assert_eq!((result.verdict, &result.undone_of[..]), (PlanVerdict::Trial, &[2][..]));
    for now_ns in 3..9 {
        assert!(!stage.verify(now_ns, &[1]), "pages are on their way back");
    }
    assert_eq!(stage.move_pages(), [(2, 0)]);
    assert!(!stage.verify(9, &[1]) && stage.verify(10, &[1]));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Undone, false));
    assert_eq!((stage.nodes(), stage.move_pages()), ([Some(1), None, Some(1), None], vec![(1, 0)]));
    assert_eq!(stage.report.undone_plans, 1, "one plan");
}

#[test]
fn a_part_of_a_plan_that_was_kept_goes_back_and_the_rest_is_on_trial_again() {
    let mut stage = Stage::moved();
    stage.keep();
    assert!(stage.verify(KNOWN_NS, &[2]));
    assert_eq!((stage.nodes(), stage.trials.is_any_on_trial()), ([Some(0), Some(0), Some(1), None], true));
}

/// A process turned to other memory: the whole is not judged any more, and the other one's part is all that is left.
#[test]
fn a_plan_the_last_part_of_which_goes_back_is_over() {
    let mut stage = Stage::moved();
    assert!(!stage.verify_turned(1, &[1], &turned(&[2])) && stage.verify(2, &[1]));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Undone, false));
    assert_eq!((stage.nodes(), stage.mover.undo_log().len()), ([Some(1), None, Some(0), Some(1)], 0));
    let mut stage = Stage::moved();
    stage.keep();
    assert!(stage.verify_turned(KNOWN_NS, &[1], &turned(&[2])));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Undone, false));
}

#[test]
fn a_kept_plan_of_which_a_part_had_gone_back_is_not_watched_on_once_all_of_it_has() {
    let mut stage = Stage::moved();
    assert!(!stage.verify(1, &[2]) && stage.verify(2, &[2]));
    stage.move_pages();
    stage.keep();
    assert!(stage.verify(KNOWN_NS, &[1]));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Undone, false));
}

#[test]
fn moves_of_a_process_that_turned_stop_and_those_of_others_go_on() {
    let mut stage = Stage::begun();
    assert!(!stage.verify_turned(1, &[], &turned(&[1])));
    let ended: Vec<_> = stage.ended.iter().map(|outcome| (outcome.group, outcome.ended)).collect();
    assert_eq!(ended, [(group(1), Ended::Cancelled)]);
    assert_eq!(stage.mover.queued_of(PLAN), [(group(2), NodeId(1))]);
    assert!(stage.trials.is_any_on_trial());
}

#[test]
fn a_plan_that_is_superseded_moves_no_more_and_what_it_moved_stays() {
    let mut stage = Stage::moved();
    stage.queue(3);
    assert!(!stage.verify(LONGEST_NS, &[]) && !stage.verify(LONGEST_NS, &[]));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Superseded, false));
    assert_eq!((stage.ended.len(), stage.mover.queued_groups(), stage.mover.undo_log().len()), (1, 0, 0));
    assert_eq!(stage.nodes(), [Some(0), Some(0), Some(0), Some(1)]);
}

#[test]
fn of_a_process_that_is_gone_no_thread_is_held_any_more_and_the_last_one_takes_the_plan_along() {
    let mut stage = Stage::begun();
    stage.with(1, |trials, by, report| trials.leave_gone(&processes(&[1]), by, report));
    assert_eq!((stage.nodes(), stage.trials.is_any_on_trial()), ([Some(0), None, Some(0), Some(1)], true));
    stage.with(2, |trials, by, report| trials.leave_gone(&processes(&[2]), by, report));
    assert_eq!((stage.nodes(), stage.trials.is_any_on_trial()), ([Some(0), None, Some(0), None], false));
    let result = stage.report.plans.iter().last().unwrap();
    assert_eq!(result.superseded_by, Some(Superseding::ProcessesGone));
    assert_eq!((stage.ended.len(), stage.mover.queued_groups()), (2, 0));
}

#[test]
fn of_a_plan_that_was_kept_a_process_that_is_gone_leaves_the_others_to_be_judged_again() {
    let mut stage = Stage::moved();
    stage.keep();
    stage.with(EARLY_NS, |trials, by, report| trials.leave_gone(&processes(&[1]), by, report));
    assert!(stage.verify(KNOWN_NS, &[2]));
    assert_eq!(stage.nodes()[2], Some(1));
    let mut stage = Stage::moved();
    stage.keep();
    stage.with(EARLY_NS, |trials, by, report| trials.leave_gone(&processes(&[1, 2]), by, report));
    assert!(!stage.verify(KNOWN_NS, &[1, 2]), "nothing of it is left");
}

#[test]
fn a_plan_that_is_given_up_is_not_judged_nor_is_the_one_before_it() {
    let mut stage = Stage::moved();
    stage.with(1, |trials, _, report| trials.give_up(Superseding::LeasesRanOut, report));
    assert_eq!((stage.verdict(), stage.trials.is_any_on_trial()), (PlanVerdict::Superseded, false));
    let mut stage = Stage::moved();
    stage.keep();
    stage.with(1, |trials, _, report| trials.give_up(Superseding::LeasesRanOut, report));
    assert!(!stage.verify(KNOWN_NS, &[1, 2]));
    assert_eq!(stage.verdict(), PlanVerdict::Kept);
}

#[test]
fn what_was_undone_goes_back_until_it_is_there_or_held_up_or_takes_too_long() {
    let going_back = |now_ns: u64, is_paused: bool, is_there: bool| {
        let mut stage = Stage::moved();
        assert!(!stage.verify(1, &[1, 2]) && stage.verify(2, &[1, 2]));
        if is_there {
            stage.move_pages();
        }
        stage.mover.set_paused(is_paused);
        stage.trials.is_going_back(&stage.mover, now_ns)
    };
    assert!(going_back(2, false, false) && going_back(1 + LONGEST_NS, false, false));
    assert!(!going_back(2 + LONGEST_NS, false, false));
    assert!(!going_back(2, true, false) && !going_back(2, false, true));
}
