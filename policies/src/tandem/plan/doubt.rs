// SPDX-License-Identifier: GPL-2.0-only
//! Whether what a plan gains may be chance.
//!
//! Threads that take memory along are sure to find it there, and pages that follow threads are sure to have them near: no move is in
//! doubt by itself. But what a program gains is what some of its threads come nearer less what others go farther, and of threads that
//! use all memory alike some always seem to use one half of it more. So what all moves of a program bring is held against
//! the accesses that they bring nearer or farther, since those of either kind were seen by chance:
//!
//! ```text
//! gain > errors x sqrt(sum of v^2 - (sum of v)^2 / samples)
//! v    = accesses per sample x scale x (latency now - latency then)      of each sample of those accesses
//! ```
//!
//! in ns per second as the objective has it (`problem`), with what lines, CPUs and waits gain; of several programs gains and squares
//! add up, for how many accesses of one were seen says nothing of another one. Threads that may not stay where they are do not count, and neither do
//! pages that go only to wait less: no sample of accesses tells of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Planner, Why, waits_saved};
use crate::model::{Action, Plan, ProcessId, ThreadId};
use crate::page_moves::Granted;
use crate::relocation::may_run;
use crate::signals::sound;
use crate::users::{Ledger, Users};

/// Less variance than this share of the squares is rounding.
const ROUNDING: f64 = 1e-9;

/// What the moves of a program bring, in ns per second.
#[derive(Clone, Copy, Debug, Default)]
struct Brought {
    /// By accesses, the sum of squares of what samples of them stand for, and how many of them there are.
    by_accesses: f64,
    squares: f64,
    samples: f64,
    /// By all else.
    besides: f64,
}

impl Brought {
    fn plus(self, other: Self) -> Self {
        Self {
            by_accesses: self.by_accesses + other.by_accesses,
            squares: self.squares + other.squares,
            samples: self.samples + other.samples,
            besides: self.besides + other.besides,
        }
    }

    /// Of accesses of which a sample stands for `per_sample`, each nearer by so much of what is waited for.
    fn by_accesses(per_s: f64, per_sample: f64, nearer_ns: f64) -> Self {
        if per_sample <= 0.0 || nearer_ns == 0.0 {
            return Self::default();
        }
        let (samples, each) = (per_s / per_sample, per_sample * nearer_ns);
        Self { by_accesses: samples * each, squares: samples * each * each, samples, besides: 0.0 }
    }

    fn gain(&self) -> Gain {
        let alike = self.by_accesses * self.by_accesses / self.samples.max(f64::MIN_POSITIVE);
        let variance = self.squares - alike;
        Gain {
            ns: self.by_accesses + self.besides,
            variance: if variance > ROUNDING * self.squares { variance } else { 0.0 },
            variance_of_counts: self.squares,
        }
    }
}

/// What a program gains, in ns per second, and its variance: by itself, and beside what others gain or lose, as how many of its
/// accesses were seen is chance, too.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    ns: f64,
    variance: f64,
    variance_of_counts: f64,
}

impl Gain {
    fn may_be_chance(&self, errors: f64) -> bool {
        may_be_chance(self.ns, self.variance, errors)
    }
}

fn may_be_chance(ns: f64, variance: f64, errors: f64) -> bool {
    variance > 0.0 && ns <= errors * libm::sqrt(variance)
}

