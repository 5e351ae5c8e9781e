// SPDX-License-Identifier: GPL-2.0-only
//! Whether what a plan gains may be chance.
//!
//! Threads that take memory along are sure to find it there, and pages that follow threads are sure to have them near: no move is in
//! doubt by itself. But what a program gains is what some of its threads come nearer less what others go farther, and of threads that
//! use all memory alike some always seem to use one half of it more. So what all moves of a program bring is held against
//! the accesses that they bring nearer or farther, each seen by chance:
//!
//! ```text
//! gain > errors x sqrt(accesses per sample x sum of accesses x (latency now - latency then)^2)
//! ```
//!
//! Programs whose threads change places with each other are judged as one. Threads that may not stay where they are go anyway,
//! and pages that go only to wait less go for what no sample of accesses tells.

use std::collections::{BTreeMap, BTreeSet};

use super::{Planner, Why};
use crate::model::{Action, NodeIndex, Plan, ProcessId, ThreadId};
use crate::page_moves::Granted;
use crate::relocation::may_run;
use crate::signals::sound;
use crate::users::{Ledger, Positions, Users, Weighed};

/// Programs that are judged as one.
#[derive(Clone, Debug, Default)]
struct Judged {
    programs: BTreeSet<ProcessId>,
    /// What their moves bring, in ns per second, and its variance.
    gain: f64,
    variance: f64,
    /// Whether a thread of them may not stay where it is.
    must: bool,
}

impl Judged {
    fn absorb(&mut self, mut other: Self) {
        self.programs.append(&mut other.programs);
        self.gain += other.gain;
        self.variance += other.variance;
        self.must |= other.must;
    }
}

impl Planner<'_> {
    /// Programs of which `plan` moves something, and gains by it no more than chance may have made up.
    pub(super) fn doubtful(&self, plan: &Plan, ledger: &Ledger, granted: &[Granted<Why>]) -> BTreeSet<ProcessId> {
        if plan.is_empty() {
            return BTreeSet::new();
        }
        let errors = self.facts.prices.errors;
        let is_chance = |one: &Judged| one.variance > 0.0 && one.gain <= errors * libm::sqrt(one.variance);
        let judged = self.judged(plan, self.variances(ledger, granted));
        judged.into_iter().filter(|one| !one.must && is_chance(one)).flat_map(|one| one.programs).collect()
    }

    /// What a plan brings, by programs that are judged as one.
    fn judged(&self, plan: &Plan, variances: BTreeMap<ProcessId, f64>) -> Vec<Judged> {
        let snapshot = self.facts.snapshot;
        let process_of = |id: ThreadId| snapshot.thread(id).map(|thread| thread.process);
        let mut of: BTreeMap<ProcessId, Judged> = BTreeMap::new();
        for (process, variance) in variances {
            of.entry(process).or_default().variance = variance;
        }
        let mut pairs = BTreeSet::new();
        for planned in &plan.moves {
            let process = match planned.action {
                Action::MoveThread { thread, .. } => process_of(thread),
                Action::MovePages { group, .. } => Some(group.process),
                Action::Interchange { first, second, .. } => {
                    pairs.extend(process_of(first).zip(process_of(second)));
                    process_of(first)
                }
            };
            let Some(process) = process else { continue };
            of.entry(process).or_default().gain += planned.gain_ns_per_s.unwrap_or(0.0);
        }
        for (thread, &to) in snapshot.threads.iter().zip(self.place) {
            if thread.node.0 != to && !may_run(snapshot, thread, thread.node) {
                of.entry(thread.process).or_default().must = true;
            }
        }
        of.iter_mut().for_each(|(&process, one)| one.programs.extend([process]));
        let mut judged: Vec<Judged> = of.into_values().collect();
        for (one, other) in pairs {
            let Some(at) = judged.iter().position(|known| known.programs.contains(&other)) else { continue };
            if !judged[at].programs.contains(&one) {
                let absorbed = judged.swap_remove(at);
                if let Some(kept) = judged.iter_mut().find(|known| known.programs.contains(&one)) {
                    kept.absorb(absorbed);
                } else {
                    judged.push(absorbed);
                }
            }
        }
        judged
    }

    /// By program, the variance of what its accesses gain, in ns^2 per second^2.
    fn variances(&self, ledger: &Ledger, granted: &[Granted<Why>]) -> BTreeMap<ProcessId, f64> {
        let snapshot = self.facts.snapshot;
        let threads = Users::positions(snapshot);
        let mut variances: BTreeMap<ProcessId, f64> = BTreeMap::new();
        // Of threads that move, accesses to memory that stays.
        let mut rests: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (at, thread) in snapshot.threads.iter().enumerate().filter(|&(at, thread)| thread.node.0 != self.place[at])
        {
            let row = thread.accesses_per_s.as_ref().map(|row| row.values().map(|&per_s| sound(per_s)).collect());
            rests.extend(row.map(|row| (at, row)));
        }
        for one in granted {
            let weighed = ledger.weighed(one.at);
            for &(id, per_s) in &weighed.group.users {
                let Some(rest) = threads.seat(id).and_then(|(at, _)| rests.get_mut(&at)) else { continue };
                for (node, pages) in weighed.pages() {
                    rest[node.0] = (rest[node.0] - sound(per_s) * pages as f64 / weighed.resident as f64).max(0.0);
                }
            }
            if !one.why.is_relief {
                *variances.entry(weighed.process).or_default() += self.squares_of_group(&weighed, one.to, &threads);
            }
        }
        for (at, rest) in rests {
            let (thread, to) = (&snapshot.threads[at], self.place[at]);
            let nearer_ns =
                |memory| self.problem.latency_ns(thread.node.0, memory) - self.problem.latency_ns(to, memory);
            let squares = rest.iter().enumerate().map(|(memory, per_s)| per_s * nearer_ns(memory) * nearer_ns(memory));
            *variances.entry(thread.process).or_default() += squares.sum::<f64>();
        }
        let per_sample = |process| self.facts.owners.per_sample(process);
        variances.into_iter().map(|(process, squares)| (process, per_sample(process) * squares)).collect()
    }

    /// Accesses of the named users of a group that goes to a node, each times the square of what it comes nearer or goes farther.
    fn squares_of_group(&self, weighed: &Weighed, to: NodeIndex, threads: &Positions) -> f64 {
        let problem = self.problem;
        let square = |from: usize, then: usize| {
            let now = |(node, pages): (NodeIndex, u64)| pages as f64 * problem.latency_ns(from, node.0);
            let nearer_ns =
                weighed.pages().map(now).sum::<f64>() / weighed.resident as f64 - problem.latency_ns(then, to.0);
            nearer_ns * nearer_ns
        };
        let of = |&(id, per_s): &(ThreadId, f64)| {
            threads.seat(id).map_or(0.0, |(at, node)| sound(per_s) * square(node.0, self.place[at]))
        };
        weighed.group.users.iter().map(of).sum()
    }
}
