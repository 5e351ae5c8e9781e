// SPDX-License-Identifier: GPL-2.0-only
//! From a placement of threads to a plan: which page groups go where, and all moves with their gains and reasons.
//!
//! Groups are judged as what they belong to, at the nodes that its threads have under the plan:
//!
//! ```text
//! gain = accesses x (latency now - latency there - errors x standard error) + less waiting at memories
//! ```
//!
//! and go if that exceeds what the move costs over the horizon and the least share of the stall. A group of a process is
//! judged by its own accesses as well, if its threads stay: a team of more threads than have names may use it. Gains of thread
//! moves count memory where it is, those of page moves count threads where they go, so that all add up.

use std::collections::BTreeSet;

use super::build::Facts;
use super::latencies::Row;
use super::loads::Loads;
use super::owners::Owner;
use super::problem::Problem;
use super::search::{Found, State};
use super::stays;
use crate::cost::thread_gain_ns_per_s;
use crate::model::{Action, NodeIndex, Plan, ProcessId, Thread};
use crate::page_moves::{Granted, PageMoves};
use crate::relocation::{self, pulled_out};
use crate::stall::is_worth_a_trial;
use crate::stay::Stay;
use crate::users::{Ledger, Weighed};

mod doubt;

/// Standard errors for a group that is judged alone: there are thousands of them.
const ALONE_ERRORS: f64 = 4.5;
/// Share of the accesses that must come from one node for that.
const LEAST_ALONE: f64 = 0.6;

/// Share of the stall that a move for less waiting must save besides: loads are never quite alike.
const LEAST_RELIEF: f64 = 0.05;
/// Gains are told in the currency of all policies, in which accesses in flight together count one by one.
const LEAST_SCALE: f64 = 1e-3;

/// Accesses as they will be: from where, and how they are waited for.
#[derive(Clone, Debug)]
pub struct Source {
    /// Mean latency of an access by memory.
    pub latency_ns: Row,
    /// Share of the accesses by node.
    from: Vec<f64>,
    /// Samples behind it; infinite if it is certain.
    samples: f64,
    /// Share that is waited for one after the other.
    pub scale: f64,
    /// Time over which a move must pay, in s.
    horizon_s: f64,
    /// The memory with the least latency.
    nearest: Option<usize>,
}

/// Why a group goes.
#[derive(Clone, Copy, Debug)]
pub struct Why {
    owner: Owner,
    gain_ns_per_s: f64,
    is_relief: bool,
}

/// A plan, and what was left out of it for want of room.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Gain of groups for which there was no room, in ns per second.
    pub denied_ns_per_s: f64,
    /// The first thread for the next search.
    pub next_thread: usize,
    /// Whether the plan is worth a trial. Else nobody would carry it out, so that placements go on lasting, and cold memory need not
    /// wait for it.
    pub is_worth_a_trial: bool,
    /// Programs of which it moves something for a gain that may be chance.
    pub doubtful: BTreeSet<ProcessId>,
    /// Threads that stay away from the memory that they use most, and why; if the plan is not to be carried out, where all are now.
    pub stays: Vec<Stay>,
}

/// Makes the plan for a placement.
pub struct Planner<'a> {
    facts: &'a Facts<'a>,
    problem: &'a Problem,
    place: &'a [usize],
    next_thread: usize,
    /// CPUs wanted by node, now and where threads go.
    wanted_now: Vec<f64>,
    wanted: Vec<f64>,
    /// What all threads that move save of waits that are assumed, by each of them, in ns per second.
    assumed_each: f64,
}

impl<'a> Planner<'a> {
    /// One for what a search found.
    pub fn new(facts: &'a Facts<'a>, problem: &'a Problem, found: &'a Found) -> Self {
        let wanted = |node_of: &dyn Fn(usize) -> usize| {
            let mut wanted = vec![0.0; problem.nodes];
            problem.threads.iter().enumerate().for_each(|(at, thread)| wanted[node_of(at)] += thread.demand);
            wanted
        };
        let place = &found.place;
        let (wanted_now, wanted) = (wanted(&|at| problem.threads[at].present), wanted(&|at| place[at]));
        let assumed_each = assumed_gain(problem, place) / movers(problem, place).max(1) as f64;
        Self { facts, problem, place, next_thread: found.next, wanted_now, wanted, assumed_each }
    }