impl Planner<'_> {
    /// Programs of which `plan` moves something, and gains by it no more than chance may have made up. Where threads of two programs
    /// change places they are judged as one.
    pub(super) fn doubtful(&self, plan: &Plan, ledger: &Ledger, granted: &[Granted<Why>]) -> BTreeSet<ProcessId> {
        if plan.is_empty() {
            return BTreeSet::new();
        }
        let errors = self.facts.prices.errors;
        let brought = self.brought(ledger, granted);
        let mut doubtful = BTreeSet::new();
        for programs in self.judged_as_one(plan, brought.keys().copied()) {
            let gains = programs.iter().map(|&program| (program, brought.get(&program).map(Brought::gain)));
            let gains: Vec<_> = gains.map(|(program, gain)| (program, gain.unwrap_or_default())).collect();
            doubtful.extend(in_doubt(&gains, errors));
        }
        doubtful
    }

    /// Programs, those together whose threads change places.
    fn judged_as_one(&self, plan: &Plan, programs: impl Iterator<Item = ProcessId>) -> Vec<BTreeSet<ProcessId>> {
        let process_of = |id: ThreadId| self.facts.snapshot.thread(id).map(|thread| thread.process);
        let mut sets: Vec<BTreeSet<ProcessId>> = programs.map(|program| BTreeSet::from([program])).collect();
        let pairs: BTreeSet<_> = plan
            .moves
            .iter()
            .filter_map(|planned| match planned.action {
                Action::Interchange { first, second, .. } => process_of(first).zip(process_of(second)),
                Action::MoveThread { .. } | Action::MovePages { .. } => None,
            })
            .collect();
        for (one, other) in pairs.into_iter().filter(|(one, other)| one != other) {
            let (mut joined, apart): (Vec<_>, Vec<_>) =
                sets.into_iter().partition(|set| set.contains(&one) || set.contains(&other));
            sets = apart;
            joined.push(BTreeSet::from([one, other]));
            sets.push(joined.into_iter().flatten().collect());
        }
        sets
    }

    /// Whether a thread goes, though it could stay.
    fn chooses_to_go(&self, at: usize) -> bool {
        let thread = &self.facts.snapshot.threads[at];
        thread.node.0 != self.place[at] && may_run(self.facts.snapshot, thread, thread.node)
    }

    /// What the plan brings to each program.
    fn brought(&self, ledger: &Ledger, granted: &[Granted<Why>]) -> BTreeMap<ProcessId, Brought> {
        let (snapshot, problem) = (self.facts.snapshot, self.problem);
        let mut brought = BTreeMap::new();
        let rests = self.add_groups(ledger, granted, &mut brought);
        let movers: Vec<usize> = (0..problem.threads.len()).filter(|&at| self.chooses_to_go(at)).collect();
        let each = self.common_gain() / movers.len().max(1) as f64;
        for &at in &movers {
            let process = snapshot.threads[at].process;
            let (from, to) =
                (problem.latencies.from(snapshot.threads[at].node.0), problem.latencies.from(self.place[at]));
            let (scale, per_sample) = (problem.threads[at].scale, self.facts.owners.per_sample(process));
            let of_rest = rests.get(&at).into_iter().flatten().enumerate();
            let its = of_rest
                .map(|(memory, &per_s)| Brought::by_accesses(per_s, per_sample, scale * (from[memory] - to[memory])))
                .fold(Brought { besides: each + self.lines_gain_by_choice(at), ..Brought::default() }, Brought::plus);
            add(&mut brought, process, its);
        }
        brought
    }

    /// Adds what groups that go bring to their users; returns what threads that go access besides, by memory.
    fn add_groups(
        &self,
        ledger: &Ledger,
        granted: &[Granted<Why>],
        brought: &mut BTreeMap<ProcessId, Brought>,
    ) -> BTreeMap<usize, Vec<f64>> {
        let (snapshot, problem) = (self.facts.snapshot, self.problem);
        let mut rests: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for at in (0..snapshot.threads.len()).filter(|&at| self.chooses_to_go(at)) {
            let row = snapshot.threads[at].accesses_per_s.as_ref();
            rests.extend(row.map(|row| (at, row.values().map(|&per_s| sound(per_s)).collect())));
        }
        let threads = Users::positions(snapshot);
        for one in granted {
            let weighed = ledger.weighed(one.at);
            let per_sample = self.facts.owners.per_sample(weighed.process);
            for &(id, per_s) in &weighed.group.users {
                let Some((at, node)) = threads.seat(id) else { continue };
                let (per_s, to) = (sound(per_s), self.place[at]);
                let mut now_ns = 0.0;
                for (memory, pages) in weighed.pages() {
                    let share = pages as f64 / weighed.resident as f64;
                    now_ns += share * problem.latency_ns(node.0, memory.0);
                    if let Some(rest) = rests.get_mut(&at) {
                        rest[memory.0] = (rest[memory.0] - share * per_s).max(0.0);
                    }
                }
                if !one.why.is_relief && (node.0 == to || self.chooses_to_go(at)) {
                    let nearer_ns = problem.threads[at].scale * (now_ns - problem.latency_ns(to, one.to.0));
                    add(brought, weighed.process, Brought::by_accesses(per_s, per_sample, nearer_ns));
                }
            }
        }
        rests
    }

    /// What a thread that goes by choice saves of lines.
    fn lines_gain_by_choice(&self, at: usize) -> f64 {
        self.gain_of_lines(at, |at| self.problem.threads[at].present, |other| self.chooses_to_go(other))
    }

    /// What a thread saves of lines, given where all are `now`: half of what it and a partner save that `goes` as well.
    pub(super) fn gain_of_lines(&self, at: usize, now: impl Fn(usize) -> usize, goes: impl Fn(usize) -> bool) -> f64 {
        let problem = self.problem;
        let (from, to) = (now(at), self.place[at]);
        let of = |&(other, per_s): &(usize, f64)| {
            let saved = problem.between_ns(from, now(other)) - problem.between_ns(to, self.place[other]);
            per_s * saved * if goes(other) { 0.5 } else { 1.0 }
        };
        problem.threads[at].partners.iter().map(of).sum()
    }

    /// What all threads that go save together, of want of CPUs and of waits at memories.
    fn common_gain(&self) -> f64 {
        let problem = self.problem;
        let short = |wanted: &[f64]| (0..problem.nodes).map(|node| problem.crowd(node, wanted[node])).sum::<f64>();
        short(&self.wanted_now) - short(&self.wanted) + waits_saved(problem, self.place)
    }
}