    /// The plan; `moves` has none yet.
    pub fn plan(&self, ledger: &Ledger, mut moves: PageMoves) -> Planned {
        let threads = self.threads();
        let (mut granted, denied_ns_per_s) = self.groups(ledger, &mut moves);
        let pages = |one: &Granted<Why>| ledger.weighed(one.at).resident.max(1) as f64;
        granted.sort_by(|a, b| {
            let rate = |one: &Granted<Why>| one.why.gain_ns_per_s / pages(one);
            rate(b).total_cmp(&rate(a)).then(a.at.cmp(&b.at))
        });
        moves.write(ledger, &granted, |moves, weighed, one| {
            (Some(one.why.gain_ns_per_s), self.page_reason(moves, weighed, one))
        });
        let mut plan = threads;
        plan.moves.extend(moves.plan().moves);
        let doubtful = self.doubtful(&plan, ledger, &granted);
        let is_worth_a_trial = is_worth_a_trial(&plan, self.facts.snapshot);
        let stays = if is_worth_a_trial && doubtful.is_empty() {
            stays::of(self.facts, self.problem, self.place)
        } else {
            let now: Vec<usize> = self.problem.threads.iter().map(|thread| thread.present).collect();
            stays::of(self.facts, self.problem, &now)
        };
        Planned { plan, denied_ns_per_s, next_thread: self.next_thread, is_worth_a_trial, doubtful, stays }
    }

    fn threads(&self) -> Plan {
        let snapshot = self.facts.snapshot;
        let threads: Vec<&Thread> = snapshot.threads.iter().collect();
        let reason = |thread: &Thread, to: NodeIndex| self.thread_reason(thread, to.0);
        let mut plan = relocation::plan(snapshot, &threads, self.place, reason);
        for planned in &mut plan.moves {
            let going = match planned.action {
                Action::MoveThread { thread, .. } => [Some(thread), None],
                Action::Interchange { first, second, .. } => [Some(first), Some(second)],
                Action::MovePages { .. } => [None; 2],
            };
            let seat = |id| snapshot.threads.binary_search_by_key(&id, |known| known.id).ok();
            let more = self.other_gain(going.map(|id| id.and_then(seat)));
            planned.gain_ns_per_s = Some(planned.gain_ns_per_s.unwrap_or(0.0) + more).filter(|gain| gain.is_finite());
        }
        plan
    }

    /// What the move of a thread, or of two that change places, saves besides their own accesses, the others being where they go.
    fn other_gain(&self, [first, second]: [Option<usize>; 2]) -> f64 {
        let threads = &self.problem.threads;
        let scale = |at: usize| threads[at].scale.max(LEAST_SCALE);
        let of = |at: usize| (self.lines_gain(at) + self.assumed_each) / scale(at);
        let Some(at) = first else { return 0.0 };
        let (from, to) = (self.facts.snapshot.threads[at].node.0, self.place[at]);
        let more = threads[at].demand - second.map_or(0.0, |other| threads[other].demand);
        let crowd = self.crowd_gain(more, from, to) / scale(at).max(second.map_or(0.0, scale));
        of(at) + second.map_or(0.0, of) + crowd
    }

    /// What a thread saves of waits that are assumed by its own memory, which it takes along.
    fn own_assumed_gain(&self, at: usize, from: usize, to: usize) -> f64 {
        let (problem, thread) = (self.problem, &self.problem.threads[at]);
        let Some(knee) = problem.placing_knee.as_ref().filter(|_| problem.knee.is_none()) else { return 0.0 };
        let saved = |node: usize, load, sign| {
            knee.cost(node, problem.loads[node]) - knee.cost(node, problem.loads[node].plus(load, sign))
        };
        let of = thread.followers.iter().map(|follower| {
            let (before, after) =
                (problem.memory_of_follower(follower, from), problem.memory_of_follower(follower, to));
            if before == after { 0.0 } else { saved(before, follower.load, -1.0) + saved(after, follower.load, 1.0) }
        });
        of.sum::<f64>() / thread.scale.max(LEAST_SCALE)
    }

    /// What a thread saves of lines, half of what it and its partner do if that one moves as well.
    fn lines_gain(&self, at: usize) -> f64 {
        let now = |at: usize| self.facts.snapshot.threads[at].node.0;
        self.gain_of_lines(at, now, |other| now(other) != self.place[other])
    }

    /// What it saves that this demand went from one node to another.
    fn crowd_gain(&self, demand: f64, from: usize, to: usize) -> f64 {
        let problem = self.problem;
        let (old, new) = (self.wanted[from], self.wanted[to]);
        problem.crowd(from, old + demand) - problem.crowd(from, old) + problem.crowd(to, new - demand)
            - problem.crowd(to, new)
    }

    /// Whether threads want more than a node's CPUs now. Of two that change places, each would crowd the other's node alone.
    fn is_crowded(&self, node: usize) -> bool {
        self.problem.crowd(node, self.wanted_now[node]) > 0.0
    }

    /// Why a thread goes, in words: what weighs most.
    fn thread_reason(&self, thread: &Thread, to: usize) -> String {
        let snapshot = self.facts.snapshot;
        let id = |node: usize| snapshot.topology.nodes[NodeIndex(node)].id;
        if let Some(reason) = pulled_out(snapshot, thread) {
            return reason;
        }
        let Ok(at) = snapshot.threads.binary_search_by_key(&thread.id, |known| known.id) else { return String::new() };
        let from = thread.node.0;
        let scale = self.problem.threads[at].scale;
        let memory = thread_gain_ns_per_s(&snapshot.topology, thread, NodeIndex(to)).unwrap_or(0.0) * scale;
        let (lines, crowd) = (self.lines_gain(at), self.crowd_gain(self.problem.threads[at].demand, from, to));
        if crowd > 0.0 && crowd >= lines && crowd >= memory && self.is_crowded(from) {
            return format!("node {} has more to run than CPUs", id(from));
        }
        if memory > 0.0
            && memory >= lines
            && let Some(row) = &thread.accesses_per_s
        {
            return match (100.0 * row[NodeIndex(to)] / row.total()).round() {
                0.0 => format!("node {} is nearer to the memory that it uses", id(to)),
                share => {
                    format!(
                        "{share} % of its accesses go to node {}, from which it is nearer to the others too",
                        id(to)
                    )
                }
            };
        }
        if self.own_assumed_gain(at, from, to) > lines.max(0.0) {
            return format!("the memory of node {} has less to do, and it takes its own along", id(to));
        }
        if lines > 0.0 {
            return format!("it exchanges lines with threads that are on node {} or near", id(to));
        }
        format!("threads and pages are better placed together with it on node {}", id(to))
    }

    fn page_reason(&self, moves: &PageMoves, weighed: &Weighed, one: &Granted<Why>) -> String {
        let snapshot = self.facts.snapshot;
        let id = snapshot.topology.nodes[one.to].id;
        let home = moves.home_of(weighed);
        if one.why.is_relief && self.problem.assumed_knee.is_some() {
            return format!("node {id} is as near to its users, and its memory has less to do{home}");
        }
        if one.why.is_relief {
            return format!("accesses wait less at node {id}{home}");
        }
        match one.why.owner {
            Owner::Part(part) => match self.facts.owners.parts[part].users[..] {
                [(user, _)] => {
                    let on = snapshot.topology.nodes[NodeIndex(self.place[user])].id;
                    format!("thread {} on node {on} uses it{home}", snapshot.threads[user].id)
                }
                ref users => format!("node {id} is nearest to the {} threads that share it{home}", users.len()),
            },
            Owner::Common(_) => format!("node {id} is nearest to the threads of its process{home}"),
        }
    }