/// Of programs that are judged as one, those that are in doubt: in doubt together, those that are in doubt alone are in the way of the
/// others. None may be: what one gains may be sure by itself, but not beside what another one loses by making room.
fn in_doubt(gains: &[(ProcessId, Gain)], errors: f64) -> Vec<ProcessId> {
    let alone: Vec<ProcessId> =
        gains.iter().filter(|(_, gain)| gain.may_be_chance(errors)).map(|&(program, _)| program).collect();
    let sure = alone.is_empty() && gains.iter().all(|(_, gain)| gain.ns >= 0.0);
    if gains.len() == 1 || sure {
        return alone;
    }
    let sum = |of: fn(&Gain) -> f64| gains.iter().map(|(_, gain)| of(gain)).sum::<f64>();
    if !may_be_chance(sum(|gain| gain.ns), sum(|gain| gain.variance_of_counts), errors) {
        return vec![];
    }
    if alone.is_empty() { gains.iter().map(|&(program, _)| program).collect() } else { alone }
}

fn add(brought: &mut BTreeMap<ProcessId, Brought>, program: ProcessId, more: Brought) {
    let all = brought.entry(program).or_default();
    *all = all.plus(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two programs, 1 and 2, by what each gains, its standard error, and that of its counts; three of these are chance.
    fn doubtful(gains: [(f64, f64, f64); 2]) -> Vec<u32> {
        let of = |(at, &(ns, error, of_counts)): (usize, &(f64, f64, f64))| {
            (ProcessId(1 + at as u32), Gain { ns, variance: error * error, variance_of_counts: of_counts * of_counts })
        };
        in_doubt(&gains.iter().enumerate().map(of).collect::<Vec<_>>(), 3.0).iter().map(|program| program.0).collect()
    }

    #[test]
    fn a_program_that_is_in_doubt_alone_makes_room_where_both_gain_enough() {
        assert!(doubtful([(10.0, 1.0, 2.0), (-1.0, 1.0, 2.0)]).is_empty());
    }

    #[test]
    fn of_programs_that_are_in_doubt_together_those_in_doubt_alone_are_in_the_way() {
        assert_eq!(doubtful([(10.0, 1.0, 2.0), (-1.0, 4.0, 4.0)]), [2]);
        assert_eq!(doubtful([(2.0, 1.0, 1.0), (-1.0, 1.0, 1.0)]), [1, 2]);
    }

    #[test]
    fn a_gain_that_is_sure_is_in_doubt_beside_what_making_room_for_it_costs() {
        assert_eq!(doubtful([(1.2, 0.0, 0.12), (-1.0, 0.0, 0.1)]), [1, 2]);
        assert!(doubtful([(1.2, 0.0, 0.02), (-1.0, 0.0, 0.02)]).is_empty());
    }

    #[test]
    fn what_each_program_is_sure_to_gain_is_sure_of_both() {
        assert!(doubtful([(3.1, 1.0, 9.0), (310.0, 100.0, 900.0)]).is_empty());
    }
}