    /// The accesses of parts and processes with threads where they go.
    fn sources(&self) -> (Vec<Source>, Vec<Option<Source>>) {
        let owners = self.facts.owners;
        let per_sample = |user: usize| owners.per_sample(self.facts.snapshot.threads[user].process);
        let parts = owners.parts.iter().map(|part| {
            let mut from = vec![0.0; self.problem.nodes];
            let (mut waited, mut all) = (0.0, 0.0);
            for &(user, per_s) in &part.users {
                from[self.place[user]] += per_s;
                waited += per_s * self.problem.threads[user].scale;
                all += per_s;
            }
            part.others.iter().for_each(|&(node, per_s)| from[node] += per_s);
            let of_sample = part.users.first().map_or(0.0, |user| per_sample(user.0));
            let samples = if of_sample > 0.0 { from.iter().sum::<f64>() / of_sample } else { 0.0 };
            let process = part.users.first().map(|user| self.facts.snapshot.threads[user.0].process);
            self.source(from, samples, if all > 0.0 { waited / all } else { 1.0 }, process)
        });
        let parts = parts.collect();
        let mut common: Vec<Option<Source>> = vec![None; owners.common.len()];
        for pool in &self.problem.pools {
            let Some(&first) = pool.users.first() else { continue };
            let process = self.facts.snapshot.threads[first].process;
            let Ok(number) = owners.common.binary_search_by_key(&process, |common| common.process) else { continue };
            let mut from = vec![0.0; self.problem.nodes];
            let mut scaled = 0.0;
            for &user in &pool.users {
                let unknown = &self.problem.threads[user];
                let waited = unknown.pool.map_or(0.0, |pool| pool.2);
                from[self.place[user]] += waited / unknown.scale.max(1e-9);
                scaled += waited;
            }
            let all: f64 = from.iter().sum();
            let scale = if all > 0.0 { scaled / all } else { 1.0 };
            common[number] = Some(self.source(from, owners.common[number].samples, scale, Some(process)));
        }
        (parts, common)
    }

    /// Of a process that makes so many accesses by node.
    fn source(&self, from: Vec<f64>, samples: f64, scale: f64, process: Option<ProcessId>) -> Source {
        let all: f64 = from.iter().sum();
        let share = |per_s: f64| if all > 0.0 { per_s / all } else { 0.0 };
        let from: Vec<f64> = from.into_iter().map(share).collect();
        let accessing = from.iter().copied().enumerate().filter(|entry| entry.1 > 0.0);
        let latency_ns = self.problem.latencies.costs_to(accessing);
        let nearer = |&a: &usize, &b: &usize| latency_ns[a].total_cmp(&latency_ns[b]).then(a.cmp(&b));
        let nearest = self.memories_for(process).min_by(nearer);
        let horizon_s = self.facts.horizons.of_s(process);
        Source { latency_ns, from, samples, scale, horizon_s, nearest: nearest.filter(|_| all > 0.0) }
    }

    /// Memories to which pages of a process may follow its threads.
    fn memories_for(&self, process: Option<ProcessId>) -> impl Iterator<Item = usize> {
        let snapshot = self.facts.snapshot;
        let may_use = move |memory: &usize| process.is_none_or(|id| snapshot.may_use(id, NodeIndex(*memory)));
        self.facts.memory_of.iter().flatten().copied().filter(may_use)
    }

    /// Standard error of the difference of the mean latencies of two memories in so many samples.
    fn error_ns(&self, source: &Source, here: usize, there: usize, samples: f64) -> f64 {
        let (mut mean, mut square) = (0.0, 0.0);
        for (node, &share) in source.from.iter().enumerate().filter(|entry| *entry.1 > 0.0) {
            let far = self.problem.latency_ns(node, here) - self.problem.latency_ns(node, there);
            mean += share * far;
            square += share * far * far;
        }
        libm::sqrt((square - mean * mean).max(0.0) / samples.max(1.0))
    }

    /// Gives groups that gain by it a place, those with most accesses first: at first the nearest one, then, as loads are
    /// when these have gone, one where accesses wait less. Returns them, and what the others would have gained for which
    /// there was no room.
    fn groups(&self, ledger: &Ledger, moves: &mut PageMoves) -> (Vec<Granted<Why>>, f64) {
        let sources = self.sources();
        let owners = &self.facts.owners.of;
        let is_meant = |at: usize| {
            let weighed = ledger.weighed(at);
            owners[at].is_some() && weighed.movable && !self.facts.still.memory(weighed.process)
        };
        let order = ledger.heaviest_first(is_meant);
        let mut loads = Loads::of(self.problem);
        let threads = self.place.iter().zip(&self.facts.snapshot.threads);
        let go: BTreeSet<ProcessId> =
            threads.filter(|(at, thread)| **at != thread.node.0).map(|(_, thread)| thread.process).collect();
        let (mut granted, mut denied) = (Vec::new(), 0.0);
        let mut goes = vec![false; owners.len()];
        let passes: &[bool] = if loads.is_felt() { &[false, true] } else { &[false] };
        for &for_relief in passes {
            for &at in &order {
                if moves.is_full() {
                    return (granted, denied);
                }
                let Some(owner) = owners[at].filter(|_| !goes[at]) else { continue };
                let weighed = ledger.weighed(at);
                let all_stay = !go.contains(&weighed.process);
                let mut verdict = self.verdict(&weighed, owner, &sources, &mut loads, for_relief);
                // What seems to be in common for want of samples may be one thread's: then these say whose.
                if matches!(owner, Owner::Common(_)) && all_stay && !for_relief {
                    verdict = verdict.filter(|verdict| loads.farther_alone(&weighed, verdict.to) < 1.0);
                }
                if verdict.is_none()
                    && !for_relief
                    && all_stay
                    && let Owner::Common(number) = owner
                {
                    verdict = sources.1[number].as_ref().and_then(|of| self.judge_alone(&weighed, of, &loads));
                }
                // What may not go there, or is there but for a few pages, lacks no room.
                let is_meant = |verdict: &Verdict| moves.may_follow(&weighed, NodeIndex(verdict.to));
                let Some(verdict) = verdict.filter(is_meant) else { continue };
                if moves.grant(&weighed, NodeIndex(verdict.to)) {
                    goes[at] = true;
                    loads.go(&weighed, verdict.scale, verdict.to);
                    let gain_ns_per_s = verdict.gain_ns_per_s / verdict.scale.max(LEAST_SCALE);
                    let why = Why { owner, gain_ns_per_s, is_relief: for_relief };
                    granted.push(Granted { at, to: NodeIndex(verdict.to), why });
                } else {
                    denied += verdict.gain_ns_per_s / verdict.scale.max(LEAST_SCALE);
                }
            }
        }
        (granted, denied)
    }

    /// Where a group should go as one of what it belongs to.
    fn verdict(
        &self,
        weighed: &Weighed,
        owner: Owner,
        (parts, common): &(Vec<Source>, Vec<Option<Source>>),
        loads: &mut Loads,
        for_relief: bool,
    ) -> Option<Verdict> {
        let source = match owner {
            Owner::Part(part) => &parts[part],
            Owner::Common(number) => common[number].as_ref()?,
        };
        let to = if for_relief {
            let number = match owner {
                Owner::Part(part) => part,
                Owner::Common(number) => parts.len() + number,
            };
            loads.best_of(number, |loads| loads.best_for(source, self.memories_for(Some(weighed.process))))?
        } else {
            source.nearest?
        };
        let errors =
            |home: usize, to: usize| self.facts.prices.errors * self.error_ns(source, home, to, source.samples);
        self.judge(weighed, source, to, errors, loads, for_relief)
    }

    /// Where a group should go by its own accesses, if most of them come from one node. They err as much as those of the
    /// process would in so few samples: that so many came from one node may itself be chance.
    fn judge_alone(&self, weighed: &Weighed, of: &Source, loads: &Loads) -> Option<Verdict> {
        let most = weighed.accesses.iter().map(|access| access.1).fold(0.0, f64::max);
        if most < LEAST_ALONE * weighed.load {
            return None;
        }
        let mut from = vec![0.0; self.problem.nodes];
        weighed.accesses.iter().for_each(|&(node, per_s)| from[node.0] = crate::signals::sound(per_s));
        let own = self.source(from, weighed.samples, of.scale, Some(weighed.process));
        let error_ns = |home: usize, to: usize| {
            [&own, of]
                .map(|source| ALONE_ERRORS * self.error_ns(source, home, to, weighed.samples))
                .into_iter()
                .fold(0.0, f64::max)
        };
        self.judge(weighed, &own, own.nearest?, error_ns, loads, false)
    }

    /// Whether a group goes to a memory: if it gains enough there.
    fn judge(
        &self,
        weighed: &Weighed,
        source: &Source,
        to: usize,
        error_ns: impl Fn(usize, usize) -> f64,
        loads: &Loads,
        for_relief: bool,
    ) -> Option<Verdict> {
        let away = (weighed.resident - weighed.pages_on(NodeIndex(to))) as f64;
        if away <= 0.0 {
            return None;
        }
        // What is there already does not move, and errs in nothing.
        let elsewhere = weighed.pages().filter(|(node, _)| node.0 != to).max_by_key(|part| part.1)?.0.0;
        let here = |(node, pages): (NodeIndex, u64)| pages as f64 * source.latency_ns[node.0];
        let stay_ns = weighed.pages().map(here).sum::<f64>() / weighed.resident as f64;
        let waited_per_s = weighed.load * source.scale;
        let relief = loads.relief(weighed, source, stay_ns, to, for_relief)?;
        let gain = |error_ns: f64| waited_per_s * (stay_ns - source.latency_ns[to] - error_ns) + relief;
        let least = self.facts.prices.least_gain
            + if for_relief && self.problem.assumed_knee.is_none() { LEAST_RELIEF } else { 0.0 };
        let wanted =
            self.facts.prices.pages(away, weighed.huge_share(), source.horizon_s) + least * waited_per_s * stay_ns;
        // How far samples err is dear to tell, and can only speak against it.
        if gain(0.0) <= wanted {
            return None;
        }
        // What is as near either way may be a little farther just as well: by chance, not always the same way.
        let errs = !for_relief || self.problem.assumed_knee.is_none();
        let error_ns = if errs { error_ns(elsewhere, to) * away / weighed.resident as f64 } else { 0.0 };
        let gain_ns_per_s = gain(error_ns);
        (gain_ns_per_s > wanted).then_some(Verdict { to, gain_ns_per_s, scale: source.scale })
    }
}

/// How many threads a placement moves.
fn movers(problem: &Problem, place: &[usize]) -> usize {
    problem.threads.iter().zip(place).filter(|(thread, at)| thread.present != **at).count()
}

/// What a placement saves of waits that are assumed. Of those that were measured page moves tell.
fn assumed_gain(problem: &Problem, place: &[usize]) -> f64 {
    if problem.knee.is_none() { waits_saved(problem, place) } else { 0.0 }
}

/// What a placement saves of waits, with all memory that goes along.
fn waits_saved(problem: &Problem, place: &[usize]) -> f64 {
    let Some(knee) = &problem.placing_knee else { return 0.0 };
    State::new(problem).waits(knee) - State::at(problem, place.to_vec()).waits(knee)
}

/// Where a group goes.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    to: usize,
    gain_ns_per_s: f64,
    scale: f64,
}
